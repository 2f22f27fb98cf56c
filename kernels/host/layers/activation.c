/*
 * Bias, ReLU and dropout.
 *
 * Selections are written as conditional expressions without branches, which compilers turn into vector code.
 */
#include "kernels/layers.h"

#include <math.h>

#include "kernels/host/float_bits.h"
#include "kernels/random.h"

TUTTI_VECTOR_CLONES
void tutti_bias_forward(size_t rows, size_t channels, bool relu, const tutti_real *restrict bias,
                        tutti_real *restrict y) {
    for (size_t row = 0; row < rows; row++, y += channels) {
        if (relu)
            for (size_t c = 0; c < channels; c++) {
                tutti_real value = y[c] + bias[c];
                y[c] = value < 0 ? 0 : value;
            }
        else
            for (size_t c = 0; c < channels; c++) y[c] += bias[c];
    }
}

TUTTI_VECTOR_CLONES
void tutti_bias_backward(size_t rows, size_t channels, bool relu, const tutti_real *restrict y, tutti_real *restrict dy,
                         tutti_real *restrict dbias) {
    for (size_t row = 0; row < rows; row++, y += channels, dy += channels) {
        if (relu)
            for (size_t c = 0; c < channels; c++) {
                tutti_real value = dy[c];
                value = y[c] == 0 ? 0 : value;
                dy[c] = value;
                dbias[c] += value;
            }
        else
            for (size_t c = 0; c < channels; c++) dbias[c] += dy[c];
    }
}

TUTTI_VECTOR_CLONES
void tutti_relu_forward(size_t count, const tutti_real *x, tutti_real *y) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) {
        tutti_real value = x[i];
        y[i] = value < 0 ? 0 : value;
    }
}

TUTTI_VECTOR_CLONES
void tutti_relu_backward(size_t count, const tutti_real *y, const tutti_real *dy, tutti_real *dx) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) {
        tutti_real value = dy[i];
        dx[i] = y[i] == 0 ? 0 : value;
    }
}

TUTTI_VECTOR_CLONES
void tutti_add_forward(size_t count, bool relu, const tutti_real *a, const tutti_real *b, tutti_real *y) {
    if (relu) {
        REDUCE_SAME_INDEX_ONLY
        for (size_t i = 0; i < count; i++) {
            tutti_real value = a[i] + b[i];
            y[i] = value < 0 ? 0 : value;
        }
        return;
    }
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) y[i] = a[i] + b[i];
}

void tutti_dropout_apply(const tutti_dropout *dropout, size_t count, const tutti_real *src, tutti_real *dst) {
    uint32_t threshold = (uint32_t)ldexp(dropout->rate, 32); /* words below it drop their element */
    tutti_real factor = (tutti_real)(1 / (1 - dropout->rate));
    uint64_t element = dropout->first_element;
    for (size_t i = 0; i < count;) {
        uint32_t words[4]; /* block b decides on elements 4b ... 4b + 3 */
        tutti_random_block(dropout->seed, dropout->stream, element / 4, words);
        for (size_t lane = element % 4; lane < 4 && i < count; lane++, i++, element++)
            dst[i] = words[lane] < threshold ? 0 : src[i] * factor;
    }
}
