/*
 * Running benchmark programs. See perf_table.h.
 */
#include "tests/support/programs/perf_table.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

const char *perf_build_folder(void) {
    const char *folder = getenv("TUTTI_BUILD");
    return folder != NULL ? folder : ".";
}

/* "0" or, if nothing was checked, "N/A". */
static int is_right(const char *column) {
    return strcmp(column, "0") == 0 || strcmp(column, "N/A") == 0;
}

static void read_row(const char *line, perf_result *out) {
    char copy[512], *columns[32];
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " \n"); word != NULL && count < 32; word = strtok(NULL, " \n"))
        columns[count++] = word;
    if (count == 0) return;
    out->rows++;
    if (count < 8) {
        out->bad_rows++;
        return;
    }
    char **in_place = &columns[count - 4], **out_of_place = &columns[count - 8]; /* time, algbw, busbw, wrong */
    if (count == out->columns && is_right(out_of_place[3]) && is_right(in_place[3]) && atof(out_of_place[0]) > 0 &&
        atof(in_place[0]) > 0)
        return;
    if (out->bad_rows++ == 0) snprintf(out->bad, sizeof out->bad, "%s", line);
}

void perf_read_line(const char *line, perf_result *out) {
    if (line[0] == ' ' || line[0] == '\n') read_row(line, out);
    else strncat(out->notes, line, sizeof out->notes - strlen(out->notes) - 1);
}

int perf_exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs "<build>/bin/<command>"; messages count as notes. */
perf_result perf_run(const char *command) {
    char line[1024];
    perf_result out = {.columns = strstr(command, "hypercube_perf") != NULL ? 12 : 13};
    snprintf(line, sizeof line, "cd '%s/bin' && PATH=.:$PATH timeout 60 %s 2>&1", perf_build_folder(), command);
    FILE *pipe = popen(line, "r");
    cr_assert_not_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) perf_read_line(line, &out);
    out.code = perf_exit_code(pclose(pipe));
    return out;
}

void perf_expect_good(const char *command, int rows) {
    perf_result out = perf_run(command);
    cr_expect_eq(out.code, 0, "%s: exit code %d\n%s", command, out.code, out.notes);
    cr_expect_eq(out.rows, rows, "%s: %d rows, not %d\n%s", command, out.rows, rows, out.notes);
    cr_expect_eq(out.bad_rows, 0, "%s: %d bad rows, first: %s", command, out.bad_rows, out.bad);
    cr_expect(strstr(out.notes, "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "%s\n%s", command,
              out.notes);
}
