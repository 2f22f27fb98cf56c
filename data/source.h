/*
 * What a source of samples is to pipelines: a shape, and a table of calls.
 *
 * Either samples are read by number, from any thread, or a stream gives them one after the other. A stream belongs to one
 * pipeline; what its reader needs is in the stream, so several can read one source.
 */
#ifndef TUTTI_DATA_SOURCE_H
#define TUTTI_DATA_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/data.h>

#define TUTTI_DATA_NAME_BYTES  512
#define TUTTI_DATA_MOST_EXTENT 16384

/* Which samples a stream gives. */
typedef struct tutti_data_pass {
    int64_t pass;
    int shard, nshards;
    uint64_t seed;
} tutti_data_pass;

typedef struct tutti_data_source_row {
    /* By number. */
    tutti_status (*read)(tutti_data_source *source, int64_t index, void *image, int32_t *label);
    /* Streams. count: of a shard in each pass, -1: unknown, also where passes differ. */
    tutti_status (*check)(const tutti_data_source *source, int nshards);
    int64_t (*count)(const tutti_data_source *source, int shard, int nshards);
    tutti_status (*begin)(tutti_data_source *source, const tutti_data_pass *pass, void **stream_out);
    tutti_status (*next)(void *stream, void *image, int32_t *label, int64_t *index_out, bool *end_out);
    void (*end)(void *stream);
    void (*close)(tutti_data_source *source); /* frees the source, too; accepts half-opened ones */
} tutti_data_source_row;

/* The first member of each kind of source. */
struct tutti_data_source {
    const tutti_data_source_row *row;
    tutti_data_source_details details; /* its name is `name` */
    char name[TUTTI_DATA_NAME_BYTES];
};

/* Memory of a source of `bytes` bytes, zeros but for its row. */
tutti_status tutti_data_source_new(const tutti_data_source_row *row, size_t bytes, void *source_out);

/* What every source needs: extents from 1 to TUTTI_DATA_MOST_EXTENT, uint8 or float32. `name`: of the source, for errors. */
tutti_status tutti_data_source_check_shape(const tutti_data_source_details *details, const char *name);

/* Bytes of an image. */
size_t tutti_data_source_bytes(const tutti_data_source *source);

/* Samples in memory, as MNIST and drawn digits have them. */
typedef struct tutti_data_memory {
    tutti_data_source base;
    uint8_t *images, *labels; /* owned */
} tutti_data_memory;

extern const tutti_data_source_row tutti_data_memory_row;

#endif
