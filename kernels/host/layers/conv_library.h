/*
 * Convolutions by oneDNN, if the build has found it: on images in the layout of layers.h, with kernels that oneDNN
 * generates for the processor.
 *
 * Each function returns true if it has done its work. It returns false if the build has no oneDNN, or if oneDNN has
 * no fast kernel for the shape or the processor; the caller then uses its own code (conv.c).
 */
#ifndef TUTTI_KERNELS_HOST_CONV_LIBRARY_H
#define TUTTI_KERNELS_HOST_CONV_LIBRARY_H

#include "kernels/layers.h"

/* Returns the elements of scratch that forward and backward of such a batch need; 0 if they will not be carried out
 * here. */
size_t tutti_conv_library_scratch_count(const tutti_conv *conv, int batch);

/* Backward includes bias and ReLU. */
bool tutti_conv_library_forward(const tutti_conv *conv, const tutti_conv_forward_args *args);
bool tutti_conv_library_backward(const tutti_conv *conv, const tutti_conv_backward_args *args);

/* For tests and benches: sets whether oneDNN is used from now on. */
void tutti_conv_library_use(bool use);

#endif
