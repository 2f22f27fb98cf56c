/*
 * Elementwise operations with two operands and broadcasting.
 *
 * Dimensions are dropped and merged until the last two are a panel [rows, columns] of each operand. A panel is
 * processed in pieces: whole rows that fit into a block, or parts of one row. An operand that is dense in a piece is
 * read in place; any other is first copied to a block as dense elements. A block that all pieces share (a bias row,
 * a number) is filled once.
 */
#include <string.h>

#include "kernels/host/operators/op_parts.h"

/* The loops over a and b; strides are in elements. */
typedef struct loops {
    int ndims;
    size_t shape[TUTTI_KERNEL_MOST_DIMS + 2];
    ptrdiff_t strides[2][TUTTI_KERNEL_MOST_DIMS + 2];
} loops;

/* Returns false if there are no elements. Makes at least two dimensions. */
static bool make_loops(const tutti_kernel_binary_args *args, loops *l) {
    const int64_t *strides[2] = {args->a_strides, args->b_strides};
    l->ndims = 0;
    for (int d = 0; d < args->ndims; d++) {
        if (args->shape[d] == 0) return false;
        if (args->shape[d] == 1) continue;
        int last = l->ndims - 1, merges = last >= 0;
        for (int k = 0; k < 2 && merges; k++) merges = l->strides[k][last] == strides[k][d] * args->shape[d];
        int at = merges ? last : l->ndims++;
        l->shape[at] = (merges ? l->shape[at] : 1) * (size_t)args->shape[d];
        for (int k = 0; k < 2; k++) l->strides[k][at] = (ptrdiff_t)strides[k][d];
    }
    int missing = l->ndims < 2 ? 2 - l->ndims : 0; /* dimensions of one element in front */
    for (int d = l->ndims - 1; d >= 0 && missing > 0; d--) {
        l->shape[d + missing] = l->shape[d];
        for (int k = 0; k < 2; k++) l->strides[k][d + missing] = l->strides[k][d];
    }
    for (int d = 0; d < missing; d++) {
        l->shape[d] = 1;
        for (int k = 0; k < 2; k++) l->strides[k][d] = 0;
    }
    l->ndims += missing;
    return true;
}

#define SPREAD(element)                                                                                                \
    {                                                                                                                  \
        const element *row_from = (const void *)from;                                                                  \
        element *row_to = (void *)to;                                                                                  \
        for (size_t row = 0; row < rows; row++, row_from += row_stride, row_to += columns) {                           \
            const element first = row_from[0];                                                                         \
            if (stride == 0)                                                                                           \
                for (size_t column = 0; column < columns; column++) row_to[column] = first;                            \
            else if (stride == 1) memcpy(row_to, row_from, columns * sizeof(element));                                 \
            else                                                                                                       \
                for (size_t column = 0; column < columns; column++)                                                    \
                    row_to[column] = row_from[(ptrdiff_t)column * stride];                                             \
        }                                                                                                              \
    }

static void spread(size_t element_bytes, size_t rows, size_t columns, ptrdiff_t row_stride, ptrdiff_t stride,
                   const unsigned char *from, unsigned char *to) {
    switch (element_bytes) {
    case 1: SPREAD(uint8_t) break;
    case 2: SPREAD(uint16_t) break;
    case 4: SPREAD(uint32_t) break;
    default: SPREAD(uint64_t)
    }
}

/* An operand in one panel. */
typedef struct operand {
    const unsigned char *panel;
    ptrdiff_t row_stride, stride;
    bool dense;       /* the rows of a piece lie one after the other */
    bool same_pieces; /* all pieces are the same, so the block is filled once for all */
    bool filled;
    op_block block;
} operand;

typedef struct work {
    tutti_type type;
    size_t element_bytes;
    tutti_kernel_binary_step step;
    operand operands[2];
} work;

/* Returns the operand's `rows` x `columns` elements of a piece as a dense array. */
static const unsigned char *operand_piece(operand *o, size_t element_bytes, size_t row, size_t column, size_t rows,
                                          size_t columns) {
    const unsigned char *first =
        o->panel + ((ptrdiff_t)row * o->row_stride + (ptrdiff_t)column * o->stride) * (ptrdiff_t)element_bytes;
    if (o->dense) return first;
    if (!o->filled) spread(element_bytes, rows, columns, o->row_stride, o->stride, first, o->block.bytes);
    o->filled = o->same_pieces;
    return o->block.bytes;
}

static void run_piece(work *w, size_t count, const void *a, const void *b, void *y) {
    if (!op_is_small(w->type)) {
        w->step(count, a, b, y);
        return;
    }
    op_block wide[2];
    op_widen(w->type, count, a, wide[0].floats);
    op_widen(w->type, count, b, wide[1].floats);
    w->step(count, wide[0].floats, wide[1].floats, wide[0].floats);
    op_narrow(w->type, count, wide[0].floats, y);
}

static void run_panel(work *w, size_t rows, size_t columns, unsigned char *y) {
    const bool all_dense = w->operands[0].stride == 1 && w->operands[1].stride == 1 && !op_is_small(w->type);
    const size_t row_step = columns < OP_BLOCK ? op_least(OP_BLOCK / columns, rows) : 1;
    /* Long rows need no pieces where nothing is converted or spread. */
    const size_t column_step = all_dense && row_step == 1 ? columns : op_least(columns, OP_BLOCK);
    for (int k = 0; k < 2; k++) {
        operand *o = &w->operands[k];
        o->dense = o->stride == 1 && (row_step == 1 || o->row_stride == (ptrdiff_t)columns);
        o->same_pieces = o->row_stride == 0 && (o->stride == 0 || column_step == columns);
        o->filled = false;
    }
    for (size_t row = 0; row < rows; row += row_step) {
        const size_t rows_now = op_least(row_step, rows - row);
        for (size_t column = 0; column < columns; column += column_step) {
            const size_t columns_now = op_least(column_step, columns - column), count = rows_now * columns_now;
            const unsigned char *pieces[2];
            for (int k = 0; k < 2; k++)
                pieces[k] = operand_piece(&w->operands[k], w->element_bytes, row, column, rows_now, columns_now);
            run_piece(w, count, pieces[0], pieces[1], y);
            y += count * w->element_bytes;
        }
    }
}

void tutti_kernel_binary(tutti_kernel_binary_kind kind, const tutti_kernel_binary_args *args) {
    loops l;
    if (!make_loops(args, &l)) return;
    work w = {.type = args->type,
              .element_bytes = op_bytes(args->type),
              .step = tutti_kernel_binary_steps[kind][op_wide_type(args->type)]};
    const unsigned char *bases[2] = {args->a, args->b};
    unsigned char *y = args->y;
    const int outer = l.ndims - 2;
    const size_t rows = l.shape[outer], columns = l.shape[outer + 1];
    size_t index[TUTTI_KERNEL_MOST_DIMS] = {0};
    for (int d = 0; d >= 0;) {
        for (int k = 0; k < 2; k++) {
            ptrdiff_t at = 0;
            for (int i = 0; i < outer; i++) at += (ptrdiff_t)index[i] * l.strides[k][i];
            w.operands[k].panel = bases[k] + at * (ptrdiff_t)w.element_bytes;
            w.operands[k].row_stride = l.strides[k][outer];
            w.operands[k].stride = l.strides[k][outer + 1];
        }
        run_panel(&w, rows, columns, y);
        y += rows * columns * w.element_bytes;
        for (d = outer - 1; d >= 0 && ++index[d] == l.shape[d]; d--) index[d] = 0;
    }
}
