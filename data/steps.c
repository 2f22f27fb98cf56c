/*
 * The operations on a sample, those that move pixels first, and the list of operations.
 */
#include "data/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "kernels/random.h"

size_t tutti_data_image_bytes(const tutti_data_image *image) {
    return (size_t)image->height * (size_t)image->width * (size_t)image->channels * tutti_type_bytes(image->type);
}

static size_t elements(const tutti_data_image *image) {
    return (size_t)image->height * (size_t)image->width * (size_t)image->channels;
}

tutti_status tutti_data_whole(const char *name, const char *what, double value, int64_t least, int64_t most,
                              int64_t *number_out) {
    if (!(value >= (double)least && value <= (double)most) || value != floor(value))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: %s is %g, expected a whole number from %lld to %lld", name, what,
                          value, (long long)least, (long long)most);
    *number_out = (int64_t)value;
    return TUTTI_OK;
}

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
    int64_t height = 0, width = 0;
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

/* ---------------------------------------------------------------------------------------------- rescale */

static void to_float(size_t count, const tutti_data_image *in, const void *x, float *y) {
    if (in->type == TUTTI_FLOAT32) {
        memcpy(y, x, count * sizeof *y);
        return;
    }
    const uint8_t *bytes = x;
    for (size_t i = 0; i < count; i++) y[i] = (float)bytes[i];
}

static tutti_status place_rescale(tutti_data_step *step) {
    if (!isfinite(step->values[0]) || step->values[0] == 0 || !isfinite(step->values[1]))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "rescale: factor %g and shift %g, expected finite numbers and a factor other than 0",
                          step->values[0], step->values[1]);
    step->out.type = TUTTI_FLOAT32;
    return TUTTI_OK;
}

static void run_rescale(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const float factor = (float)step->values[0], shift = (float)step->values[1];
    const uint8_t *bytes = x;
    const float *floats = x;
    float *to = y;
    (void)draw;
    if (step->in.type == TUTTI_FLOAT32)
        for (size_t i = 0, count = elements(&step->in); i < count; i++) to[i] = floats[i] * factor + shift;
    else
        for (size_t i = 0, count = elements(&step->in); i < count; i++) to[i] = (float)bytes[i] * factor + shift;
}

/* --------------------------------------------------------------------------------------------- normalize
 * Mean and deviation are stored for each element of a row, so that one loop over the row serves any number of
 * channels.
 */

static int row_count(const tutti_data_image *image) {
    return image->chw ? image->width : image->width * image->channels;
}

static int channel_of(const tutti_data_image *image, int element) {
    return image->chw ? 0 : element % image->channels;
}

static tutti_status place_normalize(tutti_data_step *step) {
    const int channels = step->in.channels, count = row_count(&step->in);
    if (2 * channels > TUTTI_DATA_OP_VALUES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "normalize: %d channels, at most %d are supported", channels,
                          TUTTI_DATA_OP_VALUES / 2);
    for (int c = 0; c < channels; c++)
        if (!isfinite(step->values[c]) || !(step->values[channels + c] > 0) || !isfinite(step->values[channels + c]))
            return tutti_fail(
                TUTTI_ERR_ARGUMENT,
                "normalize: channel %d has mean %g and deviation %g, expected a finite mean and a deviation "
                "above 0: give %d means, then %d deviations",
                c, step->values[c], step->values[channels + c], channels, channels);
    step->out.type = TUTTI_FLOAT32;
    float *table = malloc(2 * (size_t)count * sizeof *table);
    if (table == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the numbers of normalize");
    for (int i = 0; i < count; i++) {
        table[i] = (float)step->values[channel_of(&step->in, i)];
        table[count + i] = (float)step->values[channels + channel_of(&step->in, i)];
    }
    step->table = table;
    return TUTTI_OK;
}

static void normalize_row(int count, const float *x, const float *mean, const float *deviation, float *y) {
    for (int i = 0; i < count; i++) y[i] = (x[i] - mean[i]) / deviation[i];
}

static void normalize_plane(size_t count, float mean, float deviation, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = (y[i] - mean) / deviation;
}

static void run_normalize(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const tutti_data_image *in = &step->in;
    const int count = row_count(in);
    const float *table = step->table;
    float *to = y;
    (void)draw;
    if (in->chw) {
        const size_t plane = (size_t)in->height * (size_t)in->width;
        to_float(elements(in), in, x, to);
        for (int c = 0; c < in->channels; c++)
            normalize_plane(plane, (float)step->values[c], (float)step->values[in->channels + c],
                            to + (size_t)c * plane);
        return;
    }
    if (in->type != TUTTI_FLOAT32) to_float(elements(in), in, x, to);
    const float *from = in->type == TUTTI_FLOAT32 ? x : y;
    for (int row = 0; row < in->height; row++, from += count, to += count)
        normalize_row(count, from, table, table + count, to);
}

/* -------------------------------------------------------------------------------------------- hwc_to_chw */

static tutti_status place_chw(tutti_data_step *step) {
    step->out.chw = true;
    return TUTTI_OK;
}

static void run_chw(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const size_t pixels = (size_t)step->in.height * (size_t)step->in.width, channels = (size_t)step->in.channels;
    (void)draw;
    for (size_t c = 0; c < channels; c++)
        if (step->in.type == TUTTI_FLOAT32)
            for (size_t p = 0; p < pixels; p++) ((float *)y)[c * pixels + p] = ((const float *)x)[p * channels + c];
        else
            for (size_t p = 0; p < pixels; p++) ((uint8_t *)y)[c * pixels + p] = ((const uint8_t *)x)[p * channels + c];
}

/* --------------------------------------------------------------------------------------------- type_cast */

static tutti_status place_cast(tutti_data_step *step) {
    const double column = step->values[0], type = step->values[1];
    if (column == 1 && type == TUTTI_INT32) return TUTTI_OK; /* labels have this type */
    if (column != 0 || (type != TUTTI_UINT8 && type != TUTTI_FLOAT32))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "type_cast: column %g to type %g, expected column 0 (image) to TUTTI_UINT8 or TUTTI_FLOAT32, or "
            "column 1 (label) to TUTTI_INT32",
            column, type);
    step->out.type = (tutti_type)type;
    return TUTTI_OK;
}

static void run_cast(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y) {
    const size_t count = elements(&step->in);
    (void)draw;
    if (step->in.type == step->out.type) {
        memcpy(y, x, tutti_data_image_bytes(&step->in));
    } else if (step->out.type == TUTTI_FLOAT32) {
        to_float(count, &step->in, x, y);
    } else {
        const float *from = x;
        for (size_t i = 0; i < count; i++) /* NaN becomes 0 */
            ((uint8_t *)y)[i] = from[i] >= 255 ? 255 : from[i] > 0 ? (uint8_t)from[i] : 0;
    }
}

/* ---------------------------------------------------------------------------------------------- the list */

static const tutti_data_step_row crop = {"random_crop", true, place_crop, run_crop};
static const tutti_data_step_row flip = {"random_horizontal_flip", true, place_flip, run_flip};
static const tutti_data_step_row resize = {"resize", true, place_resize, run_resize};
static const tutti_data_step_row rescale = {"rescale", false, place_rescale, run_rescale};
static const tutti_data_step_row normalize = {"normalize", false, place_normalize, run_normalize};
static const tutti_data_step_row hwc_to_chw = {"hwc_to_chw", true, place_chw, run_chw};
static const tutti_data_step_row type_cast = {"type_cast", false, place_cast, run_cast};

const tutti_data_step_row *tutti_data_steps_find(const char *name) {
    static const tutti_data_step_row *const rows[] = {&crop,      &flip,       &resize,   &rescale,
                                                      &normalize, &hwc_to_chw, &type_cast};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i]->name, name) == 0) return rows[i];
    return NULL;
}

void tutti_data_steps_begin(tutti_data_steps *steps, const tutti_data_image *in) {
    *steps = (tutti_data_steps){.out = *in};
}

tutti_status tutti_data_steps_add(tutti_data_steps *steps, const tutti_data_step_row *row, const tutti_data_op *op) {
    if (steps->count == TUTTI_DATA_STEPS)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: more than %d operations", op->name, TUTTI_DATA_STEPS);
    if (row->wants_hwc && steps->out.chw)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: images are [channels, height, width] here; put it before hwc_to_chw",
                          op->name);
    tutti_data_step *step = &steps->steps[steps->count];
    *step = (tutti_data_step){.row = row, .number = steps->count, .in = steps->out, .out = steps->out};
    memcpy(step->values, op->values, sizeof step->values);
    TUTTI_TRY(row->place(step));
    steps->count++;
    steps->out = step->out;
    return TUTTI_OK;
}

tutti_status tutti_data_steps_end(tutti_data_steps *steps) {
    size_t most = 1;
    for (int i = 0; i < steps->count; i++) {
        size_t bytes = tutti_data_image_bytes(&steps->steps[i].out);
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < 2; i++) {
        steps->buffers[i] = malloc(most);
        if (steps->buffers[i] == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for an image of %zu bytes", most);
    }
    return TUTTI_OK;
}

void tutti_data_steps_close(tutti_data_steps *steps) {
    for (int i = 0; i < steps->count; i++) free(steps->steps[i].table);
    free(steps->buffers[0]);
    free(steps->buffers[1]);
    *steps = (tutti_data_steps){.count = 0};
}

void tutti_data_steps_run(tutti_data_steps *steps, const tutti_data_draw *draw, const void *x, float *y) {
    const bool converts = steps->out.type != TUTTI_FLOAT32 || steps->count == 0;
    for (int i = 0; i < steps->count; i++) {
        void *to = i + 1 < steps->count || converts ? steps->buffers[i % 2] : y;
        steps->steps[i].row->run(&steps->steps[i], draw, x, to);
        x = to;
    }
    if (converts) to_float(elements(&steps->out), &steps->out, x, y);
}
