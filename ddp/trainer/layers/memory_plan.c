/*
 * Lifetimes of a model's buffers, and their offsets.
 */
#include "ddp/trainer/layers/memory_plan.h"

#include <stdlib.h>

#define BUFFERS_PER_NODE (3 + TUTTI_LAYER_INPUTS) /* y, dy, kept, spares */

/* ---------------------------------------------------------------------------------- ways of gradients */

static bool reads(const tutti_node *node, tutti_backward_reads what) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    return node->wants_gradient && row->backward_reads != NULL && (row->backward_reads(node) & what) != 0;
}

/* Returns whether the node's gradient is only read once another node has shared it. */
static bool only_reads_dy(const tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    return node->consumers == 1 && !row->passes_gradient && (row->changes_dy == NULL || !row->changes_dy(node));
}

/* The last node before `by` that reads node `of`, or `of` itself: from its backward on, the gradient of `of`
 * changes. */
static int first_change(const tutti_node *nodes, int of, int by) {
    int last = of;
    for (int i = of + 1; i < by; i++)
        for (int k = 0; k < tutti_layers_row(nodes[i].layer->kind)->ninputs; k++)
            if (nodes[i].inputs[k] == of) last = i;
    return last;
}

/* Returns whether input `i` may use the gradient of its node as its own, in the same buffer. If the other input
 * does so, too, one of the two must have read the buffer before the other changes it. */
static bool may_share(const tutti_node *nodes, const tutti_node *node, int i) {
    for (int other = 0; other < i; other++) {
        if (node->way[other] != TUTTI_GRADIENT_SHARE) continue;
        int a = node->inputs[other], b = node->inputs[i];
        if (only_reads_dy(&nodes[a]) && only_reads_dy(&nodes[b])) continue;
        if (only_reads_dy(&nodes[a]) && a > first_change(nodes, b, node->index)) continue;
        if (only_reads_dy(&nodes[b]) && b > first_change(nodes, a, node->index)) continue;
        return false;
    }
    return true;
}

/* `written`: by node, whether something has been written to its gradient. */
static void choose_ways(tutti_node *nodes, int nnodes, bool *written) {
    for (int j = nnodes - 1; j > 0; j--) {
        tutti_node *node = &nodes[j];
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        for (int i = 0; node->wants_gradient && i < row->ninputs; i++) {
            int from = node->inputs[i];
            if (!nodes[from].wants_gradient) continue;
            if (written[from]) node->way[i] = TUTTI_GRADIENT_ADD;
            else if (row->passes_gradient && may_share(nodes, node, i)) node->way[i] = TUTTI_GRADIENT_SHARE;
            else node->way[i] = TUTTI_GRADIENT_WRITE;
            written[from] = true;
        }
    }
}

/* --------------------------------------------------------------------------------------------- lifetimes */

static int backward_time(int nnodes, int node) {
    return 2 * nnodes - node;
}

static tutti_buffer *add(tutti_memory_plan *plan, float **where, size_t count, int birth, int death) {
    tutti_buffer *buffer = &plan->buffers[plan->count++];
    *buffer = (tutti_buffer){
        .where = where, .bytes = tutti_memory_align(count * sizeof(float)), .birth = birth, .death = death};
    return buffer;
}

static void extend(int *time, int to) {
    if (to > *time) *time = to;
}

/* The last time at which the output of node i is read. */
static int death_of_output(const tutti_node *nodes, int nnodes, int i) {
    int death = i == nnodes - 1 ? nnodes : i;
    for (int j = i + 1; j < nnodes; j++)
        for (int k = 0; k < tutti_layers_row(nodes[j].layer->kind)->ninputs; k++) {
            if (nodes[j].inputs[k] != i) continue;
            extend(&death, j);
            if (reads(&nodes[j], TUTTI_READS_X)) extend(&death, backward_time(nnodes, j));
        }
    if (reads(&nodes[i], TUTTI_READS_Y)) extend(&death, backward_time(nnodes, i));
    return death;
}

/* `of_dy`: by node, the buffer with its gradient, which nodes may share. */
static void list_gradients(tutti_memory_plan *plan, tutti_node *nodes, int nnodes, int batch, tutti_buffer **of_dy) {
    tutti_node *last = &nodes[nnodes - 1];
    size_t logits = (size_t)tutti_node_batch(last, batch) * tutti_shape_count(last->out);
    of_dy[nnodes - 1] = add(plan, &last->dy, logits, nnodes, backward_time(nnodes, nnodes - 1));
    for (int j = nnodes - 1; j > 0; j--)
        for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) {
            int from = nodes[j].inputs[i], now = backward_time(nnodes, j), end = backward_time(nnodes, from);
            size_t count = (size_t)tutti_node_batch(&nodes[from], batch) * tutti_shape_count(nodes[from].out);
            if (nodes[j].way[i] == TUTTI_GRADIENT_WRITE) {
                of_dy[from] = add(plan, &nodes[from].dy, count, now, end);
            } else if (nodes[j].way[i] == TUTTI_GRADIENT_SHARE) {
                of_dy[from] = of_dy[j];
                extend(&of_dy[j]->death, end);
            } else if (nodes[j].way[i] == TUTTI_GRADIENT_ADD &&
                       !tutti_layers_row(nodes[j].layer->kind)->passes_gradient) {
                add(plan, &nodes[j].spares[i], count, now, now);
            }
        }
}

static void list_buffers(tutti_memory_plan *plan, tutti_node *nodes, int nnodes, const tutti_compute *compute,
                         int batch, tutti_buffer **of_dy) {
    for (int i = 1; i < nnodes; i++) {
        tutti_node *node = &nodes[i];
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        const int rows = tutti_node_batch(node, batch);
        add(plan, &node->y, (size_t)rows * tutti_shape_count(node->out), i, death_of_output(nodes, nnodes, i));
        if (row->kept_count != NULL)
            add(plan, &node->kept, row->kept_count(compute, node, rows), i,
                node->wants_gradient ? backward_time(nnodes, i) : i);
    }
    list_gradients(plan, nodes, nnodes, batch, of_dy);
}

/* ----------------------------------------------------------------------------------------------- places */

static int by_size(const void *a, const void *b) {
    const tutti_buffer *const *x = a, *const *y = b;
    if ((*x)->bytes != (*y)->bytes) return (*x)->bytes < (*y)->bytes ? 1 : -1;
    return *x < *y ? -1 : 1;
}

/* Returns whether a at offset `at` and b overlap in memory while both are needed. */
static bool collide(const tutti_buffer *a, size_t at, const tutti_buffer *b) {
    bool together = a->birth <= b->death && b->birth <= a->death;
    return together && at < b->offset + b->bytes && b->offset < at + a->bytes;
}

static void place(tutti_buffer *const *sorted, int index) {
    tutti_buffer *buffer = sorted[index];
    size_t at = 0;
    for (int i = 0; i < index; i++)
        if (collide(buffer, at, sorted[i])) {
            at = sorted[i]->offset + sorted[i]->bytes;
            i = -1; /* start again: earlier buffers may collide at the new offset */
        }
    buffer->offset = at;
}

tutti_status tutti_memory_plan_make(tutti_memory_plan *plan, tutti_node *nodes, int nnodes,
                                    const tutti_compute *compute, int batch) {
    *plan = (tutti_memory_plan){.buffers = calloc((size_t)nnodes * BUFFERS_PER_NODE, sizeof *plan->buffers)};
    bool *written = calloc((size_t)nnodes, sizeof *written);
    tutti_buffer **of_dy = calloc((size_t)nnodes, sizeof *of_dy);
    tutti_buffer **sorted = calloc((size_t)nnodes * BUFFERS_PER_NODE, sizeof *sorted);
    bool has_all = plan->buffers != NULL && written != NULL && of_dy != NULL && sorted != NULL;
    if (has_all) {
        choose_ways(nodes, nnodes, written);
        list_buffers(plan, nodes, nnodes, compute, batch, of_dy);
        for (int i = 0; i < plan->count; i++) sorted[i] = &plan->buffers[i];
        qsort(sorted, (size_t)plan->count, sizeof *sorted, by_size);
        for (int i = 0; i < plan->count; i++) {
            place(sorted, i);
            size_t end = sorted[i]->offset + sorted[i]->bytes;
            if (end > plan->bytes) plan->bytes = end;
        }
    }
    free(written), free(of_dy), free(sorted);
    if (!has_all) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to plan the buffers of %d layers", nnodes - 1);
    return TUTTI_OK;
}

void tutti_memory_plan_fini(tutti_memory_plan *plan) {
    free(plan->buffers);
    plan->buffers = NULL;
}

void tutti_memory_plan_bind(const tutti_memory_plan *plan, tutti_node *nodes, int nnodes, void *base) {
    for (int i = 0; i < plan->count; i++) *plan->buffers[i].where = (void *)((char *)base + plan->buffers[i].offset);
    for (int j = nnodes - 1; j > 0; j--)
        for (int i = 0; i < TUTTI_LAYER_INPUTS; i++)
            if (nodes[j].way[i] == TUTTI_GRADIENT_SHARE) nodes[nodes[j].inputs[i]].dy = nodes[j].dy;
}
