/*
 * The costs of a rail: numbers from which the time of an algorithm is predicted. All ranks measure them at the same
 * time by a few exchanges when a communicator is made, and the worst values count: rank 0 of the rail sends them to
 * the others, so that all ranks choose alike.
 */
#ifndef TUTTI_COST_H
#define TUTTI_COST_H

#include "comm/net/link.h"

typedef struct tutti_cost {
    double latency_us;    /* of a step: a short message to one rank while one arrives from another */
    double message_us;    /* cost of each further message at the same time */
    double bandwidth_gbs; /* of a link, in each direction, while both directions are in use (1e9 bytes per second) */
    double reduce_gbs;    /* input that one rank reduces */
    double cores;         /* cores per rank on the host with the fewest; at most 1 */
} tutti_cost;

/* Values of an ordinary network, used if nothing was measured. */
extern const tutti_cost tutti_cost_ordinary;

/* Scratch bytes for tutti_cost_agree. */
#define TUTTI_COST_SCRATCH_BYTES ((size_t)4 << 20)

/* Measures the costs of the rail; the result is equal on all ranks. Collective over the rail. */
tutti_status tutti_cost_agree(const tutti_rail *rail, char *scratch, tutti_cost *cost_out);

/* Microseconds for `steps` successive steps in which this rank sends `messages` of `bytes` in total and receives as
 * much. */
static inline double tutti_cost_of_moving(const tutti_cost *cost, double steps, double messages, double bytes) {
    return steps * cost->latency_us + (messages - steps) * cost->message_us + bytes / (cost->bandwidth_gbs * 1e3);
}
static inline double tutti_cost_of_reducing(const tutti_cost *cost, double bytes) {
    return bytes / (cost->reduce_gbs * 1e3);
}

#endif
