/*
 * A lane: one reliable queue pair on one port, with a completion queue of its own. All calls to ibverbs that post
 * or poll are here.
 *
 * Writes are numbered; a completion retires all writes up to its own, so only some are signaled. Immediate data
 * (one per lane and piece of a large message) is kept in the order of arrival, except for 0, which only wakes a
 * sleeping peer. The first error stays in `error`.
 *
 *   created --connect--> up --(error, or down)--> down: flushed --connect--> up ...
 *
 * Invariant: after tutti_rdma_lane_down the adapter reads and writes nothing that was posted.
 */
#ifndef TUTTI_RDMA_LANE_H
#define TUTTI_RDMA_LANE_H

#include "rdma/devices.h"

enum {
    TUTTI_RDMA_LANE_WRITES = 256,  /* posted and not yet complete, at most */
    TUTTI_RDMA_LANE_RECEIVES = 64, /* kept posted, for immediate data */
};

/* The address of one end of a lane; sent on the socket. */
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
    struct ibv_comp_channel *bell; /* signals the next completion, where it is armed */
    struct ibv_qp *pair;
    struct ibv_mr *in, *out; /* the ring that the peer writes; the local copy of the peer's ring */
    uint32_t remote_key;
    uint32_t sequence;     /* number of the first packet */
    uint32_t inline_bytes; /* bytes that a write can carry inline */
    uint32_t capacity;     /* writes */
    uint64_t posted, completed;
    uint64_t quiet;    /* writes since the last signaled one */
    int receives;      /* posted now */
    uint64_t reposted; /* receives posted since the lane was created, without the first ones */
    uint32_t came[TUTTI_RDMA_LANE_RECEIVES];
    uint32_t came_head, came_tail; /* free running; head == tail: none */
    uint64_t wakes, taken;         /* zeros received; completions of all kinds */
    bool armed;                    /* the bell will signal, or has signaled */
    bool up, flushed;              /* flushed: the marker has completed */
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

/* The lane registers this memory: the peer may write [in, in + bytes), [out, out + bytes) is only read. */
tutti_status tutti_rdma_lane_create(tutti_rdma_lane *lane, const tutti_rdma_port *port, void *in, void *out,
                                    size_t bytes);
void tutti_rdma_lane_address_of(const tutti_rdma_lane *lane, tutti_rdma_lane_address *address_out);
/* Changes the state from created or down to up. */
tutti_status tutti_rdma_lane_connect(tutti_rdma_lane *lane, const tutti_rdma_lane_address *peer);
static inline bool tutti_rdma_lane_has_room(const tutti_rdma_lane *lane, unsigned writes) {
    return lane->posted - lane->completed + writes <= lane->capacity;
}
/* There must be room. A write that cannot be posted is an error of the lane. */
void tutti_rdma_lane_post(tutti_rdma_lane *lane, const tutti_rdma_lane_write *write);
/* Takes completions and reposts receives. False: the lane has failed. */
bool tutti_rdma_lane_poll(tutti_rdma_lane *lane);
/* Makes bell->fd readable at the next completion; a poll after this call finds earlier ones. False: not possible. */
bool tutti_rdma_lane_arm(tutti_rdma_lane *lane);
/* Puts the queue pair into the error state: the adapter returns everything posted, and no longer answers the peer. */
void tutti_rdma_lane_fail(tutti_rdma_lane *lane);
/* Fails the lane if it has not, and waits until the adapter has returned all. Successes are still counted. */
void tutti_rdma_lane_down(tutti_rdma_lane *lane);
/* After tutti_rdma_lane_down: makes the lane ready to connect again, with a new first packet number. `came` stays. */
tutti_status tutti_rdma_lane_renew(tutti_rdma_lane *lane, uint32_t sequence);
/* Accepts half-created lanes. */
void tutti_rdma_lane_destroy(tutti_rdma_lane *lane);
/* Returns whether reconnecting the lane can clear this error. */
bool tutti_rdma_lane_may_retry(int error);
/* Writes the error and its likely cause. */
void tutti_rdma_lane_explain(const tutti_rdma_lane *lane, char *text, size_t capacity);

#endif
