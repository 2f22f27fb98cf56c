/*
 * Calls on CUDA memory for tests. See cuda_call.h.
 */
#include "tests/support/gpu/cuda_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "tests/support/reference.h"

uint64_t cuda_shared_arenas;

int cuda_real_gpus(void) {
    const char *most = getenv("TUTTI_TEST_GPUS");
    if (getenv("TUTTI_CUDA_MODULE") != NULL) return 0;
    return most != NULL ? atoi(most) : 1;
}

/* The number of stand-ins that a test asks for also limits the number of real GPUs. */
static int usable_gpus(int count) {
    const char *most = getenv("STANDIN_GPUS");
    int real = cuda_real_gpus();
    if (real == 0) return count;
    if (most != NULL && atoi(most) < real) real = atoi(most);
    return real < count ? real : count;
}

tutti_status cuda_rank_open(const ranks_context *context, size_t arena_bytes, cuda_rank *rank) {
    int count = 0;
    void *arena = NULL, *pinned = NULL;
    *rank = (cuda_rank){.arena_bytes = arena_bytes};
    TUTTI_TRY(tutti_device_open(&rank->device));
    TUTTI_TRY(rank->device->count(&count));
    rank->index = context->rank % usable_gpus(count);
    TUTTI_TRY(rank->device->use(rank->index));
    for (int i = 0; i < CUDA_STREAMS; i++) TUTTI_TRY(rank->device->stream_create(&rank->streams[i]));
    rank->shared = (cuda_shared_arenas >> context->rank % 64 & 1) != 0;
    TUTTI_TRY(rank->shared ? tutti_mem_alloc_cuda(arena_bytes, &arena) : rank->device->alloc(arena_bytes, &arena));
    rank->arena = arena;
    TUTTI_TRY(rank->device->alloc_pinned(arena_bytes, &pinned, NULL));
    rank->pinned = pinned;
    return TUTTI_OK;
}

tutti_status cuda_rank_close(cuda_rank *rank, tutti_comm *comm) {
    if (rank->device == NULL) return TUTTI_OK;
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (rank->streams[i] != NULL) TUTTI_TRY(rank->device->stream_sync(rank->streams[i]));
    if (comm != NULL) TUTTI_TRY(tutti_barrier(comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (rank->streams[i] != NULL) TUTTI_TRY(rank->device->stream_destroy(rank->streams[i]));
    if (rank->pinned != NULL) TUTTI_TRY(rank->device->free_pinned(rank->pinned));
    if (rank->shared) return tutti_mem_free(rank->arena);
    return rank->arena != NULL ? rank->device->free(rank->arena) : TUTTI_OK;
}

tutti_status cuda_alloc(cuda_rank *rank, size_t bytes, void **memory_out) {
    size_t at = (rank->used + 255) & ~(size_t)255;
    if (at > rank->arena_bytes || bytes > rank->arena_bytes - at)
        return tutti_fail(TUTTI_ERR_MEMORY, "the test's arena of %zu bytes is too small", rank->arena_bytes);
    rank->used = at + bytes;
    *memory_out = rank->arena + at;
    return TUTTI_OK;
}

tutti_status cuda_put(cuda_rank *rank, void *there, const void *src, size_t bytes, tutti_stream stream) {
    char *stop = rank->pinned + ((char *)there - rank->arena);
    memcpy(stop, src, bytes);
    return rank->device->copy(there, stop, bytes, stream);
}

tutti_status cuda_fetch(cuda_rank *rank, void *dst, const void *there, size_t bytes, tutti_stream stream) {
    char *stop = rank->pinned + ((const char *)there - rank->arena);
    TUTTI_TRY(rank->device->stream_sync(stream));
    TUTTI_TRY(rank->device->copy(stop, there, bytes, stream));
    TUTTI_TRY(rank->device->stream_sync(stream));
    memcpy(dst, stop, bytes);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- calls */

/* The address in the GPU's copy that corresponds to this one. */
static void *translate(const cuda_call *c, void *pointer) {
    for (int i = 0; i < c->host.nallocations; i++) {
        size_t at = (size_t)((char *)pointer - (char *)c->host.allocations[i]);
        if (pointer != NULL && at < call_allocation_bytes(&c->host, i)) return c->copies[i] + at;
    }
    return NULL;
}

tutti_status cuda_call_prepare(cuda_rank *rank, const call *c, int self, int nranks, tutti_stream stream,
                               cuda_call *call_out) {
    *call_out = (cuda_call){.copies = NULL};
    TUTTI_TRY(call_prepare(c, self, nranks, &call_out->host));
    call_state *host = &call_out->host;
    call_out->copies = calloc((size_t)host->nallocations + 1, sizeof *call_out->copies);
    for (int i = 0; i < host->nallocations; i++) {
        void *copy = NULL;
        TUTTI_TRY(cuda_alloc(rank, call_allocation_bytes(host, i), &copy));
        call_out->copies[i] = copy;
        TUTTI_TRY(cuda_put(rank, copy, host->allocations[i], call_allocation_bytes(host, i), stream));
    }
    call_state *there = &call_out->there;
    *there = *host;
    there->srcs = calloc((size_t)nranks, sizeof *there->srcs);
    there->dsts = calloc((size_t)nranks, sizeof *there->dsts);
    for (int i = 0; i < nranks; i++) {
        there->srcs[i] = translate(call_out, host->srcs[i]);
        there->dsts[i] = translate(call_out, host->dsts[i]);
    }
    return TUTTI_OK;
}

tutti_status cuda_call_check(cuda_rank *rank, cuda_call *c, tutti_stream stream) {
    TUTTI_TRY(rank->device->stream_sync(stream)); /* a barrier has no buffers to fetch */
    for (int i = 0; i < c->host.nallocations; i++)
        TUTTI_TRY(cuda_fetch(rank, c->host.allocations[i], c->copies[i], call_allocation_bytes(&c->host, i), stream));
    return call_check(&c->host);
}

void cuda_call_release(cuda_call *c) {
    free(c->there.srcs);
    free(c->there.dsts);
    free(c->copies);
    call_release(&c->host);
}

static tutti_status run(cuda_rank *rank, cuda_call *c, tutti_comm *comm, tutti_stream stream, bool with_work) {
    tutti_work *work = NULL;
    tutti_options options =
        TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = stream, .work = with_work ? &work : NULL);
    TUTTI_TRY(call_start(&c->there, comm, &options));
    tutti_status status = with_work ? tutti_work_wait(work, -1) : TUTTI_OK;
    tutti_work_free(work);
    TUTTI_TRY(status);
    return cuda_call_check(rank, c, stream);
}

tutti_status cuda_call_run(cuda_rank *rank, const call *c, tutti_comm *comm, tutti_stream stream, bool with_work) {
    cuda_call mine;
    size_t used = rank->used;
    tutti_status status = cuda_call_prepare(rank, c, tutti_comm_rank(comm), tutti_comm_size(comm), stream, &mine);
    if (status == TUTTI_OK) status = run(rank, &mine, comm, stream, with_work);
    cuda_call_release(&mine);
    rank->used = used;
    if (status == TUTTI_OK) return TUTTI_OK;
    char text[1024];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    return tutti_fail(status, "%s of %zu %s, %s, root %d, in place %d, seed %llu, on CUDA memory: %s",
                      call_name(c->kind), c->count, tutti_type_name(c->type), tutti_reduction_name(c->reduction),
                      c->root, c->in_place, (unsigned long long)c->seed, text);
}

/* ------------------------------------------------------------------------------------------------- gates */

tutti_status cuda_gate_create(cuda_rank *rank, cuda_gate *gate) {
    void *host = NULL;
    TUTTI_TRY(rank->device->alloc_pinned(4096, &host, &gate->on_device));
    memset(host, 0, 4096);
    gate->host = host;
    return TUTTI_OK;
}

tutti_status cuda_gate_close(cuda_rank *rank, cuda_gate *gate, tutti_stream stream) {
    return rank->device->wait_value(stream, gate->on_device, 1);
}

void cuda_gate_open(cuda_gate *gate) {
    atomic_store_explicit(gate->host, 1, memory_order_release);
}

void cuda_gate_destroy(cuda_rank *rank, cuda_gate *gate) {
    rank->device->free_pinned((void *)gate->host);
}

/* ------------------------------------------------------------------------------------------------ sweeps */

static tutti_reduction reduction_for(tutti_type type, unsigned seed) {
    tutti_reduction reduction = (tutti_reduction)(seed % TUTTI_REDUCTION_COUNT);
    return reference_supports(type, reduction) ? reduction : TUTTI_SUM;
}

tutti_status cuda_sweep_sizes(cuda_rank *rank, const ranks_context *context, size_t piece_bytes) {
    size_t n = (size_t)context->nranks, piece = piece_bytes / sizeof(float);
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 251, piece, piece + 1, 5 * piece + 3};
    unsigned seed = 0;
    for (int kind = 0; kind < CALL_KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, seed++) {
            call c = {.kind = (call_kind)kind,
                      .type = TUTTI_FLOAT32,
                      .reduction = reduction_for(TUTTI_FLOAT32, seed),
                      .count = counts[i],
                      .root = (int)(seed % n),
                      .in_place = (call_mode)(seed % CALL_MODES),
                      .seed = seed};
            TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[seed % CUDA_STREAMS], seed % 2 == 0));
        }
    return TUTTI_OK;
}

tutti_status cuda_sweep_types(cuda_rank *rank, const ranks_context *context) {
    unsigned seed = 1000;
    for (int kind = 0; kind < CALL_KINDS; kind++)
        for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
            for (int reduction = 0; reduction < (call_reduces((call_kind)kind) ? TUTTI_REDUCTION_COUNT : 1);
                 reduction++) {
                if (!reference_supports((tutti_type)type, (tutti_reduction)reduction)) continue;
                call c = {.kind = (call_kind)kind,
                          .type = (tutti_type)type,
                          .reduction = (tutti_reduction)reduction,
                          .count = 67,
                          .root = context->nranks - 1,
                          .in_place = (call_mode)(++seed % CALL_MODES),
                          .seed = seed};
                TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[seed % CUDA_STREAMS], false));
            }
    return TUTTI_OK;
}
