/*
 * Runs a body on ranks of several hosts: ranks_run, with each rank's process in its host's network namespace.
 *
 * The launcher's variables are set as torchrun sets them, ranks in blocks: rank 0 is host 0's first. Rank 0 serves
 * the store at its address on the network, and the communicator is tutti_comm_create_world's. The rules of ranks.h
 * apply; the reference (reference.h) knows the hosts, too.
 */
#ifndef TUTTI_TESTS_HOSTS_H
#define TUTTI_TESTS_HOSTS_H

#include "tests/support/hosts/netns.h"
#include "tests/support/ranks.h"

typedef struct hosts_options {
    const int *ranks_per_host;      /* ended by 0 */
    netns_options network;          /* nhosts is filled in */
    int timeout_s;                  /* 0: 60 */
    void *argument;                 /* handed to each body */
    bool no_comm;                   /* makes no communicator; context.comm is NULL */
    const char *const *environment; /* "NAME=value", ended by NULL; set in ranks; may be NULL */
} hosts_options;

/* Skips the Criterion test, with the reason, if this system does not permit such a network. */
#define HOSTS_NEED(...)                                                                                                \
    do {                                                                                                               \
        const char *hosts_refused_ = hosts_refused(&(netns_options){.nhosts = 2, __VA_ARGS__});                        \
        if (hosts_refused_ != NULL) cr_skip_test("%s", hosts_refused_);                                                \
    } while (0)
const char *hosts_refused(const netns_options *network);

/* NULL when all ranks returned TUTTI_OK, else the first failure as text ("1+3: rank 2: ..."). */
const char *hosts_run(const hosts_options *options, ranks_body body);

/* Within a body: the network, for netns_set_link and similar calls; and the layout. */
const netns *hosts_network(void);
int hosts_count(void);
int hosts_of(int rank);    /* the host of a rank */
int hosts_first(int host); /* a host's first rank; for hosts_count(): the number of ranks */

#endif
