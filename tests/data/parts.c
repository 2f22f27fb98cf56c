/*
 * Parts of batches: some rows of each, equal to those of the whole batch.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/data/check.h"

enum { SAMPLES = 40, BATCH = 7, PASSES = 3, HEIGHT = 6, CHANNELS = 3, ELEMENTS = HEIGHT * HEIGHT * CHANNELS };
enum { MOST_BATCHES = PASSES * (SAMPLES / BATCH + 1) };

typedef struct source_state {
    int reads;     /* by number */
    int64_t given; /* of a pass of the stream */
} source_state;

static void fill(int64_t index, void *image, int32_t *label) {
    for (int64_t e = 0; e < ELEMENTS; e++) ((uint8_t *)image)[e] = pixels_at(index, e);
    *label = (int32_t)(100 + index);
}

static tutti_status read_sample(void *context, int64_t index, void *image, int32_t *label) {
    ((source_state *)context)->reads++;
    fill(index, image, label);
    return TUTTI_OK;
}

static tutti_status begin_pass(void *context, int64_t pass, int shard, int nshards) {
    (void)pass, (void)shard, (void)nshards;
    ((source_state *)context)->given = 0;
    return TUTTI_OK;
}

static tutti_status next_sample(void *context, void *image, int32_t *label, int *end_out) {
    source_state *state = context;
    *end_out = state->given == SAMPLES;
    if (*end_out == 0) fill(state->given++, image, label);
    return TUTTI_OK;
}

static tutti_data_source *open_source(source_state *state, bool streams) {
    tutti_data_user user =
        TUTTI_DATA_USER(.context = state, .height = HEIGHT, .width = HEIGHT, .channels = CHANNELS, .type = TUTTI_UINT8);
    tutti_data_source *source;
    if (streams) user.begin = begin_pass, user.next = next_sample;
    else user.count = SAMPLES, user.read = read_sample;
    expect_ok(tutti_data_open_user(&user, &source));
    return source;
}

static tutti_data *open_data(tutti_data_source *source, bool drops, tutti_data_options options) {
    const tutti_data_op ops[] = {{"random_crop", {HEIGHT, HEIGHT, 2, 2, 2, 2}},
                                 {"random_horizontal_flip", {0.5}},
                                 {"shuffle", {9}},
                                 {"batch", {BATCH, drops}},
                                 {"repeat", {PASSES}}};
    tutti_data *data;
    options.seed = 5;
    expect_ok(tutti_data_create(source, ops, COUNT_OF(ops), &options, &data));
    return data;
}

/* Copies of batches. */
typedef struct run {
    int count;
    tutti_data_batch batches[MOST_BATCHES];
    float images[MOST_BATCHES][BATCH][ELEMENTS];
    int32_t labels[MOST_BATCHES][BATCH], all_labels[MOST_BATCHES][BATCH];
    int64_t indices[MOST_BATCHES][BATCH];
} run;

static void take_rest(tutti_data *data, run *to) {
    for (to->count = 0;; to->count++) {
        tutti_data_batch batch;
        expect_ok(tutti_data_next(data, &batch));
        if (batch.whole == 0) break;
        const int k = to->count;
        cr_assert(k < MOST_BATCHES && batch.count <= batch.whole && batch.whole <= BATCH);
        to->batches[k] = batch;
        memcpy(to->images[k], batch.images, (size_t)batch.count * sizeof to->images[k][0]);
        memcpy(to->labels[k], batch.labels, (size_t)batch.count * sizeof to->labels[k][0]);
        memcpy(to->indices[k], batch.indices, (size_t)batch.count * sizeof to->indices[k][0]);
        if (batch.all_labels != NULL)
            memcpy(to->all_labels[k], batch.all_labels, (size_t)batch.whole * sizeof to->labels[k][0]);
    }
}

static run *new_run(void) {
    run *memory = calloc(1, sizeof *memory);
    cr_assert_not_null(memory);
    return memory;
}

/* `part` begins with batch `at` of `whole`. */
static void expect_rows(const run *whole, int at, const run *part, int first, int rows, bool labels) {
    cr_assert_eq(part->count, whole->count - at);
    for (int k = 0; k < part->count; k++) {
        const tutti_data_batch *a = &whole->batches[at + k], *b = &part->batches[k];
        const int left = a->whole - first, count = left < 0 ? 0 : left < rows ? left : rows;
        cr_assert(b->whole == a->whole && b->pass == a->pass && b->number == a->number);
        cr_assert_eq(b->count, count, "rows from %d, batch %d: %d of %d samples", first, k, b->count, b->whole);
        cr_assert_arr_eq(part->images[k], whole->images[at + k][first], (size_t)count * sizeof whole->images[0][0]);
        cr_assert_arr_eq(part->labels[k], whole->labels[at + k] + first, (size_t)count * sizeof(int32_t));
        cr_assert_arr_eq(part->indices[k], whole->indices[at + k] + first, (size_t)count * sizeof(int64_t));
        cr_assert((b->all_labels != NULL) == labels);
        if (labels) cr_assert_arr_eq(part->all_labels[k], whole->labels[at + k], (size_t)a->whole * sizeof(int32_t));
    }
}

static const int parts[][2] = {{0, 7}, {0, 3}, {3, 4}, {2, 1}, {4, 2}, {6, 1}};

static void check_parts(bool streams, bool drops, run *whole, run *part) {
    source_state state = {.reads = 0};
    tutti_data_source *source = open_source(&state, streams);
    tutti_data *data = open_data(source, drops, TUTTI_DATA_OPTIONS(.num_shards = 1));
    take_rest(data, whole);
    tutti_data_destroy(data);
    /* 40 samples: five batches of seven and one of five, where the last row's part is empty */
    cr_assert_eq(whole->count, drops ? PASSES * 5 : PASSES * 6);
    cr_assert_eq(whole->batches[whole->count - 1].whole, drops ? 7 : 5);
    for (int i = 0; i < 2 * COUNT_OF(parts); i++) {
        const int first = parts[i / 2][0], rows = parts[i / 2][1], labels = i % 2;
        data = open_data(
            source, drops,
            TUTTI_DATA_OPTIONS(.num_shards = 1, .part_first = first, .part_count = rows, .all_labels = labels));
        take_rest(data, part);
        expect_rows(whole, 0, part, first, rows, labels);
        expect_ok(tutti_data_seek(data, 1, 3));
        take_rest(data, part);
        expect_rows(whole, whole->count / PASSES + 3, part, first, rows, labels);
        tutti_data_destroy(data);
    }
    tutti_data_source_destroy(source);
}

Test(parts, are_rows_of_the_whole_batch) {
    run *whole = new_run(), *part = new_run();
    for (int i = 0; i < 4; i++) check_parts(i % 2 == 1, i / 2 == 1, whole, part);
    free(whole), free(part);
}

Test(parts, sources_are_not_read_for_other_rows_unless_their_labels_are_wanted) {
    run *taken = new_run();
    for (int labels = 0; labels < 2; labels++) {
        source_state state = {.reads = 0};
        tutti_data_source *source = open_source(&state, false);
        tutti_data *data = open_data(
            source, false,
            TUTTI_DATA_OPTIONS(.num_shards = 1, .ahead = -1, .part_first = 2, .part_count = 2, .all_labels = labels));
        take_rest(data, taken);
        cr_assert_eq(state.reads, labels ? PASSES * SAMPLES : PASSES * 6 * 2, "%d reads", state.reads);
        tutti_data_destroy(data);
        tutti_data_source_destroy(source);
    }
    free(taken);
}

Test(parts, of_a_shards_batches_are_parts_of_those) {
    int32_t labels[2][SAMPLES];
    int counts[2] = {0};
    tutti_data_source *source = numbers_source(SAMPLES);
    const tutti_data_op ops[] = {{"batch", {5}}};
    for (int i = 0; i < 2; i++) {
        tutti_data *data;
        expect_ok(tutti_data_create(source, ops, 1,
                                    &TUTTI_DATA_OPTIONS(.num_shards = 2, .shard_id = 1, .part_first = i == 0 ? 0 : 3,
                                                        .part_count = i == 0 ? 5 : 2),
                                    &data));
        for (tutti_data_batch batch;;) {
            expect_ok(tutti_data_next(data, &batch));
            if (batch.whole == 0) break;
            for (int r = 0; r < batch.count; r++) labels[i][counts[i]++] = batch.labels[r];
        }
        tutti_data_destroy(data);
    }
    cr_assert(counts[0] == 20 && counts[1] == 8);
    for (int r = 0; r < 8; r++) cr_assert_eq(labels[1][r], labels[0][r / 2 * 5 + 3 + r % 2]);
    tutti_data_source_destroy(source);
}

Test(parts, beyond_the_batch_are_errors) {
    static const int wrong[][2] = {{0, 8}, {7, 1}, {6, 2}, {-1, 3}, {3, 0}, {0, -1}, {1, 2147483647}};
    tutti_data_source *source = numbers_source(4);
    const tutti_data_op ops[] = {{"batch", {BATCH}}};
    for (int i = 0; i < COUNT_OF(wrong); i++) {
        char first[64], count[64];
        tutti_data *data;
        snprintf(first, sizeof first, "part_first %d ", wrong[i][0]);
        snprintf(count, sizeof count, "part_count %d ", wrong[i][1]);
        expect_error(tutti_data_create(source, ops, 1,
                                       &TUTTI_DATA_OPTIONS(.part_first = wrong[i][0], .part_count = wrong[i][1]),
                                       &data),
                     TUTTI_ERR_ARGUMENT, first, count, "a batch of 7 samples");
    }
    tutti_data_source_destroy(source);
}
