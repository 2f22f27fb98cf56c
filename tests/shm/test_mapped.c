/*
 * Reading a peer's memory where it is mapped (tutti_mem_peer): which memory can be read, by which ranks, and until
 * when.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/ranks.h"

TestSuite(mapped, .timeout = 60);

enum { COUNT = 10007, ROUNDS = 50 };

static const int worlds[] = {1, 2, 3, 4, 0};

static void run(ranks_body body) {
    const char *failure = ranks_run_worlds(worlds, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

static uint32_t value_of(int rank, int round, size_t i) {
    return (uint32_t)(rank * 1000003 + round * 50021) + (uint32_t)i * 7;
}

/* Each rank writes, all meet, each reads what all have written, all meet, and so on: the thread sanitizer finds
 * accesses that are not ordered. */
static tutti_status read_all(ranks_context *context) {
    uint32_t *own;
    const void *here;
    uint64_t addresses[4];
    TUTTI_TRY(tutti_mem_alloc(COUNT * sizeof *own, (void **)&own));
    uint64_t address = (uint64_t)(uintptr_t)own;
    TUTTI_TRY(tutti_all_gather(context->comm, &address, addresses, 1, TUTTI_UINT64, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT; i++) own[i] = value_of(context->rank, round, i);
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        for (int rank = 0; rank < context->nranks; rank++) {
            /* Reads from the middle to the very end. */
            size_t first = (size_t)round * 101;
            const uint32_t *theirs = (const uint32_t *)(uintptr_t)addresses[rank] + first;
            TUTTI_TRY(tutti_mem_peer(context->comm, rank, theirs, (COUNT - first) * sizeof *theirs, &here));
            RANKS_CHECK(here != NULL, "memory of rank %d cannot be read", rank);
            for (size_t i = first; i < COUNT; i++)
                RANKS_CHECK(((const uint32_t *)here)[i - first] == value_of(rank, round, i),
                            "round %d, rank %d: element %zu is %u", round, rank, i,
                            ((const uint32_t *)here)[i - first]);
        }
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
    }
    return tutti_mem_free(own);
}

Test(mapped, ranks_read_each_others_memory) {
    run(read_all);
}

/* Threads of one process can read any memory; other processes only shared memory. */
static tutti_status ask_about_private(ranks_context *context) {
    static int unshared; /* shared by all threads */
    int next = (context->rank + 1) % context->nranks;
    void *own;
    const void *here = &own;
    pid_t pid = getpid(), pids[4];
    TUTTI_TRY(tutti_all_gather(context->comm, &pid, pids, sizeof pid, TUTTI_UINT8, NULL));
    bool threads = pids[next] == pid;
    TUTTI_TRY(tutti_mem_peer(context->comm, context->rank, &unshared, sizeof unshared, &here));
    RANKS_CHECK(here == (context->nranks == 1 || threads ? &unshared : NULL), "private memory, of the own rank");
    TUTTI_TRY(tutti_mem_peer(context->comm, next, &unshared, sizeof unshared, &here));
    RANKS_CHECK(here == (context->nranks == 1 || threads ? &unshared : NULL), "private memory, of another rank");
    TUTTI_TRY(tutti_mem_alloc(100, &own));
    TUTTI_TRY(tutti_mem_peer(context->comm, context->rank, own, 100, &here));
    RANKS_CHECK(here == own, "the own rank has its memory at another place");
    return tutti_mem_free(own);
}

Test(mapped, private_memory_cannot_be_read_by_other_processes) {
    run(ask_about_private);
}

static tutti_status ask_wrongly(ranks_context *context) {
    int x;
    const void *here = &x;
    uint64_t heap = 0, heaps[4];
    void *own;
    TUTTI_TRY(tutti_mem_alloc(4096, &own));
    heap = (uint64_t)(uintptr_t)own;
    TUTTI_TRY(tutti_all_gather(context->comm, &heap, heaps, 1, TUTTI_UINT64, NULL));
    int next = (context->rank + 1) % context->nranks;
    const char *theirs = (const char *)(uintptr_t)heaps[next];
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_peer(NULL, 0, own, 1, &here));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_peer(context->comm, context->nranks, own, 1, &here));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_peer(context->comm, -1, own, 1, &here));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_peer(context->comm, 0, own, 1, NULL));
    RANKS_CHECK(here == &x, "written by a call that failed");
    if (context->nranks > 1) { /* beyond the end of what is mapped, also where the sum overflows */
        TUTTI_TRY(tutti_mem_peer(context->comm, next, theirs, (size_t)1 << 62, &here));
        RANKS_CHECK(here == NULL, "2^62 bytes are mapped");
        TUTTI_TRY(tutti_mem_peer(context->comm, next, theirs, SIZE_MAX, &here));
        RANKS_CHECK(here == NULL, "2^64 - 1 bytes are mapped");
        TUTTI_TRY(tutti_mem_peer(context->comm, next, (const void *)(uintptr_t)64, 1, &here));
        RANKS_CHECK(here == NULL, "address 64 is mapped");
    }
    pid_t child = fork();
    if (child == 0) _exit(tutti_mem_peer(context->comm, 0, own, 1, &here) == TUTTI_ERR_FORKED ? 0 : 1);
    int status = -1;
    RANKS_CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a forked child got %#x", status);
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    return tutti_mem_free(own);
}

Test(mapped, wrong_arguments_and_addresses_are_found) {
    static const int some[] = {1, 2, 3};
    for (size_t i = 0; ranks_have_processes() && i < sizeof some / sizeof *some; i++) {
        const char *failure = ranks_run(&(ranks_options){.nranks = some[i]}, ask_wrongly);
        cr_assert(failure == NULL, "%d ranks: %s", some[i], failure);
    }
}

/* Rank 1 dies once its address is known. The memory that it wrote can still be read, until the communicator is
 * destroyed; a barrier fails. */
static tutti_status read_of_the_dead(ranks_context *context) {
    uint32_t *own;
    const void *here;
    uint64_t addresses[3];
    TUTTI_TRY(tutti_mem_alloc(COUNT * sizeof *own, (void **)&own));
    for (size_t i = 0; i < COUNT; i++) own[i] = value_of(context->rank, 0, i);
    uint64_t address = (uint64_t)(uintptr_t)own;
    TUTTI_TRY(tutti_all_gather(context->comm, &address, addresses, 1, TUTTI_UINT64, NULL));
    if (context->rank == 1) ranks_strike(context, SIGKILL);
    RANKS_EXPECT(TUTTI_ERR_PEER_DIED, tutti_barrier(context->comm, NULL));
    RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL, "not named: %s", tutti_last_error());
    TUTTI_TRY(tutti_mem_peer(context->comm, 1, (const void *)(uintptr_t)addresses[1], COUNT * sizeof *own, &here));
    RANKS_CHECK(here != NULL, "memory of a rank that died is not mapped any more");
    for (size_t i = 0; i < COUNT; i++)
        RANKS_CHECK(((const uint32_t *)here)[i] == value_of(1, 0, i), "element %zu has gone with the rank", i);
    return tutti_mem_free(own);
}

Test(mapped, memory_of_a_rank_that_died_stays_until_the_communicator_is_destroyed) {
    if (!ranks_have_processes()) return;
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 20}, read_of_the_dead);
    cr_assert(failure == NULL, "%s", failure);
}
