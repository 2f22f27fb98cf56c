/*
 * A file of CIFAR-10 or CIFAR-100: the first byte selects which; checks that labels are within their classes.
 */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/on_disk.h"

#define RECORD_BYTES 3073

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tutti_data_source *source;
    if (bytes < 1) return 0;
    const char *folder = fuzz_write(data[0] % 3 == 0 ? "test_batch.bin" : "test.bin", data + 1, bytes - 1);
    tutti_status status =
        data[0] % 3 == 0
            ? tutti_data_open_cifar10(folder, TUTTI_DATA_TEST, &source)
            : tutti_data_open_cifar100(folder, TUTTI_DATA_TEST, (tutti_data_cifar100_labels)(data[0] % 3 - 1), &source);
    if (status == TUTTI_OK) fuzz_read_all(source);
    return 0;
}

/* Files of each kind with one record and with two. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    const int kind = index / 2, records = 1 + index % 2;
    const size_t record = RECORD_BYTES + (kind > 0 ? 1 : 0), bytes = 1 + (size_t)records * record;
    if (index >= 6 || bytes > capacity) return 0;
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 5);
    for (int r = 0; r < records; r++) memset(data + 1 + (size_t)r * record, 7, 2);
    data[0] = (uint8_t)kind;
    return bytes;
}
