/*
 * Requiring RDMA between all hosts of a communicator: tutti_comm_init_rdma.
 *
 *   1 each rank checks its own adapters and settings; all exchange the results (all_gather)
 *   2 each rank connects to one rank of each other host, as collectives do, by whatever transport works
 *   3 each rank checks whether all its connections use verbs; all exchange the results (all_gather)
 *   4 if all do: from now on only verbs are used to these processes
 *
 * After 1 and 3 all ranks decide by the same reports, so all succeed, or fail with the same text. A failure leaves
 * the communicator unchanged: the connections between its hosts still work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/api/api.h"
#include "comm/net/hosts.h"
#include "comm/net/link.h"
#include "comm/p2p/p2p.h"
#include "comm/queue/queue.h"

#define MOST_NAMED 3 /* hosts in one error */

/* One for each step, so that ranks in different steps do not take them for the same call. */
#define HAVE_SIGNATURE    UINT64_C(0x3a1f6d2c59e80b47)
#define CONNECT_SIGNATURE UINT64_C(0x17c4b0893de2a65f)
#define REACH_SIGNATURE   UINT64_C(0x5d90e37a4b1c2f86)

/* The result of a rank. Sent to the other ranks as it is. */
typedef struct report {
    int32_t status;
    char host[64];
    char text[316];
} report;

/* --------------------------------------------------------------------------------------------- what is looked at */

/* Checks that this rank has adapters that it may use, and that the other ranks know of them. */
static tutti_status look_here(const tutti_comm *comm) {
    uint32_t mask = 0;
    TUTTI_TRY(tutti_verbs_transport.check());
    TUTTI_TRY(tutti_transports_available(&mask));
    if ((mask & tutti_verbs_only_bit()) == 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "the transport \"%s\" is not used: %s", tutti_verbs_transport.name,
                          tutti_transport_left_out(&tutti_verbs_transport));
    if (comm->net.hosts != NULL && (comm->net.hosts->listeners[comm->rank].transports & tutti_verbs_only_bit()) == 0)
        return tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "RDMA was not available when this process created its first communicator, and now it is: start "
            "the job again");
    return TUTTI_OK;
}

static tutti_status not_reached(const tutti_comm *comm, int rank, const char *way, const char *why) {
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "its adapter does not reach host %s (rank %d), to which %s leads%s%s",
                      comm->members[rank].process->host, rank, way, *why != '\0' ? ": " : "", why);
}

/* Checks that the existing links and message connections between this rank and others use verbs. */
static tutti_status look_at_connections(const tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        tutti_peer *process = comm->members[rank].process;
        if (!process->remote) continue;
        const tutti_pipe *pipe = tutti_link_pipe(comm, rank);
        if (pipe != NULL && !tutti_transport_can(pipe->transport, TUTTI_TRANSPORT_VERBS))
            return not_reached(comm, rank, pipe->transport->name, pipe->error);
        char why[sizeof pipe->error] = "";
        const tutti_transport *other = tutti_p2p_not_by(process, &tutti_verbs_transport, why, sizeof why);
        if (other != NULL) return not_reached(comm, rank, other->name, why);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------------- agreeing */

static int host_of(const tutti_comm *comm, int rank) {
    return comm->net.hosts != NULL ? comm->net.hosts->host_of[rank] : 0;
}

/* Whether an earlier rank of that host has failed, too. */
static bool is_named(const tutti_comm *comm, const report *all, int rank) {
    for (int before = 0; before < rank; before++)
        if (all[before].status != TUTTI_OK && host_of(comm, before) == host_of(comm, rank)) return true;
    return false;
}

/* Gives the same result on all ranks. */
static tutti_status judge(const tutti_comm *comm, const report *all) {
    char text[TUTTI_ERROR_TEXT_BYTES] = "";
    size_t used = 0;
    int named = 0;
    tutti_status status = TUTTI_OK;
    for (int rank = 0; rank < comm->nranks; rank++) {
        const report *r = &all[rank];
        if (r->status == TUTTI_OK || is_named(comm, all, rank)) continue;
        if (status == TUTTI_OK) status = r->status < 0 ? (tutti_status)r->status : TUTTI_ERR_DATA;
        if (named++ >= MOST_NAMED || used >= sizeof text) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "; host %.*s (rank %d): %.*s",
                                 (int)sizeof r->host - 1, r->host, rank, (int)sizeof r->text - 1, r->text);
    }
    if (status == TUTTI_OK) return TUTTI_OK;
    char more[32] = "";
    if (named > MOST_NAMED) snprintf(more, sizeof more, "; and %d more hosts", named - MOST_NAMED);
    return tutti_fail(status, "communicator \"%s\" cannot go by RDMA, and stays as it was%.*s%s", comm->name,
                      (int)sizeof text - 64, text, more);
}

/* Sends this rank's result (its error is the thread's last one) to all ranks, and returns the result of all. */
static tutti_status agree(tutti_comm *comm, tutti_status found, uint64_t signature) {
    report own = {.status = found}, *all;
    tutti_peer *self = comm->members[comm->rank].process;
    snprintf(own.host, sizeof own.host, "%s", self->host);
    if (found != TUTTI_OK) snprintf(own.text, sizeof own.text, "%s", tutti_last_error());
    tutti_status status = tutti_calloc((size_t)comm->nranks, sizeof *all, &all);
    if (status != TUTTI_OK) return tutti_comm_give_up(comm, status); /* the others wait for our report */
    tutti_op gather = {.kind = TUTTI_KIND_ALL_GATHER,
                       .type = TUTTI_UINT8,
                       .src = &own,
                       .dst = all,
                       .count = sizeof own,
                       .signature = signature};
    status = tutti_queue_run(comm, &gather);
    if (status == TUTTI_OK) status = judge(comm, all);
    free(all);
    return status;
}

/* Opens links to the ranks of this rank's rail, as collectives do, and checks them; op->dst gets the result. */
static tutti_status connect_and_look(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    tutti_rail rail = {.comm = comm, .op = op, .n = hosts->nhosts, .me = hosts->host, .ranks = hosts->rail};
    bool on_rail = hosts->uniform || hosts->local->rank == 0;
    for (int distance = 1; on_rail && distance < rail.n; distance++) {
        int to = (rail.me + distance) % rail.n, from = (rail.me + rail.n - distance) % rail.n;
        TUTTI_TRY(tutti_link_exchange(&rail, to, NULL, 0, from, NULL, 0));
    }
    *(tutti_status *)op->dst = look_at_connections(comm);
    return TUTTI_OK;
}

static tutti_status reach_all(tutti_comm *comm) {
    tutti_status found = TUTTI_OK;
    tutti_op connect = {
        .kind = TUTTI_KIND_BARRIER, .between_hosts = connect_and_look, .dst = &found, .signature = CONNECT_SIGNATURE};
    TUTTI_TRY(tutti_queue_run(comm, &connect));
    TUTTI_TRY(agree(comm, found, REACH_SIGNATURE));
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->members[rank].process->remote) /* pairs with tutti_verbs_only_mask */
            atomic_store_explicit(&comm->members[rank].process->verbs_only, true, memory_order_release);
    return TUTTI_OK;
}

tutti_status tutti_comm_init_rdma(tutti_comm *comm) {
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_init_rdma: comm is NULL");
    TUTTI_TRY(tutti_comm_check(comm));
    if (tutti_group_is_open(comm))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_init_rdma: this thread has a group open; end it first");
    if (atomic_load_explicit(&comm->net.has_rdma, memory_order_acquire)) return TUTTI_OK;
    TUTTI_TRY(agree(comm, look_here(comm), HAVE_SIGNATURE));
    if (comm->net.hosts != NULL) TUTTI_TRY(reach_all(comm));
    atomic_store_explicit(&comm->net.has_rdma, true, memory_order_release);
    if (comm->rank == 0)
        tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": RDMA between its %d hosts; from now on over verbs only",
                  comm->name, comm->net.hosts != NULL ? comm->net.hosts->nhosts : 1);
    return TUTTI_OK;
}
