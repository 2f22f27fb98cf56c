/*
 * A peer table that is being gathered: between peer_table.c (what goes through the store, and down) and peer_table_gather.c (the way up).
 */
#ifndef TUTTI_PEER_TABLE_STATE_H
#define TUTTI_PEER_TABLE_STATE_H

#include "bootstrap/base/notice.h"
#include "comm/init/kv_tree.h"
#include "comm/init/peer_table.h"

#define TUTTI_PEER_TABLE_MAGIC      UINT64_C(0x32306c6c6f727474) /* "ttroll02" */
#define TUTTI_PEER_TABLE_TEXT_BYTES 1024

/* "claim/<rank>", where values are proved: the counter's place, which anybody can change, is taken by this. */
typedef struct tutti_peer_table_claim {
    int32_t nranks, unused;
} tutti_peer_table_claim;

typedef struct tutti_gathering {
    tutti_kv_tree tree;
    const tutti_peer_info *own;
    int span; /* ranks of the subtree */
    int count, nhosts;
    tutti_peer_table_host *hosts; /* room for span */
    tutti_peer_table_rank *ranks; /* likewise */
    tutti_peer_table *incoming;   /* room for the largest peer table of a child, or a text */
    size_t incoming_capacity;
    int64_t begin_ns;    /* what the deadline had charged when the peer table began */
    tutti_notice notice; /* of the ranks that this one waits for */
} tutti_gathering;

/* Whether this rank is to say now for which ranks it waits. */
static inline bool tutti_peer_table_is_late(tutti_gathering *g) {
    return tutti_notice_due(&g->notice, g->tree.deadline->spent_ns - g->begin_ns);
}

/* Gathers the subtree's peer table from the store. */
tutti_status tutti_peer_table_gather(tutti_gathering *g);
tutti_status tutti_peer_table_pack(const tutti_gathering *g, tutti_peer_table **roll_out);
/* Hands the subtree's peer table, or why there is none, to the parent; gives the status again. */
tutti_status tutti_peer_table_pass_on(tutti_gathering *g, tutti_status gathered);

/* Writes `head` (of head_bytes) and this thread's error text behind it; gives the error again. */
tutti_status tutti_peer_table_set_reason(const tutti_kv_tree *tree, const char *key, const void *head,
                                         size_t head_bytes, tutti_status status);
/* A status as another rank gave it. */
tutti_status tutti_peer_table_status(int32_t status);
/* Does what was read hang together? */
bool tutti_peer_table_is_sound(const tutti_peer_table *table, size_t bytes);
/* Ends all texts, so that what came from outside can be printed. */
void tutti_peer_table_bound_texts(tutti_peer_table *table);

#endif
