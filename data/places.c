/*
 * Operations that move pixels: crop, flip, resize.
 */
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "data/steps.h"
#include "kernels/random.h"

static void draw_words(const tutti_data_step *step, const tutti_data_draw *draw, uint32_t words_out[4]) {
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_AUGMENT, (uint64_t)step->number, (uint64_t)draw->pass);
    tutti_random_block(draw->seed, stream, (uint64_t)draw->sample, words_out);
}

/* Returns a number in [0, count), uniform except for 2^-32 * count. */
static int below(uint32_t word, int count) {
    return (int)((uint64_t)word * (uint64_t)count >> 32);
}

/* --------------------------------------------------------------------------------------------- random_crop */

typedef struct crop_table {
    int left, top, places_x, places_y;
} crop_table;

static tutti_status place_crop(tutti_data_step *step) {
    static const char *const names[] = {"height", "width", "left", "top", "right", "bottom"};
    int64_t n[6];
    for (int i = 0; i < 6; i++)
        TUTTI_TRY(
            tutti_data_whole("random_crop", names[i], step->values[i], i < 2 ? 1 : 0, TUTTI_DATA_MOST_EXTENT, &n[i]));
    const int64_t padded_height = step->in.height + n[3] + n[5], padded_width = step->in.width + n[2] + n[4];
    if (n[0] > padded_height || n[1] > padded_width)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "random_crop: %lldx%lld of images that have %lldx%lld with their padding: crop less, or pad more",
            (long long)n[0], (long long)n[1], (long long)padded_height, (long long)padded_width);
    crop_table *table = malloc(sizeof *table);
    if (table == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the numbers of random_crop");
    *table = (crop_table){.left = (int)n[2],
                          .top = (int)n[3],
                          .places_x = (int)(padded_width - n[1] + 1),
                          .places_y = (int)(padded_height - n[0] + 1)};
    step->table = table;
    step->out.height = (int)n[0];
    step->out.width = (int)n[1];
    return TUTTI_OK;
}

/* Writes a row: zeros, then pixels, then zeros. first: the column of x at which the row begins, possibly below 0. */
static void crop_row(const uint8_t *x, int in_width, int first, int out_width, size_t pixel, uint8_t *y) {
    int begin = first < 0 ? -first : 0, end = in_width - first < out_width ? in_width - first : out_width;
    if (begin > out_width) begin = out_width;
    if (end < begin) end = begin;
    memset(y, 0, (size_t)begin * pixel);
    if (end > begin)
        memcpy(y + (size_t)begin * pixel, x + (size_t)(first + begin) * pixel, (size_t)(end - begin) * pixel);
    memset(y + (size_t)end * pixel, 0, (size_t)(out_width - end) * pixel);
}

static void run_crop(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const tutti_data_image *in = &step->in, *out = &step->out;
    const crop_table *table = step->table;
    const size_t pixel = (size_t)in->channels * tutti_type_bytes(in->type);
    const size_t in_row = (size_t)in->width * pixel, out_row = (size_t)out->width * pixel;
    uint32_t words[4];
    draw_words(step, draw, words);
    const int first_x = below(words[0], table->places_x) - table->left;
    const int first_y = below(words[1], table->places_y) - table->top;
    for (int i = 0; i < out->height; i++) {
        uint8_t *to = (uint8_t *)y + (size_t)i * out_row;
        const int row = first_y + i;
        if (row < 0 || row >= in->height) memset(to, 0, out_row);
        else crop_row((const uint8_t *)x + (size_t)row * in_row, in->width, first_x, out->width, pixel, to);
    }
}

const tutti_data_step_row tutti_data_row_crop = {"random_crop", true, place_crop, run_crop};

/* ------------------------------------------------------------------------------------ random_horizontal_flip */

static tutti_status place_flip(tutti_data_step *step) {
    if (!(step->values[0] >= 0 && step->values[0] <= 1))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "random_horizontal_flip: probability %g, expected 0 to 1",
                          step->values[0]);
    if (step->values[0] == 0) step->values[0] = 0.5;
    return TUTTI_OK;
}

static void flip_row(const uint8_t *x, int width, size_t pixel, uint8_t *y) {
    for (int i = 0; i < width; i++, y += pixel) {
        const uint8_t *from = x + (size_t)(width - 1 - i) * pixel;
        for (size_t b = 0; b < pixel; b++) y[b] = from[b];
    }
}

static void run_flip(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const tutti_data_image *in = &step->in;
    const size_t pixel = (size_t)in->channels * tutti_type_bytes(in->type), row = (size_t)in->width * pixel;
    uint32_t words[4];
    draw_words(step, draw, words);
    if ((double)words[0] * 0x1p-32 >= step->values[0]) {
        memcpy(y, x, tutti_data_image_bytes(in));
        return;
    }
    for (int i = 0; i < in->height; i++)
        flip_row((const uint8_t *)x + (size_t)i * row, in->width, pixel, (uint8_t *)y + (size_t)i * row);
}

const tutti_data_step_row tutti_data_row_flip = {"random_horizontal_flip", true, place_flip, run_flip};

/* --------------------------------------------------------------------------------------------------- resize */

/* The two inputs of an output, and the weight of the second. */
typedef struct tap {
    int first, second;
    float part;
} tap;

/* Taps of rows, then of columns; then two rows of the input, resized to the output's width. */
typedef struct resize_table {
    tap *rows, *columns;
    float *lines[2];
} resize_table;

static void fill_taps(tap *taps, int in, int out) {
    for (int i = 0; i < out; i++) {
        double at = (i + 0.5) * in / out - 0.5;
        if (at < 0) at = 0;
        if (at > in - 1) at = in - 1;
        taps[i].first = (int)at;
        taps[i].second = taps[i].first + 1 < in ? taps[i].first + 1 : taps[i].first;
        taps[i].part = (float)(at - taps[i].first);
    }
}

static tutti_status place_resize(tutti_data_step *step) {
    int64_t height, width;
    TUTTI_TRY(tutti_data_whole("resize", "height", step->values[0], 1, TUTTI_DATA_MOST_EXTENT, &height));
    TUTTI_TRY(tutti_data_whole("resize", "width", step->values[1], 1, TUTTI_DATA_MOST_EXTENT, &width));
    const size_t line = (size_t)width * (size_t)step->in.channels * sizeof(float);
    const size_t taps = (size_t)(height + width) * sizeof(tap);
    resize_table *table = malloc(sizeof *table + taps + 2 * line);
    if (table == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the numbers of resize");
    table->rows = (tap *)(table + 1);
    table->columns = table->rows + height;
    table->lines[0] = (float *)(table->columns + width);
    table->lines[1] = table->lines[0] + (size_t)width * (size_t)step->in.channels;
    fill_taps(table->rows, step->in.height, (int)height);
    fill_taps(table->columns, step->in.width, (int)width);
    step->table = table;
    step->out.height = (int)height;
    step->out.width = (int)width;
    return TUTTI_OK;
}

static void draw_out(const tutti_data_step *step, const void *x, int row, float *line) {
    const resize_table *table = step->table;
    const int channels = step->in.channels, width = step->in.width * channels;
    const uint8_t *bytes = (const uint8_t *)x + (size_t)row * (size_t)width;
    const float *floats = (const float *)x + (size_t)row * (size_t)width;
    for (int i = 0; i < step->out.width; i++) {
        const tap of = table->columns[i];
        const int a = of.first * channels, b = of.second * channels;
        if (step->in.type == TUTTI_FLOAT32)
            for (int c = 0; c < channels; c++) *line++ = floats[a + c] + (floats[b + c] - floats[a + c]) * of.part;
        else
            for (int c = 0; c < channels; c++)
                *line++ = (float)bytes[a + c] + (float)(bytes[b + c] - bytes[a + c]) * of.part;
    }
}

static void run_resize(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const resize_table *table = step->table;
    const int count = step->out.width * step->out.channels;
    float *lines[2] = {table->lines[0], table->lines[1]};
    int held[2] = {-1, -1}; /* rows of the input in the two buffers */
    (void)draw;
    for (int i = 0; i < step->out.height; i++) {
        const tap of = table->rows[i];
        if (held[1] == of.first) { /* the previous lower row is the upper one now */
            float *upper = lines[1];
            lines[1] = lines[0], lines[0] = upper;
            held[1] = held[0], held[0] = of.first;
        }
        if (held[0] != of.first) draw_out(step, x, held[0] = of.first, lines[0]);
        if (held[1] != of.second) draw_out(step, x, held[1] = of.second, lines[1]);
        const float *a = lines[0], *b = lines[1];
        if (step->out.type == TUTTI_FLOAT32)
            for (int e = 0; e < count; e++)
                ((float *)y)[(size_t)i * (size_t)count + (size_t)e] = a[e] + (b[e] - a[e]) * of.part;
        else
            for (int e = 0; e < count; e++)
                ((uint8_t *)y)[(size_t)i * (size_t)count + (size_t)e] =
                    (uint8_t)(a[e] + (b[e] - a[e]) * of.part + 0.5f);
    }
}

const tutti_data_step_row tutti_data_row_resize = {"resize", true, place_resize, run_resize};
