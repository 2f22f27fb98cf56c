/*
 * Which buffers of a model may lie in the same place: those that are never needed at the same time.
 *
 *   time of node i, of n:   forwards i        the loss n        backwards 2n - i
 *
 * A node's output lives until the last layer has read it, forwards or backwards; a gradient from the first part that is
 * written to it until its node has run backwards. The largest buffers are placed first, each as low as those allow
 * that live at one of its times.
 */
#ifndef TUTTI_TRAINER_MEMORY_PLAN_H
#define TUTTI_TRAINER_MEMORY_PLAN_H

#include "ddp/trainer/layers.h"

typedef struct tutti_buffer {
    float **where; /* the node's member that gets its address */
    size_t bytes;
    int birth, death; /* first and last time */
    size_t offset;
} tutti_buffer;

typedef struct tutti_memory_plan {
    tutti_buffer *buffers;
    int count;
    size_t bytes; /* of all */
} tutti_memory_plan;

#define TUTTI_MEMORY_ALIGN 64

static inline size_t tutti_memory_align(size_t bytes) {
    return (bytes + TUTTI_MEMORY_ALIGN - 1) / TUTTI_MEMORY_ALIGN * TUTTI_MEMORY_ALIGN;
}

/* Decides on the ways of gradients, and places the buffers of nodes [1, nnodes), node 0's output excepted. */
tutti_status tutti_memory_plan_make(tutti_memory_plan *plan, tutti_node *nodes, int nnodes,
                                    const tutti_compute *compute, int batch);
void tutti_memory_plan_fini(tutti_memory_plan *plan);

/* Gives the nodes their addresses in `base`, plan->bytes. */
void tutti_memory_plan_bind(const tutti_memory_plan *plan, tutti_node *nodes, int nnodes, void *base);

#endif
