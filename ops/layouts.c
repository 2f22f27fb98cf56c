/*
 * The layouts that a signature gives the operands. See call.h.
 */
#include <stdlib.h>
#include <string.h>

#include "ops/call.h"

/* ------------------------------------------------------------------------------------------------ choices */

static bool passes(const tutti_ops_call *call, const tutti_ops_choice *choice) {
    const tutti_ops_row *row = call->row;
    unsigned all = (1u << call->ninputs) - 1;
    tutti_reduction reduction = choice->reduction;
    if (row->moves && choice->partial == all) return true;
    if (row->has_keeps && reduction == row->keeps && choice->partial == all) return true;
    /* An average of integers is rounded, so it is not linear. */
    bool sums =
        reduction == TUTTI_SUM || (reduction == TUTTI_AVG && tutti_ops_is_float(tutti_ops_input(call, 0)->type));
    if (!sums || call->not_linear) return false;
    for (int g = 0; g < TUTTI_OPS_GROUPS; g++)
        if (row->linear[g] != 0 && (row->linear[g] & all) == choice->partial) return true;
    return false;
}

bool tutti_ops_choice_is_valid(const tutti_ops_call *call, const tutti_ops_choice *choice) {
    const tutti_ops_rule *rule = &call->rule;
    if (choice->way == TUTTI_OPS_PASS) return passes(call, choice);
    if (choice->way == TUTTI_OPS_BROADCAST) return true;
    if (choice->factor < 0 || choice->factor >= rule->nfactors || (rule->whole >> choice->factor & 1) != 0)
        return false;
    return tutti_ops_dims_find(&rule->output, choice->factor) >= 0 || (rule->sums >> choice->factor & 1) != 0;
}

/* ------------------------------------------------------------------------------------------------ cuts of letters */

/* The axes of more than one rank that split a letter, in order, and the offsets of the cuts. */
typedef struct letter_cuts {
    unsigned axes;
    int nparts;
    const int64_t *offsets; /* nparts + 1; NULL: not split */
} letter_cuts;

static int size_of(const tutti_layout *layout, int axis) {
    return tutti_placement_size(layout->placement, axis);
}

static unsigned axes_that_split(const tutti_layout *layout, int dim) {
    unsigned axes = 0;
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++)
        if (layout->sbp != NULL && layout->sbp[axis].kind == TUTTI_SBP_SPLIT && layout->sbp[axis].dim == dim &&
            size_of(layout, axis) > 1)
            axes |= 1u << axis;
    return axes;
}

/* Returns the layout's cuts of the dimension, if it is the letter's whole range and split by exactly these axes;
 * else NULL. */
static const int64_t *cuts_in(const tutti_layout *layout, const tutti_ops_dims *dims, int factor, int64_t extent,
                              unsigned axes) {
    int d = tutti_ops_dims_find(dims, factor);
    if (d < 0 || layout->cuts == NULL || layout->shape[d] != extent || dims->offset[d] != 0) return NULL;
    return axes_that_split(layout, d) == axes ? layout->cuts[d] : NULL;
}

static int64_t elements_of(const tutti_layout *layout) {
    int64_t count = 1;
    for (int d = 0; d < layout->ndims; d++) count *= layout->shape[d];
    return count;
}

/* Prefers existing cuts, of the largest input, then of the target: so the fewest elements move. */
static const int64_t *find_cuts(const tutti_ops_call *call, int factor, unsigned axes) {
    const tutti_ops_rule *rule = &call->rule;
    const int64_t *found = NULL;
    int64_t most = -1;
    for (int i = 0; i < call->ninputs; i++) {
        const tutti_layout *layout = tutti_ops_input(call, i);
        const int64_t *cuts = cuts_in(layout, &rule->inputs[i], factor, rule->extents[factor], axes);
        if (cuts == NULL || elements_of(layout) <= most) continue;
        found = cuts;
        most = elements_of(layout);
    }
    if (found == NULL && call->target != NULL)
        found = cuts_in(call->target, &rule->output, factor, rule->extents[factor], axes);
    return found;
}

/* Cuts by the default rule of layouts, one axis after the other. */
static void cut_by_rule(const tutti_layout *like, unsigned axes, int64_t extent, int64_t *offsets) {
    int nparts = 1;
    offsets[0] = 0;
    offsets[1] = extent;
    for (int axis = 0; axis < tutti_placement_axes(like->placement); axis++) {
        if ((axes >> axis & 1) == 0) continue;
        int size = size_of(like, axis);
        for (int part = nparts - 1; part >= 0; part--) {
            int64_t first = offsets[part], end = part == nparts - 1 ? extent : offsets[(part + 1) * size];
            for (int i = size - 1; i >= 0; i--)
                offsets[part * size + i] = first + tutti_split_begin(end - first, i, size, like->rule);
        }
        nparts *= size;
        offsets[nparts] = extent;
    }
}

/* ------------------------------------------------------------------------------------------------ operands */

static tutti_sbp sbp_of(const tutti_ops_call *call, const tutti_ops_choice *choice, const tutti_ops_dims *dims,
                        int input) {
    const tutti_ops_rule *rule = &call->rule;
    if (choice->way == TUTTI_OPS_PASS)
        return input < 0 || (choice->partial >> input & 1) != 0 ? TUTTI_PARTIAL(choice->reduction) : TUTTI_BROADCAST;
    if (choice->way == TUTTI_OPS_BROADCAST) return TUTTI_BROADCAST;
    int d = tutti_ops_dims_find(dims, choice->factor);
    if (d >= 0) return TUTTI_SPLIT(d);
    if ((rule->sums >> choice->factor & 1) == 0) return TUTTI_BROADCAST;
    if (input < 0) return TUTTI_PARTIAL(rule->reduction);
    return (call->row->added >> input & 1) != 0 ? TUTTI_PARTIAL(TUTTI_SUM) : TUTTI_BROADCAST;
}

/* Restricts the letter's cuts to a dimension that is a part of its range. */
static void clip_cuts(const letter_cuts *cuts, int64_t offset, int64_t extent, int64_t *out) {
    for (int part = 0; part <= cuts->nparts; part++) {
        int64_t at = cuts->offsets[part] - offset;
        out[part] = at < 0 ? 0 : at > extent ? extent : at;
    }
}

typedef struct making {
    const tutti_ops_call *call;
    const tutti_ops_choice *choices;
    letter_cuts letters[TUTTI_OPS_FACTORS];
    int64_t *free; /* unused memory for cuts */
} making;

/* input -1: the output */
static void make_operand(making *m, const tutti_ops_dims *dims, int input, tutti_ops_layout *out) {
    const tutti_ops_call *call = m->call;
    const tutti_layout *first = tutti_ops_input(call, 0), *own = input >= 0 ? tutti_ops_input(call, input) : first;
    const char *name = call->options != NULL && call->options->name != NULL ? call->options->name : call->row->name;
    out->view = TUTTI_LAYOUT(.placement = first->placement, .sbp = out->sbp,
                             .type = input >= 0 ? own->type : call->type, .ndims = dims->ndims, .shape = out->shape,
                             .rule = first->rule, .cuts = out->cuts, .name = input >= 0 ? own->name : name);
    for (int axis = 0; axis < tutti_placement_axes(first->placement); axis++)
        out->sbp[axis] = size_of(first, axis) > 1 ? sbp_of(call, &m->choices[axis], dims, input) : TUTTI_BROADCAST;
    for (int d = 0; d < dims->ndims; d++) {
        out->shape[d] = dims->shape[d];
        out->cuts[d] = NULL;
        if (dims->factor[d] < 0) continue;
        const letter_cuts *letter = &m->letters[dims->factor[d]];
        if (letter->offsets == NULL) continue;
        out->cuts[d] = letter->offsets;
        if (dims->offset[d] == 0 && dims->shape[d] == call->rule.extents[dims->factor[d]]) continue;
        clip_cuts(letter, dims->offset[d], dims->shape[d], m->free);
        out->cuts[d] = m->free;
        m->free += letter->nparts + 1;
    }
}

static int count_parts(making *m) {
    const tutti_ops_rule *rule = &m->call->rule;
    const tutti_layout *first = tutti_ops_input(m->call, 0);
    int offsets = 0;
    for (int f = 0; f < rule->nfactors; f++) {
        letter_cuts *letter = &m->letters[f];
        letter->nparts = 1;
        for (int axis = 0; axis < tutti_placement_axes(first->placement); axis++) {
            if (m->choices[axis].way != TUTTI_OPS_FACTOR || m->choices[axis].factor != f || size_of(first, axis) == 1)
                continue;
            letter->axes |= 1u << axis;
            letter->nparts *= size_of(first, axis);
        }
        if (letter->axes != 0) offsets += letter->nparts + 1;
    }
    return offsets;
}

static double points_of(const making *m) {
    const tutti_ops_rule *rule = &m->call->rule;
    double points = 1;
    for (int f = 0; f < rule->nfactors; f++) {
        const letter_cuts *letter = &m->letters[f];
        int64_t most = letter->offsets == NULL ? rule->extents[f] : 0;
        for (int part = 0; letter->offsets != NULL && part < letter->nparts; part++)
            if (letter->offsets[part + 1] - letter->offsets[part] > most)
                most = letter->offsets[part + 1] - letter->offsets[part];
        points *= (double)most;
    }
    return points;
}

tutti_status tutti_ops_signature_make(const tutti_ops_call *call, const tutti_ops_choice *choices,
                                      tutti_ops_signature *signature_out) {
    const tutti_ops_rule *rule = &call->rule;
    making m = {.call = call, .choices = choices};
    int offsets = count_parts(&m);
    int64_t *memory = calloc((size_t)(offsets * (call->ninputs + 2)) + 1, sizeof *memory);
    if (memory == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for the cuts of its operands", call->row->name);
    m.free = memory;
    for (int f = 0; f < rule->nfactors; f++) {
        letter_cuts *letter = &m.letters[f];
        if (letter->axes == 0) continue;
        letter->offsets = find_cuts(call, f, letter->axes);
        if (letter->offsets != NULL) continue;
        cut_by_rule(tutti_ops_input(call, 0), letter->axes, rule->extents[f], m.free);
        letter->offsets = m.free;
        m.free += letter->nparts + 1;
    }
    for (int i = 0; i < call->ninputs; i++) make_operand(&m, &rule->inputs[i], i, &signature_out->inputs[i]);
    make_operand(&m, &rule->output, -1, &signature_out->output);
    signature_out->points = points_of(&m);
    signature_out->cuts = memory;
    return TUTTI_OK;
}

void tutti_ops_signature_free(tutti_ops_signature *signature) {
    free(signature->cuts);
    signature->cuts = NULL;
}

/* ------------------------------------------------------------------------------------------------ equality */

bool tutti_ops_layouts_are_equal(const tutti_layout *a, const tutti_layout *b) {
    if (!tutti_placement_is_equal(a->placement, b->placement) || a->type != b->type || a->ndims != b->ndims)
        return false;
    for (int d = 0; d < a->ndims; d++)
        if (a->shape[d] != b->shape[d]) return false;
    int nparts[TUTTI_MOST_DIMS];
    for (int d = 0; d < a->ndims; d++) nparts[d] = 1;
    for (int axis = 0; axis < tutti_placement_axes(a->placement); axis++) {
        tutti_sbp x = a->sbp != NULL ? a->sbp[axis] : TUTTI_BROADCAST,
                  y = b->sbp != NULL ? b->sbp[axis] : TUTTI_BROADCAST;
        if (size_of(a, axis) == 1) continue;
        if (x.kind != y.kind || (x.kind == TUTTI_SBP_PARTIAL && x.reduction != y.reduction) ||
            (x.kind == TUTTI_SBP_SPLIT && x.dim != y.dim))
            return false;
        if (x.kind == TUTTI_SBP_SPLIT) nparts[x.dim] *= size_of(a, axis);
    }
    for (int d = 0; d < a->ndims; d++) {
        if (nparts[d] == 1) continue;
        if (a->cuts == NULL || b->cuts == NULL || a->cuts[d] == NULL || b->cuts[d] == NULL ||
            memcmp(a->cuts[d], b->cuts[d], ((size_t)nparts[d] + 1) * sizeof *a->cuts[d]) != 0)
            return false;
    }
    return true;
}
