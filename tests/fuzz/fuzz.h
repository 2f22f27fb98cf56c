/*
 * A fuzz target: what it does with bytes from outside, and good examples of such bytes. With clang, libFuzzer looks for bad
 * ones (option TUTTI_FUZZ); with any compiler, run.c tries the examples and thousands of mutations of them, always the same.
 */
#ifndef TUTTI_TESTS_FUZZ_H
#define TUTTI_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Gives 0; a wrong answer aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Example number `index`; gives its bytes, 0: there are no more. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity);

#endif
