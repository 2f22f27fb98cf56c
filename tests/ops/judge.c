/*
 * Each signature of a row against one rank. The inputs are made in the signature's layouts; redistribution, which has
 * its own tests, collects the whole inputs; one rank then computes the result, always in host memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "kernels/device.h"
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

/* The number of this rank's part of the partial values: copies of one part have the same number. */
static uint64_t part_of(const tutti_layout *layout) {
    uint64_t part = 0;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++)
        if (layout->sbp[axis].kind == TUTTI_SBP_PARTIAL)
            part = part * 16 + (uint64_t)tutti_placement_coordinate(layout->placement, axis) + 1;
    return part;
}

typedef struct judge {
    const row_place *place;
    const row_case *c;
    tutti_placement *all, *alone;
    tutti_tensor *plain[5]; /* inputs that are broadcast: for the rule */
    int round;
    row_verdict *verdict;
} judge;

/* In the stream, in order not to wait for other ranks that are threads. */
static void end(const judge *j, tutti_tensor *tensor) {
    tutti_tensor_destroy_in_stream(tensor, j->place->stream);
}

/* Bytes from the host into a tensor's shard, and back; done when they return. */
static tutti_status put_shard(const judge *j, const tutti_tensor *tensor, const void *bytes) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    size_t count = local.count * tutti_type_bytes(tutti_tensor_layout(tensor)->type);
    if (count > 0 && j->place->memory == TUTTI_MEMORY_CUDA)
        return tutti_device_copy(local.data, bytes, count, j->place->stream);
    if (count > 0) memcpy(local.data, bytes, count);
    return TUTTI_OK;
}

/* A copy to ordinary memory that has to wait in its stream may block other threads, which are ranks, in CUDA. */
static tutti_status copy_behind(const judge *j, void *dst, const void *src, size_t bytes) {
    const tutti_device *device = NULL;
    TUTTI_TRY(tutti_device_open(&device));
    TUTTI_TRY(device->stream_sync(j->place->stream));
    return tutti_device_copy(dst, src, bytes, j->place->stream);
}

/* A whole tensor that is broadcast, in host memory of this rank alone. */
static tutti_status fetch(const judge *j, const tutti_tensor *whole, tutti_tensor **alone_out) {
    const tutti_layout *is = tutti_tensor_layout(whole);
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = j->alone, .type = is->type, .ndims = is->ndims, .shape = is->shape, .name = is->name);
    tutti_local from, to;
    TUTTI_TRY(tutti_tensor_local(whole, &from));
    TUTTI_TRY(tutti_tensor_create(&layout, alone_out));
    TUTTI_TRY(tutti_tensor_local(*alone_out, &to));
    size_t bytes = to.count * tutti_type_bytes(is->type);
    if (bytes > 0 && j->place->memory == TUTTI_MEMORY_CUDA) return copy_behind(j, to.data, from.data, bytes);
    if (bytes > 0) memcpy(to.data, from.data, bytes);
    return TUTTI_OK;
}

/* Every element by its place in the whole tensor. */
static tutti_status make_input(const judge *j, const row_input *input, int number, const tutti_layout *layout,
                               tutti_tensor **tensor_out) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_create_in_stream(layout, j->place->stream, tensor_out));
    TUTTI_TRY(tutti_tensor_local(*tensor_out, &local));
    layout = tutti_tensor_layout(*tensor_out);
    int64_t count = 1;
    for (int d = 0; d < input->ndims; d++) count *= input->shape[d];
    char *values = malloc(local.count * 8 + 1);
    if (values == NULL) return TUTTI_ERR_MEMORY;
    for (size_t i = 0; i < local.count; i++) {
        int64_t rest = (int64_t)i, index = 0, stride = 1;
        for (int d = local.ndims - 1; d >= 0; d--) {
            index += (local.first[d] + rest % local.shape[d]) * stride;
            rest /= local.shape[d];
            stride *= input->shape[d];
        }
        uint64_t key = (uint64_t)index * 4096 + part_of(layout) * 16 + (uint64_t)number;
        put(input->type, values, i, value_of(input, key, index, count));
    }
    tutti_status status = put_shard(j, *tensor_out, values);
    free(values);
    return status;
}

/* In host memory of this rank alone. */
static tutti_status make_whole(const judge *j, const tutti_tensor *tensor, tutti_tensor **whole_out) {
    tutti_layout layout = *tutti_tensor_layout(tensor);
    tutti_tensor *whole;
    layout.sbp = NULL;
    layout.cuts = NULL;
    TUTTI_TRY(tutti_tensor_create_in_stream(&layout, j->place->stream, &whole));
    TUTTI_TRY(tutti_tensor_redistribute(tensor, whole, &TUTTI_OPTIONS(.stream = j->place->stream)));
    tutti_status status = fetch(j, whole, whole_out);
    end(j, whole);
    return status;
}

/* ------------------------------------------------------------------------------------------------ one run */

static void destroy(const judge *j, tutti_tensor **tensors, int count) {
    for (int i = 0; i < count; i++) {
        end(j, tensors[i]);
        tensors[i] = NULL;
    }
}

/* The same call on whole inputs, by this rank alone. */
static tutti_status run_alone(const row_case *c, tutti_tensor *const *wholes, tutti_tensor **y_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(c->row, .params = c->params, .ninputs = c->ninputs);
    for (int i = 0; i < c->ninputs; i++) call.inputs[i] = wholes[i];
    return tutti_ops_run(&call, y_out);
}

static bool is_near(double a, double b, double tolerance) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static tutti_status compare(const judge *j, double tolerance, const tutti_tensor *y, const tutti_tensor *alone) {
    row_verdict *verdict = j->verdict;
    tutti_local is, should;
    tutti_tensor *whole;
    TUTTI_TRY(make_whole(j, y, &whole));
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

/* The first input gets odd cuts in some rounds; inputs that share its letters get the same. */
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
    tutti_status status = make_input(j, &j->c->inputs[0], 0, &layout->view, first_out);
    tutti_ops_signature_free(&signature);
    return status;
}

/* Averages of thirds are rounded. */
static double tolerance_of(const judge *j, const tutti_ops_choice *choices) {
    double tolerance = j->c->tolerance;
    for (int axis = 0; axis < j->place->naxes; axis++)
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
        if (i > 0) TUTTI_TRY(make_input(j, &c->inputs[i], i, &signature.inputs[i].view, &inputs[i]));
        call.inputs[i] = inputs[i];
        TUTTI_TRY(make_whole(j, inputs[i], &wholes[i]));
    }
    TUTTI_TRY(run_alone(c, wholes, &alone));
    TUTTI_TRY(tutti_ops_run(&call, &y));
    TUTTI_TRY(compare(j, tolerance_of(j, choices), y, alone));
    tutti_ops_signature_free(&signature);
    destroy(j, inputs, c->ninputs);
    destroy(j, wholes, c->ninputs);
    end(j, y);
    tutti_tensor_destroy(alone);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ all runs */

/* All signatures that a row allows along an axis, with the reductions that it may let pass. */
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
    for (int axis = 0; axis < j->place->naxes; axis++) all *= count;
    int step = 1 + all / (j->place->most_runs > 0 ? j->place->most_runs
                                                  : MOST_RUNS); /* some of the many combinations on two axes */
    for (int number = 0; number < all; number += step) {
        int rest = number;
        for (int axis = 0; axis < j->place->naxes; axis++) {
            choices[axis] = list[rest % count];
            rest /= count;
        }
        TUTTI_TRY(try_signature(j, choices));
    }
    return TUTTI_OK;
}

tutti_status judge_row(const row_place *place, const row_case *c, row_verdict *verdict_out) {
    enum { ROUNDS = 2 };
    judge j = {.place = place, .c = c, .verdict = verdict_out};
    int me = tutti_comm_rank(place->comm), one = 1;
    *verdict_out = (row_verdict){0};
    tutti_op_use_stream(place->stream);
    TUTTI_TRY(tutti_placement_create(place->comm, place->memory, NULL, place->axes, place->naxes, &j.all));
    TUTTI_TRY(tutti_placement_create(place->comm, TUTTI_MEMORY_HOST, &me, &one, 1, &j.alone));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < c->ninputs && status == TUTTI_OK; i++) {
        const tutti_layout layout = TUTTI_LAYOUT(.placement = j.all, .type = c->inputs[i].type,
                                                 .ndims = c->inputs[i].ndims, .shape = c->inputs[i].shape);
        status = make_input(&j, &c->inputs[i], i, &layout, &j.plain[i]);
    }
    for (j.round = 0; j.round < ROUNDS && status == TUTTI_OK; j.round++) status = try_all(&j);
    destroy(&j, j.plain, c->ninputs);
    tutti_placement_destroy(j.alone);
    tutti_placement_destroy(j.all);
    return status;
}
