/*
 * Cuts gradients into buckets.
 *
 *   order     w5 b5 | w4 b4 b3 | w3 b2 w2 b1 w1
 *   buckets   0       1          2                 launched in this order
 *
 * place_views goes through the parameters in the order in which their gradients are expected and keeps one open
 * bucket per type; a view that does not fit any more opens the next bucket. A bucket is complete when its last view
 * is, so with several types the buckets are sorted by the position of their last view. Views begin at cache lines.
 */
#include <stdlib.h>

#include "ddp/ddp_state.h"

#define VIEW_ALIGNMENT 64
#define NO_BUCKET      SIZE_MAX

static size_t view_bytes(const ddp_parameter *parameter) {
    size_t bytes = parameter->count * tutti_type_bytes(parameter->type);
    return (bytes + VIEW_ALIGNMENT - 1) / VIEW_ALIGNMENT * VIEW_ALIGNMENT;
}

static void place_views(const tutti_ddp *ddp, const uint64_t *order, ddp_layout *made) {
    size_t open[TUTTI_TYPE_COUNT], cap[TUTTI_TYPE_COUNT];
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        open[type] = NO_BUCKET;
        cap[type] = ddp->options.first_bucket_bytes;
    }
    for (size_t position = 0; position < ddp->nparameters; position++) {
        const ddp_parameter *parameter = &ddp->parameters[order[position]];
        const tutti_type type = parameter->type;
        const size_t bytes = view_bytes(parameter);
        ddp_bucket *bucket = open[type] == NO_BUCKET ? NULL : &made->buckets[open[type]];
        if (bucket && bucket->bytes > 0 && bucket->bytes + bytes > cap[type]) {
            bucket = NULL;
            cap[type] = ddp->options.bucket_bytes;
        }
        if (!bucket) {
            open[type] = made->nbuckets++;
            bucket = &made->buckets[open[type]];
            bucket->type = type;
        }
        made->places[order[position]] = (struct place){.bucket = open[type], .offset = bucket->bytes};
        bucket->bytes += bytes;
        bucket->nparameters++;
        bucket->last_position = position;
    }
}

static int compare_last_positions(const void *a, const void *b) {
    const ddp_bucket *left = a, *right = b;
    return (left->last_position > right->last_position) - (left->last_position < right->last_position);
}

/* Sorts the buckets; each view finds its bucket again by the last position, which is unique. */
static tutti_status sort_buckets(const tutti_ddp *ddp, ddp_layout *made) {
    size_t *last_position = calloc(ddp->nparameters + 1, sizeof *last_position);
    size_t *bucket_of = calloc(ddp->nparameters + 1, sizeof *bucket_of);
    if (!last_position || !bucket_of) {
        free(last_position), free(bucket_of);
        return tutti_fail(TUTTI_ERR_MEMORY, "laying out buckets: no memory for %zu indices", ddp->nparameters);
    }
    for (size_t i = 0; i < made->nbuckets; i++) last_position[i] = made->buckets[i].last_position;
    qsort(made->buckets, made->nbuckets, sizeof *made->buckets, compare_last_positions);
    for (size_t i = 0; i < made->nbuckets; i++) bucket_of[made->buckets[i].last_position] = i;
    for (size_t i = 0; i < ddp->nparameters; i++)
        made->places[i].bucket = bucket_of[last_position[made->places[i].bucket]];
    free(last_position), free(bucket_of);
    return TUTTI_OK;
}

size_t tutti_ddp_layout_part_bytes(size_t bytes, int nranks) {
    const size_t lines = (bytes + VIEW_ALIGNMENT - 1) / VIEW_ALIGNMENT, ranks = (size_t)nranks;
    return (lines + ranks - 1) / ranks * VIEW_ALIGNMENT;
}

tutti_status tutti_ddp_layout_divide(const tutti_ddp *ddp, const uint64_t *order, int rank, int nranks,
                                     tutti_ddp_part *parts_out) {
    ddp_layout made = {.buckets = calloc(ddp->nparameters + 1, sizeof *made.buckets),
                       .places = calloc(ddp->nparameters + 1, sizeof *made.places)};
    const bool has_memory = made.buckets && made.places;
    if (has_memory) place_views(ddp, order, &made);
    for (size_t i = 0; has_memory && i < ddp->nparameters; i++) {
        const ddp_parameter *parameter = &ddp->parameters[i];
        const size_t element_bytes = tutti_type_bytes(parameter->type);
        const size_t part_bytes = tutti_ddp_layout_part_bytes(made.buckets[made.places[i].bucket].bytes, nranks);
        const size_t from = made.places[i].offset, to = from + parameter->count * element_bytes;
        size_t begin = (size_t)rank * part_bytes, end = begin + part_bytes;
        begin = begin < from ? from : begin;
        end = end > to ? to : end;
        parts_out[i] = (tutti_ddp_part){0, 0};
        if (begin < end) parts_out[i] = (tutti_ddp_part){(begin - from) / element_bytes, (end - begin) / element_bytes};
    }
    free(made.buckets), free(made.places);
    return has_memory
               ? TUTTI_OK
               : tutti_fail(TUTTI_ERR_MEMORY, "laying out buckets: no memory for %zu parameters", ddp->nparameters);
}

/* Allocates at least one line, so that a bucket of empty parameters has an address, too. All ranks' parts are
 * equal, so the last part may extend beyond the views. */
static tutti_status allocate_buckets(const tutti_ddp *ddp, ddp_layout *made) {
    const int nranks = tutti_comm_size(ddp->comm);
    for (size_t i = 0; i < made->nbuckets; i++) {
        ddp_bucket *bucket = &made->buckets[i];
        size_t bytes = bucket->bytes > 0 ? bucket->bytes : VIEW_ALIGNMENT;
        if (ddp->options.zero) bytes = tutti_ddp_layout_part_bytes(bytes, nranks) * (size_t)nranks;
        TUTTI_TRY(tutti_ddp_memory_alloc(ddp, bytes, &bucket->memory));
    }
    return TUTTI_OK;
}

void *tutti_ddp_layout_view(const tutti_ddp *ddp, const ddp_parameter *parameter) {
    return (char *)ddp->buckets[parameter->bucket].memory + parameter->offset;
}

static tutti_status copy_gradients(const tutti_ddp *ddp, const ddp_layout *made) {
    for (size_t i = 0; i < ddp->nparameters; i++) {
        const ddp_parameter *parameter = &ddp->parameters[i];
        const struct place *place = &made->places[i];
        if (!ddp->buckets || parameter->count == 0) continue;
        void *view = (char *)made->buckets[place->bucket].memory + place->offset;
        TUTTI_TRY(tutti_ddp_memory_copy(ddp, view, tutti_ddp_layout_view(ddp, parameter),
                                        parameter->count * tutti_type_bytes(parameter->type)));
    }
    return TUTTI_OK;
}

void tutti_ddp_layout_use(tutti_ddp *ddp, ddp_layout *made) {
    for (size_t i = 0; i < ddp->nparameters; i++) {
        ddp->parameters[i].bucket = made->places[i].bucket;
        ddp->parameters[i].offset = made->places[i].offset;
    }
    tutti_ddp_layout_release(ddp->buckets, ddp->nbuckets);
    ddp->buckets = made->buckets;
    ddp->nbuckets = made->nbuckets;
    ddp->statistics.buckets = made->nbuckets;
    free(made->places);
}

void tutti_ddp_layout_drop(ddp_layout *made) {
    tutti_ddp_layout_release(made->buckets, made->nbuckets);
    free(made->places);
}

tutti_status tutti_ddp_layout_make(const tutti_ddp *ddp, const uint64_t *order, ddp_layout *made_out) {
    tutti_status status = TUTTI_OK;
    ddp_layout made = {.buckets = calloc(ddp->nparameters + 1, sizeof *made.buckets),
                       .places = calloc(ddp->nparameters + 1, sizeof *made.places)};
    if (!made.buckets || !made.places) {
        status = tutti_fail(TUTTI_ERR_MEMORY, "laying out buckets: no memory for %zu parameters", ddp->nparameters);
        goto fail;
    }
    place_views(ddp, order, &made);
    TUTTI_TRY_GOTO(status, sort_buckets(ddp, &made), fail);
    TUTTI_TRY_GOTO(status, allocate_buckets(ddp, &made), fail);
    TUTTI_TRY_GOTO(status, copy_gradients(ddp, &made), fail);
    *made_out = made;
    return TUTTI_OK;

fail:
    tutti_ddp_layout_drop(&made);
    return status;
}

void tutti_ddp_layout_release(ddp_bucket *buckets, size_t nbuckets) {
    for (size_t i = 0; i < nbuckets; i++) {
        tutti_work_free(buckets[i].work);
        tutti_mem_free(buckets[i].memory);
    }
    free(buckets);
}
