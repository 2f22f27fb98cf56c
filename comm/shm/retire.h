/*
 * What a destroyed communicator leaves behind until its peers no longer look at it.
 */
#ifndef TUTTI_RETIRE_H
#define TUTTI_RETIRE_H

#include "comm/base/comm.h"

/* Takes over the page, the lease and the references to processes of a communicator that has departed. Frees them
 * when every other rank has departed, too, or has died; looks at each burial. */
void tutti_retire_comm(tutti_comm *comm);

/* Something that peers of this communicator may look at: given back together with the page. Two of them at most. */
void tutti_retire_memory(tutti_comm *comm, void *memory, void (*give_back)(void *memory));

#endif
