/*
 * OFRecord files as a source: files (parts) that are divided over shards and read one after the other.
 */
#include "data/ofrecord.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "kernels/random.h"

#define PATH_BYTES    4096
#define PART_SHIFT    32
#define MOST_PARTS    (1 << 20)
#define MOST_SUFFIX   18
#define MOST_ELEMENTS ((size_t)1 << 30)

typedef struct ofrecord_source {
    tutti_data_source base;
    char *folder, *prefix;
    int nparts, digits;
    bool truncate, reorders;
    tutti_ofrecord_blob image, label; /* their names are owned */
    size_t elements;                  /* elements of an image */
    bool planes;                      /* images are [channels, height, width] in the file */
    int64_t *counts;                  /* number of records of each part */
} ofrecord_source;

/* The parts of a shard, in reading order, and the open file. */
typedef struct ofrecord_stream {
    ofrecord_source *source;
    int *parts, nparts, next;
    int part; /* part of the open file */
    tutti_ofrecord_file file;
    void *scratch, *decoded;
} ofrecord_stream;

/* ----------------------------------------------------------------------------------------------- parts */

static int first_of(int nparts, int shard, int nshards) {
    int more = nparts % nshards;
    return nparts / nshards * shard + (shard < more ? shard : more);
}

/* Lists all parts in the order of a pass. */
static tutti_status order_parts(const ofrecord_source *source, const tutti_data_pass *pass, int **parts_out) {
    int *parts = malloc((size_t)source->nparts * sizeof *parts);
    if (parts == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the order of %d files", source->nparts);
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_FILES, 0, (uint64_t)pass->pass);
    for (int i = 0; i < source->nparts; i++) parts[i] = i;
    for (int i = source->nparts - 1; i > 0 && source->reorders; i--) {
        int j = (int)(tutti_random_bits(pass->seed, stream, (uint64_t)i) % (uint64_t)(i + 1)), other = parts[j];
        parts[j] = parts[i];
        parts[i] = other;
    }
    *parts_out = parts;
    return TUTTI_OK;
}

static tutti_status check_shards(const tutti_data_source *base, int nshards) {
    const ofrecord_source *source = (const ofrecord_source *)base;
    if (nshards <= source->nparts) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "%s: %d ranks share %d OFRecord files, expected at most one rank for each file: start fewer ranks, or "
        "pack more files",
        source->base.name, nshards, source->nparts);
}

static int64_t count_of_shard(const tutti_data_source *base, int shard, int nshards) {
    const ofrecord_source *source = (const ofrecord_source *)base;
    int64_t count = 0;
    if (source->reorders) return -1;
    for (int p = first_of(source->nparts, shard, nshards); p < first_of(source->nparts, shard + 1, nshards); p++)
        count += source->counts[p];
    return count;
}

/* ---------------------------------------------------------------------------------------------- streams */

static void end_stream(void *context) {
    ofrecord_stream *stream = context;
    if (stream->file.stream != NULL) tutti_ofrecord_file_close(&stream->file);
    free(stream->parts);
    free(stream->scratch);
    free(stream->decoded);
    free(stream);
}

static tutti_status begin_stream(tutti_data_source *base, const tutti_data_pass *pass, void **stream_out) {
    ofrecord_source *source = (ofrecord_source *)base;
    ofrecord_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a reader of OFRecord files");
    stream->source = source;
    stream->next = first_of(source->nparts, pass->shard, pass->nshards);
    stream->nparts = first_of(source->nparts, pass->shard + 1, pass->nshards);
    stream->scratch = malloc(source->elements * sizeof(double));
    stream->decoded = malloc(source->elements * tutti_type_bytes(source->image.type));
    tutti_status status = stream->scratch != NULL && stream->decoded != NULL
                              ? order_parts(source, pass, &stream->parts)
                              : tutti_fail(TUTTI_ERR_MEMORY, "no memory for an image of %zu numbers", source->elements);
    if (status != TUTTI_OK) {
        end_stream(stream);
        return status;
    }
    *stream_out = stream;
    return TUTTI_OK;
}

static tutti_status open_part(const ofrecord_source *source, int part, tutti_ofrecord_file *file_out) {
    char path[PATH_BYTES];
    TUTTI_TRY(tutti_ofrecord_part_path(source->folder, source->prefix, source->digits, part, path, sizeof path));
    const tutti_status status = tutti_ofrecord_file_open(path, file_out);
    if (status != TUTTI_ERR_CONFIG) return status;
    char suffix[32];
    if (source->digits > 0) snprintf(suffix, sizeof suffix, "%d digits", source->digits);
    else snprintf(suffix, sizeof suffix, "no digits in front");
    return tutti_fail(status,
                      "%s; expected %d files whose names are %s and a number from 0 on with %s: see data_part_num, "
                      "part_name_prefix and part_name_suffix_length (tutti-train --data-part-num, --test-part-num, "
                      "--part-prefix and --part-suffix-length)",
                      tutti_last_error(), source->nparts, source->prefix, suffix);
}

static void to_hwc(const ofrecord_source *source, const void *decoded, void *image) {
    const tutti_data_source_details *about = &source->base.details;
    const size_t pixels = (size_t)about->height * (size_t)about->width, channels = (size_t)about->channels;
    const size_t element = tutti_type_bytes(about->type);
    for (size_t p = 0; p < pixels; p++)
        for (size_t c = 0; c < channels; c++)
            memcpy((uint8_t *)image + (p * channels + c) * element,
                   (const uint8_t *)decoded + (c * pixels + p) * element, element);
}

static tutti_status decode(ofrecord_stream *stream, tutti_ofrecord_span record, void *image, int32_t *label) {
    const ofrecord_source *source = stream->source;
    const int classes = source->base.details.classes;
    int64_t wide = 0;
    tutti_ofrecord_blob as_int64 = source->label;
    as_int64.type = TUTTI_INT64;
    void *to = source->planes ? stream->decoded : image;
    TUTTI_TRY(tutti_ofrecord_decode(record, &source->image, source->truncate, stream->scratch, to));
    if (source->planes) to_hwc(source, to, image);
    TUTTI_TRY(tutti_ofrecord_decode(record, &as_int64, source->truncate, stream->scratch, &wide));
    if (source->label.type == TUTTI_UINT8) wide = (uint8_t)wide;
    if (wide < INT32_MIN || wide > INT32_MAX || (classes > 0 && (wide < 0 || wide >= classes)))
        return tutti_fail(TUTTI_ERR_DATA, "feature %s: label %lld, expected 0 to %d", source->label.name,
                          (long long)wide, classes > 0 ? classes - 1 : INT32_MAX);
    *label = (int32_t)wide;
    return TUTTI_OK;
}

static tutti_status next_record(void *context, void *image, int32_t *label, int64_t *index_out, bool *end_out) {
    ofrecord_stream *stream = context;
    tutti_ofrecord_span record = {NULL, 0};
    int64_t offset = 0;
    while (record.data == NULL) {
        if (stream->file.stream == NULL) {
            *end_out = stream->next == stream->nparts;
            if (*end_out) return TUTTI_OK;
            stream->part = stream->parts[stream->next++];
            TUTTI_TRY(open_part(stream->source, stream->part, &stream->file));
        }
        offset = stream->file.offset;
        TUTTI_TRY(tutti_ofrecord_file_next(&stream->file, &record));
        if (record.data == NULL) tutti_ofrecord_file_close(&stream->file);
    }
    stream->file.record--; /* the failure's text names the record that was read */
    tutti_status status = decode(stream, record, image, label);
    if (status != TUTTI_OK) return tutti_ofrecord_file_blame(&stream->file, status, offset);
    *index_out = (int64_t)stream->part << PART_SHIFT | stream->file.record++;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- open */

static void close_source(tutti_data_source *base) {
    ofrecord_source *source = (ofrecord_source *)base;
    free(source->folder);
    free(source->prefix);
    free((char *)source->image.name);
    free((char *)source->label.name);
    free(source->counts);
    free(source);
}

static const tutti_data_source_row ofrecord_row = {.check = check_shards,
                                                   .count = count_of_shard,
                                                   .begin = begin_stream,
                                                   .next = next_record,
                                                   .end = end_stream,
                                                   .close = close_source};

static tutti_status check_blob(const tutti_ofrecord_blob *blob) {
    if (blob->name == NULL || blob->name[0] == '\0' || blob->ndims < 0 || blob->ndims > TUTTI_OFRECORD_DIMS)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ofrecord_open: a blob needs a name and 0 to %d dimensions",
                          TUTTI_OFRECORD_DIMS);
    size_t count = tutti_ofrecord_blob_count(blob);
    if (count == 0 || count > MOST_ELEMENTS)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "blob %s: an extent below 1, or more than %zu elements", blob->name,
                          MOST_ELEMENTS);
    switch (blob->type) {
    case TUTTI_UINT8:
    case TUTTI_INT8:
    case TUTTI_INT32:
    case TUTTI_INT64:
    case TUTTI_FLOAT32:
    case TUTTI_FLOAT64: return TUTTI_OK;
    default: break;
    }
    return tutti_fail(
        TUTTI_ERR_ARGUMENT,
        "blob %s: type %s, expected uint8 or float32 for an image, uint8, int8, int32 or int64 for a label", blob->name,
        tutti_type_name(blob->type));
}

static bool is_label(const tutti_ofrecord_blob *blob) {
    return blob->type != TUTTI_FLOAT32 && blob->type != TUTTI_FLOAT64 && tutti_ofrecord_blob_count(blob) == 1;
}

/* Interprets 1 to 3 dimensions as height, width, channels. */
static tutti_status take_shape(ofrecord_source *source) {
    const tutti_ofrecord_blob *blob = &source->image;
    int64_t extents[3] = {1, 1, 1};
    for (int i = 0; i < blob->ndims && i < 3; i++) extents[i + (blob->ndims == 1)] = blob->shape[i];
    for (int i = 0; i < 3; i++)
        if (blob->ndims < 1 || blob->ndims > 3 || extents[i] > INT_MAX)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "blob %s: an image has height, width and channels, or the channels first", blob->name);
    bool first = blob->ndims == 3 && (extents[0] == 1 || extents[0] == 3) && extents[2] != 1 && extents[2] != 3;
    source->planes = first && extents[0] == 3; /* with one channel both forms are the same */
    source->base.details.height = (int)extents[first ? 1 : 0];
    source->base.details.width = (int)extents[first ? 2 : 1];
    source->base.details.channels = (int)extents[first ? 0 : 2];
    source->base.details.type = blob->type;
    source->elements = tutti_ofrecord_blob_count(blob);
    return tutti_data_source_check_shape(&source->base.details, blob->name);
}

static tutti_status take_blobs(ofrecord_source *source, const tutti_ofrecord_blob *blobs, int nblobs) {
    if (nblobs != 2)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ofrecord_open: %d blobs, expected two: image and label", nblobs);
    for (int i = 0; i < 2; i++) TUTTI_TRY(check_blob(&blobs[i]));
    int label = is_label(&blobs[1]) ? 1 : 0;
    if (!is_label(&blobs[label]))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_ofrecord_open: neither %s nor %s is a label, which has one element and an integer type",
            blobs[0].name, blobs[1].name);
    source->label = blobs[label];
    source->image = blobs[1 - label];
    source->label.name = strdup(blobs[label].name);
    source->image.name = strdup(blobs[1 - label].name);
    if (source->label.name == NULL || source->image.name == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a name");
    return take_shape(source);
}

static tutti_status take_options(ofrecord_source *source, const char *folder, const tutti_ofrecord_options *given) {
    tutti_ofrecord_options options = TUTTI_OFRECORD_OPTIONS(.truncate = 0);
    if (given != NULL)
        TUTTI_TRY(tutti_struct_take("tutti_ofrecord_open: options", "TUTTI_OFRECORD_OPTIONS(...)", given, &options,
                                    sizeof options));
    source->nparts = options.data_part_num != 0 ? options.data_part_num : 1;
    source->digits = options.part_name_suffix_length;
    if (source->nparts < 1 || source->nparts > MOST_PARTS || source->digits < -1 || source->digits > MOST_SUFFIX ||
        options.classes < 0)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_ofrecord_open: data_part_num %d (1 to %d), part_name_suffix_length %d (-1 to %d) or classes "
            "%d is none",
            options.data_part_num, MOST_PARTS, source->digits, MOST_SUFFIX, options.classes);
    source->truncate = options.truncate != 0;
    source->reorders = options.shuffle_after_epoch != 0;
    source->base.details.classes = options.classes;
    source->folder = strdup(folder);
    source->prefix = strdup(options.part_name_prefix != NULL ? options.part_name_prefix : "part-");
    source->counts = calloc((size_t)source->nparts, sizeof *source->counts);
    if (source->folder == NULL || source->prefix == NULL || source->counts == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the names of %d files", source->nparts);
    return TUTTI_OK;
}

/* Reads the lengths of all records, so that missing or truncated files are detected at once. */
static tutti_status count_records(ofrecord_source *source) {
    for (int p = 0; p < source->nparts; p++) {
        tutti_ofrecord_file file;
        bool end = false;
        TUTTI_TRY(open_part(source, p, &file));
        tutti_status status = TUTTI_OK;
        while (status == TUTTI_OK && !end) status = tutti_ofrecord_file_skip(&file, &end);
        source->counts[p] = file.record;
        tutti_ofrecord_file_close(&file);
        TUTTI_TRY(status);
        source->base.details.count += source->counts[p];
    }
    if (source->base.details.count > 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "%s: no record in %d OFRecord files", source->folder, source->nparts);
}

static tutti_status open_source(ofrecord_source *source, const char *folder, const tutti_ofrecord_blob *blobs,
                                int nblobs, const tutti_ofrecord_options *options) {
    TUTTI_TRY(take_options(source, folder, options));
    TUTTI_TRY(take_blobs(source, blobs, nblobs));
    snprintf(source->base.name, sizeof source->base.name, "%s", folder);
    return count_records(source);
}

tutti_status tutti_ofrecord_open(const char *folder, const tutti_ofrecord_blob *blobs, int nblobs,
                                 const tutti_ofrecord_options *options, tutti_data_source **source_out) {
    ofrecord_source *source;
    if (folder == NULL || blobs == NULL || source_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_ofrecord_open: folder, blobs and source must not be NULL");
    TUTTI_TRY(tutti_data_source_new(&ofrecord_row, sizeof *source, &source));
    tutti_status status = open_source(source, folder, blobs, nblobs, options);
    if (status != TUTTI_OK) {
        close_source(&source->base);
        return status;
    }
    *source_out = &source->base;
    return TUTTI_OK;
}
