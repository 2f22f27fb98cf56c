/*
 * An IDX file, plain or gzipped: for any content, the data read has the size that its header gives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "data/idx.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/on_disk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char path[128];
    tutti_idx idx;
    snprintf(path, sizeof path, "%s/file", fuzz_write("file", data, bytes));
    for (int ndims = 1; ndims <= 3; ndims += 2) {
        if (tutti_idx_open(path, ndims, &idx) != TUTTI_OK) continue;
        int64_t count = 1;
        unsigned sum = 0;
        if (idx.ndims != ndims) abort();
        for (int i = 0; i < ndims; i++) count *= idx.dims[i];
        for (int64_t i = 0; i < count; i++) sum += idx.data[i];
        if (sum > 255u * (uint64_t)count) abort();
        tutti_idx_close(&idx);
    }
    return 0;
}

/* Images and labels, each plain and gzipped. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    static const uint8_t images[16] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5},
                         labels[8] = {0, 0, 8, 1, 0, 0, 0, 6};
    uint8_t plain[46];
    const size_t header = index % 2 == 0 ? sizeof images : sizeof labels, bytes = index % 2 == 0 ? 46 : 14;
    if (index >= 4) return 0;
    for (size_t i = 0; i < sizeof plain; i++) plain[i] = (uint8_t)(i * 7);
    memcpy(plain, index % 2 == 0 ? images : labels, header);
    if (index < 2) {
        memcpy(data, plain, bytes);
        return bytes;
    }
    z_stream stream = {.next_in = plain, .avail_in = (uInt)bytes, .next_out = data, .avail_out = (uInt)capacity};
    if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort(); /* + 16: gzip */
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END) abort();
    deflateEnd(&stream);
    return stream.total_out;
}
