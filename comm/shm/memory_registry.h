/*
 * Ranges of memory that the user has registered (tutti_mem_register), and the watcher that is called when memory
 * with stable pages (these ranges, blocks of the heap) ends.
 */
#ifndef TUTTI_MEMORY_REGISTRY_H
#define TUTTI_MEMORY_REGISTRY_H

#include "bootstrap/base/common.h"

/* The registered range that contains `memory`; false: there is none. */
bool tutti_memory_registry_find(const void *memory, void **start_out, size_t *bytes_out);

/* `watcher` is called with the start of a range or block whose pages may change from now on. There is one watcher
 * per process. It is called with locks held, so it must not call functions of this file or of heap.h. */
void tutti_memory_registry_watch(void (*watcher)(void *start));
void tutti_memory_registry_changed(void *start);

#endif
