/*
 * Which shard gets which samples: permutations, shuffle buffers, divisions.
 */
#include <stdlib.h>

#include "tests/data/check.h"

enum { MOST = 512 };

typedef struct plan {
    int64_t count;
    int nshards, batch, drops, in_order, buffer, passes;
    tutti_data_division division;
    uint64_t seed;
} plan;

/* Labels of a shard, which are the samples' numbers, batch by batch. */
static int collect(const plan *p, int shard, int32_t *labels, int *batches_out) {
    tutti_data_source *source = numbers_source(p->count);
    tutti_data *data;
    tutti_data_op ops[3] = {{"shuffle", {p->buffer}}, {"batch", {p->batch, p->drops}}, {"repeat", {p->passes}}};
    const int first = p->buffer > 0 ? 0 : 1;
    expect_ok(tutti_data_create(source, ops + first, 3 - first,
                                &TUTTI_DATA_OPTIONS(.num_shards = p->nshards, .shard_id = shard, .seed = p->seed,
                                                    .in_order = p->in_order, .division = p->division),
                                &data));
    int count = 0, batches = 0;
    for (tutti_data_batch batch;; batches++) {
        expect_ok(tutti_data_next(data, &batch));
        if (batch.count == 0) break;
        for (int i = 0; i < batch.count; i++) {
            cr_assert(count < MOST && batch.indices[i] == batch.labels[i] && batch.images[i] == batch.labels[i] % 251);
            labels[count++] = batch.labels[i];
        }
    }
    tutti_data_details details;
    expect_ok(tutti_data_get(data, &details));
    cr_assert_eq(details.batches * (p->passes > 0 ? p->passes : 1), batches);
    *batches_out = batches;
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
    return count;
}

/* How often each sample occurs in one pass over all shards. */
static void count_draws(const plan *p, int *draws) {
    memset(draws, 0, MOST * sizeof *draws);
    for (int shard = 0; shard < p->nshards; shard++) {
        int32_t labels[MOST];
        int batches, count = collect(p, shard, labels, &batches);
        for (int i = 0; i < count; i++) draws[labels[i]]++;
    }
}

static const int cases[][3] = {{60, 1, 60}, {61, 3, 10}, {101, 4, 5}, {7, 7, 1},
                               {64, 2, 16}, {64, 5, 3},  {3, 5, 2},   {50, 2, 8}};

Test(order, wrapped_shards_have_equally_many_and_together_all_samples) {
    for (int i = 0; i < COUNT_OF(cases); i++)
        for (int in_order = 0; in_order < 2; in_order++) {
            const int n = cases[i][0], nshards = cases[i][1], each = (n + nshards - 1) / nshards;
            plan p = {.count = n, .nshards = nshards, .batch = cases[i][2], .in_order = in_order, .seed = 9};
            int draws[MOST], twice = 0, batches;
            int32_t labels[MOST];
            count_draws(&p, draws);
            for (int s = 0; s < n; s++) {
                cr_assert(draws[s] == 1 || draws[s] == 2, "sample %d: %d times", s, draws[s]);
                twice += draws[s] - 1;
            }
            cr_assert_eq(twice, each * nshards - n);
            for (int shard = 0; shard < nshards; shard++) cr_assert_eq(collect(&p, shard, labels, &batches), each);
        }
}

/* The document's numbers: 2 shards of 25,000, 781 batches of 32; 8 of 6,250, 195 batches. */
Test(order, fifty_thousand_samples_are_divided_as_the_document_says) {
    static const int64_t expected[][3] = {{2, 25000, 781}, {8, 6250, 195}, {1, 50000, 1562}, {3, 16667, 520}};
    for (int i = 0; i < COUNT_OF(expected); i++) {
        tutti_data_source *source = numbers_source(50000);
        tutti_data *data;
        tutti_data_details details;
        const tutti_data_op batch = {"batch", {0, 1}};
        expect_ok(tutti_data_create(source, &batch, 1, &TUTTI_DATA_OPTIONS(.num_shards = (int)expected[i][0]), &data));
        expect_ok(tutti_data_get(data, &details));
        cr_assert(details.samples == expected[i][1] && details.batches == expected[i][2] && details.batch_size == 32);
        tutti_data_destroy(data);
        tutti_data_source_destroy(source);
    }
}

Test(order, cut_shards_are_disjoint_and_cover_all_but_the_incomplete_batch) {
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const int n = cases[i][0], global = cases[i][1] * cases[i][2];
        plan p = {.count = n,
                  .nshards = cases[i][1],
                  .batch = cases[i][2],
                  .drops = 1,
                  .division = TUTTI_DATA_CUT,
                  .seed = 9};
        int draws[MOST], once = 0;
        count_draws(&p, draws);
        for (int s = 0; s < n; s++) {
            cr_assert(draws[s] <= 1);
            once += draws[s];
        }
        cr_assert_eq(once, n / global * global);
    }
}

Test(order, ranges_hold_every_sample_once_and_in_order) {
    static const int counts[] = {1, 3, 10, 100, 107};
    for (int i = 0; i < COUNT_OF(counts); i++)
        for (int nshards = 1; nshards < 9; nshards++) {
            plan p = {.count = counts[i], .nshards = nshards, .batch = 4, .in_order = 1, .division = TUTTI_DATA_RANGES};
            int at = 0;
            for (int shard = 0; shard < nshards; shard++) {
                int32_t labels[MOST];
                int batches, count = collect(&p, shard, labels, &batches);
                cr_assert(count == counts[i] / nshards || count == counts[i] / nshards + 1);
                for (int s = 0; s < count; s++) cr_assert_eq(labels[s], at++);
            }
            cr_assert_eq(at, counts[i]);
        }
}

Test(order, a_global_batch_does_not_depend_on_the_number_of_shards) {
    for (int buffer = 0; buffer <= 10; buffer += 10)
        for (tutti_data_division division = TUTTI_DATA_WRAP; division <= TUTTI_DATA_CUT; division++) {
            plan whole = {.count = 104,
                          .nshards = 1,
                          .batch = 12,
                          .drops = 1,
                          .passes = 2,
                          .buffer = buffer,
                          .seed = 4,
                          .division = division};
            int32_t all[MOST], part[MOST];
            int batches, count = collect(&whole, 0, all, &batches);
            cr_assert(count == 192 && batches == 16);
            for (int nshards = 2; nshards <= 4; nshards += 2)
                for (int shard = 0; shard < nshards; shard++) {
                    plan p = whole;
                    p.nshards = nshards, p.batch = 12 / nshards;
                    cr_assert_eq(collect(&p, shard, part, &batches), count / nshards);
                    for (int k = 0; k < 16; k++)
                        cr_assert_arr_eq(part + k * p.batch, all + k * 12 + shard * p.batch,
                                         (size_t)p.batch * sizeof *all);
                }
        }
}

Test(order, passes_and_seeds_give_different_orders_that_repeat) {
    plan p = {.count = 50, .nshards = 1, .batch = 50, .passes = 2, .seed = 4}, other = p;
    int32_t a[MOST], b[MOST], c[MOST];
    int batches;
    other.seed = 5;
    cr_assert_eq(collect(&p, 0, a, &batches), 100);
    cr_assert_eq(collect(&p, 0, b, &batches), 100);
    cr_assert_eq(collect(&other, 0, c, &batches), 100);
    cr_assert_arr_eq(a, b, 100 * sizeof *a);
    cr_assert_neq(memcmp(a, a + 50, 50 * sizeof *a), 0);
    cr_assert_neq(memcmp(a, c, 50 * sizeof *a), 0);
}

/* The sample at place i was read before: it is one of the first i + buffer. */
Test(order, a_shuffle_buffer_moves_samples_within_its_reach_and_loses_none) {
    static const int buffers[] = {1, 2, 10, 99, 100, 500};
    for (int i = 0; i < COUNT_OF(buffers); i++) {
        plan p = {.count = 100, .nshards = 1, .batch = 100, .in_order = 1, .buffer = buffers[i], .seed = 1};
        int32_t labels[MOST];
        int batches, moved = 0, seen[100] = {0};
        cr_assert_eq(collect(&p, 0, labels, &batches), 100);
        for (int s = 0; s < 100; s++) {
            cr_assert(labels[s] < s + buffers[i], "%d came at %d", labels[s], s);
            moved += labels[s] != s;
            seen[labels[s]]++;
        }
        for (int s = 0; s < 100; s++) cr_assert_eq(seen[s], 1);
        cr_assert(buffers[i] == 1 ? moved == 0 : moved > 40, "buffer %d: %d moved", buffers[i], moved);
    }
}
