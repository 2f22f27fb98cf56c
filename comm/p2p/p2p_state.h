/*
 * State that the files of point to point share. See p2p.c for the protocol.
 *
 *   port     a rank of this process in one communicator: its posted receives and its unexpected messages
 *   request  a send or receive that has not completed; on one list for each state, and on its port's list of all
 *   message  a message that has come and has not matched a receive yet
 *   note     an answer that the ring had no room for
 *
 * Everything here is under TUTTI_LOCK_P2P, except for `pending`. tutti_p2p_unlock ends works, after unlocking.
 */
#ifndef TUTTI_P2P_STATE_H
#define TUTTI_P2P_STATE_H

#include "comm/base/comm.h"
#include "comm/p2p/channel.h"
#include "comm/queue/queue.h"

/* Messages of at least this size go past the caches into the receiver's buffer: it would not stay in them. Between 2
 * ranks, 4 MiB take 0.9 to 1 of the time if the receiver then reads them, and 16 MiB 0.8; two messages of 4 MiB at once
 * take 0.55 to 0.75. With 4 ranks on 2 cores 4 to 16 MiB take 0.7 to 0.8. */
#define TUTTI_LEAST_PAST_BYTES ((size_t)4 << 20)

typedef enum tutti_phase {
    TUTTI_PHASE_POSTED,    /* receive: no matching message has come */
    TUTTI_PHASE_PULLING,   /* receive: copies from the sender's memory */
    TUTTI_PHASE_RECEIVING, /* receive: a stream is arriving */
    TUTTI_PHASE_WAITING,   /* send: not in the ring yet */
    TUTTI_PHASE_ANNOUNCED, /* send: the receiver has not answered */
    TUTTI_PHASE_STREAMING, /* send: a stream is being sent */
    TUTTI_PHASE_ENDED
} tutti_phase;

TAILQ_HEAD(tutti_messages, tutti_unexpected);

/* A blocking receive that waits for its message without a request (immediate.c). */
typedef struct tutti_waiter {
    struct tutti_port *port;
    tutti_channels *channel;
    void *dst;
    size_t bytes;
    int peer;
    int64_t tag;
    tutti_received *received_out;
    bool polls_sockets;  /* its message comes over a socket: pauses between polls */
    atomic_bool claimed; /* its message is being received into dst; read without the lock */
    bool taken;          /* the message is in dst */
} tutti_waiter;

typedef struct tutti_port {
    struct tutti_port *next; /* in its bucket */
    tutti_comm *comm;
    uint64_t comm_id;
    int rank;
    struct tutti_requests all;
    struct tutti_requests posted;
    struct tutti_messages unexpected;
    uint64_t kept_bytes;  /* cost of unexpected eager messages from this process */
    bool *left;           /* nranks: the rank has destroyed the communicator, and all data it sent has been read */
    tutti_waiter *waiter; /* it waits for a message from another host; NULL: none does */
    int pins;             /* threads that use `comm` without the lock; closing waits for them */
} tutti_port;

typedef struct tutti_request {
    TAILQ_ENTRY(tutti_request) state_link, all_link;
    struct tutti_requests *list; /* list of its state; NULL: none */
    tutti_port *port;
    tutti_work *work;
    tutti_phase phase;
    int peer;
    int64_t tag;
    char *buffer;
    size_t bytes; /* send: bytes of the message; receive: bytes of the buffer */
    size_t item_bytes;

    /* Set once matched. */
    tutti_channels *channel;          /* NULL: the other rank is in this process */
    struct tutti_request *partner;    /* local pull: the other request */
    struct tutti_unexpected *message; /* local send: its entry in the receiver's unexpected list */
    const char *source;               /* pull: the sender's bytes as mapped here; NULL: not mapped */
    uint64_t address;                 /* pull: the address of the bytes in the sender's process */
    int source_rank;
    int64_t source_tag;
    size_t message_bytes, wanted, moved;
    uint64_t id;     /* the other process's name for this request */
    uint64_t answer; /* our name for the other process's request */

    /* The clocks start at the first check that sees the request. */
    bool clocks, reported;
    tutti_deadline deadline, stall;
    tutti_status status;
    char *error; /* malloc'd or NULL */
} tutti_request;

typedef struct tutti_unexpected {
    TAILQ_ENTRY(tutti_unexpected) link;
    tutti_port *port; /* the port whose unexpected list holds it */
    int source;
    int64_t tag;
    size_t bytes;
    tutti_channels *channel;    /* NULL: the message is from this process */
    tutti_request *sender;      /* the send of this process, not copied */
    bool whole;                 /* all bytes are in `payload` */
    uint64_t transfer, address; /* announced messages */
    size_t kept_bytes;          /* the first bytes of the message; these are in `payload` */
    uint8_t payload[];
} tutti_unexpected;

typedef struct tutti_note {
    STAILQ_ENTRY(tutti_note) link;
    tutti_record record;
} tutti_note;

TAILQ_HEAD(tutti_channel_list, tutti_channels);

#define TUTTI_PORT_BUCKETS 256

typedef struct tutti_p2p_state {
    tutti_port *ports[TUTTI_PORT_BUCKETS];
    struct tutti_channel_list found;   /* both directions can be used */
    struct tutti_channel_list unfound; /* the peer has not written to us yet */
    struct tutti_requests pulling;     /* of all ports, taking turns */
    struct tutti_requests ended;       /* requests whose works end after unlocking */
    struct tutti_requests spare;       /* requests for reuse */
    uint64_t last_id;                  /* last id of a request that another process knows; never used twice */
    uint64_t last_check_ticks;
    uint64_t callers_seen; /* tutti_channel_callers at the last check */
    int looks_left;        /* checks of silent processes' channel directories that are left since then */
    bool moved;            /* bytes or records have moved in the current call of tutti_p2p_progress */
    atomic_int channels;   /* open channels; read without the lock */
    atomic_int pending;    /* requests, notes, and remote channels with data to send; read without the lock */
} tutti_p2p_state;

extern tutti_p2p_state tutti_p2p;

/* ---- p2p_state.c */

/* Unlocks, then ends the works of all requests that have ended. */
void tutti_p2p_unlock(void);
/* Returns the port of a rank of this process; NULL: its communicator is not open, or no longer open. */
tutti_port *tutti_p2p_port(uint64_t comm_id, int rank);
/* The list of ports that contains that port if it is open. */
tutti_port **tutti_p2p_bucket(uint64_t comm_id, int rank);

/* Why a communicator must be broken. */
typedef struct tutti_verdict {
    tutti_port *port; /* pinned; NULL: no verdict */
    tutti_status status;
    char text[1536];
} tutti_verdict;

/* Returns true if the rank has destroyed the communicator. */
bool tutti_p2p_has_left(const tutti_port *port, int rank);
/* Reads the reason with which a rank's page is broken; false: the page is not broken. */
bool tutti_p2p_read_reason(const tutti_port *port, int rank, tutti_verdict *verdict);

/* ---- channel_ring.c */

/* Sends an answer, or keeps it until there is room. */
void tutti_channel_answer(tutti_channels *channel, const tutti_record *record);
/* Reports to the sender of an announced message that it has been taken, or will never be taken. */
void tutti_channel_done(tutti_channels *channel, uint64_t transfer, bool taken);
/* Sends a record, with its text if there is room for it now. */
void tutti_channel_notify(tutti_channels *channel, const tutti_record *record, const char *text);
/* Sends the answers that were kept and have room now. */
void tutti_channel_send_notes(tutti_channels *channel);

/* ---- request.c */

/* Makes a request of the port, on no state's list. */
tutti_status tutti_request_make(tutti_port *port, tutti_work *work, tutti_request **request_out);
/* Moves the request to another state's list (NULL: none). */
static inline void tutti_request_move(tutti_request *request, tutti_phase phase, struct tutti_requests *list) {
    if (request->list != NULL) TAILQ_REMOVE(request->list, request, state_link);
    if (list != NULL) TAILQ_INSERT_TAIL(list, request, state_link);
    request->phase = phase;
    request->list = list;
}
/* Marks the request as complete: its work ends at the next unlock. `text`: error text of a failure. */
void tutti_request_end(tutti_request *request, tutti_status status, const char *text);
/* The wanted bytes have come: ends the receive, complete or truncated. */
void tutti_request_received(tutti_request *request);
/* Returns the request of the list with that number; NULL: it has been cancelled. */
tutti_request *tutti_request_find(struct tutti_requests *list, uint64_t id);
/* Returns the receive for a part of a stream; NULL: it was cancelled, or the part breaks the channel. */
tutti_request *tutti_request_stream(tutti_channels *channel, uint64_t transfer, uint64_t offset, size_t bytes);
/* `bytes` more bytes are in the request's buffer. */
void tutti_request_came(tutti_request *request, size_t bytes);
/* Fails one request, and reports the failure to the request that depends on it. */
void tutti_request_fail(tutti_request *request, tutti_status status, const char *text);
/* Fails a request because the rank it needs has destroyed the communicator; TUTTI_ANY_SOURCE: all other ranks have. */
void tutti_request_fail_left(tutti_request *request, int rank);
/* Describes the request for reports and errors. Returns `text`. */
const char *tutti_request_describe(const tutti_request *request, char *text, size_t capacity);

/* ---- transfer.c */

/* Returns true if this message is to be sent eagerly and can be sent eagerly now. `waits`: the caller waits for it. */
bool tutti_transfer_is_eager(tutti_channels *channel, const tutti_port *port, const void *src, size_t bytes,
                             bool waits);
/* Writes an eager message. Returns false if the channel has no room now. */
bool tutti_transfer_put_eager(tutti_channels *channel, const tutti_port *port, int peer, int64_t tag, const void *src,
                              size_t bytes);
/* Starts a send to another process. */
void tutti_transfer_send(tutti_request *request);
/* A receive has matched an announced message, and `came` of the wanted bytes are in its buffer: pulls or requests the
 * rest. */
void tutti_transfer_accept(tutti_request *request, tutti_channels *channel, uint64_t transfer, uint64_t address,
                           size_t came);
/* Requests a stream of the bytes that follow the first `came` ones. */
void tutti_transfer_ask(tutti_request *request, size_t came);
/* Starts to copy from request->source or request->address. */
void tutti_transfer_pull(tutti_request *request);
/* Moves the data that can move on the channel. */
void tutti_transfer_advance(tutti_channels *channel);

/* ---- matching.c */

/* Returns true if such a message is for this receive. TUTTI_ANY_TAG matches users' tags only (>= 0), never the
 * library's. */
bool tutti_match_fits(const tutti_request *receive, int source, int64_t tag);
/* Takes the posted receive for such a message off the posted list, and returns it; NULL: there is none. */
tutti_request *tutti_match_take(const tutti_port *port, int source, int64_t tag);
/* Records which message a receive has matched. */
void tutti_match_note(tutti_request *request, int source, int64_t tag, size_t message_bytes);
/* Finds the rank's port; *port_out is NULL if its communicator is closed. False: the record names a wrong source,
 * which breaks the channel. */
bool tutti_match_port(tutti_channels *channel, const tutti_record *record, tutti_port **port_out);
/* Returns true if this is the message for which the thread waits. */
bool tutti_waiter_fits(const tutti_waiter *waiter, const tutti_record *record);
/* Returns true if no other receive, and no message that came before, goes first. */
bool tutti_waiter_is_next(const tutti_waiter *waiter);
/* Returns the thread that waits for this message, in which case no request does; NULL: none. */
tutti_waiter *tutti_match_waiter(const tutti_port *port, const tutti_channels *channel, const tutti_record *record);
/* Ends its wait: the message is in its buffer. */
static inline void tutti_waiter_take(tutti_waiter *waiter, const tutti_record *record) {
    *waiter->received_out =
        (tutti_received){.source = record->source, .tag = record->tag, .count = record->payload_bytes};
    waiter->taken = true;
}
/* Takes the receive for an eager message whose bytes are still to come, and returns its buffer; exactly one of the two
 * results is set. NULL: there is none, or its buffer is too short. */
char *tutti_match_claim(tutti_channels *channel, const tutti_record *record, tutti_request **request_out,
                        tutti_waiter **waiter_out);

/* ---- notify.c */

/* Notifies all other ranks that this rank leaves. Under the lock. */
void tutti_p2p_notify_left(const tutti_comm *comm);
/* A rank of another host reports that the communicator is broken; false: its record is invalid. */
bool tutti_notify_received_broken(tutti_channels *channel, const tutti_record *record, tutti_port *port);

/* ---- incoming.c */

/* Starts a receive: takes the first unexpected message that matches, or posts the receive. */
void tutti_incoming_receive(tutti_request *request);
/* Starts a send to a rank of this process. */
void tutti_incoming_local(tutti_request *request, tutti_port *to);
/* Drops the messages that no receive will ask for any more. */
void tutti_incoming_drop(tutti_port *port);
/* Reads the records that have come; true when none is left for now. */
bool tutti_incoming_read(tutti_channels *channel);
/* Reads the records that have come on all channels, moves the data that can move, and some of each pull. */
void tutti_incoming_progress(void);

/* ---- watchdog.c */

/* Checks deadlines, deaths and broken communicators if a check is due; fails requests that cannot complete. */
void tutti_watch_check(tutti_verdict *verdict_out);

#endif
