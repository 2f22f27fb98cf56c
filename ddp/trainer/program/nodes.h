/*
 * tutti-train --nodes 192.168.1.12,192.168.1.11 --ctrl_port 9988 --device_num 2: starts all ranks of this node;
 * --device_num 2 alone: two ranks of this machine.
 */
#ifndef TUTTI_TRAINER_NODES_H
#define TUTTI_TRAINER_NODES_H

#include <stdbool.h>

/* Returns whether an option that starts ranks is given: --nodes, --device_num and the other options of tuttirun. */
bool tutti_nodes_given(int argc, char **argv);
/* Returns whether a launcher has started this process as a rank. */
bool tutti_nodes_is_rank(void);
/* Replaces the process by tuttirun, which starts the program as ranks, without those options. Returns only on
 * failure. */
int tutti_nodes_start(int argc, char **argv);
/* In a rank: removes those options. If they contradict the launcher, prints the reason on standard error and
 * returns false. */
bool tutti_nodes_leave_out(int *argc, char **argv);

#endif
