/*
 * Slurm's short forms: lists of hosts, "node[01-03,7],x", and of tasks per node, "4(x2),3".
 */
#ifndef TUTTI_BOOTSTRAP_SLURM_H
#define TUTTI_BOOTSTRAP_SLURM_H

#include <stdbool.h>
#include <stddef.h>

/* Hosts in the list; -1: it cannot be read. */
int tutti_hostlist_count(const char *list);
/* Host number `index`, in the list's order. False when there is none, or it does not fit. */
bool tutti_hostlist_get(const char *list, int index, char *host_out, size_t capacity);

/* Tasks of node number `node`; false when the text does not say. */
bool tutti_slurm_tasks_of(const char *text, int node, int *tasks_out);

#endif
