/*
 * The algorithm table. The first row whose kinds and size fit is chosen; a row named by TUTTI_ALGORITHM comes first
 * where it fits. The choice depends only on the kind, the counts and the values that the communicator agreed on at
 * its creation, so every rank chooses the same row.
 */
#include "comm/api/api.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/hash.h"
#include "bootstrap/base/settings.h"
#include "comm/gpu/stream.h"
#include "comm/net/hier/hierarchical.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/coll/shared.h"
#include "comm/shm/flags.h"
#include "comm/shm/quiesce.h"

#define KIND(name) (1u << TUTTI_KIND_##name)
#define ALL_KINDS  ((1u << TUTTI_KIND_COUNT) - 1)
#define MOVING_KINDS                                                                                                   \
    (KIND(BROADCAST) | KIND(ALL_GATHER) | KIND(ALL_TO_ALL) | KIND(GATHER) | KIND(SCATTER) | KIND(ALL_GATHER_V) |       \
     KIND(ALL_TO_ALL_V) | KIND(GATHER_V) | KIND(SCATTER_V))

/* Data, not functions: a short call checks several rows. A row fits if its shape and one of its two limits fit. */
typedef struct row {
    const char *name;
    unsigned kinds;
    enum { ANY_SHAPE, ONE_RANK, SEVERAL_HOSTS, ONE_CHUNK } shape;
    size_t most_bytes; /* limit of a rank's input, with any number of ranks */
    int most_ranks;    /* limit of ranks, with any size */
    tutti_status (*run)(tutti_comm *comm, const tutti_op *op);
    const char *when;
} row;

/* Above this size a second step costs less than reducing everything n times. */
#define MOST_ONE_SHOT_BYTES ((size_t)16 << 10)

/* Above this size a second turn of every rank hardly matters. From trials with 8 to 256 ranks on 2 cores. */
#define MOST_COMBINED_BYTES ((size_t)128 << 10)
/* From this size of a slice on, each rank of a reduce_scatter reduces its own: that saves a copy, and 8 ranks on 2
 * cores take 0.8 of the time. Smaller ones are not worth reading the posts of all ranks. */
#define LEAST_SLICE_BYTES ((size_t)8 << 10)

static const row rows[] = {
    {.name = "single",
     .kinds = ALL_KINDS,
     .shape = ONE_RANK,
     .most_ranks = INT_MAX,
     .run = tutti_single,
     .when = "one rank"},
    {.name = "hierarchical",
     .kinds = ALL_KINDS,
     .shape = SEVERAL_HOSTS,
     .most_ranks = INT_MAX,
     .run = tutti_hierarchical,
     .when = "several hosts: shared memory on each, rails between them; long calls in pieces, so that both work at the "
             "same time"},
    {.name = "combine",
     .kinds = KIND(ALL_REDUCE) | KIND(REDUCE_SCATTER),
     .shape = ONE_CHUNK,
     .most_bytes = MOST_COMBINED_BYTES,
     .run = tutti_shared_combine,
     .when = "at least 5 ranks, more than cores; input of at most 128 KiB, in reduce_scatter slices below 8 KiB"},
    {.name = "inline",
     .kinds = ALL_KINDS,
     .most_bytes = TUTTI_POST_INLINE_BYTES,
     .run = tutti_shared_inline,
     .when = "input of at most 4160 bytes, equal counts"},
    {.name = "one_shot",
     .kinds = KIND(ALL_REDUCE) | KIND(REDUCE),
     .most_bytes = MOST_ONE_SHOT_BYTES,
     .most_ranks = 2,
     .run = tutti_shared_one_shot,
     .when = "2 ranks, or at most 16 KiB"},
    {.name = "two_shot",
     .kinds = KIND(ALL_REDUCE) | KIND(REDUCE),
     .most_ranks = INT_MAX,
     .run = tutti_shared_two_shot,
     .when = "always; where peers map input and output, each rank writes its slice to all (push.c)"},
    {.name = "reduce_scatter",
     .kinds = KIND(REDUCE_SCATTER) | KIND(REDUCE_SCATTER_V),
     .most_ranks = INT_MAX,
     .run = tutti_shared_reduce_scatter,
     .when = "always"},
    {.name = "copy", .kinds = MOVING_KINDS, .most_ranks = INT_MAX, .run = tutti_shared_copy, .when = "always"},
};

static bool has_shape(const row *candidate, const tutti_comm *comm, const tutti_op *op) {
    switch (candidate->shape) {
    case ONE_RANK: return comm->nranks == 1;
    case SEVERAL_HOSTS: return comm->net.hosts != NULL;
    case ONE_CHUNK:
        if (op->kind == TUTTI_KIND_REDUCE_SCATTER && op->count * tutti_type_bytes(op->type) >= LEAST_SLICE_BYTES)
            return false;
        return comm->counts && tutti_op_input_bytes(comm, op) <= comm->chunk_bytes;
    default: return true;
    }
}

static bool fits(const row *candidate, const tutti_comm *comm, const tutti_op *op) {
    return (candidate->kinds >> op->kind & 1) != 0 && has_shape(candidate, comm, op) &&
           (comm->nranks <= candidate->most_ranks || tutti_op_input_bytes(comm, op) <= candidate->most_bytes);
}

static const row *choose(const tutti_comm *comm, const tutti_op *op) {
    if (TUTTI_UNLIKELY(comm->forced_row >= 0) && comm->net.hosts == NULL && fits(&rows[comm->forced_row], comm, op))
        return &rows[comm->forced_row];
    const row *first = rows;
    while (!fits(first, comm, op)) first++; /* at least one row fits every operation */
    return first;
}

tutti_status tutti_select_forced(int *row_out) {
    const char *name = tutti_setting_text(TUTTI_SETTING_ALGORITHM);
    char known[256] = "";
    size_t used = 0;
    *row_out = -1;
    if (name[0] == '\0' || tutti_rail_has_row(name) || tutti_engines_have(name)) return TUTTI_OK; /* chosen there */
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *row_out = (int)i;
            return TUTTI_OK;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", rows[i].name);
    }
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "TUTTI_ALGORITHM=%s is unknown; expected one of %s; between hosts %s; for CUDA memory %s", name,
                      known, tutti_rail_row_names(), tutti_engines_names());
}

/* Makes the signature cover all calls up to this one. So if calls differ in a call in which not every rank met
 * every other, the next call with a full meeting finds it. */
static void chain_signature(tutti_comm *comm, tutti_op *op) {
    comm->history = tutti_hash_add(comm->history, op->signature);
    op->signature = comm->history >> 1;
}

tutti_status tutti_select_and_run(tutti_comm *comm, tutti_op *op) {
    TUTTI_TRY(tutti_comm_check(comm));
    if (TUTTI_UNLIKELY(op->begun_ns == 0)) op->begun_ns = tutti_coarse_now_ns();
    op->sequence = ++comm->sequence;
    chain_signature(comm, op);
    tutti_wait_state_begin(comm, op);
    tutti_status status = comm->net.hosts == NULL ? tutti_post_claim(comm, op) : TUTTI_OK;
    if (TUTTI_LIKELY(status == TUTTI_OK)) status = choose(comm, op)->run(comm, op);
    if (TUTTI_LIKELY(status == TUTTI_OK)) return TUTTI_OK;
    status = tutti_comm_give_up_running(comm, status);
    if (comm->net.hosts != NULL) return status;
    tutti_post_spoil(comm, op);
    if (comm->shm.exposed == op->sequence) tutti_quiesce(comm, op);
    return status;
}

const char *tutti_select_row(int index, char *text, size_t capacity) {
    if (index < 0 || (size_t)index >= TUTTI_COUNT_OF(rows)) return NULL;
    size_t used = (size_t)snprintf(text, capacity, "%-16s", rows[index].name);
    for (int kind = 0; kind < TUTTI_KIND_COUNT && used < capacity; kind++)
        if ((rows[index].kinds >> kind & 1) != 0 && rows[index].kinds != ALL_KINDS)
            used += (size_t)snprintf(text + used, capacity - used, "%s ", tutti_kind_name((tutti_kind)kind));
    if (used < capacity)
        snprintf(text + used, capacity - used, "%s(%s)", rows[index].kinds == ALL_KINDS ? "all " : "",
                 rows[index].when);
    return text;
}
