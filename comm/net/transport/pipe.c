/*
 * The common part of all pipes. See transport.h.
 */
#include <stdarg.h>
#include <stdio.h>

#include "comm/net/transport/transport.h"

tutti_status tutti_pipe_fail(tutti_pipe *pipe, tutti_status status, const char *format, ...) {
    if (pipe->status == TUTTI_OK) { /* keep the first reason */
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(pipe->error, sizeof pipe->error, format, arguments);
        va_end(arguments);
        pipe->status = status;
    }
    return tutti_fail(pipe->status, "%s", pipe->error);
}
