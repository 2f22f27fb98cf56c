/*
 * Measures pieces: all ranks run the same one at the same time, in blocks of memory that they all share.
 *
 *   inputs     what kernels only read, and gradients that they may change: random numbers
 *   outputs    what they write; what is kept and scratch lie apart, since they may be no floats
 *
 * What a run takes is the least of a few of the thread's own time: whatever else runs on a machine only adds, but ranks that compute
 * beside each other share its memory, which this sees. Of the ranks the slowest one counts. Where there are more of them than cores,
 * each gets a part of one only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddp/trainer/auto/pieces.h"

#define ROUNDS     3 /* over all pieces: what else runs on the machine now does not run there all the time */
#define LEAST_RUNS 1
#define MOST_RUNS  20
#define LEAST_NS   INT64_C(300000) /* of a round; shorter pieces are run more often */

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t now_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

/* That this thread has computed: kernels of the host run on the caller's. */
static int64_t computed_ns(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

tutti_status tutti_calibrate_agree(tutti_comm *comm, tutti_status status) {
    struct {
        int32_t status;
        char text[1020];
    } told = {.status = status};
    if (status != TUTTI_OK) snprintf(told.text, sizeof told.text, "%s", tutti_last_error());
    TUTTI_TRY(tutti_broadcast(comm, &told, sizeof told, TUTTI_UINT8, 0, NULL));
    if (told.status == TUTTI_OK) return TUTTI_OK;
    told.text[sizeof told.text - 1] = '\0';
    return tutti_fail((tutti_status)told.status, "%s", told.text);
}

/* ------------------------------------------------------------------------------------------ what a piece needs */

/* Elements of float. */
typedef struct needs {
    size_t x[TUTTI_LAYER_INPUTS], parameters[TUTTI_LAYER_PARAMETERS]; /* inputs */
    size_t dy;
    size_t y, dx[TUTTI_LAYER_INPUTS], gradients[TUTTI_LAYER_PARAMETERS], states[TUTTI_LAYER_STATES]; /* outputs */
    size_t kept, scratch;
} needs;

typedef struct workroom {
    float *inputs, *outputs, *kept, *scratch;
    size_t ninputs, noutputs, nkept, nscratch;
    double *sums;
    tutti_step_values *values;
} workroom;

static size_t aligned(size_t count) {
    return (count + 15) / 16 * 16;
}

static size_t inputs_of(const needs *n) {
    size_t count = aligned(n->dy);
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) count += aligned(n->x[i]);
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS; i++) count += aligned(n->parameters[i]);
    return count;
}

static size_t outputs_of(const needs *n) {
    size_t count = aligned(n->y);
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) count += aligned(n->dx[i]);
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS; i++) count += aligned(n->gradients[i]);
    for (int i = 0; i < TUTTI_LAYER_STATES; i++) count += aligned(n->states[i]);
    return count;
}

static void find_needs_of_layer(const tutti_calibration *calibration, const tutti_piece *piece, const tutti_node *node,
                                needs *n) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    const size_t batch = (size_t)piece->batch;
    for (int i = 0; i < row->ninputs; i++) {
        n->x[i] = batch * tutti_shape_count(node->in);
        if (piece->backward == 2) n->dx[i] = n->x[i];
    }
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS; i++) n->parameters[i] = n->gradients[i] = node->parameter_counts[i];
    for (int i = 0; i < TUTTI_LAYER_STATES; i++) n->states[i] = node->state_counts[i];
    n->y = n->dy = batch * tutti_shape_count(node->out);
    if (row->kept_count != NULL) n->kept = row->kept_count(calibration->compute, node, piece->batch);
    if (row->scratch_count != NULL) n->scratch = row->scratch_count(calibration->compute, node, piece->batch);
}

static tutti_status find_needs(const tutti_calibration *calibration, const tutti_piece *piece, tutti_layer *layer,
                               tutti_node *node, needs *needs_out) {
    const size_t batch = (size_t)piece->batch, channels = (size_t)piece->channels;
    *needs_out = (needs){.y = 0};
    switch (piece->kind) {
    case TUTTI_PIECE_INPUT:
        needs_out->x[0] = needs_out->y = batch * (size_t)piece->height * (size_t)piece->width * channels;
        return TUTTI_OK;
    case TUTTI_PIECE_LOSS:
        needs_out->x[0] = needs_out->y = batch * channels;
        needs_out->kept = batch; /* labels */
        return TUTTI_OK;
    case TUTTI_PIECE_UPDATE:
        needs_out->x[0] = needs_out->dx[0] = channels;
        needs_out->states[0] = needs_out->states[1] = channels;
        return TUTTI_OK;
    default: break;
    }
    TUTTI_TRY(tutti_piece_place(piece, layer, node));
    find_needs_of_layer(calibration, piece, node, needs_out);
    return TUTTI_OK;
}

static float *take(float **next, size_t count) {
    float *taken = *next;
    *next += aligned(count);
    return count > 0 ? taken : NULL;
}

/* -------------------------------------------------------------------------------------------------- running */

/* One piece with its arrays. */
typedef struct bench {
    const tutti_calibration *calibration;
    const tutti_piece *piece;
    const workroom *room;
    tutti_node node;
    const float *x[TUTTI_LAYER_INPUTS];
    tutti_layer_gradients gradients;
    float *dy, *y;
    float *states[TUTTI_UPDATE_STATES];
} bench;

static void bind(bench *b, const needs *n) {
    float *inputs = b->room->inputs, *outputs = b->room->outputs;
    tutti_node *node = &b->node;
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) b->x[i] = take(&inputs, n->x[i]);
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS; i++) node->parameters[i] = take(&inputs, n->parameters[i]);
    node->dy = b->dy = take(&inputs, n->dy);
    node->y = b->y = take(&outputs, n->y);
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) b->gradients.dx[i] = take(&outputs, n->dx[i]);
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS; i++) b->gradients.parameters[i] = take(&outputs, n->gradients[i]);
    for (int i = 0; i < TUTTI_LAYER_STATES; i++) node->states[i] = b->states[i] = take(&outputs, n->states[i]);
    node->kept = n->kept > 0 ? b->room->kept : NULL;
    node->scratch = n->scratch > 0 ? b->room->scratch : NULL;
    node->scratch_count = b->room->nscratch;
    const tutti_layer_row *row = node->layer != NULL ? tutti_layers_row(node->layer->kind) : NULL;
    if (row != NULL && row->passes_gradient) b->gradients.dx[0] = b->gradients.dx[1] = NULL; /* shared, most often */
}

static void run_loss(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    memset(b->room->kept, 0, (size_t)b->piece->batch * sizeof(int32_t));
    const tutti_softmax_loss_args args = {.batch = b->piece->batch,
                                          .classes = b->piece->channels,
                                          .logits = b->x[0],
                                          .labels = (const int32_t *)(const void *)b->room->kept,
                                          .scale = 1,
                                          .dlogits = b->y};
    compute->kernels->softmax_loss(compute, &args, false, b->room->sums);
}

static void run_update(const bench *b) {
    const tutti_calibration *calibration = b->calibration;
    tutti_update update = {.row = tutti_update_find(calibration->optimizer),
                           .options = calibration->update,
                           .compute = calibration->compute};
    if (update.options.momentum < 0) update.options.momentum = update.row->momentum;
    const tutti_optimizer_piece piece = {.count = (size_t)b->piece->channels,
                                         .gradient = b->x[0],
                                         .parameter = b->gradients.dx[0],
                                         .states = {b->states[0], b->states[1]}};
    tutti_update_begin(&update, 1e-6, b->room->values);
    update.row->apply(&update, update.options.weight_decay, b->room->values, &piece, 1);
}

static void run_forward(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_pass pass = {.batch = b->piece->batch, .training = true, .seed = 1, .values = b->room->values};
    switch (b->piece->kind) {
    case TUTTI_PIECE_INPUT:
        compute->kernels->upload(compute, b->y, b->x[0],
                                 (size_t)b->piece->batch * (size_t)b->piece->height * (size_t)b->piece->width *
                                     (size_t)b->piece->channels * sizeof(float));
        return;
    case TUTTI_PIECE_LOSS: run_loss(b); return;
    case TUTTI_PIECE_UPDATE: run_update(b); return;
    default: tutti_layers_row(b->node.layer->kind)->forward(compute, &b->node, &pass, b->x);
    }
}

static void run_backward(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_pass pass = {.batch = b->piece->batch, .training = true, .seed = 1, .values = b->room->values};
    if (b->piece->backward == 0) return;
    tutti_layers_row(b->node.layer->kind)->backward(compute, &b->node, &pass, b->x, &b->gradients);
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static tutti_status measure(const tutti_calibration *calibration, const workroom *room, const tutti_piece *piece,
                            tutti_piece_times *times) {
    tutti_layer layer;
    needs n;
    bench b = {.calibration = calibration, .piece = piece, .room = room};
    TUTTI_TRY(find_needs(calibration, piece, &layer, &b.node, &n));
    bind(&b, &n);
    tutti_piece_times best = *times;
    TUTTI_TRY(tutti_barrier(calibration->comm, NULL));
    const int64_t begun_ns = now_ns();
    for (int run = 0; run < LEAST_RUNS || (run < MOST_RUNS && now_ns() - begun_ns < LEAST_NS); run++) {
        const int64_t start_ns = computed_ns();
        run_forward(&b);
        const int64_t middle_ns = computed_ns();
        run_backward(&b);
        best.forward_us = least(best.forward_us, (double)(middle_ns - start_ns) / 1e3);
        best.backward_us = least(best.backward_us, (double)(computed_ns() - middle_ns) / 1e3);
    }
    *times = best;
    return calibration->compute->kernels->check(calibration->compute);
}

/* ------------------------------------------------------------------------------------------------------ all */

static bool is_wanted(const tutti_pieces *pieces, int index) {
    return pieces->entries[index].measured == index && pieces->entries[index].times.forward_us < 0;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static tutti_status open_room(const tutti_calibration *calibration, const tutti_pieces *pieces, int count,
                              workroom *made) {
    tutti_compute *compute = calibration->compute;
    for (int i = 0; i < count; i++) {
        tutti_layer layer;
        tutti_node node;
        needs n;
        if (!is_wanted(pieces, i)) continue;
        TUTTI_TRY(find_needs(calibration, &pieces->entries[i].piece, &layer, &node, &n));
        made->ninputs = larger(made->ninputs, inputs_of(&n));
        made->noutputs = larger(made->noutputs, outputs_of(&n));
        made->nkept = larger(made->nkept, n.kept);
        made->nscratch = larger(made->nscratch, n.scratch);
    }
    float **arrays[] = {&made->inputs, &made->outputs, &made->kept, &made->scratch};
    const size_t counts[] = {made->ninputs, made->noutputs, made->nkept, made->nscratch};
    for (int i = 0; i < 4; i++) {
        void *memory;
        TUTTI_TRY(compute->kernels->alloc(compute, counts[i] * sizeof(float) + 64, &memory));
        *arrays[i] = memory;
    }
    void *small;
    TUTTI_TRY(compute->kernels->alloc(compute, 2 * sizeof *made->sums, &small));
    made->sums = small;
    TUTTI_TRY(compute->kernels->alloc(compute, sizeof *made->values, &small));
    made->values = small;
    const tutti_normal normal = {.seed = 1, .stream = 1, .stddev = 0.1};
    compute->kernels->truncated_normal(compute, &normal, made->ninputs, made->inputs);
    compute->kernels->fill(compute, made->noutputs, 1, made->outputs);
    return compute->kernels->check(compute);
}

static void close_room(const tutti_calibration *calibration, workroom *made) {
    tutti_compute *compute = calibration->compute;
    void *memory[] = {made->inputs, made->outputs, made->kept, made->scratch, made->sums, made->values};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) compute->kernels->free(compute, memory[i]);
}

/* Where one rank fails the others do not wait: its status is the same for all, since it follows from the pieces; if not, the
 * communicator breaks when that rank ends. */
static tutti_status measure_all(const tutti_calibration *calibration, tutti_pieces *pieces, int count) {
    workroom made = {.inputs = NULL};
    tutti_status status = open_room(calibration, pieces, count, &made);
    bool *wanted = calloc((size_t)count + 1, sizeof *wanted);
    if (wanted == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %d layers", count);
    for (int i = 0; status == TUTTI_OK && i < count; i++) {
        wanted[i] = is_wanted(pieces, i);
        if (wanted[i]) pieces->entries[i].times = (tutti_piece_times){1e18, 1e18};
        pieces->measured += wanted[i];
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; status == TUTTI_OK && i < count; i++)
            if (wanted[i]) status = measure(calibration, &made, &pieces->entries[i].piece, &pieces->entries[i].times);
    free(wanted);
    close_room(calibration, &made);
    return status;
}

/* Rank 0's times, before; the slowest rank's, afterwards. */
static tutti_status share_times(const tutti_calibration *calibration, tutti_pieces *pieces, int count, bool slowest) {
    double *times = malloc(2 * (size_t)count * sizeof *times + 1);
    if (times == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %d layers", count);
    for (int i = 0; i < count; i++) {
        times[2 * i] = pieces->entries[i].times.forward_us;
        times[2 * i + 1] = pieces->entries[i].times.backward_us;
    }
    tutti_status status =
        slowest ? tutti_all_reduce(calibration->comm, times, times, 2 * (size_t)count, TUTTI_FLOAT64, TUTTI_MAX, NULL)
                : tutti_broadcast(calibration->comm, times, 2 * (size_t)count, TUTTI_FLOAT64, 0, NULL);
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        pieces->entries[i].times = (tutti_piece_times){times[2 * i], times[2 * i + 1]};
    free(times);
    return status;
}

/* More ranks than cores: the worst host's. Collective. */
static tutti_status find_crowding(const tutti_calibration *calibration, double *factor_out) {
    tutti_comm_details details;
    TUTTI_TRY(tutti_comm_get(calibration->comm, &details));
    double factor = details.host_cores > 0 ? (double)details.host_ranks / details.host_cores : 1;
    TUTTI_TRY(tutti_all_reduce(calibration->comm, &factor, &factor, 1, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    *factor_out = factor > 1 ? factor : 1;
    return TUTTI_OK;
}

static void name_machine(const tutti_calibration *calibration, char *text, size_t bytes) {
    char line[256], processor[128] = "unknown";
    tutti_comm_details details = {.host_ranks = 0};
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %127[^\n]", processor) == 1) break;
    if (file != NULL) fclose(file);
    (void)tutti_comm_get(calibration->comm, &details);
    snprintf(text, bytes, "%s, %d ranks on %d cores, %s", processor, details.host_ranks, details.host_cores,
             calibration->compute->kernels->name);
}

tutti_status tutti_calibrate(const tutti_calibration *calibration, tutti_pieces *pieces) {
    const int64_t begun_ns = now_ns();
    const int count = pieces->count;
    const bool keeps = calibration->path[0] != '\0', first = tutti_comm_rank(calibration->comm) == 0;
    char machine[256];
    name_machine(calibration, machine, sizeof machine);
    pieces->measured = 0;
    TUTTI_TRY(pieces->failure);
    tutti_status status = TUTTI_OK;
    if (keeps && first) status = tutti_speed_file_read(calibration->path, machine, pieces);
    TUTTI_TRY(tutti_calibrate_agree(calibration->comm, status));
    TUTTI_TRY(share_times(calibration, pieces, count, false));
    TUTTI_TRY(measure_all(calibration, pieces, count));
    TUTTI_TRY(share_times(calibration, pieces, count, true));
    if (keeps && first && pieces->measured > 0) status = tutti_speed_file_write(calibration->path, machine, pieces);
    TUTTI_TRY(tutti_calibrate_agree(calibration->comm, status));
    TUTTI_TRY(find_crowding(calibration, &pieces->crowding));
    pieces->seconds = (double)(now_ns() - begun_ns) / 1e9;
    return TUTTI_OK;
}
