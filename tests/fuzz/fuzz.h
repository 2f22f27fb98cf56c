/*
 * A fuzz target: processes bytes from outside, and has good examples of such bytes. With clang, libFuzzer searches
 * for bad ones (option TUTTI_FUZZ); with any compiler, run.c runs the examples and thousands of mutations of them,
 * always the same.
 */
#ifndef TUTTI_TESTS_FUZZ_H
#define TUTTI_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0; a wrong result aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Writes example number `index`; returns its bytes, 0 if there are no more. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity);

#endif
