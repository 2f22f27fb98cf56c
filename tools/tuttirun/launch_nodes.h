/*
 * Several tuttiruns that start one job together, one per node: they meet in the store on node 0, start their ranks
 * when all have joined, and report to each other failed ranks, the end of all ranks of a node, and restarts.
 *
 *     reach    the store on node 0; a refused connection or an unknown name is retried
 *     gather   <run>/<attempt>/join/<node>     how that node was started; must match node 0
 *              <run>/<attempt>/gathered        "all", by the last node to join; or why the nodes cannot start together
 *     run      <run>/<attempt>/event/1         "failed <node> <exit code> <what has failed>"
 *              <run>/<attempt>/event/2         "again" or "done", by the node whose ranks were the last to end
 *     leave    <run>/<attempt>/left/<node>     node 0, which hosts the store, waits for all
 *
 * All nodes read the events in the same order, so all reach the same verdict. A thread handles this communication
 * and signals news through a descriptor, so the loop that serves the ranks never waits for another node. Each node
 * increments a counter as its heartbeat, and node 0 reports the failure of a node whose counter stands still; the
 * other nodes detect the failure of node 0 by its missing answers. If a tuttirun is killed, its keeper reports
 * that at once. Each wait has a bound, and is logged after 2 s.
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_NODES_H
#define TUTTI_BOOTSTRAP_LAUNCH_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_launch_nodes tutti_launch_nodes;

typedef enum tutti_launch_verdict {
    TUTTI_LAUNCH_OPEN, /* ranks are still running on some node */
    TUTTI_LAUNCH_AGAIN,
    TUTTI_LAUNCH_DONE,
    TUTTI_LAUNCH_LOST /* node 0's store is lost, or the nodes did not start together; text holds the reason */
} tutti_launch_verdict;

/* State of the current attempt. */
typedef struct tutti_launch_news {
    bool joined;     /* all nodes have joined, and `attempt` is valid */
    int attempt;     /* the attempt that all nodes run now */
    int failed_node; /* node whose rank was the first to fail; -1: none so far */
    int exit_code;   /* exit code of that rank */
    tutti_launch_verdict verdict;
    char text[600]; /* description of the failure */
} tutti_launch_news;

typedef struct tutti_launch_nodes_options {
    const char *host; /* node 0's store */
    int port;
    const char *master; /* the same host as the user wrote it */
    const char *run_id, *own_host;
    const char *secret;    /* secret of the job; NULL or "": none */
    const char *list;      /* list of the nodes' addresses; NULL: unknown */
    int nnodes, node, pid; /* pid: of tuttirun */
    int nproc, table_hash; /* equal on all nodes; nproc 0: a rank table, of this hash, says which ranks there are */
    int max_restarts;
    /* longest wait for the store to appear, and longest wait for the nodes to gather in it */
    int64_t join_ms;
    int64_t silent_ms; /* a node without a heartbeat for this long is considered dead */
} tutti_launch_nodes_options;

/* Starts to connect to the other nodes; returns at once. */
tutti_status tutti_launch_nodes_open(const tutti_launch_nodes_options *options, tutti_launch_nodes **nodes_out);
/* A descriptor that is readable when there may be news; tutti_launch_nodes_look() makes it unreadable. */
int tutti_launch_nodes_fd(const tutti_launch_nodes *nodes);
void tutti_launch_nodes_look(tutti_launch_nodes *nodes, tutti_launch_news *news_out);
/* Gathers all nodes again for the next attempt. */
void tutti_launch_nodes_begin(tutti_launch_nodes *nodes, int attempt);
/* Reports that a rank of this node has failed. FAILED_FINALLY: no restart follows, even if restarts are left, since
 * tuttirun was asked to end. */
typedef enum tutti_launch_failure { TUTTI_LAUNCH_FAILED, TUTTI_LAUNCH_FAILED_FINALLY } tutti_launch_failure;
void tutti_launch_nodes_report(tutti_launch_nodes *nodes, tutti_launch_failure failure, int exit_code,
                               const char *text);
/* Reports that all ranks of this node have ended. */
void tutti_launch_nodes_ended(tutti_launch_nodes *nodes);
/* Reports to the other nodes that this tuttirun was killed. Called by the keeper; takes at most silent_ms. */
void tutti_launch_nodes_testify(const tutti_launch_nodes_options *options);

/* Sends all reports that are still pending, and a goodbye; node 0 waits for the goodbyes of the others. PROMPTLY:
 * takes at most one second in all, whatever the others do. NULL is allowed. */
typedef enum tutti_launch_leave { TUTTI_LAUNCH_LEAVE, TUTTI_LAUNCH_LEAVE_PROMPTLY } tutti_launch_leave;
void tutti_launch_nodes_close(tutti_launch_nodes *nodes, tutti_launch_leave leave);

#endif
