/*
 * The steps that all ways to create a communicator share: world, split, group.
 */
#ifndef TUTTI_CREATE_H
#define TUTTI_CREATE_H

#include "comm/base/comm.h"

/* Makes a communicator with its own page and no data of other ranks yet. */
tutti_status tutti_create_begin(int rank, int nranks, const tutti_comm_options *options, const char *name,
                                tutti_comm **comm_out);
/* All members, host_ranks and host_cores are filled in: opens the communicator and meets the other ranks. */
tutti_status tutti_create_end(tutti_comm *comm);
/* Frees the struct and what belongs to it; for tutti_comm_release. */
void tutti_comm_free(tutti_comm *comm);
/* Removes a communicator whose creation failed; peers that see its page get the thread's error text. NULL is
 * allowed. */
void tutti_create_cancel(tutti_comm *comm);

#endif
