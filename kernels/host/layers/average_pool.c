/*
 * Average-pooling as a layer, by the operator's loops (operators.h).
 */
#include "kernels/host/layers/rectangle.h"

#ifdef TUTTI_KERNELS_DOUBLE
#define REAL_TYPE TUTTI_FLOAT64
#else
#define REAL_TYPE TUTTI_FLOAT32
#endif

void tutti_average_pool_forward(const tutti_window *window, int batch, const tutti_real *x, tutti_real *y) {
    const tutti_kernel_window rectangle = rectangle_of(window, batch);
    tutti_kernel_average_pool_forward(REAL_TYPE, &rectangle, false, x, y);
}

void tutti_average_pool_backward(const tutti_window *window, int batch, const tutti_real *dy, tutti_real *dx) {
    const tutti_kernel_window rectangle = rectangle_of(window, batch);
    tutti_kernel_average_pool_backward(REAL_TYPE, &rectangle, false, dy, dx);
}
