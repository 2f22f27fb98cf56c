/*
 * Which collectives on CUDA memory the ranks have made. NCCL compares nothing: calls that differ hang, or bring what nobody
 * has asked for.
 *
 *   record    each call leaves one in its rank's page: what it is, and a hash of it and of all before it    stream_record.c
 *   ledger    what other hosts have told of theirs; only the first rank of a host has one                   stream_ledger.c
 *
 *      host a                        host b                        host c
 *      page 1 <-compare-> page 0     page 2     page 4 <-> page 3
 *                          |  <---- records ---->  |      between the firsts of hosts, one host in turn each millisecond
 *
 * The watcher does all that, while calls are under way and once they are done: no call waits for it, and none costs more than
 * some stores. What is in graphs has no number, and leaves no record.
 *
 * Invariant: where the hashes of a number are equal, so are all calls up to it. The hash is the same on all ranks by contract,
 * so two that differ are an error, whatever became of the calls.
 */
#ifndef TUTTI_STREAM_LEDGER_H
#define TUTTI_STREAM_LEDGER_H

#include "comm/comm.h"

/* A record as it was read; goes over the wire. */
typedef struct tutti_stream_entry {
    uint64_t number, signature, count, what;
} tutti_stream_entry;

#define TUTTI_STREAM_ENTRIES_TOLD 64 /* at once, at most */

/* -------------------------------------------------------------------------------------- stream_record.c */

/* Leaves a record of the call in the own page. With gpu->order held. */
void tutti_stream_record_call(struct tutti_stream_comm *gpu, const tutti_op *op);
/* False: the page's owner has not made that call, or so many since that it is not kept. */
bool tutti_stream_record_read(const tutti_page *page, uint64_t number, tutti_stream_entry *entry_out);
/* The number of its newest; 0: none. */
uint64_t tutti_stream_record_newest(const tutti_page *page);
/* The call that an entry tells of. */
tutti_call tutti_stream_entry_call(const tutti_stream_entry *entry);

/* -------------------------------------------------------------------------------------- stream_ledger.c */

struct tutti_stream_ledger;

/* Makes the ledger where this rank is to have one. */
tutti_status tutti_stream_ledger_create(struct tutti_stream_comm *gpu);
void tutti_stream_ledger_destroy(struct tutti_stream_ledger *ledger);

/* Compares calls, and tells others of new ones. A difference breaks the communicator; the error shows both calls. The watcher,
 * or who holds gpu->order. */
tutti_status tutti_stream_ledger_look(tutti_comm *comm);
/* For who waits for other hosts in op, on host memory: has one of them made that very call on CUDA memory, past what links compare?
 * A difference breaks the communicator. */
tutti_status tutti_stream_ledger_cross(tutti_comm *comm, const tutti_op *op);
/* Are there calls of which another host has not been told? */
bool tutti_stream_ledger_is_behind(const struct tutti_stream_comm *gpu);
/* `source`, of another host, has made these calls. Any thread. */
void tutti_stream_ledger_hear(const tutti_comm *comm, int source, const tutti_stream_entry *entries, size_t count);

/* To end reports and errors with: "; made by 3 of the 4 ranks ...; missing: ...", as far as this rank knows. Gives `text` back;
 * empty where the number is 0, which no call has. */
const char *tutti_stream_ledger_missing(const tutti_comm *comm, uint64_t number, char *text, size_t capacity);
/* Can another rank that waits in that call know more of who is missing? Then it should speak first. */
bool tutti_stream_ledger_defers(const tutti_comm *comm, uint64_t number);

#endif
