/*
 * Which collectives on CUDA memory the ranks of a host have made. NCCL compares nothing: calls that differ hang, or deliver
 * what no rank has asked for. Each call leaves a record in its rank's page: what it is, and a hash of it and of all calls
 * before it. The first rank of a host compares its records with those of the others, and they theirs with its. Calls of
 * different hosts are not compared: there a difference ends by the deadline.
 *
 * The watcher does that while calls are under way: no call waits for it, and none costs more than some stores. Calls in
 * graphs have no number, and leave no record.
 *
 * Invariant: a record is written by its owner only; `number` is 0 while it changes, so that a reader that finds the same
 * number before and after has a whole one. Where the hashes of a number are equal, so are all calls up to it; the hash is
 * the same on all ranks by contract.
 */
#ifndef TUTTI_CALL_LOG_H
#define TUTTI_CALL_LOG_H

#include "comm/base/comm.h"

struct tutti_stream_comm;

/* Leaves a record of the call in the own page. With gpu->order held. */
void tutti_call_log_add(struct tutti_stream_comm *gpu, const tutti_op *op);

/* Compares calls. A difference breaks the communicator; the error shows both calls. The watcher, or the thread that holds
 * gpu->order. */
tutti_status tutti_call_log_look(tutti_comm *comm);

/* To end reports and errors with: "; made by 3 of the 4 ranks of this host; missing: ...". Returns `text`, which is empty
 * where the number is 0, which no call has. */
const char *tutti_call_log_missing(const tutti_comm *comm, uint64_t number, char *text, size_t capacity);
/* Have all ranks of this host made that call, so that ranks of another host know more of which are missing? */
bool tutti_call_log_defers(const tutti_comm *comm, uint64_t number);

#endif
