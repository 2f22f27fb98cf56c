/*
 * Arguments of operators: checks, and the extents of letters. Errors are derived from facts that are equal on all
 * ranks.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ops/call.h"

/* ------------------------------------------------------------------------------------------------ errors */

/* "'x' float32[4,5] S0" */
static size_t write_input(const tutti_ops_call *call, int input, char *text, size_t bytes) {
    const tutti_layout *layout = tutti_ops_input(call, input);
    char sbp[64], shape[96] = "";
    size_t used = 0;
    tutti_sbp_format(layout->sbp, tutti_placement_axes(layout->placement), sbp, sizeof sbp);
    for (int d = 0; d < layout->ndims && used < sizeof shape - 24; d++)
        used +=
            (size_t)snprintf(shape + used, sizeof shape - used, d > 0 ? ",%lld" : "%lld", (long long)layout->shape[d]);
    int length = snprintf(text, bytes, "'%.40s' %s[%s] %s", layout->name, tutti_type_name(layout->type), shape, sbp);
    return length < 0 ? 0 : (size_t)length < bytes ? (size_t)length : bytes - 1;
}

tutti_status tutti_ops_fail(const tutti_ops_call *call, const char *format, ...) {
    enum { SHOWN = 3 };
    char inputs[500] = "", problem[300];
    size_t used = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    for (int i = 0; i < call->ninputs && i < SHOWN; i++) {
        if (call->inputs[i] == NULL) continue;
        if (used > 0) used += (size_t)snprintf(inputs + used, sizeof inputs - used, ", ");
        used += write_input(call, i, inputs + used, sizeof inputs - used);
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s of %s%s: %s", call->row->name, inputs,
                      call->ninputs > SHOWN ? ", ..." : "", problem);
}

/* ------------------------------------------------------------------------------------------------ checks */

bool tutti_ops_is_float(tutti_type type) {
    return type == TUTTI_FLOAT32 || type == TUTTI_FLOAT64;
}

/* CBLAS uses int for extents. */
tutti_status tutti_ops_check_extents(const tutti_ops_call *call) {
    for (int i = 0; i < call->ninputs; i++) {
        const tutti_layout *layout = tutti_ops_input(call, i);
        for (int d = 0; d < layout->ndims; d++)
            if (layout->shape[d] > INT32_MAX)
                return tutti_ops_fail(call, "dimension %d of '%.40s' is %lld; matrix products take less than 2^31", d,
                                      layout->name, (long long)layout->shape[d]);
    }
    return TUTTI_OK;
}

tutti_status tutti_ops_check_float(const tutti_ops_call *call) {
    tutti_type type = tutti_ops_input(call, 0)->type;
    if (tutti_ops_is_float(type)) return TUTTI_OK;
    return tutti_ops_fail(call, "it supports only float32 and float64, not %s; tutti_op_cast changes types",
                          tutti_type_name(type));
}

tutti_status tutti_ops_check_inputs(const tutti_ops_call *call) {
    for (int i = 0; i < call->ninputs; i++)
        if (call->inputs[i] == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: input %d is NULL", call->row->name, i);
    const tutti_layout *first = tutti_ops_input(call, 0);
    for (int i = 1; i < call->ninputs; i++) {
        const tutti_layout *other = tutti_ops_input(call, i);
        if (!tutti_placement_is_equal(first->placement, other->placement))
            return tutti_ops_fail(
                call, "'%.40s' lies on another placement than '%.40s'; tutti_tensor_to_global moves it there",
                other->name, first->name);
        if (other->type != first->type && !call->row->mixes_types)
            return tutti_ops_fail(call, "the types differ; tutti_op_cast changes one");
    }
    if (call->options != NULL && call->options->options != NULL && call->options->options->work != NULL)
        return tutti_ops_fail(call, "operators return no works: options.work must be NULL");
    const tutti_operators *kernels;
    return tutti_ops_find_kernels(call->row->name, first->placement, &kernels);
}

/* ------------------------------------------------------------------------------------------------ extents */

void tutti_ops_set_extent(tutti_ops_call *call, char letter, int64_t extent) {
    int factor = tutti_ops_rule_find(&call->rule, letter);
    if (factor >= 0) call->rule.extents[factor] = extent;
}

static tutti_status check_ndims(const tutti_ops_call *call) {
    for (int i = 0; i < call->ninputs && i < call->rule.ninputs; i++) {
        const tutti_layout *layout = tutti_ops_input(call, i);
        if (layout->ndims != call->rule.inputs[i].ndims)
            return tutti_ops_fail(call, "'%.40s' has %d dimensions, and must have %d: the rule is %s", layout->name,
                                  layout->ndims, call->rule.inputs[i].ndims, call->rule.text);
    }
    return TUTTI_OK;
}

static tutti_status read_extents(tutti_ops_call *call, int input) {
    tutti_ops_rule *rule = &call->rule;
    tutti_ops_dims *dims = &rule->inputs[input];
    const tutti_layout *layout = tutti_ops_input(call, input);
    for (int d = 0; d < dims->ndims; d++) {
        int factor = dims->factor[d];
        int64_t is = layout->shape[d], should = factor < 0 ? dims->shape[d] : rule->extents[factor];
        dims->shape[d] = is;
        if (factor >= 0 && should < 0) rule->extents[factor] = is;
        else if (factor >= 0 && call->row->ranges && dims->offset[d] >= 0 && dims->offset[d] + is <= should) continue;
        else if (factor < 0 && is != should)
            return tutti_ops_fail(call, "dimension %d of '%.40s' is %lld, and must be %lld", d, layout->name,
                                  (long long)is, (long long)should);
        else if (is != should)
            return tutti_ops_fail(call, "dimension %d of '%.40s' is %lld, and must be %lld, as %c of %s is elsewhere",
                                  d, layout->name, (long long)is, (long long)should, rule->letters[factor], rule->text);
    }
    return TUTTI_OK;
}

tutti_status tutti_ops_place_elementwise(tutti_ops_call *call) {
    char text[TUTTI_OPS_RULE_TEXT];
    size_t used = 0;
    int ndims = 0;
    for (int i = 0; i < call->ninputs; i++)
        if (tutti_ops_input(call, i)->ndims > ndims) ndims = tutti_ops_input(call, i)->ndims;
    int64_t extents[TUTTI_MOST_DIMS];
    for (int d = 0; d < ndims; d++) {
        extents[d] = 1;
        for (int i = 0; i < call->ninputs; i++) {
            const tutti_layout *layout = tutti_ops_input(call, i);
            int own = d - (ndims - layout->ndims);
            if (own >= 0 && layout->shape[own] != 1) extents[d] = layout->shape[own];
        }
    }
    for (int i = 0; i < call->ninputs; i++) {
        const tutti_layout *layout = tutti_ops_input(call, i);
        if (i > 0) text[used++] = ',';
        for (int own = 0; own < layout->ndims; own++) {
            int d = own + ndims - layout->ndims;
            if (layout->shape[own] != extents[d] && layout->shape[own] != 1)
                return tutti_ops_fail(
                    call, "the shapes do not broadcast: dimension %d of '%.40s' is %lld, of the result %lld", own,
                    layout->name, (long long)layout->shape[own], (long long)extents[d]);
            text[used++] = layout->shape[own] == extents[d] ? (char)('a' + d) : '1';
        }
    }
    text[used++] = '-';
    text[used++] = '>';
    for (int d = 0; d < ndims; d++) text[used++] = (char)('a' + d);
    text[used] = '\0';
    if (!tutti_ops_rule_read(text, NULL, NULL, &call->rule)) return tutti_ops_fail(call, "%s is not a rule", text);
    for (int d = 0; d < ndims; d++) tutti_ops_set_extent(call, (char)('a' + d), extents[d]);
    return TUTTI_OK;
}

tutti_status tutti_ops_read_form(tutti_ops_call *call, const char *form, int nleading, bool sums_leading,
                                 const char *sums, const char *whole) {
    char text[TUTTI_OPS_RULE_TEXT], leading[TUTTI_MOST_DIMS + 1], *at = text;
    for (int d = 0; d < nleading; d++) leading[d] = (char)('a' + d);
    leading[nleading] = '\0';
    for (; *form != '\0'; form++) {
        if (*form != '.') *at++ = *form;
        else at = stpcpy(at, leading);
    }
    *at = '\0';
    if (tutti_ops_rule_read(text, sums_leading ? leading : sums, whole, &call->rule)) return TUTTI_OK;
    return tutti_ops_fail(call, "%s is not a rule", text);
}

int64_t tutti_ops_rows(const tutti_ops_operand *operand) {
    int64_t rows = 1;
    for (int d = 0; d < operand->ndims - 1; d++) rows *= operand->shape[d];
    return rows;
}

/* ------------------------------------------------------------------------------------------------ all of it */

tutti_status tutti_ops_place(tutti_ops_call *call) {
    const tutti_ops_row *row = call->row;
    tutti_ops_rule *rule = &call->rule;
    TUTTI_TRY(tutti_ops_check_inputs(call));
    call->type = tutti_ops_input(call, 0)->type;
    if (row->rule != NULL && !tutti_ops_rule_read(row->rule, row->sums, row->whole, rule))
        return tutti_ops_fail(call, "%s is not a rule", row->rule);
    TUTTI_TRY(check_ndims(call));
    if (row->place != NULL) TUTTI_TRY(row->place(call));
    rule->reduction = row->reduction;
    if (rule->ninputs != call->ninputs)
        return tutti_ops_fail(call, "%d inputs, and the rule is %s", call->ninputs, rule->text);
    TUTTI_TRY(check_ndims(call));
    for (int i = 0; i < call->ninputs; i++) TUTTI_TRY(read_extents(call, i));
    for (int d = 0; d < rule->output.ndims; d++) {
        int factor = rule->output.factor[d];
        if (factor >= 0 && rule->output.shape[d] < 0) rule->output.shape[d] = rule->extents[factor];
    }
    return TUTTI_OK;
}
