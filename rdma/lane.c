/*
 * Queue pairs: creating, connecting, posting, polling, flushing.
 */
#include "rdma/lane.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"

enum {
    SIGNAL_EVERY = 32,
    INLINE_WANTED = 256,
    MARKER = 1,         /* work request id of the last request of each kind, when flushing */
    RETRIES = 6,        /* of a packet, each after ACK_TIMEOUT; with 7, Soft-RoCE retries forever */
    ACK_TIMEOUT = 14,   /* 4.096 us * 2^14 = 67 ms */
    RECEIVE_TIMER = 12, /* 0.64 ms; a peer without posted receives is retried after that, forever */
};
#define FLUSH_NS (2 * TUTTI_NS_PER_S)
/* Work request ids: the upper bits hold the number of a write. */
#define ID_RECEIVE       UINT64_C(2)
#define ID_WRITE(number) ((uint64_t)(number) << 2)

static tutti_status failed(const tutti_rdma_lane *lane, const char *what, int error) {
    const char *hint = error == ENOMEM      ? " (is 'ulimit -l' too low, or is the adapter out of resources?)"
                       : error == ETIMEDOUT ? " (is the peer's address reachable over this port?)"
                                            : "";
    return tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "RDMA %s port %d: %s: %s%s", lane->port->adapter->name,
                                 lane->port->number, what, strerror(error), hint);
}

static bool post_receive(tutti_rdma_lane *lane) {
    struct ibv_recv_wr *bad, receive = {.wr_id = ID_RECEIVE}; /* immediate data needs no buffer */
    if (ibv_post_recv(lane->pair, &receive, &bad) != 0) return false;
    lane->receives++;
    return true;
}

/* ------------------------------------------------------------------------------------------------- going up */

/* The adapter may not have room for the wanted inline bytes: halve them until it has. */
static tutti_status create_pair(tutti_rdma_lane *lane) {
    struct ibv_qp_init_attr wanted = {.send_cq = lane->completions,
                                      .recv_cq = lane->completions,
                                      .qp_type = IBV_QPT_RC,
                                      .cap = {.max_send_wr = TUTTI_RDMA_LANE_WRITES + 1, /* plus one marker */
                                              .max_recv_wr = TUTTI_RDMA_LANE_RECEIVES + 1,
                                              .max_send_sge = 1,
                                              .max_recv_sge = 1,
                                              .max_inline_data = INLINE_WANTED}};
    for (;; wanted.cap.max_inline_data /= 2) {
        struct ibv_qp_init_attr got = wanted;
        lane->pair = ibv_create_qp(lane->port->adapter->domain, &got);
        if (lane->pair == NULL && wanted.cap.max_inline_data > 0) continue;
        if (lane->pair == NULL) return failed(lane, "cannot create a queue pair", errno);
        lane->inline_bytes = got.cap.max_inline_data;
        return TUTTI_OK;
    }
}

static tutti_status to_init(tutti_rdma_lane *lane) {
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_INIT, .port_num = lane->port->number, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int error =
        ibv_modify_qp(lane->pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) return failed(lane, "cannot prepare a queue pair", error);
    int kept = (int)(lane->came_tail - lane->came_head);
    while (lane->receives + kept < TUTTI_RDMA_LANE_RECEIVES)
        if (!post_receive(lane)) return failed(lane, "cannot post receives", errno);
    return TUTTI_OK;
}

tutti_status tutti_rdma_lane_create(tutti_rdma_lane *lane, const tutti_rdma_port *port, void *in, void *out,
                                    size_t bytes) {
    struct ibv_pd *domain = port->adapter->domain;
    *lane = (tutti_rdma_lane){.port = port, .capacity = TUTTI_RDMA_LANE_WRITES};
    lane->in = ibv_reg_mr(domain, in, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    lane->out = lane->in != NULL ? ibv_reg_mr(domain, out, bytes, 0) : NULL;
    if (lane->out == NULL) return failed(lane, "cannot register the ring", errno);
    lane->bell = ibv_create_comp_channel(port->adapter->context);
    if (lane->bell == NULL || fcntl(lane->bell->fd, F_SETFL, O_NONBLOCK) != 0)
        return failed(lane, "cannot create a completion channel", errno);
    /* Each posted request may complete by itself when it is flushed. */
    lane->completions = ibv_create_cq(port->adapter->context, TUTTI_RDMA_LANE_WRITES + TUTTI_RDMA_LANE_RECEIVES + 2,
                                      NULL, lane->bell, 0);
    if (lane->completions == NULL) return failed(lane, "cannot create a completion queue", errno);
    TUTTI_TRY(create_pair(lane));
    return to_init(lane);
}

void tutti_rdma_lane_address_of(const tutti_rdma_lane *lane, tutti_rdma_lane_address *address_out) {
    *address_out = (tutti_rdma_lane_address){.number = lane->pair->qp_num,
                                             .sequence = lane->sequence,
                                             .key = lane->in->rkey,
                                             .lid = lane->port->lid,
                                             .mtu = (uint8_t)lane->port->mtu,
                                             .ethernet = lane->port->ethernet};
    memcpy(address_out->gid, lane->port->gid.raw, sizeof address_out->gid);
}

/* The attributes for ready-to-receive. InfiniBand uses the peer's LID, within a subnet; Ethernet uses its GID. */
static struct ibv_qp_attr receive_attributes(const tutti_rdma_lane *lane, const tutti_rdma_lane_address *peer) {
    const tutti_rdma_port *port = lane->port;
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = peer->mtu < port->mtu ? (enum ibv_mtu)peer->mtu : port->mtu,
        .dest_qp_num = peer->number,
        .rq_psn = peer->sequence,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RECEIVE_TIMER,
        .ah_attr = {.port_num = port->number,
                    .dlid = peer->lid,
                    .sl = (uint8_t)tutti_rdma_host->setting_int(TUTTI_SETTING_RDMA_SERVICE_LEVEL)}};
    if (port->ethernet) {
        attributes.ah_attr.is_global = 1;
        memcpy(attributes.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
        attributes.ah_attr.grh.sgid_index = (uint8_t)port->gid.index;
        attributes.ah_attr.grh.hop_limit = 64;
        attributes.ah_attr.grh.traffic_class = (uint8_t)tutti_rdma_host->setting_int(TUTTI_SETTING_RDMA_TRAFFIC_CLASS);
    }
    return attributes;
}

/* Reports incompatible addresses here, where the system would only report "Invalid argument". */
static tutti_status check_address(const tutti_rdma_lane *lane, const tutti_rdma_lane_address *peer) {
    const tutti_rdma_port *port = lane->port;
    char ours[96], theirs[96];
    tutti_rdma_gid gid = {.type = port->gid.type};
    memcpy(gid.raw, peer->gid, sizeof gid.raw);
    if (peer->ethernet != port->ethernet || peer->mtu < IBV_MTU_256 || peer->mtu > IBV_MTU_4096)
        return tutti_rdma_host->fail(TUTTI_ERR_UNSUPPORTED, "RDMA %s port %d is %s, the peer's port is not",
                                     port->adapter->name, port->number, port->ethernet ? "Ethernet" : "InfiniBand");
    if (!port->ethernet || tutti_rdma_gid_is_ipv4(&gid) == tutti_rdma_gid_is_ipv4(&port->gid)) return TUTTI_OK;
    tutti_rdma_gid_text(&port->gid, ours, sizeof ours);
    tutti_rdma_gid_text(&gid, theirs, sizeof theirs);
    return tutti_rdma_host->fail(
        TUTTI_ERR_UNSUPPORTED,
        "RDMA %s port %d has the address %s, the peer's port %s: give both an address of one kind, or "
        "choose one with TUTTI_RDMA_GID_INDEX",
        port->adapter->name, port->number, ours, theirs);
}

tutti_status tutti_rdma_lane_connect(tutti_rdma_lane *lane, const tutti_rdma_lane_address *peer) {
    TUTTI_TRY(check_address(lane, peer));
    struct ibv_qp_attr attributes = receive_attributes(lane, peer);
    int error = ibv_modify_qp(lane->pair, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error != 0) return failed(lane, "cannot reach the peer's queue pair", error);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                      .timeout = ACK_TIMEOUT,
                                      .retry_cnt = RETRIES,
                                      .rnr_retry = 7, /* forever */
                                      .sq_psn = lane->sequence,
                                      .max_rd_atomic = 1};
    error = ibv_modify_qp(lane->pair, &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0) return failed(lane, "cannot start the queue pair", error);
    lane->remote_key = peer->key;
    lane->up = true;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- when it is up */

void tutti_rdma_lane_post(tutti_rdma_lane *lane, const tutti_rdma_lane_write *write) {
    bool signaled = write->signaled || lane->quiet + 1 >= SIGNAL_EVERY;
    struct ibv_sge piece = {
        .addr = (uint64_t)(uintptr_t)write->from, .length = (uint32_t)write->bytes, .lkey = write->local_key};
    struct ibv_send_wr *bad,
        request = {.wr_id = ID_WRITE(lane->posted + 1),
                   .sg_list = &piece,
                   .num_sge = write->bytes > 0,
                   .opcode = write->immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                   .send_flags = (signaled ? IBV_SEND_SIGNALED : 0) |
                                 (write->bytes <= lane->inline_bytes && write->bytes > 0 ? IBV_SEND_INLINE : 0),
                   .imm_data = htonl(write->value),
                   .wr.rdma = {.remote_addr = write->to, .rkey = write->remote_key}};
    int error = ibv_post_send(lane->pair, &request, &bad);
    if (error != 0 && lane->error == 0) lane->error = IBV_WC_GENERAL_ERR;
    lane->posted++;
    lane->quiet = signaled ? 0 : lane->quiet + 1;
}

static void take(tutti_rdma_lane *lane, const struct ibv_wc *done) {
    bool receive = (done->wr_id & 3) == ID_RECEIVE, marker = (done->wr_id & 3) == MARKER;
    lane->taken++;
    if (receive) lane->receives--;
    if (marker) lane->flushed = true;
    if (done->status != IBV_WC_SUCCESS) {
        if (lane->error == 0 || lane->error == IBV_WC_WR_FLUSH_ERR) { /* a flush only follows another failure */
            lane->error = done->status;
            lane->vendor_error = done->vendor_err;
        }
    } else if (receive && done->imm_data == 0) {
        lane->wakes++;
    } else if (receive) {
        lane->came[lane->came_tail++ % TUTTI_RDMA_LANE_RECEIVES] = ntohl(done->imm_data);
    } else if (!marker) {
        lane->completed = done->wr_id >> 2;
    }
}

/* Reposts receives only for values taken from `came`, so that it never overflows. */
static void refill(tutti_rdma_lane *lane) {
    int kept = (int)(lane->came_tail - lane->came_head);
    while (lane->up && lane->error == 0 && lane->receives + kept < TUTTI_RDMA_LANE_RECEIVES && post_receive(lane))
        lane->reposted++;
}

bool tutti_rdma_lane_poll(tutti_rdma_lane *lane) {
    struct ibv_wc done[16];
    int count;
    do {
        count = ibv_poll_cq(lane->completions, (int)TUTTI_COUNT_OF(done), done);
        for (int i = 0; i < count; i++) take(lane, &done[i]);
    } while (count == (int)TUTTI_COUNT_OF(done));
    if (count < 0 && lane->error == 0) lane->error = IBV_WC_GENERAL_ERR;
    refill(lane);
    return lane->error == 0;
}

bool tutti_rdma_lane_arm(tutti_rdma_lane *lane) {
    struct ibv_cq *of;
    void *context;
    while (lane->armed && ibv_get_cq_event(lane->bell, &of, &context) == 0) { /* it has signaled */
        ibv_ack_cq_events(of, 1);
        lane->armed = false;
    }
    if (!lane->armed) lane->armed = ibv_req_notify_cq(lane->completions, /* solicited_only */ 0) == 0;
    return lane->armed;
}

/* --------------------------------------------------------------------------------------------------- going down */

void tutti_rdma_lane_fail(tutti_rdma_lane *lane) {
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    ibv_modify_qp(lane->pair, &attributes, IBV_QP_STATE);
}

/* Completions arrive in order, so that of a last request, which is only flushed, proves that all are done. */
static void flush(tutti_rdma_lane *lane) {
    struct ibv_send_wr *bad, marker = {.wr_id = MARKER, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    lane->flushed = ibv_post_send(lane->pair, &marker, &bad) != 0;
    int64_t end = tutti_rdma_host_now_ns() + FLUSH_NS;
    while ((!lane->flushed || lane->receives > 0) && tutti_rdma_host_now_ns() < end) tutti_rdma_lane_poll(lane);
}

/* Until the reset, Soft-RoCE holds partly written memory: deregistering it would take 50 s. */
static int reset(tutti_rdma_lane *lane) {
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RESET};
    return ibv_modify_qp(lane->pair, &attributes, IBV_QP_STATE);
}

void tutti_rdma_lane_down(tutti_rdma_lane *lane) {
    if (lane->pair == NULL || !lane->up) return;
    int error = lane->error, vendor_error = (int)lane->vendor_error;
    lane->up = false;
    tutti_rdma_lane_fail(lane);
    flush(lane);
    reset(lane);
    if (error != 0 && error != IBV_WC_WR_FLUSH_ERR) {
        lane->error = error;
        lane->vendor_error = (uint32_t)vendor_error;
    }
}

tutti_status tutti_rdma_lane_renew(tutti_rdma_lane *lane, uint32_t sequence) {
    struct ibv_wc done;
    int error = reset(lane);
    if (error != 0) return failed(lane, "cannot reset a queue pair", error);
    while (ibv_poll_cq(lane->completions, 1, &done) > 0) {}
    lane->posted = lane->completed = lane->quiet = 0;
    lane->receives = 0;
    lane->error = 0;
    lane->sequence = sequence;
    return to_init(lane);
}

void tutti_rdma_lane_destroy(tutti_rdma_lane *lane) {
    if (lane->pair != NULL) ibv_destroy_qp(lane->pair);
    if (lane->completions != NULL) ibv_destroy_cq(lane->completions);
    if (lane->bell != NULL) ibv_destroy_comp_channel(lane->bell);
    if (lane->in != NULL) ibv_dereg_mr(lane->in);
    if (lane->out != NULL) ibv_dereg_mr(lane->out);
    *lane = (tutti_rdma_lane){0};
}

/* -------------------------------------------------------------------------------------------------- error texts */

bool tutti_rdma_lane_may_retry(int error) {
    return error == IBV_WC_RETRY_EXC_ERR || error == IBV_WC_RNR_RETRY_EXC_ERR || error == IBV_WC_WR_FLUSH_ERR ||
           error == IBV_WC_RESP_TIMEOUT_ERR || error == IBV_WC_REM_ABORT_ERR ||
           error == IBV_WC_REM_INV_REQ_ERR || /* Soft-RoCE, where late packets were retransmitted meanwhile */
           error == IBV_WC_LOC_QP_OP_ERR;     /* also where this side's port is down */
}

void tutti_rdma_lane_explain(const tutti_rdma_lane *lane, char *text, size_t capacity) {
    static const struct {
        enum ibv_wc_status status;
        const char *cause;
    } causes[] = {
        {IBV_WC_RETRY_EXC_ERR,
         "nothing answered: the peer's process or host is gone, its port is down, or packets do not get "
         "through (route, VLAN, firewall for UDP port 4791)"},
        {IBV_WC_RNR_RETRY_EXC_ERR, "the peer has no receive posted: it is stopped or overloaded"},
        {IBV_WC_REM_ACCESS_ERR, "the peer's adapter refused the address or key: its memory is not registered any more"},
        {IBV_WC_REM_INV_REQ_ERR, "the peer's adapter refused the request: a fault of one of the adapters"},
        {IBV_WC_REM_OP_ERR, "the peer's adapter could not carry out the request"},
        {IBV_WC_LOC_PROT_ERR, "this side's memory is not registered any more: was it freed during the call?"},
        {IBV_WC_LOC_LEN_ERR, "a message is longer than the port allows"},
        {IBV_WC_LOC_QP_OP_ERR, "this adapter could not carry out the request: is its port down?"},
        {IBV_WC_WR_FLUSH_ERR, "the queue pair was in the error state already: a fault of the adapter or its link"},
        {IBV_WC_FATAL_ERR, "the adapter has failed"},
        {IBV_WC_GENERAL_ERR, "the adapter accepted no more requests"},
    };
    const char *cause = "see the adapter's manual";
    for (size_t i = 0; i < TUTTI_COUNT_OF(causes); i++)
        if ((int)causes[i].status == lane->error) cause = causes[i].cause;
    snprintf(text, capacity, "%s port %d: %s (vendor error 0x%x): %s", lane->port->adapter->name, lane->port->number,
             ibv_wc_status_str((enum ibv_wc_status)lane->error), lane->vendor_error, cause);
}
