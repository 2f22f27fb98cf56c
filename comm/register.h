/*
 * Ranges of memory that the user has registered (tutti_mem_register).
 */
#ifndef TUTTI_REGISTER_H
#define TUTTI_REGISTER_H

#include "bootstrap/base/common.h"

/* Is [memory, memory + bytes) inside a registered range? Cheap when nothing is registered. */
bool tutti_register_holds(const void *memory, size_t bytes);

#endif
