/*
 * No log: a target refuses thousands of inputs, and says so each time. The linker puts this in the place of tutti_log (--wrap),
 * so that what a sanitizer reports stands alone.
 */
#include "bootstrap/base/log.h"

void __wrap_tutti_log(tutti_log_level level, const char *format, ...) TUTTI_PRINTF(2, 3);

void __wrap_tutti_log(tutti_log_level level, const char *format, ...) {
    (void)level, (void)format;
}
