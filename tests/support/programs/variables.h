/*
 * Launchers' variables, for tests of what a process learns from them. The environment belongs to the process: a test that
 * sets some should run in one of its own, as Criterion's tests do.
 */
#ifndef TUTTI_TESTS_VARIABLES_H
#define TUTTI_TESTS_VARIABLES_H

/* Only these: "RANK=1 WORLD_SIZE=2". All other variables of launchers are removed. */
void variables_set(const char *list);

#endif
