/*
 * Picks the instruction set whose loops run.
 */
#include "kernels/host/vector/op_vector.h"

#include <stdatomic.h>
#include <string.h>

#if defined(TUTTI_REDUCE_X86)
#include "kernels/host/processor.h"
#endif

static _Atomic(const tutti_vector *) in_use;

bool tutti_vector_use(const char *name) {
    const tutti_vector *chosen = NULL;
#if defined(TUTTI_REDUCE_X86)
    if (processor_has_avx512() && (name == NULL || strcmp(name, "avx512") == 0)) chosen = &tutti_vector_avx512;
    else if (processor_has_avx2() && (name == NULL || strcmp(name, "avx2") == 0)) chosen = &tutti_vector_avx2;
#endif
    if (chosen == NULL && (name == NULL || strcmp(name, "plain") == 0)) chosen = &tutti_vector_plain;
    if (chosen == NULL) return false;
    atomic_store_explicit(&in_use, chosen, memory_order_relaxed);
    return true;
}

/* Threads that get here first at the same time store the same pointer to constant data: no order is needed. */
const tutti_vector *tutti_vector_in_use(void) {
    const tutti_vector *vector = atomic_load_explicit(&in_use, memory_order_relaxed);
    if (vector != NULL) return vector;
    tutti_vector_use(NULL);
    return atomic_load_explicit(&in_use, memory_order_relaxed);
}
