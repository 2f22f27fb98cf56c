/*
 * The kernels for copies of boxes on GPUs, compiled for the host (support/box_threads.cc), against a copy index by
 * index.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/boxes.h"
#include "tests/support/emulated/box_threads.h"

TestSuite(device_box_kernels, .timeout = 120);

/* How kernels were used by a copy. */
typedef struct used {
    int kernels, tiles, packs, words[17]; /* indexed by the bytes of a word */
    unsigned blocks;
} used;

static int run(const tutti_cuda_box *box, void *context) {
    used *u = context;
    u->kernels++;
    u->tiles += box->tiles;
    u->packs += box->packs;
    u->words[box->word_bytes]++;
    cr_assert(box->items > 0 && box->items < UINT32_C(1) << 31);
    copy_box_by_threads(box, u->blocks);
    return 0;
}

static char *make_array(size_t bytes, int pattern) {
    char *array = aligned_alloc(64, (bytes + 127) / 64 * 64);
    cr_assert_not_null(array);
    for (size_t i = 0; i < bytes; i++) array[i] = (char)(pattern + (int)((i * 2654435761u) >> 13));
    return array;
}

/* `most`: largest number of words of one kernel. */
static used check(const boxes_case *c, uint32_t most, unsigned blocks) {
    char text[512];
    char *src = make_array(c->src_bytes, 1), *dst = make_array(c->dst_bytes, 77),
         *expected = make_array(c->dst_bytes, 77);
    tutti_box_copy copy;
    used u = {.blocks = blocks};
    boxes_copy_slowly(&c->box, expected + c->dst_at, src + c->src_at);
    tutti_box_plan(&c->box, &copy);
    cr_assert_eq(tutti_cuda_box_each(&copy, dst + c->dst_at, src + c->src_at, most, run, &u), 0);
    cr_assert_eq(memcmp(dst, expected, c->dst_bytes), 0, "%s, at %zu and %zu", boxes_text(&c->box, text, sizeof text),
                 c->dst_at, c->src_at);
    free(src);
    free(dst);
    free(expected);
    return u;
}

Test(device_box_kernels, random_boxes_are_copied_and_nothing_else_is_touched) {
    static const size_t element_sizes[] = {1, 2, 4, 8, 16, 3, 12, 40};
    used sum = {0};
    boxes_case c;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        boxes_make(seed + 100000, element_sizes[seed % 8], seed % 10 == 0 ? 40000 : 2000, &c);
        const bool parted = seed % 5 == 0;
        const used u = check(&c, parted ? 100 : TUTTI_CUDA_BOX_MOST, 1 + (unsigned)seed % 3);
        cr_assert(parted || u.kernels <= 1);
        sum.kernels += u.kernels;
        sum.tiles += u.tiles;
        for (int i = 1; i <= 16; i *= 2) sum.words[i] += u.words[i];
    }
    cr_assert(sum.tiles > 100 && sum.kernels - sum.tiles > 500, "%d kernels, %d of tiles", sum.kernels, sum.tiles);
    for (int i = 1; i <= 16; i *= 2) cr_assert_gt(sum.words[i], 20, "words of %d bytes: %d", i, sum.words[i]);
}

static boxes_case transpose(size_t element, int64_t rows, int64_t columns) {
    return (boxes_case){.box = {.ndims = 3,
                                .element_bytes = element,
                                .shape = {2, rows, columns},
                                .dst_strides = {rows * columns, columns, 1},
                                .src_strides = {rows * columns, 1, rows}},
                        .dst_bytes = 2 * (size_t)(rows * columns) * element,
                        .src_bytes = 2 * (size_t)(rows * columns) * element};
}

Test(device_box_kernels, transposes_use_tiles_of_every_size) {
    static const int64_t extents[] = {8, 31, 33, 64, 65, 130, 132};
    for (size_t element = 1; element <= 16; element *= 2)
        for (int i = 0; i < 7; i++)
            for (int k = 0; k < 7; k++) {
                const boxes_case c = transpose(element, extents[i], extents[k]);
                const used u = check(&c, TUTTI_CUDA_BOX_MOST, 2);
                cr_assert(u.kernels == 1 && u.tiles == 1 && u.words[element] == 1);
                const size_t row = (size_t)extents[k] * element, column = (size_t)extents[i] * element;
                cr_assert_eq(u.packs, element <= 4 && row % 4 == 0 && column % 4 == 0);
            }
}

Test(device_box_kernels, short_words_are_copied_in_groups_of_four_bytes_if_aligned) {
    boxes_case c = transpose(1, 132, 260);
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 1);
    cr_assert_gt(check(&c, 9000, 3).packs, 1); /* parts */
    c.dst_at = 2, c.dst_bytes += 2;
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 0);
    c = transpose(2, 130, 66);
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 1);
    c.dst_at = 2, c.dst_bytes += 2;
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 0);
    c = transpose(2, 130, 66);
    c.box.shape[1] -= 2, c.box.shape[2] -= 2; /* of larger arrays */
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 1);
    c.box.shape[1]--;
    cr_assert_eq(check(&c, TUTTI_CUDA_BOX_MOST, 3).packs, 0);
}

/* Copies 100 rows of `row` bytes; the rows of the two arrays are `src_pitch` and `dst_pitch` bytes apart. */
static used copy_rows(int64_t row, int64_t dst_pitch, int64_t src_pitch, size_t at) {
    const boxes_case c = {.box = {.ndims = 2,
                                  .element_bytes = 1,
                                  .shape = {100, row},
                                  .dst_strides = {dst_pitch, 1},
                                  .src_strides = {src_pitch, 1}},
                          .dst_at = at,
                          .dst_bytes = at + (size_t)(100 * dst_pitch),
                          .src_bytes = (size_t)(100 * src_pitch)};
    return check(&c, TUTTI_CUDA_BOX_MOST, 2);
}

Test(device_box_kernels, words_are_as_long_as_addresses_and_steps_permit) {
    cr_assert_eq(copy_rows(64, 64, 128, 0).words[16], 1);
    cr_assert_eq(copy_rows(64, 64, 128, 8).words[8], 1);
    cr_assert_eq(copy_rows(64, 64, 100, 0).words[4], 1);
    cr_assert_eq(copy_rows(60, 60, 128, 0).words[4], 1);
    cr_assert_eq(copy_rows(62, 64, 128, 0).words[2], 1);
    cr_assert_eq(copy_rows(64, 64, 128, 3).words[1], 1);
}

/* Sizes beyond 31 bits are never run here, only counted. */
typedef struct tally {
    uint64_t bytes, most;
    int kernels;
} tally;

static int count(const tutti_cuda_box *box, void *context) {
    tally *t = context;
    uint64_t words = box->tiles ? (uint64_t)box->count_a * box->count_b : 1;
    for (int i = 0; i < box->ndims; i++) words *= box->dims[i].by.divisor;
    if (words > t->most) t->most = words;
    t->bytes += words * (uint64_t)box->word_bytes;
    t->kernels++;
    return t->kernels == 1000;
}

Test(device_box_kernels, more_than_31_bits_of_words_take_several_kernels) {
    const int64_t side = 100003, gibi = INT64_C(1) << 30;
    tutti_box_copy copy;
    tally t = {0};
    tutti_box_plan(
        &(tutti_box){
            .ndims = 2, .element_bytes = 1, .shape = {side, side}, .dst_strides = {side, 1}, .src_strides = {1, side}},
        &copy);
    cr_assert_eq(tutti_cuda_box_each(&copy, NULL, NULL, TUTTI_CUDA_BOX_MOST, count, &t), 0);
    cr_assert(t.bytes == (uint64_t)(side * side) && t.most < UINT64_C(1) << 31 && t.kernels == 8, "%d kernels",
              t.kernels);
    t = (tally){0};
    tutti_box_plan(&(tutti_box){.ndims = 2,
                                .element_bytes = 1,
                                .shape = {2, 5 * gibi},
                                .dst_strides = {5 * gibi, 1},
                                .src_strides = {6 * gibi + 1, 1}},
                   &copy);
    cr_assert_eq(tutti_cuda_box_each(&copy, NULL, NULL, TUTTI_CUDA_BOX_MOST, count, &t), 0);
    cr_assert(t.bytes == (uint64_t)(10 * gibi) && t.most < UINT64_C(1) << 31, "%d kernels", t.kernels);
    t = (tally){.kernels = 998}; /* a failing kernel is the last one */
    cr_assert_eq(tutti_cuda_box_each(&copy, NULL, NULL, TUTTI_CUDA_BOX_MOST, count, &t), 1);
    cr_assert_eq(t.kernels, 1000);
}
