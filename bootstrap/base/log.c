/*
 * Log lines on standard error, one write each.
 */
#include "bootstrap/base/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"

static _Thread_local int log_rank = -1;

void tutti_log_set_rank(int rank) {
    log_rank = rank;
}

void tutti_log(tutti_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if ((int64_t)level > tutti_setting_int(TUTTI_SETTING_LOG)) return;
    char line[4096];
    int used = log_rank >= 0 ? snprintf(line, sizeof line, "tutti %s [rank %d] ", names[level], log_rank)
                             : snprintf(line, sizeof line, "tutti %s ", names[level]);
    va_list arguments;
    va_start(arguments, format);
    int text = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (text < 0) return;
    size_t bytes = (size_t)used + (size_t)text;
    if (bytes > sizeof line - 2) bytes = sizeof line - 2;
    line[bytes++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, bytes);
    (void)written; /* a failed write of a log line cannot be reported */
}
