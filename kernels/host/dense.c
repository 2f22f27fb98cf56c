/*
 * Dense layer: three matrix products.
 */
#include "kernels/layers.h"

#include <string.h>

#include "kernels/gemm.h"

void tutti_dense_forward(const tutti_dense *dense, const tutti_dense_forward_args *args) {
    tutti_gemm(false, false, args->batch, dense->outputs, dense->inputs, 1, args->x, args->weight, 0, args->y);
    tutti_bias_forward((size_t)args->batch, (size_t)dense->outputs, dense->relu, args->bias, args->y);
}

void tutti_dense_backward(const tutti_dense *dense, const tutti_dense_backward_args *args) {
    int inputs = dense->inputs, outputs = dense->outputs;
    memset(args->dbias, 0, (size_t)outputs * sizeof *args->dbias);
    tutti_bias_backward((size_t)args->batch, (size_t)outputs, dense->relu, args->y, args->dy, args->dbias);
    tutti_gemm(true, false, inputs, outputs, args->batch, 1, args->x, args->dy, 0, args->dweight);
    if (args->dx != NULL) tutti_gemm(false, true, args->batch, inputs, outputs, 1, args->dy, args->weight, 0, args->dx);
}
