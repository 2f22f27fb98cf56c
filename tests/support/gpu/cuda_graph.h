/*
 * CUDA graphs for tests, by driver calls that are looked up at run time, since tests are built without CUDA's
 * headers; or by the calls of the stand-in that TUTTI_CUDA_MODULE names.
 */
#ifndef TUTTI_TESTS_CUDA_GRAPH_H
#define TUTTI_TESTS_CUDA_GRAPH_H

enum { CUDA_CAPTURE_THREAD_LOCAL = 1 };

/* Returns 0 for success; a CUstream is the runtime's stream. */
typedef struct cuda_graph_calls {
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph_out);
    int (*instantiate)(void **exec_out, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*forget)(void *exec);
    int (*destroy)(void *graph);
} cuda_graph_calls;

extern cuda_graph_calls cuda_graph;

/* Looks the calls up, for a suite's init. Asserts. */
void cuda_graph_find(void);

#endif
