/*
 * Convolutions by oneDNN compared with those by matrix products (conv.c, which test_layers.c checks): equal except
 * for the order of sums. In a build without oneDNN the calls must report that nothing was done.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gemm.h"
#include "kernels/host/layers/conv_library.h"
#include "kernels/random.h"

/* Sums of up to some 10^4 products of values below 1: 2^-24 * sqrt(10^4), with a wide margin. */
#define ROUNDING (1000 * 0x1p-24)

static float *draw(size_t count, uint64_t stream) {
    float *values = malloc((count + 1) * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = (float)(2 * tutti_random_uniform(3, stream, i) - 1);
    values[count] = 77; /* stays */
    return values;
}

static float *unwritten(size_t count) {
    float *values = draw(count, 0);
    for (size_t i = 0; i < count; i++) values[i] = NAN;
    return values;
}

static void expect_near(const char *what, size_t count, const float *found, const float *expected) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)found[i] - (double)expected[i], 2);
        size += pow((double)expected[i], 2);
    }
    cr_assert(sqrt(difference) <= ROUNDING * sqrt(size), "%s: %g beside %g", what, sqrt(difference), sqrt(size));
    cr_assert(found[count] == 77, "%s: written behind its end", what);
}

static void check(int batch, tutti_conv conv, tutti_padding padding, bool wants_dx) {
    cr_assert(tutti_window_place(&conv.window, padding));
    const tutti_window *w = &conv.window;
    size_t x_count = (size_t)(batch * w->in_height * w->in_width * w->channels);
    size_t y_count = (size_t)(batch * w->out_height * w->out_width * conv.filters);
    size_t weight_count = (size_t)(w->kernel * w->kernel * w->channels * conv.filters), filters = (size_t)conv.filters;
    size_t needs = tutti_conv_library_scratch_count(&conv, batch);
    float *x = draw(x_count, 1), *weight = draw(weight_count, 2), *bias = draw(filters, 3), *dy = draw(y_count, 4);
    float *own_scratch = unwritten(tutti_conv_scratch_count(&conv)), *scratch = aligned_alloc(64, needs * 4 + 64);
    float *y[2], *dys[2], *dweight[2], *dbias[2], *dx[2];
    memset(scratch, 0xff, needs * 4 + 64);
    for (int i = 0; i < 2; i++) {
        y[i] = unwritten(y_count), dys[i] = draw(y_count, 4), dweight[i] = unwritten(weight_count);
        dbias[i] = unwritten(filters), dx[i] = unwritten(x_count);
    }
    for (int i = 0; i < 2; i++) {
        tutti_conv_forward_args forward = {.batch = batch,
                                           .x = x,
                                           .weight = weight,
                                           .bias = conv.no_bias ? NULL : bias,
                                           .scratch = i == 0 ? own_scratch : scratch,
                                           .y = y[i],
                                           .scratch_count = needs};
        tutti_conv_backward_args backward = {.batch = batch,
                                             .x = x,
                                             .weight = weight,
                                             .y = y[0],
                                             .dy = dys[i],
                                             .scratch = i == 0 ? own_scratch : scratch,
                                             .dweight = dweight[i],
                                             .dbias = conv.no_bias ? NULL : dbias[i],
                                             .dx = wants_dx ? dx[i] : NULL,
                                             .scratch_count = needs};
        if (i == 0) {
            tutti_conv_forward(&conv, &forward);
            tutti_conv_backward(&conv, &backward);
            continue;
        }
        if (needs > 0) { /* too small a buffer is refused */
            forward.scratch_count = backward.scratch_count = needs - 1;
            cr_assert(!tutti_conv_library_forward(&conv, &forward) && !tutti_conv_library_backward(&conv, &backward));
            forward.scratch_count = backward.scratch_count = needs;
        }
        bool done = tutti_conv_library_forward(&conv, &forward);
        cr_assert_eq(tutti_conv_library_backward(&conv, &backward), done);
        if (!done) continue;
        expect_near("y", y_count, y[1], y[0]);
        expect_near("dweight", weight_count, dweight[1], dweight[0]);
        if (!conv.no_bias) expect_near("dbias", filters, dbias[1], dbias[0]);
        if (wants_dx) expect_near("dx", x_count, dx[1], dx[0]);
        unsigned char *guard = (unsigned char *)scratch + needs * 4;
        for (int b = 0; b < 64; b++) cr_assert_eq(guard[b], 0xff, "scratch: written behind its end");
    }
    for (int i = 0; i < 2; i++) free(y[i]), free(dys[i]), free(dweight[i]), free(dbias[i]), free(dx[i]);
    free(x), free(weight), free(bias), free(dy), free(own_scratch), free(scratch);
}

static tutti_conv make(int height, int width, int channels, int filters, int kernel, int stride) {
    return (tutti_conv){
        .window = {.in_height = height, .in_width = width, .channels = channels, .kernel = kernel, .stride = stride},
        .filters = filters};
}

Test(conv_library, has_the_results_of_matrix_products) {
    tutti_gemm_use_one_thread();
    for (int mode = 0; mode < 4; mode++) { /* bias, ReLU */
        const struct {
            int batch, height, width, channels, filters, kernel, stride;
        } shapes[] = {{3, 8, 8, 16, 16, 3, 1}, {2, 9, 7, 16, 32, 3, 2},  {4, 8, 8, 64, 32, 1, 1},
                      {2, 8, 8, 32, 64, 1, 2}, {2, 28, 28, 1, 32, 5, 1}, {1, 32, 32, 3, 64, 7, 2},
                      {5, 6, 5, 3, 5, 3, 1},   {1, 1, 1, 128, 16, 3, 1}, {2, 7, 7, 17, 13, 2, 2}};
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            tutti_conv conv = make(shapes[i].height, shapes[i].width, shapes[i].channels, shapes[i].filters,
                                   shapes[i].kernel, shapes[i].stride);
            conv.no_bias = (mode & 1) != 0;
            conv.relu = (mode & 2) != 0;
            check(shapes[i].batch, conv, TUTTI_PADDING_SAME, i % 2 == 0);
        }
        check(2, make(6, 6, 16, 16, 3, 1), TUTTI_PADDING_VALID, true);
    }
}

/* On processors for which oneDNN has kernels, the convolutions of LeNet and of ResNets must use them. */
Test(conv_library, is_used_where_the_build_has_it_and_not_when_it_is_switched_off) {
    tutti_conv conv = make(8, 8, 16, 16, 3, 1);
    conv.window.pad_top = conv.window.pad_left = 1;
    conv.window.out_height = conv.window.out_width = 8;
    conv.no_bias = true;
    size_t count = 8 * 8 * 16;
    float *x = draw(count, 1), *weight = draw(9 * 256, 2), *y = unwritten(count), *scratch = aligned_alloc(64, 1 << 20);
    tutti_conv_forward_args args = {
        .batch = 1, .x = x, .weight = weight, .scratch = scratch, .y = y, .scratch_count = (1 << 20) / 4};
#if defined(__x86_64__)
    cr_assert_eq(tutti_conv_library_forward(&conv, &args), TUTTI_HAVE_ONEDNN != 0);
#endif
    tutti_conv_library_use(false);
    cr_assert(!tutti_conv_library_forward(&conv, &args));
    cr_assert_eq(tutti_conv_library_scratch_count(&conv, 1), 0);
    free(x), free(weight), free(y), free(scratch);
}

static int count_threads(void) {
    int count = 0;
    DIR *threads = opendir("/proc/self/task");
    cr_assert_not_null(threads);
    while (readdir(threads) != NULL) count++;
    closedir(threads);
    return count;
}

/* Ranks share the cores. */
Test(conv_library, starts_no_threads) {
    int before = count_threads();
    check(64, make(32, 32, 16, 16, 3, 1), TUTTI_PADDING_SAME, true);
    cr_assert_eq(count_threads(), before);
}
