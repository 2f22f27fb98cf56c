/*
 * Copies of boxes on a GPU, stand-in or real, against the host's.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/support/boxes.h"
#include "tests/support/gpu/on_gpu.h"

TestSuite(device_box, .timeout = 120);

enum { ROOM = 4 << 20 };

typedef struct buffers {
    char *device_dst, *device_src, *dst, *src, *expected;
} buffers;

static void buffers_create(buffers *b) {
    b->device_dst = alloc(ROOM);
    b->device_src = alloc(ROOM);
    b->dst = malloc(ROOM);
    b->src = malloc(ROOM);
    b->expected = malloc(ROOM);
    cr_assert(b->dst != NULL && b->src != NULL && b->expected != NULL);
    for (size_t i = 0; i < ROOM; i++) b->src[i] = (char)((i * 2654435761u) >> 13);
    put(b->device_src, b->src, ROOM);
}

static void buffers_destroy(buffers *b) {
    GOOD(gpu->free(b->device_dst));
    GOOD(gpu->free(b->device_src));
    free(b->dst);
    free(b->src);
    free(b->expected);
}

static void check(buffers *b, const boxes_case *c) {
    char text[512];
    tutti_box_copy copy;
    cr_assert(c->dst_bytes <= ROOM && c->src_bytes <= ROOM);
    memset(b->expected, 0x5a, c->dst_bytes);
    tutti_box_plan(&c->box, &copy);
    tutti_box_run(&copy, b->expected + c->dst_at, b->src + c->src_at);
    GOOD(gpu->fill(b->device_dst, 0x5a, c->dst_bytes, stream));
    GOOD(gpu->copy_box(&copy, b->device_dst + c->dst_at, b->device_src + c->src_at, stream));
    memset(&copy, 0xff, sizeof copy); /* it was copied */
    get(b->dst, b->device_dst, c->dst_bytes);
    cr_assert_eq(memcmp(b->dst, b->expected, c->dst_bytes), 0, "%s, at %zu and %zu",
                 boxes_text(&c->box, text, sizeof text), c->dst_at, c->src_at);
}

Test(device_box, random_boxes_are_copied_as_on_the_host) {
    static const size_t element_sizes[] = {1, 2, 4, 8, 16, 3, 12, 40};
    buffers b;
    boxes_case c;
    open_device();
    buffers_create(&b);
    for (uint64_t seed = 0; seed < (THREAD_SANITIZER ? 100 : 1000); seed++) {
        boxes_make(seed + 200000, element_sizes[seed % 8], seed % 10 == 0 ? 20000 : 2000, &c);
        check(&b, &c);
    }
    buffers_destroy(&b);
}

Test(device_box, large_transposes_and_rows) {
    buffers b;
    open_device();
    buffers_create(&b);
    for (size_t element = 1; element <= 16; element *= 2) {
        const int64_t rows = 400, columns = 600;
        const size_t bytes = (size_t)(rows * columns) * element;
        boxes_case c = {.box = {.ndims = 2,
                                .element_bytes = element,
                                .shape = {rows, columns},
                                .dst_strides = {columns, 1},
                                .src_strides = {1, rows}},
                        .dst_bytes = bytes,
                        .src_bytes = bytes};
        check(&b, &c);
        c.box.src_strides[0] = 2 * columns; /* from every other row */
        c.box.src_strides[1] = 1;
        c.src_bytes = 2 * bytes;
        if (2 * bytes <= ROOM) check(&b, &c);
    }
    buffers_destroy(&b);
}

Test(device_box, a_copy_is_in_order_with_the_streams_work_before_and_after) {
    enum { SIDE = 256 };
    const tutti_box box = {
        .ndims = 2, .element_bytes = 4, .shape = {SIDE, SIDE}, .dst_strides = {SIDE, 1}, .src_strides = {1, SIDE}};
    static int32_t from[SIDE][SIDE], to[SIDE][SIDE];
    tutti_box_copy copy;
    open_device();
    char *a = alloc(sizeof from), *b = alloc(sizeof from);
    for (int i = 0; i < SIDE * SIDE; i++) from[i / SIDE][i % SIDE] = i;
    tutti_box_plan(&box, &copy);
    for (int turn = 0; turn < 10; turn++) {
        GOOD(gpu->fill(a, 0x5a, sizeof from, stream));
        GOOD(gpu->copy(a, from, sizeof from, stream));
        GOOD(gpu->copy_box(&copy, b, a, stream));
        GOOD(gpu->fill(a, 0x5a, sizeof from, stream));
        get(to, b, sizeof to);
        for (int i = 0; i < SIDE * SIDE; i++) cr_assert_eq(to[i % SIDE][i / SIDE], i);
    }
    GOOD(gpu->free(a));
    GOOD(gpu->free(b));
}

Test(device_box, an_empty_box_copies_nothing_and_a_whole_array_is_one_copy) {
    const tutti_box whole = {
        .ndims = 2, .element_bytes = 1, .shape = {3, 5}, .dst_strides = {-5, -1}, .src_strides = {-5, -1}};
    tutti_box_copy copy;
    char got[16];
    open_device();
    char *memory = alloc(64);
    tutti_box_plan(&(tutti_box){.ndims = 1, .element_bytes = 4}, &copy);
    GOOD(gpu->copy_box(&copy, NULL, NULL, stream));
    put(memory, "0123456789abcde", 16);
    tutti_box_plan(&whole, &copy);
    GOOD(gpu->copy_box(&copy, memory + 32 + 14, memory + 14, stream));
    get(got, memory + 32, 15);
    cr_assert_eq(memcmp(got, "0123456789abcde", 15), 0);
    GOOD(gpu->free(memory));
}
