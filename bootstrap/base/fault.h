/*
 * Fault points: named places where a test makes the library fail, by TUTTI_FAULT=name[:after[:times]],...
 * ("after": how many passes go well first, default 0; "times": how many fail then, default 1). Without the
 * variable a fault point costs one load.
 */
#ifndef TUTTI_BASE_FAULT_H
#define TUTTI_BASE_FAULT_H

#include <stdbool.h>

/* True when the fault point `name` is to fail now. */
bool tutti_fault(const char *name);

#endif
