/*
 * A GPU for tests, stand-in or real: the first one, with a stream, and a few calls that assert.
 */
#ifndef TUTTI_TESTS_ON_GPU_H
#define TUTTI_TESTS_ON_GPU_H

#include <criterion/criterion.h>
#include <stdatomic.h>

#include "kernels/device.h"

#ifdef __SANITIZE_THREAD__
enum { THREAD_SANITIZER = 1 };
#else
enum { THREAD_SANITIZER = 0 };
#endif

#define GOOD(call) cr_assert_eq(call, TUTTI_OK, #call ": %s", tutti_last_error())

extern const tutti_device *gpu;
extern tutti_stream stream;

bool is_standin(void);
void open_device(void);
void *alloc(size_t bytes);
/* Copies in the stream; returns when done. */
void put(void *dst, const void *src, size_t bytes);
void get(void *dst, const void *src, size_t bytes);

#endif
