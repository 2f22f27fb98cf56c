/*
 * Ranges of memory that the user has registered (tutti_mem_register), and who is to know when memory whose pages stay
 * (these ranges, blocks of the heap) comes to its end.
 */
#ifndef TUTTI_REGISTER_H
#define TUTTI_REGISTER_H

#include "bootstrap/base/common.h"

/* Is [memory, memory + bytes) inside a registered range? Cheap when nothing is registered. */
bool tutti_register_holds(const void *memory, size_t bytes);
/* The registered range that `memory` is in; false: there is none. */
bool tutti_register_find(const void *memory, void **start_out, size_t *bytes_out);

/* `watcher` is told the beginning of a range or block whose pages may change from now on. One for the process; it is called
 * with locks held, and must not ask for memory here. */
void tutti_register_watch(void (*watcher)(void *start));
void tutti_register_changed(void *start);

#endif
