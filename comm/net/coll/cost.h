/*
 * What a rail costs: numbers from which the time of an algorithm is predicted. All ranks measure them by a few exchanges at
 * the same time when a communicator is made, and the worst of what they find counts: rank 0 of the rail tells it to the
 * others, so that all choose alike.
 */
#ifndef TUTTI_COST_H
#define TUTTI_COST_H

#include "comm/net/link.h"

typedef struct tutti_cost {
    double latency_us;    /* a step: a short message to one rank while one comes from another */
    double message_us;    /* what each further message at the same time adds */
    double bandwidth_gbs; /* of a link, in each direction, while both are in use (1e9 bytes per second) */
    double reduce_gbs;    /* input that one rank adds up */
    double cores;         /* for each rank of the host that has the fewest; at most 1 */
} tutti_cost;

/* Of an ordinary network, where nothing was measured. */
extern const tutti_cost tutti_cost_ordinary;

/* Enough for tutti_cost_agree. */
#define TUTTI_COST_SCRATCH_BYTES ((size_t)4 << 20)

/* Measures the costs of the rail, the same on all ranks; collective over it. */
tutti_status tutti_cost_agree(const tutti_rail *rail, char *scratch, tutti_cost *cost_out);

/* Microseconds for `steps` one after the other, in which this rank sends `messages` with `bytes` in all, while it receives as
 * much. */
static inline double tutti_cost_of_moving(const tutti_cost *cost, double steps, double messages, double bytes) {
    return steps * cost->latency_us + (messages - steps) * cost->message_us + bytes / (cost->bandwidth_gbs * 1e3);
}
static inline double tutti_cost_of_reducing(const tutti_cost *cost, double bytes) {
    return bytes / (cost->reduce_gbs * 1e3);
}

#endif
