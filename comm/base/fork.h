/*
 * What a fork does to this library. A forked child has none of its parent's threads and not its control memory: every call
 * but destroy answers "forked" there.
 */
#ifndef TUTTI_FORK_H
#define TUTTI_FORK_H

#include "bootstrap/base/common.h"

/* From now on forks are noticed (tutti_forked in comm.h). */
void tutti_fork_watch(void);

/* A forked child closes this connection: as long as it had it, the other side would not see that this process has ended. */
void tutti_fork_closes(int socket);
/* The connection is about to be closed here. */
void tutti_fork_forget(int socket);

#endif
