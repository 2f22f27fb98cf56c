/*
 * Log lines on standard error: "tutti <level> [rank R] text". TUTTI_LOG sets the level: error, warn (default),
 * info, debug. A line is one write, so lines of several ranks do not mix.
 */
#ifndef TUTTI_BASE_LOG_H
#define TUTTI_BASE_LOG_H

#include <tutti/tutti.h>

typedef enum tutti_log_level { TUTTI_LOG_ERROR, TUTTI_LOG_WARN, TUTTI_LOG_INFO, TUTTI_LOG_DEBUG } tutti_log_level;

void tutti_log(tutti_log_level level, const char *format, ...) TUTTI_PRINTF(2, 3);

/* The rank shown in this thread's lines; -1: none. */
void tutti_log_set_rank(int rank);

#endif
