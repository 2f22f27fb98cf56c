/*
 * What goes wrong while one waits: broken peers, deaths, departures, stalls, mismatches. Nothing here is on the path
 * of a call that goes well.
 */
#ifndef TUTTI_MONITOR_H
#define TUTTI_MONITOR_H

#include "comm/base/comm.h"

/* "all_reduce(float32, 1024, sum) #17": as much of it as the kind has. Gives `text` back. */
const char *tutti_call_describe(const tutti_call *call, char *text, size_t capacity);
/* What is told of op. */
tutti_call tutti_call_of(const tutti_op *op);

/* A call in one word, for tutti_page's stream_call: its number above TUTTI_STREAM_CALL_BITS, below a hash of what it is. */
#define TUTTI_STREAM_CALL_BITS 40
uint64_t tutti_call_pack(const tutti_call *call);

/* Is the communicator broken, here or on a peer, or has a rank left that op still needs? `deaths`: ask the kernel
 * about dead processes, too (a system call for each peer). Breaks the communicator then. */
tutti_status tutti_monitor_look(tutti_comm *comm, const tutti_op *op, bool deaths);

/* Logs who has not arrived in op, what each of them did last and when, and whether its process lives; or `missing`, where
 * the waiter knows better. */
void tutti_monitor_report(tutti_comm *comm, const tutti_op *op, int64_t waited_ms, const char *missing);
/* The same as one line, to end a timeout's error text with. */
void tutti_monitor_missing(tutti_comm *comm, const tutti_op *op, char *text, size_t capacity);

/* Breaks the communicator because `rank` made another call; the text shows both. */
tutti_status tutti_monitor_mismatch(tutti_comm *comm, const tutti_op *op, int rank, const tutti_post *post);

/* The same where the two calls are known already; `hint` is what to say if they look alike. */
tutti_status tutti_monitor_calls_differ(tutti_comm *comm, const tutti_call *own, int rank, const tutti_call *other,
                                        const char *hint);
/* A reason as `rank` gives it: with who found it. Who only passes it on is not added. Gives `text` back. */
const char *tutti_monitor_quote(const char *reason, int rank, char *text, size_t capacity);
/* The reason for which a rank's page is broken. */
typedef struct tutti_broken {
    int32_t status; /* as its owner has it; tutti_monitor_peer_status() makes it another rank's */
    char text[TUTTI_BROKEN_TEXT_BYTES];
} tutti_broken;
/* Reads it. False: the page of `rank` is not broken, or its owner has taken it back meanwhile. */
bool tutti_broken_read(const tutti_comm *comm, int rank, tutti_broken *broken_out);

/* Sets the error "rank 3 (host a, pid 17) died; WHAT of communicator "c" cannot go on", and returns its status. */
tutti_status tutti_monitor_died(const tutti_comm *comm, int rank, const char *what);

/* Breaks the communicator for the reason that `rank` gives. */
tutti_status tutti_monitor_adopt(tutti_comm *comm, int rank, int32_t broken_status, const char *reason);

/* The status that a broken page of another rank tells, as this rank's own. */
tutti_status tutti_monitor_peer_status(int32_t broken_status);

/* "lives", "is stopped", "has ended": the state of the process of `rank`. */
const char *tutti_monitor_process_state(const tutti_comm *comm, int rank);

#endif
