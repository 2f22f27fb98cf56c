/*
 * Starts several tuttiruns, phase by phase. See phases.h.
 */
#include "tests/support/programs/phases.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/programs/shell.h"
#include "tests/support/stores/wire.h"

static const char *const functions =
    "R=$TUTTI_BUILD/bin/tuttirun\n"
    "P=$TUTTI_BUILD/tests/world_probe\n"
    "node() { n=$1; shift; s=$(date +%s%N); rm -f pid$n; $R \"$@\" >node$n 2>&1 & p=$!; echo $p >pid$n.new; "
    "mv pid$n.new pid$n; wait $p; c=$?; echo \"exit $c after $((($(date +%s%N) - s) / 1000000)) ms\" >>node$n; }\n"
    "pid() { for i in $(seq 100); do [ -e pid$1 ] && break; sleep 0.05; done; cat pid$1; }\n"
    "await() { for i in $(seq 200); do grep -q -- \"$2\" node$1 2>/dev/null && break; sleep 0.05; done; }\n";

void phases_set_times(int connect_ms, int peer_ms) {
    char text[16];
    snprintf(text, sizeof text, "%d", connect_ms);
    setenv("TUTTI_CONNECT_TIMEOUT_MS", text, 1);
    snprintf(text, sizeof text, "%d", peer_ms);
    setenv("TUTTI_PEER_TIMEOUT_MS", text, 1);
}

void phases_write_script(const char *path, int port, const char *script) {
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fprintf(file, "PORT=%d\n%s%s\n", port, functions, script);
    fclose(file);
}

void phases_run(const char *format, ...) {
    char script[4096];
    int port = wire_free_port();
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(script, sizeof script, format, arguments);
    va_end(arguments);
    cr_assert_gt(port, 0);
    phases_write_script("scene.sh", port, script);
    cr_assert_neq(shell_run("timeout -k 1 50 sh scene.sh"), 124, "the scene does not end: %s", shell_output);
}

void phases_expect(int node, int exit_code, int least_ms, int most_ms) {
    int code = -1, ms = -1;
    shell_run("cat node%d", node);
    const char *last = NULL;
    for (const char *at = shell_output; (at = strstr(at, "exit ")) != NULL; at++) last = at;
    cr_assert(last != NULL && sscanf(last, "exit %d after %d ms", &code, &ms) == 2, "node %d: %s", node, shell_output);
    cr_assert_eq(code, exit_code, "node %d: %s", node, shell_output);
    cr_assert(ms >= least_ms && ms <= most_ms, "node %d took %d ms, %d to %d expected: %s", node, ms, least_ms, most_ms,
              shell_output);
}
