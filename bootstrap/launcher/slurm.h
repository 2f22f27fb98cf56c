/*
 * Slurm's compressed lists: hosts, "node[01-03,7],x", and tasks per node, "4(x2),3".
 */
#ifndef TUTTI_BOOTSTRAP_SLURM_H
#define TUTTI_BOOTSTRAP_SLURM_H

#include <stdbool.h>
#include <stddef.h>

/* Number of hosts in the list; -1: the list is malformed. */
int tutti_hostlist_count(const char *list);
/* Writes host number `index`, in the list's order. Returns false when it does not exist or does not fit. */
bool tutti_hostlist_get(const char *list, int index, char *host_out, size_t capacity);

/* Reads the number of tasks of node number `node`; returns false when the text does not contain it. */
bool tutti_slurm_tasks_of(const char *text, int node, int *tasks_out);

#endif
