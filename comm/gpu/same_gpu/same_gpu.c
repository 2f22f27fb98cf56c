/*
 * The engine for ranks that share one GPU, which NCCL refuses. See same_gpu.h for the flow of a call.
 *
 * Sums are in rank order, with the same bits as on the host. The board, on which ranks post their calls, is in the
 * heaps that ranks of one host map anyway, so the data of a dead rank can still be read.
 */
#include "comm/gpu/same_gpu/same_gpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/base/backoff.h"
#include "comm/gpu/device_memory.h"
#include "comm/gpu/stream.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

#define LEAST_SLOT_BYTES ((size_t)1 << 20)
#define GRANULE          256 /* bytes: alignment of pieces, for fast reads */

/* ---------------------------------------------------------------------------------------------- the board */

/* Published by a rank at open: addresses in its own process. */
typedef struct hello {
    uint64_t board, counters; /* 0: none, or allocation failed */
} hello;

static size_t board_bytes(const tutti_same_gpu *s) {
    return sizeof(tutti_same_gpu_board) + TUTTI_SAME_GPU_DEPTH * s->post_bytes;
}

static tutti_status map_boards(const tutti_comm *comm, tutti_same_gpu *s, const hello *all) {
    for (int rank = 0; rank < s->nranks; rank++) {
        tutti_peer *peer = comm->members[rank].process;
        s->boards[rank] = tutti_peer_translate(peer, all[rank].board, board_bytes(s));
        s->alone = s->alone && peer->self;
        if (all[rank].board == 0 || s->boards[rank] == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "rank %d has no shared memory for calls on one GPU", rank);
    }
    s->counters = tutti_peer_translate(comm->members[0].process, all[0].counters, sizeof *s->counters);
    if (all[0].counters == 0 || s->counters == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "rank 0 has no shared memory for counters");
    return TUTTI_OK;
}

static tutti_status make_own(const tutti_comm *comm, tutti_same_gpu *s, hello *own) {
    void *memory = NULL;
    TUTTI_TRY(tutti_heap_alloc(TUTTI_HEAP_CONTROL, board_bytes(s), &memory));
    s->own = memory;
    own->board = (uint64_t)(uintptr_t)memory;
    if (comm->rank != 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_take_counters(&s->own_counters));
    own->counters = (uint64_t)(uintptr_t)s->own_counters;
    return TUTTI_OK;
}

/* Opens the boards: all of `s` except slots; collective. */
static tutti_status open_boards(tutti_comm *comm, tutti_same_gpu *s) {
    size_t n = (size_t)s->nranks;
    hello own = {.board = 0}, *all = NULL;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *all, &all), out);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->boards, &s->boards), out);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->imports, &s->imports), out);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->seen_freed, &s->seen_freed), out);
    TUTTI_TRY_GOTO(status, make_own(comm, s, &own), out);
    TUTTI_TRY_GOTO(status, tutti_stream_gather(comm, &own, all, sizeof own), out);
    TUTTI_TRY_GOTO(status, map_boards(comm, s, all), out);
out:
    free(all);
    return status;
}

/* Pins the counters and sets their GPU address. */
static tutti_status open_counters(tutti_comm *comm, tutti_same_gpu *s) {
    return tutti_same_gpu_pin(s->device, comm->members[0].process, s->counters, &s->on_device);
}

static void free_board(void *board) {
    tutti_heap_free(board);
}

/* Board, counters and events are kept until no rank reads them any more. */
static void close_boards(tutti_comm *comm, tutti_same_gpu *s) {
    if (s->own != NULL) tutti_retire_memory(comm, s->own, free_board);
    if (s->events != NULL) tutti_retire_memory(comm, s->events, tutti_same_gpu_events_free);
    if (s->own_counters != NULL) tutti_retire_memory(comm, s->own_counters, tutti_same_gpu_return_counters);
    tutti_same_gpu_close_imports(s);
    free(s->boards);
}

/* Waits until that place on the board is free; it is occupied when the fastest rank is far ahead. */
static tutti_status claim(tutti_comm *comm, tutti_same_gpu *s, uint64_t place) {
    const _Atomic uint64_t *launched = &s->counters->launched[place % TUTTI_SAME_GPU_DEPTH].value;
    uint64_t before = place > TUTTI_SAME_GPU_DEPTH ? place - TUTTI_SAME_GPU_DEPTH : 0;
    tutti_deadline deadline = tutti_deadline_after_ms(comm->timeout_ms);
    tutti_backoff backoff = {.yields = true};
    while (atomic_load_explicit(launched, memory_order_acquire) < before) { /* pairs with the release in launch_end */
        TUTTI_TRY(tutti_comm_check(comm));
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT,
                              "%d calls on the GPU wait for a rank that is that many calls behind; communicator \"%s\"",
                              TUTTI_SAME_GPU_DEPTH, comm->name);
        tutti_backoff_pause(&backoff);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------ open and close */

/* True if some ranks share a process. */
static bool shares_process(const tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++)
        for (int other = 0; other < rank; other++)
            if (comm->members[rank].process == comm->members[other].process) return true;
    return false;
}

static bool fits(const tutti_comm *comm, char *reason, size_t capacity) {
    const tutti_stream_caps *facts = comm->cuda.streams->facts;
    if (comm->net.hosts != NULL) snprintf(reason, capacity, "the ranks are on several hosts");
    else if (comm->nranks > TUTTI_DEVICE_MOST_BUFFERS)
        snprintf(reason, capacity, "there are more than %d ranks", TUTTI_DEVICE_MOST_BUFFERS);
    else if (!facts[0].stream_waits && shares_process(comm)) /* one thread would wait for all their streams */
        snprintf(reason, capacity, "streams of the GPU cannot wait for memory, and ranks share a process");
    else {
        for (int rank = 0; rank < comm->nranks; rank++) {
            bool same = memcmp(facts[rank].device_id, facts[0].device_id, TUTTI_DEVICE_ID_BYTES) == 0;
            if (same && (facts[rank].ipc || comm->one_process)) continue;
            snprintf(reason, capacity, same ? "the GPU's memory cannot be shared" : "the ranks have several GPUs");
            return false;
        }
        return true;
    }
    return false;
}

/* Returns the slots. Streams have passed all calls, or abort has taken the slots. */
static void return_slots(tutti_same_gpu *s) {
    for (int i = 0; i < s->nkept; i++) tutti_same_gpu_return_slot(s->kept[i]);
    s->nkept = 0;
}

/* For measurements: if ranks are processes, the GPU changes between them whenever the launcher does. */
static void report_launchers(const tutti_comm *comm, const tutti_same_gpu *s) {
    if (comm->rank != 0 || s->counters == NULL) return;
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": in %llu calls on one GPU the rank that launches changed %llu times",
              comm->name, (unsigned long long)s->places,
              (unsigned long long)atomic_load_explicit(&s->counters->changes, memory_order_relaxed));
}

static void close_engine(tutti_comm *comm) {
    tutti_same_gpu *s = comm->cuda.streams->engine_state;
    if (s == NULL) return;
    report_launchers(comm, s);
    comm->cuda.streams->engine_state = NULL;
    if (s->maps) tutti_device_memory_expect_peers(-1);
    close_boards(comm, s);
    tutti_same_gpu_release_leave(s);
    return_slots(s);
    if (s->chain.tail != NULL) s->device->event_destroy(s->chain.tail);
    free(s->srcs);
    free(s->factors);
    free(s);
}

static tutti_status make_scratch(tutti_same_gpu *s) {
    size_t pairs = (size_t)s->nranks * (size_t)s->nranks;
    char *memory;
    TUTTI_TRY(tutti_calloc(3 * pairs, sizeof(void *), &memory));
    s->srcs = (const void **)(void *)memory;
    s->dsts = (void **)(void *)(memory + pairs * sizeof(void *));
    s->bytes = (size_t *)(void *)(memory + 2 * pairs * sizeof(void *));
    return tutti_calloc((size_t)s->nranks, sizeof *s->factors, &s->factors);
}

static tutti_status need_slot(tutti_same_gpu *s, tutti_same_gpu_slot *slot, size_t half_bytes);

/* The result of the trial on one rank: containers may forbid to pin memory and to map it, so it is tried. */
typedef struct verdict {
    int32_t status;
    char reason[252];
} verdict;

/* If the trial failed on any rank, all ranks return TUTTI_ERR_UNSUPPORTED with its reason. */
static tutti_status agree(tutti_comm *comm, tutti_status status) {
    verdict mine = {.status = status}, *all;
    if (status != TUTTI_OK) snprintf(mine.reason, sizeof mine.reason, "%s", tutti_last_error());
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *all, &all));
    status = tutti_stream_gather(comm, &mine, all, sizeof mine);
    for (int rank = 0; rank < comm->nranks && status == TUTTI_OK; rank++)
        if (all[rank].status != TUTTI_OK)
            status = tutti_fail(TUTTI_ERR_UNSUPPORTED, "rank %d: %.*s", tutti_comm_shown(comm, rank),
                                (int)sizeof all[rank].reason - 1, all[rank].reason);
    free(all);
    return status;
}

static tutti_status try_out(tutti_comm *comm, tutti_same_gpu *s) {
    tutti_status status = open_counters(comm, s);
    if (status == TUTTI_OK && !s->alone) status = need_slot(s, &s->in, LEAST_SLOT_BYTES);
    TUTTI_TRY(agree(comm, status));
    return s->alone ? TUTTI_OK : agree(comm, tutti_same_gpu_try_import(comm, s));
}

static void warn_of_turns(const tutti_comm *comm) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (comm->rank != 0 || comm->cuda.streams->own.mps) return;
    tutti_log(
        atomic_flag_test_and_set(&logged) ? TUTTI_LOG_INFO : TUTTI_LOG_WARN,
        "communicator \"%s\": several processes use one GPU, which runs their kernels in turns; each change costs "
        "0.1 to 0.3 ms. NVIDIA's MPS runs them at the same time: start it by \"nvidia-cuda-mps-control -d\" before "
        "the ranks",
        comm->name);
}

static tutti_status open_engine(tutti_comm *comm) {
    tutti_same_gpu *s;
    size_t n = (size_t)comm->nranks;
    TUTTI_TRY(tutti_calloc(1, sizeof *s, &s));
    comm->cuda.streams->engine_state = s;
    s->device = comm->cuda.streams->device;
    s->index = comm->cuda.streams->index;
    s->rank = comm->rank;
    s->nranks = comm->nranks;
    s->alone = true;
    s->most_slot_bytes = (size_t)tutti_setting_int(TUTTI_SETTING_CUDA_SLOT_BYTES);
    s->post_bytes =
        tutti_align_up(sizeof(tutti_same_gpu_post) + 2 * n * sizeof(tutti_same_gpu_region), TUTTI_CACHE_LINE);
    TUTTI_TRY(make_scratch(s));
    TUTTI_TRY(s->device->event_create(&s->chain.tail));
    TUTTI_TRY(open_boards(comm, s));
    if (s->alone) TUTTI_TRY(tutti_same_gpu_events_make(s->device, &s->events));
    TUTTI_TRY(try_out(comm, s));
    s->maps = !s->alone;
    if (s->maps) warn_of_turns(comm);
    /* Closing a mapping may wait for all streams of the process, so for those of its other ranks. */
    s->maps_any = s->maps && !shares_process(comm) && tutti_setting_int(TUTTI_SETTING_CUDA_MAP) == 1;
    if (s->maps) tutti_device_memory_expect_peers(1);
    return TUTTI_OK;
}

static void abort_engine(tutti_comm *comm) {
    tutti_same_gpu *s = comm->cuda.streams->engine_state;
    if (s != NULL && s->counters != NULL) tutti_same_gpu_release_streams(s);
}

/* --------------------------------------------------------------------------------------------- slots */

/* Leases GPU memory that peers can map, until the communicator is destroyed and no stream uses the memory. */
static tutti_status lease(tutti_same_gpu *s, size_t bytes, char **memory_out) {
    char *memory;
    if (s->nkept == TUTTI_SAME_GPU_SLOTS)
        return tutti_fail(TUTTI_ERR_MEMORY, "all %d slots of one rank are in use", s->nkept);
    TUTTI_TRY(tutti_same_gpu_take_slot(s->device, s->index, bytes, &memory));
    s->kept[s->nkept++] = memory;
    TUTTI_TRY(tutti_same_gpu_share(s, memory, bytes));
    *memory_out = memory;
    return TUTTI_OK;
}

/* Ensures two halves of half_bytes each. A smaller slot is kept: calls in flight use it, and sizes double. */
static tutti_status need_slot(tutti_same_gpu *s, tutti_same_gpu_slot *slot, size_t half_bytes) {
    size_t bytes = LEAST_SLOT_BYTES;
    if (half_bytes <= slot->half_bytes) return TUTTI_OK;
    while (bytes < half_bytes) bytes *= 2;
    TUTTI_TRY(lease(s, 2 * bytes, &slot->memory));
    slot->half_bytes = bytes;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------ planning a call */

static tutti_same_gpu_slot *slot_of(tutti_same_gpu *s, const tutti_same_gpu_plan *plan, bool input) {
    if (plan->captured) return input ? &s->graph_in : &s->graph_out;
    return input ? &s->in : &s->out;
}

static int count_segments(const tutti_comm *comm, const tutti_op *op, bool input) {
    bool has = input ? tutti_op_has_input(op, comm->rank) : tutti_op_has_output(op, comm->rank);
    bool list = input ? tutti_op_is_split(op) : tutti_op_collects(op);
    return !has ? 0 : list ? comm->nranks : 1;
}

static tutti_span segment_of(const tutti_comm *comm, const tutti_op *op, bool input, int index) {
    return input ? tutti_op_input(comm, op, index) : tutti_op_output(comm, op, index);
}

static size_t longest_segment(const tutti_comm *comm, const tutti_op *op, bool input, int count) {
    size_t longest = 0;
    for (int i = 0; i < count; i++) longest = tutti_max_size(longest, segment_of(comm, op, input, i).bytes);
    return longest;
}

/* True if all ranks can access all segments in place. Fills in the regions. */
static bool describe_segments(tutti_same_gpu *s, const tutti_comm *comm, const tutti_op *op, bool input, int count,
                              tutti_same_gpu_region *regions) {
    bool found = true;
    for (int i = 0; i < count; i++) {
        tutti_span span = segment_of(comm, op, input, i);
        regions[i] = tutti_same_gpu_describe(s, span.data, span.bytes);
        found = found && (s->alone || span.bytes == 0 || regions[i].export_index >= 0);
    }
    return found;
}

/* True if other ranks write an output while they still read it as an input. */
static bool swaps_in_place(const tutti_op *op) {
    return op->kind == TUTTI_KIND_ALL_TO_ALL && op->src == op->dst;
}

/* All ranks must get the same result, so it depends only on the kind and on settings that are equal on all ranks. */
static size_t segment_bytes_of(const tutti_same_gpu *s, const tutti_op *op, size_t item_bytes) {
    bool list = tutti_op_is_split(op) || tutti_op_collects(op);
    size_t bytes = s->most_slot_bytes / (list ? (size_t)s->nranks : 1) / GRANULE * GRANULE;
    return tutti_max_size(bytes, GRANULE) / item_bytes * item_bytes;
}

/* Decides what is copied through slots, and fills in the post. */
static tutti_status plan_call(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                              tutti_same_gpu_post *post) {
    const tutti_op *op = plan->op;
    plan->nin = post->nin = count_segments(comm, op, true);
    plan->nout = post->nout = count_segments(comm, op, false);
    size_t in = longest_segment(comm, op, true, plan->nin), out = longest_segment(comm, op, false, plan->nout);
    size_t most = tutti_max_size(in, out);
    tutti_same_gpu_slot *in_slot = slot_of(s, plan, true), *out_slot = slot_of(s, plan, false);
    plan->pieces = most == 0 ? 1 : (most + plan->segment_bytes - 1) / plan->segment_bytes;
    if (plan->pieces > TUTTI_SAME_GPU_END)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%s of %zu bytes needs too many pieces of %zu bytes; raise TUTTI_CUDA_SLOT_BYTES",
                          tutti_kind_name(op->kind), most, plan->segment_bytes);
    post->pieces = plan->pieces;
    tutti_same_gpu_describe_begin(s);
    plan->in_staged = !describe_segments(s, comm, op, true, plan->nin, post->regions) || swaps_in_place(op);
    plan->out_staged = !describe_segments(s, comm, op, false, plan->nout, post->regions + s->nranks);
    post->in_slot = post->out_slot = (tutti_same_gpu_region){.bytes = 0};
    if (plan->in_staged) {
        post->in_stride = tutti_align_up(tutti_min_size(in, plan->segment_bytes), GRANULE);
        TUTTI_TRY(need_slot(s, in_slot, post->in_stride * (size_t)plan->nin));
        post->in_half = in_slot->half_bytes;
        post->in_slot = tutti_same_gpu_describe(s, in_slot->memory, 2 * in_slot->half_bytes);
    }
    if (plan->out_staged) {
        post->out_stride = tutti_align_up(tutti_min_size(out, plan->segment_bytes), GRANULE);
        TUTTI_TRY(need_slot(s, out_slot, post->out_stride * (size_t)plan->nout));
        post->out_half = out_slot->half_bytes;
        post->out_slot = tutti_same_gpu_describe(s, out_slot->memory, 2 * out_slot->half_bytes);
    }
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------- this rank's stream */

/* Copies this piece of all segments between the user's memory and the slot. */
static tutti_status copy_slot(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                              const tutti_same_gpu_post *post, bool input, uint64_t piece) {
    int segments = input ? plan->nin : plan->nout, count = 0;
    const tutti_same_gpu_slot *slot = slot_of(s, plan, input);
    char *half = slot->memory + piece % 2 * slot->half_bytes;
    for (int i = 0; i < segments; i++) {
        tutti_span span = segment_of(comm, plan->op, input, i);
        size_t start, bytes = tutti_same_gpu_piece(span.bytes, plan->segment_bytes, piece, &start);
        char *user = (char *)(uintptr_t)span.data + start;
        char *staged = half + (size_t)i * (input ? post->in_stride : post->out_stride);
        if (bytes == 0) continue;
        s->srcs[count] = input ? user : staged;
        s->dsts[count] = input ? staged : user;
        s->bytes[count++] = bytes;
    }
    if (count == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_flush(s, plan));
    if (count == 1) return s->device->copy(s->dsts[0], s->srcs[0], s->bytes[0], plan->stream);
    return s->device->copy_many(s->dsts, s->srcs, s->bytes, count, plan->stream);
}

/* Enqueues all pieces in the stream; the launcher (launch not NULL) also the kernels that serve all ranks. A slot has
 * two halves: piece k is copied in after k - 2 was copied out, and the others read k before they count k + 1. */
static tutti_status put_pieces(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                               const tutti_same_gpu_post *post, tutti_same_gpu_launch *launch) {
    uint64_t pieces = launch != NULL ? tutti_same_gpu_launch_pieces(launch) : plan->pieces;
    for (uint64_t piece = 0; piece < pieces; piece++) {
        if (plan->in_staged && piece >= 2 && launch == NULL) TUTTI_TRY(tutti_same_gpu_wait_done(s, plan, piece - 1));
        if (plan->in_staged) TUTTI_TRY(copy_slot(comm, s, plan, post, /* input */ true, piece));
        if (launch == NULL) /* no rank waits for the launcher's count, or would reset it in a graph */
            TUTTI_TRY(tutti_same_gpu_say_ready(s, plan, piece + 1 == plan->pieces ? TUTTI_SAME_GPU_END : piece + 1));
        if (launch != NULL) TUTTI_TRY(tutti_same_gpu_launch_piece(launch, piece));
        if (!plan->out_staged || piece == 0) continue;
        if (launch == NULL) TUTTI_TRY(tutti_same_gpu_wait_done(s, plan, piece));
        TUTTI_TRY(copy_slot(comm, s, plan, post, /* input */ false, piece - 1));
    }
    if (launch == NULL) TUTTI_TRY(tutti_same_gpu_wait_done(s, plan, TUTTI_SAME_GPU_END));
    return plan->out_staged ? copy_slot(comm, s, plan, post, /* input */ false, pieces - 1) : TUTTI_OK;
}

/* Every call has a place on the board, including captured calls, which have no number. */
static tutti_status put_call(tutti_comm *comm, tutti_same_gpu *s, const tutti_stream_call *call) {
    tutti_same_gpu_launch *launch = NULL;
    size_t item_bytes = tutti_max_size(tutti_type_bytes(call->op->type), 1);
    tutti_same_gpu_plan plan = {.op = call->op,
                                .number = call->number,
                                .place = ++s->places,
                                .captured = call->captured,
                                .stream = call->stream,
                                .item_bytes = item_bytes,
                                .segment_bytes = segment_bytes_of(s, call->op, item_bytes)};
    tutti_same_gpu_post *post = tutti_same_gpu_post_at(s, s->rank, plan.place);
    TUTTI_TRY(claim(comm, s, plan.place));
    post->signature = call->op->signature;
    post->stream = (uint64_t)(uintptr_t)call->stream;
    post->call = tutti_call_of(call->op);
    post->factor = call->op->factor;
    post->captured = call->captured;
    TUTTI_TRY(plan_call(comm, s, &plan, post));
    if (!call->captured) TUTTI_TRY(tutti_stream_chain_follow(&s->chain, s->device, call->stream));
    TUTTI_TRY(tutti_same_gpu_put_mark(s, &plan, call->begun));
    if (s->alone && !call->captured) return tutti_same_gpu_put_together(comm, s, &plan, post, call);
    bool last = tutti_same_gpu_arrive(s, post, plan.place);
    if (last) TUTTI_TRY(tutti_same_gpu_launch_begin(comm, s, &plan, &launch));
    tutti_status status = put_pieces(comm, s, &plan, post, launch);
    if (status == TUTTI_OK) status = tutti_same_gpu_put_mark(s, &plan, call->done);
    if (status == TUTTI_OK) status = tutti_same_gpu_flush(s, &plan);
    if (launch != NULL) tutti_same_gpu_launch_end(launch);
    return status;
}

static tutti_status enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    tutti_same_gpu *s = comm->cuda.streams->engine_state;
    if (!call->captured) {
        TUTTI_TRY(put_call(comm, s, call));
        return tutti_stream_chain_extend(&s->chain, s->device, call->stream);
    }
    TUTTI_TRY(tutti_same_gpu_try_capture(comm, s, call->stream));
    s->capturing = true;
    TUTTI_TRY(put_call(comm, s, call));
    s->capturing = false;
    return TUTTI_OK;
}

/* If other ranks may already have captured the call, this rank cannot leave it out. */
static bool spares(tutti_comm *comm) {
    const tutti_same_gpu *s = comm->cuda.streams->engine_state;
    return !s->capturing;
}

const tutti_stream_engine tutti_engine_same_gpu = {
    .name = "same_gpu",
    .when = "all ranks on one GPU, or one MIG instance",
    .fits = fits,
    .open = open_engine,
    .enqueue = enqueue,
    .spares = spares,
    .abort = abort_engine,
    .close = close_engine,
    .puts_marks = true,
    .yields = true,
    .captures = true,
};
