/*
 * Failures during a wait: broken peers, deaths, departures, stalls, mismatches. Nothing here is on the path of a
 * successful call.
 */
#ifndef TUTTI_MONITOR_H
#define TUTTI_MONITOR_H

#include "comm/base/comm.h"

/* "all_reduce(float32, 1024, sum) #17", with the parts that the kind has. Returns `text`. */
const char *tutti_call_describe(const tutti_call *call, char *text, size_t capacity);
/* The record of op for reports. */
tutti_call tutti_call_of(const tutti_op *op);

/* A call in one word, for tutti_page's stream_call: its number above TUTTI_STREAM_CALL_BITS, below it a hash of the
 * call. */
#define TUTTI_STREAM_CALL_BITS 40
uint64_t tutti_call_pack(const tutti_call *call);

/* Checks whether the communicator is broken, here or on a peer, or a rank that op still needs has left, and breaks
 * the communicator then. `deaths`: also asks the kernel about dead processes (one system call per peer). */
tutti_status tutti_monitor_look(tutti_comm *comm, const tutti_op *op, bool deaths);

/* Logs which ranks have not arrived in op, what each of them did last and when, and whether its process lives. If
 * the waiter knows better, it passes the text as `missing`. */
void tutti_monitor_report(tutti_comm *comm, const tutti_op *op, int64_t waited_ms, const char *missing);
/* The same as one line, to append to a timeout's error text. */
void tutti_monitor_missing(tutti_comm *comm, const tutti_op *op, char *text, size_t capacity);

/* Breaks the communicator because `rank` made another call; the error text shows both calls. */
tutti_status tutti_monitor_mismatch(tutti_comm *comm, const tutti_op *op, int rank, const tutti_post *post);

/* The same if both calls are known already; `hint` is added if they look alike. */
tutti_status tutti_monitor_calls_differ(tutti_comm *comm, const tutti_call *own, int rank, const tutti_call *other,
                                        const char *hint);
/* The reason that `rank` gives, with the rank that found it. Ranks that only pass it on are not added. Returns
 * `text`. */
const char *tutti_monitor_quote(const char *reason, int rank, char *text, size_t capacity);
/* The reason for which a rank's page is broken. */
typedef struct tutti_broken {
    int32_t status; /* as stored by its owner; tutti_monitor_peer_status() converts it for another rank */
    char text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_broken;
/* Reads it. False: the page of `rank` is not broken, or its owner has reclaimed it meanwhile. */
bool tutti_broken_read(const tutti_comm *comm, int rank, tutti_broken *broken_out);

/* Sets the error "rank 3 (host a, pid 17) died; WHAT of communicator "c" cannot go on", and returns its status. */
tutti_status tutti_monitor_died(const tutti_comm *comm, int rank, const char *what);

/* Breaks the communicator for the reason that `rank` gives. */
tutti_status tutti_monitor_adopt(tutti_comm *comm, int rank, int32_t broken_status, const char *reason);

/* Converts the status of another rank's broken page to this rank's own status. */
tutti_status tutti_monitor_peer_status(int32_t broken_status);

/* State of the process of `rank`: "lives", "is stopped", "has ended", "is a thread of this process". */
const char *tutti_monitor_process_state(const tutti_comm *comm, int rank);

#endif
