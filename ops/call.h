/*
 * A call of an operator, from its arguments to its results.
 *
 *     arguments -> place (rule, shapes, checks) -> candidates per axis -> prices
 *               -> redistribute inputs -> run on the shards -> redistribute output
 *
 * An operator is a row: a rule, what is special about it, and a function that computes the shard of the output from
 * those of the inputs. tests/ops/test_ops_rows.c checks all properties of the rows: it compares each signature with
 * the result of one rank.
 */
#ifndef TUTTI_OPS_CALL_H
#define TUTTI_OPS_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/ops.h>

#include "kernels/operators.h"
#include "ops/rule.h"

typedef struct tutti_ops_call tutti_ops_call;

/* A shard, as kernels see it: dense, row-major, in the placement's memory; any extent may be 0, data is NULL then. */
typedef struct tutti_ops_operand {
    void *data;
    tutti_type type;
    int ndims;
    int64_t shape[TUTTI_MOST_DIMS], first[TUTTI_MOST_DIMS],
        whole[TUTTI_MOST_DIMS]; /* extents of the box; its first element; extents of the tensor */
    size_t count;
} tutti_ops_operand;

typedef struct tutti_ops_row {
    const char *name;
    const char *rule;          /* NULL: `place` creates it from the arguments */
    const char *sums, *whole;  /* lists of its letters */
    tutti_reduction reduction; /* reduction of `sums` */
    /* Groups of inputs, as bit masks: if the inputs of a group are partial(sum), or partial(avg), along an axis and
     * the others broadcast, the output is partial in the same way: it is linear in the group's inputs together. */
    unsigned linear[TUTTI_OPS_GROUPS];
    unsigned added; /* inputs that are added once to a sum: partial(sum) along an axis on which it is summed */
    bool moves;     /* only moves elements: if all inputs are partial in one way, so is the output, for any reduction */
    tutti_reduction keeps; /* with has_keeps: partial(keeps) of all inputs is passed on: max of maxima */
    bool has_keeps;
    bool mixes_types;    /* inputs may have different types */
    bool ranges;         /* dimensions may be parts of their letters' ranges */
    double ns_per_point; /* rough time of one combination of letters on one core */
    /* Checks what the letters do not express; writes rule, types and params as needed. NULL: nothing to do. */
    tutti_status (*place)(tutti_ops_call *call);
    tutti_status (*run)(const tutti_ops_call *call);
} tutti_ops_row;

typedef enum tutti_ops_way { TUTTI_OPS_BROADCAST = 0, TUTTI_OPS_FACTOR, TUTTI_OPS_PASS } tutti_ops_way;

/* How a call is computed along one axis. */
typedef struct tutti_ops_choice {
    tutti_ops_way way;
    int factor;                /* for TUTTI_OPS_FACTOR */
    unsigned partial;          /* for TUTTI_OPS_PASS: inputs that are partial; so is the output */
    tutti_reduction reduction; /* of `partial` */
} tutti_ops_choice;

struct tutti_ops_call {
    const tutti_ops_row *row;
    const void *params; /* meaning depends on the row */
    int ninputs;
    const tutti_tensor *inputs[TUTTI_OPS_INPUTS];
    const tutti_op_options *options; /* may be NULL */
    const tutti_layout *target;      /* wanted layout of the output; NULL: as in the options */
    const tutti_ops_choice *forced;  /* one for each axis; NULL: the cheapest */
    tutti_type type;                 /* of the output; by default that of the first input */
    tutti_ops_rule rule;
    bool not_linear; /* set by `place`: `linear` does not hold for these arguments */

    tutti_ops_operand in[TUTTI_OPS_INPUTS], out; /* for `run`, as are the next two */
    const tutti_operators *kernels;              /* of the placement's memory */
    void *stream;                                /* stream of the kernels; ignored by those of the host */
};

/* Used at the beginning of each operator that has a parameter `options`: copies options of another version's
 * size. */
#define TUTTI_TAKE_OP_OPTIONS(name)                                                                                    \
    tutti_op_options taken_options;                                                                                    \
    if (options != NULL && options->struct_bytes != sizeof *options) {                                                 \
        TUTTI_TRY(tutti_struct_take(name ": options", "TUTTI_OP_OPTIONS(...)", options, &taken_options,                \
                                    sizeof taken_options));                                                            \
        options = &taken_options;                                                                                      \
    }

/* The layout of an input. */
static inline const tutti_layout *tutti_ops_input(const tutti_ops_call *call, int input) {
    return tutti_tensor_layout(call->inputs[input]);
}

/* A call of that row; the caller then sets params, options and so on. */
#define TUTTI_OPS_CALL(row_, ...) ((tutti_ops_call){.row = (row_), __VA_ARGS__})

/* Collective. Fills in rule and operands, and makes the output. */
tutti_status tutti_ops_run(tutti_ops_call *call, tutti_tensor **output_out);

/* ---- place.c */

/* Checks what all operators require of inputs and options. */
tutti_status tutti_ops_check_inputs(const tutti_ops_call *call);
/* Checks inputs, reads the rule, finds the letters' extents. */
tutti_status tutti_ops_place(tutti_ops_call *call);
/* Writes the rule of an elementwise operator on inputs that broadcast: "ab,1b->ab". */
tutti_status tutti_ops_place_elementwise(tutti_ops_call *call);
/* Reads a rule for any number of leading dimensions: each '.' in `form` stands for their letters, a, b, ..., which are
 * summed, too, if `sums_leading`. */
tutti_status tutti_ops_read_form(tutti_ops_call *call, const char *form, int nleading, bool sums_leading,
                                 const char *sums, const char *whole);
/* "add: 'x' float32[4,5] and 'y' float32[4,6]": in front of an error. */
tutti_status tutti_ops_fail(const tutti_ops_call *call, const char *format, ...) TUTTI_PRINTF(2, 3);
/* Sets the extent of a letter that no input has. */
void tutti_ops_set_extent(tutti_ops_call *call, char letter, int64_t extent);
bool tutti_ops_is_float(tutti_type type); /* float32 or float64 */
tutti_status tutti_ops_check_float(const tutti_ops_call *call);
tutti_status tutti_ops_check_extents(const tutti_ops_call *call); /* of matrix products */

/* Number of elements in all dimensions but the last. */
int64_t tutti_ops_rows(const tutti_ops_operand *operand);

/* ---- memory.c: where operators compute, in which stream, and their temporary memory. */

/* The kernels for a placement's memory; NULL where this rank is not in it. `name`: name of the operator, for
 * errors. */
tutti_status tutti_ops_find_kernels(const char *name, const tutti_placement *placement,
                                    const tutti_operators **kernels_out);
/* Runs with the placement's GPU as the current one, and restores the thread's; host memory: runs at once. */
tutti_status tutti_ops_visit(const tutti_placement *placement, tutti_status (*run)(void *context), void *context);
/* Returns `options`, or, if it is NULL, options with the thread's stream (tutti_op_use_stream). */
const tutti_options *tutti_ops_collectives(const tutti_options *options);
/* Returns the options of an operator's collectives; `options` may be NULL. */
const tutti_options *tutti_ops_options(const tutti_op_options *options);

/* Memory for the duration of a call, in the memory of its kernels. Bytes 0: NULL. */
typedef struct tutti_ops_scratch {
    void *memory;
    tutti_tensor *tensor; /* owner of the memory, on a GPU */
} tutti_ops_scratch;
tutti_status tutti_ops_scratch_take(const tutti_ops_call *call, size_t bytes, tutti_ops_scratch *scratch_out);
void tutti_ops_scratch_give(const tutti_ops_call *call, tutti_ops_scratch *scratch);
/* Temporary tensors of a call. */
tutti_status tutti_ops_tensor_make(const tutti_layout *layout, const tutti_options *options, tutti_tensor **tensor_out);
void tutti_ops_tensor_end(tutti_tensor *tensor, const tutti_options *options); /* NULL is allowed */

/* ---- layouts.c: the layouts that a signature (a choice for each axis) gives the operands. */

typedef struct tutti_ops_layout {
    tutti_layout view; /* its pointers lead into this struct */
    tutti_sbp sbp[TUTTI_MOST_AXES];
    int64_t shape[TUTTI_MOST_DIMS];
    const int64_t *cuts[TUTTI_MOST_DIMS];
} tutti_ops_layout;

typedef struct tutti_ops_signature {
    tutti_ops_layout inputs[TUTTI_OPS_INPUTS], output;
    double points; /* combinations of letters that the busiest rank computes */
    void *cuts;    /* memory of the layouts' cuts */
} tutti_ops_signature;

/* True when the row can be computed in this way along an axis. */
bool tutti_ops_choice_is_valid(const tutti_ops_call *call, const tutti_ops_choice *choice);
/* Free it with tutti_ops_signature_free. */
tutti_status tutti_ops_signature_make(const tutti_ops_call *call, const tutti_ops_choice *choices,
                                      tutti_ops_signature *signature_out);
void tutti_ops_signature_free(tutti_ops_signature *signature);
/* True for the same boxes and partial axes, on placements that are equal. */
bool tutti_ops_layouts_are_equal(const tutti_layout *a, const tutti_layout *b);

/* ---- choose.c: the cheapest signature, the same on all ranks. */
tutti_status tutti_ops_choose(const tutti_ops_call *call, const tutti_layout *target, tutti_ops_choice *choices_out);

/* ---- explain.c */
void tutti_ops_note(const tutti_ops_call *call, const tutti_ops_choice *choices, const tutti_ops_signature *signature);

#endif
