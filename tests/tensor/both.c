/*
 * Redistributions in both memories. See both.h.
 */
#include "tests/tensor/both.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------------------- shards */

size_t both_bytes(const tutti_tensor *tensor) {
    tutti_local local;
    return tutti_tensor_local(tensor, &local) == TUTTI_OK
               ? local.count * tutti_type_bytes(tutti_tensor_layout(tensor)->type)
               : 0;
}

static tutti_status move(cuda_rank *rank, void *dst, const void *src, size_t bytes, tutti_stream stream) {
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(rank->device->stream_sync(stream)); /* a copy to pageable memory that waits may block other threads */
    TUTTI_TRY(rank->device->copy(dst, src, bytes, stream));
    return rank->device->stream_sync(stream);
}

tutti_status both_put(cuda_rank *rank, const tutti_tensor *tensor, const void *bytes, tutti_stream stream) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    return move(rank, local.data, bytes, both_bytes(tensor), stream);
}

tutti_status both_get(cuda_rank *rank, const tutti_tensor *tensor, void *bytes, tutti_stream stream) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    return move(rank, bytes, local.data, both_bytes(tensor), stream);
}

tutti_status both_tensor(cuda_rank *rank, const tutti_layout *layout, bool cuda, tutti_tensor **tensor_out) {
    int64_t first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
    size_t bytes = tutti_type_bytes(layout->type);
    void *memory = NULL;
    int index = tutti_placement_coordinate(layout->placement, -1);
    if (!cuda || index < 0) return tutti_tensor_create(layout, tensor_out);
    TUTTI_TRY(tutti_layout_box(layout, index, first, end));
    for (int d = 0; d < layout->ndims; d++) bytes *= (size_t)(end[d] - first[d]);
    if (bytes > 0) TUTTI_TRY(cuda_alloc(rank, bytes, &memory));
    return tutti_tensor_wrap(layout, memory, tensor_out);
}

/* -------------------------------------------------------------------------------------------------- values */

/* Writes the bytes of 1, 2 or 3 as an element of the type. */
static void write_value(tutti_type type, uint64_t number, char *at) {
    static const uint16_t halves[] = {0x3c00, 0x4000, 0x4200}, brains[] = {0x3f80, 0x4000, 0x4040};
    static const uint8_t e4m3[] = {0x38, 0x40, 0x44}, e5m2[] = {0x3c, 0x40, 0x42};
    uint64_t choice = number % 3, integer = choice + 1;
    float single = (float)integer;
    double full = (double)integer;
    switch (type) {
    case TUTTI_FLOAT16: memcpy(at, &halves[choice], 2); return;
    case TUTTI_BFLOAT16: memcpy(at, &brains[choice], 2); return;
    case TUTTI_FLOAT32: memcpy(at, &single, 4); return;
    case TUTTI_FLOAT64: memcpy(at, &full, 8); return;
    case TUTTI_FLOAT8_E4M3: memcpy(at, &e4m3[choice], 1); return;
    case TUTTI_FLOAT8_E5M2: memcpy(at, &e5m2[choice], 1); return;
    case TUTTI_BOOL: *at = choice == 0; return;
    default: memcpy(at, &integer, tutti_type_bytes(type));
    }
}

/* Three values suffice to detect a wrong element or a wrong rank's term, since their sequence does not repeat soon. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static uint64_t term_of(const tutti_placement *placement, const both_side *s) {
    uint64_t term = 0;
    for (int axis = 0; axis < s->naxes; axis++)
        if (s->sbp[axis].kind == TUTTI_SBP_PARTIAL)
            term = term * (uint64_t)s->axes[axis] + (uint64_t)tutti_placement_coordinate(placement, axis);
    return term;
}

static char *make_values(const tutti_tensor *tensor, const both_side *s, tutti_type type) {
    tutti_local local;
    size_t element_bytes = tutti_type_bytes(type);
    int64_t at[TUTTI_MOST_DIMS] = {0};
    if (tutti_tensor_local(tensor, &local) != TUTTI_OK) return NULL;
    char *values = calloc(local.count + 1, element_bytes);
    uint64_t term = local.count > 0 ? term_of(tutti_tensor_layout(tensor)->placement, s) : 0;
    for (size_t i = 0; i < local.count; i++) {
        uint64_t number = 0;
        for (int d = 0; d < local.ndims; d++)
            number = number * (uint64_t)s->shape[d] + (uint64_t)(local.first[d] + at[d]);
        write_value(type, mix(number * 1000 + term + 1), values + i * element_bytes);
        for (int d = local.ndims - 1; d >= 0 && ++at[d] == local.shape[d]; d--) at[d] = 0;
    }
    return values;
}

/* --------------------------------------------------------------------------------------------------- cases */

/* Source and target in one kind of memory, or in two. */
typedef struct pair {
    tutti_placement *from, *to;
    tutti_tensor *src, *dst;
    size_t used; /* used bytes of the arena before */
} pair;

static tutti_status open_side(const ranks_context *context, cuda_rank *rank, tutti_type type, const both_side *s,
                              bool cuda, tutti_placement **placement_out, tutti_tensor **tensor_out) {
    TUTTI_TRY(tutti_placement_create(context->comm, cuda ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST, s->ranks, s->axes,
                                     s->naxes, placement_out));
    const tutti_layout layout = TUTTI_LAYOUT(.placement = *placement_out, .sbp = s->sbp, .type = type,
                                             .ndims = s->ndims, .shape = s->shape, .rule = s->rule, .cuts = s->cuts);
    return both_tensor(rank, &layout, cuda, tensor_out);
}

static void close_pair(cuda_rank *rank, pair *p) {
    tutti_tensor_destroy(p->src);
    tutti_tensor_destroy(p->dst);
    tutti_placement_destroy(p->from);
    tutti_placement_destroy(p->to);
    rank->used = p->used;
}

/* This rank's shard of the target afterwards; the caller frees it. */
static tutti_status convert(const ranks_context *context, cuda_rank *rank, tutti_stream stream, tutti_type type,
                            const both_side *src, const both_side *dst, bool src_cuda, bool dst_cuda, char **result_out,
                            size_t *bytes_out) {
    pair p = {.used = rank->used};
    char *values = NULL, *result = NULL;
    tutti_status status = open_side(context, rank, type, src, src_cuda, &p.from, &p.src);
    if (status == TUTTI_OK) status = open_side(context, rank, type, dst, dst_cuda, &p.to, &p.dst);
    if (status == TUTTI_OK) {
        size_t bytes = both_bytes(p.dst);
        values = make_values(p.src, src, type);
        result = malloc(bytes + 1);
        memset(result, 0x5a, bytes);
        status = both_put(rank, p.src, values, stream);
        if (status == TUTTI_OK) status = both_put(rank, p.dst, result, stream);
        if (status == TUTTI_OK) status = tutti_tensor_redistribute(p.src, p.dst, &TUTTI_OPTIONS(.stream = stream));
        if (status == TUTTI_OK) status = both_get(rank, p.dst, result, stream);
        *bytes_out = bytes;
    }
    free(values);
    close_pair(rank, &p);
    if (status == TUTTI_OK) *result_out = result;
    else free(result);
    return status;
}

static bool has(const both_side *s, int rank) {
    int count = 1;
    for (int axis = 0; axis < s->naxes; axis++) count *= s->axes[axis];
    for (int i = 0; i < count; i++)
        if ((s->ranks != NULL ? s->ranks[i] : i) == rank) return true;
    return false;
}

tutti_status both_convert(const ranks_context *context, cuda_rank *rank, tutti_stream stream, tutti_type type,
                          const both_side *src, const both_side *dst, both_where where) {
    char *expected = NULL, *got = NULL, words[2][80];
    size_t bytes = 0, same = 0;
    if (!has(src, context->rank) && !has(dst, context->rank)) return TUTTI_OK;
    TUTTI_TRY(convert(context, rank, stream, type, src, dst, false, false, &expected, &bytes));
    tutti_status status =
        convert(context, rank, stream, type, src, dst, where != TARGET_ON_GPU, where != SOURCE_ON_GPU, &got, &bytes);
    if (status == TUTTI_OK)
        while (same < bytes && got[same] == expected[same]) same++;
    tutti_sbp_format(src->sbp, src->naxes, words[0], sizeof words[0]);
    tutti_sbp_format(dst->sbp, dst->naxes, words[1], sizeof words[1]);
    if (status == TUTTI_OK && same < bytes)
        status =
            tutti_fail(TUTTI_ERR_DATA, "%s %s to %s, memory %d: of %zu bytes number %zu is %02x, and %02x on the host",
                       tutti_type_name(type), words[0], words[1], (int)where, bytes, same, (unsigned char)got[same],
                       (unsigned char)expected[same]);
    free(got);
    free(expected);
    return status;
}
