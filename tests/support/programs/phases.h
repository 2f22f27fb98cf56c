/*
 * Starts several tuttiruns by a shell script; keeps each node's output, exit code and time separately.
 *
 * In a script: `node 1 OPTIONS PROGRAM` runs tuttirun as node 1 and waits for it (`&` behind it: in the background);
 * `pid 1` waits until node 1's tuttirun runs, and gives its process id; $PORT is a free port, and $P the program
 * world_probe.
 */
#ifndef TUTTI_TESTS_PHASES_H
#define TUTTI_TESTS_PHASES_H

/* Sets TUTTI_CONNECT_TIMEOUT_MS and TUTTI_PEER_TIMEOUT_MS for programs that are started from now on. */
void phases_set_times(int connect_ms, int peer_ms);

/* Runs the script, in the folder of shell_enter_folder; asserts that it ends within 50 s. */
void phases_run(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Copies the node's output to shell_output (shell.h); asserts its exit code and how long it took. */
void phases_expect(int node, int exit_code, int least_ms, int most_ms);

/* The functions and variables of a script, as text for a shell; `port` is $PORT. */
void phases_write_script(const char *path, int port, const char *script);

#endif
