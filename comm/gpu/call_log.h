/*
 * The log of the collectives on CUDA memory that the ranks of a host have made. NCCL compares nothing: mismatched
 * calls hang or deliver wrong data. Each call leaves a record in its rank's page: the call, and a hash of it and
 * all calls before it. The first rank of a host compares its records with those of the other ranks, and they
 * compare theirs with those of the first rank. Calls of different hosts are not compared: a mismatch there ends at
 * the deadline.
 *
 * The watcher compares while calls are in flight: no call waits for it, and a call costs a few stores. Calls in
 * graphs have no number and leave no record.
 *
 * Invariant: only its owner writes a record; `number` is 0 while it changes, so a reader that finds the same number
 * before and after has a consistent record. If the hashes of a number are equal, all calls up to it are equal; the
 * hash is the same on all ranks by contract.
 */
#ifndef TUTTI_CALL_LOG_H
#define TUTTI_CALL_LOG_H

#include "comm/base/comm.h"

struct tutti_stream_comm;

/* Adds a record of the call to the caller's page. With gpu->order held. */
void tutti_call_log_add(struct tutti_stream_comm *gpu, const tutti_op *op);

/* Compares calls. A mismatch breaks the communicator; the error shows both calls. Called by the watcher, or by the
 * thread that holds gpu->order. */
tutti_status tutti_call_log_look(tutti_comm *comm);

/* Text to append to reports and errors: "; made by 3 of the 4 ranks of this host; missing: ...". Returns `text`,
 * which is empty if the number is 0, which no call has. */
const char *tutti_call_log_missing(const tutti_comm *comm, uint64_t number, char *text, size_t capacity);
/* True if all ranks of this host have made that call: ranks of another host then know better which are missing. */
bool tutti_call_log_defers(const tutti_comm *comm, uint64_t number);

#endif
