/*
 * Placements: arrays of ranks, and the communicators along their axes.
 */
#include "tensor/placement.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/hash.h"
#include "tensor/costs.h"
#include "tensor/gpu.h"

/* ------------------------------------------------------------------------------------------------- groups */

enum { KNOWN_PRICES = 256 };

typedef struct rank_group {
    struct rank_group *next;
    tutti_comm *comm;
    tutti_costs *costs[2]; /* in host memory, and in that of GPUs */
    atomic_int works;
    int nranks;
    int ranks[];
} rank_group;

struct tutti_rank_groups {
    struct tutti_rank_groups *next;
    tutti_comm *comm;
    int references, gpu; /* guarded by list_lock; gpu: of all placements in CUDA memory; -1: none yet */
    pthread_mutex_t lock;
    rank_group *first;                      /* guarded by lock */
    tutti_known_price prices[KNOWN_PRICES]; /* guarded by lock */
    tutti_kept_plans *_Atomic plans;        /* written once; release, for readers without the lock */
    tutti_scratch_pool scratch;
    tutti_reuse_pool reuse;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_rank_groups *all_groups; /* one for each communicator that has placements */

/* A communicator uses memory of one GPU. */
static tutti_status claim_gpu(tutti_rank_groups *groups, int gpu) {
    if (gpu < 0 || groups->gpu == gpu) return TUTTI_OK;
    if (groups->gpu >= 0)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "placement: the calling thread's GPU is %d, but other placements on this communicator use GPU %d; "
            "use one communicator for each GPU, or call tutti_device_use(%d) first",
            gpu, groups->gpu, groups->gpu);
    groups->gpu = gpu;
    return TUTTI_OK;
}

/* `gpu`: the GPU of a new placement; -1: none. */
static tutti_status keep_groups(tutti_comm *comm, int gpu, tutti_rank_groups **groups_out) {
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&list_lock);
    tutti_rank_groups *groups = all_groups;
    while (groups != NULL && groups->comm != comm) groups = groups->next;
    if (groups == NULL) {
        status = tutti_calloc(1, sizeof *groups, &groups);
        if (status == TUTTI_OK) {
            groups->comm = comm;
            groups->gpu = -1;
            tutti_scratch_pool_init(&groups->scratch);
            tutti_reuse_pool_init(&groups->reuse);
            groups->next = all_groups;
            pthread_mutex_init(&groups->lock, NULL);
            all_groups = groups;
        }
    }
    if (status == TUTTI_OK) status = claim_gpu(groups, gpu);
    if (status == TUTTI_OK) {
        groups->references++;
        *groups_out = groups;
    }
    pthread_mutex_unlock(&list_lock);
    return status;
}

static void release_groups(tutti_rank_groups *groups) {
    pthread_mutex_lock(&list_lock);
    bool last = --groups->references == 0;
    for (tutti_rank_groups **at = &all_groups; last && *at != NULL; at = &(*at)->next) {
        if (*at != groups) continue;
        *at = groups->next;
        break;
    }
    pthread_mutex_unlock(&list_lock);
    if (!last) return;
    tutti_kept_plans *plans = atomic_load_explicit(&groups->plans, memory_order_acquire);
    if (plans != NULL) plans->destroy(plans);
    /* A communicator that is destroyed fails what streams have not passed; so this waits for the GPU first. */
    if (groups->gpu >= 0 && groups->first != NULL) tutti_gpu_sync(groups->gpu);
    tutti_scratch_pool_free(&groups->scratch);
    tutti_reuse_pool_free(&groups->reuse);
    while (groups->first != NULL) {
        rank_group *group = groups->first;
        groups->first = group->next;
        (void)tutti_comm_destroy(group->comm);
        for (int where = 0; where < 2; where++)
            while (group->costs[where] != NULL) {
                tutti_costs *older = group->costs[where]->older;
                free(group->costs[where]);
                group->costs[where] = older;
            }
        free(group);
    }
    pthread_mutex_destroy(&groups->lock);
    free(groups);
}

/* Tag that distinguishes groups that overlapping sets of ranks create at the same time: FNV-1a of the list. */
static int64_t tag_of(const int *ranks, int nranks) {
    uint64_t hash = TUTTI_FNV_BASIS;
    for (int i = 0; i < nranks; i++) hash = tutti_fnv_add(hash, (uint32_t)ranks[i]);
    return (int64_t)(hash >> 2);
}

/* Writes "0,1,3"; NULL ranks: from 0 on. Returns its length. */
static size_t write_ranks(const int *ranks, int nranks, char *text, size_t bytes) {
    enum { MOST_SHOWN = 32 };
    size_t used = 0;
    for (int i = 0; i < nranks && i < MOST_SHOWN && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, i > 0 ? ",%d" : "%d", ranks != NULL ? ranks[i] : i);
    if (nranks > MOST_SHOWN && used < bytes) used += (size_t)snprintf(text + used, bytes - used, ",...");
    return used;
}

static tutti_status make_group(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm **comm_out) {
    rank_group *made = malloc(sizeof *made + (size_t)nranks * sizeof *ranks);
    if (made == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a group of %d ranks", nranks);
    tutti_status status =
        tutti_comm_create_group(groups->comm, ranks, nranks, tag_of(ranks, nranks), NULL, &made->comm);
    if (status != TUTTI_OK) {
        char text[300];
        free(made);
        (void)write_ranks(ranks, nranks, text, sizeof text);
        return tutti_fail_context(
            status,
            "ranks %s create a communicator for their tensors: all of them must do so at the same "
            "point of the program, with the same list of ranks",
            text);
    }
    made->costs[0] = made->costs[1] = NULL;
    atomic_init(&made->works, 0);
    made->nranks = nranks;
    memcpy(made->ranks, ranks, (size_t)nranks * sizeof *ranks);
    made->next = groups->first;
    groups->first = made;
    *comm_out = made->comm;
    return TUTTI_OK;
}

/* NULL: not created yet. The lock is held. */
static const rank_group *find_group(const tutti_rank_groups *groups, const int *ranks, int nranks) {
    const rank_group *group = groups->first;
    while (group != NULL &&
           (group->nranks != nranks || memcmp(group->ranks, ranks, (size_t)nranks * sizeof *ranks) != 0))
        group = group->next;
    return group;
}

tutti_status tutti_rank_groups_get(tutti_rank_groups *groups, const int *ranks, int nranks, tutti_comm **comm_out) {
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&groups->lock);
    const rank_group *group = find_group(groups, ranks, nranks);
    if (group != NULL) *comm_out = group->comm;
    else status = make_group(groups, ranks, nranks, comm_out);
    pthread_mutex_unlock(&groups->lock);
    return status;
}

atomic_int *tutti_rank_groups_works(tutti_rank_groups *groups, const tutti_comm *comm) {
    pthread_mutex_lock(&groups->lock);
    rank_group *group = groups->first;
    while (group->comm != comm) group = group->next;
    pthread_mutex_unlock(&groups->lock);
    return &group->works;
}

static tutti_status do_nothing(void *context) {
    (void)context;
    return TUTTI_OK;
}

/* The submitted function runs after these works. */
tutti_status tutti_works_await(tutti_comm *comm, const atomic_int *works) {
    if (TUTTI_LIKELY(atomic_load_explicit(works, memory_order_acquire) == 0)) return TUTTI_OK;
    return tutti_submit(comm, do_nothing, NULL, NULL, NULL);
}

const tutti_costs *tutti_rank_groups_costs(tutti_rank_groups *groups, const int *ranks, int nranks, bool on_gpu) {
    pthread_mutex_lock(&groups->lock);
    const rank_group *group = find_group(groups, ranks, nranks);
    const tutti_costs *costs = group != NULL ? group->costs[on_gpu] : NULL;
    pthread_mutex_unlock(&groups->lock);
    return costs;
}

void tutti_rank_groups_set_costs(tutti_rank_groups *groups, const tutti_comm *comm, tutti_costs *costs) {
    pthread_mutex_lock(&groups->lock);
    rank_group *group = groups->first;
    while (group->comm != comm) group = group->next;
    costs->older = group->costs[costs->on_gpu];
    group->costs[costs->on_gpu] = costs;
    pthread_mutex_unlock(&groups->lock);
}

static tutti_known_price *place_of(tutti_rank_groups *groups, const tutti_known_price *price) {
    return &groups->prices[(price->src * 31 + price->dst) % KNOWN_PRICES];
}

bool tutti_rank_groups_find_price(tutti_rank_groups *groups, tutti_known_price *price) {
    pthread_mutex_lock(&groups->lock);
    const tutti_known_price *known = place_of(groups, price);
    bool found = known->costs == price->costs && known->src == price->src && known->dst == price->dst;
    if (found) price->us = known->us;
    pthread_mutex_unlock(&groups->lock);
    return found;
}

void tutti_rank_groups_keep_price(tutti_rank_groups *groups, const tutti_known_price *price) {
    pthread_mutex_lock(&groups->lock);
    *place_of(groups, price) = *price;
    pthread_mutex_unlock(&groups->lock);
}

void tutti_rank_groups_text(tutti_rank_groups *groups, const tutti_comm *comm, char *text, size_t bytes) {
    text[0] = '\0';
    pthread_mutex_lock(&groups->lock);
    const rank_group *group = groups->first;
    while (group != NULL && group->comm != comm) group = group->next;
    int same = 0;
    while (group != NULL && same < group->nranks && group->ranks[same] == same) same++;
    if (group != NULL && same < group->nranks) {
        size_t used = (size_t)snprintf(text, bytes, ", by a communicator whose ranks ");
        used += write_ranks(NULL, group->nranks, text + used, bytes - used);
        if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, " are ");
        if (used < bytes) used += write_ranks(group->ranks, group->nranks, text + used, bytes - used);
        if (used < bytes) snprintf(text + used, bytes - used, " here");
    }
    pthread_mutex_unlock(&groups->lock);
}

tutti_kept_plans *tutti_rank_groups_plans(tutti_rank_groups *groups, tutti_kept_plans *added) {
    tutti_kept_plans *plans = NULL;
    if (added == NULL) return atomic_load_explicit(&groups->plans, memory_order_acquire);
    bool taken = atomic_compare_exchange_strong_explicit(&groups->plans, &plans, added, memory_order_acq_rel,
                                                         memory_order_acquire);
    return taken ? added : plans;
}

tutti_scratch_pool *tutti_rank_groups_scratch(tutti_rank_groups *groups) {
    return &groups->scratch;
}

tutti_reuse_pool *tutti_rank_groups_reuse(tutti_rank_groups *groups) {
    return &groups->reuse;
}

/* --------------------------------------------------------------------------------------------- placements */

static tutti_status check_axes(const int *axes, int naxes, int64_t *product_out) {
    int64_t product = 1;
    if (axes == NULL || naxes < 1 || naxes > TUTTI_MOST_AXES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "placement of %d axes: it must have 1 to %d", naxes, TUTTI_MOST_AXES);
    for (int i = 0; i < naxes; i++) {
        if (axes[i] < 1)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "placement: axis %d has the size %d; it must be at least 1", i,
                              axes[i]);
        if (__builtin_mul_overflow(product, axes[i], &product) || product > INT32_MAX)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "placement: the sizes of its axes multiply to more than %d ranks",
                              INT32_MAX);
    }
    *product_out = product;
    return TUTTI_OK;
}

static tutti_status check_ranks(const tutti_placement *placement, int nranks) {
    uint8_t *seen;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(tutti_calloc((size_t)nranks, 1, &seen));
    for (int i = 0; i < placement->nranks && status == TUTTI_OK; i++) {
        int rank = placement->ranks[i];
        if (rank < 0 || rank >= nranks)
            status = tutti_fail(TUTTI_ERR_ARGUMENT, "placement: rank %d is out of range for a communicator of %d ranks",
                                rank, nranks);
        else if (seen[rank]++ != 0) status = tutti_fail(TUTTI_ERR_ARGUMENT, "placement: rank %d is listed twice", rank);
    }
    free(seen);
    return status;
}

static tutti_status fill(tutti_placement *placement, const int *ranks) {
    int size = tutti_comm_size(placement->comm);
    for (int i = 0; i < placement->nranks; i++) placement->ranks[i] = ranks != NULL ? ranks[i] : i;
    TUTTI_TRY(check_ranks(placement, size));
    placement->me = tutti_placement_find(placement, tutti_comm_rank(placement->comm));
    placement->hash = (uint64_t)tag_of(placement->ranks, placement->nranks) * 31 +
                      (uint64_t)tag_of(placement->sizes, placement->naxes) * 31 + (uint64_t)placement->memory;
    if (placement->memory == TUTTI_MEMORY_CUDA && placement->me >= 0) TUTTI_TRY(tutti_gpu_current(&placement->gpu));
    return keep_groups(placement->comm, placement->gpu, &placement->groups);
}

static size_t bytes_of(size_t nranks, int naxes) {
    return sizeof(tutti_placement) + nranks * (1 + (size_t)naxes) * sizeof(int);
}

/* Plans call these in their innermost loops. */
static void fill_coordinates(tutti_placement *placement) {
    int *next = placement->ranks + placement->nranks;
    for (int i = 0; i < placement->nranks; i++, next += placement->naxes)
        for (int axis = placement->naxes - 1, left = i; axis >= 0; axis--) {
            next[axis] = left % placement->sizes[axis];
            left /= placement->sizes[axis];
        }
}

tutti_status tutti_placement_create(tutti_comm *comm, tutti_memory memory, const int *ranks, const int *axes, int naxes,
                                    tutti_placement **placement_out) {
    int64_t nranks = 0;
    if (comm == NULL || placement_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_create: NULL argument");
    if (memory != TUTTI_MEMORY_ASK && memory != TUTTI_MEMORY_HOST && memory != TUTTI_MEMORY_CUDA)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "placement: %d is not a kind of memory; use TUTTI_MEMORY_HOST or TUTTI_MEMORY_CUDA",
                          (int)memory);
    TUTTI_TRY(check_axes(axes, naxes, &nranks));
    if (ranks == NULL && nranks != tutti_comm_size(comm))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "placement of all %d ranks: the sizes of its axes multiply to %lld, but must multiply to %d",
                          tutti_comm_size(comm), (long long)nranks, tutti_comm_size(comm));
    tutti_placement *placement = calloc(1, bytes_of((size_t)nranks, naxes));
    if (placement == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a placement of %lld ranks", (long long)nranks);
    placement->references = 1;
    placement->comm = comm;
    placement->memory = memory == TUTTI_MEMORY_CUDA ? memory : TUTTI_MEMORY_HOST;
    placement->gpu = -1;
    placement->naxes = naxes;
    placement->nranks = (int)nranks;
    memcpy(placement->sizes, axes, (size_t)naxes * sizeof *axes);
    fill_coordinates(placement);
    tutti_status status = fill(placement, ranks);
    if (status != TUTTI_OK) free(placement);
    else *placement_out = placement;
    return status;
}

tutti_status tutti_placement_shadow(const tutti_placement *placement, tutti_placement **shadow_out) {
    const size_t bytes = bytes_of((size_t)placement->nranks, placement->naxes);
    tutti_placement *shadow = malloc(bytes);
    if (shadow == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a placement of %d ranks", placement->nranks);
    memcpy(shadow, placement, bytes);
    shadow->references = 1;
    shadow->is_shadow = true;
    *shadow_out = shadow;
    return TUTTI_OK;
}

tutti_placement *tutti_placement_keep(tutti_placement *placement) {
    __atomic_add_fetch(&placement->references, 1, __ATOMIC_RELAXED);
    return placement;
}

void tutti_placement_destroy(tutti_placement *placement) {
    if (placement == NULL || __atomic_sub_fetch(&placement->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (!placement->is_shadow) release_groups(placement->groups);
    free(placement);
}

int tutti_placement_axes(const tutti_placement *placement) {
    return placement->naxes;
}

int tutti_placement_size(const tutti_placement *placement, int axis) {
    if (axis < 0) return placement->nranks;
    return axis < placement->naxes ? placement->sizes[axis] : 1;
}

int tutti_placement_coordinate(const tutti_placement *placement, int axis) {
    int coordinates[TUTTI_MOST_AXES];
    if (placement->me < 0 || axis < 0) return placement->me;
    tutti_placement_locate(placement, placement->me, coordinates);
    return axis < placement->naxes ? coordinates[axis] : 0;
}

bool tutti_placement_is_mate(const tutti_placement *placement, unsigned axes, int index) {
    int own[TUTTI_MOST_AXES], other[TUTTI_MOST_AXES];
    tutti_placement_locate(placement, placement->me, own);
    tutti_placement_locate(placement, index, other);
    for (int axis = 0; axis < placement->naxes; axis++)
        if ((axes >> axis & 1) == 0 && own[axis] != other[axis]) return false;
    return true;
}

tutti_status tutti_placement_comm(tutti_placement *placement, unsigned axes, tutti_comm **comm_out) {
    if (placement == NULL || comm_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_comm: NULL argument");
    if (axes >> placement->naxes != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_comm: axes 0x%x of a placement that has %d", axes,
                          placement->naxes);
    if (placement->me < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_comm: this rank is not in the placement");
    int nmembers = 0, *members;
    TUTTI_TRY(tutti_calloc((size_t)placement->nranks, sizeof *members, &members));
    for (int i = 0; i < placement->nranks; i++)
        if (tutti_placement_is_mate(placement, axes, i)) members[nmembers++] = placement->ranks[i];
    tutti_status status = tutti_rank_groups_get(placement->groups, members, nmembers, comm_out);
    free(members);
    return status;
}

/* The lock is held while a group is created; that ends as soon as the communicator it is created from is broken. */
tutti_status tutti_placement_abort(tutti_placement *placement, const char *reason) {
    tutti_status status = TUTTI_OK;
    if (placement == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_abort: NULL argument");
    pthread_mutex_lock(&placement->groups->lock);
    for (rank_group *group = placement->groups->first; group != NULL; group = group->next) {
        tutti_status own = tutti_comm_abort(group->comm, reason);
        if (status == TUTTI_OK) status = own;
    }
    pthread_mutex_unlock(&placement->groups->lock);
    return status;
}

bool tutti_placement_is_alike(const tutti_placement *a, const tutti_placement *b) {
    return a == b || (a->comm == b->comm && a->naxes == b->naxes && a->nranks == b->nranks &&
                      memcmp(a->sizes, b->sizes, (size_t)a->naxes * sizeof *a->sizes) == 0 &&
                      memcmp(a->ranks, b->ranks, (size_t)a->nranks * sizeof *a->ranks) == 0);
}

bool tutti_placement_is_equal(const tutti_placement *a, const tutti_placement *b) {
    return a->memory == b->memory && tutti_placement_is_alike(a, b);
}

tutti_memory tutti_placement_memory(const tutti_placement *placement) {
    return placement != NULL ? placement->memory : TUTTI_MEMORY_ASK;
}

int tutti_placement_gpu(const tutti_placement *placement) {
    return placement != NULL ? placement->gpu : -1;
}

void tutti_placement_locate(const tutti_placement *placement, int index, int coordinates[TUTTI_MOST_AXES]) {
    const int *own = placement->ranks + placement->nranks + (size_t)index * (size_t)placement->naxes;
    memcpy(coordinates, own, (size_t)placement->naxes * sizeof *own);
}

int tutti_placement_index(const tutti_placement *placement, const int coordinates[TUTTI_MOST_AXES]) {
    int index = 0;
    for (int axis = 0; axis < placement->naxes; axis++) index = index * placement->sizes[axis] + coordinates[axis];
    return index;
}

int tutti_placement_find(const tutti_placement *placement, int rank) {
    for (int i = 0; i < placement->nranks; i++)
        if (placement->ranks[i] == rank) return i;
    return -1;
}

void tutti_placement_text(const tutti_placement *placement, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "ranks ");
    for (int i = 0; i < placement->nranks && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, i > 0 ? ",%d" : "%d", placement->ranks[i]);
    for (int axis = 0; axis < placement->naxes && used < bytes; axis++)
        used += (size_t)snprintf(text + used, bytes - used, axis > 0 ? "x%d" : " as %d", placement->sizes[axis]);
    if (placement->memory == TUTTI_MEMORY_CUDA && used < bytes) snprintf(text + used, bytes - used, " in CUDA memory");
}
