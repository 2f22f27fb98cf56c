/*
 * Status names and each thread's text of its last failure.
 *
 * The function that decides which error it is calls tutti_fail; callers pass the status on and may put their
 * own words in front with tutti_fail_context. A thread's text lives until its next failure.
 */
#include "bootstrap/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[TUTTI_ERROR_TEXT_BYTES];

const char *tutti_status_name(tutti_status status) {
    switch (status) {
    case TUTTI_OK: return "ok";
    case TUTTI_NOT_YET: return "not yet";
    case TUTTI_ERR_ARGUMENT: return "wrong argument";
    case TUTTI_ERR_MEMORY: return "out of memory";
    case TUTTI_ERR_SYSTEM: return "system call failed";
    case TUTTI_ERR_UNSUPPORTED: return "unsupported";
    case TUTTI_ERR_TIMEOUT: return "timeout";
    case TUTTI_ERR_PEER_DIED: return "peer died";
    case TUTTI_ERR_MISMATCH: return "calls differ";
    case TUTTI_ERR_TRUNCATED: return "message truncated";
    case TUTTI_ERR_BROKEN: return "communicator broken";
    case TUTTI_ERR_ABORTED: return "aborted";
    case TUTTI_ERR_FORKED: return "forked";
    case TUTTI_ERR_CONFIG: return "wrong configuration";
    case TUTTI_ERR_REFUSED: return "refused";
    case TUTTI_ERR_DATA: return "malformed data";
    }
    return "unknown status";
}

const char *tutti_last_error(void) {
    return last_error;
}

tutti_status tutti_fail(tutti_status status, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES]; /* the arguments may point into the old text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_error, text, sizeof last_error);
    return status;
}

tutti_status tutti_fail_errno(int error, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char reason[128];
    return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", text, strerror_r(error, reason, sizeof reason));
}

tutti_status tutti_fail_context(tutti_status status, const char *format, ...) {
    char text[TUTTI_ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tutti_fail(status, "%s: %s", text, last_error);
}
