/*
 * Chooses the cheapest signature of a call: the cost is the conversions of its inputs, the work of the busiest
 * rank, and the conversion of the output where a layout is wanted. All numbers are equal on all ranks, and so is
 * the choice.
 */
#include <string.h>

#include "ops/call.h"

enum {
    MOST_CANDIDATES = TUTTI_OPS_FACTORS + TUTTI_OPS_GROUPS + 2, /* along one axis */
    MOST_COMBINATIONS = 256 /* with more, the axes are chosen one after the other, twice */
};

typedef struct candidates {
    tutti_ops_choice items[MOST_CANDIDATES];
    int count;
} candidates;

/* ------------------------------------------------------------------------------------------------ candidates */

static void add(const tutti_ops_call *call, candidates *list, tutti_ops_choice choice) {
    if (list->count == MOST_CANDIDATES || !tutti_ops_choice_is_valid(call, &choice)) return;
    for (int i = 0; i < list->count; i++)
        if (memcmp(&list->items[i], &choice, sizeof choice) == 0) return;
    list->items[list->count++] = choice;
}

static void add_factor(const tutti_ops_call *call, candidates *list, int factor) {
    tutti_ops_choice choice;
    memset(&choice, 0, sizeof choice); /* including the padding: add compares bytes */
    choice.way = TUTTI_OPS_FACTOR;
    choice.factor = factor;
    if (factor >= 0) add(call, list, choice);
}

/* Adds the choices that pass partial values through; `input` -1: for any input. */
static void add_passes(const tutti_ops_call *call, candidates *list, tutti_reduction reduction, int input) {
    unsigned all = (1u << call->ninputs) - 1;
    for (int g = -1; g < TUTTI_OPS_GROUPS; g++) {
        unsigned partial = g < 0 ? all : call->row->linear[g] & all;
        tutti_ops_choice choice;
        memset(&choice, 0, sizeof choice);
        choice.way = TUTTI_OPS_PASS;
        choice.partial = partial;
        choice.reduction = reduction;
        if (partial != 0 && (input < 0 || (partial >> input & 1) != 0)) add(call, list, choice);
    }
}

static void add_all_factors(const tutti_ops_call *call, candidates *list, unsigned mask) {
    for (int f = 0; f < call->rule.nfactors; f++)
        if ((mask >> f & 1) != 0) add_factor(call, list, f);
}

/* Adds the choices that suit the layout of an input. For most choices a partial input must be reduced, which is
 * cheaper if it is scattered along a letter. */
static void add_of_input(const tutti_ops_call *call, candidates *list, int input, tutti_sbp sbp) {
    if (sbp.kind == TUTTI_SBP_SPLIT) add_factor(call, list, call->rule.inputs[input].factor[sbp.dim]);
    if (sbp.kind != TUTTI_SBP_PARTIAL) return;
    add_passes(call, list, sbp.reduction, input);
    add_all_factors(call, list, ~0u);
}

static void add_of_output(const tutti_ops_call *call, candidates *list, tutti_sbp sbp) {
    if (sbp.kind == TUTTI_SBP_SPLIT && sbp.dim < call->rule.output.ndims)
        add_factor(call, list, call->rule.output.factor[sbp.dim]);
    if (sbp.kind != TUTTI_SBP_PARTIAL) return;
    if (sbp.reduction == call->rule.reduction) add_all_factors(call, list, call->rule.sums);
    add_passes(call, list, sbp.reduction, -1);
}

static void list_candidates(const tutti_ops_call *call, const tutti_layout *target, int axis, candidates *list) {
    tutti_ops_choice broadcast;
    memset(&broadcast, 0, sizeof broadcast);
    list->count = 0;
    if (tutti_placement_size(tutti_ops_input(call, 0)->placement, axis) > 1) {
        for (int i = 0; i < call->ninputs; i++) add_of_input(call, list, i, tutti_ops_input(call, i)->sbp[axis]);
        if (target != NULL && target->sbp != NULL) add_of_output(call, list, target->sbp[axis]);
    }
    add(call, list, broadcast);
}

/* ------------------------------------------------------------------------------------------------ prices */

/* Prices of GPUs are not measured: they count the bytes that the busiest rank receives, at the bandwidth of a link
 * between two GPUs, and some launches. */
static const double GPU_LAUNCH_US = 20, GPU_BYTES_PER_US = 1e5;
static const double GPU_PACE = 1e-3; /* times a row's time on one core */

/* Number of terms of each sum when partial values are reduced. */
static double terms_of(const tutti_layout *from, const tutti_layout *to) {
    double terms = 1;
    for (int axis = 0; axis < tutti_placement_axes(from->placement); axis++)
        if (from->sbp[axis].kind == TUTTI_SBP_PARTIAL && to->sbp[axis].kind != TUTTI_SBP_PARTIAL)
            terms *= tutti_placement_size(from->placement, axis);
    return terms;
}

/* Number of elements that the index-th rank receives: its share of the terms' sums, and the elements that it lacks
 * then. */
static tutti_status count_received(const tutti_layout *from, const tutti_layout *to, int index, double *received_out) {
    int64_t has_first[TUTTI_MOST_DIMS], has_end[TUTTI_MOST_DIMS], first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
    double has = 1, wants = 1, common = 1, terms = terms_of(from, to);
    TUTTI_TRY(tutti_layout_box(from, index, has_first, has_end));
    TUTTI_TRY(tutti_layout_box(to, index, first, end));
    for (int d = 0; d < from->ndims; d++) {
        int64_t begin = first[d] > has_first[d] ? first[d] : has_first[d],
                stop = end[d] < has_end[d] ? end[d] : has_end[d];
        has *= (double)(has_end[d] - has_first[d]);
        wants *= (double)(end[d] - first[d]);
        common *= stop > begin ? (double)(stop - begin) : 0;
    }
    double left = terms > 1 ? wants - common / terms : wants - common;
    *received_out = has * (terms - 1) / terms + (left > 0 ? left : 0);
    return TUTTI_OK;
}

static tutti_status price_on_gpus(const tutti_layout *from, const tutti_layout *to, double *price) {
    double most = 0;
    for (int index = 0; index < tutti_placement_size(from->placement, -1); index++) {
        double received = 0;
        TUTTI_TRY(count_received(from, to, index, &received));
        if (received > most) most = received;
    }
    *price += GPU_LAUNCH_US + most * (double)tutti_type_bytes(from->type) / GPU_BYTES_PER_US;
    return TUTTI_OK;
}

static tutti_status price_of(const tutti_layout *from, const tutti_layout *to, double *price) {
    double microseconds = 0;
    if (tutti_ops_layouts_are_equal(from, to)) return TUTTI_OK;
    if (tutti_placement_memory(from->placement) == TUTTI_MEMORY_CUDA) return price_on_gpus(from, to, price);
    TUTTI_TRY(tutti_layout_predict(from, to, &microseconds));
    *price += microseconds;
    return TUTTI_OK;
}

static tutti_status price_signature(const tutti_ops_call *call, const tutti_layout *target,
                                    const tutti_ops_choice *choices, double *price_out) {
    tutti_ops_signature signature;
    TUTTI_TRY(tutti_ops_signature_make(call, choices, &signature));
    double price = signature.points * call->row->ns_per_point / 1e3;
    if (tutti_placement_memory(tutti_ops_input(call, 0)->placement) == TUTTI_MEMORY_CUDA) price *= GPU_PACE;
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < call->ninputs && status == TUTTI_OK; i++)
        status = price_of(tutti_ops_input(call, i), &signature.inputs[i].view, &price);
    if (target != NULL && status == TUTTI_OK) status = price_of(&signature.output.view, target, &price);
    tutti_ops_signature_free(&signature);
    *price_out = price;
    return status;
}

/* ------------------------------------------------------------------------------------------------ search */

typedef struct search {
    const tutti_ops_call *call;
    const tutti_layout *target;
    int naxes;
    candidates axes[TUTTI_MOST_AXES];
    double best;
} search;

static tutti_status try_choices(search *s, const tutti_ops_choice *choices, tutti_ops_choice *best_out) {
    double price;
    TUTTI_TRY(price_signature(s->call, s->target, choices, &price));
    if (s->best >= 0 && price >= s->best) return TUTTI_OK;
    s->best = price;
    memcpy(best_out, choices, (size_t)s->naxes * sizeof *choices);
    return TUTTI_OK;
}

static tutti_status try_all(search *s, int combinations, tutti_ops_choice *best_out) {
    for (int number = 0; number < combinations; number++) {
        tutti_ops_choice choices[TUTTI_MOST_AXES];
        int rest = number;
        for (int axis = 0; axis < s->naxes; axis++) {
            choices[axis] = s->axes[axis].items[rest % s->axes[axis].count];
            rest /= s->axes[axis].count;
        }
        TUTTI_TRY(try_choices(s, choices, best_out));
    }
    return TUTTI_OK;
}

static tutti_status try_by_axis(search *s, tutti_ops_choice *best_out) {
    tutti_ops_choice choices[TUTTI_MOST_AXES];
    for (int axis = 0; axis < s->naxes; axis++) choices[axis] = s->axes[axis].items[0];
    TUTTI_TRY(try_choices(s, choices, best_out));
    for (int round = 0; round < 2; round++)
        for (int axis = 0; axis < s->naxes; axis++)
            for (int i = 0; i < s->axes[axis].count; i++) {
                memcpy(choices, best_out, (size_t)s->naxes * sizeof *choices);
                choices[axis] = s->axes[axis].items[i];
                TUTTI_TRY(try_choices(s, choices, best_out));
            }
    return TUTTI_OK;
}

tutti_status tutti_ops_choose(const tutti_ops_call *call, const tutti_layout *target, tutti_ops_choice *choices_out) {
    search s = {.call = call, .target = target, .best = -1};
    int combinations = 1;
    s.naxes = tutti_placement_axes(tutti_ops_input(call, 0)->placement);
    for (int axis = 0; axis < s.naxes; axis++) {
        list_candidates(call, target, axis, &s.axes[axis]);
        if (combinations <= MOST_COMBINATIONS) combinations *= s.axes[axis].count;
    }
    if (combinations == 1) {
        for (int axis = 0; axis < s.naxes; axis++) choices_out[axis] = s.axes[axis].items[0];
        return TUTTI_OK;
    }
    return combinations <= MOST_COMBINATIONS ? try_all(&s, combinations, choices_out) : try_by_axis(&s, choices_out);
}
