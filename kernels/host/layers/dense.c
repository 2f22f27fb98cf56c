/*
 * Dense layer: three matrix products.
 */
#include "kernels/layers.h"

#include <string.h>

#include "kernels/gemm.h"

void tutti_dense_forward(const tutti_dense *dense, const tutti_dense_forward_args *args) {
    tutti_gemm(false, false, args->batch, dense->outputs, dense->inputs, 1, args->x, args->weight, 0, args->y);
    const size_t rows = (size_t)args->batch, outputs = (size_t)dense->outputs;
    if (args->bias != NULL) tutti_bias_forward(rows, outputs, dense->relu, args->bias, args->y);
    else if (dense->relu) tutti_relu_forward(rows * outputs, args->y, args->y);
}

void tutti_dense_backward(const tutti_dense *dense, const tutti_dense_backward_args *args) {
    int inputs = dense->inputs, outputs = dense->outputs;
    const size_t rows = (size_t)args->batch, columns = (size_t)outputs;
    if (args->dbias != NULL) {
        memset(args->dbias, 0, columns * sizeof *args->dbias);
        tutti_bias_backward(rows, columns, dense->relu, args->y, args->dy, args->dbias);
    } else if (dense->relu) {
        tutti_relu_backward(rows * columns, args->y, args->dy, args->dy);
    }
    tutti_gemm(true, false, inputs, outputs, args->batch, 1, args->x, args->dy, 0, args->dweight);
    if (args->dx != NULL) tutti_gemm(false, true, args->batch, inputs, outputs, 1, args->dy, args->weight, 0, args->dx);
}
