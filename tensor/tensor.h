/*
 * The structs of a tensor.
 */
#ifndef TUTTI_TENSOR_TENSOR_H
#define TUTTI_TENSOR_TENSOR_H

#include <stddef.h>

#include "tensor/layout.h"

/* Memory that a tensor and the exports of its shard share; `release(context)` frees it. */
typedef struct tutti_storage {
    int references; /* atomic */
    void (*release)(void *context);
    void *context;
    size_t capacity; /* bytes of GPU memory that a stream may reuse (reuse.h); 0: not such memory */
} tutti_storage;

struct tutti_tensor {
    tutti_kept_layout *layout;
    void *data;             /* NULL: no shard, or an empty one */
    tutti_storage *storage; /* of data; NULL: the caller's memory, or none */
    tutti_region region;
    size_t count; /* elements of the shard */
};

/* A tensor without memory: data is NULL. */
tutti_status tutti_tensor_begin(const tutti_layout *layout, tutti_tensor **tensor_out);
/* Allocates memory of tutti_mem_alloc for the shard. */
tutti_status tutti_tensor_allocate(tutti_tensor *tensor);

/* Created with one reference. */
tutti_status tutti_storage_create(void (*release)(void *context), void *context, tutti_storage **storage_out);
tutti_storage *tutti_storage_keep(tutti_storage *storage); /* NULL is allowed, here and below */
void tutti_storage_release(tutti_storage *storage);

#endif
