/*
 * Runs a benchmark program as other tools do: splits the lines of its table at white space, and reads the exit code.
 */
#ifndef TUTTI_TESTS_PERF_TABLE_H
#define TUTTI_TESTS_PERF_TABLE_H

/* The output of a run. */
typedef struct perf_result {
    int columns;        /* columns that a row must have */
    int rows, bad_rows; /* bad: other number of columns, wrong elements, or no positive time */
    char bad[512];      /* the first bad row */
    char notes[8192];   /* lines that begin with '#', and messages */
    int code;           /* exit code */
} perf_result;

/* The build folder; the programs are in its bin/. */
const char *perf_build_folder(void);

/* Runs "<build>/bin/<command>", for a minute at most; messages count as notes. */
perf_result perf_run(const char *command);

/* Runs it, and expects that number of rows without errors. */
void perf_expect_good(const char *command, int rows);

/* For tests that start a program themselves: adds a line of its output; its exit code, or 128 plus the signal that
 * ended it. */
void perf_read_line(const char *line, perf_result *out);
int perf_exit_code(int status);

#endif
