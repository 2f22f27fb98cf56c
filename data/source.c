/*
 * Code shared by all sources, and sources whose samples are in memory.
 */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

tutti_status tutti_data_source_new(const tutti_data_source_row *row, size_t bytes, void *source_out) {
    tutti_data_source *source = calloc(1, bytes);
    if (source == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a source of data");
    source->row = row;
    *(tutti_data_source **)source_out = source;
    return TUTTI_OK;
}

size_t tutti_data_source_bytes(const tutti_data_source *source) {
    const tutti_data_source_details *about = &source->details;
    return (size_t)about->height * (size_t)about->width * (size_t)about->channels * tutti_type_bytes(about->type);
}

tutti_status tutti_data_source_check_shape(const tutti_data_source_details *about, const char *name) {
    const int extents[3] = {about->height, about->width, about->channels};
    for (int i = 0; i < 3; i++)
        if (extents[i] < 1 || extents[i] > TUTTI_DATA_MOST_EXTENT)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "%s: images of %dx%dx%d (height, width, channels), expected 1 to %d each", name,
                              about->height, about->width, about->channels, TUTTI_DATA_MOST_EXTENT);
    if (about->type != TUTTI_UINT8 && about->type != TUTTI_FLOAT32)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: images of type %s, expected uint8 or float32", name,
                          tutti_type_name(about->type));
    return TUTTI_OK;
}

tutti_status tutti_data_source_get(const tutti_data_source *source, tutti_data_source_details *details_out) {
    if (source == NULL || details_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_source_get: source and details must not be NULL");
    *details_out = source->details;
    details_out->name = source->name;
    return TUTTI_OK;
}

void tutti_data_source_destroy(tutti_data_source *source) {
    if (source != NULL) source->row->close(source);
}

/* ---------------------------------------------------------------------------------------------- memory */

static tutti_status read_memory(tutti_data_source *source, int64_t index, void *image, int32_t *label) {
    const tutti_data_memory *memory = (const tutti_data_memory *)source;
    size_t bytes = tutti_data_source_bytes(source);
    memcpy(image, memory->images + (size_t)index * bytes, bytes);
    *label = memory->labels[index];
    return TUTTI_OK;
}

static void close_memory(tutti_data_source *source) {
    tutti_data_memory *memory = (tutti_data_memory *)source;
    free(memory->images);
    free(memory->labels);
    free(memory);
}

const tutti_data_source_row tutti_data_memory_row = {.read = read_memory, .close = close_memory};
