/*
 * This process's rank and the number of ranks: the launcher's values, completed and checked.
 *
 * No value is guessed silently. Rank and size must be given together or not at all; values about the hosts that a
 * launcher omits are filled in and logged where the ranks meet on this host, and are unknown (-1) where there may be
 * several hosts, until the ranks have met; a contradiction fails with an error that shows all values found.
 * torchrun's variables take precedence over a rank table, and that over the variables of MPI and Slurm: variables
 * that are set by hand inside such a job are meant. Where a rank table agrees with torchrun's variables, it still
 * provides the device and the interface.
 */
#include "bootstrap/launcher/world.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/launcher/pmix.h"
#include "bootstrap/launcher/rank_table.h"
#include "bootstrap/machine/interfaces.h"

enum { UNSET = TUTTI_NOT_GIVEN };

/* --------------------------------------------------------------------------------- from a row of variables */

/* `index` must be less than `count`; both are known here. */
static tutti_status check_index(const tutti_launcher_row *row, tutti_given index, tutti_given count,
                                const int *values) {
    char problem[160], label[64];
    if (values[index] < values[count]) return TUTTI_OK;
    snprintf(label, sizeof label, "%s", row->names[count] != NULL ? row->names[count] : "the number of its kind");
    snprintf(problem, sizeof problem, "%s=%d must be less than %s=%d", row->names[index], values[index], label,
             values[count]);
    return tutti_launcher_row_fail(row, problem);
}

static tutti_status check_positive(const tutti_launcher_row *row, tutti_given which, const int *values) {
    char problem[160];
    if (values[which] > 0) return TUTTI_OK;
    snprintf(problem, sizeof problem, "%s must be at least 1", row->names[which]);
    return tutti_launcher_row_fail(row, problem);
}

static void say_assumed(const tutti_launcher_row *row, const int *values) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&logged)) return;
    const char *rank = row->names[TUTTI_GIVEN_LOCAL_RANK], *size = row->names[TUTTI_GIVEN_LOCAL_SIZE];
    tutti_log(values[TUTTI_GIVEN_RANK] == 0 ? TUTTI_LOG_WARN : TUTTI_LOG_INFO,
              "%s or %s is not set: assuming that all %d ranks are on one host", rank != NULL ? rank : "LOCAL_RANK",
              size != NULL ? size : "LOCAL_WORLD_SIZE", values[TUTTI_GIVEN_SIZE]);
}

/* Whether torchrun's variables, set by OneFlow's launcher or by hand without LOCAL_WORLD_SIZE, may be those of ranks on
 * several hosts. They are of one host only where the ranks meet at a loopback address. */
static bool may_be_several_hosts(const tutti_launcher_row *row, const int *values) {
    const char *master = tutti_launcher_variable("MASTER_ADDR");
    const int local_rank = values[TUTTI_GIVEN_LOCAL_RANK];
    if (row->launcher != TUTTI_LAUNCHER_TORCHRUN || values[TUTTI_GIVEN_SIZE] == 1) return false;
    if (local_rank != UNSET && local_rank != values[TUTTI_GIVEN_RANK]) return true;
    return master != NULL && !tutti_host_is_loopback(master);
}

/* Local rank and size may follow from other values; else all ranks are on one host, or the local size is unknown. */
static tutti_status fill_local(const tutti_launcher_row *row, int *values) {
    int nodes = values[TUTTI_GIVEN_NODES], *local_size = &values[TUTTI_GIVEN_LOCAL_SIZE];
    int *local_rank = &values[TUTTI_GIVEN_LOCAL_RANK];
    if (*local_size == UNSET && nodes > 0 && values[TUTTI_GIVEN_SIZE] % nodes == 0)
        *local_size = values[TUTTI_GIVEN_SIZE] / nodes;
    if (*local_size != UNSET) {
        TUTTI_TRY(check_positive(row, TUTTI_GIVEN_LOCAL_SIZE, values));
        if (*local_rank == UNSET) *local_rank = values[TUTTI_GIVEN_RANK] % *local_size;
        return TUTTI_OK;
    }
    if (may_be_several_hosts(row, values)) return TUTTI_OK;
    if (*local_rank != UNSET && *local_rank != values[TUTTI_GIVEN_RANK]) {
        char problem[200];
        const char *name = row->names[TUTTI_GIVEN_LOCAL_SIZE];
        snprintf(problem, sizeof problem, "%s differs from %s, so there are several hosts: %s is needed",
                 row->names[TUTTI_GIVEN_LOCAL_RANK], row->names[TUTTI_GIVEN_RANK],
                 name != NULL ? name : "SLURM_STEP_TASKS_PER_NODE");
        return tutti_launcher_row_fail(row, problem);
    }
    if (values[TUTTI_GIVEN_SIZE] > 1) say_assumed(row, values);
    *local_rank = values[TUTTI_GIVEN_RANK];
    *local_size = values[TUTTI_GIVEN_SIZE];
    return TUTTI_OK;
}

/* MPI's launchers do not provide the node: ranks are assigned to the nodes in blocks, or round-robin. */
static void fill_node(int *values) {
    if (values[TUTTI_GIVEN_LOCAL_SIZE] == UNSET) return;
    int rank = values[TUTTI_GIVEN_RANK], local_rank = values[TUTTI_GIVEN_LOCAL_RANK];
    int local_size = values[TUTTI_GIVEN_LOCAL_SIZE], *nodes = &values[TUTTI_GIVEN_NODES];
    if (*nodes == UNSET) *nodes = (values[TUTTI_GIVEN_SIZE] + local_size - 1) / local_size;
    if (values[TUTTI_GIVEN_NODE] != UNSET) return;
    bool by_turns = rank % local_size != local_rank && rank / *nodes == local_rank;
    values[TUTTI_GIVEN_NODE] = by_turns ? rank % *nodes : (int)tutti_min_i64(rank / local_size, *nodes - 1);
}

static tutti_status complete(const tutti_launcher_row *row, int *values) {
    if (values[TUTTI_GIVEN_RANK] == UNSET || values[TUTTI_GIVEN_SIZE] == UNSET) {
        char problem[64];
        snprintf(problem, sizeof problem, "%s is missing",
                 row->names[values[TUTTI_GIVEN_RANK] == UNSET ? TUTTI_GIVEN_RANK : TUTTI_GIVEN_SIZE]);
        return tutti_launcher_row_fail(row, problem);
    }
    TUTTI_TRY(check_index(row, TUTTI_GIVEN_RANK, TUTTI_GIVEN_SIZE, values));
    TUTTI_TRY(fill_local(row, values));
    const bool sized = values[TUTTI_GIVEN_LOCAL_SIZE] != UNSET;
    TUTTI_TRY(check_index(row, TUTTI_GIVEN_LOCAL_RANK, sized ? TUTTI_GIVEN_LOCAL_SIZE : TUTTI_GIVEN_SIZE, values));
    if (values[TUTTI_GIVEN_LOCAL_SIZE] > values[TUTTI_GIVEN_SIZE]) {
        char problem[160];
        const char *local = row->names[TUTTI_GIVEN_LOCAL_SIZE];
        snprintf(problem, sizeof problem, "%s is more than %s", local != NULL ? local : "SLURM_STEP_TASKS_PER_NODE",
                 row->names[TUTTI_GIVEN_SIZE]);
        return tutti_launcher_row_fail(row, problem);
    }
    if (values[TUTTI_GIVEN_NODES] != UNSET) TUTTI_TRY(check_positive(row, TUTTI_GIVEN_NODES, values));
    fill_node(values);
    if (values[TUTTI_GIVEN_NODES] == UNSET) return TUTTI_OK;
    return check_index(row, TUTTI_GIVEN_NODE, TUTTI_GIVEN_NODES, values);
}

static tutti_status read_row(const tutti_launcher_row *row, tutti_world *world_out) {
    int values[TUTTI_GIVEN_COUNT];
    TUTTI_TRY(tutti_launcher_row_read(row, values));
    TUTTI_TRY(complete(row, values));
    *world_out = (tutti_world){.rank = values[TUTTI_GIVEN_RANK],
                               .size = values[TUTTI_GIVEN_SIZE],
                               .local_rank = values[TUTTI_GIVEN_LOCAL_RANK],
                               .local_size = values[TUTTI_GIVEN_LOCAL_SIZE],
                               .node = values[TUTTI_GIVEN_NODE],
                               .nodes = values[TUTTI_GIVEN_NODES],
                               .restart = values[TUTTI_GIVEN_RESTART] == UNSET ? 0 : values[TUTTI_GIVEN_RESTART]};
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- all sources */

/* Warns of processes that were started together but without ranks: each would be a world of its own. */
static void warn_of_other_launchers(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"};
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        const char *text = tutti_launcher_variable(sizes[i]);
        if (text == NULL || atoi(text) < 2 || atomic_flag_test_and_set(&logged)) continue;
        tutti_log(TUTTI_LOG_WARN, "%s=%s but no launcher has given this process a rank: it is a world of 1%s", sizes[i],
                  text, i == TUTTI_COUNT_OF(sizes) - 1 ? "; in a batch script, start the program with srun" : "");
    }
}

/* What the ranks of the world have found when they met. */
static struct {
    tutti_world world; /* size 0: nothing */
} found;

void tutti_world_complete(const tutti_world *world) {
    tutti_lock(TUTTI_LOCK_WORLD);
    found.world = *world;
    tutti_unlock(TUTTI_LOCK_WORLD);
}

static void fill_unknown(tutti_world *world) {
    tutti_lock(TUTTI_LOCK_WORLD);
    const tutti_world other = found.world;
    tutti_unlock(TUTTI_LOCK_WORLD);
    if (other.size != world->size || other.rank != world->rank) return;
    if (world->local_rank == UNSET) world->local_rank = other.local_rank;
    if (world->local_size == UNSET) world->local_size = other.local_size;
    if (world->node == UNSET) world->node = other.node;
    if (world->nodes == UNSET) world->nodes = other.nodes;
}

static tutti_status read_world(tutti_world *world_out, tutti_launcher *launcher_out) {
    const tutti_launcher_row *row = tutti_launcher_row_present();
    bool torchrun = row != NULL && row->launcher == TUTTI_LAUNCHER_TORCHRUN;
    *launcher_out = row != NULL ? row->launcher : TUTTI_LAUNCHER_NONE;
    if (!torchrun && tutti_rank_table_present(row != NULL)) {
        *launcher_out = TUTTI_LAUNCHER_RANK_TABLE;
        return tutti_rank_table_world(world_out);
    }
    if (row != NULL) return read_row(row, world_out);
    if (tutti_pmix_present()) {
        *launcher_out = TUTTI_LAUNCHER_PMIX;
        return tutti_pmix_world(world_out);
    }
    warn_of_other_launchers();
    *world_out = (tutti_world){.size = 1, .local_size = 1, .nodes = 1};
    return TUTTI_OK;
}

tutti_status tutti_world_read(tutti_world *world_out, tutti_launcher *launcher_out) {
    tutti_world world;
    TUTTI_TRY(read_world(&world, launcher_out));
    if (*launcher_out == TUTTI_LAUNCHER_TORCHRUN) world.device = tutti_rank_table_device(&world);
    else if (*launcher_out != TUTTI_LAUNCHER_RANK_TABLE) world.device = UNSET;
    if (world.local_size == UNSET || world.nodes == UNSET) fill_unknown(&world);
    *world_out = world;
    return TUTTI_OK;
}

tutti_status tutti_world_get(tutti_world *world_out) {
    tutti_launcher launcher;
    tutti_world world;
    if (world_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_world_get: world_out is NULL");
    TUTTI_TRY(tutti_world_read(&world, &launcher));
    *world_out = world;
    return TUTTI_OK;
}
