/*
 * Wrong arguments and forked children: refused with an error text, and the communicator stays usable.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/api/api.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 0};

static tutti_status still_whole(const ranks_context *context) {
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(context->comm));
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_FLOAT32, .count = 33, .seed = 8};
    return call_run(&c, context->comm);
}

#define REFUSED(expr) RANKS_EXPECT(TUTTI_ERR_ARGUMENT, expr)

static tutti_status wrong_values(ranks_context *context) {
    tutti_comm *comm = context->comm;
    int n = context->nranks, a[64], b[64];
    tutti_type no_type = TUTTI_TYPE_COUNT, i32 = TUTTI_INT32;
    REFUSED(tutti_all_reduce(comm, NULL, b, 4, i32, TUTTI_SUM, NULL));
    REFUSED(tutti_all_reduce(comm, a, NULL, 4, i32, TUTTI_SUM, NULL));
    REFUSED(tutti_all_reduce(NULL, a, b, 4, i32, TUTTI_SUM, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, 4, no_type, TUTTI_SUM, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, 4, (tutti_type)-1, TUTTI_SUM, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, 4, i32, TUTTI_REDUCTION_COUNT, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, 4, TUTTI_FLOAT32, TUTTI_BXOR, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, 4, TUTTI_BOOL, TUTTI_AVG, NULL));
    REFUSED(tutti_all_reduce(comm, a, b, SIZE_MAX / 2, i32, TUTTI_SUM, NULL));
    REFUSED(tutti_reduce(comm, a, b, 4, i32, TUTTI_SUM, n, NULL));
    REFUSED(tutti_reduce(comm, a, b, 4, i32, TUTTI_SUM, -1, NULL));
    REFUSED(tutti_broadcast(comm, a, 4, i32, n, NULL));
    REFUSED(tutti_broadcast(comm, NULL, 4, i32, 0, NULL));
    REFUSED(tutti_gather(comm, a, b, 4, i32, -2, NULL));
    REFUSED(tutti_scatter(comm, a, b, 4, i32, n + 5, NULL));
    REFUSED(tutti_all_gather_v(comm, a, 4, NULL, NULL, i32, NULL));
    REFUSED(tutti_all_to_all_v(comm, NULL, NULL, NULL, NULL, i32, NULL));
    REFUSED(tutti_barrier(NULL, NULL));
    tutti_options wrong = TUTTI_OPTIONS();
    wrong.struct_bytes = 3;
    REFUSED(tutti_barrier(comm, &wrong));
    RANKS_CHECK(strlen(tutti_last_error()) > 0, "no text");
    REFUSED(tutti_mem_register(a, SIZE_MAX));
    REFUSED(tutti_mem_register(a, UINTPTR_MAX - (uintptr_t)a + 1));
    tutti_comm *other = NULL;
    REFUSED(tutti_comm_create(0, 1, NULL, NULL, &TUTTI_COMM_OPTIONS(.timeout_ms = -1), &other));
    REFUSED(tutti_comm_create(0, 1, NULL, NULL, &TUTTI_COMM_OPTIONS(.connect_timeout_ms = INT64_MIN), &other));
    return still_whole(context);
}

Test(failure_arguments, wrong_values_are_refused_and_break_nothing) {
    const char *failure = ranks_run_worlds(worlds, NULL, wrong_values);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status overlaps(ranks_context *context) {
    tutti_comm *comm = context->comm;
    int n = context->nranks, rank = context->rank;
    int *big = calloc((size_t)n * 20 + 40, sizeof *big);
    RANKS_CHECK(big != NULL, "no memory");
    tutti_status status = TUTTI_OK;
    const tutti_type i32 = TUTTI_INT32;
    tutti_status got[] = {
        tutti_all_reduce(comm, big, big + 1, 10, i32, TUTTI_SUM, NULL),
        tutti_all_reduce(comm, big + 9, big, 10, i32, TUTTI_SUM, NULL),
        tutti_all_gather(comm, big + rank * 10 + 1, big, 10, i32, NULL),
        tutti_reduce_scatter(comm, big, big + rank * 10 + 1, 10, i32, TUTTI_SUM, NULL),
        tutti_all_to_all(comm, big, big + 3, 10, i32, NULL),
        tutti_gather(comm, big + rank * 10 + 2, big, 10, i32, rank, NULL),
        tutti_scatter(comm, big, big + rank * 10 + 2, 10, i32, rank, NULL),
    };
    for (size_t i = 0; i < sizeof got / sizeof *got && status == TUTTI_OK; i++)
        if (got[i] != TUTTI_ERR_ARGUMENT)
            status = tutti_fail(TUTTI_ERR_DATA, "overlap %zu: '%s'", i, tutti_status_name(got[i]));
    free(big);
    return status == TUTTI_OK ? still_whole(context) : status;
}

Test(failure_arguments, buffers_that_overlap_in_part_are_refused) {
    const char *failure = ranks_run_worlds(worlds, NULL, overlaps);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ lists of buffers */

enum { MOST_LISTED = 40, SPACE = 400 };

typedef struct lists {
    char space[SPACE];
    const void *srcs[MOST_LISTED];
    void *dsts[MOST_LISTED];
    size_t src_counts[MOST_LISTED], dst_counts[MOST_LISTED];
} lists;

static bool meet(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const char *x = a, *y = b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

/* The rule of tutti.h: an output overlaps no other buffer, except that a rank's own output may be its own input. */
static bool is_wrong(const lists *l, int n, int rank) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            bool own = i == rank && k == rank && l->srcs[k] == l->dsts[i];
            if (i != k && meet(l->dsts[i], l->dst_counts[i], l->dsts[k], l->dst_counts[k])) return true;
            if (!own && meet(l->dsts[i], l->dst_counts[i], l->srcs[k], l->src_counts[k])) return true;
        }
    return false;
}

/* Mostly without overlap, in any order. */
static void fill_lists(lists *l, int n, int rank, unsigned *seed) {
    size_t place = SPACE / (2 * (size_t)n);
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)((i * 7 + 3) % n), first = (size_t)(rand_r(seed) % (2 * n) == 0);
        l->src_counts[i] = (size_t)rand_r(seed) % (place + 1);
        l->dst_counts[i] = (size_t)rand_r(seed) % (place + 1);
        l->srcs[i] = l->space + 2 * at * place + first;
        l->dsts[i] = l->space + (2 * at + 1) * place - (size_t)(rand_r(seed) % (4 * n) == 0);
    }
    if (rand_r(seed) % 2 == 0) l->dsts[rank] = (void *)(uintptr_t)l->srcs[rank];
    l->dst_counts[rank] = l->src_counts[rank];
}

Test(failure_arguments, lists_of_buffers_that_overlap_are_refused) {
    static const int sizes[] = {1, 2, 3, 8, 15, 16, 40};
    static lists l;
    unsigned seed = 1;
    int wrong = 0;
    for (int i = 0; i < 20000; i++) {
        int n = sizes[i % 7], rank = (int)((unsigned)rand_r(&seed) % (unsigned)n);
        fill_lists(&l, n, rank, &seed);
        tutti_op op = {.kind = TUTTI_KIND_ALL_TO_ALL_V,
                       .type = TUTTI_UINT8,
                       .srcs = l.srcs,
                       .src_counts = l.src_counts,
                       .dsts = l.dsts,
                       .dst_counts = l.dst_counts};
        bool expected = is_wrong(&l, n, rank);
        tutti_status status = tutti_arguments_check_lists(&op, n, rank);
        cr_assert_eq(status, expected ? TUTTI_ERR_ARGUMENT : TUTTI_OK, "case %d of %d ranks: %s, %s", i, n,
                     tutti_status_name(status), tutti_last_error());
        wrong += expected;
    }
    cr_assert(wrong > 500 && wrong < 19500, "%d of 20000 were wrong: they test one thing only", wrong);
}

static tutti_status on_cuda(ranks_context *context) {
    int a = 0;
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, tutti_all_reduce(context->comm, &a, &a, 1, TUTTI_INT32, TUTTI_SUM,
                                                         &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA)));
    return still_whole(context);
}

Test(failure_arguments, cuda_memory_is_unsupported) {
    const char *failure = ranks_run_worlds(worlds, NULL, on_cuda);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ fork */

/* Runs in the child; the exit code is the line number of the first failed check, or 0. */
static int try_as_child(tutti_comm *comm, int *shared) {
    int value = 1;
    tutti_comm *other;
    if (tutti_all_reduce(comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL) != TUTTI_ERR_FORKED) return 1;
    if (tutti_barrier(comm, NULL) != TUTTI_ERR_FORKED) return 2;
    if (tutti_send(comm, &value, 1, TUTTI_INT32, 0, 0, NULL) != TUTTI_ERR_FORKED) return 3;
    if (tutti_recv(comm, &value, 1, TUTTI_INT32, 0, 0, NULL) != TUTTI_ERR_FORKED) return 4;
    if (tutti_comm_split(comm, 0, 0, NULL, &other) != TUTTI_ERR_FORKED) return 5;
    if (tutti_comm_error(comm) != TUTTI_ERR_FORKED) return 6;
    if (strstr(tutti_last_error(), "fork") == NULL) return 7;
    *shared = 4711;
    if (tutti_comm_destroy(comm) != TUTTI_OK) return 8;
    return 0;
}

static tutti_status fork_after_create(ranks_context *context) {
    int *shared, wait_status = 0;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    TUTTI_TRY(tutti_mem_alloc(sizeof *shared, (void **)&shared));
    *shared = 0;
    pid_t child = fork();
    if (child == 0) _exit(try_as_child(context->comm, shared));
    RANKS_CHECK(child > 0 && waitpid(child, &wait_status, 0) == child, "no child");
    RANKS_CHECK(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0, "the child failed at %d (raw %d)",
                WEXITSTATUS(wait_status), wait_status);
    RANKS_CHECK(*shared == 4711, "the child's write to an allocated block is %d here", *shared);
    TUTTI_TRY(tutti_mem_free(shared));
    return still_whole(context);
}

Test(failure_arguments, a_forked_child_gets_an_error_and_its_parent_goes_on) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    for (int n = 1; n <= 3; n++) {
        const char *failure = ranks_run(&(ranks_options){.nranks = n, .timeout_s = 20}, fork_after_create);
        cr_assert(failure == NULL, "%s", failure);
    }
}
