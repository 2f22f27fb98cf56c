/*
 * The list of operations on a sample, and the elementwise operations.
 */
#include "data/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static const tutti_data_step_row rescale = {"rescale", false, place_rescale, run_rescale};
static const tutti_data_step_row normalize = {"normalize", false, place_normalize, run_normalize};
static const tutti_data_step_row hwc_to_chw = {"hwc_to_chw", true, place_chw, run_chw};
static const tutti_data_step_row type_cast = {"type_cast", false, place_cast, run_cast};

const tutti_data_step_row *tutti_data_steps_find(const char *name) {
    static const tutti_data_step_row *const rows[] = {&tutti_data_row_crop,
                                                      &tutti_data_row_flip,
                                                      &tutti_data_row_resize,
                                                      &rescale,
                                                      &normalize,
                                                      &hwc_to_chw,
                                                      &type_cast};
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
