/*
 * Creates a communicator of ranks that meet in a store.
 */
#ifndef TUTTI_INIT_H
#define TUTTI_INIT_H

#include "comm/base/comm.h"

/* Fills comm from what the ranks publish in the store: which ranks exist and on which host; their memory, or the
 * addresses at which they can be reached. Then `end` opens the communicator and meets the other ranks. */
tutti_status tutti_init_from_store(tutti_comm *comm, const tutti_store *store, const char *prefix,
                                   tutti_status (*end)(tutti_comm *comm));

#endif
