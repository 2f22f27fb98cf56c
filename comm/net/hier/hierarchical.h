/*
 * Collectives over several hosts, composed of parts: shared memory among the ranks of a host, links between hosts.
 * Each byte crosses the network once per host, not once per rank. Long calls with several ranks on a host are split
 * into pieces, so that both parts run at the same time.
 *
 * Sums are in rank order within a host, then in the order of rails (rail.h). float16 and smaller types are rounded
 * once per host, and once at the end.
 */
#ifndef TUTTI_HIERARCHICAL_H
#define TUTTI_HIERARCHICAL_H

#include "comm/base/op.h"
#include "comm/net/coll/rail.h"
#include "comm/net/hosts.h"

/* Runs an operation of any kind on a communicator over several hosts. */
tutti_status tutti_hierarchical(tutti_comm *comm, const tutti_op *op);
/* Fills the table of a communicator made from another one, by its measured costs; else the first call measures. */
tutti_status tutti_hierarchical_inherit(tutti_comm *comm, const tutti_comm *parent);

/* hierarchical_copy.c: all_gather and its v-variant. */
tutti_status tutti_hierarchical_all_gather(tutti_comm *comm, const tutti_op *op);
/* Kinds in which each byte has one receiver: all_to_all, gather, scatter and their v-variants. */
tutti_status tutti_hierarchical_personal(tutti_comm *comm, const tutti_op *op);

/* hierarchical_pieces.c: runs a part of op in shared memory, on this host's communicator. */
tutti_status tutti_hierarchical_local(tutti_comm *comm, const tutti_op *op, tutti_op part);
/* The rail of leaders: `rank` for its own host, the first ranks for the others. */
tutti_rail tutti_hierarchical_leaders(tutti_comm *comm, const tutti_op *op, int rank);
/* This rank's rail; requires hosts with equal numbers of ranks. */
tutti_rail tutti_hierarchical_rail(tutti_comm *comm, const tutti_op *op);
/* Memory for a call on a rail, and own_bytes for the caller; both in the heap. */
tutti_status tutti_hierarchical_setup(tutti_comm *comm, tutti_kind kind, size_t bytes, size_t own_bytes,
                                      tutti_rail_setup *setup_out, char **own_out);

/* ------------------------------------------------------------------------------------------- in pieces */

/*
 * A call in pieces. While piece k crosses the network, piece k + 1 is prepared on this host, and piece k - 1 is
 * distributed there. before and after start parts of a piece, which may still run when they return; across moves
 * the piece over the network and returns when it is done. A buffer filled by before(k) may be filled again by
 * before(k + 2), which is called after before(k + 1), across(k) and after(k).
 */
typedef struct tutti_pieces tutti_pieces;
struct tutti_pieces {
    tutti_comm *comm;
    const tutti_op *op;
    void *context;
    size_t npieces; /* equal on all ranks of this host, and on this rank's rail */
    /* before and after: NULL on all ranks of the host, or on none. across: NULL if this rank is on no rail. */
    tutti_status (*before)(tutti_pieces *pieces, size_t k);
    tutti_status (*across)(tutti_pieces *pieces, size_t k);
    tutti_status (*after)(tutti_pieces *pieces, size_t k);
    /* Set by tutti_pieces_run: */
    bool overlaps;    /* parts are queued */
    tutti_work *last; /* the part queued last */
};
tutti_status tutti_pieces_run(tutti_pieces *pieces);
/* For before and after: starts a part on this host's communicator. The arrays of part may be reused at once. */
tutti_status tutti_pieces_start(tutti_pieces *pieces, tutti_op part);
/* The piece size for a call of that kind on a rail of `bytes` (tutti_rail_scratch_bytes), if `nrails` rails share the
 * network and the ranks of a host share `host_bytes`. Equal on all ranks, and a multiple of the cache line. */
size_t tutti_hierarchical_piece_bytes(const tutti_comm *comm, tutti_kind kind, int nrails, size_t bytes,
                                      size_t host_bytes);
/* Number of pieces; at least one. */
static inline size_t tutti_hierarchical_pieces(size_t bytes, size_t piece_bytes) {
    return bytes > piece_bytes ? (bytes + piece_bytes - 1) / piece_bytes : 1;
}

#endif
