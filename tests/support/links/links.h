/*
 * Worlds for tests of links: a communicator's ranks with links to all ranks, from ready connections (mesh.h) or made
 * through their listeners, and a rail of all ranks with an operation.
 */
#ifndef TUTTI_TESTS_LINKS_H
#define TUTTI_TESTS_LINKS_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/base/comm.h"
#include "comm/net/hosts.h"
#include "comm/net/link.h"
#include "tests/support/links/mesh.h"
#include "tests/support/ranks.h"

#define LINKS_MOST_RANKS 4

typedef struct links_setting {
    mesh *sockets;
    bool process;
    bool by_doors; /* no sockets are given */
} links_setting;

typedef struct links_stage {
    tutti_op op;
    tutti_rail rail;
    int ranks[LINKS_MOST_RANKS];
} links_stage;

/* The body on nranks ranks. NULL, or the first failure as text. */
const char *links_run(int nranks, ranks_kind kind, links_setting *given, ranks_body body);
/* The same in worlds of 2 to LINKS_MOST_RANKS, as processes and then as threads. */
const char *links_run_worlds(links_setting *given, ranks_body body);

/* Must be called first in a body: makes its links and its rail. */
tutti_status links_set_up(ranks_context *context, links_stage *s);
void links_next_op(links_stage *s);

/* The data that rank `rank` sends, and the check for it. */
void links_fill(char *data, int rank, size_t bytes);
tutti_status links_compare(const char *data, int rank, size_t bytes);

/* As if every rank were on its own host: all connect through their listeners. */
typedef struct links_doors {
    tutti_listener_info cards[LINKS_MOST_RANKS];
    tutti_hosts hosts;
} links_doors;

tutti_status links_open_doors(ranks_context *context, links_doors *d);
/* Exchanges messages between ranks at that distance, and checks the received data. Apart from that, the communicator
 * is one of this host. */
tutti_status links_exchange_by_doors(links_stage *s, links_doors *d, int to, char *mine, int from, char *theirs,
                                     size_t bytes);

#endif
