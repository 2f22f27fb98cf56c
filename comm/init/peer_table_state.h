/*
 * A peer table that is being gathered, shared by peer_table.c (the exchange through the store and the way down)
 * and peer_table_gather.c (the way up the tree).
 */
#ifndef TUTTI_PEER_TABLE_STATE_H
#define TUTTI_PEER_TABLE_STATE_H

#include "bootstrap/base/notice.h"
#include "comm/init/kv_tree.h"
#include "comm/init/peer_table.h"

#define TUTTI_PEER_TABLE_MAGIC      UINT64_C(0x32306c6c6f727474) /* "ttroll02" */
#define TUTTI_PEER_TABLE_TEXT_BYTES 1024

/* "claim/<rank>", if values are authenticated: it replaces the counter, which any process can change. */
typedef struct tutti_peer_table_claim {
    int32_t nranks, unused;
} tutti_peer_table_claim;

typedef struct tutti_gathering {
    tutti_kv_tree tree;
    const tutti_peer_info *own;
    int span; /* number of ranks in this rank's subtree */
    int count, nhosts;
    tutti_peer_table_host *hosts; /* room for `span` hosts */
    tutti_peer_table_rank *ranks; /* room for `span` ranks */
    tutti_peer_table *incoming;   /* room for a child's largest peer table, or an error text */
    size_t incoming_capacity;
    int64_t begin_ns;    /* time charged to the deadline when the exchange began */
    tutti_notice notice; /* when to log the next notice about the ranks that this one waits for */
} tutti_gathering;

/* Whether it is time for this rank to log which ranks it waits for. */
static inline bool tutti_peer_table_is_late(tutti_gathering *g) {
    return tutti_notice_due(&g->notice, g->tree.deadline->spent_ns - g->begin_ns);
}

/* Gathers the peer table of the subtree from the store. */
tutti_status tutti_peer_table_gather(tutti_gathering *g);
tutti_status tutti_peer_table_pack(const tutti_gathering *g, tutti_peer_table **roll_out);
/* Passes the subtree's peer table, or the error that prevented it, to the parent; returns that error again. */
tutti_status tutti_peer_table_pass_on(tutti_gathering *g, tutti_status gathered);

/* Writes `head` (head_bytes) followed by this thread's error text; returns the error again. */
tutti_status tutti_peer_table_set_reason(const tutti_kv_tree *tree, const char *key, const void *head,
                                         size_t head_bytes, tutti_status status);
/* A status received from another rank; TUTTI_ERR_CONFIG if it is not a valid error. */
tutti_status tutti_peer_table_status(int32_t status);
/* Whether a table that was read is consistent. */
bool tutti_peer_table_is_sound(const tutti_peer_table *table, size_t bytes);
/* Terminates all texts, so that values from outside can be printed. */
void tutti_peer_table_bound_texts(tutti_peer_table *table);

#endif
