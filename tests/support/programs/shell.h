/*
 * Running programs as a user does: a shell command in a fresh folder, its output and its exit code.
 */
#ifndef TUTTI_TESTS_SHELL_H
#define TUTTI_TESTS_SHELL_H

#include <string.h>

/* Runs a shell command, $T standing for tuttirun with a time limit; returns its exit code, 128 + signal for a death
 * by signal, -1 if no shell could be started. Both output streams are in shell_output until the next run. */
int shell_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char shell_output[64 << 10];
/* The number of occurrences of the text in the output. */
int shell_count(const char *text);

/* Enters a fresh working folder, without settings from outside; and removes it. */
void shell_enter_folder(void);
void shell_leave_folder(void);

#define HAS(text)     cr_assert(strstr(shell_output, text) != NULL, "no '%s' in:\n%s", text, shell_output)
#define HAS_NOT(text) cr_assert(strstr(shell_output, text) == NULL, "'%s' in:\n%s", text, shell_output)

#endif
