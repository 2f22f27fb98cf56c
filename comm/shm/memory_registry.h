/*
 * Ranges of memory that the user has registered (tutti_mem_register), and who is to know when memory whose pages stay
 * (these ranges, blocks of the heap) comes to its end.
 */
#ifndef TUTTI_MEMORY_REGISTRY_H
#define TUTTI_MEMORY_REGISTRY_H

#include "bootstrap/base/common.h"

/* Is [memory, memory + bytes) inside a registered range? Cheap when nothing is registered. */
bool tutti_memory_registry_holds(const void *memory, size_t bytes);
/* The registered range that `memory` is in; false: there is none. */
bool tutti_memory_registry_find(const void *memory, void **start_out, size_t *bytes_out);

/* `watcher` is told the beginning of a range or block whose pages may change from now on. One for the process; it is called
 * with locks held, and must not ask for memory here. */
void tutti_memory_registry_watch(void (*watcher)(void *start));
void tutti_memory_registry_changed(void *start);

#endif
