/*
 * This process's rank, the number of ranks and their hosts: from the launcher's variables (tutti_world_get in
 * tutti.h) to a store in which the ranks of this job meet.
 */
#ifndef TUTTI_BOOTSTRAP_WORLD_H
#define TUTTI_BOOTSTRAP_WORLD_H

#include <stddef.h>

#include <tutti/tutti.h>

typedef struct tutti_rendezvous tutti_rendezvous;

/* Connects to the job's store at the address that meeting.h determines: as a client if the launcher hosts it
 * (TORCHELASTIC_USE_AGENT_STORE=True); otherwise rank 0 serves it. Must not be called for a world of 1. */
tutti_status tutti_rendezvous_open(const tutti_world *world, tutti_rendezvous **rendezvous_out);
/* Returns the store; valid until close. */
const tutti_store *tutti_rendezvous_store(const tutti_rendezvous *rendezvous);
/* "tutti/<run id>/<restart count>/<n>": equal on all ranks, different for each open of this process. */
const char *tutti_rendezvous_prefix(const tutti_rendezvous *rendezvous);
/* Reports that the rendezvous failed: missing ranks will not report at close that they no longer need the store. */
void tutti_rendezvous_hurry(tutti_rendezvous *rendezvous);
/* What the ranks of the world have found about their hosts: tutti_world_get's answer where the launcher has none. */
void tutti_world_complete(const tutti_world *world);
/* Closes the rendezvous; the caller no longer needs the store. NULL is allowed. */
void tutti_rendezvous_close(tutti_rendezvous *rendezvous);

#endif
