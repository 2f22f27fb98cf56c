/*
 * Failures during a wait: broken peers, deaths, departures, stalls, mismatches. Nothing here is on the path of a
 * successful call.
 */
#ifndef TUTTI_MONITOR_H
#define TUTTI_MONITOR_H

#include "comm/base/comm.h"

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

/* State of the process of `rank`: "lives", "is stopped", "has ended", "is a thread of this process". */
const char *tutti_monitor_process_state(const tutti_comm *comm, int rank);

#endif
