/*
 * Where the buffers of a call are: every pointer that the rank uses is looked up. Also which ranks share a GPU.
 */
#include <string.h>

#include "comm/base/op.h"
#include "comm/gpu/stream.h"
#include "comm/net/hosts.h"

/* The result of looking at a call's buffers. */
typedef struct survey {
    const tutti_device *device;
    const char *name; /* name of the call */
    tutti_memory said;
    int index;         /* index of the GPU; TUTTI_PLACE_HOST: none so far */
    const void *there; /* a buffer on that GPU */
    const void *host;  /* a buffer in host memory; NULL: none so far */
} survey;

static tutti_status look_at(survey *s, const void *pointer, size_t bytes) {
    tutti_device_place place;
    if (pointer == NULL) return TUTTI_OK;
    TUTTI_TRY(s->device->locate(pointer, &place));
    if (place.memory != TUTTI_MEMORY_CUDA) {
        if (bytes > 0 && s->host == NULL) s->host = pointer;
        return TUTTI_OK;
    }
    if (s->index != TUTTI_PLACE_HOST && s->index != place.device)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "%s: buffer %p is memory of GPU %d, buffer %p of GPU %d; those of one call must be on one GPU", s->name,
            s->there, s->index, pointer, place.device);
    s->index = place.device;
    s->there = pointer;
    return TUTTI_OK;
}

static tutti_status conclude(const survey *s, int *index_out) {
    if (s->host != NULL && s->index != TUTTI_PLACE_HOST)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "%s: buffer %p is host memory, buffer %p is memory of GPU %d; those of one call must be of one kind",
            s->name, s->host, s->there, s->index);
    if (s->host != NULL && s->said == TUTTI_MEMORY_CUDA)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: options.memory says CUDA, but buffer %p is host memory", s->name,
                          s->host);
    *index_out = s->index;
    if (s->said == TUTTI_MEMORY_CUDA && s->index == TUTTI_PLACE_HOST) return s->device->current(index_out);
    return TUTTI_OK;
}

static tutti_status begin(survey *s) {
    if (s->said == TUTTI_MEMORY_CUDA) return tutti_device_open(&s->device);
    s->device = tutti_device_in_use();
    return TUTTI_OK;
}

tutti_status tutti_pointer_place_op(const tutti_comm *comm, const tutti_op *op, tutti_memory said, int *index_out) {
    survey s = {.name = tutti_kind_name(op->kind), .said = said, .index = TUTTI_PLACE_HOST};
    TUTTI_TRY(begin(&s));
    if (s.device == NULL) return TUTTI_OK;
    bool reads = tutti_op_has_input(op, comm->rank);
    bool writes = tutti_op_has_output(op, comm->rank);
    int inputs = !reads ? 0 : op->srcs != NULL ? comm->nranks : 1;
    int outputs = !writes ? 0 : op->dsts != NULL ? comm->nranks : 1;
    for (int i = 0; i < inputs; i++) {
        tutti_span input =
            op->srcs != NULL ? tutti_op_input(comm, op, i) : (tutti_span){.data = op->src, .bytes = op->count};
        TUTTI_TRY(look_at(&s, input.data, input.bytes));
    }
    for (int i = 0; i < outputs; i++) {
        tutti_span output =
            op->dsts != NULL ? tutti_op_output(comm, op, i) : (tutti_span){.data = op->dst, .bytes = op->count};
        TUTTI_TRY(look_at(&s, output.data, output.bytes));
    }
    return conclude(&s, index_out);
}

tutti_status tutti_pointer_place_message(const tutti_message *message, tutti_memory said, int *index_out) {
    survey s = {.name = message->sends ? "send" : "recv", .said = said, .index = TUTTI_PLACE_HOST};
    TUTTI_TRY(begin(&s));
    if (s.device == NULL) return TUTTI_OK;
    TUTTI_TRY(look_at(&s, message->sends ? message->src : message->dst, message->bytes));
    return conclude(&s, index_out);
}

/* ---------------------------------------------------------------------------------------------- ranks */

bool tutti_stream_same_device(const tutti_comm *comm, int a, int b) {
    const tutti_stream_caps *facts = atomic_load_explicit(&comm->cuda.streams, memory_order_relaxed)->facts;
    return memcmp(facts[a].device_id, facts[b].device_id, sizeof facts[a].device_id) == 0;
}

bool tutti_stream_same_gpu(const tutti_comm *comm, int a, int b) {
    const tutti_stream_caps *facts = atomic_load_explicit(&comm->cuda.streams, memory_order_relaxed)->facts;
    bool same_host = comm->net.hosts == NULL || comm->net.hosts->host_of[a] == comm->net.hosts->host_of[b];
    return tutti_stream_same_device(comm, a, b) ||
           (same_host && facts[a].pci[0] != '\0' && strncmp(facts[a].pci, facts[b].pci, sizeof facts[a].pci) == 0);
}

tutti_status tutti_stream_shared(const tutti_comm *comm, const tutti_op *op, int a, int b) {
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "%s of communicator \"%s\": ranks %d and %d, threads of one process, use the same stream, "
                      "in which each would wait for the other; give each rank a stream of its own",
                      tutti_kind_name(op->kind), comm->name, tutti_comm_shown(comm, a), tutti_comm_shown(comm, b));
}
