/*
 * One redistribution twice: with tensors in host memory, and with the same tensors with shards in CUDA memory on one
 * or both sides. The results must be the same, byte for byte. Values are small integers, whose sums are exact in
 * every type and every order.
 */
#ifndef TUTTI_TESTS_TENSOR_BOTH_H
#define TUTTI_TESTS_TENSOR_BOTH_H

#include <tutti/tensor.h>

#include "tests/support/gpu/cuda_call.h"

/* One side. Pointers as in tutti_layout; ranks NULL: all. */
typedef struct both_side {
    const int *ranks, *axes;
    int naxes, ndims;
    const tutti_sbp *sbp;
    const int64_t *shape;
    tutti_split_rule rule;
    const int64_t *const *cuts;
} both_side;

/* Which sides are in CUDA memory. */
typedef enum both_where { BOTH_ON_GPU, SOURCE_ON_GPU, TARGET_ON_GPU, BOTH_WHERES } both_where;

/* Ranks that are on neither side return at once. */
tutti_status both_convert(const ranks_context *context, cuda_rank *rank, tutti_stream stream, tutti_type type,
                          const both_side *src, const both_side *dst, both_where where);

/* Copy between a tensor's shard, in any kind of memory, and host memory; done when they return. */
tutti_status both_put(cuda_rank *rank, const tutti_tensor *tensor, const void *bytes, tutti_stream stream);
tutti_status both_get(cuda_rank *rank, const tutti_tensor *tensor, void *bytes, tutti_stream stream);
size_t both_bytes(const tutti_tensor *tensor);
/* A tensor whose shard is in the rank's arena if its placement is in CUDA memory. */
tutti_status both_tensor(cuda_rank *rank, const tutti_layout *layout, bool cuda, tutti_tensor **tensor_out);

#endif
