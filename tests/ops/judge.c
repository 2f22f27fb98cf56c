/*
 * Each signature of a row against one rank. The inputs are made in the layouts that the signature wants; what they are
 * as a whole is found by redistribution, which has tests of its own; one rank then computes the whole.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/rows.h"

enum { MOST_CHOICES = 48, MOST_RUNS = 400 };

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

/* ------------------------------------------------------------------------------------------------ elements */

static double value_of(const row_input *input, uint64_t key, int64_t index, int64_t count) {
    uint64_t random = mix(key);
    switch (input->values) {
    case VALUES_WHOLE: return (double)(random % 7) - 3;
    case VALUES_POSITIVE: return (double)(random % 7) + 1;
    case VALUES_QUARTERS: return ((double)(random % 13) - 6) / 4;
    case VALUES_INDEX: return (double)(random % (uint64_t)input->limit);
    case VALUES_MOMENTS: return index < count / 2 ? (double)(random % 7) - 3 : (double)(random % 7) + 500;
    }
    return 0;
}

static void put(tutti_type type, void *data, size_t i, double value) {
    switch (type) {
    case TUTTI_FLOAT32: ((float *)data)[i] = (float)value; break;
    case TUTTI_FLOAT64: ((double *)data)[i] = value; break;
    case TUTTI_INT32: ((int32_t *)data)[i] = (int32_t)value; break;
    case TUTTI_INT64: ((int64_t *)data)[i] = (int64_t)value; break;
    default: abort();
    }
}

static double get(tutti_type type, const void *data, size_t i) {
    switch (type) {
    case TUTTI_FLOAT32: return (double)((const float *)data)[i];
    case TUTTI_FLOAT64: return ((const double *)data)[i];
    case TUTTI_INT32: return (double)((const int32_t *)data)[i];
    case TUTTI_INT64: return (double)((const int64_t *)data)[i];
    default: abort();
    }
}

/* Which part of the partial values this rank has: copies of one part have the same number. */
static uint64_t part_of(const tutti_layout *layout) {
    uint64_t part = 0;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++)
        if (layout->sbp[axis].kind == TUTTI_SBP_PARTIAL)
            part = part * 16 + (uint64_t)tutti_placement_coordinate(layout->placement, axis) + 1;
    return part;
}

/* Every element by its place in the whole tensor. */
static tutti_status make_input(const row_input *input, int number, const tutti_layout *layout,
                               tutti_tensor **tensor_out) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_create(layout, tensor_out));
    TUTTI_TRY(tutti_tensor_local(*tensor_out, &local));
    layout = tutti_tensor_layout(*tensor_out);
    int64_t count = 1;
    for (int d = 0; d < input->ndims; d++) count *= input->shape[d];
    for (size_t i = 0; i < local.count; i++) {
        int64_t rest = (int64_t)i, index = 0, stride = 1;
        for (int d = local.ndims - 1; d >= 0; d--) {
            index += (local.first[d] + rest % local.shape[d]) * stride;
            rest /= local.shape[d];
            stride *= input->shape[d];
        }
        uint64_t key = (uint64_t)index * 4096 + part_of(layout) * 16 + (uint64_t)number;
        put(input->type, local.data, i, value_of(input, key, index, count));
    }
    return TUTTI_OK;
}

static tutti_status make_whole(const tutti_tensor *tensor, tutti_tensor **whole_out) {
    return tutti_tensor_to_global(tensor, NULL, NULL, NULL, whole_out);
}

/* ------------------------------------------------------------------------------------------------ one run */

static void destroy(tutti_tensor **tensors, int count) {
    for (int i = 0; i < count; i++) {
        tutti_tensor_destroy(tensors[i]);
        tensors[i] = NULL;
    }
}

/* The same call on whole inputs, by this rank alone. */
static tutti_status run_alone(tutti_placement *alone, const row_case *c, tutti_tensor *const *wholes,
                              tutti_tensor **y_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(c->row, .params = c->params, .ninputs = c->ninputs);
    tutti_tensor *inputs[5] = {NULL};
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < c->ninputs && status == TUTTI_OK; i++) {
        tutti_local local;
        status = tutti_tensor_local(wholes[i], &local);
        const tutti_layout layout = TUTTI_LAYOUT(.placement = alone, .type = c->inputs[i].type,
                                                 .ndims = c->inputs[i].ndims, .shape = c->inputs[i].shape);
        if (status == TUTTI_OK) status = tutti_tensor_wrap(&layout, local.data, &inputs[i]);
        call.inputs[i] = inputs[i];
    }
    if (status == TUTTI_OK) status = tutti_ops_run(&call, y_out);
    destroy(inputs, c->ninputs);
    return status;
}

static bool is_near(double a, double b, double tolerance) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static tutti_status compare(double tolerance, const tutti_tensor *y, const tutti_tensor *alone, row_verdict *verdict) {
    tutti_local is, should;
    tutti_tensor *whole;
    TUTTI_TRY(make_whole(y, &whole));
    TUTTI_TRY(tutti_tensor_local(whole, &is));
    TUTTI_TRY(tutti_tensor_local(alone, &should));
    tutti_type type = tutti_tensor_layout(alone)->type;
    verdict->runs++;
    bool good = is.count == should.count && tutti_tensor_layout(whole)->type == type;
    for (size_t i = 0; good && i < is.count; i++) {
        double a = get(type, is.data, i), b = get(type, should.data, i);
        good = is_near(a, b, tolerance);
        if (!good && verdict->wrong == 0)
            snprintf(verdict->text, sizeof verdict->text, "element %zu is %.9g, on one rank %.9g: %.250s", i, a, b,
                     tutti_op_explain());
    }
    verdict->wrong += good ? 0 : 1;
    tutti_tensor_destroy(whole);
    return TUTTI_OK;
}

typedef struct judge {
    const row_case *c;
    tutti_placement *all, *alone;
    tutti_tensor *plain[5]; /* inputs that are broadcast: for the rule */
    int naxes, round;
    row_verdict *verdict;
} judge;

/* Rises from 0 to the extent in odd steps, some of them empty. */
static void cut_oddly(int64_t extent, int nparts, int round, int64_t *cuts) {
    cuts[0] = 0;
    for (int part = 1; part < nparts; part++) {
        int64_t left = extent - cuts[part - 1];
        cuts[part] =
            cuts[part - 1] + (left > 0 ? (int64_t)(mix((uint64_t)(round * 64 + part)) % (uint64_t)(left + 1)) : 0);
    }
    cuts[nparts] = extent;
}

static int parts_of(const tutti_layout *layout, int dim) {
    int nparts = 1;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++)
        if (layout->sbp[axis].kind == TUTTI_SBP_SPLIT && layout->sbp[axis].dim == dim)
            nparts *= tutti_placement_size(layout->placement, axis);
    return nparts;
}

/* The first input gets odd cuts in some rounds; what shares its letters follows. */
static tutti_status make_first(judge *j, tutti_ops_call *call, const tutti_ops_choice *choices,
                               tutti_tensor **first_out) {
    int64_t odd[TUTTI_MOST_DIMS][20];
    tutti_ops_signature signature;
    TUTTI_TRY(tutti_ops_signature_make(call, choices, &signature));
    tutti_ops_layout *layout = &signature.inputs[0];
    for (int d = 0; d < layout->view.ndims && j->round > 0; d++) {
        if (layout->cuts[d] == NULL) continue;
        cut_oddly(layout->shape[d], parts_of(&layout->view, d), j->round + d, odd[d]);
        layout->cuts[d] = odd[d];
    }
    tutti_status status = make_input(&j->c->inputs[0], 0, &layout->view, first_out);
    tutti_ops_signature_free(&signature);
    return status;
}

/* Averages of thirds are rounded. */
static double tolerance_of(const judge *j, const tutti_ops_choice *choices) {
    double tolerance = j->c->tolerance;
    for (int axis = 0; axis < j->naxes; axis++)
        if (choices[axis].way == TUTTI_OPS_PASS && choices[axis].reduction == TUTTI_AVG)
            tolerance = fmax(tolerance, 2e-5);
    return tolerance;
}

static tutti_status try_signature(judge *j, const tutti_ops_choice *choices) {
    const row_case *c = j->c;
    tutti_ops_call call = TUTTI_OPS_CALL(c->row, .params = c->params, .ninputs = c->ninputs, .forced = choices);
    tutti_tensor *inputs[5] = {NULL}, *wholes[5] = {NULL}, *y = NULL, *alone = NULL;
    tutti_ops_signature signature;
    for (int i = 0; i < c->ninputs; i++) call.inputs[i] = j->plain[i];
    TUTTI_TRY(tutti_ops_place(&call));
    TUTTI_TRY(make_first(j, &call, choices, &inputs[0]));
    call.inputs[0] = inputs[0];
    TUTTI_TRY(tutti_ops_place(&call));
    TUTTI_TRY(tutti_ops_signature_make(&call, choices, &signature));
    for (int i = 0; i < c->ninputs; i++) {
        if (i > 0) TUTTI_TRY(make_input(&c->inputs[i], i, &signature.inputs[i].view, &inputs[i]));
        call.inputs[i] = inputs[i];
        TUTTI_TRY(make_whole(inputs[i], &wholes[i]));
    }
    TUTTI_TRY(run_alone(j->alone, c, wholes, &alone));
    TUTTI_TRY(tutti_ops_run(&call, &y));
    TUTTI_TRY(compare(tolerance_of(j, choices), y, alone, j->verdict));
    tutti_ops_signature_free(&signature);
    destroy(inputs, c->ninputs);
    destroy(wholes, c->ninputs);
    tutti_tensor_destroy(y);
    tutti_tensor_destroy(alone);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ all runs */

/* All that a row allows along an axis, with the reductions that it may let pass. */
static int list_choices(const tutti_ops_call *call, tutti_ops_choice choices[MOST_CHOICES]) {
    static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_AVG, TUTTI_MAX, TUTTI_MIN};
    int count = 0;
    choices[count++] = (tutti_ops_choice){.way = TUTTI_OPS_BROADCAST};
    for (int f = 0; f < call->rule.nfactors; f++) {
        const tutti_ops_choice choice = {.way = TUTTI_OPS_FACTOR, .factor = f};
        if (tutti_ops_choice_is_valid(call, &choice)) choices[count++] = choice;
    }
    for (unsigned partial = 1; partial < 1u << call->ninputs; partial++)
        for (size_t r = 0; r < sizeof reductions / sizeof *reductions; r++) {
            const tutti_ops_choice choice = {.way = TUTTI_OPS_PASS, .partial = partial, .reduction = reductions[r]};
            if (count < MOST_CHOICES && tutti_ops_choice_is_valid(call, &choice)) choices[count++] = choice;
        }
    return count;
}

static tutti_status try_all(judge *j) {
    tutti_ops_choice list[MOST_CHOICES], choices[TUTTI_MOST_AXES];
    tutti_ops_call call = TUTTI_OPS_CALL(j->c->row, .params = j->c->params, .ninputs = j->c->ninputs);
    for (int i = 0; i < j->c->ninputs; i++) call.inputs[i] = j->plain[i];
    TUTTI_TRY(tutti_ops_place(&call));
    int count = list_choices(&call, list), all = 1;
    for (int axis = 0; axis < j->naxes; axis++) all *= count;
    int step = 1 + all / MOST_RUNS; /* of many combinations on two axes some */
    for (int number = 0; number < all; number += step) {
        int rest = number;
        for (int axis = 0; axis < j->naxes; axis++) {
            choices[axis] = list[rest % count];
            rest /= count;
        }
        TUTTI_TRY(try_signature(j, choices));
    }
    return TUTTI_OK;
}

tutti_status judge_row(tutti_comm *comm, const int *axes, int naxes, const row_case *c, row_verdict *verdict_out) {
    enum { ROUNDS = 2 };
    judge j = {.c = c, .naxes = naxes, .verdict = verdict_out};
    int me = tutti_comm_rank(comm), one = 1;
    *verdict_out = (row_verdict){0};
    TUTTI_TRY(tutti_placement_create(comm, TUTTI_MEMORY_HOST, NULL, axes, naxes, &j.all));
    TUTTI_TRY(tutti_placement_create(comm, TUTTI_MEMORY_HOST, &me, &one, 1, &j.alone));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < c->ninputs && status == TUTTI_OK; i++) {
        const tutti_layout layout = TUTTI_LAYOUT(.placement = j.all, .type = c->inputs[i].type,
                                                 .ndims = c->inputs[i].ndims, .shape = c->inputs[i].shape);
        status = make_input(&c->inputs[i], i, &layout, &j.plain[i]);
    }
    for (j.round = 0; j.round < ROUNDS && status == TUTTI_OK; j.round++) status = try_all(&j);
    destroy(j.plain, c->ninputs);
    tutti_placement_destroy(j.alone);
    tutti_placement_destroy(j.all);
    return status;
}
