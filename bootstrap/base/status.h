/*
 * Errors inside the library: who decides which error it is records the text and returns the status in one line,
 * `return tutti_fail(TUTTI_ERR_X, "...")`; callers pass it on with TUTTI_TRY or TUTTI_TRY_GOTO (tutti.h).
 */
#ifndef TUTTI_BASE_STATUS_H
#define TUTTI_BASE_STATUS_H

#include <tutti/tutti.h>

/* A thread's error text is cut at this length. */
#define TUTTI_ERROR_TEXT_BYTES 2048

/* TUTTI_ERR_SYSTEM with the text "<format...>: <what errno `error` means>". */
tutti_status tutti_fail_errno(int error, const char *format, ...) TUTTI_PRINTF(2, 3);

/* Puts "<format...>: " in front of the text already recorded; gives `status` back. */
tutti_status tutti_fail_context(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* Replaces what a terminal could obey in a text that comes from outside: control characters (C0 and C1, also as UTF-8) by
 * blanks, bytes that are no UTF-8 by question marks. */
void tutti_make_printable(char *text);

#endif
