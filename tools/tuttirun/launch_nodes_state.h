/*
 * The nodes of one job as seen by their thread, shared by launch_nodes_end.c (heartbeats, and leaving) and
 * launch_nodes.c (gathering, thread and events).
 */
#ifndef TUTTI_BOOTSTRAP_LAUNCH_NODES_STATE_H
#define TUTTI_BOOTSTRAP_LAUNCH_NODES_STATE_H

#include <pthread.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/store/store.h"
#include "tools/tuttirun/launch_nodes.h"

enum { TUTTI_LAUNCH_LISTEN_MS = 200, TUTTI_LAUNCH_EVENT_BYTES = 700, TUTTI_LAUNCH_LINE_BYTES = 400 };

/* Requests of the loop to the thread. */
typedef struct tutti_launch_wishes {
    int attempt;
    bool report, ended, close;
    tutti_launch_leave leave;
    int64_t close_ns; /* when `close` was requested */
    tutti_launch_failure failure;
    int exit_code;
    char text[600];
} tutti_launch_wishes;

/* The heartbeat of one node, as node 0 sees it. */
typedef struct tutti_launch_heartbeat {
    int64_t count, seen_ns;
    bool silent, left;
} tutti_launch_heartbeat;

struct tutti_launch_nodes {
    tutti_launch_nodes_options options;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    tutti_launch_news news;    /* guarded by the lock; written by the thread */
    tutti_launch_wishes wants; /* guarded by the lock; written by the loop */
    /* The remaining fields belong to the thread. */
    tutti_store_client *client;
    tutti_store store;
    tutti_notice notice;  /* when to log the next notice about the current wait */
    char reason[160];     /* why the store has not been reached so far */
    int attempt, nevents; /* current attempt, and number of its events that have been read */
    bool met;             /* all nodes have joined the attempt */
    bool apart;           /* the nodes did not come together, and all know it */
    bool is_twin;         /* another tuttirun has this node's number, and sends the goodbye for it */
    bool open;            /* the attempt is running, without a verdict so far */
    bool ended;           /* all ranks of this node have ended, `ending.spent_ns` ago */
    tutti_deadline ending;
    int64_t heartbeat_ns;
    tutti_launch_heartbeat *heartbeats; /* only on node 0, by node */
};

typedef struct tutti_launch_key {
    char text[320];
} tutti_launch_key;

/* "tuttirun/<run>/<name>", and "tuttirun/<run>/<attempt>/<name>" */
tutti_launch_key tutti_launch_key_of(const tutti_launch_nodes *nodes, const char *name);
tutti_launch_key tutti_launch_attempt_key(const tutti_launch_nodes *nodes, const char *name);
/* The same with '/' and a node's number after the name. */
tutti_launch_key tutti_launch_node_key(const tutti_launch_nodes *nodes, const char *name, int node);
tutti_status tutti_launch_add(tutti_launch_nodes *nodes, tutti_launch_key at, int64_t amount, int64_t *value_out);
tutti_status tutti_launch_set(tutti_launch_nodes *nodes, tutti_launch_key at, const char *text);
/* Waits up to wait_ms for a text; TUTTI_NOT_YET: it is not there yet. Control characters in it are replaced by
 * spaces. */
tutti_status tutti_launch_get(tutti_launch_nodes *nodes, tutti_launch_key at, char *text, size_t capacity,
                              int64_t wait_ms);

/* Returns the current requests of the loop. */
tutti_launch_wishes tutti_launch_wishes_of(tutti_launch_nodes *nodes);
/* "60 s" or "1.5 s" */
const char *tutti_launch_seconds(int64_t ms, char text[32]);
/* Writes "node 1 (10.0.0.2)", or "node 1" if the address is unknown, and returns it. */
const char *tutti_launch_name_node(const tutti_launch_nodes *nodes, int node, char *text, size_t capacity);
/* Writes "node 1 (10.0.0.2), node 3 and 5 more": the nodes whose key "<name>/<node>" of this attempt does not
 * exist. count_out: their number. */
tutti_status tutti_launch_list_absent(tutti_launch_nodes *nodes, const char *name, char *text, size_t capacity,
                                      int *count_out);

/* ---- launch_nodes_end.c */

/* Sends a heartbeat when one is due. Node 0 also checks those of the others: a node that has just been found silent
 * is stored to *silent_out (-1: none), with a text. */
tutti_status tutti_launch_show_life(tutti_launch_nodes *nodes, int *silent_out, char *text, size_t capacity);
/* All ranks of this node have ended: logs which nodes it waits for; *enough_out becomes true when the wait has
 * taken too long. */
tutti_status tutti_launch_mind_ending(tutti_launch_nodes *nodes, bool failed, bool *enough_out);
void tutti_launch_say_goodbye(tutti_launch_nodes *nodes);

#endif
