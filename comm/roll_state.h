/*
 * A roll that is being gathered: between roll.c (what goes through the store, and down) and roll_gather.c (the way up).
 */
#ifndef TUTTI_ROLL_STATE_H
#define TUTTI_ROLL_STATE_H

#include "bootstrap/base/notice.h"
#include "comm/board.h"
#include "comm/roll.h"

#define TUTTI_ROLL_MAGIC      UINT64_C(0x32306c6c6f727474) /* "ttroll02" */
#define TUTTI_ROLL_TEXT_BYTES 1024

/* "claim/<rank>", where values are proved: the counter's place, which anybody can change, is taken by this. */
typedef struct tutti_roll_claim {
    int32_t nranks, unused;
} tutti_roll_claim;

typedef struct tutti_gathering {
    tutti_board board;
    const tutti_card *own;
    int span; /* ranks of the subtree */
    int count, nhosts;
    tutti_roll_host *hosts; /* room for span */
    tutti_roll_rank *ranks; /* likewise */
    tutti_roll *incoming;   /* room for the largest roll of a child, or a text */
    size_t incoming_capacity;
    int64_t begin_ns;    /* what the deadline had charged when the roll began */
    tutti_notice notice; /* of the ranks that this one waits for */
} tutti_gathering;

/* Whether this rank is to say now for which ranks it waits. */
static inline bool tutti_roll_is_late(tutti_gathering *g) {
    return tutti_notice_due(&g->notice, g->board.deadline->spent_ns - g->begin_ns);
}

/* Gathers the subtree's roll from the store. */
tutti_status tutti_roll_gather(tutti_gathering *g);
tutti_status tutti_roll_pack(const tutti_gathering *g, tutti_roll **roll_out);
/* Hands the subtree's roll, or why there is none, to the parent; gives the status again. */
tutti_status tutti_roll_hand_on(tutti_gathering *g, tutti_status gathered);

/* Writes `head` (of head_bytes) and this thread's error text behind it; gives the error again. */
tutti_status tutti_roll_set_reason(const tutti_board *board, const char *key, const void *head, size_t head_bytes,
                                   tutti_status status);
/* A status as another rank gave it. */
tutti_status tutti_roll_told_status(int32_t status);
/* Does what was read hang together? */
bool tutti_roll_is_sound(const tutti_roll *roll, size_t bytes);
/* Ends all texts, so that what came from outside can be printed. */
void tutti_roll_bound_texts(tutti_roll *roll);

#endif
