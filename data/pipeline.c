/*
 * Pipelines: the caller's list becomes a maker of batches, and a thread that makes them ahead.
 *
 * Slots are a ring: the caller holds one, the thread fills the others, and waits while all are full. A failure or
 * the end is the last slot that it fills. A seek ends the thread; the next call starts it again.
 */
#include "data/pipeline.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_BATCH 32
#define DEFAULT_AHEAD 2
#define MOST_AHEAD    1024
#define MOST_BATCH    (1 << 24)

/* ------------------------------------------------------------------------------------------------ list */

enum { AT_SAMPLES, AT_SHUFFLE, AT_BATCH, AT_REPEAT };

static tutti_status fail_place(const char *name) {
    return tutti_fail(
        TUTTI_ERR_ARGUMENT,
        "%s: operations on samples come first, then shuffle, batch and repeat, in this order and each once at "
        "most",
        name);
}

static tutti_status add_whole(tutti_data_maker *maker, int kind, const tutti_data_op *op) {
    int64_t number, drops;
    if (kind == AT_SHUFFLE)
        return tutti_data_whole("shuffle", "buffer_size", op->values[0], 1, INT_MAX, &maker->buffer);
    if (kind == AT_BATCH) {
        TUTTI_TRY(tutti_data_whole("batch", "size", op->values[0], 0, MOST_BATCH, &number));
        TUTTI_TRY(tutti_data_whole("batch", "drop_remainder", op->values[1], 0, 1, &drops));
        if (number > 0) maker->batch = (int)number;
        maker->drops = drops == 1;
        return TUTTI_OK;
    }
    TUTTI_TRY(tutti_data_whole("repeat", "count", op->values[0], -1, INT_MAX, &number));
    if (number != 0) maker->passes = number;
    return TUTTI_OK;
}

static tutti_status read_list(tutti_data_maker *maker, const tutti_data_op *ops, int nops) {
    static const char *const kinds[] = {[AT_SHUFFLE] = "shuffle", [AT_BATCH] = "batch", [AT_REPEAT] = "repeat"};
    int reached = AT_SAMPLES;
    maker->batch = DEFAULT_BATCH;
    maker->passes = 1;
    for (int i = 0; i < nops; i++) {
        const char *name = ops[i].name != NULL ? ops[i].name : "(NULL)";
        const tutti_data_step_row *row = tutti_data_steps_find(name);
        int kind = AT_SHUFFLE;
        while (row == NULL && kind <= AT_REPEAT && strcmp(kinds[kind], name) != 0) kind++;
        if (row == NULL && kind > AT_REPEAT)
            return tutti_fail(
                TUTTI_ERR_ARGUMENT,
                "operation %d, %s, is unknown; expected random_crop, random_horizontal_flip, resize, rescale, "
                "normalize, hwc_to_chw, type_cast, shuffle, batch or repeat",
                i, name);
        if (row != NULL ? reached > AT_SAMPLES : reached >= kind) return fail_place(name);
        if (row != NULL) TUTTI_TRY(tutti_data_steps_add(&maker->steps, row, &ops[i]));
        else TUTTI_TRY(add_whole(maker, reached = kind, &ops[i]));
    }
    return tutti_data_steps_end(&maker->steps);
}

/* ----------------------------------------------------------------------------------------------- create */

static tutti_status take_options(tutti_data *data, const tutti_data_options *given) {
    tutti_data_options options = TUTTI_DATA_OPTIONS(.seed = 0);
    tutti_data_maker *maker = &data->maker;
    if (given != NULL)
        TUTTI_TRY(tutti_struct_take("tutti_data_create: options", "TUTTI_DATA_OPTIONS(...)", given, &options,
                                    sizeof options));
    maker->share.nshards = options.num_shards;
    maker->share.shard = options.shard_id;
    if (options.num_shards == 0) {
        maker->share.nshards = options.comm != NULL ? tutti_comm_size(options.comm) : 1;
        maker->share.shard = options.comm != NULL ? tutti_comm_rank(options.comm) : 0;
    }
    if (maker->share.nshards < 1 || maker->share.shard < 0 || maker->share.shard >= maker->share.nshards)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_data_create: shard_id %d of num_shards %d, expected 0 to num_shards - 1",
                          options.shard_id, options.num_shards);
    if ((unsigned)options.division > TUTTI_DATA_RANGES || options.ahead < -1 || options.ahead > MOST_AHEAD)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_create: division %d or ahead %d (-1 to %d) is invalid",
                          (int)options.division, options.ahead, MOST_AHEAD);
    maker->share.division = options.division;
    maker->seed = options.seed;
    data->ahead = options.ahead >= 0;
    data->nslots = options.ahead < 0 ? 1 : 1 + (options.ahead > 0 ? options.ahead : DEFAULT_AHEAD);
    return TUTTI_OK;
}

static tutti_status open_places(tutti_data_maker *maker) {
    tutti_data_flow *flow = &maker->flow;
    const size_t bytes = tutti_data_source_bytes(maker->source), places = maker->buffer > 0 ? (size_t)maker->buffer : 1;
    flow->held = calloc(places, sizeof *flow->held);
    flow->images = calloc(places, bytes);
    if (flow->held == NULL || flow->images == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a shuffle buffer of %zu images of %zu bytes", places, bytes);
    for (size_t i = 0; i < places; i++) flow->held[i].image = (uint8_t *)flow->images + i * bytes;
    return TUTTI_OK;
}

static tutti_status open_samples(tutti_data_maker *maker, bool in_order) {
    const tutti_data_source_row *row = maker->source->row;
    maker->share.count = maker->source->details.count;
    maker->share.batch = maker->batch;
    if (row->read != NULL) {
        maker->samples = tutti_data_share_count(&maker->share);
        maker->raw.image = malloc(tutti_data_source_bytes(maker->source));
        if (maker->raw.image == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for an image");
        return tutti_data_order_init(&maker->order, maker->share.count, maker->seed, !in_order, maker->buffer);
    }
    TUTTI_TRY(row->check(maker->source, maker->share.nshards));
    maker->samples = row->count(maker->source, maker->share.shard, maker->share.nshards);
    if (maker->share.count >= 0 && maker->share.division != TUTTI_DATA_RANGES)
        maker->samples = tutti_data_share_count(&maker->share);
    return open_places(maker);
}

/* Called when the size of batches is known. */
static tutti_status take_part(tutti_data_maker *maker, const tutti_data_options *given) {
    const tutti_data_options options = given != NULL ? *given : TUTTI_DATA_OPTIONS(.seed = 0);
    const bool whole = options.part_first == 0 && options.part_count == 0;
    maker->all_labels = options.all_labels != 0;
    maker->part_end = maker->batch;
    if (whole) return TUTTI_OK;
    if (options.part_first < 0 || options.part_count < 1 || options.part_first > maker->batch - options.part_count)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_data_create: part_first %d with part_count %d is not a part of a batch of %d samples; "
                          "expected at least one sample of the batch, or 0 and 0 for whole batches",
                          options.part_first, options.part_count, maker->batch);
    maker->part_first = options.part_first;
    maker->part_end = options.part_first + options.part_count;
    return TUTTI_OK;
}

static tutti_status open_data(tutti_data *data, const tutti_data_op *ops, int nops, const tutti_data_options *options) {
    tutti_data_maker *maker = &data->maker;
    const tutti_data_source_details *about = &maker->source->details;
    TUTTI_TRY(take_options(data, options));
    const tutti_data_image in = {
        .height = about->height, .width = about->width, .channels = about->channels, .type = about->type};
    tutti_data_steps_begin(&maker->steps, &in);
    TUTTI_TRY(read_list(maker, ops, nops));
    TUTTI_TRY(take_part(maker, options));
    TUTTI_TRY(open_samples(maker, options != NULL && options->in_order != 0));
    const tutti_data_image *out = &maker->steps.out;
    data->details = (tutti_data_details){.height = out->height,
                                         .width = out->width,
                                         .channels = out->channels,
                                         .chw = out->chw,
                                         .classes = about->classes,
                                         .batch_size = maker->batch,
                                         .samples = maker->samples,
                                         .batches = tutti_data_make_batches(maker),
                                         .num_shards = maker->share.nshards,
                                         .shard_id = maker->share.shard,
                                         .drop_remainder = maker->drops,
                                         .repeat = maker->passes};
    return TUTTI_OK;
}

tutti_status tutti_data_create(tutti_data_source *source, const tutti_data_op *ops, int nops,
                               const tutti_data_options *options, tutti_data **data_out) {
    if (source == NULL || data_out == NULL || nops < 0 || (nops > 0 && ops == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_create: source, operations and data must not be NULL");
    tutti_data *data = calloc(1, sizeof *data);
    if (data == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a pipeline");
    pthread_mutex_init(&data->mutex, NULL);
    pthread_cond_init(&data->changed, NULL);
    data->maker.source = source;
    data->maker.stopping = &data->stopping;
    tutti_status status = open_data(data, ops, nops, options);
    if (status != TUTTI_OK) {
        tutti_data_destroy(data);
        return status;
    }
    *data_out = data;
    return TUTTI_OK;
}

tutti_status tutti_data_get(const tutti_data *data, tutti_data_details *details_out) {
    if (data == NULL || details_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_get: data and details must not be NULL");
    *details_out = data->details;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- thread */

static void fill_slot(tutti_data *data, tutti_data_slot *slot) {
    slot->status = tutti_data_make(&data->maker, slot);
    if (slot->status != TUTTI_OK) snprintf(slot->words, sizeof slot->words, "%s", tutti_last_error());
}

static void *make_ahead(void *argument) {
    tutti_data *data = argument;
    pthread_mutex_lock(&data->mutex);
    for (bool last = false; !last;) {
        while (!atomic_load_explicit(&data->stopping, memory_order_relaxed) &&
               data->nfilled + data->holds == data->nslots)
            pthread_cond_wait(&data->changed, &data->mutex);
        if (atomic_load_explicit(&data->stopping, memory_order_relaxed)) break;
        tutti_data_slot *slot = &data->slots[(data->first + data->nfilled) % data->nslots];
        pthread_mutex_unlock(&data->mutex);
        fill_slot(data, slot);
        last = slot->status != TUTTI_OK || slot->batch.whole == 0;
        pthread_mutex_lock(&data->mutex);
        data->nfilled++;
        pthread_cond_broadcast(&data->changed);
    }
    pthread_mutex_unlock(&data->mutex);
    return NULL;
}

/* The thread blocks all signals: they are for the program's own threads. */
static tutti_status start_thread(tutti_data *data) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&data->thread, NULL, make_ahead, data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "a thread for a data pipeline: %s; with options.ahead -1 it needs none",
                          strerror(error));
    data->running = true;
    return TUTTI_OK;
}

/* Ends the thread and drops the batches that it has made. */
static void stop_thread(tutti_data *data) {
    if (data->running) {
        pthread_mutex_lock(&data->mutex);
        atomic_store_explicit(&data->stopping, true, memory_order_relaxed);
        pthread_cond_broadcast(&data->changed);
        pthread_mutex_unlock(&data->mutex);
        pthread_join(data->thread, NULL);
    }
    atomic_store_explicit(&data->stopping, false, memory_order_relaxed);
    data->running = data->holds = false;
    data->first = data->nfilled = 0;
}

/* ------------------------------------------------------------------------------------------------ slots */

static void free_slots(tutti_data *data) {
    for (int i = 0; data->slots != NULL && i < data->nslots; i++) {
        free(data->slots[i].images);
        free(data->slots[i].labels);
        free(data->slots[i].indices);
    }
    free(data->slots);
    data->slots = NULL;
}

static tutti_status take_slots(tutti_data *data) {
    const size_t batch = (size_t)data->maker.batch, rows = (size_t)(data->maker.part_end - data->maker.part_first);
    const size_t elements = (size_t)data->details.height * (size_t)data->details.width * (size_t)data->details.channels;
    data->slots = calloc((size_t)data->nslots, sizeof *data->slots);
    bool whole = data->slots != NULL;
    for (int i = 0; whole && i < data->nslots; i++) {
        tutti_data_slot *slot = &data->slots[i];
        slot->images = calloc(rows, elements * sizeof *slot->images);
        slot->labels = calloc(batch, sizeof *slot->labels);
        slot->indices = calloc(batch, sizeof *slot->indices);
        whole = slot->images != NULL && slot->labels != NULL && slot->indices != NULL;
    }
    if (whole) return TUTTI_OK;
    free_slots(data);
    return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %d batches of %zu images of %zu bytes", data->nslots, rows,
                      elements * sizeof(float));
}

/* Waits for the next slot to be filled, and returns it. */
static tutti_data_slot *wait_for_slot(tutti_data *data) {
    pthread_mutex_lock(&data->mutex);
    data->holds = false;
    pthread_cond_broadcast(&data->changed);
    while (data->nfilled == 0) pthread_cond_wait(&data->changed, &data->mutex);
    tutti_data_slot *slot = &data->slots[data->first];
    data->first = (data->first + 1) % data->nslots;
    data->nfilled--;
    data->holds = true;
    pthread_mutex_unlock(&data->mutex);
    return slot;
}

/* ------------------------------------------------------------------------------------------------ calls */

static tutti_status keep_failure(tutti_data *data, tutti_status status, const char *words) {
    data->failed = status;
    snprintf(data->words, sizeof data->words, "%s", words);
    return tutti_fail(status, "%s", data->words);
}

tutti_status tutti_data_next(tutti_data *data, tutti_data_batch *batch_out) {
    if (data == NULL || batch_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_next: data and batch must not be NULL");
    if (data->failed != TUTTI_OK) return tutti_fail(data->failed, "%s", data->words);
    if (data->slots == NULL) TUTTI_TRY(take_slots(data));
    if (data->ended) {
        *batch_out = (tutti_data_batch){.pass = data->maker.pass};
        return TUTTI_OK;
    }
    if (data->ahead && !data->running) TUTTI_TRY(start_thread(data));
    tutti_data_slot *slot = data->slots;
    if (data->ahead) slot = wait_for_slot(data);
    else fill_slot(data, slot);
    if (slot->status != TUTTI_OK) return keep_failure(data, slot->status, slot->words);
    data->ended = slot->batch.whole == 0;
    *batch_out = slot->batch;
    return TUTTI_OK;
}

tutti_status tutti_data_seek(tutti_data *data, int64_t pass, int64_t number) {
    if (data == NULL || pass < 0 || number < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_seek: data must not be NULL, pass and number not below 0");
    stop_thread(data);
    data->failed = TUTTI_OK;
    data->ended = false;
    tutti_status status = tutti_data_make_from(&data->maker, pass, number);
    return status == TUTTI_OK ? status : keep_failure(data, status, tutti_last_error());
}

void tutti_data_destroy(tutti_data *data) {
    if (data == NULL) return;
    stop_thread(data);
    tutti_data_make_stop(&data->maker);
    free_slots(data);
    free(data->maker.flow.held);
    free(data->maker.flow.images);
    free(data->maker.raw.image);
    tutti_data_order_fini(&data->maker.order);
    tutti_data_steps_close(&data->maker.steps);
    pthread_cond_destroy(&data->changed);
    pthread_mutex_destroy(&data->mutex);
    free(data);
}
