/*
 * Internals of the stand-in for NCCL (standin_nccl.c): its communicators, and how bytes move between them.
 *
 *   rank 0's process        one area, a memfd; a process that has the unique id opens it through /proc
 *   area                    a channel from each rank to each other
 *   batch                   a group's calls on one communicator: runs in a stream of the stand-in for CUDA
 */
#ifndef TUTTI_TESTS_STANDIN_NCCL_H
#define TUTTI_TESTS_STANDIN_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/gpu/nccl/nccl_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define MAGIC  UINT64_C(0x7374616e64696e21)
#define OK     TUTTI_NCCL_SUCCESS

/* NCCL's prototypes, as the library has them. */
#define DECLARE(name, since, need, result, arguments) EXPORT result name arguments;
TUTTI_NCCL_CALLS(DECLARE)
#undef DECLARE

enum {
    STANDIN_RANKS = 8,
    STANDIN_CALLS = 4096, /* calls of a group */
    STANDIN_OPS = 64,     /* pre-multiplied sums of a communicator at a time */
    STANDIN_CHANNEL_BYTES = 16 << 10,
    STANDIN_ID_BYTES = 16,
    STANDIN_SPLITS = 64, /* splits of a communicator */
};

/* Bytes from one rank to another, in order. */
typedef struct standin_channel {
    _Atomic uint64_t written; /* by the sender, release */
    _Atomic uint64_t read;    /* by the receiver, release */
    char data[STANDIN_CHANNEL_BYTES];
} standin_channel;

/* One rank's entry in a split. */
typedef struct standin_ticket {
    int color, key;
    tutti_nccl_id id;    /* of the new communicator, written by its rank 0 */
    atomic_bool invited; /* the id is there */
} standin_ticket;

typedef struct standin_split {
    atomic_int arrived;
    standin_ticket tickets[STANDIN_RANKS];
} standin_split;

typedef struct standin_area {
    atomic_int arrived;
    standin_split splits[STANDIN_SPLITS];
    char gpus[STANDIN_RANKS][STANDIN_ID_BYTES];             /* each written by its rank before it arrives */
    standin_channel channels[STANDIN_RANKS][STANDIN_RANKS]; /* from, to */
} standin_area;

struct tutti_nccl_comm_ {
    uint64_t magic;
    int rank, nranks, gpu;
    int area_file; /* own: rank 0, in the process that made the id; else -1 */
    standin_area *area;
    atomic_int state; /* tutti_nccl_result, as ncclCommGetAsyncError returns it */
    atomic_bool abort;
    atomic_int pending; /* batches that have not ended, and the opening */
    atomic_int registered;
    int splits;             /* made so far */
    uint64_t batches;       /* launched so far */
    _Atomic uint64_t ended; /* the last batch that has ended */
    bool op_used[STANDIN_OPS];
    double factors[STANDIN_OPS];
    char error[256];
};

typedef enum standin_kind {
    STANDIN_ALL_REDUCE,
    STANDIN_REDUCE,
    STANDIN_BROADCAST,
    STANDIN_ALL_GATHER,
    STANDIN_REDUCE_SCATTER,
    STANDIN_SEND,
    STANDIN_RECV,
} standin_kind;

typedef struct standin_call {
    standin_kind kind;
    const void *src;
    void *dst;
    size_t count;
    tutti_nccl_type type;
    tutti_nccl_op op;
    double factor; /* if op is a pre-multiplied sum */
    int root;      /* or peer */
    tutti_nccl_comm comm;
    tutti_nccl_stream stream;
} standin_call;

/* A thread's open group and last error. */
typedef struct standin_group {
    int depth, ncalls;
    tutti_nccl_result failed; /* the first failure inside */
    char error[256];
    standin_call calls[STANDIN_CALLS];
} standin_group;

/* Calls of one communicator that run together. */
typedef struct standin_batch {
    tutti_nccl_comm comm;
    tutti_nccl_stream stream;
    uint64_t number; /* its number on its communicator, from 1 */
    standin_call *calls;
    int ncalls;
} standin_batch;

standin_group *standin_nccl_mine(void);
/* Records the reason, for ncclGetLastError. */
tutti_nccl_result standin_nccl_fail(tutti_nccl_result result, const char *why);
/* The result that STANDIN_NCCL_FAIL sets for this pass through `name`; rank -1: without a communicator. */
tutti_nccl_result standin_nccl_fault(const char *name, int rank);
/* Whether this thread may make the call on the communicator now. */
tutti_nccl_result standin_nccl_check(tutti_nccl_comm comm, const char *name);
/* A communicator with that id, not opened; NULL: rank 0's process has ended. */
tutti_nccl_comm standin_nccl_make(const tutti_nccl_id *id, int rank, int nranks, int gpu);
/* Waits for all ranks; then each finds by itself whether two of them have one GPU. */
tutti_nccl_result standin_nccl_meet(tutti_nccl_comm comm);
bool standin_nccl_is_config(const tutti_nccl_config *config);
/* Counts the call, for tests: standin_nccl_count(name). */
void standin_nccl_count_call(const char *name);
/* Waits for as long as a call stays in progress. */
void standin_nccl_linger(unsigned *seed);

size_t standin_nccl_type_bytes(tutti_nccl_type type);
/* In a stream: executes the batch, or hangs until the communicator is aborted. */
void standin_nccl_run(standin_batch *batch);

/* Functions that the stand-in for CUDA exports. */
typedef struct standin_cuda_calls {
    void (*enqueue)(void *stream, void (*function)(void *context), void *context);
    /* Keeps the batch for the graph that is being captured from the stream; false if there is none. */
    bool (*record)(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context);
    void *(*reach_as_gpu)(const void *address, size_t bytes);
    int (*current)(void);
    void (*set_current)(int gpu);
    const char *(*id)(int gpu);
    int (*alloc_unshared)(size_t bytes, void **memory_out);
    int (*free)(void *memory);
} standin_cuda_calls;
const standin_cuda_calls *standin_cuda(void);

#endif
