/*
 * Launchers' variables, for tests of what a process reads from them. The environment belongs to the process: a test
 * that sets variables should run in its own process, as Criterion's tests do.
 */
#ifndef TUTTI_TESTS_VARIABLES_H
#define TUTTI_TESTS_VARIABLES_H

/* Sets only these, as "RANK=1 WORLD_SIZE=2", and removes all other variables of launchers. */
void variables_set(const char *list);

#endif
