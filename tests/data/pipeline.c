/*
 * Running pipelines: batches ahead, seeks, ends, failures, streams of the caller, shards that are ranks.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/data/check.h"
#include "tests/support/ranks.h"

static const tutti_data_op augment[] = {{"random_crop", {8, 8, 2, 2, 2, 2}},
                                        {"random_horizontal_flip", {0}},
                                        {"normalize", {1, 2, 3, 4, 5, 6}},
                                        {"shuffle", {5}},
                                        {"batch", {7}},
                                        {"repeat", {3}}};
enum { SAMPLES = 40, ELEMENTS = 8 * 8 * 3, TOTAL = 3 * SAMPLES };

typedef struct taken {
    int count, batches;
    int64_t samples[TOTAL], passes[TOTAL], numbers[TOTAL];
    float images[TOTAL][ELEMENTS];
} taken;

static tutti_status take_all(tutti_data *data, taken *to) {
    to->count = to->batches = 0;
    for (tutti_data_batch batch;; to->batches++) {
        TUTTI_TRY(tutti_data_next(data, &batch));
        if (batch.count == 0) return TUTTI_OK;
        for (int i = 0; i < batch.count; i++, to->count++) {
            to->samples[to->count] = batch.indices[i];
            to->passes[to->count] = batch.pass;
            to->numbers[to->count] = batch.number;
            memcpy(to->images[to->count], batch.images + (size_t)i * ELEMENTS, sizeof to->images[0]);
        }
    }
}

static taken *new_taken(void) {
    taken *memory = calloc(1, sizeof *memory);
    cr_assert_not_null(memory);
    return memory;
}

Test(pipeline, batches_do_not_depend_on_how_far_ahead_they_are_made) {
    static const int aheads[] = {-1, 0, 1, 100};
    taken *expected = new_taken(), *got = new_taken();
    tutti_data_source *source = pixels_source(SAMPLES, 8, 8, 3, TUTTI_UINT8);
    for (int a = 0; a < COUNT_OF(aheads); a++) {
        tutti_data *data;
        expect_ok(tutti_data_create(source, augment, 6, &TUTTI_DATA_OPTIONS(.seed = 8, .ahead = aheads[a]), &data));
        memset(got, 0, sizeof *got);
        expect_ok(take_all(data, got));
        cr_assert(got->count == TOTAL && got->batches == 18 && got->numbers[TOTAL - 1] == 5 &&
                  got->passes[TOTAL - 1] == 2);
        if (a == 0) memcpy(expected, got, sizeof *got);
        cr_assert_eq(memcmp(expected, got, sizeof *got), 0);
        tutti_data_batch batch;
        expect_ok(tutti_data_next(data, &batch)); /* the end is reported again */
        cr_assert_eq(batch.count, 0);
        tutti_data_destroy(data);
    }
    cr_assert_neq(memcmp(expected->images[0], expected->images[SAMPLES], sizeof expected->images[0]), 0);
    tutti_data_source_destroy(source);
    free(expected), free(got);
}

/* A sample's image is a function of (seed, pass, sample): shards have the same images as one shard. */
Test(pipeline, images_of_shards_are_those_of_one) {
    taken *one = new_taken(), *part = new_taken();
    tutti_data_source *source = pixels_source(SAMPLES, 8, 8, 3, TUTTI_FLOAT32);
    tutti_data *data;
    expect_ok(tutti_data_create(source, augment, 6, &TUTTI_DATA_OPTIONS(.seed = 8), &data));
    expect_ok(take_all(data, one));
    tutti_data_destroy(data);
    for (int nshards = 2; nshards <= 4; nshards += 2)
        for (int shard = 0; shard < nshards; shard++) {
            expect_ok(tutti_data_create(
                source, augment, 6, &TUTTI_DATA_OPTIONS(.num_shards = nshards, .shard_id = shard, .seed = 8), &data));
            expect_ok(take_all(data, part));
            cr_assert_eq(part->count, TOTAL / nshards);
            for (int i = 0; i < part->count; i++) {
                int j = 0;
                while (j < TOTAL && (one->samples[j] != part->samples[i] || one->passes[j] != part->passes[i])) j++;
                cr_assert(j < TOTAL && memcmp(one->images[j], part->images[i], sizeof part->images[0]) == 0);
            }
            tutti_data_destroy(data);
        }
    tutti_data_source_destroy(source);
    free(one), free(part);
}

Test(pipeline, a_seek_continues_like_an_uninterrupted_run) {
    taken *whole = new_taken(), *rest = new_taken();
    tutti_data_source *source = pixels_source(SAMPLES, 8, 8, 3, TUTTI_UINT8);
    tutti_data *data;
    expect_ok(tutti_data_create(source, augment, 6, &TUTTI_DATA_OPTIONS(.seed = 8), &data));
    expect_ok(take_all(data, whole));
    for (int pass = 0; pass < 3; pass++)
        for (int number = 0; number < 6; number++) {
            const int before = pass * SAMPLES + number * 7;
            expect_ok(tutti_data_seek(data, pass, number));
            expect_ok(take_all(data, rest));
            cr_assert_eq(rest->count, TOTAL - before);
            cr_assert_arr_eq(rest->samples, whole->samples + before, (size_t)rest->count * sizeof *rest->samples);
            cr_assert_arr_eq(rest->images, whole->images + before, (size_t)rest->count * sizeof *rest->images);
        }
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
    free(whole), free(rest);
}

/* ---------------------------------------------------------------------------------------------- callers */

typedef struct stream {
    int64_t given, fails_at, end; /* of a pass */
    int passes, shard, nshards;
    bool unmasked; /* the thread could get a signal */
    bool silent;   /* fails without an error text */
} stream;

static tutti_status begin(void *context, int64_t pass, int shard, int nshards) {
    stream *s = context;
    s->given = 0;
    s->passes = (int)pass + 1;
    s->shard = shard, s->nshards = nshards;
    return TUTTI_OK;
}

static tutti_status read_but_one(void *context, int64_t index, void *image, int32_t *label) {
    *(float *)image = 0;
    *label = 0;
    return index == *(const int *)context ? TUTTI_ERR_REFUSED : TUTTI_OK;
}

static tutti_status next(void *context, void *image, int32_t *label, int *end_out) {
    stream *s = context;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    s->unmasked = s->unmasked || !sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGALRM);
    *end_out = s->given == s->end;
    if (*end_out) return TUTTI_OK;
    if (s->given == s->fails_at && s->silent) return TUTTI_ERR_DATA;
    if (s->given == s->fails_at) return tutti_fail(TUTTI_ERR_DATA, "the caller's camera is off");
    *(float *)image = (float)s->given;
    *label = (int32_t)(s->given++ % 7);
    return TUTTI_OK;
}

static tutti_data_source *stream_source(stream *s, int classes) {
    tutti_data_source *source;
    expect_ok(
        tutti_data_open_user(&TUTTI_DATA_USER(.context = s, .height = 1, .width = 1, .channels = 1,
                                              .type = TUTTI_FLOAT32, .classes = classes, .begin = begin, .next = next),
                             &source));
    return source;
}

Test(pipeline, a_callers_stream_gives_its_samples_through_a_buffer_on_a_thread_without_signals) {
    static const int buffers[] = {0, 1, 6, 100};
    for (int b = 0; b < COUNT_OF(buffers); b++) {
        stream s = {.fails_at = -1, .end = 23};
        tutti_data_source *source = stream_source(&s, 7);
        const tutti_data_op ops[] = {{"shuffle", {buffers[b]}}, {"batch", {5, 1}}, {"repeat", {4}}};
        const int first = buffers[b] == 0;
        tutti_data *data;
        expect_ok(tutti_data_create(source, ops + first, 3 - first,
                                    &TUTTI_DATA_OPTIONS(.num_shards = 3, .shard_id = 2, .seed = 6), &data));
        int count = 0, seen[23] = {0}, moved = 0;
        float passes[4][20];
        for (tutti_data_batch batch;;) {
            expect_ok(tutti_data_next(data, &batch));
            if (batch.count == 0) break;
            cr_assert_eq(batch.count, 5);
            for (int i = 0; i < 5; i++, count++) {
                cr_assert(batch.images[i] == batch.indices[i] && batch.labels[i] == batch.indices[i] % 7);
                seen[batch.indices[i]]++;
                moved += batch.indices[i] != count % 20;
                passes[batch.pass][count % 20] = batch.images[i];
            }
        }
        cr_assert(count == 80 && s.passes == 4 && s.shard == 2 && s.nshards == 3);
        cr_assert(!s.unmasked);
        for (int i = 0; i < 23; i++) cr_assert(seen[i] <= 4);
        cr_assert(buffers[b] < 2 ? moved == 0 : moved > 30);
        cr_assert((memcmp(passes[0], passes[1], sizeof passes[0]) == 0) == (buffers[b] < 2));
        expect_ok(tutti_data_seek(data, 2, 3)); /* read to that place */
        tutti_data_batch batch;
        expect_ok(tutti_data_next(data, &batch));
        cr_assert(batch.pass == 2 && batch.number == 3 && memcmp(batch.images, passes[2] + 15, 5 * sizeof(float)) == 0);
        tutti_data_destroy(data); /* while the thread works */
        tutti_data_source_destroy(source);
    }
}

Test(pipeline, a_failure_is_reported_at_its_place_and_persists_until_a_seek) {
    for (int ahead = -1; ahead < 2; ahead++) {
        stream s = {.fails_at = 12, .end = 23};
        tutti_data_source *source = stream_source(&s, 0);
        const tutti_data_op ops[] = {{"batch", {5}}};
        tutti_data *data;
        tutti_data_batch batch;
        expect_ok(tutti_data_create(source, ops, 1, &TUTTI_DATA_OPTIONS(.ahead = ahead), &data));
        for (int i = 0; i < 2; i++) expect_ok(tutti_data_next(data, &batch));
        for (int i = 0; i < 2; i++)
            expect_error(tutti_data_next(data, &batch), TUTTI_ERR_DATA,
                         "the caller's source, sample 12: the caller's camera is off");
        s.fails_at = -1;
        expect_ok(tutti_data_seek(data, 0, 2));
        expect_ok(tutti_data_next(data, &batch));
        cr_assert(batch.count == 5 && batch.images[0] == 10);
        tutti_data_destroy(data);
        tutti_data_source_destroy(source);
    }
    stream s = {.fails_at = -1, .end = 23};
    tutti_data_source *source = stream_source(&s, 6);
    tutti_data *data;
    tutti_data_batch batch;
    expect_ok(tutti_data_create(source, NULL, 0, NULL, &data));
    expect_error(tutti_data_next(data, &batch), TUTTI_ERR_DATA, "sample 6 has label 6", "expected 0 to 5");
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

/* Earlier failures of the calling thread have other texts. */
Test(pipeline, a_callers_function_without_a_reason_is_reported_with_its_sample_and_status) {
    for (int ahead = -1; ahead < 1; ahead++) {
        stream s = {.fails_at = 7, .end = 23, .silent = true};
        int fails_at = 8;
        tutti_data_source *sources[] = {stream_source(&s, 0), NULL};
        expect_ok(tutti_data_open_user(&TUTTI_DATA_USER(.context = &fails_at, .height = 1, .width = 1, .channels = 1,
                                                        .type = TUTTI_FLOAT32, .count = 20, .read = read_but_one),
                                       &sources[1]));
        const tutti_status statuses[] = {TUTTI_ERR_DATA, TUTTI_ERR_REFUSED};
        const char *const words[] = {"the caller's source, sample 7: its next returned status ",
                                     "the caller's source, sample 8: its read returned status "};
        for (int i = 0; i < 2; i++) {
            const tutti_data_op ops[] = {{"batch", {5}}};
            tutti_data *data;
            tutti_data_batch batch;
            expect_ok(tutti_data_create(sources[i], ops, 1, &TUTTI_DATA_OPTIONS(.ahead = ahead, .in_order = 1), &data));
            expect_ok(tutti_data_next(data, &batch));
            tutti_fail(TUTTI_ERR_SYSTEM, "an older failure");
            expect_error(tutti_data_next(data, &batch), statuses[i], words[i], tutti_status_name(statuses[i]),
                         ") and gave no reason; tutti_fail sets one");
            tutti_data_destroy(data);
            tutti_data_source_destroy(sources[i]);
        }
    }
}

Test(pipeline, data_without_samples_ends_even_if_it_repeats_without_end) {
    stream s = {.fails_at = -1, .end = 3};
    tutti_data_source *source = stream_source(&s, 0);
    const tutti_data_op ops[] = {{"batch", {5, 1}}, {"repeat", {-1}}};
    tutti_data *data;
    tutti_data_batch batch;
    expect_ok(tutti_data_create(source, ops, 2, NULL, &data));
    expect_ok(tutti_data_next(data, &batch));
    cr_assert_eq(batch.count, 0);
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

Test(pipeline, wrong_arguments_are_errors_with_the_expected_values) {
    tutti_data_source *source = numbers_source(4), *other;
    tutti_data *data;
    expect_error(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.num_shards = 2, .shard_id = 2), &data),
                 TUTTI_ERR_ARGUMENT, "shard_id 2 of num_shards 2");
    expect_error(tutti_data_create(source, NULL, 0, &(tutti_data_options){.struct_bytes = 3}, &data),
                 TUTTI_ERR_ARGUMENT, "struct_bytes is 3", "TUTTI_DATA_OPTIONS");
    expect_error(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.ahead = -2), &data), TUTTI_ERR_ARGUMENT,
                 "ahead -2");
    expect_error(tutti_data_create(source, NULL, 2, NULL, &data), TUTTI_ERR_ARGUMENT, "must not be NULL");
    expect_error(
        tutti_data_open_user(&TUTTI_DATA_USER(.height = 1, .width = 1, .channels = 1, .type = TUTTI_UINT8), &other),
        TUTTI_ERR_ARGUMENT, "read and a count", "begin and next");
    expect_error(tutti_data_open_user(&TUTTI_DATA_USER(.height = 1, .width = 0, .channels = 1, .type = TUTTI_UINT8,
                                                       .begin = begin, .next = next),
                                      &other),
                 TUTTI_ERR_ARGUMENT, "1x0x1", "1 to");
    tutti_data_source_destroy(source);
    tutti_data_source_destroy(NULL);
    tutti_data_destroy(NULL);
}

/* Each rank gets its shard without a setting; together they have each sample once. */
static tutti_status of_ranks(ranks_context *context) {
    tutti_data_source *source = numbers_source(24);
    tutti_data *data;
    tutti_data_batch batch;
    int32_t seen[24] = {0};
    const tutti_data_op ops[] = {{"batch", {6}}};
    TUTTI_TRY(tutti_data_create(source, ops, 1, &TUTTI_DATA_OPTIONS(.comm = context->comm), &data));
    for (;;) {
        TUTTI_TRY(tutti_data_next(data, &batch));
        if (batch.count == 0) break;
        for (int i = 0; i < batch.count; i++) seen[batch.labels[i]]++;
    }
    TUTTI_TRY(tutti_all_reduce(context->comm, seen, seen, 24, TUTTI_INT32, TUTTI_SUM, NULL));
    for (int i = 0; i < 24; i++) RANKS_CHECK(seen[i] == 1, "sample %d: %d times", i, seen[i]);
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
    return TUTTI_OK;
}

Test(pipeline, shards_are_the_communicators_ranks) {
    for (int nranks = 1; nranks <= 4; nranks *= 2) {
        const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = nranks}, of_ranks);
        cr_assert_null(failure, "%s", failure);
    }
}
