/*
 * The record of a call (tutti_call), as ranks compare it and as errors and reports show it.
 */
#ifndef TUTTI_CALL_H
#define TUTTI_CALL_H

#include "comm/base/comm.h"

/* "all_reduce(float32, 1024, sum) #17", with the parts that the kind has. Returns `text`. */
const char *tutti_call_describe(const tutti_call *call, char *text, size_t capacity);
/* The record of op for reports. */
tutti_call tutti_call_of(const tutti_op *op);

/* A call in one word, for tutti_page's stream_call: its number above TUTTI_STREAM_CALL_BITS, below it a hash of the
 * call. */
#define TUTTI_STREAM_CALL_BITS 40
uint64_t tutti_call_pack(const tutti_call *call);

/* Breaks the communicator because `rank` made another call; the error text shows both calls. `hint` is added if they
 * look alike. */
tutti_status tutti_calls_differ(tutti_comm *comm, const tutti_call *own, int rank, const tutti_call *other,
                                const char *hint);

#endif
