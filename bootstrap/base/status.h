/*
 * Errors inside the library: the function that detects an error records the text and returns the status in one
 * line, `return tutti_fail(TUTTI_ERR_X, "...")`; callers propagate it with TUTTI_TRY or TUTTI_TRY_GOTO (tutti.h).
 */
#ifndef TUTTI_BASE_STATUS_H
#define TUTTI_BASE_STATUS_H

#include <tutti/tutti.h>

/* A thread's error text is cut at this length. */
#define TUTTI_ERROR_TEXT_BYTES 2048

/* Returns TUTTI_ERR_SYSTEM and records "<format...>: <text of errno value `error`>". */
tutti_status tutti_fail_errno(int error, const char *format, ...) TUTTI_PRINTF(2, 3);

/* Prepends "<format...>: " to the recorded text; returns `status`. */
tutti_status tutti_fail_context(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* A thread's error text, saved while the thread makes calls that may fail, too, such as those of a cleanup. */
typedef struct tutti_error {
    char text[TUTTI_ERROR_TEXT_BYTES];
} tutti_error;
tutti_error tutti_fail_save(void);
/* Records the saved text again; returns `status`. */
tutti_status tutti_fail_again(tutti_status status, const tutti_error *error);

/* Makes an external text safe to print on a terminal: replaces control characters (C0 and C1, also as UTF-8) by
 * blanks, and bytes that are not valid UTF-8 by question marks. */
void tutti_make_printable(char *text);

#endif
