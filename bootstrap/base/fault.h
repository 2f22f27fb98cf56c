/*
 * Fault points: named places where a test makes the library fail, set by TUTTI_FAULT=name[:after[:times]],...
 * ("after": number of passes that succeed first, default 0; "times": number of passes that fail after that, default
 * 1). Without the variable a fault point costs one load.
 */
#ifndef TUTTI_BASE_FAULT_H
#define TUTTI_BASE_FAULT_H

#include <stdbool.h>

/* Returns true when the fault point `name` must fail now. */
bool tutti_fault(const char *name);

#endif
