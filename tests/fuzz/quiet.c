/*
 * Disables the log: a target refuses thousands of inputs, and logs each. The linker replaces tutti_log by this
 * (--wrap), so that only a sanitizer's reports are printed.
 */
#include "bootstrap/base/common.h"

void __wrap_tutti_log(tutti_log_level level, const char *format, ...) TUTTI_PRINTF(2, 3);

void __wrap_tutti_log(tutti_log_level level, const char *format, ...) {
    (void)level, (void)format;
}
