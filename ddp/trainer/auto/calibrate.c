/*
 * Measures pieces. On each host as many ranks as it has cores, its team, run the same piece at the same time, in
 * blocks of memory that all pieces share. The other ranks wait: oversubscribed ranks would measure the same, in
 * turns. With GPUs all ranks measure.
 *
 *   inputs     arrays that kernels only read, and gradients that they may change: random numbers
 *   outputs    arrays that kernels write; kept and scratch are separate, since they may not hold floats
 *
 * The time of a run is the minimum over a few runs of the thread's CPU time: other programs on the machine can only
 * add to it, but ranks that compute side by side share its memory, which this time includes. Before each run the
 * core's own cache is swept: in a step other layers run in between and evict the layer's data. The slowest rank of
 * all teams counts. If ranks are oversubscribed, times are multiplied by the number of ranks per core (crowding).
 *
 * On a GPU it is the stream's time for some runs in a row, since a step also enqueues without waiting; the first
 * run, in which libraries initialize, does not count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ddp/trainer/auto/machine.h"

#define ROUNDS     3 /* over all pieces, since other programs do not run all the time */
#define LEAST_RUNS 1
#define MOST_RUNS  20
#define LEAST_NS   INT64_C(300000) /* of a round; shorter pieces are run more often */

#define MOST_CACHE_BYTES  (8 << 20) /* some systems report a cache that all cores share */
#define USUAL_SWEEP_BYTES (4 << 20)

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t now_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

/* CPU time of this thread: host kernels run on the caller's thread. */
static int64_t computed_ns(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

tutti_status tutti_calibrate_agree(tutti_comm *comm, tutti_status status) {
    struct {
        int32_t status;
        char text[1020];
    } message = {.status = status};
    const int nranks = tutti_comm_size(comm);
    int32_t failed = status != TUTTI_OK ? tutti_comm_rank(comm) : nranks;
    if (status != TUTTI_OK) snprintf(message.text, sizeof message.text, "%s", tutti_last_error());
    TUTTI_TRY(tutti_all_reduce(comm, &failed, &failed, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (failed == nranks) return TUTTI_OK;
    TUTTI_TRY(tutti_broadcast(comm, &message, sizeof message, TUTTI_UINT8, failed, NULL));
    message.text[sizeof message.text - 1] = '\0';
    return tutti_fail((tutti_status)message.status, "%s", message.text);
}

/* ------------------------------------------------------------------------------------------ what a piece needs */

/* Numbers of floats. */
typedef struct needs {
    size_t x[TUTTI_LAYER_INPUTS], parameters[TUTTI_LAYER_PARAMETERS]; /* inputs */
    size_t dy;
    size_t y, dx[TUTTI_LAYER_INPUTS], gradients[TUTTI_LAYER_PARAMETERS], states[TUTTI_LAYER_STATES]; /* outputs */
    size_t kept, scratch;
    size_t images; /* on the host */
} needs;

typedef struct workroom {
    tutti_comm *team; /* NULL: this rank measures nothing */
    float *inputs, *outputs, *kept, *scratch;
    float *images; /* on the host; all others are in the compute's memory */
    size_t ninputs, noutputs, nkept, nscratch, nimages;
    double *sums;
    tutti_step_values *values;
    char *sweep; /* sweep_bytes; NULL: no sweep */
    size_t sweep_bytes;
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
        needs_out->images = needs_out->y = batch * (size_t)piece->height * (size_t)piece->width * channels;
        return TUTTI_OK;
    case TUTTI_PIECE_LOSS:
        needs_out->x[0] = needs_out->y = batch * channels;
        needs_out->kept = batch; /* labels */
        return TUTTI_OK;
    case TUTTI_PIECE_UPDATE:
        needs_out->x[0] = needs_out->dx[0] = channels;
        needs_out->states[0] = needs_out->states[1] = channels;
        return TUTTI_OK;
    case TUTTI_PIECE_EXPANDED_LOSS:
        needs_out->x[0] = needs_out->y = batch * channels;
        needs_out->kept = batch;                                 /* labels */
        needs_out->states[0] = needs_out->states[1] = 2 * batch; /* doubles: the largest, the sums */
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
    if (row != NULL && row->passes_gradient) b->gradients.dx[0] = b->gradients.dx[1] = NULL; /* usually shared */
}

static tutti_update update_of(const tutti_calibration *calibration) {
    tutti_update update = {.row = tutti_update_find(calibration->optimizer),
                           .options = calibration->update,
                           .compute = calibration->compute};
    if (update.options.momentum < 0) update.options.momentum = update.row->momentum;
    return update;
}

/* Called once for all runs of a piece: sets the labels of a loss, or the rate and other values of an update. */
static void prepare(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    tutti_step_values values = {.time = 0};
    if (b->piece->kind == TUTTI_PIECE_LOSS || b->piece->kind == TUTTI_PIECE_EXPANDED_LOSS)
        compute->kernels->zero(compute, b->room->kept, (size_t)b->piece->batch * sizeof(int32_t));
    if (b->piece->kind != TUTTI_PIECE_UPDATE) return;
    tutti_update update = update_of(b->calibration);
    tutti_update_begin(&update, 1e-6, &values);
    compute->kernels->upload(compute, b->room->values, &values, sizeof values);
}

static void run_loss(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_softmax_loss_args args = {.batch = b->piece->batch,
                                          .classes = b->piece->channels,
                                          .logits = b->x[0],
                                          .labels = (const int32_t *)(const void *)b->room->kept,
                                          .scale = 1,
                                          .dlogits = b->y};
    compute->kernels->softmax_loss(compute, &args, false, b->room->sums);
}

/* The expanded loss on a rank that has all classes. */
static void run_expanded_loss(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_softmax_parts parts = {.batch = b->piece->batch,
                                       .classes = b->piece->channels,
                                       .logits = b->x[0],
                                       .labels = (const int32_t *)(const void *)b->room->kept,
                                       .all_classes = b->piece->channels,
                                       .largest = (double *)(void *)b->states[0],
                                       .sums = (double *)(void *)b->states[1]};
    compute->kernels->softmax_largest(compute, &parts);
    compute->kernels->softmax_sums(compute, &parts);
    compute->kernels->softmax_losses(compute, &parts, 1, b->y, false, b->room->sums);
}

static void run_update(const bench *b) {
    const tutti_update update = update_of(b->calibration);
    const tutti_optimizer_piece piece = {.count = (size_t)b->piece->channels,
                                         .gradient = b->x[0],
                                         .parameter = b->gradients.dx[0],
                                         .states = {b->states[0], b->states[1]}};
    update.row->apply(&update, update.options.weight_decay, b->room->values, &piece, 1);
}

static void run_forward(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_pass pass = {.batch = b->piece->batch, .training = true, .seed = 1, .values = b->room->values};
    switch (b->piece->kind) {
    case TUTTI_PIECE_INPUT:
        compute->kernels->upload(compute, b->y, b->room->images,
                                 (size_t)b->piece->batch * (size_t)b->piece->height * (size_t)b->piece->width *
                                     (size_t)b->piece->channels * sizeof(float));
        return;
    case TUTTI_PIECE_LOSS: run_loss(b); return;
    case TUTTI_PIECE_EXPANDED_LOSS: run_expanded_loss(b); return;
    case TUTTI_PIECE_UPDATE: run_update(b); return;
    default: tutti_layers_row(b->node.layer->kind)->forward(compute, &b->node, &pass, b->x);
    }
}

static void run_backward(const bench *b) {
    tutti_compute *compute = b->calibration->compute;
    const tutti_pass pass = {.batch = b->piece->batch, .training = true, .seed = 1, .values = b->room->values};
    tutti_layers_row(b->node.layer->kind)->backward(compute, &b->node, &pass, b->x, &b->gradients);
}

static double least(double a, double b) {
    return a < b ? a : b;
}

/* Times runs in a row until the stream has completed them. */
static tutti_status time_in_stream(const bench *b, void (*run)(const bench *b), int runs, double *us_out) {
    tutti_compute *compute = b->calibration->compute;
    const int64_t start_ns = now_ns();
    for (int i = 0; i < runs; i++) run(b);
    TUTTI_TRY(compute->kernels->wait(compute));
    *us_out = (double)(now_ns() - start_ns) / 1e3 / runs;
    return TUTTI_OK;
}

static tutti_status measure_in_stream(const bench *b, void (*run)(const bench *b), double *best) {
    double us;
    TUTTI_TRY(time_in_stream(b, run, 1, &us));
    TUTTI_TRY(time_in_stream(b, run, 1, &us));
    const double wanted = (double)LEAST_NS / 1e3 / us;
    TUTTI_TRY(time_in_stream(b, run,
                             wanted < LEAST_RUNS  ? LEAST_RUNS
                             : wanted < MOST_RUNS ? (int)wanted
                                                  : MOST_RUNS,
                             &us));
    *best = least(*best, us);
    return TUTTI_OK;
}

static bool is_on_gpu(const tutti_calibration *calibration) {
    return calibration->compute->kernels->memory != TUTTI_MEMORY_HOST;
}

/* Reads enough other memory to evict the piece from the core's cache. */
static void sweep(const workroom *room) {
    enum { LINE = 64 };
    volatile const char *bytes = room->sweep;
    for (size_t i = 0; bytes != NULL && i < room->sweep_bytes; i += LINE) (void)bytes[i];
}

static tutti_status measure(const tutti_calibration *calibration, const workroom *room, const tutti_piece *piece,
                            tutti_piece_times *times) {
    tutti_layer layer;
    needs n;
    bench b = {.calibration = calibration, .piece = piece, .room = room};
    TUTTI_TRY(find_needs(calibration, piece, &layer, &b.node, &n));
    bind(&b, &n);
    prepare(&b);
    tutti_piece_times best = *times;
    if (piece->backward == 0) best.backward_us = 0;
    TUTTI_TRY(tutti_barrier(room->team, NULL));
    if (is_on_gpu(calibration)) {
        TUTTI_TRY(measure_in_stream(&b, run_forward, &times->forward_us));
        if (piece->backward != 0) return measure_in_stream(&b, run_backward, &times->backward_us);
        times->backward_us = 0;
        return TUTTI_OK;
    }
    const int64_t begun_ns = now_ns();
    for (int run = 0; run < LEAST_RUNS || (run < MOST_RUNS && now_ns() - begun_ns < LEAST_NS); run++) {
        sweep(room);
        int64_t start_ns = computed_ns();
        run_forward(&b);
        best.forward_us = least(best.forward_us, (double)(computed_ns() - start_ns) / 1e3);
        if (piece->backward == 0) continue;
        sweep(room);
        start_ns = computed_ns();
        run_backward(&b);
        best.backward_us = least(best.backward_us, (double)(computed_ns() - start_ns) / 1e3);
    }
    *times = best;
    return calibration->compute->kernels->check(calibration->compute);
}

/* ------------------------------------------------------------------------------------------------------ all */

static bool is_wanted(const tutti_auto_pieces *pieces, int index) {
    return pieces->entries[index].measured == index && pieces->entries[index].times.forward_us < 0;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Twice the second-level cache. */
static tutti_status open_sweep(const tutti_calibration *calibration, workroom *made) {
    const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (is_on_gpu(calibration)) return TUTTI_OK;
    made->sweep_bytes = cache > 0 && cache <= MOST_CACHE_BYTES ? 2 * (size_t)cache : USUAL_SWEEP_BYTES;
    made->sweep = malloc(made->sweep_bytes);
    if (made->sweep == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to sweep a cache of %ld bytes", cache);
    memset(made->sweep, 1, made->sweep_bytes);
    return TUTTI_OK;
}

static tutti_status open_room(const tutti_calibration *calibration, const tutti_auto_pieces *pieces, int count,
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
        made->nimages = larger(made->nimages, n.images);
    }
    float **arrays[] = {&made->inputs, &made->outputs, &made->kept, &made->scratch};
    const size_t counts[] = {made->ninputs, made->noutputs, made->nkept, made->nscratch};
    for (int i = 0; i < 4; i++) {
        void *memory;
        TUTTI_TRY(compute->kernels->alloc(compute, counts[i] * sizeof(float) + 64, &memory));
        *arrays[i] = memory;
    }
    made->images = malloc(made->nimages * sizeof *made->images + 1);
    if (made->images == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the images of a batch");
    /* without this all its pages would map one page of zeros */
    memset(made->images, 1, made->nimages * sizeof *made->images);
    void *small;
    TUTTI_TRY(compute->kernels->alloc(compute, 2 * sizeof *made->sums, &small));
    made->sums = small;
    TUTTI_TRY(compute->kernels->alloc(compute, sizeof *made->values, &small));
    made->values = small;
    TUTTI_TRY(open_sweep(calibration, made));
    const tutti_normal normal = {.seed = 1, .stream = 1, .stddev = 0.1};
    compute->kernels->truncated_normal(compute, &normal, made->ninputs, made->inputs);
    compute->kernels->fill(compute, made->noutputs, 1, made->outputs);
    return compute->kernels->check(compute);
}

static void close_room(const tutti_calibration *calibration, workroom *made) {
    tutti_compute *compute = calibration->compute;
    void *memory[] = {made->inputs, made->outputs, made->kept, made->scratch, made->sums, made->values};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) compute->kernels->free(compute, memory[i]);
    free(made->images);
    free(made->sweep);
}

/* Collective: makes the team from the first ranks of each host, one per core; with GPUs from all ranks. */
static tutti_status make_team(const tutti_calibration *calibration, tutti_comm **team_out) {
    tutti_comm_details details;
    TUTTI_TRY(tutti_comm_get(calibration->comm, &details));
    const bool measures = is_on_gpu(calibration) || details.local_rank < details.host_cores;
    return tutti_comm_split(calibration->comm, measures ? 0 : TUTTI_COLOR_NONE, 0, NULL, team_out);
}

static tutti_status measure_wanted(const tutti_calibration *calibration, tutti_auto_pieces *pieces, int count,
                                   tutti_comm *team) {
    workroom made = {.team = team};
    tutti_status status = team != NULL ? open_room(calibration, pieces, count, &made) : TUTTI_OK;
    bool *wanted = calloc((size_t)count + 1, sizeof *wanted);
    if (wanted == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %d layers", count);
    for (int i = 0; status == TUTTI_OK && i < count; i++) {
        wanted[i] = is_wanted(pieces, i);
        const double at_first = team != NULL ? 1e18 : 0;
        if (wanted[i]) pieces->entries[i].times = (tutti_piece_times){at_first, at_first};
        pieces->measured += wanted[i];
    }
    for (int round = 0; round < ROUNDS && team != NULL; round++)
        for (int i = 0; status == TUTTI_OK && i < count; i++)
            if (wanted[i]) status = measure(calibration, &made, &pieces->entries[i].piece, &pieces->entries[i].times);
    free(wanted);
    close_room(calibration, &made);
    return status;
}

static tutti_status measure_all(const tutti_calibration *calibration, tutti_auto_pieces *pieces, int count) {
    tutti_comm *team = NULL;
    TUTTI_TRY(make_team(calibration, &team));
    const tutti_status status = measure_wanted(calibration, pieces, count, team);
    if (status != TUTTI_OK && team != NULL)
        (void)tutti_comm_abort(team, tutti_last_error()); /* otherwise other ranks would wait */
    const tutti_status agreed = tutti_calibrate_agree(calibration->comm, status);
    tutti_comm_destroy(team);
    return agreed;
}

/* Shares rank 0's times before measuring, and the slowest rank's afterwards. */
static tutti_status share_times(const tutti_calibration *calibration, tutti_auto_pieces *pieces, int count,
                                bool slowest) {
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

/* Finds the ranks per core on the most oversubscribed host. Ranks that share a GPU already did so during the
 * measurements. Collective. */
static tutti_status find_crowding(const tutti_calibration *calibration, double *factor_out) {
    tutti_comm_details details;
    *factor_out = 1;
    if (is_on_gpu(calibration)) return TUTTI_OK;
    TUTTI_TRY(tutti_comm_get(calibration->comm, &details));
    double factor = details.host_cores > 0 ? (double)details.host_ranks / details.host_cores : 1;
    TUTTI_TRY(tutti_all_reduce(calibration->comm, &factor, &factor, 1, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    *factor_out = factor > 1 ? factor : 1;
    return TUTTI_OK;
}

tutti_status tutti_calibrate(const tutti_calibration *calibration, tutti_auto_pieces *pieces) {
    const int64_t begun_ns = now_ns();
    const int count = pieces->count;
    const bool keeps = calibration->path[0] != '\0', first = tutti_comm_rank(calibration->comm) == 0;
    char machine[256];
    TUTTI_TRY(tutti_machine_name(calibration, machine, sizeof machine));
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
