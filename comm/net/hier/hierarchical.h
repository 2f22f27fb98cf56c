/*
 * Collectives over several hosts, composed of parts: in shared memory among the ranks of a host, over links between hosts.
 * Each byte crosses the network once per host, not once per rank. Long calls of several ranks on a host go in pieces, so that
 * both parts work at the same time.
 *
 * Sums are in rank order within a host, then in that of rails (rail.h). float16 and smaller are rounded once per host, and
 * once at the end.
 */
#ifndef TUTTI_HIERARCHICAL_H
#define TUTTI_HIERARCHICAL_H

#include "comm/net/coll/rail.h"
#include "comm/net/hosts.h"
#include "comm/base/op.h"

/* Every kind, on a communicator that spans hosts. */
tutti_status tutti_hierarchical(tutti_comm *comm, const tutti_op *op);
/* Fills the table of a communicator made from another one, whose network it shares; else the first operation measures. */
tutti_status tutti_hierarchical_inherit(tutti_comm *comm, const tutti_comm *parent);

/* ------------------------------------------------------------------------------------------- its parts */

/* One rank speaks for each host. */
tutti_status tutti_hierarchical_broadcast(tutti_comm *comm, const tutti_op *op);
tutti_status tutti_hierarchical_reduce(tutti_comm *comm, const tutti_op *op);
tutti_status tutti_hierarchical_all_reduce_delegated(tutti_comm *comm, const tutti_op *op);
/* reduce_scatter and its v-variant. */
tutti_status tutti_hierarchical_reduce_scatter(tutti_comm *comm, const tutti_op *op);
/* all_gather and its v-variant. */
tutti_status tutti_hierarchical_all_gather(tutti_comm *comm, const tutti_op *op);
/* Kinds whose bytes each have one receiver: all_to_all, gather, scatter and their v-variants. */
tutti_status tutti_hierarchical_personal(tutti_comm *comm, const tutti_op *op);

/* all_to_all of small blocks, in fewer messages; and does it pay? Equal on all ranks. */
bool tutti_hierarchical_exchanges(const tutti_comm *comm, const tutti_op *op);
tutti_status tutti_hierarchical_exchange(tutti_comm *comm, const tutti_op *op);
/* gather and scatter of small blocks, likewise. */
bool tutti_hierarchical_is_rooted(const tutti_comm *comm, const tutti_op *op);
tutti_status tutti_hierarchical_rooted(tutti_comm *comm, const tutti_op *op);
/* Is it worth it to copy `bytes` together and apart, so that so many messages are saved? */
bool tutti_hierarchical_pays(const tutti_comm *comm, int messages, size_t bytes);

/* Makes the rest of a part of op, which runs on this host's communicator, from op. */
void tutti_hierarchical_describe(const tutti_op *op, tutti_op *part);
/* Runs a part of op in shared memory, on this host's communicator. */
tutti_status tutti_hierarchical_local(tutti_comm *comm, const tutti_op *op, tutti_op part);
/* The rail of ranks that speak for their hosts: `rank` for its own, for the others the first ones. */
tutti_rail tutti_hierarchical_delegates(tutti_comm *comm, const tutti_op *op, int rank);
/* This rank's rail; all hosts have as many ranks. */
tutti_rail tutti_hierarchical_rail(tutti_comm *comm, const tutti_op *op);
/* Memory for a call on a rail, and for the caller before it; both in the heap. */
tutti_status tutti_hierarchical_setup(tutti_comm *comm, tutti_kind kind, size_t bytes, size_t own_bytes,
                                      tutti_rail_setup *setup_out, char **own_out);
/* Of `count` elements of op between hosts. */
tutti_rail_vector tutti_hierarchical_vector(const tutti_comm *comm, const tutti_op *op, const void *src, void *dst,
                                            size_t count);
/* What is left to do of a reduction between hosts, once each host has its sum. */
tutti_reduction tutti_hierarchical_between(const tutti_op *op);
/* And within a host. */
tutti_reduction tutti_hierarchical_within(const tutti_op *op);

/* ------------------------------------------------------------------------------------------- in pieces */

/*
 * A call in pieces. While piece k crosses the network, piece k + 1 is made ready on this host, and piece k - 1 handed round
 * there: before and after start parts of a piece, which may still run when they return; across moves it over the network
 * itself. A buffer that before(k) fills may be filled again by before(k + 2), after before(k + 1), across(k) and after(k).
 */
typedef struct tutti_pieces tutti_pieces;
struct tutti_pieces {
    tutti_comm *comm;
    const tutti_op *op;
    void *context;
    size_t npieces; /* equal on all ranks of this host, and on this rank's rail */
    /* before and after: NULL on all ranks of the host, or on none. across: NULL where this rank is on no rail. */
    tutti_status (*before)(tutti_pieces *pieces, size_t k);
    tutti_status (*across)(tutti_pieces *pieces, size_t k);
    tutti_status (*after)(tutti_pieces *pieces, size_t k);
    /* Of tutti_pieces_run: */
    bool overlaps;    /* parts are queued */
    tutti_work *last; /* the part that was queued last */
};
tutti_status tutti_pieces_run(tutti_pieces *pieces);
/* For before and after: starts a part on this host's communicator. The arrays of part may be used again at once. */
tutti_status tutti_pieces_start(tutti_pieces *pieces, tutti_op part);
/* How much of `bytes`, as in tutti_rail_scratch_bytes, a piece of that kind of call on a rail carries, where so many rails
 * share the network and the ranks of a host share `host_bytes`. All equal on all ranks, and so is what it gives: whole cache
 * lines. */
size_t tutti_hierarchical_piece_bytes(const tutti_comm *comm, tutti_kind kind, int nrails, size_t bytes,
                                      size_t host_bytes);
/* In how many pieces; at least one. */
static inline size_t tutti_hierarchical_pieces(size_t bytes, size_t piece_bytes) {
    return bytes > piece_bytes ? (bytes + piece_bytes - 1) / piece_bytes : 1;
}

#endif
