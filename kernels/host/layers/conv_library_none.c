/*
 * A build without oneDNN.
 */
#include "kernels/host/layers/conv_library.h"

size_t tutti_conv_library_scratch_count(const tutti_conv *conv, int batch) {
    (void)conv, (void)batch;
    return 0;
}

bool tutti_conv_library_forward(const tutti_conv *conv, const tutti_conv_forward_args *args) {
    (void)conv, (void)args;
    return false;
}

bool tutti_conv_library_backward(const tutti_conv *conv, const tutti_conv_backward_args *args) {
    (void)conv, (void)args;
    return false;
}

void tutti_conv_library_use(bool use) {
    (void)use;
}
