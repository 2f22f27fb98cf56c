/*
 * A store server in a process of its own, for tests that fork ranks: no thread of the test's process may be inside
 * malloc at a fork.
 */
#ifndef TUTTI_TESTS_SERVED_STORE_H
#define TUTTI_TESTS_SERVED_STORE_H

#include <sys/types.h>

/* Serves on 127.0.0.1, at a port that the system chooses; ends with the caller at the latest. Returns -1 for a
 * failure. */
pid_t served_store_start(int *port_out);
void served_store_end(pid_t store);

#endif
