/*
 * tutti-train --nodes 192.168.1.12,192.168.1.11 --ctrl_port 9988 --device_num 2: starts all ranks of this node.
 */
#ifndef TUTTI_TRAINER_NODES_H
#define TUTTI_TRAINER_NODES_H

#include <stdbool.h>

/* Whether --nodes is among the options. */
bool tutti_nodes_given(int argc, char **argv);
/* Becomes tuttirun, which starts the program as ranks, without those options. Returns only if that failed. */
int tutti_nodes_start(int argc, char **argv);

#endif
