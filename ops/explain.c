/*
 * Describes how the calling thread's last operator was computed: keeps the raw facts, and writes the text on
 * request.
 */
#include <stdio.h>
#include <string.h>

#include "ops/call.h"

enum { TEXT_BYTES = 600, NAME_BYTES = 41, SHOWN_INPUTS = 5 };

typedef struct conversion {
    char name[NAME_BYTES];
    tutti_sbp before[TUTTI_MOST_AXES], after[TUTTI_MOST_AXES];
} conversion;

typedef struct note {
    const char *row; /* NULL: no operator yet */
    char rule[TUTTI_OPS_RULE_TEXT], letters[TUTTI_OPS_FACTORS];
    unsigned sums;
    int naxes, nconversions;
    tutti_ops_choice choices[TUTTI_MOST_AXES];
    conversion conversions[SHOWN_INPUTS];
} note;

static _Thread_local note last;
static _Thread_local char text[TEXT_BYTES];

void tutti_ops_note(const tutti_ops_call *call, const tutti_ops_choice *choices, const tutti_ops_signature *signature) {
    const tutti_ops_rule *rule = &call->rule;
    last.row = call->row->name;
    strcpy(last.rule, rule->text);
    memcpy(last.letters, rule->letters, sizeof last.letters);
    last.sums = rule->sums;
    last.naxes = tutti_placement_axes(tutti_ops_input(call, 0)->placement);
    memcpy(last.choices, choices, (size_t)last.naxes * sizeof *choices);
    last.nconversions = 0;
    for (int i = 0; i < call->ninputs && last.nconversions < SHOWN_INPUTS; i++) {
        const tutti_layout *from = tutti_ops_input(call, i), *to = &signature->inputs[i].view;
        if (tutti_ops_layouts_are_equal(from, to)) continue;
        conversion *c = &last.conversions[last.nconversions++];
        snprintf(c->name, sizeof c->name, "%s", from->name);
        memcpy(c->before, from->sbp, (size_t)last.naxes * sizeof *c->before);
        memcpy(c->after, to->sbp, (size_t)last.naxes * sizeof *c->after);
    }
}

static size_t write_choice(int axis, size_t used) {
    const tutti_ops_choice *choice = &last.choices[axis];
    char *at = text + used;
    size_t room = sizeof text - used;
    int length = 0;
    if (choice->way == TUTTI_OPS_BROADCAST) length = snprintf(at, room, "axis %d broadcasts", axis);
    else if (choice->way == TUTTI_OPS_PASS)
        length = snprintf(at, room, "axis %d keeps partial(%s)", axis, tutti_reduction_name(choice->reduction));
    else
        length =
            snprintf(at, room, "axis %d %s %c", axis, (last.sums >> choice->factor & 1) != 0 ? "sums over" : "splits",
                     last.letters[choice->factor]);
    return (size_t)length < room ? (size_t)length : room - 1;
}

const char *tutti_op_explain(void) {
    if (last.row == NULL) return "";
    size_t used = (size_t)snprintf(text, sizeof text, "%s %s: ", last.row, last.rule);
    for (int axis = 0; axis < last.naxes; axis++) {
        if (axis > 0 && used < sizeof text - 3) used += (size_t)sprintf(text + used, ", ");
        used += write_choice(axis, used);
    }
    for (int i = 0; i < last.nconversions && used < sizeof text - 150; i++) {
        char before[64], after[64];
        tutti_sbp_format(last.conversions[i].before, last.naxes, before, 50);
        tutti_sbp_format(last.conversions[i].after, last.naxes, after, 50);
        used += (size_t)snprintf(text + used, sizeof text - used, "; '%s' %s -> %s", last.conversions[i].name, before,
                                 after);
    }
    return text;
}
