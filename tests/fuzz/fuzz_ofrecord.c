/*
 * A file of OFRecord: the first byte selects how it is read; for any content, images and labels are complete, and
 * every feature can be read, as tutti-ofrecord does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/ofrecord.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/on_disk.h"

enum { SHOWN = 4, PIXELS = 12 };

static void look_at_features(const char *path) {
    tutti_ofrecord_file file;
    tutti_ofrecord_span record, entry, key;
    if (tutti_ofrecord_file_open(path, &file) != TUTTI_OK) abort();
    while (tutti_ofrecord_file_next(&file, &record) == TUTTI_OK && record.data != NULL)
        for (size_t at = 0; tutti_ofrecord_next(record, &at, &entry, &key) == TUTTI_OK && entry.data != NULL;) {
            double reals[SHOWN];
            int64_t integers[SHOWN];
            unsigned sum = 0;
            tutti_ofrecord_values values = {.capacity = SHOWN, .reals = reals, .integers = integers};
            for (size_t i = 0; i < key.bytes; i++) sum += key.data[i];
            if (tutti_ofrecord_read_entry(record, entry, &values) != TUTTI_OK) continue;
            if (values.kind == TUTTI_OFRECORD_BYTES && values.count > 0)
                for (size_t i = 0; i < values.bytes.bytes; i++) sum += values.bytes.data[i];
            if (sum > 255 * record.bytes) abort();
        }
    tutti_ofrecord_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    char path[128];
    tutti_data_source *source;
    const char *folder = fuzz_write("part-0", data + 1, bytes - 1);
    const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_UINT8};
    const tutti_ofrecord_blob blobs[] = {{"image", 3, {3, 2, 2}, types[data[0] >> 1 & 1]},
                                         {"label", 0, {0}, TUTTI_INT64}};
    snprintf(path, sizeof path, "%s/part-0", folder);
    look_at_features(path);
    if (tutti_ofrecord_open(folder, blobs, 2, &TUTTI_OFRECORD_OPTIONS(.classes = 10, .truncate = data[0] & 1),
                            &source) == TUTTI_OK)
        fuzz_read_all(source);
    return 0;
}

/* Valid records with each kind of image and label, read in each way. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    static const float pixels[PIXELS] = {0, 1, 0.5f, 255, 1e9f, -1};
    static const int64_t labels[3] = {3, 9, 0}, numbers[2] = {-1, INT64_MAX};
    tutti_ofrecord_message message = {.data = NULL};
    size_t bytes = 1;
    if (index >= 8) return 0;
    FILE *to = fmemopen(data + 1, capacity - 1, "wb");
    if (to == NULL) abort();
    for (int record = 0; record < 3; record++) {
        if (index & 4) tutti_ofrecord_put_bytes(&message, "image", pixels, PIXELS);
        else tutti_ofrecord_put_floats(&message, "image", pixels, PIXELS);
        tutti_ofrecord_put_integers(&message, "label", record == 0 ? TUTTI_OFRECORD_INT64 : TUTTI_OFRECORD_INT32,
                                    &labels[record], 1);
        tutti_ofrecord_put_integers(&message, "more", TUTTI_OFRECORD_INT64, numbers, 2);
        bytes += 8 + message.bytes;
        if (tutti_ofrecord_write(to, "example", &message) != TUTTI_OK) abort();
    }
    if (fclose(to) != 0) abort();
    free(message.data);
    data[0] = (uint8_t)(index & 3);
    return bytes;
}
