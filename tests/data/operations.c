/*
 * Each operation on samples against a plain reference that is written here.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/data/check.h"

enum { SAMPLES = 64 };

/* A batch of all samples of the source, in order, after the operations (at most 8). */
static tutti_data_batch run(tutti_data_source *source, const tutti_data_op *given, int count, tutti_data **data_out) {
    tutti_data_op ops[9] = {{NULL, {0}}};
    tutti_data_batch batch = {.count = 0};
    if (count > 0) memcpy(ops, given, (size_t)count * sizeof *ops);
    ops[count] = (tutti_data_op){"batch", {SAMPLES}};
    expect_ok(tutti_data_create(source, ops, count + 1, &TUTTI_DATA_OPTIONS(.in_order = 1, .seed = 3), data_out));
    expect_ok(tutti_data_next(*data_out, &batch));
    return batch;
}

/* The source's sample, 0 beyond its edge. */
static float padded(int64_t sample, int y, int x, int c, const int shape[3]) {
    if (y < 0 || x < 0 || y >= shape[0] || x >= shape[1]) return 0;
    return pixels_at(sample, ((int64_t)y * shape[1] + x) * shape[2] + c);
}

/* Whether the image is the sample's window of this size at (top, left). */
static bool is_window(const float *image, int64_t sample, int top, int left, int height, int width,
                      const int shape[3]) {
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < shape[2]; c++)
                if (*image++ != padded(sample, top + y, left + x, c, shape)) return false;
    return true;
}

Test(operations, a_random_crop_is_a_window_of_the_padded_image_at_every_place) {
    static const int shape[3] = {6, 5, 3};
    enum { LEFT = 1, TOP = 2, RIGHT = 3, BOTTOM = 1, HEIGHT = 5, WIDTH = 7, PLACES_Y = 5, PLACES_X = 3 };
    static const tutti_type types[] = {TUTTI_UINT8, TUTTI_FLOAT32};
    for (int t = 0; t < 2; t++) {
        int seen[PLACES_Y][PLACES_X] = {{0}};
        tutti_data_source *source = pixels_source(SAMPLES, shape[0], shape[1], shape[2], types[t]);
        tutti_data *data;
        tutti_data_batch batch =
            run(source, (tutti_data_op[]){{"random_crop", {HEIGHT, WIDTH, LEFT, TOP, RIGHT, BOTTOM}}}, 1, &data);
        for (int i = 0; i < SAMPLES; i++) {
            int found = 0;
            for (int y = 0; y < PLACES_Y; y++)
                for (int x = 0; x < PLACES_X; x++)
                    if (is_window(batch.images + (size_t)i * HEIGHT * WIDTH * 3, i, y - TOP, x - LEFT, HEIGHT, WIDTH,
                                  shape))
                        found++, seen[y][x]++;
            cr_assert_eq(found, 1, "sample %d is %d windows", i, found);
        }
        for (int y = 0; y < PLACES_Y; y++)
            for (int x = 0; x < PLACES_X; x++) cr_assert(seen[y][x] > 0, "place %d,%d never came", y, x);
        tutti_data_destroy(data);
        tutti_data_source_destroy(source);
    }
}

/* 3200 draws of 81 places: each occurs 39.5 times on average, with a deviation of 6.2. */
Test(operations, crops_of_cifar_come_at_all_81_places_equally_often) {
    enum { PASSES = 50 };
    static const int shape[3] = {32, 32, 1};
    int seen[9][9] = {{0}};
    tutti_data_source *source = pixels_source(SAMPLES, 32, 32, 1, TUTTI_UINT8);
    tutti_data *data;
    const tutti_data_op ops[] = {{"random_crop", {32, 32, 4, 4, 4, 4}}, {"batch", {SAMPLES}}, {"repeat", {PASSES}}};
    expect_ok(tutti_data_create(source, ops, 3, &TUTTI_DATA_OPTIONS(.in_order = 1), &data));
    for (int pass = 0; pass < PASSES; pass++) {
        tutti_data_batch batch;
        expect_ok(tutti_data_next(data, &batch));
        for (int i = 0; i < SAMPLES; i++)
            for (int y = 0; y < 9; y++)
                for (int x = 0; x < 9; x++)
                    seen[y][x] += is_window(batch.images + (size_t)i * 1024, i, y - 4, x - 4, 32, 32, shape);
    }
    int sum = 0;
    for (int y = 0; y < 9; y++)
        for (int x = 0; x < 9; x++) {
            sum += seen[y][x];
            cr_assert(seen[y][x] > 39 - 31 && seen[y][x] < 40 + 31, "place %d,%d: %d times", y, x, seen[y][x]);
        }
    cr_assert_eq(sum, PASSES * SAMPLES);
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

Test(operations, a_flip_mirrors_rows_of_about_as_many_samples_as_its_probability) {
    static const double probabilities[] = {0, 0.1, 1}; /* 0: the default, 0.5 */
    static const int least[] = {20, 0, SAMPLES}, most[] = {44, 16, SAMPLES};
    for (int p = 0; p < COUNT_OF(probabilities); p++) {
        enum { HEIGHT = 3, WIDTH = 5, CHANNELS = 3, ELEMENTS = HEIGHT * WIDTH * CHANNELS };
        int flipped = 0;
        tutti_data_source *source = pixels_source(SAMPLES, HEIGHT, WIDTH, CHANNELS, TUTTI_UINT8);
        tutti_data *data;
        tutti_data_batch batch =
            run(source, (tutti_data_op[]){{"random_horizontal_flip", {probabilities[p]}}}, 1, &data);
        for (int i = 0; i < SAMPLES; i++) {
            bool same = true, mirrored = true;
            for (int e = 0; e < ELEMENTS; e++) {
                const int y = e / (WIDTH * CHANNELS), x = e / CHANNELS % WIDTH, c = e % CHANNELS;
                const float value = batch.images[(size_t)i * ELEMENTS + (size_t)e];
                same = same && value == pixels_at(i, e);
                mirrored = mirrored && value == pixels_at(i, (y * WIDTH + (WIDTH - 1 - x)) * CHANNELS + c);
            }
            cr_assert(same != mirrored);
            flipped += mirrored;
        }
        cr_assert(flipped >= least[p] && flipped <= most[p], "%d of %d flipped", flipped, SAMPLES);
        tutti_data_destroy(data);
        tutti_data_source_destroy(source);
    }
}

/* In double, according to the definition. */
static double resized(int64_t sample, int y, int x, int c, const int in[3], const int out[2]) {
    double at[2] = {(y + 0.5) * in[0] / out[0] - 0.5, (x + 0.5) * in[1] / out[1] - 0.5};
    int low[2], high[2];
    for (int d = 0; d < 2; d++) {
        at[d] = fmin(fmax(at[d], 0), in[d] - 1);
        low[d] = (int)floor(at[d]);
        high[d] = low[d] + 1 < in[d] ? low[d] + 1 : low[d];
        at[d] -= low[d];
    }
    double top = padded(sample, low[0], low[1], c, in) * (1 - at[1]) + padded(sample, low[0], high[1], c, in) * at[1];
    double bottom =
        padded(sample, high[0], low[1], c, in) * (1 - at[1]) + padded(sample, high[0], high[1], c, in) * at[1];
    return top * (1 - at[0]) + bottom * at[0];
}

Test(operations, resize_is_bilinear_about_the_centres_of_pixels_and_rounds_bytes) {
    static const int cases[][5] = {
        {32, 32, 3, 224, 224}, {5, 7, 3, 3, 4}, {4, 4, 1, 4, 4}, {1, 1, 2, 3, 5}, {9, 3, 1, 2, 7}};
    for (int k = 0; k < COUNT_OF(cases); k++)
        for (int t = 0; t < 2; t++) {
            const int *in = cases[k], *out = cases[k] + 3, count = k == 0 ? 2 : SAMPLES;
            tutti_data_source *source = pixels_source(count, in[0], in[1], in[2], t == 0 ? TUTTI_UINT8 : TUTTI_FLOAT32);
            tutti_data *data;
            tutti_data_batch batch = run(source, (tutti_data_op[]){{"resize", {out[0], out[1]}}}, 1, &data);
            const float *got = batch.images;
            for (int i = 0; i < count; i++)
                for (int y = 0; y < out[0]; y++)
                    for (int x = 0; x < out[1]; x++)
                        for (int c = 0; c < in[2]; c++, got++) {
                            double exact = resized(i, y, x, c, in, out);
                            if (t == 0) cr_assert(*got == floorf(*got) && fabs(*got - exact) <= 0.5 + 1e-4);
                            else cr_assert_float_eq(*got, exact, 1e-3);
                        }
            tutti_data_destroy(data);
            tutti_data_source_destroy(source);
        }
}

/* 0 and 255 after rescale and normalize, with the document's numbers. */
Test(operations, rescale_and_normalize_give_the_documents_numbers_by_the_channels_position) {
    static const double ends[2][3] = {{-2.221393, -2.418255, -2.429066}, {2.753731, 2.596790, 2.514088}};
    tutti_data_source *source = pixels_source(SAMPLES, 32, 32, 3, TUTTI_UINT8);
    for (int chw = 0; chw < 2; chw++) {
        tutti_data *data;
        tutti_data_op ops[] = {{"rescale", {1.0 / 255, 0}},
                               {"hwc_to_chw", {0}},
                               {"normalize", {0.4465, 0.4822, 0.4914, 0.2010, 0.1994, 0.2023}}};
        int seen[2] = {0};
        if (!chw) ops[1] = ops[2];
        tutti_data_batch batch = run(source, ops, 2 + chw, &data);
        for (int64_t i = 0; i < SAMPLES; i++)
            for (int p = 0; p < 1024; p++)
                for (int c = 0; c < 3; c++) {
                    const float value = batch.images[i * 3072 + (chw ? c * 1024 + p : p * 3 + c)];
                    const uint8_t pixel = pixels_at(i, p * 3 + c);
                    cr_assert_float_eq(value, ends[0][c] + (ends[1][c] - ends[0][c]) * pixel / 255, 2e-6);
                    for (int end = 0; end < 2; end++) {
                        if (pixel != 255 * end) continue;
                        cr_assert_float_eq(value, ends[end][c], 6e-7);
                        seen[end]++;
                    }
                }
        cr_assert(seen[0] > 0 && seen[1] > 0);
        tutti_data_destroy(data);
    }
    tutti_data_source_destroy(source);
}

Test(operations, a_list_runs_in_order_and_images_end_as_floats) {
    tutti_data_source *source = pixels_source(SAMPLES, 2, 2, 3, TUTTI_UINT8);
    tutti_data *data;
    tutti_data_batch batch = run(source, NULL, 0, &data);
    for (int64_t e = 0; e < SAMPLES * 12; e++) cr_assert_eq(batch.images[e], pixels_at(e / 12, e % 12));
    tutti_data_destroy(data);
    const tutti_data_op ops[] = {{"rescale", {-2, 1}}, {"rescale", {1, 3}}, {"hwc_to_chw", {0}}};
    batch = run(source, ops, 3, &data);
    for (int64_t i = 0; i < SAMPLES; i++)
        for (int p = 0; p < 4; p++)
            for (int c = 0; c < 3; c++)
                cr_assert_eq(batch.images[i * 12 + c * 4 + p], -2.0f * pixels_at(i, p * 3 + c) + 4);
    tutti_data_details details;
    expect_ok(tutti_data_get(data, &details));
    cr_assert(details.chw == 1 && details.height == 2 && details.width == 2 && details.channels == 3);
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

Test(operations, casts_to_bytes_truncate_and_saturate) {
    tutti_data_source *source = pixels_source(SAMPLES, 2, 2, 3, TUTTI_UINT8);
    tutti_data *data;
    const tutti_data_op ops[] = {
        {"rescale", {2.25, -100}}, {"type_cast", {0, TUTTI_UINT8}}, {"type_cast", {1, TUTTI_INT32}}};
    tutti_data_batch batch = run(source, ops, 3, &data);
    for (int64_t e = 0; e < SAMPLES * 12; e++) {
        double exact = pixels_at(e / 12, e % 12) * 2.25 - 100;
        cr_assert_eq(batch.images[e], exact < 0 ? 0 : exact > 255 ? 255 : floor(exact));
    }
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

Test(operations, errors_in_a_list_are_named) {
    static const struct {
        tutti_data_op ops[2];
        const char *words[2];
    } cases[] = {
        {{{"random_crop", {10, 4, 1, 1, 1, 1}}}, {"random_crop", "10x4 of images that have 6x6"}},
        {{{"random_crop", {2.5, 2}}}, {"random_crop: height is 2.5", "whole number"}},
        {{{"resize", {0, 4}}}, {"resize: height is 0", "1 to"}},
        {{{"rescale", {0, 1}}}, {"rescale: factor 0", "other than 0"}},
        {{{"normalize", {0, 0, 0, 1, 0, 1}}}, {"normalize: channel 1", "deviation 0"}},
        {{{"normalize", {0, 0, 0, 1, 1, NAN}}}, {"normalize: channel 2", "deviation"}},
        {{{"random_horizontal_flip", {1.5}}}, {"random_horizontal_flip: probability 1.5", "0 to 1"}},
        {{{"type_cast", {1, TUTTI_FLOAT32}}}, {"type_cast: column 1", "TUTTI_INT32"}},
        {{{"hwc_to_chw", {0}}, {"resize", {2, 2}}}, {"resize", "before hwc_to_chw"}},
        {{{"batch", {2}}, {"rescale", {1}}}, {"rescale", "come first"}},
        {{{"batch", {2}}, {"shuffle", {3}}}, {"shuffle", "in this order"}},
        {{{"repeat", {2}}, {"repeat", {2}}}, {"repeat", "once at most"}},
        {{{"shuffle", {0}}}, {"shuffle: buffer_size is 0", "1 to"}},
        {{{"batch", {-1}}}, {"batch: size is -1", "0 to"}},
        {{{"blur", {1}}}, {"operation 0, blur, is unknown", "random_crop"}},
        {{{NULL, {0}}}, {"(NULL), is unknown", "random_crop"}},
    };
    tutti_data_source *source = pixels_source(4, 4, 4, 3, TUTTI_UINT8);
    for (int k = 0; k < COUNT_OF(cases); k++) {
        tutti_data *data = NULL;
        int count = cases[k].ops[1].name != NULL ? 2 : 1;
        expect_error(tutti_data_create(source, cases[k].ops, count, NULL, &data), TUTTI_ERR_ARGUMENT, cases[k].words[0],
                     cases[k].words[1]);
    }
    tutti_data_source_destroy(source);
}
