/*
 * Collectives over several hosts, composed of parts: in shared memory among the ranks of a host, over links between hosts.
 * Each byte crosses the network once per host, not once per rank.
 *
 * Sums are in rank order within a host, then in the order of the hosts. float16 and smaller are rounded once per host, and
 * once at the end.
 */
#ifndef TUTTI_HIERARCHICAL_H
#define TUTTI_HIERARCHICAL_H

#include "comm/algorithms/rail.h"
#include "comm/hosts.h"
#include "comm/op.h"

/* Every kind, on a communicator that spans hosts. */
tutti_status tutti_hierarchical(tutti_comm *comm, const tutti_op *op);
/* Fills the table of a communicator made from another one, whose network it shares; else the first operation measures. */
tutti_status tutti_hierarchical_inherit(tutti_comm *comm, const tutti_comm *parent);

/* ------------------------------------------------------------------------------------------- its parts */

tutti_status tutti_hierarchical_all_reduce(tutti_comm *comm, const tutti_op *op);
tutti_status tutti_hierarchical_reduce(tutti_comm *comm, const tutti_op *op);
/* reduce_scatter and its v-variant. */
tutti_status tutti_hierarchical_reduce_scatter(tutti_comm *comm, const tutti_op *op);
/* all_gather and its v-variant. */
tutti_status tutti_hierarchical_all_gather(tutti_comm *comm, const tutti_op *op);
/* Kinds whose bytes each have one receiver: all_to_all, gather, scatter and their v-variants. */
tutti_status tutti_hierarchical_personal(tutti_comm *comm, const tutti_op *op);

/* Runs a part of op in shared memory, on this host's communicator. */
tutti_status tutti_hierarchical_local(tutti_comm *comm, const tutti_op *op, tutti_op part);
/* The rail of ranks that speak for their hosts: `rank` for its own, for the others the first ones. */
tutti_rail tutti_hierarchical_delegates(tutti_comm *comm, const tutti_op *op, int rank);
/* This rank's rail; all hosts have as many ranks. */
tutti_rail tutti_hierarchical_rail(tutti_comm *comm, const tutti_op *op);
/* Memory for a call on a rail, and for the caller before it; both in the heap. */
tutti_status tutti_hierarchical_setup(tutti_comm *comm, tutti_kind kind, size_t bytes, size_t own_bytes,
                                      tutti_rail_setup *setup_out, char **own_out);
/* What is left to do of a reduction between hosts, once each host has its sum. */
tutti_reduction tutti_hierarchical_between(const tutti_op *op);
/* And within a host. */
tutti_reduction tutti_hierarchical_within(const tutti_op *op);

#endif
