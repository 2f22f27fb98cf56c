/*
 * What a tensor is made of.
 */
#ifndef TUTTI_TENSOR_TENSOR_H
#define TUTTI_TENSOR_TENSOR_H

#include <stddef.h>

#include "tensor/layout.h"

/* Memory that a tensor and what was given of it share; `release(context)` ends it. */
typedef struct tutti_storage {
    int references; /* atomic */
    void (*release)(void *context);
    void *context;
    size_t capacity; /* bytes of GPU memory that a stream may use again (reuse.h); 0: it is not such memory */
} tutti_storage;

struct tutti_tensor {
    tutti_kept_layout *layout;
    void *data;             /* NULL: no shard, or an empty one */
    tutti_storage *storage; /* of data; NULL: the caller's memory, or none */
    tutti_region region;
    size_t count; /* of the shard */
};

/* A tensor without memory: data is NULL. */
tutti_status tutti_tensor_begin(const tutti_layout *layout, tutti_tensor **tensor_out);
/* Memory of tutti_mem_alloc's for the shard. */
tutti_status tutti_tensor_allocate(tutti_tensor *tensor);

/* With one reference. */
tutti_status tutti_storage_create(void (*release)(void *context), void *context, tutti_storage **storage_out);
tutti_storage *tutti_storage_keep(tutti_storage *storage); /* NULL is allowed, here and below */
void tutti_storage_release(tutti_storage *storage);

#endif
