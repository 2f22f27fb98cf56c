/*
 * tutti-train --nodes 192.168.1.12,192.168.1.11 --ctrl_port 9988 --device_num 2: starts all ranks of this node;
 * --device_num 2 alone: two ranks of this machine.
 */
#ifndef TUTTI_TRAINER_NODES_H
#define TUTTI_TRAINER_NODES_H

#include <stdbool.h>

/* Whether an option that starts ranks is among them: --nodes, --device_num and the others of tuttirun's. */
bool tutti_nodes_given(int argc, char **argv);
/* Whether a launcher has started this process as a rank. */
bool tutti_nodes_is_rank(void);
/* Becomes tuttirun, which starts the program as ranks, without those options. Returns only if that failed. */
int tutti_nodes_start(int argc, char **argv);
/* In a rank: removes those options. False, with the reason on standard error, where they contradict the launcher. */
bool tutti_nodes_leave_out(int *argc, char **argv);

#endif
