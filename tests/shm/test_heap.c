/*
 * The shared heap: pieces, freed memory, shortage, fork.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/shm/heap.h"
#include "tests/support/ranks.h"

#define MIB ((size_t)1 << 20)

Test(heap, pieces_of_all_sizes_are_aligned_and_do_not_overlap, .timeout = 60) {
    static const size_t sizes[] = {0, 1, 63, 64, 65, 2048, 2049, 4095, 4096, 4097, 5120, 5121, 8192, 100000, 1 << 20};
    enum { ROUNDS = 20, COUNT = sizeof sizes / sizeof *sizes };
    static unsigned char *pieces[ROUNDS][COUNT];
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < COUNT; i++) {
            void *piece;
            cr_assert_eq(tutti_mem_alloc(sizes[i], &piece), TUTTI_OK, "%s", tutti_last_error());
            cr_assert_eq((uintptr_t)piece % (sizes[i] > 2048 ? 4096 : 64), 0, "%zu bytes", sizes[i]);
            memset(piece, round * COUNT + i, sizes[i]);
            pieces[round][i] = piece;
        }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < COUNT; i++) {
            for (size_t at = 0; at < sizes[i]; at += 61)
                cr_assert_eq(pieces[round][i][at], (unsigned char)(round * COUNT + i), "%zu bytes", sizes[i]);
            cr_assert_eq(tutti_mem_free(pieces[round][i]), TUTTI_OK);
        }
    size_t used, committed;
    tutti_heap_usage(&used, &committed);
    cr_assert_eq(used, 0);
}

Test(heap, freed_memory_is_reused_and_large_memory_returns_to_the_system, .timeout = 60) {
    void *first, *second;
    size_t used, committed, later;
    cr_assert_eq(tutti_mem_alloc(3 * MIB, &first), TUTTI_OK);
    cr_assert_eq(tutti_mem_free(first), TUTTI_OK);
    cr_assert_eq(tutti_mem_alloc(3 * MIB - 100, &second), TUTTI_OK);
    cr_assert_eq(first, second, "a free piece of the size was there");
    tutti_heap_usage(&used, &committed);
    cr_assert_eq(tutti_mem_alloc(600 * MIB, &first), TUTTI_OK, "%s", tutti_last_error());
    tutti_heap_usage(&used, &later);
    cr_assert_geq(later - committed, 600 * MIB, "memory is there before it is used");
    cr_assert_eq(tutti_mem_free(first), TUTTI_OK);
    tutti_heap_usage(&used, &later);
    cr_assert_eq(later, committed, "more than the cache keeps was not returned");
    cr_assert_eq(tutti_mem_free(second), TUTTI_OK);
    cr_assert_eq(tutti_mem_free(second), TUTTI_ERR_ARGUMENT, "freed twice");
    cr_assert_eq(tutti_mem_free((char *)first + 4096), TUTTI_ERR_ARGUMENT, "not the start of a piece");
}

Test(heap, too_large_a_request_is_an_error_with_a_remedy, .timeout = 60) {
    void *piece = &piece;
    cr_assert_eq(tutti_mem_alloc((size_t)1 << 60, &piece), TUTTI_ERR_MEMORY);
    cr_assert_eq(piece, &piece, "written on failure");
    cr_assert_not_null(strstr(tutti_last_error(), "TUTTI_HEAP_BYTES"));
}

/* Rank 1 gets its page, but not the staging memory that the call needs. */
static tutti_status run_short_of_memory(ranks_context *context) {
    static float values[100000];
    tutti_comm *comm;
    if (context->rank == 1) setenv("TUTTI_FAULT", "heap_shortage:2:1000", 1);
    tutti_settings_reload();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "shortage", NULL, &comm));
    tutti_status status = tutti_all_reduce(comm, values, values, 100000, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    RANKS_CHECK(status == TUTTI_ERR_MEMORY, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "no shared memory") != NULL, "'%s'", tutti_last_error());
    RANKS_CHECK(tutti_barrier(comm, NULL) == TUTTI_ERR_MEMORY, "the communicator is whole on rank %d", context->rank);
    return tutti_comm_destroy(comm);
}

Test(heap, shortage_on_one_rank_is_an_error_of_that_call_on_all, .timeout = 60) {
    if (!ranks_have_processes()) return;
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .no_comm = true}, run_short_of_memory);
    cr_assert(failure == NULL, "%s", failure);
}

Test(heap, a_forked_child_shares_blocks_and_may_not_ask_for_more, .timeout = 60) {
    if (!ranks_have_processes()) return;
    void *block, *more;
    cr_assert_eq(tutti_mem_alloc(10000, &block), TUTTI_OK);
    *(int *)block = 1;
    pid_t child = fork();
    if (child == 0) {
        int right = *(int *)block == 1 && tutti_mem_alloc(1, &more) == TUTTI_ERR_FORKED;
        *(int *)block = 2;
        _exit(right ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(*(int *)block, 2);
    cr_assert_eq(tutti_mem_free(block), TUTTI_OK);
}
