/*
 * A source of samples, as pipelines see it: a shape and a table of calls.
 *
 * Samples are either read by number, from any thread, or come from a stream, one after the other. A stream belongs
 * to one pipeline; the state of its reader is in the stream, so several pipelines can read one source.
 */
#ifndef TUTTI_DATA_SOURCE_H
#define TUTTI_DATA_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/data.h>

#define TUTTI_DATA_NAME_BYTES  512
#define TUTTI_DATA_MOST_EXTENT 16384

/* The samples of a stream. */
typedef struct tutti_data_pass {
    int64_t pass;
    int shard, nshards;
    uint64_t seed;
} tutti_data_pass;

typedef struct tutti_data_source_row {
    /* For sources that are read by number. */
    tutti_status (*read)(tutti_data_source *source, int64_t index, void *image, int32_t *label);
    /* For streams. count: samples of a shard in each pass; -1: unknown, or passes differ. */
    tutti_status (*check)(const tutti_data_source *source, int nshards);
    int64_t (*count)(const tutti_data_source *source, int shard, int nshards);
    tutti_status (*begin)(tutti_data_source *source, const tutti_data_pass *pass, void **stream_out);
    tutti_status (*next)(void *stream, void *image, int32_t *label, int64_t *index_out, bool *end_out);
    void (*end)(void *stream);
    void (*close)(tutti_data_source *source); /* frees the source, too; accepts partly opened ones */
} tutti_data_source_row;

/* The first member of each kind of source. */
struct tutti_data_source {
    const tutti_data_source_row *row;
    tutti_data_source_details details; /* the name in it points to `name` */
    char name[TUTTI_DATA_NAME_BYTES];
};

/* Allocates a source of `bytes` bytes, all zeros except its row. */
tutti_status tutti_data_source_new(const tutti_data_source_row *row, size_t bytes, void *source_out);

/* Checks the shape: extents from 1 to TUTTI_DATA_MOST_EXTENT, uint8 or float32. `name`: name of the source, for
 * errors. */
tutti_status tutti_data_source_check_shape(const tutti_data_source_details *details, const char *name);

/* Number of bytes of an image. */
size_t tutti_data_source_bytes(const tutti_data_source *source);

/* Samples in memory, as used for MNIST and drawn digits. */
typedef struct tutti_data_memory {
    tutti_data_source base;
    uint8_t *images, *labels; /* owned */
} tutti_data_memory;

extern const tutti_data_source_row tutti_data_memory_row;

#endif
