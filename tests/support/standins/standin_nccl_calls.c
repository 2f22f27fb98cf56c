/*
 * Calls of the stand-in for NCCL: they are recorded in the thread's group, whose end makes a batch of them for each
 * communicator. After a while in progress the batch is in its stream.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/standins/standin_nccl.h"

/* ------------------------------------------------------------------------------------------------- groups */

/* NCCL executes the calls of a communicator one after the other, whichever streams they are in. */
static void run_batch(void *context) {
    standin_batch *batch = context;
    tutti_nccl_comm comm = batch->comm;
    while (atomic_load(&comm->ended) + 1 < batch->number && !atomic_load(&comm->abort)) usleep(50);
    standin_nccl_run(batch);
    atomic_store(&comm->ended, batch->number);
    free(batch->calls);
    free(batch);
    atomic_fetch_sub(&comm->pending, 1); /* from here on comm may be freed */
}

static void free_batch(void *context) {
    standin_batch *batch = context;
    free(batch->calls);
    free(batch);
}

/* As part of a graph: runs at each launch, in the order of the streams. */
static void run_recorded(void *context) {
    standin_nccl_run(context);
}

static bool record_batch(standin_batch *batch) {
    tutti_nccl_comm comm = batch->comm;
    if (!standin_cuda()->record(batch->stream, run_recorded, free_batch, batch)) return false;
    while (atomic_load(&comm->ended) + 1 < batch->number && !atomic_load(&comm->abort)) usleep(50);
    atomic_store(&comm->ended, batch->number);
    atomic_fetch_sub(&comm->pending, 1);
    return true;
}

static void *launch_thread(void *context) {
    standin_batch *batch = context;
    tutti_nccl_comm comm = batch->comm;
    unsigned seed = (unsigned)comm->batches * 2654435761u + (unsigned)comm->rank;
    atomic_fetch_add(&comm->pending, 1); /* the batch's; this thread has one of its own */
    standin_nccl_linger(&seed);
    tutti_nccl_result made = standin_nccl_fault("async", comm->rank);
    standin_cuda()->set_current(comm->gpu); /* the default stream is that GPU's */
    if (!record_batch(batch)) standin_cuda()->enqueue(batch->stream, run_batch, batch);
    atomic_store(&comm->state, made);
    atomic_fetch_sub(&comm->pending, 1);
    return NULL;
}

/* All calls of the group that belong to the communicator of the first one. */
static tutti_nccl_result launch_first(standin_group *g) {
    pthread_t thread;
    standin_batch *batch = calloc(1, sizeof *batch);
    standin_call *calls = calloc((size_t)g->ncalls, sizeof *calls);
    if (batch == NULL || calls == NULL) abort();
    *batch = (standin_batch){.comm = g->calls[0].comm, .stream = g->calls[0].stream, .calls = calls};
    int kept = 0;
    bool one_stream = true;
    for (int i = 0; i < g->ncalls; i++) {
        one_stream &= g->calls[i].comm != batch->comm || g->calls[i].stream == batch->stream;
        if (g->calls[i].comm == batch->comm) calls[batch->ncalls++] = g->calls[i];
        else g->calls[kept++] = g->calls[i];
    }
    g->ncalls = kept;
    batch->number = ++batch->comm->batches;
    atomic_fetch_add(&batch->comm->pending, 1);
    atomic_store(&batch->comm->state, TUTTI_NCCL_IN_PROGRESS);
    if (!one_stream || pthread_create(&thread, NULL, launch_thread, batch) != 0) abort();
    pthread_detach(thread);
    return TUTTI_NCCL_IN_PROGRESS;
}

tutti_nccl_result ncclGroupStart(void) {
    tutti_nccl_result made = standin_nccl_fault("ncclGroupStart", -1);
    if (made != OK) return made;
    standin_group *g = standin_nccl_mine();
    if (g->depth++ == 0) g->ncalls = 0, g->failed = OK;
    return OK;
}

tutti_nccl_result ncclGroupEnd(void) {
    standin_group *g = standin_nccl_mine();
    tutti_nccl_result result = OK;
    if (g->depth == 0) return standin_nccl_fail(TUTTI_NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--g->depth > 0) return OK;
    standin_nccl_count_call("ncclGroupEnd");
    tutti_nccl_result made = g->failed != OK ? g->failed : standin_nccl_fault("ncclGroupEnd", -1);
    for (int i = 0; i < g->ncalls && made != OK; i++) atomic_store(&g->calls[i].comm->state, made);
    if (made != OK) return made;
    while (g->ncalls > 0) result = launch_first(g);
    return result;
}

static tutti_nccl_result record(const char *name, const standin_call *call) {
    standin_group *g = standin_nccl_mine();
    bool alone = g->depth == 0;
    standin_nccl_count_call(name);
    if (alone) ncclGroupStart();
    tutti_nccl_result made = standin_nccl_check(call->comm, name);
    if (made == OK && standin_nccl_type_bytes(call->type) == 0)
        made = standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "no type");
    if (made == OK && (call->root < 0 || call->root >= call->comm->nranks))
        made = standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "rank out of range");
    if (made == OK && g->ncalls == STANDIN_CALLS) abort();
    if (made == OK) {
        standin_call *kept = &g->calls[g->ncalls++];
        *kept = *call;
        if (call->op > TUTTI_NCCL_AVG) kept->factor = call->comm->factors[call->op - TUTTI_NCCL_AVG - 1];
    } else {
        atomic_store(&call->comm->state, made); /* a non-blocking communicator keeps its first error */
        if (g->failed == OK) g->failed = made;
    }
    return alone ? ncclGroupEnd() : made;
}

/* -------------------------------------------------------------------------------------------- collectives */

#define RECORD(name, ...)                                                                                              \
    record(#name, &(standin_call){.comm = comm, .stream = stream, .type = type, .count = count, __VA_ARGS__})

tutti_nccl_result ncclAllReduce(const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op,
                                tutti_nccl_comm comm, tutti_nccl_stream stream) {
    return RECORD(ncclAllReduce, .kind = STANDIN_ALL_REDUCE, .src = src, .dst = dst, .op = op);
}

tutti_nccl_result ncclReduce(const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op, int root,
                             tutti_nccl_comm comm, tutti_nccl_stream stream) {
    return RECORD(ncclReduce, .kind = STANDIN_REDUCE, .src = src, .dst = dst, .op = op, .root = root);
}

tutti_nccl_result ncclBroadcast(const void *src, void *dst, size_t count, tutti_nccl_type type, int root,
                                tutti_nccl_comm comm, tutti_nccl_stream stream) {
    return RECORD(ncclBroadcast, .kind = STANDIN_BROADCAST, .src = src, .dst = dst, .root = root);
}

tutti_nccl_result ncclAllGather(const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_comm comm,
                                tutti_nccl_stream stream) {
    return RECORD(ncclAllGather, .kind = STANDIN_ALL_GATHER, .src = src, .dst = dst);
}

tutti_nccl_result ncclReduceScatter(const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op,
                                    tutti_nccl_comm comm, tutti_nccl_stream stream) {
    return RECORD(ncclReduceScatter, .kind = STANDIN_REDUCE_SCATTER, .src = src, .dst = dst, .op = op);
}

tutti_nccl_result ncclSend(const void *src, size_t count, tutti_nccl_type type, int peer, tutti_nccl_comm comm,
                           tutti_nccl_stream stream) {
    return RECORD(ncclSend, .kind = STANDIN_SEND, .src = src, .root = peer);
}

tutti_nccl_result ncclRecv(void *dst, size_t count, tutti_nccl_type type, int peer, tutti_nccl_comm comm,
                           tutti_nccl_stream stream) {
    return RECORD(ncclRecv, .kind = STANDIN_RECV, .dst = dst, .root = peer);
}

/* The scalar has the call's type; its value as a number is found by comparing it with 1 times each factor. */
static double scalar_value(const void *scalar, tutti_nccl_type type) {
    switch (type) {
    case TUTTI_NCCL_INT8: return *(const int8_t *)scalar;
    case TUTTI_NCCL_UINT8: return *(const uint8_t *)scalar;
    case TUTTI_NCCL_INT32: return *(const int32_t *)scalar;
    case TUTTI_NCCL_UINT32: return *(const uint32_t *)scalar;
    case TUTTI_NCCL_INT64: return (double)*(const int64_t *)scalar;
    case TUTTI_NCCL_UINT64: return (double)*(const uint64_t *)scalar;
    case TUTTI_NCCL_FLOAT32: return *(const float *)scalar;
    case TUTTI_NCCL_FLOAT64: return *(const double *)scalar;
    case TUTTI_NCCL_BFLOAT16: {
        uint32_t bits = (uint32_t)*(const uint16_t *)scalar << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    default: {
        _Float16 value;
        memcpy(&value, scalar, sizeof value);
        return (double)value;
    }
    }
}

tutti_nccl_result ncclRedOpCreatePreMulSum(tutti_nccl_op *op, void *scalar, tutti_nccl_type type,
                                           tutti_nccl_residence residence, tutti_nccl_comm comm) {
    tutti_nccl_result made = standin_nccl_check(comm, "ncclRedOpCreatePreMulSum");
    if (made != OK) return made;
    if (residence != TUTTI_NCCL_SCALAR_HOST)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "the scalar is the host's");
    for (int i = 0; i < STANDIN_OPS; i++) {
        if (comm->op_used[i]) continue;
        comm->op_used[i] = true;
        comm->factors[i] = scalar_value(scalar, type);
        *op = (tutti_nccl_op)(TUTTI_NCCL_AVG + 1 + i);
        return OK;
    }
    return standin_nccl_fail(TUTTI_NCCL_INVALID_USAGE, "operations were made and not destroyed");
}

tutti_nccl_result ncclRedOpDestroy(tutti_nccl_op op, tutti_nccl_comm comm) {
    int index = (int)op - TUTTI_NCCL_AVG - 1;
    if (index < 0 || index >= STANDIN_OPS || !comm->op_used[index])
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "unknown operation");
    comm->op_used[index] = false;
    return OK;
}

/* ------------------------------------------------------------------------------------------------- memory */

tutti_nccl_result ncclMemAlloc(void **memory, size_t bytes) {
    tutti_nccl_result made = standin_nccl_fault("ncclMemAlloc", -1);
    if (made != OK) return made;
    return standin_cuda()->alloc_unshared(bytes, memory) == 0
               ? OK
               : standin_nccl_fail(TUTTI_NCCL_CUDA_ERROR, "out of memory");
}

tutti_nccl_result ncclMemFree(void *memory) {
    return standin_cuda()->free(memory) == 0
               ? OK
               : standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "it is not ncclMemAlloc's");
}

/* For tests: the number of registrations in this process. */
static atomic_int registrations;

EXPORT int standin_nccl_registered(void);
EXPORT int standin_nccl_registered(void) {
    return atomic_load(&registrations);
}

tutti_nccl_result ncclCommRegister(const tutti_nccl_comm comm, void *memory, size_t bytes, void **handle) {
    tutti_nccl_result made = standin_nccl_check(comm, "ncclCommRegister");
    if (made != OK) return made;
    if (standin_cuda()->reach_as_gpu(memory, bytes) == NULL)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "not the GPU's memory");
    atomic_fetch_add(&comm->registered, 1);
    atomic_fetch_add(&registrations, 1);
    *handle = comm;
    return OK;
}

tutti_nccl_result ncclCommDeregister(const tutti_nccl_comm comm, void *handle) {
    if (handle != comm) return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "it was not registered");
    if (atomic_load(&comm->pending) != 0) {
        fprintf(stderr, "NCCL's stand-in: memory is deregistered while a call may be at work on it\n");
        abort();
    }
    atomic_fetch_sub(&comm->registered, 1);
    atomic_fetch_sub(&registrations, 1);
    return OK;
}
