/*
 * CUDA graphs for tests. See cuda_graph.h.
 */
#include "tests/support/gpu/cuda_graph.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gpu/cuda_call.h"

cuda_graph_calls cuda_graph;

void cuda_graph_find(void) {
    static const struct {
        const char *name, *standin;
        void *place;
    } calls[] = {{"cuStreamBeginCapture_v2", "standin_graph_begin", &cuda_graph.begin},
                 {"cuStreamEndCapture", "standin_graph_end", &cuda_graph.end},
                 {"cuGraphInstantiateWithFlags", "standin_graph_instantiate", &cuda_graph.instantiate},
                 {"cuGraphLaunch", "standin_graph_launch", &cuda_graph.launch},
                 {"cuGraphExecDestroy", "standin_graph_forget", &cuda_graph.forget},
                 {"cuGraphDestroy", "standin_graph_forget", &cuda_graph.destroy}};
    bool real = cuda_real_gpus() > 0;
    void *library = dlopen(real ? "libcuda.so.1" : getenv("TUTTI_CUDA_MODULE"), RTLD_NOW);
    cr_assert(library != NULL, "%s", dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(library, real ? calls[i].name : calls[i].standin);
        cr_assert(found != NULL, "%s", calls[i].name);
        memcpy(calls[i].place, &found, sizeof found);
    }
}
