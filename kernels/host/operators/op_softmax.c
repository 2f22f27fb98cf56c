/*
 * Softmax, and softmax cross-entropy in parts, for ranks that each have some of the classes and reduce the results
 * between the parts. The largest element is subtracted first, so that no exponential overflows; sums are kept in
 * float64.
 *
 * Rows go through all passes while they are in the first-level cache.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/real.h"

#define SHORT 32 /* rows with fewer elements are not worth a call each */

static const tutti_kernel_loops *loops_f32(void) {
    return &tutti_vector_in_use()->f32;
}

static const tutti_kernel_loops *loops_f64(void) {
    return &tutti_vector_in_use()->f64;
}

/* Returns the number of rows that have OP_BLOCK elements or fewer; at least 1, at most OP_BLOCK. */
static size_t rows_at_once(size_t classes) {
    return classes == 0 ? OP_BLOCK : classes > OP_BLOCK ? 1 : OP_BLOCK / classes;
}

static int64_t label_of(const tutti_kernel_labels *labels, size_t row) {
    return labels->type == TUTTI_INT32 ? ((const int32_t *)labels->values)[row]
                                       : ((const int64_t *)labels->values)[row];
}

static bool is_label(const tutti_kernel_labels *labels, size_t row) {
    const int64_t label = label_of(labels, row);
    return label >= 0 && label < labels->classes;
}

/* Returns the label's column, or `classes` if this rank does not have it. */
static size_t column_of(const tutti_kernel_labels *labels, size_t row, size_t classes) {
    if (!is_label(labels, row)) return classes;
    const int64_t column = label_of(labels, row) - labels->first;
    return column >= 0 && (uint64_t)column < classes ? (size_t)column : classes;
}

#define OP_TEMPLATE "kernels/host/operators/op_softmax_real.h"
#include "kernels/host/operators/op_both_reals.h"

void tutti_kernel_softmax(tutti_type type, size_t rows, size_t classes, const void *x, void *y) {
    if (classes == 0) return;
    if (type == TUTTI_FLOAT32) softmax_f32(rows, classes, x, y);
    else softmax_f64(rows, classes, x, y);
}

void tutti_kernel_softmax_backward(tutti_type type, size_t rows, size_t classes, const void *y, const void *dy,
                                   void *dx) {
    if (classes == 0) return;
    if (type == TUTTI_FLOAT32) softmax_backward_f32(rows, classes, y, dy, dx);
    else softmax_backward_f64(rows, classes, y, dy, dx);
}

void tutti_kernel_exp_sums(tutti_type type, size_t rows, size_t classes, const void *x, const void *max, void *sums) {
    if (type == TUTTI_FLOAT32) exp_sums_f32(rows, classes, x, max, sums);
    else exp_sums_f64(rows, classes, x, max, sums);
}

void tutti_kernel_label_logits(tutti_type type, size_t rows, size_t classes, const void *x,
                               const tutti_kernel_labels *labels, void *logits) {
    if (type == TUTTI_FLOAT32) label_logits_f32(rows, classes, x, labels, logits);
    else label_logits_f64(rows, classes, x, labels, logits);
}

void tutti_kernel_cross_entropy_losses(tutti_type type, size_t rows, const void *max, const void *sums,
                                       const void *logits, const tutti_kernel_labels *labels, void *losses) {
    if (type == TUTTI_FLOAT32) losses_f32(rows, max, sums, logits, labels, losses);
    else losses_f64(rows, max, sums, logits, labels, losses);
}

/* Handles some rows at a time, so that they are in a cache when their exponentials are added up. */
void tutti_kernel_cross_entropy(tutti_type type, size_t rows, size_t classes, const void *x,
                                const tutti_kernel_labels *labels, void *max, void *sums, void *losses) {
    const size_t bytes = op_bytes(type), step = rows_at_once(classes), label_bytes = op_bytes(labels->type);
    for (size_t first = 0; first < rows; first += step) {
        const size_t now = op_least(step, rows - first);
        const unsigned char *part = (const unsigned char *)x + first * classes * bytes;
        unsigned char *some_max = (unsigned char *)max + first * bytes,
                      *some_sums = (unsigned char *)sums + first * bytes;
        unsigned char *some_losses = (unsigned char *)losses + first * bytes;
        tutti_kernel_labels some = *labels;
        some.values = (const unsigned char *)labels->values + first * label_bytes;
        double logits[OP_BLOCK];
        if (type == TUTTI_FLOAT32) reduce_rows_f32(TUTTI_MAX, now, classes, (const void *)part, (void *)some_max);
        else reduce_rows_f64(TUTTI_MAX, now, classes, (const void *)part, (void *)some_max);
        tutti_kernel_exp_sums(type, now, classes, part, some_max, some_sums);
        tutti_kernel_label_logits(type, now, classes, part, &some, logits);
        tutti_kernel_cross_entropy_losses(type, now, some_max, some_sums, logits, &some, some_losses);
    }
}

void tutti_kernel_cross_entropy_backward(tutti_type type, size_t rows, size_t classes, const void *x,
                                         const tutti_kernel_labels *labels, const void *max, const void *sums,
                                         const void *dlosses, void *dx) {
    if (classes == 0) return;
    if (type == TUTTI_FLOAT32) loss_backward_f32(rows, classes, x, labels, max, sums, dlosses, dx);
    else loss_backward_f64(rows, classes, x, labels, max, sums, dlosses, dx);
}
