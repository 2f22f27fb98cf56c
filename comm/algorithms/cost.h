/*
 * What a rail costs: numbers from which the time of an algorithm is predicted. They are measured by a few exchanges of all
 * ranks at the same time when a communicator is made, of which the worst counts, or read from the file that
 * TUTTI_COST_FILE names:
 *
 *   # a line is a name and a number; all four
 *   latency_us    18.5     a step: a short message to one rank while one comes from another
 *   message_us    1.8      what each further message at the same time adds
 *   bandwidth_gbs 1.15     of a link, each direction, while both are in use (1e9 bytes per second)
 *   reduce_gbs    12       input that one rank adds up
 *
 * and, always found out, how many cores a rank has where ranks share them.
 *
 * Rank 0 of the rail decides and tells the others, so that all choose alike.
 */
#ifndef TUTTI_COST_H
#define TUTTI_COST_H

#include "comm/link.h"

typedef struct tutti_cost {
    double latency_us, message_us, bandwidth_gbs, reduce_gbs;
    double cores; /* for each rank of the host that has the fewest (file: of rank 0's); at most 1 */
} tutti_cost;

/* Of an ordinary network, where nothing was measured. */
extern const tutti_cost tutti_cost_ordinary;

/* Enough for tutti_cost_agree. */
#define TUTTI_COST_SCRATCH_BYTES ((size_t)4 << 20)

/* The costs of the rail; collective over it. `path` of rank 0 is read if it is not "", else all measure. A file
 * that is wrong is TUTTI_ERR_CONFIG on all ranks. */
tutti_status tutti_cost_agree(const tutti_rail *rail, const char *path, char *scratch, tutti_cost *cost_out);

/* Reads a file; TUTTI_ERR_CONFIG names the line and what is wrong. */
tutti_status tutti_cost_read(const char *path, tutti_cost *cost_out);

/* Microseconds for `steps` one after the other, in which this rank sends `messages` with `bytes` in all, while it receives as
 * much. */
static inline double tutti_cost_of_moving(const tutti_cost *cost, double steps, double messages, double bytes) {
    return steps * cost->latency_us + (messages - steps) * cost->message_us + bytes / (cost->bandwidth_gbs * 1e3);
}
static inline double tutti_cost_of_reducing(const tutti_cost *cost, double bytes) {
    return bytes / (cost->reduce_gbs * 1e3);
}

#endif
