/*
 * Copies of boxes between strided arrays, against a copy index by index. Arrays are allocations of exactly their
 * size, so that the address sanitizer detects accesses beyond; bytes between the elements must not change.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/box.h"
#include "tests/support/boxes.h"

TestSuite(box, .timeout = 120);

static const size_t element_sizes[] = {1, 2, 4, 8, 3, 16, 12, 40};
#define SIZES (sizeof element_sizes / sizeof *element_sizes)

/* Its first byte begins a cache line. */
static char *make_array(size_t bytes, int pattern) {
    void *array = NULL;
    cr_assert_eq(posix_memalign(&array, 64, bytes > 0 ? bytes : 1), 0);
    for (size_t i = 0; i < bytes; i++) ((char *)array)[i] = (char)(pattern + (int)((i * 2654435761u) >> 13));
    return array;
}

static void check(const boxes_case *c) {
    char text[512];
    char *src = make_array(c->src_bytes, 1), *dst = make_array(c->dst_bytes, 77),
         *streamed = make_array(c->dst_bytes, 77), *expected = make_array(c->dst_bytes, 77);
    tutti_box_copy copy;
    size_t bytes = c->box.element_bytes;
    for (int i = 0; i < c->box.ndims; i++) bytes *= (size_t)c->box.shape[i];
    boxes_copy_slowly(&c->box, expected + c->dst_at, src + c->src_at);
    tutti_box_plan(&c->box, &copy);
    tutti_box_run(&copy, dst + c->dst_at, src + c->src_at);
    tutti_box_run_stream(&copy, streamed + c->dst_at, src + c->src_at);
    boxes_text(&c->box, text, sizeof text);
    cr_assert_eq(tutti_box_bytes(&copy), bytes, "%s: %zu bytes", text, tutti_box_bytes(&copy));
    cr_assert_eq(memcmp(dst, expected, c->dst_bytes), 0, "%s, at %zu and %zu", text, c->dst_at, c->src_at);
    cr_assert_eq(memcmp(streamed, expected, c->dst_bytes), 0, "streamed: %s, at %zu and %zu", text, c->dst_at,
                 c->src_at);
    free(src);
    free(dst);
    free(streamed);
    free(expected);
}

Test(box, random_boxes_are_copied_and_nothing_else_is_touched) {
    boxes_case c;
    for (uint64_t seed = 0; seed < 6000; seed++) {
        boxes_make(seed, element_sizes[seed % SIZES], seed % 10 == 0 ? 40000 : 1500, &c);
        check(&c);
    }
}

/* rows x columns of an array whose rows are dst_pitch elements apart, from one whose columns are src_pitch elements
 * apart. */
static boxes_case transpose(size_t element, int64_t rows, int64_t columns, int64_t dst_pitch, int64_t src_pitch,
                            size_t at) {
    return (boxes_case){.box = {.ndims = 2,
                                .element_bytes = element,
                                .shape = {rows, columns},
                                .dst_strides = {dst_pitch, 1},
                                .src_strides = {1, src_pitch}},
                        .dst_at = at,
                        .src_at = at / 2,
                        .dst_bytes = at + (size_t)(rows * dst_pitch) * element,
                        .src_bytes = at / 2 + (size_t)(columns * src_pitch) * element};
}

Test(box, transposes_of_every_size_around_a_tile) {
    static const int64_t extents[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129};
    static const size_t ats[] = {0, 8, 24, 5};
    const size_t count = sizeof extents / sizeof *extents;
    for (size_t e = 0; e < SIZES; e++)
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < count; k++) {
                const int64_t rows = extents[i], columns = extents[k];
                boxes_case c = transpose(element_sizes[e], rows, columns, columns, rows, ats[(i + k) % 4]);
                check(&c);
                c = transpose(element_sizes[e], rows, columns, 192, rows + 3,
                              ats[i % 4]); /* all rows begin at the same offset in a line */
                check(&c);
            }
}

Test(box, rows_of_every_length) {
    static const int64_t long_ones[] = {255, 256, 511, 512, 513, 1023, 1024, 1025, 2000, 4096, 4097, 10000};
    for (int64_t i = 1; i <= 200 + (int64_t)(sizeof long_ones / sizeof *long_ones); i++) {
        const int64_t bytes = i <= 200 ? i : long_ones[i - 201];
        for (int64_t gap = 0; gap < 3; gap++) {
            const int64_t pitch = bytes + gap + 1;
            boxes_case c = {.box = {.ndims = 2,
                                    .element_bytes = 1,
                                    .shape = {6, bytes},
                                    .dst_strides = {gap == 1 ? bytes : pitch, 1},
                                    .src_strides = {gap == 2 ? -pitch : pitch, 1}},
                            .dst_at = (size_t)gap,
                            .src_at = gap == 2 ? (size_t)(5 * pitch) : 0,
                            .dst_bytes = (size_t)(gap + 6 * pitch),
                            .src_bytes = (size_t)(6 * pitch - gap - 1)};
            check(&c);
        }
    }
}

/* For arrays larger than the caches other code runs. */
Test(box, boxes_of_many_mebibytes) {
    static const int64_t lengths[] = {100, 200, 700, 1024, 3000, 5000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t words = lengths[i] / 4, rows = ((9 << 20) / 4 + words - 1) / words;
        boxes_case c = {.box = {.ndims = 2,
                                .element_bytes = 4,
                                .shape = {rows, words},
                                .dst_strides = {words + (int64_t)(i % 2), 1},
                                .src_strides = {words + 1, 1}},
                        .dst_bytes = (size_t)(rows * (words + (int64_t)(i % 2))) * 4,
                        .src_bytes = (size_t)(rows * (words + 1) - 1) * 4};
        check(&c);
    }
    boxes_case c = transpose(4, 1500, 1600, 1600, 1500, 0);
    check(&c);
    c = transpose(8, 1100, 1001, 1001, 1100, 8);
    check(&c);
}

Test(box, contiguous_parts_of_both_arrays_are_one_piece) {
    tutti_box_copy copy;
    tutti_box box = {.ndims = 4,
                     .element_bytes = 4,
                     .shape = {2, 1, 3, 5},
                     .dst_strides = {15, 7, 5, 1},
                     .src_strides = {15, -9, 5, 1}};
    tutti_box_plan(&box, &copy);
    cr_assert(tutti_box_is_contiguous(&copy));
    cr_assert_eq(tutti_box_bytes(&copy), 120);
    box.src_strides[0] = 16;
    tutti_box_plan(&box, &copy);
    cr_assert_not(tutti_box_is_contiguous(&copy));
    cr_assert(copy.ndims == 1 && copy.unit_bytes == 60 && !copy.transposes);
    box.src_strides[0] = -15; /* backwards */
    tutti_box_plan(&box, &copy);
    cr_assert_not(tutti_box_is_contiguous(&copy));
    box = (tutti_box){
        .ndims = 3, .element_bytes = 2, .shape = {4, 5, 6}, .dst_strides = {30, 6, 1}, .src_strides = {1, 24, 4}};
    tutti_box_plan(&box, &copy); /* two of three dimensions have the same layout */
    cr_assert(copy.ndims == 2 && copy.transposes && copy.unit_bytes == 2);
    box.src_strides[0] = -1; /* another loop then goes backwards; blocks support this */
    tutti_box_plan(&box, &copy);
    cr_assert(copy.ndims == 2 && copy.transposes && copy.dims[0].src_step == 2 && copy.dims[0].dst_step == -60);
    box =
        (tutti_box){.ndims = 2, .element_bytes = 4, .shape = {3, 5}, .dst_strides = {-5, -1}, .src_strides = {-5, -1}};
    tutti_box_plan(&box, &copy); /* backwards in both equals forwards */
    cr_assert(tutti_box_is_contiguous(&copy) && copy.dst_first == -56 && copy.src_first == -56);
}

Test(box, an_empty_box_touches_nothing_and_no_dimensions_are_one_element) {
    tutti_box_copy copy;
    tutti_box_plan(
        &(tutti_box){.ndims = 3, .element_bytes = 8, .shape = {3, 0, 5}, .dst_strides = {5, 5, 1}, .src_strides = {0}},
        &copy);
    cr_assert(tutti_box_bytes(&copy) == 0 && tutti_box_is_contiguous(&copy));
    tutti_box_run(&copy, NULL, NULL);
    tutti_box_run_stream(&copy, NULL, NULL);
    tutti_box_plan(&(tutti_box){.element_bytes = 8}, &copy);
    const double from = 4711;
    double to = 0;
    cr_assert(tutti_box_bytes(&copy) == 8 && tutti_box_is_contiguous(&copy));
    tutti_box_run(&copy, &to, &from);
    cr_assert_eq(to, 4711);
}
