/*
 * Tensors from the ranks' own shards: the extents of parts add up to the shape, and give its cuts.
 *
 * Each rank publishes its local shape and a hash of its bytes; then all ranks make the same computation, so that
 * all find the same error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/gpu.h"
#include "tensor/layout.h"

/* The data that a rank publishes. */
typedef struct given {
    int64_t shape[TUTTI_MOST_DIMS];
    uint64_t hash;
    int64_t problem; /* number of the problem with its memory; 0: none */
} given;

enum { NO_PROBLEM, LACKS_MEMORY, IS_ELSEWHERE, IS_UNREADABLE };

static const char *const problems[] = {
    [LACKS_MEMORY] = "has elements of it, but its memory is NULL",
    [IS_ELSEWHERE] = "passes memory of another kind, or of another GPU, than its placement's",
    [IS_UNREADABLE] = "cannot read its memory: its GPU has failed",
};

/* Hashes eight bytes at a time, to compare copies, not to resist attacks. All pieces except the last are whole
 * numbers of words. */
static void hash_piece(void *context, const void *piece, size_t bytes) {
    uint64_t hash, word;
    const char *next = piece;
    memcpy(&hash, context, sizeof hash);
    for (; bytes >= sizeof word; bytes -= sizeof word, next += sizeof word) {
        memcpy(&word, next, sizeof word);
        hash = (hash ^ word) * UINT64_C(0xBF58476D1CE4E5B9);
        hash ^= hash >> 29;
    }
    word = 0;
    if (bytes > 0) memcpy(&word, next, bytes);
    if (bytes > 0) hash = (hash ^ word) * UINT64_C(0x94D049BB133111EB);
    hash ^= hash >> 31;
    memcpy(context, &hash, sizeof hash);
}

/* Checks and hashes this rank's memory. */
static void examine(const tutti_placement *placement, const void *local, size_t bytes, given *own) {
    char words[60];
    bool fits = true;
    own->hash = UINT64_C(0x9E3779B97F4A7C15) ^ bytes;
    own->problem = bytes > 0 && local == NULL ? LACKS_MEMORY : NO_PROBLEM;
    if (bytes == 0 || local == NULL) return;
    if (tutti_gpu_check_place(placement->gpu, local, &fits, words, sizeof words) != TUTTI_OK)
        own->problem = IS_UNREADABLE;
    else if (!fits) own->problem = IS_ELSEWHERE;
    else if (placement->gpu < 0) hash_piece(&own->hash, local, bytes);
    else if (tutti_gpu_read(placement->gpu, local, bytes, hash_piece, &own->hash) != TUTTI_OK)
        own->problem = IS_UNREADABLE;
}

static const char *name_of(const tutti_layout *like) {
    return like->name != NULL ? like->name : "tensor";
}

/* Checks all except the shape, which is replaced by zeros. */
static tutti_status check_like(const tutti_layout *like, const int64_t *local_shape) {
    static const int64_t zeros[TUTTI_MOST_DIMS];
    tutti_kept_layout *kept;
    if (like == NULL || (like->ndims > 0 && local_shape == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_from_local: NULL argument");
    tutti_layout plain = *like;
    plain.shape = zeros;
    plain.cuts = NULL;
    TUTTI_TRY(tutti_layout_keep(&plain, &kept));
    tutti_layout_release(kept);
    if (like->placement->me < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tensor '%.60s': this rank is not in its placement, and has no shard of it", name_of(like));
    return TUTTI_OK;
}

/* Errors in one rank's arguments alone. */
static tutti_status check_each(const tutti_layout *like, const given *all) {
    for (int i = 0; i < like->placement->nranks; i++) {
        for (int d = 0; d < like->ndims; d++)
            if (all[i].shape[d] < 0)
                return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s': dimension %d of rank %d's local shape is %lld",
                                  name_of(like), d, like->placement->ranks[i], (long long)all[i].shape[d]);
        if (all[i].problem != NO_PROBLEM)
            return tutti_fail(all[i].problem == IS_UNREADABLE ? TUTTI_ERR_SYSTEM : TUTTI_ERR_ARGUMENT,
                              "tensor '%.60s': rank %d %s", name_of(like), like->placement->ranks[i],
                              problems[all[i].problem]);
    }
    return TUTTI_OK;
}

/* The number of a rank's part of a dimension; *nparts_out: the number of parts. */
static int part_of(const tutti_layout *like, int dim, int index, int *nparts_out) {
    int coordinates[TUTTI_MOST_AXES], part = 0;
    *nparts_out = 1;
    tutti_placement_locate(like->placement, index, coordinates);
    for (int axis = 0; axis < like->placement->naxes; axis++) {
        if (like->sbp == NULL || like->sbp[axis].kind != TUTTI_SBP_SPLIT || like->sbp[axis].dim != dim) continue;
        part = part * like->placement->sizes[axis] + coordinates[axis];
        *nparts_out *= like->placement->sizes[axis];
    }
    return part;
}

/* Offsets of a dimension's parts, nparts + 1 of them; `first`: the first rank that published each part. */
static tutti_status find_cuts(const tutti_layout *like, const given *all, int dim, int64_t *offsets, int *first) {
    int nparts = 1;
    for (int i = 0; i < like->placement->nranks; i++) {
        int part = part_of(like, dim, i, &nparts);
        if (offsets[part + 1] < 0) {
            offsets[part + 1] = all[i].shape[dim];
            first[part] = i;
        } else if (offsets[part + 1] != all[i].shape[dim]) {
            return tutti_fail(
                TUTTI_ERR_ARGUMENT,
                "tensor '%.60s': part %d of dimension %d has the extent %lld on rank %d and %lld on rank %d; "
                "ranks that hold the same part must have the same extent",
                name_of(like), part, dim, (long long)offsets[part + 1], like->placement->ranks[first[part]],
                (long long)all[i].shape[dim], like->placement->ranks[i]);
        }
    }
    offsets[0] = 0;
    for (int part = 0; part < nparts; part++)
        if (__builtin_add_overflow(offsets[part + 1], offsets[part], &offsets[part + 1]))
            return tutti_fail(TUTTI_ERR_ARGUMENT, "tensor '%.60s': dimension %d has more than 2^63 elements",
                              name_of(like), dim);
    return TUTTI_OK;
}

/* True when the ranks differ only on broadcast axes: then they hold the same box and the same term. */
static bool is_copy(const tutti_layout *like, int a, int b) {
    int one[TUTTI_MOST_AXES], other[TUTTI_MOST_AXES];
    tutti_placement_locate(like->placement, a, one);
    tutti_placement_locate(like->placement, b, other);
    for (int axis = 0; axis < like->placement->naxes; axis++)
        if (one[axis] != other[axis] && like->sbp != NULL && like->sbp[axis].kind != TUTTI_SBP_BROADCAST) return false;
    return true;
}

/* Compares each rank with the rank at 0 on all broadcast axes. */
static tutti_status check_copies(const tutti_layout *like, const given *all) {
    const tutti_placement *placement = like->placement;
    for (int i = 0; i < placement->nranks; i++) {
        int coordinates[TUTTI_MOST_AXES];
        tutti_placement_locate(placement, i, coordinates);
        for (int axis = 0; axis < placement->naxes; axis++)
            if (like->sbp == NULL || like->sbp[axis].kind == TUTTI_SBP_BROADCAST) coordinates[axis] = 0;
        int first = tutti_placement_index(placement, coordinates);
        if (first == i || !is_copy(like, first, i) || all[first].hash == all[i].hash) continue;
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tensor '%.60s': ranks %d and %d must hold the same elements, because they differ on broadcast "
            "axes only, but their bytes differ",
            name_of(like), placement->ranks[first], placement->ranks[i]);
    }
    return TUTTI_OK;
}

/* Makes the tensor from the data that all ranks published. */
static tutti_status assemble(const tutti_layout *like, const given *all, void *local, tutti_tensor **tensor_out) {
    int nranks = like->placement->nranks, *first;
    size_t per = (size_t)nranks + 1;
    int64_t shape[TUTTI_MOST_DIMS] = {0}, *offsets;
    const int64_t *cuts[TUTTI_MOST_DIMS] = {0};
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *first, &first));
    tutti_status status = tutti_calloc(TUTTI_MOST_DIMS * per, sizeof *offsets, &offsets);
    if (status != TUTTI_OK) {
        free(first);
        return status;
    }
    memset(offsets, 0xff, TUTTI_MOST_DIMS * per * sizeof *offsets);
    for (int d = 0; d < like->ndims && status == TUTTI_OK; d++) {
        int nparts;
        status = find_cuts(like, all, d, offsets + (size_t)d * per, first);
        (void)part_of(like, d, 0, &nparts);
        shape[d] = offsets[(size_t)d * per + (size_t)nparts];
        cuts[d] = offsets + (size_t)d * per;
    }
    if (status == TUTTI_OK) status = check_copies(like, all);
    if (status == TUTTI_OK) {
        tutti_layout layout = *like;
        layout.shape = shape;
        layout.cuts = cuts;
        status = tutti_tensor_wrap(&layout, local, tensor_out);
    }
    free(offsets);
    free(first);
    return status;
}

tutti_status tutti_tensor_from_local(const tutti_layout *like, const int64_t *local_shape, void *local,
                                     tutti_tensor **tensor_out) {
    given own = {.hash = 0}, *all;
    tutti_comm *comm;
    size_t bytes;
    if (tensor_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_from_local: NULL argument");
    TUTTI_TRY(check_like(like, local_shape));
    bytes = tutti_type_bytes(like->type);
    for (int d = 0; d < like->ndims; d++) {
        own.shape[d] = local_shape[d];
        bytes *= local_shape[d] > 0 ? (size_t)local_shape[d] : 0;
    }
    examine(like->placement, local, bytes, &own);
    tutti_status status =
        tutti_rank_groups_get(like->placement->groups, like->placement->ranks, like->placement->nranks, &comm);
    if (status != TUTTI_OK) return tutti_fail_context(status, "tensor '%.60s'", name_of(like));
    TUTTI_TRY(tutti_calloc((size_t)like->placement->nranks, sizeof *all, &all));
    status = tutti_all_gather(comm, &own, all, sizeof own, TUTTI_UINT8, NULL);
    if (status != TUTTI_OK) {
        char ranks[400];
        tutti_rank_groups_text(like->placement->groups, comm, ranks, sizeof ranks);
        status = tutti_fail_context(status, "tensor '%.60s': comparison of the local tensors%s", name_of(like), ranks);
    }
    if (status == TUTTI_OK) status = check_each(like, all);
    if (status == TUTTI_OK) status = assemble(like, all, local, tensor_out);
    free(all);
    return status;
}
