/*
 * A collective as NCCL calls: kinds that move data, in bytes, so that every type works; kinds that reduce are in
 * nccl_reduce.c. Kinds without a call in NCCL 2.18 are sends and receives in one group; a rank's own part is a
 * copy.
 *
 * NCCL compares nothing: the sizes that one rank sends and another expects are equal by contract.
 */
#include "bootstrap/base/common.h"
#include "comm/base/op.h"
#include "comm/gpu/nccl/nccl_state.h"

/* Kinds that are one NCCL call. */
static tutti_status one_call(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    const tutti_nccl *nccl = state->nccl;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    tutti_nccl_batch batch;
    TUTTI_TRY(tutti_nccl_begin(state, call, &batch));
    if (op->kind == TUTTI_KIND_BARRIER)
        tutti_nccl_note(&batch,
                        nccl->ncclAllReduce(state->token, state->token, 1, TUTTI_NCCL_UINT8, TUTTI_NCCL_MAX,
                                            batch.handle, call->stream),
                        "ncclAllReduce");
    else if (op->kind == TUTTI_KIND_BROADCAST)
        tutti_nccl_note(
            &batch,
            nccl->ncclBroadcast(op->dst, op->dst, bytes, TUTTI_NCCL_UINT8, op->root, batch.handle, call->stream),
            "ncclBroadcast");
    else
        tutti_nccl_note(&batch,
                        nccl->ncclAllGather(op->src, op->dst, bytes, TUTTI_NCCL_UINT8, batch.handle, call->stream),
                        "ncclAllGather");
    return tutti_nccl_finish(&batch);
}

/* A broadcast from each rank that has data: every byte is sent to each GPU once, by NCCL's rings and trees. */
static tutti_status all_gather_v(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    tutti_nccl_batch batch;
    TUTTI_TRY(tutti_nccl_begin(state, call, &batch));
    for (int root = 0; root < state->comm->nranks; root++) {
        tutti_span output = tutti_op_output(state->comm, op, root);
        const void *input = root == state->comm->rank ? op->src : output.data;
        if (output.bytes == 0) continue;
        tutti_nccl_result result = state->nccl->ncclBroadcast(input, (void *)output.data, output.bytes,
                                                              TUTTI_NCCL_UINT8, root, batch.handle, call->stream);
        tutti_nccl_note(&batch, result, "ncclBroadcast");
    }
    return tutti_nccl_finish(&batch);
}

/* The data that this rank sends to `peer`, and receives from it. */
static tutti_span outgoing(const tutti_comm *comm, const tutti_op *op, int peer) {
    bool goes = tutti_op_has_input(op, comm->rank) && (!tutti_op_has_sink(op) || peer == op->root);
    return goes ? tutti_op_input(comm, op, peer) : (tutti_span){.data = NULL};
}

static tutti_span incoming(const tutti_comm *comm, const tutti_op *op, int peer) {
    bool comes = tutti_op_has_output(op, comm->rank) && (!tutti_op_has_source(op) || peer == op->root);
    return comes ? tutti_op_output(comm, op, peer) : (tutti_span){.data = NULL};
}

/* all_to_all, gather, scatter and their v-variants. */
static tutti_status exchange(tutti_nccl_state *state, const tutti_stream_call *call) {
    tutti_comm *comm = state->comm;
    tutti_nccl_batch batch;
    tutti_span own = outgoing(comm, call->op, comm->rank), to = incoming(comm, call->op, comm->rank);
    if (own.bytes > 0 && own.data != to.data)
        TUTTI_TRY(comm->cuda.streams->device->copy((void *)to.data, own.data, own.bytes, call->stream));
    TUTTI_TRY(tutti_nccl_begin(state, call, &batch));
    for (int peer = 0; peer < comm->nranks; peer++) {
        if (peer == comm->rank) continue;
        tutti_span out = outgoing(comm, call->op, peer), in = incoming(comm, call->op, peer);
        tutti_nccl_send(&batch, out.data, out.bytes, peer);
        tutti_nccl_recv(&batch, in.data, in.bytes, peer);
    }
    return tutti_nccl_finish(&batch);
}

/* One round of an all_to_all: `bytes` from offset `at` of every block. In place, the data to send is first copied
 * to scratch, since NCCL receives while it sends. */
static tutti_status exchange_round(tutti_nccl_state *state, const tutti_stream_call *call, size_t at, size_t bytes) {
    tutti_comm *comm = state->comm;
    const tutti_device *device = comm->cuda.streams->device;
    tutti_nccl_batch batch;
    char *aside = call->op->src == call->op->dst ? state->scratch : NULL;
    for (int peer = 0; peer < comm->nranks && aside != NULL; peer++)
        TUTTI_TRY(
            device->copy(aside + (size_t)peer * bytes, outgoing(comm, call->op, peer).data + at, bytes, call->stream));
    TUTTI_TRY(tutti_nccl_begin(state, call, &batch));
    for (int peer = 0; peer < comm->nranks; peer++) {
        const char *from = aside != NULL ? aside + (size_t)peer * bytes : outgoing(comm, call->op, peer).data + at;
        if (peer == comm->rank) continue;
        tutti_nccl_send(&batch, from, bytes, peer);
        tutti_nccl_recv(&batch, incoming(comm, call->op, peer).data + at, bytes, peer);
    }
    return tutti_nccl_finish(&batch);
}

/* Every rank makes the same rounds, though only ranks that work in place need them. */
static tutti_status all_to_all(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    bool in_place = op->src == op->dst;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    size_t most = state->scratch_bytes / (size_t)state->comm->nranks / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    tutti_span own = outgoing(state->comm, op, state->comm->rank);
    if (!in_place)
        TUTTI_TRY(state->comm->cuda.streams->device->copy((void *)incoming(state->comm, op, state->comm->rank).data,
                                                          own.data, own.bytes, call->stream));
    if (in_place) TUTTI_TRY(tutti_nccl_scratch_take(state, call));
    for (size_t at = 0; at < bytes; at += most)
        TUTTI_TRY(exchange_round(state, call, at, tutti_min_size(most, bytes - at)));
    return in_place ? tutti_nccl_scratch_give(state, call) : TUTTI_OK;
}

/* Registers memory of tutti_nccl_allocator at its first use. */
static void use_memory(tutti_nccl_state *state, const tutti_op *op) {
    tutti_nccl_memory_use(state, op->src);
    tutti_nccl_memory_use(state, op->dst);
    for (int rank = 0; rank < state->comm->nranks; rank++) {
        if (op->srcs != NULL) tutti_nccl_memory_use(state, op->srcs[rank]);
        if (op->dsts != NULL) tutti_nccl_memory_use(state, op->dsts[rank]);
    }
}

static tutti_status carry_out(tutti_nccl_state *state, const tutti_stream_call *call) {
    switch (call->op->kind) {
    case TUTTI_KIND_BARRIER:
    case TUTTI_KIND_BROADCAST:
    case TUTTI_KIND_ALL_GATHER: return one_call(state, call);
    case TUTTI_KIND_ALL_GATHER_V: return all_gather_v(state, call);
    case TUTTI_KIND_ALL_TO_ALL: return all_to_all(state, call);
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_GATHER:
    case TUTTI_KIND_GATHER_V:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_SCATTER_V: return exchange(state, call);
    default: return tutti_nccl_reduce(state, call);
    }
}

static tutti_status follow(tutti_nccl_state *state, tutti_stream stream, tutti_stream leader) {
    const tutti_device *device = state->comm->cuda.streams->device;
    TUTTI_TRY(device->event_record(state->joint, leader));
    return device->stream_wait_event(stream, state->joint);
}

/* Returns the stream for NCCL calls that belong in `stream`, ordered after all that is in it. NCCL enqueues on its own
 * thread, where the handle of a thread's own default stream means another stream: then this is a stream made here. */
static tutti_status step_aside(tutti_nccl_state *state, tutti_stream stream, tutti_stream *stream_out) {
    *stream_out = stream;
    if ((uintptr_t)stream != TUTTI_STREAM_OF_THREAD) return TUTTI_OK;
    if (state->aside == NULL) TUTTI_TRY(state->comm->cuda.streams->device->stream_create(&state->aside));
    *stream_out = state->aside;
    return follow(state, state->aside, stream);
}

/* Orders later work in `stream` after the work in the stream that step_aside returned. */
static tutti_status step_back(tutti_nccl_state *state, tutti_stream stream, tutti_stream aside) {
    return stream == aside ? TUTTI_OK : follow(state, stream, aside);
}

tutti_status tutti_nccl_enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    tutti_nccl_state *state = comm->cuda.streams->engine_state;
    const tutti_op *op = call->op;
    tutti_stream_call own = *call;
    bool uniform =
        op->srcs == NULL && op->dsts == NULL && op->kind != TUTTI_KIND_GATHER_V && op->kind != TUTTI_KIND_SCATTER_V;
    if (uniform && op->count == 0 && op->kind != TUTTI_KIND_BARRIER) return TUTTI_OK; /* the same on all ranks */
    if (!call->captured) use_memory(state, op); /* registration is forbidden during a capture */
    TUTTI_TRY(step_aside(state, call->stream, &own.stream));
    TUTTI_TRY(carry_out(state, &own));
    return step_back(state, call->stream, own.stream);
}
