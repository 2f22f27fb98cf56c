/*
 * Finds the buffers of a model that may share memory: those that are never needed at the same time.
 *
 *   time of node i of n:   forward i        the loss n        backward 2n - i
 *
 * A node's output lives until the last layer has read it, forward or backward. A gradient lives from the first
 * write to it until its node has run backward. The largest buffers are placed first, each at the lowest offset that
 * the buffers alive at the same times leave free.
 */
#ifndef TUTTI_TRAINER_MEMORY_PLAN_H
#define TUTTI_TRAINER_MEMORY_PLAN_H

#include "ddp/trainer/layers/layers.h"

typedef struct tutti_buffer {
    float **where; /* the node's member that receives its address */
    size_t bytes;
    int birth, death; /* first and last time */
    size_t offset;
} tutti_buffer;

typedef struct tutti_memory_plan {
    tutti_buffer *buffers;
    int count;
    size_t bytes; /* of all buffers together */
} tutti_memory_plan;

#define TUTTI_MEMORY_ALIGN 64

static inline size_t tutti_memory_align(size_t bytes) {
    return (bytes + TUTTI_MEMORY_ALIGN - 1) / TUTTI_MEMORY_ALIGN * TUTTI_MEMORY_ALIGN;
}

/* Chooses each gradient's tutti_gradient_way, and places the buffers of nodes [1, nnodes), except node 0's output. */
tutti_status tutti_memory_plan_make(tutti_memory_plan *plan, tutti_node *nodes, int nnodes,
                                    const tutti_compute *compute, int batch);
void tutti_memory_plan_fini(tutti_memory_plan *plan);

/* Sets the nodes' addresses in `base`, which has plan->bytes bytes. */
void tutti_memory_plan_bind(const tutti_memory_plan *plan, tutti_node *nodes, int nnodes, void *base);

#endif
