/*
 * Global tensors: words for layouts, boxes, errors and their texts, tensors from local ones, plans of many tensors,
 * and all pairs of simple layouts. tests/tensor/model.py tests arbitrary ones.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tensor.h>

#include "tests/support/ranks.h"

TestSuite(tensor, .timeout = 120);

static const int worlds[] = {1, 2, 3, 4, 0};

static void run(const int *sizes, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 90}, body);
    cr_assert(failure == NULL, "%s", failure);
}

#define EXPECT_ERROR(words, expr)                                                                                      \
    do {                                                                                                               \
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, expr);                                                                        \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "line %d: '%s', not '%s'", __LINE__,                    \
                    tutti_last_error(), words);                                                                        \
    } while (0)

/* --------------------------------------------------------------------------------------------------- words */

Test(tensor, sbp_are_read_in_the_words_of_other_frameworks) {
    static const struct {
        const char *text, *own;
    } good[] = {{"S0,B,P(sum)", "S0,B,P(sum)"},
                {"split(1), broadcast , partial_sum", "S1,B,P(sum)"},
                {"Shard(2),Replicate(),Partial()", "S2,B,P(sum)"},
                {"Shard(dim=3),R,Partial(max)", "S3,B,P(max)"},
                {"P(avg),P(mean),Partial(product)", "P(avg),P(avg),P(prod)"},
                {"P", "P(sum)"}};
    static const char *const bad[] = {"",       "S",      "S8",  "S-1",           "S0,", "Q",
                                      "B(1)",   "P(foo)", "S(0", "P(premul_sum)", "S0B", "partial_sum(max)",
                                      "split()"};
    tutti_sbp sbp[4];
    char text[80];
    int naxes = 0;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(tutti_sbp_parse(good[i].text, sbp, 4, &naxes), TUTTI_OK, "%s", tutti_last_error());
        tutti_sbp_format(sbp, naxes, text, sizeof text);
        cr_assert_str_eq(text, good[i].own);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(tutti_sbp_parse(bad[i], sbp, 4, &naxes), TUTTI_ERR_ARGUMENT, "'%s' was taken", bad[i]);
    cr_assert_eq(tutti_sbp_parse("B,B,B,B,B", sbp, 4, &naxes), TUTTI_ERR_ARGUMENT);
    cr_assert(strstr(tutti_last_error(), "more than 4 axes") != NULL, "%s", tutti_last_error());
}

Test(tensor, gradients_have_the_adjoint_sbp) {
    tutti_sbp adjoint;
    cr_assert_eq(tutti_sbp_adjoint(TUTTI_SPLIT(3), &adjoint), TUTTI_OK);
    cr_assert(adjoint.kind == TUTTI_SBP_SPLIT && adjoint.dim == 3);
    cr_assert_eq(tutti_sbp_adjoint(TUTTI_BROADCAST, &adjoint), TUTTI_OK);
    cr_assert(adjoint.kind == TUTTI_SBP_PARTIAL && adjoint.reduction == TUTTI_SUM);
    cr_assert_eq(tutti_sbp_adjoint(TUTTI_PARTIAL(TUTTI_SUM), &adjoint), TUTTI_OK);
    cr_assert(adjoint.kind == TUTTI_SBP_BROADCAST);
    cr_assert_eq(tutti_sbp_adjoint(TUTTI_PARTIAL(TUTTI_MAX), &adjoint), TUTTI_ERR_ARGUMENT);
}

/* ---------------------------------------------------------------------------------------------- placements */

static tutti_status use_placements(ranks_context *context) {
    int n = context->nranks, ranks[4] = {0}, once = 1, sum = context->rank;
    tutti_placement *line, *grid;
    tutti_comm *along;
    RANKS_EXPECT(TUTTI_OK, tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    RANKS_CHECK(tutti_placement_axes(line) == 1 && tutti_placement_size(line, 0) == n, "size of the line");
    RANKS_CHECK(tutti_placement_coordinate(line, 0) == context->rank, "coordinate on the line");
    for (int i = 0; i < n; i++) ranks[i] = n - 1 - i; /* reversed */
    RANKS_EXPECT(TUTTI_OK, tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, ranks,
                                                  n == 4 ? (int[]){2, 2} : (int[]){n, 1}, 2, &grid));
    RANKS_CHECK(tutti_placement_coordinate(grid, -1) == n - 1 - context->rank, "index in the grid");
    TUTTI_TRY(tutti_placement_comm(grid, 1, &along));
    RANKS_CHECK(tutti_comm_size(along) == (n == 4 ? 2 : n), "ranks along axis 0");
    RANKS_CHECK(tutti_comm_rank(along) == tutti_placement_coordinate(grid, 0), "rank along axis 0");
    TUTTI_TRY(tutti_all_reduce(along, &sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    int expected = n == 4 ? context->rank + (context->rank + 2) % 4 : n * (n - 1) / 2;
    RANKS_CHECK(sum == expected, "the sum along axis 0 is %d, not %d", sum, expected);
    tutti_placement_destroy(grid);
    tutti_placement_destroy(line);
    tutti_placement *none;
    EXPECT_ERROR("is out of range for a communicator of",
                 tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){n}, &once, 1, &none));
    EXPECT_ERROR("rank 0 is listed twice",
                 tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0, 0}, (int[]){2}, 1, &none));
    EXPECT_ERROR("axis 1 has the size 0",
                 tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){1, 0}, 2, &none));
    EXPECT_ERROR("but must multiply to",
                 tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){n + 1}, 1, &none));
    EXPECT_ERROR("it must have 1 to 8", tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 9, &none));
    return TUTTI_OK;
}

Test(tensor, placements_have_axes_and_communicators_along_them) {
    run(worlds, use_placements);
}

/* The last rank does not call all_reduce: it aborts, which ends the others' call. */
static tutti_status abort_placements(ranks_context *context) {
    int n = context->nranks, sum = 1;
    tutti_placement *line;
    tutti_comm *all;
    RANKS_EXPECT(TUTTI_OK, tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    TUTTI_TRY(tutti_placement_comm(line, 1, &all));
    if (context->rank == n - 1) TUTTI_TRY(tutti_placement_abort(line, "enough"));
    RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_all_reduce(all, &sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    RANKS_CHECK(strstr(tutti_last_error(), "enough") != NULL, "'%s' gives no reason", tutti_last_error());
    TUTTI_TRY(
        tutti_all_reduce(context->comm, &sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL)); /* the user's own still works */
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor, placements_are_aborted) {
    static const int some[] = {2, 3, 0};
    run(some, abort_placements);
}

/* ------------------------------------------------------------------------------------------------- layouts */

static tutti_status refuse_layouts(ranks_context *context) {
    tutti_placement *line;
    tutti_tensor *tensor;
    int n = context->nranks;
    int64_t shape[] = {4, 6}, negative[] = {4, -1}, huge[] = {INT64_MAX, 2}, first[2], end[2];
    const int64_t *short_cuts[] = {(int64_t[]){0, 3, 2, 4}, NULL}, *low_cuts[] = {(int64_t[]){1, 2, 3, 4}, NULL},
                  *far_cuts[] = {(int64_t[]){0, 1, 2, 5}, NULL};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    tutti_layout layout = TUTTI_LAYOUT(.placement = line, .sbp = &TUTTI_SPLIT(2), .type = TUTTI_FLOAT32, .ndims = 2,
                                       .shape = shape, .name = "w");
    EXPECT_ERROR("tensor 'w' [4,6], sbp S2, axis 0: dimension 2 cannot be split: there are dimensions 0 to 1",
                 tutti_tensor_create(&layout, &tensor));
    layout.sbp = &TUTTI_PARTIAL(TUTTI_BAND);
    EXPECT_ERROR("there is no band of float32", tutti_tensor_create(&layout, &tensor));
    layout.sbp = &TUTTI_PARTIAL(TUTTI_PREMUL_SUM);
    EXPECT_ERROR("a partial value is of sum", tutti_tensor_create(&layout, &tensor));
    layout.sbp = &TUTTI_SPLIT(0);
    layout.shape = negative;
    EXPECT_ERROR("dimension 1 has a negative extent", tutti_tensor_create(&layout, &tensor));
    layout.shape = huge;
    EXPECT_ERROR("more than 2^63 bytes", tutti_tensor_create(&layout, &tensor));
    layout.shape = shape;
    layout.type = TUTTI_TYPE_COUNT;
    EXPECT_ERROR("is not a type", tutti_tensor_create(&layout, &tensor));
    layout.type = TUTTI_FLOAT32;
    layout.ndims = 9;
    EXPECT_ERROR("it may have 0 to 8", tutti_tensor_create(&layout, &tensor));
    layout.ndims = 2;
    EXPECT_ERROR("and the memory is NULL", tutti_tensor_wrap(&layout, NULL, &tensor));
    EXPECT_ERROR("is out of range for a placement of 3 ranks", tutti_layout_box(&layout, 3, first, end));
    layout.cuts = short_cuts;
    EXPECT_ERROR("must rise from 0 to 4 in 3 parts, but number 2 is 2", tutti_tensor_create(&layout, &tensor));
    layout.cuts = low_cuts;
    EXPECT_ERROR("but number 0 is 1", tutti_tensor_create(&layout, &tensor));
    layout.cuts = far_cuts;
    EXPECT_ERROR("but number 3 is 5", tutti_tensor_create(&layout, &tensor));
    layout.struct_bytes = 3;
    EXPECT_ERROR("fill the struct with TUTTI_LAYOUT", tutti_tensor_create(&layout, &tensor));
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor, impossible_layouts_are_refused_in_one_line) {
    run((const int[]){3, 0}, refuse_layouts);
}

/* --------------------------------------------------------------------------------------------------- pairs */

enum { ROWS = 5, COLUMNS = 3 };

static const tutti_sbp kinds[] = {{TUTTI_SBP_BROADCAST, 0, TUTTI_SUM}, {TUTTI_SBP_SPLIT, 0, TUTTI_SUM},
                                  {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},     {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM},
                                  {TUTTI_SBP_PARTIAL, 0, TUTTI_MAX},   {TUTTI_SBP_PARTIAL, 0, TUTTI_BXOR}};

/* The number that a rank at these coordinates holds for an element with a given value: along sums a share, along
 * maxima less than the value except on the last rank, along xor a mask that cancels. */
static int64_t term_of(const tutti_placement *placement, const tutti_sbp *sbp, int64_t value) {
    for (int axis = 0; axis < tutti_placement_axes(placement); axis++) {
        int size = tutti_placement_size(placement, axis), at = tutti_placement_coordinate(placement, axis);
        if (sbp[axis].kind != TUTTI_SBP_PARTIAL || size == 1) continue;
        if (sbp[axis].reduction == TUTTI_SUM) value = at == size - 1 ? value - 1000 * (size - 1) : 1000;
        if (sbp[axis].reduction == TUTTI_MAX) value = at == size - 1 ? value : value - 7;
        if (sbp[axis].reduction == TUTTI_BXOR) value = at == 0 ? value ^ 0x55 : at == size - 1 ? 0x55 : 0;
    }
    return value;
}

/* The number that it must hold in a target. */
static int64_t held_of(const tutti_placement *placement, const tutti_sbp *sbp, int64_t value) {
    for (int axis = 0; axis < tutti_placement_axes(placement); axis++)
        if (sbp[axis].kind == TUTTI_SBP_PARTIAL && sbp[axis].reduction != TUTTI_MAX &&
            tutti_placement_coordinate(placement, axis) > 0)
            value = 0;
    return value;
}

static tutti_status convert(const ranks_context *context, tutti_placement *from, const tutti_sbp *src_sbp,
                            tutti_placement *to, const tutti_sbp *dst_sbp) {
    tutti_tensor *src, *dst;
    tutti_local local;
    char words[2][40];
    int64_t shape[] = {ROWS, COLUMNS};
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = from, .sbp = src_sbp, .type = TUTTI_INT64, .ndims = 2, .shape = shape);
    TUTTI_TRY(tutti_tensor_create(&layout, &src));
    layout.placement = to;
    layout.sbp = dst_sbp;
    TUTTI_TRY(tutti_tensor_create(&layout, &dst));
    TUTTI_TRY(tutti_tensor_local(src, &local));
    for (size_t i = 0; i < local.count; i++) {
        int64_t row = local.first[0] + (int64_t)i / local.shape[1],
                column = local.first[1] + (int64_t)i % local.shape[1];
        ((int64_t *)local.data)[i] = term_of(from, src_sbp, 100 * row + column);
    }
    TUTTI_TRY(tutti_tensor_redistribute(src, dst, NULL));
    TUTTI_TRY(tutti_tensor_local(dst, &local));
    bool equal = from == to && memcmp(src_sbp, dst_sbp, (size_t)tutti_placement_axes(from) * sizeof *src_sbp) == 0;
    tutti_sbp_format(src_sbp, tutti_placement_axes(from), words[0], sizeof words[0]);
    tutti_sbp_format(dst_sbp, tutti_placement_axes(to), words[1], sizeof words[1]);
    for (size_t i = 0; i < local.count; i++) {
        int64_t row = local.first[0] + (int64_t)i / local.shape[1],
                column = local.first[1] + (int64_t)i % local.shape[1];
        int64_t value = 100 * row + column, got = ((const int64_t *)local.data)[i];
        int64_t expected = equal ? term_of(from, src_sbp, value) : held_of(to, dst_sbp, value);
        RANKS_CHECK(got == expected, "%s to %s: rank %d has %lld at [%lld,%lld], not %lld", words[0], words[1],
                    context->rank, (long long)got, (long long)row, (long long)column, (long long)expected);
    }
    tutti_tensor_destroy(src);
    tutti_tensor_destroy(dst);
    return TUTTI_OK;
}

static tutti_status convert_lines(ranks_context *context) {
    enum { KINDS = sizeof kinds / sizeof *kinds };
    tutti_placement *line;
    int n = context->nranks;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    for (int src = 0; src < KINDS; src++)
        for (int dst = 0; dst < KINDS; dst++) TUTTI_TRY(convert(context, line, &kinds[src], line, &kinds[dst]));
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor, all_pairs_on_one_axis) {
    run((const int[]){1, 2, 3, 4, 8, 0}, convert_lines);
}

static tutti_status convert_grids(ranks_context *context) {
    enum { KINDS = sizeof kinds / sizeof *kinds };
    tutti_placement *grid, *turned;
    int axes[] = {2, context->nranks / 2}, turned_axes[] = {context->nranks / 2, 2}, ranks[8];
    for (int i = 0; i < context->nranks; i++)
        ranks[i] = (3 * i + 1) % context->nranks; /* another order: 3 has no factor 2 */
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, axes, 2, &grid));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, ranks, turned_axes, 2, &turned));
    for (int pair = 0; pair < KINDS * KINDS * KINDS * KINDS; pair++) {
        tutti_sbp src[] = {kinds[pair % KINDS], kinds[pair / KINDS % KINDS]};
        tutti_sbp dst[] = {kinds[pair / KINDS / KINDS % KINDS], kinds[pair / KINDS / KINDS / KINDS]};
        TUTTI_TRY(convert(context, grid, src, pair % 3 == 0 ? turned : grid, dst));
    }
    tutti_placement_destroy(turned);
    tutti_placement_destroy(grid);
    return TUTTI_OK;
}

Test(tensor, all_pairs_on_two_axes) {
    run((const int[]){4, 0}, convert_grids);
}

static tutti_status convert_apart(ranks_context *context) {
    enum { KINDS = sizeof kinds / sizeof *kinds };
    static const int low[] = {0, 1}, high[] = {3, 2}, middle[] = {1, 2};
    const int *targets[] = {high, middle};
    for (int target = 0; target < 2; target++)
        for (int src = 0; src < KINDS; src++)
            for (int dst = 0; dst < KINDS; dst++) {
                tutti_placement *from, *to;
                int rank = context->rank;
                if (rank > 1 && rank != targets[target][0] && rank != targets[target][1]) continue;
                TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, low, (int[]){2}, 1, &from));
                TUTTI_TRY(
                    tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, targets[target], (int[]){2}, 1, &to));
                TUTTI_TRY(convert(context, from, &kinds[src], to, &kinds[dst]));
                tutti_placement_destroy(to);
                tutti_placement_destroy(from);
            }
    return TUTTI_OK;
}

Test(tensor, all_pairs_between_other_ranks) {
    run((const int[]){4, 0}, convert_apart);
}

/* -------------------------------------------------------------------------------------------------- locals */

static tutti_status gather_locals(ranks_context *context) {
    tutti_placement *line;
    tutti_tensor *tensor, *whole;
    tutti_local local;
    int n = context->nranks, rank = context->rank;
    int64_t extent[] = {rank == 1 ? 0 : rank + 1, 2}, *data = calloc(2 * (size_t)n + 2, sizeof *data);
    for (int64_t i = 0; i < 2 * extent[0]; i++) data[i] = 100 * rank + i;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    tutti_layout like =
        TUTTI_LAYOUT(.placement = line, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_INT64, .ndims = 2, .name = "x");
    TUTTI_TRY(tutti_tensor_from_local(&like, extent, data, &tensor));
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    RANKS_CHECK(local.shape[0] == extent[0] && (extent[0] == 0 || local.data == data),
                "the local tensor differs from what was passed");
    TUTTI_TRY(tutti_tensor_to_global(tensor, NULL, NULL, NULL, &whole));
    TUTTI_TRY(tutti_tensor_local(whole, &local));
    int64_t rows = 0;
    for (int other = 0; other < n; other++) {
        int64_t count = other == 1 ? 0 : other + 1;
        for (int64_t i = 0; i < 2 * count; i++)
            RANKS_CHECK(((int64_t *)local.data)[2 * rows + i] == 100 * other + i, "rank %d's row %lld", other,
                        (long long)i / 2);
        rows += count;
    }
    RANKS_CHECK(local.shape[0] == rows && tutti_tensor_layout(whole)->shape[0] == rows, "the number of rows");
    tutti_tensor_destroy(whole);
    tutti_tensor_destroy(tensor);

    like.sbp = NULL;
    extent[0] = 1;
    data[0] = data[1] = 5;
    TUTTI_TRY(tutti_tensor_from_local(&like, extent, data, &tensor));
    tutti_tensor_destroy(tensor);
    if (n == 1) return tutti_placement_destroy(line), free(data), TUTTI_OK;
    data[1] = rank == n - 1;
    EXPECT_ERROR("must hold the same elements", tutti_tensor_from_local(&like, extent, data, &tensor));
    extent[1] = rank == 1 ? 1 : 2;
    EXPECT_ERROR("tensor 'x': part 0 of dimension 1 has the extent 2 on rank 0 and 1 on rank 1",
                 tutti_tensor_from_local(&like, extent, data, &tensor));
    extent[1] = rank == 1 ? -3 : 2;
    EXPECT_ERROR("dimension 1 of rank 1's local shape is -3", tutti_tensor_from_local(&like, extent, data, &tensor));
    extent[1] = 2;
    EXPECT_ERROR("rank 1 has elements of it, but its memory is NULL",
                 tutti_tensor_from_local(&like, extent, rank == 1 ? NULL : data, &tensor));
    tutti_placement_destroy(line);
    free(data);
    return TUTTI_OK;
}

Test(tensor, tensors_are_made_from_local_ones) {
    run(worlds, gather_locals);
}

/* --------------------------------------------------------------------------------------------------- plans */

enum { TENSORS = 9 };

static tutti_status move_many(ranks_context *context) {
    static const tutti_sbp sum = {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM}, rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM},
                           columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM};
    tutti_placement *line, *last;
    int n = context->nranks;
    int64_t shapes[TENSORS][2];
    tutti_layout srcs[TENSORS], dsts[TENSORS];
    tutti_tensor *src[TENSORS], *dst[TENSORS];
    tutti_local local;
    tutti_plan *plan;
    tutti_plan_details details;
    char text[200];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){n - 1}, (int[]){1}, 1, &last));
    for (int i = 0; i < TENSORS; i++) {
        shapes[i][0] = 3 + i;
        shapes[i][1] = i % 3 + 1;
        srcs[i] = TUTTI_LAYOUT(.placement = line, .sbp = i == 4 ? &sum : &rows,
                               .type = i % 2 == 0 ? TUTTI_INT64 : TUTTI_INT16, .ndims = 2, .shape = shapes[i]);
        dsts[i] = srcs[i];
        dsts[i].placement = i == 7 ? last : line;
        dsts[i].sbp = i == 7 ? NULL : i == 2 ? &rows : &columns;
        TUTTI_TRY(tutti_tensor_create(&srcs[i], &src[i]));
        TUTTI_TRY(tutti_tensor_create(&dsts[i], &dst[i]));
        TUTTI_TRY(tutti_tensor_local(src[i], &local));
        for (size_t k = 0; k < local.count; k++) {
            int64_t value = 1000 * i + 10 * (local.first[0] + (int64_t)k / local.shape[1]) + local.first[1] +
                            (int64_t)k % local.shape[1];
            if (i == 4 && context->rank > 0) value = 0;
            if (i % 2 == 0) ((int64_t *)local.data)[k] = value;
            else ((int16_t *)local.data)[k] = (int16_t)value;
        }
    }
    TUTTI_TRY(tutti_plan_create(srcs, dsts, TENSORS, &plan));
    for (int round = 0; round < 3; round++)
        TUTTI_TRY(tutti_plan_run(plan, (const tutti_tensor *const *)src, dst, NULL));
    for (int i = 0; i < TENSORS; i++) {
        TUTTI_TRY(tutti_tensor_local(dst[i], &local));
        for (size_t k = 0; k < local.count; k++) {
            int64_t value = 1000 * i + 10 * (local.first[0] + (int64_t)k / local.shape[1]) + local.first[1] +
                            (int64_t)k % local.shape[1];
            int64_t got = i % 2 == 0 ? ((int64_t *)local.data)[k] : ((int16_t *)local.data)[k];
            RANKS_CHECK(got == value, "tensor %d: element %zu is %lld, not %lld", i, k, (long long)got,
                        (long long)value);
        }
    }
    TUTTI_TRY(tutti_plan_get(plan, &details));
    RANKS_CHECK(details.steps <= 2, "%d steps for all tensors", details.steps);
    TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
    RANKS_CHECK(strstr(text, "receives ") != NULL, "'%s'", text);
    EXPECT_ERROR("source 0 is 'tensor' int64[", tutti_plan_run(plan, (const tutti_tensor *const *)dst, src, NULL));
    tutti_plan_destroy(plan);
    for (int i = 0; i < TENSORS; i++) {
        tutti_tensor_destroy(src[i]);
        tutti_tensor_destroy(dst[i]);
    }
    tutti_placement_destroy(last);
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor, many_tensors_are_sent_in_one_round) {
    run((const int[]){2, 3, 4, 0}, move_many);
}

/* From one rank to two others: pieces that are contiguous on both sides, on one, and small ones, in more bytes than
 * are sent at a time. With an argument, the sources are in memory that the others cannot read. */
static tutti_status move_large(ranks_context *context) {
    enum { LARGE_TENSORS = 24, LARGE_SIDE = 384 };
    static const tutti_sbp rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM};
    const tutti_sbp *const sbp[] = {&rows, &columns, NULL};
    tutti_placement *from, *to;
    tutti_tensor *src[LARGE_TENSORS], *dst[LARGE_TENSORS];
    void *private[LARGE_TENSORS] = {NULL};
    tutti_layout srcs[LARGE_TENSORS], dsts[LARGE_TENSORS];
    int64_t shapes[LARGE_TENSORS][2];
    tutti_local local;
    tutti_plan *plan;
    tutti_plan_details details;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0}, (int[]){1}, 1, &from));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){2, 1}, (int[]){2}, 1, &to));
    for (int i = 0; i < LARGE_TENSORS; i++) {
        shapes[i][0] = i % 4 == 3 ? 5 : LARGE_SIDE - i;
        shapes[i][1] = i % 4 == 3 ? 7 : LARGE_SIDE + 2 * i;
        srcs[i] = TUTTI_LAYOUT(.placement = from, .type = TUTTI_INT64, .ndims = 2, .shape = shapes[i]);
        dsts[i] = srcs[i];
        dsts[i].placement = to;
        dsts[i].sbp = sbp[i % 3];
        TUTTI_TRY(tutti_tensor_create(&srcs[i], &src[i]));
        TUTTI_TRY(tutti_tensor_create(&dsts[i], &dst[i]));
        TUTTI_TRY(tutti_tensor_local(src[i], &local));
        if (context->argument != NULL && local.count > 0) {
            private[i] = malloc(local.count * sizeof(int64_t));
            RANKS_CHECK(private[i] != NULL, "no memory");
            tutti_tensor_destroy(src[i]);
            TUTTI_TRY(tutti_tensor_wrap(&srcs[i], private[i], &src[i]));
            TUTTI_TRY(tutti_tensor_local(src[i], &local));
        }
        for (size_t k = 0; k < local.count; k++) ((int64_t *)local.data)[k] = 1000000 * i + (int64_t)k;
    }
    TUTTI_TRY(tutti_plan_create(srcs, dsts, LARGE_TENSORS, &plan));
    for (int round = 0; round < 2; round++)
        TUTTI_TRY(tutti_plan_run(plan, (const tutti_tensor *const *)src, dst, NULL));
    for (int i = 0; i < LARGE_TENSORS; i++) {
        TUTTI_TRY(tutti_tensor_local(dst[i], &local));
        for (size_t k = 0; k < local.count; k++) {
            int64_t row = local.first[0] + (int64_t)k / local.shape[1],
                    column = local.first[1] + (int64_t)k % local.shape[1];
            int64_t value = 1000000 * i + row * shapes[i][1] + column, got = ((const int64_t *)local.data)[k];
            RANKS_CHECK(got == value, "tensor %d: [%lld,%lld] is %lld, not %lld", i, (long long)row, (long long)column,
                        (long long)got, (long long)value);
        }
        tutti_tensor_destroy(src[i]);
        tutti_tensor_destroy(dst[i]);
        free(private[i]);
    }
    TUTTI_TRY(tutti_plan_get(plan, &details));
    RANKS_CHECK(details.received_bytes == details.least_bytes, "more bytes than must be");
    RANKS_CHECK(context->rank > 0 || details.sent_bytes > 16 << 20, "too few bytes for this test");
    RANKS_CHECK(details.scratch_bytes < details.sent_bytes / 2 || context->rank > 0, "%llu bytes of scratch memory",
                (unsigned long long)details.scratch_bytes);
    tutti_plan_destroy(plan);
    tutti_placement_destroy(from);
    tutti_placement_destroy(to);
    return TUTTI_OK;
}

Test(tensor, large_tensors_are_sent_in_parts) {
    ranks_adopt((const char *const[]){"TUTTI_PLAN=messages", NULL});
    run((const int[]){3, 0}, move_large);
}

Test(tensor, large_tensors_are_read_in_place) {
    run((const int[]){3, 0}, move_large);
}

Test(tensor, large_tensors_are_packed_to_be_read) {
    static const int three[] = {3, 0};
    const char *failure =
        ranks_run_worlds(three, &(ranks_options){.timeout_s = 90, .argument = (void *)three}, move_large);
    cr_assert(failure == NULL, "%s", failure);
}

/* Without partial values ranks receive only what they lack. */
static tutti_status count_bytes(ranks_context *context) {
    static const tutti_sbp pairs[][4] = {
        {{TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_SPLIT, 1, 0}, {TUTTI_SBP_SPLIT, 1, 0}, {TUTTI_SBP_SPLIT, 0, 0}},
        {{TUTTI_SBP_BROADCAST, 0, 0}, {TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_SPLIT, 0, 0}},
        {{TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_BROADCAST, 0, 0}, {TUTTI_SBP_BROADCAST, 0, 0}},
        {{TUTTI_SBP_SPLIT, 1, 0}, {TUTTI_SBP_SPLIT, 0, 0}, {TUTTI_SBP_SPLIT, 1, 0}, {TUTTI_SBP_BROADCAST, 0, 0}},
    };
    static const uint64_t all_elements[] = {2 * 36, 2 * 36, 4 * 144 - 144, 4 * 36}; /* lacking on all ranks together */
    int64_t shape[] = {12, 12};
    tutti_placement *grid;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){2, 2}, 2, &grid));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tutti_plan *plan;
        tutti_plan_details details;
        tutti_layout src =
            TUTTI_LAYOUT(.placement = grid, .sbp = pairs[i], .type = TUTTI_FLOAT32, .ndims = 2, .shape = shape);
        tutti_layout dst = src;
        dst.sbp = pairs[i] + 2;
        TUTTI_TRY(tutti_plan_create(&src, &dst, 1, &plan));
        TUTTI_TRY(tutti_plan_get(plan, &details));
        RANKS_CHECK(details.received_bytes == details.least_bytes, "pair %zu: receives %llu bytes of %llu", i,
                    (unsigned long long)details.received_bytes, (unsigned long long)details.least_bytes);
        TUTTI_TRY(tutti_all_reduce(context->comm, &details.received_bytes, &details.received_bytes, 1, TUTTI_UINT64,
                                   TUTTI_SUM, NULL));
        RANKS_CHECK(details.received_bytes == 4 * all_elements[i], "pair %zu: all receive %llu bytes", i,
                    (unsigned long long)details.received_bytes);
        tutti_plan_destroy(plan);
    }
    tutti_placement_destroy(grid);
    return TUTTI_OK;
}

Test(tensor, plans_receive_only_what_is_missing) {
    run((const int[]){4, 0}, count_bytes);
}

/* ------------------------------------------------------------------------------------------------ differences */

static tutti_status differ(ranks_context *context) {
    tutti_placement *line;
    tutti_plan *plan;
    int n = context->nranks;
    int64_t shape[] = {64, context->rank == 2 ? 4 : 3};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    tutti_layout src = TUTTI_LAYOUT(.placement = line, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_FLOAT32, .ndims = 2,
                                    .shape = shape, .name = "w");
    tutti_layout dst[2] = {src, src}, both[2] = {src, src};
    dst[0].sbp = dst[1].sbp = NULL;
    EXPECT_ERROR(
        "rank 0 'w' float32[64,3] S0 on ranks 0,1,2 as 3 to 'w' float32[64,3] B on ranks 0,1,2 as 3; rank 2 'w' "
        "float32[64,4] S0",
        tutti_plan_create(&src, dst, 1, &plan));
    shape[1] = 3;
    EXPECT_ERROR("rank 0 gives 1 tensors at once; rank 1 gives 2 tensors at once",
                 tutti_plan_create(both, dst, context->rank == 1 ? 2 : 1, &plan));
    both[1].name = context->rank == 1 ? "v" : "u";
    EXPECT_ERROR("rank 0 'u' float32[64,3] S0", tutti_plan_create(both, dst, 2, &plan));
    TUTTI_TRY(tutti_plan_create(&src, dst, 1, &plan)); /* the communicator still works */
    tutti_plan_destroy(plan);
    dst[0].type = TUTTI_INT8;
    EXPECT_ERROR("their types must be equal", tutti_plan_create(&src, dst, 1, &plan));
    dst[0].type = TUTTI_FLOAT32;
    dst[0].shape = (int64_t[]){64, 2};
    EXPECT_ERROR("their numbers of elements must be equal", tutti_plan_create(&src, dst, 1, &plan));
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor, ranks_that_differ_get_a_complete_error) {
    run((const int[]){3, 0}, differ);
}
