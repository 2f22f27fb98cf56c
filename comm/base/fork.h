/*
 * Effects of a fork on this library. A forked child has none of its parent's threads and no control memory, so
 * every call except destroy fails there with TUTTI_ERR_FORKED.
 */
#ifndef TUTTI_FORK_H
#define TUTTI_FORK_H

#include "bootstrap/base/common.h"

/* Starts to detect forks (tutti_forked in comm.h). */
void tutti_fork_watch(void);

/* A forked child must close this connection: else the peer would not notice the end of this process. */
void tutti_fork_closes(int socket);
/* This process is about to close the connection. */
void tutti_fork_forget(int socket);

#endif
