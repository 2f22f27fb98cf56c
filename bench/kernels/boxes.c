/*
 * Copies of boxes between strided arrays (kernels/box.h), as rows of kernels_perf.
 *
 * Packing copies every other row of an array to a dense one, unpacking does the reverse, and a transpose is of a
 * square matrix. The packed data is half of a region.
 */
#include <stdio.h>
#include <string.h>

#include "bench/kernels/bench.h"

static void run_box(bench_lab *lab, const bench_shape *s) {
    if (lab->device == NULL) {
        tutti_box_run(&s->box, lab->regions[1], lab->regions[0]);
        return;
    }
    tutti_status status =
        lab->device->copy_box(&s->box, lab->regions[1], lab->regions[0], lab->kernels->stream(lab->compute));
    if (lab->failed == TUTTI_OK) lab->failed = status;
}

static void run_box_stream(bench_lab *lab, const bench_shape *s) {
    tutti_box_run_stream(&s->box, lab->regions[1], lab->regions[0]);
}

static bench_kernel make_row(const char *name, const tutti_box *box) {
    bench_kernel row = {.name = name, .bound = "access", .run = run_box};
    tutti_box_plan(box, &row.shape.box);
    row.bytes = 2.0 * (double)tutti_box_bytes(&row.shape.box);
    return row;
}

static bench_kernel rows_row(const bench_lab *lab, const char *name, int64_t row_bytes, bool unpacks) {
    const int64_t elements = row_bytes / 4, sparse = 2 * elements;
    const tutti_box box = {.ndims = 2,
                           .element_bytes = 4,
                           .shape = {(int64_t)lab->bytes / 2 / row_bytes, elements},
                           .dst_strides = {unpacks ? sparse : elements, 1},
                           .src_strides = {unpacks ? elements : sparse, 1}};
    bench_kernel row = make_row(name, &box);
    snprintf(row.text, sizeof row.text, "rows of %lld bytes", (long long)row_bytes);
    return row;
}

/* The side is the largest power of two that fits. */
static bench_kernel transpose_row(const bench_lab *lab, tutti_type type) {
    const size_t element = tutti_type_bytes(type);
    int64_t side = 1;
    while (4 * (size_t)(side * side) * element <= lab->bytes) side *= 2;
    const tutti_box box = {.ndims = 2,
                           .element_bytes = element,
                           .shape = {side, side},
                           .dst_strides = {side, 1},
                           .src_strides = {1, side}};
    bench_kernel row = make_row("box_transpose", &box);
    snprintf(row.text, sizeof row.text, "%lld x %lld %s", (long long)side, (long long)side, tutti_type_name(type));
    return row;
}

int bench_kernels_list_boxes(const bench_lab *lab, bench_kernel *rows) {
    static const int64_t row_bytes[] = {16, 64, 1024, 16384};
    const tutti_box whole = {
        .ndims = 1, .element_bytes = 4, .shape = {(int64_t)lab->bytes / 4}, .dst_strides = {1}, .src_strides = {1}};
    int count = 0;
    rows[count] = make_row("box_contiguous", &whole);
    rows[count].bound = "memory";
    snprintf(rows[count++].text, sizeof rows->text, "%zu bytes", lab->bytes);
    for (size_t i = 0; i < sizeof row_bytes / sizeof row_bytes[0]; i++) {
        rows[count++] = rows_row(lab, "box_pack", row_bytes[i], false);
        rows[count++] = rows_row(lab, "box_unpack", row_bytes[i], true);
    }
    if (lab->device == NULL) {
        rows[count] = rows_row(lab, "box_pack_stream", 1024, false);
        rows[count++].run = run_box_stream;
    }
    rows[count++] = transpose_row(lab, TUTTI_FLOAT32);
    rows[count++] = transpose_row(lab, TUTTI_UINT8);
    return count;
}
