/*
 * The collectives that are measured: one row each. A new benchmark is a new row here and a name in CMakeLists.txt.
 */
#ifndef TUTTI_BENCH_COLLECTIVES_H
#define TUTTI_BENCH_COLLECTIVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "bench/values.h"

/* The parts of a call whose parts differ in size: each array has one element per rank. */
typedef struct bench_lists {
    const void **srcs; /* rebuilt by each call from its src and dst */
    void **dsts;
    size_t *src_counts, *dst_counts;
    size_t *origins; /* where this rank's part begins in the other rank's data */
} bench_lists;

/* One call, as passed to a row's functions. */
typedef struct bench_call {
    tutti_comm *comm;
    int rank, nranks, root;
    const void *src;
    void *dst;
    size_t count;             /* as passed to the collective */
    size_t sent, received;    /* elements in this rank's buffers */
    size_t bytes;             /* as printed in the table's row */
    const bench_lists *lists; /* NULL unless the row is uneven */
    const bench_type *type;
    tutti_reduction reduction;
    bool in_place;
    bool grouped; /* the caller has opened a group */
    const tutti_options *options;
} bench_call;

typedef enum bench_parts {
    BENCH_WHOLE,    /* buffers of count elements on both sides */
    BENCH_GATHERS,  /* count sent, nranks times count received */
    BENCH_SCATTERS, /* nranks times count sent, count received */
    BENCH_EXCHANGES /* nranks times count on both sides */
} bench_parts;

typedef enum bench_redop {
    BENCH_REDOP_NONE,
    BENCH_REDOP_BLANK, /* as none, and the table's column is empty: as in nccl-tests, a row has 12 words */
    BENCH_REDOP_SHOWN, /* in the table, without effect */
    BENCH_REDOP_USED
} bench_redop;

typedef enum bench_bus { BENCH_BUS_SAME, BENCH_BUS_ONE_WAY, BENCH_BUS_TWO_WAYS } bench_bus;

typedef struct bench_collective {
    const char *name; /* the program's name */
    bench_parts parts;
    bench_bus bus; /* busbw / algbw: 1, (n-1)/n, 2(n-1)/n */
    bench_redop redop;
    bool has_root;
    bool only_root_sends;    /* the other ranks' send buffers are empty */
    bool unchecked_in_place; /* nccl-tests shows N/A there */
    bool uneven;             /* parts have the sizes of bench_traffic */
    bool stepwise;           /* dependent steps, each a group: calls cannot share one */
    bool own_not_counted;    /* algbw counts only the data from other ranks */
    bool ranks_power_of_two;
    tutti_status (*run)(const bench_call *call);
    /* Called after run: returns the number of wrong elements of this rank's result. */
    int64_t (*check)(const bench_call *call, const bench_pattern *pattern);
} bench_collective;

/* The row with this program name, or NULL. */
const bench_collective *bench_collective_find(const char *name);

/* The count to pass to the call for `bytes`: all of them; or, if each rank has a part, the nranks-th part rounded
 * down to a multiple of 16 bytes. */
size_t bench_collective_count(const bench_collective *row, size_t bytes, size_t type_bytes, int nranks);

/* The size of the buffers in units of `count`: 1 or nranks. */
size_t bench_collective_send_parts(const bench_collective *row, int nranks);
size_t bench_collective_receive_parts(const bench_collective *row, int nranks);

/* In place, the smaller buffer is the rank's own slice of the larger one: returns its index there, else 0. */
size_t bench_collective_send_slice(const bench_collective *row, int rank);
size_t bench_collective_receive_slice(const bench_collective *row, int rank);

/* The table's bytes: the larger of what a rank sends and receives. Not for an uneven row. */
size_t bench_collective_bytes(const bench_collective *row, size_t count, size_t type_bytes, int nranks);
/* The part of the table's bytes that algbw counts. */
size_t bench_collective_counted_bytes(const bench_collective *row, size_t bytes, int nranks);
/* busbw / algbw */
double bench_collective_bus_factor(const bench_collective *row, int nranks);

#endif
