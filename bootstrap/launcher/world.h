/*
 * Who am I, how many are we, where is everyone: from the launcher's variables (tutti_world_get in tutti.h) to a
 * store in which the ranks of this job meet.
 */
#ifndef TUTTI_BOOTSTRAP_WORLD_H
#define TUTTI_BOOTSTRAP_WORLD_H

#include <stddef.h>

#include <tutti/tutti.h>

typedef struct tutti_rendezvous tutti_rendezvous;

/* Reaches the job's store, where meeting.h says: as a client where the launcher hosts it
 * (TORCHELASTIC_USE_AGENT_STORE=True), else rank 0 serves it. Not called for a world of 1. */
tutti_status tutti_rendezvous_open(const tutti_world *world, tutti_rendezvous **rendezvous_out);
/* The store; valid until close. */
const tutti_store *tutti_rendezvous_store(const tutti_rendezvous *rendezvous);
/* "tutti/<run id>/<restart count>/<n>": equal on all ranks, fresh for each open of this process. */
const char *tutti_rendezvous_prefix(const tutti_rendezvous *rendezvous);
/* The ranks have not met: those that are missing will not say at close that they need the store no longer. */
void tutti_rendezvous_hurry(tutti_rendezvous *rendezvous);
/* No rank needs the store any longer. NULL is allowed. */
void tutti_rendezvous_close(tutti_rendezvous *rendezvous);

#endif
