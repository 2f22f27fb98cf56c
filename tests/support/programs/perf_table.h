/*
 * Runs a benchmark program as others do: reads its table by splitting lines at white space, and looks at the exit code.
 */
#ifndef TUTTI_TESTS_PERF_TABLE_H
#define TUTTI_TESTS_PERF_TABLE_H

/* What a run printed. */
typedef struct perf_result {
    int columns;        /* that a row must have */
    int rows, bad_rows; /* bad: not as many columns, wrong elements, or no positive time */
    char bad[512];      /* the first bad row */
    char notes[8192];   /* lines that begin with '#', and messages */
    int code;           /* of the exit */
} perf_result;

/* Where the programs are: below it, in bin/. */
const char *perf_build_folder(void);

/* Runs "<build>/bin/<command>", for a minute at most; messages count as notes. */
perf_result perf_run(const char *command);

/* Runs it, and expects that many rows and nothing wrong in them. */
void perf_expect_good(const char *command, int rows);

/* For tests that start a program themselves: takes a line of its output; its exit code, or 128 and the signal that
 * ended it. */
void perf_read_line(const char *line, perf_result *out);
int perf_exit_code(int status);

#endif
