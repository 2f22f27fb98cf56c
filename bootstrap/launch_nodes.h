/*
 * Several tuttiruns that start one job together, one per node: they tell each other, through the store on node 0, when ranks
 * fail, when a node's ranks have all ended, and whether all start again.
 *
 * Each attempt has a log of events in the store, which all nodes read in the same order:
 *
 *     <run>/<attempt>/event/1   "failed <node> <exit code> <what has failed>"
 *     <run>/<attempt>/event/2   "again" or "done", by the node whose ranks were the last to end
 *
 * so that all come to the same verdict. A thread does the talking and says by a descriptor that there is news: the loop that
 * serves the ranks never waits for another node. Each node lets a counter grow as a sign of life, and node 0 speaks for a node
 * whose counter stands still.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_NODES_H
#define TUTTI_BOOTSTRAP_LAUNCH_NODES_H

#include <stdbool.h>

#include <tutti/tutti.h>

typedef struct tutti_launch_nodes tutti_launch_nodes;

typedef enum tutti_launch_verdict {
    TUTTI_LAUNCH_OPEN, /* ranks still run somewhere */
    TUTTI_LAUNCH_AGAIN,
    TUTTI_LAUNCH_DONE,
    TUTTI_LAUNCH_LOST /* node 0's store is gone: text says how */
} tutti_launch_verdict;

/* What is known of the current attempt. */
typedef struct tutti_launch_news {
    bool joined;     /* the store is reached, and `attempt` valid */
    int attempt;     /* that all nodes make now */
    int failed_node; /* whose rank was the first to fail; -1: none so far */
    int exit_code;   /* of that rank */
    tutti_launch_verdict verdict;
    char text[600]; /* what has failed */
} tutti_launch_news;

typedef struct tutti_launch_nodes_options {
    const char *host; /* node 0's store */
    int port;
    const char *run_id;
    int nnodes, node;
    int max_restarts;
    int64_t join_ms; /* how long the store may take to appear */
} tutti_launch_nodes_options;

/* Starts to reach the other nodes; returns at once. */
tutti_status tutti_launch_nodes_open(const tutti_launch_nodes_options *options, tutti_launch_nodes **nodes_out);
/* Readable when there may be news; reading the news makes it unreadable. */
int tutti_launch_nodes_fd(const tutti_launch_nodes *nodes);
void tutti_launch_nodes_look(tutti_launch_nodes *nodes, tutti_launch_news *news_out);
/* The next attempt begins here. */
void tutti_launch_nodes_begin(tutti_launch_nodes *nodes, int attempt);
/* A rank has failed here. `final`: whatever restarts are left, there is none, since tuttirun was asked to end. */
typedef enum tutti_launch_failure { TUTTI_LAUNCH_FAILED, TUTTI_LAUNCH_FAILED_FINALLY } tutti_launch_failure;
void tutti_launch_nodes_report(tutti_launch_nodes *nodes, tutti_launch_failure failure, int exit_code,
                               const char *text);
/* All ranks of this node have ended. */
void tutti_launch_nodes_ended(tutti_launch_nodes *nodes);
/* Tells what has not been told yet, and says goodbye. Where the store is ours, waits for the others' goodbyes, up to
 * `leave_ms`, and gives the number of nodes that have not said theirs. NULL is allowed. */
int tutti_launch_nodes_close(tutti_launch_nodes *nodes, int64_t leave_ms);

#endif
