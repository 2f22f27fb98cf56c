/*
 * Runs a body in both modes of the DDP engine: buckets reduced inside finish (as if there were one core), and buckets
 * reduced during backward (as if there were 64).
 */
#ifndef TUTTI_TESTS_MODES_H
#define TUTTI_TESTS_MODES_H

#include <criterion/criterion.h>
#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

/* In worlds of each of `sizes` (ended by 0); as processes and then, unless `last_kind` forbids it, as threads, after
 * which the process can no longer fork ranks. */
static inline void run_modes(const int *sizes, ranks_kind last_kind, ranks_body body, void *argument) {
    static const char *const cores[] = {"1", "64"};
    for (ranks_kind kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS; kind <= last_kind; kind++)
        for (int mode = 0; mode < 2; mode++) {
            setenv("TUTTI_CPUS", cores[mode], 1);
            tutti_settings_reload();
            for (const int *size = sizes; *size > 0; size++) {
                const ranks_options options = {.kind = kind, .nranks = *size, .argument = argument};
                const char *failure = ranks_run(&options, body);
                cr_assert(failure == NULL, "%d %s, TUTTI_CPUS=%s: %s", *size,
                          kind == RANKS_THREADS ? "threads" : "processes", cores[mode], failure);
            }
        }
}

#endif
