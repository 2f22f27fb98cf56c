/*
 * A lane: one reliable queue pair on one port, with a completion queue of its own. All calls to ibverbs that post or poll
 * are here.
 *
 * Writes are numbered; a completion retires all up to its own, so only some of them are signaled. Immediate data (one per
 * lane and piece of a large message) is kept in the order in which it came, but for 0, which only wakes who sleeps. The first
 * error stays in `error`.
 *
 *   created --connect--> up --(error, or down)--> down: flushed --connect--> up ...
 *
 * Invariant: after tutti_rdma_lane_down nothing that was posted is read or written any more.
 */
#ifndef TUTTI_RDMA_LANE_H
#define TUTTI_RDMA_LANE_H

#include "rdma/devices.h"

enum {
    TUTTI_RDMA_LANE_WRITES = 256,  /* posted and not yet complete, at most */
    TUTTI_RDMA_LANE_RECEIVES = 64, /* kept posted, for immediate data */
};

/* How the peer's end of a lane is reached; travels on the socket. */
typedef struct tutti_rdma_lane_address {
    uint8_t gid[16];
    uint32_t number; /* of the queue pair */
    uint32_t sequence;
    uint32_t key; /* of the peer's ring */
    uint16_t lid;
    uint8_t mtu, ethernet;
} tutti_rdma_lane_address;

typedef struct tutti_rdma_lane {
    const tutti_rdma_port *port;
    struct ibv_cq *completions;
    struct ibv_comp_channel *bell; /* rings at the next completion, where it is armed */
    struct ibv_qp *pair;
    struct ibv_mr *in, *out; /* the ring that the peer writes; the copy of the peer's */
    uint32_t remote_key;
    uint32_t sequence;     /* packets are numbered from here on */
    uint32_t inline_bytes; /* that a write may carry in itself */
    uint32_t capacity;     /* writes */
    uint64_t posted, completed;
    uint64_t quiet;    /* writes since the last that was signaled */
    int receives;      /* posted now */
    uint64_t reposted; /* since it was created, without the first ones */
    uint32_t came[TUTTI_RDMA_LANE_RECEIVES];
    uint32_t came_head, came_tail; /* free running; head == tail: none */
    uint64_t wakes, taken;         /* zeros that came; completions, of all kinds */
    bool armed;                    /* the bell will ring, or has */
    bool up, flushed;              /* flushed: the marker has come */
    int error;                     /* enum ibv_wc_status of the first failure; 0: none */
    uint32_t vendor_error;
} tutti_rdma_lane;

/* One RDMA write. */
typedef struct tutti_rdma_lane_write {
    const void *from;
    size_t bytes;
    uint32_t local_key;
    uint64_t to;
    uint32_t remote_key;
    bool signaled;
    bool immediate; /* carries `value`, and completes a receive of the peer's */
    uint32_t value;
} tutti_rdma_lane_write;

/* Memory that the lane registers: [in, in + bytes) may be written by the peer, [out, out + bytes) is only read. */
tutti_status tutti_rdma_lane_create(tutti_rdma_lane *lane, const tutti_rdma_port *port, void *in, void *out,
                                    size_t bytes);
void tutti_rdma_lane_address_of(const tutti_rdma_lane *lane, tutti_rdma_lane_address *address_out);
/* From created or down to up. */
tutti_status tutti_rdma_lane_connect(tutti_rdma_lane *lane, const tutti_rdma_lane_address *peer);
static inline bool tutti_rdma_lane_has_room(const tutti_rdma_lane *lane, unsigned writes) {
    return lane->posted - lane->completed + writes <= lane->capacity;
}
/* There must be room. What cannot be posted is an error of the lane. */
void tutti_rdma_lane_post(tutti_rdma_lane *lane, const tutti_rdma_lane_write *write);
/* Takes completions; keeps receives posted. False: the lane has failed. */
bool tutti_rdma_lane_poll(tutti_rdma_lane *lane);
/* bell->fd becomes readable with the next completion; polling after it tells of those that came before. False: it cannot. */
bool tutti_rdma_lane_arm(tutti_rdma_lane *lane);
/* The adapter gives back all that was posted, and answers the peer no more. */
void tutti_rdma_lane_fail(tutti_rdma_lane *lane);
/* Fails the lane if it has not, and waits until all that was posted has been given back. Successes are still counted. */
void tutti_rdma_lane_down(tutti_rdma_lane *lane);
/* After that: ready to be connected again, with new numbers for its packets. What `came` is still there. */
tutti_status tutti_rdma_lane_renew(tutti_rdma_lane *lane, uint32_t sequence);
/* Also for those half created. */
void tutti_rdma_lane_destroy(tutti_rdma_lane *lane);
/* Can such an error pass when the lane is connected anew? */
bool tutti_rdma_lane_may_retry(int error);
/* What went wrong, and what it likely means. */
void tutti_rdma_lane_explain(const tutti_rdma_lane *lane, char *text, size_t capacity);

#endif
