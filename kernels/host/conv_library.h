/*
 * Convolutions by oneDNN, where the build has found it: on images as they are, with kernels that it generates for the processor.
 *
 * Each function says whether it has done its work. False: the build has no oneDNN, or this one has nothing quick for the
 * shape or the processor; the caller goes on with its own (conv.c).
 */
#ifndef TUTTI_KERNELS_HOST_CONV_LIBRARY_H
#define TUTTI_KERNELS_HOST_CONV_LIBRARY_H

#include "kernels/layers.h"

/* Elements of scratch that forward and backward of such a batch need; 0: they will not be carried out. */
size_t tutti_conv_library_scratch_count(const tutti_conv *conv, int batch);

/* Backward includes bias and ReLU. */
bool tutti_conv_library_forward(const tutti_conv *conv, const tutti_conv_forward_args *args);
bool tutti_conv_library_backward(const tutti_conv *conv, const tutti_conv_backward_args *args);

/* For tests and benches: whether it is used from now on. */
void tutti_conv_library_use(bool use);

#endif
