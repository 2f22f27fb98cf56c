/*
 * Sources of known samples.
 */
#include "tests/data/check.h"

#include <stdlib.h>

static tutti_status read_number(void *context, int64_t index, void *image, int32_t *label) {
    (void)context;
    *(uint8_t *)image = (uint8_t)(index % 251);
    *label = (int32_t)index;
    return TUTTI_OK;
}

tutti_data_source *numbers_source(int64_t count) {
    tutti_data_source *source = NULL;
    expect_ok(tutti_data_open_user(&TUTTI_DATA_USER(.height = 1, .width = 1, .channels = 1, .type = TUTTI_UINT8,
                                                    .count = count, .read = read_number),
                                   &source));
    return source;
}

uint8_t pixels_at(int64_t sample, int64_t element) {
    return (uint8_t)(31 * sample + 7 * element);
}

/* context: number of elements, negative for float32. */
static tutti_status read_pixels(void *context, int64_t index, void *image, int32_t *label) {
    const int64_t elements = (int64_t)(intptr_t)context, count = elements < 0 ? -elements : elements;
    for (int64_t i = 0; i < count; i++)
        if (elements < 0) ((float *)image)[i] = pixels_at(index, i);
        else ((uint8_t *)image)[i] = pixels_at(index, i);
    *label = 0;
    return TUTTI_OK;
}

tutti_data_source *pixels_source(int64_t count, int height, int width, int channels, tutti_type type) {
    tutti_data_source *source = NULL;
    const intptr_t elements = (intptr_t)height * width * channels;
    expect_ok(tutti_data_open_user(&TUTTI_DATA_USER(.context = (void *)(type == TUTTI_FLOAT32 ? -elements : elements),
                                                    .height = height, .width = width, .channels = channels,
                                                    .type = type, .count = count, .read = read_pixels),
                                   &source));
    return source;
}
