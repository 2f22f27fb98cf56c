/*
 * Checks that the ranks of a plan agree on it: one all_gather of a hash; where hashes differ, one of texts, so that
 * all ranks report the same error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/hash.h"
#include "tensor/plan/plan.h"

enum { TEXT_BYTES = 512 };

static uint64_t hash_layout(uint64_t hash, const tutti_kept_layout *layout) {
    const tutti_placement *placement = layout->view.placement;
    hash = tutti_fnv_bytes(hash, placement->ranks, (size_t)placement->nranks * sizeof *placement->ranks);
    hash = tutti_fnv_bytes(hash, placement->sizes, (size_t)placement->naxes * sizeof *placement->sizes);
    for (int axis = 0; axis < placement->naxes; axis++) {
        int words[3] = {(int)layout->sbp[axis].kind, layout->sbp[axis].dim, (int)layout->sbp[axis].reduction};
        hash = tutti_fnv_bytes(hash, words, sizeof words);
    }
    hash = tutti_fnv_bytes(hash, layout->shape, (size_t)layout->view.ndims * sizeof *layout->shape);
    for (int d = 0; d < layout->view.ndims; d++)
        if (layout->tiling.offsets[d] != NULL)
            hash = tutti_fnv_bytes(hash, layout->tiling.offsets[d],
                                   ((size_t)layout->tiling.nparts[d] + 1) * sizeof *layout->tiling.offsets[d]);
    int kinds[2] = {(int)layout->view.type, (int)placement->memory};
    return tutti_fnv_bytes(tutti_fnv_bytes(hash, kinds, sizeof kinds), layout->name, strlen(layout->name) + 1);
}

static uint64_t hash_pair(uint64_t hash, const tutti_route *route) {
    return hash_layout(hash_layout(hash, route->src), route->dst);
}

static void describe(const tutti_plan *plan, size_t pair, char text[TEXT_BYTES]) {
    char src[TEXT_BYTES / 2 - 8], dst[TEXT_BYTES / 2 - 8];
    tutti_layout_text(plan->routes[pair].src, src, sizeof src);
    tutti_layout_text(plan->routes[pair].dst, dst, sizeof dst);
    snprintf(text, TEXT_BYTES, "%s to %s", src, dst);
}

static tutti_status fail_texts(const tutti_plan *plan, const char *texts, int other) {
    return tutti_fail(
        TUTTI_ERR_ARGUMENT,
        "the ranks make different redistributions: rank %d %.500s; rank %d %.500s; all ranks of both placements must "
        "give equal layouts and names, in the same order",
        plan->ranks[0], texts, plan->ranks[other], texts + (size_t)other * TEXT_BYTES);
}

/* Compares the texts of all ranks; that of rank `other` differs from the first rank's. */
static tutti_status compare_texts(const tutti_plan *plan, const char own[TEXT_BYTES], int other) {
    char *texts;
    TUTTI_TRY(tutti_calloc((size_t)plan->nranks, TEXT_BYTES, &texts));
    tutti_status status = tutti_all_gather(plan->comm, own, texts, TEXT_BYTES, TUTTI_UINT8, NULL);
    if (status == TUTTI_OK) status = fail_texts(plan, texts, other);
    free(texts);
    return status;
}

/* Gathers `count` numbers of each rank and finds the first number in which a rank differs from the first rank, and
 * that rank. The same result on all ranks; *found_out false: all are equal. */
static tutti_status find_different(const tutti_plan *plan, const uint64_t *own, size_t count, size_t *which_out,
                                   int *other_out, bool *found_out) {
    uint64_t *all;
    *found_out = false;
    TUTTI_TRY(tutti_calloc(count * (size_t)plan->nranks, sizeof *all, &all));
    tutti_status status = tutti_all_gather(plan->comm, own, all, count, TUTTI_UINT64, NULL);
    for (size_t which = 0; which < count && status == TUTTI_OK && !*found_out; which++)
        for (int other = 1; other < plan->nranks && !*found_out; other++) {
            if (all[(size_t)other * count + which] == all[which]) continue;
            *found_out = true;
            *which_out = which;
            *other_out = other;
        }
    free(all);
    return status;
}

static tutti_status name_difference(const tutti_plan *plan) {
    uint64_t count = plan->npairs, *hashes;
    size_t which = 0;
    int other = 0;
    bool found;
    char own[TEXT_BYTES];
    TUTTI_TRY(find_different(plan, &count, 1, &which, &other, &found));
    if (found) {
        snprintf(own, sizeof own, "gives %zu tensors at once", plan->npairs);
        return compare_texts(plan, own, other);
    }
    TUTTI_TRY(tutti_calloc(plan->npairs, sizeof *hashes, &hashes));
    for (size_t i = 0; i < plan->npairs; i++) hashes[i] = hash_pair(TUTTI_FNV_BASIS, &plan->routes[i]);
    tutti_status status = find_different(plan, hashes, plan->npairs, &which, &other, &found);
    free(hashes);
    TUTTI_TRY(status);
    if (!found) return TUTTI_OK; /* unlikely: the sums differed, but none of their parts */
    describe(plan, which, own);
    return compare_texts(plan, own, other);
}

tutti_status tutti_plan_agree(tutti_plan *plan) {
    uint64_t hash = tutti_fnv_bytes(TUTTI_FNV_BASIS, &plan->npairs, sizeof plan->npairs);
    size_t which;
    int other;
    bool found;
    if (plan->nranks == 1) return TUTTI_OK;
    for (size_t i = 0; i < plan->npairs; i++) hash = hash_pair(hash, &plan->routes[i]);
    TUTTI_TRY(find_different(plan, &hash, 1, &which, &other, &found));
    return found ? name_difference(plan) : TUTTI_OK;
}
