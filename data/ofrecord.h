/*
 * Internals of OFRecord: decoding a record, reading a file of records, writing a record.
 *
 * A file is a sequence of records, each a length (int64, little-endian) and a message of that length in protobuf's
 * wire format:
 *
 *   record   { map<string, feature> feature = 1; }            an entry: key = 1, value = 2
 *   feature  { oneof { bytes list = 1; float list = 2; double list = 3; int32 list = 4; int64 list = 5; } }
 *   a list   { repeated value = 1, packed or not }
 */
#ifndef TUTTI_DATA_OFRECORD_H
#define TUTTI_DATA_OFRECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/data.h>

typedef enum tutti_ofrecord_kind {
    TUTTI_OFRECORD_NONE,
    TUTTI_OFRECORD_BYTES,
    TUTTI_OFRECORD_FLOAT,
    TUTTI_OFRECORD_DOUBLE,
    TUTTI_OFRECORD_INT32,
    TUTTI_OFRECORD_INT64
} tutti_ofrecord_kind;

#define TUTTI_OFRECORD_KINDS 6

/* The name of a kind in errors: "float_list". */
const char *tutti_ofrecord_kind_name(tutti_ofrecord_kind kind);

/* Bytes of a message. */
typedef struct tutti_ofrecord_span {
    const uint8_t *data;
    size_t bytes;
} tutti_ofrecord_span;

/* ---------------------------------------------------------------------------------------------- decoding
 * A truncated or damaged message fails with TUTTI_ERR_DATA; the text begins with "at byte N of the message". Fields
 * that are unknown, or have an unexpected wire type, are skipped.
 */

/* Iterates over entries, in the order of the message: *at begins at 0; data NULL: there are no more. */
tutti_status tutti_ofrecord_next(tutti_ofrecord_span record, size_t *at, tutti_ofrecord_span *entry_out,
                                 tutti_ofrecord_span *key_out);

/* Content of an entry. Values beyond `capacity` are counted, but not stored. */
typedef struct tutti_ofrecord_values {
    size_t capacity;
    double *reals;     /* for float and double lists */
    int64_t *integers; /* for int32 and int64 lists */
    tutti_ofrecord_kind kind;
    size_t count;              /* values in the list */
    tutti_ofrecord_span bytes; /* first value of a bytes_list */
} tutti_ofrecord_values;

/* `record` contains the entry: positions in errors count from its start. */
tutti_status tutti_ofrecord_read_entry(tutti_ofrecord_span record, tutti_ofrecord_span entry,
                                       tutti_ofrecord_values *values);

typedef struct tutti_ofrecord_feature {
    tutti_ofrecord_span name;
    tutti_ofrecord_kind kind;
} tutti_ofrecord_feature;

/* Must be initialized with zeros. */
typedef struct tutti_ofrecord_features {
    tutti_ofrecord_feature *all;
    int count;
    uint8_t *names; /* NULL: no record yet */
} tutti_ofrecord_features;

/* Reads all of a record. `unlike`: how the names or kinds of its features differ from those of `first`; empty: they
 * are equal, or `first` was empty and has been set to them. Numbers of values may differ. */
tutti_status tutti_ofrecord_compare(tutti_ofrecord_span record, tutti_ofrecord_features *first, char *unlike,
                                    size_t bytes);
void tutti_ofrecord_features_free(tutti_ofrecord_features *features);

/* Reads a blob of a record into dst, an array of its type; scratch holds 8 bytes for each of its elements. */
tutti_status tutti_ofrecord_decode(tutti_ofrecord_span record, const tutti_ofrecord_blob *blob, bool truncate,
                                   void *scratch, void *dst);

/* Number of elements of a blob; 0: more than are supported, or an extent below 1. */
size_t tutti_ofrecord_blob_count(const tutti_ofrecord_blob *blob);

/* ------------------------------------------------------------------------------------------------- files */

typedef struct tutti_ofrecord_file {
    char *path;
    FILE *stream;
    int64_t bytes;  /* size of the file */
    int64_t offset; /* offset of the next record */
    int64_t record; /* number of the next record */
    uint8_t *memory;
    size_t capacity;
} tutti_ofrecord_file;

tutti_status tutti_ofrecord_file_open(const char *path, tutti_ofrecord_file *file_out);
void tutti_ofrecord_file_close(tutti_ofrecord_file *file);

/* Returns the next record, which is valid until the next call. data NULL: the end of the file. */
tutti_status tutti_ofrecord_file_next(tutti_ofrecord_file *file, tutti_ofrecord_span *record_out);
/* Skips the next record without reading it. */
tutti_status tutti_ofrecord_file_skip(tutti_ofrecord_file *file, bool *end_out);

/* Reports that the record that was read last cannot be used: adds file, offset and record in front of the error
 * text. */
tutti_status tutti_ofrecord_file_blame(const tutti_ofrecord_file *file, tutti_status status, int64_t offset);

/* ----------------------------------------------------------------------------------------------- writing */

/* A growing message; must be initialized with zeros. failed: an allocation failed. */
typedef struct tutti_ofrecord_message {
    uint8_t *data;
    size_t bytes, capacity;
    bool failed;
} tutti_ofrecord_message;

void tutti_ofrecord_put_floats(tutti_ofrecord_message *message, const char *name, const float *values, size_t count);
void tutti_ofrecord_put_bytes(tutti_ofrecord_message *message, const char *name, const void *data, size_t bytes);
void tutti_ofrecord_put_integers(tutti_ofrecord_message *message, const char *name, tutti_ofrecord_kind kind,
                                 const int64_t *values, size_t count);

/* Writes its length and the message, and empties it. `path`: for errors. */
tutti_status tutti_ofrecord_write(FILE *to, const char *path, tutti_ofrecord_message *message);

/* Writes folder/prefix, followed by the number with at least `digits` digits. */
tutti_status tutti_ofrecord_part_path(const char *folder, const char *prefix, int digits, int number, char *path_out,
                                      size_t capacity);

#endif
