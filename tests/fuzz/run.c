/*
 * Runs a fuzz target without libFuzzer: its examples, then mutations of them from a fixed seed.
 *
 *   fuzz_link_run [COUNT]        number of mutations
 *   fuzz_link_run --write DIR    writes the examples as files, for libFuzzer to begin with
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define CAPACITY ((size_t)1 << 16)

static uint64_t state = 88172645463325252u;

static uint64_t draw(uint64_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

static size_t mutate(uint8_t *data, size_t bytes) {
    for (uint64_t changes = 1 + draw(4); changes > 0 && bytes > 0; changes--) {
        size_t at = draw(bytes);
        switch (draw(5)) {
        case 0: data[at] ^= (uint8_t)(1u << draw(8)); break;
        case 1: data[at] = (uint8_t)draw(256); break;
        case 2: memset(data + at, draw(2) == 0 ? 0 : 255, 1 + draw(bytes - at < 8 ? bytes - at : 8)); break;
        case 3: bytes = at; break; /* cut off */
        default: {                 /* a piece repeated */
            size_t piece = 1 + draw(bytes - at);
            if (bytes + piece > CAPACITY) break;
            memmove(data + at + piece, data + at, bytes - at);
            bytes += piece;
        }
        }
    }
    return bytes;
}

static int write_examples(const char *folder, uint8_t *data) {
    size_t bytes;
    for (int i = 0; (bytes = fuzz_example(i, data, CAPACITY)) > 0; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/example-%d", folder, i);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
            perror(path);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static uint8_t data[CAPACITY];
    if (argc > 2 && strcmp(argv[1], "--write") == 0) return write_examples(argv[2], data);
    long count = argc > 1 ? atol(argv[1]) : 20000;
    int nexamples = 0;
    for (size_t bytes; (bytes = fuzz_example(nexamples, data, CAPACITY)) > 0; nexamples++)
        LLVMFuzzerTestOneInput(data, bytes);
    for (long i = 0; i < count; i++) {
        size_t bytes = fuzz_example((int)draw((uint64_t)nexamples), data, CAPACITY);
        bytes = mutate(data, bytes);
        uint8_t *exact = malloc(bytes > 0 ? bytes : 1); /* so that a read beyond its end is detected */
        if (exact == NULL) return 1;
        memcpy(exact, data, bytes);
        LLVMFuzzerTestOneInput(exact, bytes);
        free(exact);
    }
    printf("%d examples and %ld mutations\n", nexamples, count);
    return 0;
}
