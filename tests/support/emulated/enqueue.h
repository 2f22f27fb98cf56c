/*
 * What emulated kernels need from their environment: a stream that they run in, and memory.
 */
#ifndef TUTTI_TESTS_EMULATED_ENQUEUE_H
#define TUTTI_TESTS_EMULATED_ENQUEUE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Runs `run` in stream order, or at once; calls `forget` when it will not run again. */
void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context);
/* The host address of the memory that a GPU reads at an address. */
void *emulated_reach(const void *address);

#ifdef __cplusplus
}
#endif

#endif
