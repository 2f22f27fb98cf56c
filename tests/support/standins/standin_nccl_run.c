/*
 * Execution of the stand-in for NCCL: a batch becomes transfers, all of which make progress together, and then sums.
 *
 * Every call consists of transfers between pairs of ranks. A transfer begins with a header that identifies its call;
 * a receiver that finds another header does what NCCL does when calls differ: it hangs until its communicator is
 * aborted. tutti_reduce_host computes sums in an order other than that of ranks (STANDIN_NCCL_ORDER=ranks: in that
 * order), so that tests see which results depend on it.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/reduce.h"
#include "tests/support/standins/standin_nccl.h"

typedef struct header {
    uint64_t kind, type, op, root, bytes;
} header;

typedef struct transfer {
    struct transfer *next;
    header told, expected; /* of a receive: the header received, and the expected one */
    char *data;
    size_t done; /* bytes of header and data together */
} transfer;

/* The transfers of a batch: two queues for each peer. */
typedef struct plan {
    tutti_nccl_comm comm;
    transfer *sends[STANDIN_RANKS], *recvs[STANDIN_RANKS];
    bool stuck;
} plan;

static const tutti_type types[] = {[TUTTI_NCCL_INT8] = TUTTI_INT8,       [TUTTI_NCCL_UINT8] = TUTTI_UINT8,
                                   [TUTTI_NCCL_INT32] = TUTTI_INT32,     [TUTTI_NCCL_UINT32] = TUTTI_UINT32,
                                   [TUTTI_NCCL_INT64] = TUTTI_INT64,     [TUTTI_NCCL_UINT64] = TUTTI_UINT64,
                                   [TUTTI_NCCL_FLOAT16] = TUTTI_FLOAT16, [TUTTI_NCCL_FLOAT32] = TUTTI_FLOAT32,
                                   [TUTTI_NCCL_FLOAT64] = TUTTI_FLOAT64, [TUTTI_NCCL_BFLOAT16] = TUTTI_BFLOAT16};

size_t standin_nccl_type_bytes(tutti_nccl_type type) {
    return (unsigned)type < sizeof types / sizeof types[0] ? tutti_type_bytes(types[type]) : 0;
}

static bool is_float(tutti_nccl_type type) {
    return type >= TUTTI_NCCL_FLOAT16;
}

/* ---------------------------------------------------------------------------------------------- transfers */

static void add(transfer **queue, const standin_call *call, char *data, size_t bytes) {
    transfer *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    bool message = call->kind == STANDIN_SEND || call->kind == STANDIN_RECV;
    made->expected = (header){.kind = message ? STANDIN_SEND : call->kind,
                              .type = call->type,
                              .op = call->op >= TUTTI_NCCL_AVG ? TUTTI_NCCL_AVG : call->op,
                              .root = message ? 0 : (uint64_t)call->root,
                              .bytes = bytes};
    made->told = made->expected;
    made->data = data;
    while (*queue != NULL) queue = &(*queue)->next;
    *queue = made;
}

/* The address of byte `done` of a transfer, and how many contiguous bytes follow. */
static char *place(transfer *t, bool send, size_t *run) {
    size_t head = sizeof(header);
    if (t->done < head) {
        *run = head - t->done;
        return (char *)&t->told + t->done;
    }
    (void)send;
    *run = t->expected.bytes - (t->done - head);
    return t->data + (t->done - head);
}

static bool complete(const transfer *t) {
    return t->done == sizeof(header) + t->expected.bytes;
}

/* Moves what the channel accepts or contains; a receive that finds a header other than its own is stuck. */
static bool push(transfer *t, standin_channel *channel, bool send, bool *stuck) {
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_acquire);
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_acquire);
    bool moved = false;
    while (!complete(t) && !*stuck) {
        uint64_t at = send ? written : read;
        size_t can = send ? STANDIN_CHANNEL_BYTES - (size_t)(written - read) : (size_t)(written - read), run;
        char *bytes = place(t, send, &run);
        size_t offset = (size_t)(at % STANDIN_CHANNEL_BYTES), straight = STANDIN_CHANNEL_BYTES - offset;
        if (run > can) run = can;
        if (run > straight) run = straight;
        if (run == 0) break;
        if (send) memcpy(channel->data + offset, bytes, run);
        else memcpy(bytes, channel->data + offset, run);
        t->done += run;
        if (send) atomic_store_explicit(&channel->written, written += run, memory_order_release);
        else atomic_store_explicit(&channel->read, read += run, memory_order_release);
        moved = true;
        if (!send && t->done == sizeof(header)) *stuck = memcmp(&t->told, &t->expected, sizeof(header)) != 0;
    }
    return moved;
}

static bool advance(plan *p, transfer **queue, int from, int to, bool send) {
    transfer *first = *queue;
    if (first == NULL) return false;
    bool moved = push(first, &p->comm->area->channels[from][to], send, &p->stuck);
    if (!complete(first)) return moved;
    *queue = first->next;
    free(first);
    return true;
}

/* Returns false if the communicator was aborted. */
static bool move(plan *p) {
    int own = p->comm->rank;
    for (unsigned idle = 0;;) {
        bool left = false, moved = false;
        if (atomic_load(&p->comm->abort)) return false;
        for (int peer = 0; peer < p->comm->nranks && !p->stuck; peer++) {
            moved |= advance(p, &p->sends[peer], own, peer, true);
            moved |= advance(p, &p->recvs[peer], peer, own, false);
            left |= p->sends[peer] != NULL || p->recvs[peer] != NULL;
        }
        if (!left && !p->stuck) return true;
        idle = moved ? 0 : idle + 1;
        if (idle > 64) usleep(50);
        else sched_yield();
    }
}

/* ------------------------------------------------------------------------------------------------- calls */

/* A call's memory at addresses for ordinary code, and its scratch memory. */
typedef struct work {
    const standin_call *call;
    char *src, *dst;
    size_t bytes; /* of count elements */
    char *own;    /* the input, pre-multiplied; NULL: it is src */
    char *parts;  /* inputs of all ranks, if this rank sums */
} work;

static bool reduces(const standin_call *call) {
    return call->kind == STANDIN_ALL_REDUCE || call->kind == STANDIN_REDUCE || call->kind == STANDIN_REDUCE_SCATTER;
}

static char *room(size_t bytes) {
    char *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) abort();
    return memory;
}

static char *reach(const void *address, size_t bytes) {
    char *there = address != NULL && bytes > 0 ? standin_cuda()->reach_as_gpu(address, bytes) : NULL;
    if (address != NULL && bytes > 0 && there == NULL) {
        fprintf(stderr, "NCCL's stand-in: an illegal memory access: %zu bytes at %p\n", bytes, address);
        abort();
    }
    return there;
}

/* Multiplies each input by its rank's factor: for pre-multiplied sums and, as in NCCL, averages of floats. */
static void multiply(work *w, int nranks) {
    const standin_call *call = w->call;
    bool average = call->op == TUTTI_NCCL_AVG && is_float(call->type);
    if (call->op <= TUTTI_NCCL_AVG && !average) return;
    size_t count = call->count * (call->kind == STANDIN_REDUCE_SCATTER ? (size_t)nranks : 1);
    double factor = average ? 1.0 / nranks : call->factor;
    const void *src = w->src;
    w->own = room(count * standin_nccl_type_bytes(call->type));
    tutti_reduce_host(&(tutti_reduce_args){.dst = w->own,
                                           .srcs = &src,
                                           .factors = &factor,
                                           .nsrcs = 1,
                                           .count = count,
                                           .type = types[call->type],
                                           .reduction = TUTTI_PREMUL_SUM});
}

static void plan_collective(plan *p, work *w) {
    const standin_call *call = w->call;
    const int own = p->comm->rank, nranks = p->comm->nranks;
    char *src = w->own != NULL ? w->own : w->src;
    bool rooted = call->kind == STANDIN_REDUCE;
    if (reduces(call) && (!rooted || call->root == own)) w->parts = room((size_t)nranks * w->bytes);
    for (int peer = 0; peer < nranks; peer++) {
        size_t part = (size_t)peer * w->bytes;
        switch (call->kind) {
        case STANDIN_ALL_REDUCE:
        case STANDIN_REDUCE:
            if (!rooted || call->root == peer) add(&p->sends[peer], call, src, w->bytes);
            if (!rooted || call->root == own) add(&p->recvs[peer], call, w->parts + part, w->bytes);
            break;
        case STANDIN_REDUCE_SCATTER:
            add(&p->sends[peer], call, src + part, w->bytes);
            add(&p->recvs[peer], call, w->parts + part, w->bytes);
            break;
        case STANDIN_ALL_GATHER:
            add(&p->sends[peer], call, src, w->bytes);
            if (peer != own || src != w->dst + part) add(&p->recvs[peer], call, w->dst + part, w->bytes);
            else add(&p->recvs[peer], call, w->parts = room(w->bytes), w->bytes); /* in place: nothing to copy */
            break;
        default: /* broadcast */
            if (call->root == own && peer != own) add(&p->sends[peer], call, src, w->bytes);
            if (call->root == peer && peer != own) add(&p->recvs[peer], call, w->dst, w->bytes);
            break;
        }
    }
    if (call->kind == STANDIN_BROADCAST && call->root == own && w->dst != NULL && w->dst != src)
        memmove(w->dst, src, w->bytes);
}

static void plan_call(plan *p, const standin_call *call, work *w) {
    int own = p->comm->rank, nranks = p->comm->nranks;
    *w = (work){.call = call, .bytes = call->count * standin_nccl_type_bytes(call->type)};
    size_t all = w->bytes * (size_t)nranks;
    bool has_src = call->kind != STANDIN_RECV && (call->kind != STANDIN_BROADCAST || call->root == own);
    bool has_dst = call->kind != STANDIN_SEND && (call->kind != STANDIN_REDUCE || call->root == own);
    if (has_src) w->src = reach(call->src, call->kind == STANDIN_REDUCE_SCATTER ? all : w->bytes);
    if (has_dst) w->dst = reach(call->dst, call->kind == STANDIN_ALL_GATHER ? all : w->bytes);
    if (call->kind == STANDIN_SEND) add(&p->sends[call->root], call, w->src, w->bytes);
    else if (call->kind == STANDIN_RECV) add(&p->recvs[call->root], call, w->dst, w->bytes);
    else {
        if (reduces(call)) multiply(w, nranks);
        plan_collective(p, w);
    }
}

static void sum(const plan *p, const work *w) {
    static const tutti_reduction reductions[] = {[TUTTI_NCCL_SUM] = TUTTI_SUM,
                                                 [TUTTI_NCCL_PROD] = TUTTI_PROD,
                                                 [TUTTI_NCCL_MAX] = TUTTI_MAX,
                                                 [TUTTI_NCCL_MIN] = TUTTI_MIN};
    if (!reduces(w->call) || w->parts == NULL) return;
    const char *order = getenv("STANDIN_NCCL_ORDER");
    bool by_rank = order != NULL && strcmp(order, "ranks") == 0;
    const void *srcs[STANDIN_RANKS];
    int n = p->comm->nranks;
    for (int i = 0; i < n; i++) srcs[i] = w->parts + (size_t)(by_rank ? i : n - 1 - i) * w->bytes;
    bool average = w->call->op == TUTTI_NCCL_AVG && !is_float(w->call->type);
    tutti_reduction simple = w->call->op < TUTTI_NCCL_AVG ? reductions[w->call->op] : TUTTI_SUM;
    tutti_reduce_host(&(tutti_reduce_args){.dst = w->dst,
                                           .srcs = srcs,
                                           .nsrcs = n,
                                           .count = w->call->count,
                                           .type = types[w->call->type],
                                           .reduction = average ? TUTTI_AVG : simple,
                                           .divisor = n});
}

static void drop(transfer *queue) {
    while (queue != NULL) {
        transfer *next = queue->next;
        free(queue);
        queue = next;
    }
}

void standin_nccl_run(standin_batch *batch) {
    plan p = {.comm = batch->comm};
    work *works = calloc((size_t)batch->ncalls, sizeof *works);
    if (works == NULL) abort();
    for (int i = 0; i < batch->ncalls; i++) plan_call(&p, &batch->calls[i], &works[i]);
    bool whole = move(&p);
    for (int i = 0; i < batch->ncalls; i++) {
        if (whole) sum(&p, &works[i]);
        free(works[i].own);
        free(works[i].parts);
    }
    for (int peer = 0; peer < STANDIN_RANKS; peer++) {
        drop(p.sends[peer]);
        drop(p.recvs[peer]);
    }
    free(works);
}
