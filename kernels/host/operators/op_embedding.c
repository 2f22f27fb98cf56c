/*
 * Rows of a table by their indices, and their gradient.
 */
#include <string.h>

#include "kernels/host/operators/op_parts.h"
#include "kernels/real.h"

/* Returns the row in this rank's part of the table, or -1 if this rank does not have it. */
static int64_t row_of(const tutti_kernel_embedding_args *args, size_t i) {
    const int64_t index =
        args->index_type == TUTTI_INT32 ? ((const int32_t *)args->indices)[i] : ((const int64_t *)args->indices)[i];
    if (index < args->first || index >= args->first + args->rows) return -1;
    return index - args->first;
}

void tutti_kernel_embedding(const tutti_kernel_embedding_args *args, const void *table, void *y) {
    const size_t bytes = args->width * op_bytes(args->type);
    if (bytes == 0) return;
    for (size_t i = 0; i < args->count; i++) {
        const int64_t row = row_of(args, i);
        unsigned char *to = (unsigned char *)y + i * bytes;
        if (row < 0) memset(to, 0, bytes);
        else memcpy(to, (const unsigned char *)table + (size_t)row * bytes, bytes);
    }
}

void tutti_kernel_embedding_backward(const tutti_kernel_embedding_args *args, const void *dy, void *dtable) {
    const tutti_kernel_binary_step add = tutti_kernel_binary_steps[TUTTI_KERNEL_ADD][args->type];
    const size_t bytes = args->width * op_bytes(args->type);
    op_zero(dtable, (size_t)args->rows * bytes);
    for (size_t i = 0; i < args->count; i++) {
        const int64_t row = row_of(args, i);
        if (row < 0) continue;
        unsigned char *to = (unsigned char *)dtable + (size_t)row * bytes;
        add(args->width, to, (const unsigned char *)dy + i * bytes, to);
    }
}
