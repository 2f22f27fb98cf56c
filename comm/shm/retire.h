/*
 * Keeps the memory of a destroyed communicator until its peers no longer read it.
 */
#ifndef TUTTI_RETIRE_H
#define TUTTI_RETIRE_H

#include "comm/base/comm.h"

/* Takes over the page, the lease and the references to processes of a communicator that has departed. Frees them
 * once every other rank has departed or died; each call checks all retired communicators. */
void tutti_retire_comm(tutti_comm *comm);

/* Memory that peers of this communicator may read: released together with the page. At most two per communicator. */
void tutti_retire_memory(tutti_comm *comm, void *memory, void (*give_back)(void *memory));

#endif
