/*
 * Parts of a communicator, for an engine that is made of others: ranks on one GPU among themselves, one rank of each GPU. A
 * part is a communicator of its own, split from the whole, on which one engine carries out what it is given.
 *
 *   whole     the user's: tracks, deadlines, deaths, works; its watcher looks after the parts as well
 *   part      pages, GPU and engine; nothing is under way in it that is not under way in the whole
 *
 * Invariant: who has a part breaks it when the whole breaks (tutti_stream_part_break), and tells the whole what goes wrong in
 * the part: by the status of a call, or by its health.
 */
#ifndef TUTTI_STREAM_PART_H
#define TUTTI_STREAM_PART_H

#include "comm/stream.h"

/* How opening went on this rank is told to all, the thread's error text as well: where it failed on any, all get
 * TUTTI_ERR_UNSUPPORTED, and its reason. For engines that yield; only inside open. */
tutti_status tutti_stream_agree(tutti_comm *comm, tutti_status status);

/* What a part is to be; a rank is in one of each kind, or in none. */
typedef struct tutti_stream_part {
    const char *name; /* for errors: follows that of the whole */
    int color;        /* TUTTI_COLOR_NONE: this rank is in none */
    const int *ranks; /* of the whole, ascending: those of this color; must stay until the part is destroyed */
    const tutti_stream_engine *engine;
} tutti_stream_part;

/* Collective over the whole, and only inside its engine's open. NULL where this rank is in none. */
tutti_status tutti_stream_part_open(tutti_comm *whole, const tutti_stream_part *wanted, tutti_comm **part_out);
/* Enqueues op, of the part's ranks, as a step of a call of the whole. Its type, where it is told as `call`, its signature and
 * number are filled in here. With the order of the whole held. */
tutti_status tutti_stream_part_enqueue(tutti_comm *part, const tutti_stream_call *call, tutti_op op);
/* For an engine that waits on the host: is the whole in order? Every rank is asked while the parts are being opened; later
 * on its watcher does that. TUTTI_OK where comm is no part. */
tutti_status tutti_stream_part_look(tutti_comm *comm, const tutti_op *op);
/* Breaks the part with `status` and this thread's error text, and releases its streams. Waits for nobody; NULL is allowed. */
void tutti_stream_part_break(tutti_comm *part, tutti_status status);

#endif
