/*
 * Programs that were built with another version of the headers: their structs are shorter or longer than the
 * library's. The declarations here are those of an older header; <tutti/tutti.h> is included only through the
 * helpers.
 */
#include <criterion/criterion.h>
#include <string.h>

#include <tutti/ddp.h>
#include <tutti/tensor.h>
#include <tutti/tutti.h>

#include "tests/support/ranks.h"

/* Structs of an older header: only the first members. The memory behind them is the program's and must not be read. */
typedef struct older_options {
    size_t struct_bytes;
    void *stream;
    int64_t timeout_ms;
} older_options;

typedef struct older_ddp_options {
    size_t struct_bytes;
    size_t bucket_bytes;
} older_ddp_options;

/* Structs of a later header: one more member. */
typedef struct newer_options {
    tutti_options known;
    uint64_t unknown[2];
} newer_options;

static tutti_status use_older(ranks_context *context) {
    struct {
        older_options options;
        unsigned char behind[256];
    } program = {.options = {.struct_bytes = sizeof(older_options), .timeout_ms = 20000}};
    memset(program.behind, 0x5a, sizeof program.behind); /* if the library read it, it would find a work and a factor */
    const tutti_options *options = (const tutti_options *)(const void *)&program.options;
    int value = context->rank + 1, sum = 0, expected = context->nranks * (context->nranks + 1) / 2;
    int next = (context->rank + 1) % context->nranks, before = (context->rank + context->nranks - 1) % context->nranks;
    TUTTI_TRY(tutti_all_reduce(context->comm, &value, &sum, 1, TUTTI_INT32, TUTTI_SUM, options));
    RANKS_CHECK(sum == expected, "the sum is %d, not %d", sum, expected);
    TUTTI_TRY(tutti_barrier(context->comm, options));
    TUTTI_TRY(tutti_broadcast(context->comm, &value, 1, TUTTI_INT32, 0, options));
    TUTTI_TRY(tutti_group_begin(context->comm));
    TUTTI_TRY(tutti_send(context->comm, &context->rank, 1, TUTTI_INT32, next, 7, options));
    TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, before, 7, options));
    TUTTI_TRY(tutti_group_end(context->comm, options));
    RANKS_CHECK(value == before, "%d came, not %d", value, before);
    /* An older program cannot give the factor, so it is 0. */
    TUTTI_TRY(tutti_all_reduce(context->comm, &expected, &sum, 1, TUTTI_INT32, TUTTI_PREMUL_SUM, options));
    RANKS_CHECK(sum == 0, "times no factor gives %d", sum);
    return TUTTI_OK;
}

Test(older_structs, options_of_an_older_header_are_accepted) {
    const char *failure = ranks_run_worlds((const int[]){1, 3, 0}, NULL, use_older);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status use_newer(ranks_context *context) {
    newer_options program = {.known = {.struct_bytes = sizeof program, .timeout_ms = 20000}};
    int value = 1, sum = 0;
    TUTTI_TRY(tutti_all_reduce(context->comm, &value, &sum, 1, TUTTI_INT32, TUTTI_SUM, &program.known));
    RANKS_CHECK(sum == context->nranks, "the sum is %d", sum);
    program.unknown[1] = 1;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT,
                 tutti_all_reduce(context->comm, &value, &sum, 1, TUTTI_INT32, TUTTI_SUM, &program.known));
    RANKS_CHECK(strstr(tutti_last_error(), "built with a newer header") != NULL, "%s", tutti_last_error());
    program.unknown[1] = 0;
    for (size_t wrong = 0; wrong < sizeof(size_t); wrong++) {
        program.known.struct_bytes = wrong;
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_barrier(context->comm, &program.known));
        RANKS_CHECK(strstr(tutti_last_error(), "barrier: options: struct_bytes is") != NULL, "%s", tutti_last_error());
    }
    program.known.struct_bytes = (size_t)&program; /* no size at all */
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_barrier(context->comm, &program.known));
    return tutti_barrier(context->comm, NULL); /* the communicator is still usable */
}

Test(older_structs, options_of_a_newer_header_are_accepted_unless_an_unknown_member_is_set) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, use_newer);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status create_with_older(ranks_context *context) {
    struct {
        size_t struct_bytes;
        int64_t timeout_ms;
        unsigned char behind[128];
    } program = {.struct_bytes = 2 * sizeof(size_t), .timeout_ms = 30000};
    tutti_comm *comm = NULL;
    memset(program.behind, 0xa5, sizeof program.behind);
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "older",
                                (const tutti_comm_options *)(const void *)&program, &comm));
    TUTTI_TRY(tutti_barrier(comm, NULL));
    return tutti_comm_destroy(comm);
}

Test(older_structs, a_communicator_is_created_with_them) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, &(ranks_options){.no_comm = true}, create_with_older);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status train_with_older(ranks_context *context) {
    struct {
        older_ddp_options options;
        unsigned char behind[128];
    } program = {.options = {.struct_bytes = sizeof(older_ddp_options), .bucket_bytes = 1 << 16}};
    float values[10];
    tutti_ddp *ddp = NULL;
    const tutti_ddp_parameter parameter = {.name = "w", .data = values, .count = 10, .type = TUTTI_FLOAT32};
    memset(program.behind, 0xff, sizeof program.behind);
    for (int i = 0; i < 10; i++) values[i] = (float)context->rank;
    TUTTI_TRY(tutti_ddp_create(context->comm, &parameter, 1, (const tutti_ddp_options *)(const void *)&program.options,
                               &ddp));
    tutti_ddp_destroy(ddp);
    RANKS_CHECK(values[9] == 0, "rank 0's value did not come");
    return TUTTI_OK;
}

Test(older_structs, ddp_accepts_them) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, train_with_older);
    cr_assert(failure == NULL, "%s", failure);
}

/* The elements of a list of layouts have the size of the program's header. */
static tutti_status plan_with_longer(ranks_context *context) {
    typedef struct newer_layout {
        tutti_layout known;
        uint64_t unknown;
    } newer_layout;
    tutti_placement *placement = NULL;
    tutti_plan *plan = NULL;
    const int64_t shapes[2][1] = {{8}, {12}};
    const int size = context->nranks;
    const tutti_sbp split = {.kind = TUTTI_SBP_SPLIT, .dim = 0}, whole = {.kind = TUTTI_SBP_BROADCAST};
    newer_layout srcs[2], dsts[2];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &size, 1, &placement));
    for (int i = 0; i < 2; i++) {
        srcs[i] = (newer_layout){.known = TUTTI_LAYOUT(.placement = placement, .sbp = &split, .type = TUTTI_FLOAT32,
                                                       .ndims = 1, .shape = shapes[i])};
        dsts[i] = srcs[i];
        dsts[i].known.sbp = &whole;
        srcs[i].known.struct_bytes = dsts[i].known.struct_bytes = sizeof(newer_layout);
    }
    tutti_status status = tutti_plan_create(&srcs[0].known, &dsts[0].known, 2, &plan);
    if (status == TUTTI_OK) tutti_plan_destroy(plan);
    tutti_placement_destroy(placement);
    return status;
}

Test(older_structs, a_list_of_layouts_of_another_size_is_read_element_by_element) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, plan_with_longer);
    cr_assert(failure == NULL, "%s", failure);
}
