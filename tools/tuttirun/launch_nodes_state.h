/*
 * The nodes of one job as their thread sees them: between launch_nodes.c (thread and events), launch_nodes_meet.c (how they
 * come together) and launch_nodes_end.c (signs of life, and how they part).
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_NODES_STATE_H
#define TUTTI_BOOTSTRAP_LAUNCH_NODES_STATE_H

#include <pthread.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/notice.h"
#include "tools/tuttirun/launch_nodes.h"
#include "bootstrap/store/store.h"

enum { TUTTI_LAUNCH_LISTEN_MS = 200, TUTTI_LAUNCH_EVENT_BYTES = 700, TUTTI_LAUNCH_LINE_BYTES = 400 };

/* What the loop wants to have told. */
typedef struct tutti_launch_wishes {
    int attempt;
    bool report, ended, close;
    tutti_launch_leave leave;
    int64_t close_ns; /* since when it wants to close */
    tutti_launch_failure failure;
    int exit_code;
    char text[600];
} tutti_launch_wishes;

/* One node's sign of life, as node 0 sees it. */
typedef struct tutti_launch_beat {
    int64_t count, seen_ns;
    bool silent, left;
} tutti_launch_beat;

struct tutti_launch_nodes {
    tutti_launch_nodes_options options;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    tutti_launch_news news;    /* guarded by the lock; the thread writes it */
    tutti_launch_wishes wants; /* likewise; the loop writes it */
    /* The rest belongs to the thread. */
    tutti_store_client *client;
    tutti_store store;
    tutti_notice notice;  /* of the wait under way */
    char reason[160];     /* why the store is not reached so far */
    int attempt, nevents; /* of which attempt, and how many of its events are read */
    bool met;             /* all nodes have come for it */
    bool apart;           /* they have not, and all are told */
    bool is_twin;         /* another tuttirun has this node's number, and says goodbye for it */
    bool open;            /* it runs, without a verdict so far */
    bool ended;           /* its ranks here have ended, at ended_ns */
    tutti_deadline ending;
    int64_t beat_ns;
    tutti_launch_beat *beats; /* on node 0: by node */
};

typedef struct tutti_launch_key {
    char text[320];
} tutti_launch_key;

/* "tuttirun/<run>/<name>", and "tuttirun/<run>/<attempt>/<name>" */
tutti_launch_key tutti_launch_key_of(const tutti_launch_nodes *nodes, const char *name);
tutti_launch_key tutti_launch_attempt_key(const tutti_launch_nodes *nodes, const char *name);
/* The same with a node's number behind the name, and a '/' between. */
tutti_launch_key tutti_launch_node_key(const tutti_launch_nodes *nodes, const char *name, int node);
tutti_status tutti_launch_add(tutti_launch_nodes *nodes, tutti_launch_key at, int64_t amount, int64_t *value_out);
tutti_status tutti_launch_set(tutti_launch_nodes *nodes, tutti_launch_key at, const char *text);
/* Waits up to wait_ms for a text; TUTTI_NOT_YET: it has not come. What is no part of a line in it becomes a space. */
tutti_status tutti_launch_get(tutti_launch_nodes *nodes, tutti_launch_key at, char *text, size_t capacity,
                              int64_t wait_ms);

/* What the loop wants now. */
tutti_launch_wishes tutti_launch_wishes_of(tutti_launch_nodes *nodes);
void tutti_launch_notify_loop(tutti_launch_nodes *nodes);
/* "60 s" or "1.5 s" */
const char *tutti_launch_seconds(int64_t ms, char text[32]);
/* "node 1 (10.0.0.2)", or without an address. */
const char *tutti_launch_name_node(const tutti_launch_nodes *nodes, int node, char *text, size_t capacity);
/* "node 1 (10.0.0.2), node 3 and 5 more": those whose key "<name>/<node>" of this attempt is not there. Gives their
 * number. */
tutti_status tutti_launch_list_absent(tutti_launch_nodes *nodes, const char *name, char *text, size_t capacity,
                                      int *count_out);

/* ---- launch_nodes_meet.c */

tutti_status tutti_launch_nodes_reach(tutti_launch_nodes *nodes);
/* All nodes have come for the attempt; or TUTTI_ERR_ABORTED and `apart`, with the reason as the thread's error text. */
tutti_status tutti_launch_nodes_gather(tutti_launch_nodes *nodes);
/* Whether it is this tuttirun that has joined with this node's number. */
tutti_status tutti_launch_is_here(tutti_launch_nodes *nodes, bool *here_out);
/* Says "all" or why the nodes do not come together, unless another node was first; gives what tutti_launch_nodes_gather gives
 * after what was said first. */
tutti_status tutti_launch_give_verdict(tutti_launch_nodes *nodes, const char *text);

/* ---- launch_nodes_end.c */

/* Gives a sign of life where it is time. Node 0 looks at the others': a node that has just been found silent goes to
 * *silent_out, with a text; -1: none. */
tutti_status tutti_launch_show_life(tutti_launch_nodes *nodes, int *silent_out, char *text, size_t capacity);
/* This node's ranks have ended: says for whose it waits; true when that has taken too long. */
tutti_status tutti_launch_mind_ending(tutti_launch_nodes *nodes, bool failed, bool *enough_out);
void tutti_launch_say_goodbye(tutti_launch_nodes *nodes);

#endif
