/*
 * Namespaces of this process: processes of two containers on one machine have different ones.
 */
#ifndef TUTTI_NAMESPACE_H
#define TUTTI_NAMESPACE_H

#include <stdint.h>

/* Equal numbers: the same namespace. 0: unknown. */
uint64_t tutti_namespace_pid(void);
uint64_t tutti_namespace_net(void);

#endif
