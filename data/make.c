/*
 * Makes batches: selects samples, reads them from the source, and runs the operations.
 */
#include <stdlib.h>
#include <string.h>

#include "data/pipeline.h"
#include "kernels/random.h"

static bool is_stream(const tutti_data_maker *maker) {
    return maker->source->row->read == NULL;
}

int64_t tutti_data_make_batches(const tutti_data_maker *maker) {
    if (maker->samples < 0) return -1;
    return maker->drops ? maker->samples / maker->batch : (maker->samples + maker->batch - 1) / maker->batch;
}

/* --------------------------------------------------------------------------------------------- streams */

static tutti_status open_stream(tutti_data_maker *maker) {
    const tutti_data_pass pass = {
        .pass = maker->pass, .shard = maker->share.shard, .nshards = maker->share.nshards, .seed = maker->seed};
    return maker->source->row->begin(maker->source, &pass, &maker->flow.stream);
}

static void close_stream(tutti_data_maker *maker) {
    if (maker->flow.stream != NULL) maker->source->row->end(maker->flow.stream);
    maker->flow.stream = NULL;
}

void tutti_data_make_stop(tutti_data_maker *maker) {
    close_stream(maker);
    maker->flow.taken = maker->flow.given = maker->flow.nheld = 0;
    maker->flow.ended = false;
}

/* Takes the next sample of the shard in this pass; a stream that has fewer samples than needed is opened again. */
static tutti_status take(tutti_data_maker *maker, tutti_data_raw *raw) {
    tutti_data_flow *flow = &maker->flow;
    const tutti_data_source_row *row = maker->source->row;
    for (int opened = 0; !flow->ended;) {
        if (maker->samples >= 0 && flow->taken == maker->samples) break;
        if (flow->stream == NULL) {
            TUTTI_TRY(open_stream(maker));
            opened++;
        }
        bool end = false;
        TUTTI_TRY(row->next(flow->stream, raw->image, &raw->label, &raw->index, &end));
        if (!end) {
            flow->taken++;
            return TUTTI_OK;
        }
        close_stream(maker);
        if (maker->samples < 0 || opened > 1) break; /* opened twice: the stream is empty */
    }
    flow->ended = true;
    return TUTTI_OK;
}

/* Fills the buffer and takes one sample from it; the sample stays in the last place until the next call. *end_out:
 * the pass has ended. */
static tutti_status next_of_stream(tutti_data_maker *maker, tutti_data_raw *raw_out, bool *end_out) {
    tutti_data_flow *flow = &maker->flow;
    const int64_t places = maker->buffer > 0 ? maker->buffer : 1;
    while (!flow->ended && flow->nheld < places) {
        TUTTI_TRY(take(maker, &flow->held[flow->nheld]));
        flow->nheld += !flow->ended;
        if (atomic_load_explicit(maker->stopping, memory_order_relaxed)) return TUTTI_OK;
    }
    *end_out = flow->nheld == 0;
    if (*end_out) return TUTTI_OK;
    uint64_t stream =
        tutti_random_stream(TUTTI_RANDOM_SHUFFLE_BUFFER, (uint64_t)maker->share.shard, (uint64_t)maker->pass);
    uint64_t bits = maker->buffer > 1 ? tutti_random_bits(maker->seed, stream, (uint64_t)flow->given) : 0;
    tutti_data_raw *taken = &flow->held[bits % (uint64_t)flow->nheld], *last = &flow->held[flow->nheld - 1];
    const tutti_data_raw chosen = *taken;
    *taken = *last;
    *last = chosen;
    flow->nheld--;
    flow->given++;
    *raw_out = chosen;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- samples */

/* A sample that is not wanted is skipped: only its number is set. */
static tutti_status next_by_number(tutti_data_maker *maker, bool wanted, tutti_data_raw *raw_out, bool *end_out) {
    *end_out = maker->at == maker->samples;
    if (*end_out) return TUTTI_OK;
    maker->raw.index =
        tutti_data_order_at(&maker->order, maker->pass, tutti_data_share_place(&maker->share, maker->at));
    if (wanted)
        TUTTI_TRY(maker->source->row->read(maker->source, maker->raw.index, maker->raw.image, &maker->raw.label));
    *raw_out = maker->raw;
    return TUTTI_OK;
}

static tutti_status next_sample(tutti_data_maker *maker, bool wanted, tutti_data_raw *raw_out, bool *end_out) {
    TUTTI_TRY(is_stream(maker) ? next_of_stream(maker, raw_out, end_out)
                               : next_by_number(maker, wanted, raw_out, end_out));
    maker->at += !*end_out;
    return TUTTI_OK;
}

/* Takes up to a batch of samples of this pass, and makes those of the part. */
static tutti_status fill(tutti_data_maker *maker, tutti_data_slot *slot) {
    const size_t elements = tutti_data_image_bytes(&maker->steps.out) / tutti_type_bytes(maker->steps.out.type);
    slot->batch = (tutti_data_batch){.images = slot->images,
                                     .labels = slot->labels + maker->part_first,
                                     .indices = slot->indices + maker->part_first,
                                     .all_labels = maker->all_labels ? slot->labels : NULL,
                                     .pass = maker->pass,
                                     .number = maker->number};
    while (slot->batch.whole < maker->batch && !atomic_load_explicit(maker->stopping, memory_order_relaxed)) {
        const int i = slot->batch.whole;
        const bool in_part = i >= maker->part_first && i < maker->part_end;
        tutti_data_raw raw = {.label = 0};
        bool end = false;
        TUTTI_TRY(next_sample(maker, in_part || maker->all_labels, &raw, &end));
        if (end || raw.image == NULL) break;
        slot->labels[i] = raw.label;
        slot->indices[i] = raw.index;
        slot->batch.whole++;
        if (!in_part) continue;
        const tutti_data_draw draw = {.seed = maker->seed, .pass = maker->pass, .sample = raw.index};
        tutti_data_steps_run(&maker->steps, &draw, raw.image, slot->images + (size_t)slot->batch.count * elements);
        slot->batch.count++;
    }
    if (slot->batch.whole < maker->batch && maker->drops) slot->batch.whole = slot->batch.count = 0;
    return TUTTI_OK;
}

static void go_to_next_pass(tutti_data_maker *maker) {
    tutti_data_make_stop(maker);
    maker->pass++;
    maker->number = maker->at = 0;
}

tutti_status tutti_data_make(tutti_data_maker *maker, tutti_data_slot *slot) {
    slot->batch.whole = slot->batch.count = 0;
    while (maker->passes < 0 || maker->pass < maker->passes) {
        TUTTI_TRY(fill(maker, slot));
        if (atomic_load_explicit(maker->stopping, memory_order_relaxed)) return TUTTI_OK;
        if (slot->batch.whole > 0) {
            maker->number++;
            return TUTTI_OK;
        }
        if (maker->number == 0) return TUTTI_OK; /* a pass without a batch: the next one would have none either */
        go_to_next_pass(maker);
    }
    return TUTTI_OK;
}

tutti_status tutti_data_make_from(tutti_data_maker *maker, int64_t pass, int64_t number) {
    tutti_data_make_stop(maker);
    maker->pass = pass;
    maker->number = maker->at = 0;
    if (!is_stream(maker)) {
        int64_t batches = tutti_data_make_batches(maker);
        maker->number = number < batches ? number : batches;
        maker->at = maker->number * maker->batch < maker->samples ? maker->number * maker->batch : maker->samples;
        return TUTTI_OK;
    }
    for (bool end = false; maker->at < number * maker->batch && !end;) {
        tutti_data_raw raw;
        TUTTI_TRY(next_sample(maker, false, &raw, &end));
    }
    maker->number = number;
    return TUTTI_OK;
}
