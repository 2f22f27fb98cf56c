/*
 * Algorithms for ranks that share memory. All begin alike: post, meet; then data is pulled.
 */
#ifndef TUTTI_SHARED_H
#define TUTTI_SHARED_H

#include "comm/arena.h"
#include "comm/comm.h"
#include "comm/op.h"
#include "comm/peer.h"
#include "comm/slots.h"

/* One rank: what is left of every kind. */
tutti_status tutti_solo(tutti_comm *comm, const tutti_op *op);
/* Small inputs: everyone shows his whole input, everyone takes what he needs. One meeting. */
tutti_status tutti_shared_once(tutti_comm *comm, const tutti_op *op);
/* Kinds that only move data, any size. */
tutti_status tutti_shared_move(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce, any size. */
tutti_status tutti_shared_reduce(tutti_comm *comm, const tutti_op *op);
/* reduce_scatter and its v-variant, any size. */
tutti_status tutti_shared_reduce_scatter(tutti_comm *comm, const tutti_op *op);

/* Can every other rank of the communicator read [data, data + bytes) where it is? */
bool tutti_shared_lends(const tutti_comm *comm, const void *data, size_t bytes);
/* The slots of `rank` as mapped here; valid after the meeting, where that rank posted slots. */
tutti_slots tutti_shared_slots_of(const tutti_comm *comm, const tutti_op *op, int rank);
/* An address that `rank` posted, as mapped here. */
const char *tutti_shared_at(const tutti_comm *comm, int rank, uint64_t address, size_t bytes);
/* Ends a call: says that this rank is done and, if it lends its own buffers, waits until nobody reads them. */
tutti_status tutti_shared_finish(tutti_comm *comm, const tutti_op *op, bool lends);
/* dst = reduction of comm->views[0..nranks), count elements, factors from the posts. */
void tutti_shared_reduce_views(tutti_comm *comm, const tutti_op *op, void *dst, size_t count);

#endif
