/*
 * Several tuttiruns that start one job together, one per node: they find each other in the store on node 0, start their ranks
 * when all have come, and tell each other when ranks fail, when a node's ranks have all ended, and whether all start again.
 *
 *     reach    the store on node 0; a refused connection or an unknown name is tried again
 *     gather   <run>/<attempt>/join/<node>     how that node was started; it must fit to what node 0 says
 *              <run>/<attempt>/gathered        "all", by the last to come; or why the nodes do not come together
 *     run      <run>/<attempt>/event/1         "failed <node> <exit code> <what has failed>"
 *              <run>/<attempt>/event/2         "again" or "done", by the node whose ranks were the last to end
 *     leave    <run>/<attempt>/left/<node>     node 0, which hosts the store, waits for all
 *
 * All nodes read the events in the same order, so all come to the same verdict. A thread does the talking and says by a
 * descriptor that there is news: the loop that serves the ranks never waits for another node. Each node lets a counter grow as
 * a sign of life, and node 0 speaks for a node whose counter stands still; the others hear from node 0 by its answers. For a
 * tuttirun that is killed its keeper speaks, at once. Each wait has a bound, and is spoken of after 2 s.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_NODES_H
#define TUTTI_BOOTSTRAP_LAUNCH_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_launch_nodes tutti_launch_nodes;

typedef enum tutti_launch_verdict {
    TUTTI_LAUNCH_OPEN, /* ranks still run somewhere */
    TUTTI_LAUNCH_AGAIN,
    TUTTI_LAUNCH_DONE,
    TUTTI_LAUNCH_LOST /* node 0's store is gone, or the nodes have not come together: text says how */
} tutti_launch_verdict;

/* What is known of the current attempt. */
typedef struct tutti_launch_news {
    bool joined;     /* all nodes have come, and `attempt` is valid */
    int attempt;     /* that all nodes make now */
    int failed_node; /* whose rank was the first to fail; -1: none so far */
    int exit_code;   /* of that rank */
    tutti_launch_verdict verdict;
    char text[600]; /* what has failed */
} tutti_launch_news;

typedef struct tutti_launch_nodes_options {
    const char *host; /* node 0's store */
    int port;
    const char *master; /* the same as the user wrote it */
    const char *run_id, *own_host;
    const char *secret;           /* the job's; NULL or "": none */
    const char *list;             /* of the nodes' addresses; NULL: not known */
    int nnodes, node, nproc, pid; /* pid: tuttirun's */
    int max_restarts;
    int64_t join_ms;   /* how long the store may take to appear, and how long the nodes to gather in it */
    int64_t silent_ms; /* a node that is not heard of for so long has ended */
} tutti_launch_nodes_options;

/* Starts to reach the other nodes; returns at once. */
tutti_status tutti_launch_nodes_open(const tutti_launch_nodes_options *options, tutti_launch_nodes **nodes_out);
/* Readable when there may be news; reading the news makes it unreadable. */
int tutti_launch_nodes_fd(const tutti_launch_nodes *nodes);
void tutti_launch_nodes_look(tutti_launch_nodes *nodes, tutti_launch_news *news_out);
/* All nodes gather once more, for the next attempt. */
void tutti_launch_nodes_begin(tutti_launch_nodes *nodes, int attempt);
/* A rank has failed here. `final`: whatever restarts are left, there is none, since tuttirun was asked to end. */
typedef enum tutti_launch_failure { TUTTI_LAUNCH_FAILED, TUTTI_LAUNCH_FAILED_FINALLY } tutti_launch_failure;
void tutti_launch_nodes_report(tutti_launch_nodes *nodes, tutti_launch_failure failure, int exit_code,
                               const char *text);
/* All ranks of this node have ended. */
void tutti_launch_nodes_ended(tutti_launch_nodes *nodes);
/* In the place of a tuttirun that was killed: tells the others so. For the keeper; takes no longer than silent_ms. */
void tutti_launch_nodes_testify(const tutti_launch_nodes_options *options);

/* Tells what has not been told yet, and says goodbye; node 0 waits for the others' goodbyes. PROMPTLY: all of it takes no more
 * than a second, whatever the others do. NULL is allowed. */
typedef enum tutti_launch_leave { TUTTI_LAUNCH_LEAVE, TUTTI_LAUNCH_LEAVE_PROMPTLY } tutti_launch_leave;
void tutti_launch_nodes_close(tutti_launch_nodes *nodes, tutti_launch_leave leave);

#endif
