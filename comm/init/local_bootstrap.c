/*
 * Bootstrap on a host: code of both sides, and the side of the ranks that connect. local_bootstrap.h describes the
 * messages.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/init/local_state.h"
#include "comm/net/listener.h"
#include "comm/shm/heap.h"

#define LOOK_MS 100

static tutti_status choose_key(tutti_local_bootstrap *c) {
    bool secret;
    TUTTI_TRY(tutti_secret_get((char *)c->key, sizeof c->key, &secret));
    if (!secret && tutti_setting_int(TUTTI_SETTING_SECRET_REQUIRED) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "TUTTI_SECRET_REQUIRED is set, but neither TUTTI_SECRET nor TUTTI_SECRET_FILE");
    c->others = tutti_setting_int(TUTTI_SETTING_OTHER_USERS) != 0;
    if (c->others && !secret)
        return tutti_fail(
            TUTTI_ERR_REFUSED,
            "TUTTI_OTHER_USERS=1 needs TUTTI_SECRET or TUTTI_SECRET_FILE, equal on all ranks: without one, "
            "any user of this host could join");
    c->key_bytes = secret ? strlen((char *)c->key) : sizeof c->place->nonce;
    if (!secret) memcpy(c->key, c->place->nonce, sizeof c->place->nonce);
    return TUTTI_OK;
}

/* Terminates the message's text; fails with the status and text that it carries. */
static tutti_status admit(tutti_local_message *w, int from) {
    if (w->status == TUTTI_OK) return TUTTI_OK;
    w->text[sizeof w->text - 1] = '\0';
    tutti_make_printable(w->text);
    tutti_status status =
        w->status < TUTTI_OK && w->status >= TUTTI_ERR_DATA ? (tutti_status)w->status : TUTTI_ERR_BROKEN;
    return tutti_fail(status, "%s (reported by rank %d)", w->text, from);
}

/* All ranks of a host wait for the same, so only the leader logs it; its neighbours log the wait for the leader. */
static bool speaks(const tutti_local_bootstrap *c) {
    int next = c->rank - c->place->leader;
    return next == 0 || next == 1 || next == c->place->nhosts;
}

/* Waits for a message on the connection. Returns true if it is this rank's turn to log a notice about the wait, and
 * false when a message has arrived, the deadline has passed or another rank logs for this one. */
static bool is_late(tutti_local_bootstrap *c, int fd) {
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    if (!speaks(c)) return false;
    for (;;) {
        int ready = poll(&waited, 1, (int)tutti_min_i64(tutti_deadline_left_ms(c->deadline), LOOK_MS));
        if (ready != 0 && !(ready < 0 && errno == EINTR)) return false;
        if (tutti_deadline_passed(c->deadline)) return false;
        if (tutti_notice_due(&c->notice, c->deadline->spent_ns - c->begin_ns)) return true;
    }
}

/* ---------------------------------------------------------------------------------------------- members */

static tutti_status fail_silent(const tutti_local_bootstrap *c) {
    return tutti_fail(TUTTI_ERR_TIMEOUT,
                      "rank %d (pid %lld), the first of this host, sent no message before the deadline "
                      "(TUTTI_CONNECT_TIMEOUT_MS): it waits for other ranks, or hangs",
                      c->place->leader, (long long)c->place->leader_pid);
}

static void await_leader(tutti_local_bootstrap *c) {
    while (is_late(c, c->connection))
        tutti_log(
            TUTTI_LOG_WARN,
            "the start has waited %lld s for rank %d (pid %lld), the first of this host, which waits for others or "
            "makes no progress; waits until TUTTI_CONNECT_TIMEOUT_MS",
            (long long)(c->deadline->spent_ns - c->begin_ns) / TUTTI_NS_PER_S, c->place->leader,
            (long long)c->place->leader_pid);
}

static tutti_status fail_leader(const tutti_local_bootstrap *c, const char *what) {
    return tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (pid %lld), the first of this host, %s", c->place->leader,
                      (long long)c->place->leader_pid, what);
}

/* Receives a message from the leader, with at most `capacity` descriptors. */
static tutti_status hear(tutti_local_bootstrap *c, int *fds, int capacity, int *nfds_out) {
    tutti_local_message w;
    int nfds = 0;
    await_leader(c);
    tutti_status status = tutti_local_wire_receive(c->connection, &w, sizeof w, fds, capacity, &nfds, c->deadline,
                                                   "message of the first rank");
    if (status == TUTTI_ERR_PEER_DIED)
        return fail_leader(c, "has ended or given up while the communicator was being created");
    if (status == TUTTI_ERR_TIMEOUT) return fail_silent(c);
    TUTTI_TRY(status);
    status = admit(&w, c->place->leader);
    for (int i = 0; i < nfds && status != TUTTI_OK; i++) close(fds[i]);
    TUTTI_TRY(status);
    *nfds_out = nfds;
    return TUTTI_OK;
}

static tutti_status connect_to_leader(tutti_local_bootstrap *c) {
    int64_t pid;
    tutti_status status = tutti_local_wire_connect(c->place->socket_name, c->deadline, &c->connection);
    if (status == TUTTI_ERR_PEER_DIED)
        return fail_leader(c,
                           "has ended or given up, or TUTTI_HOST_ID joins two network namespaces, which cannot share "
                           "memory");
    if (status == TUTTI_ERR_TIMEOUT)
        return tutti_fail(
            status,
            "rank %d (pid %lld), the first of this host, has not accepted a connection before the deadline "
            "(TUTTI_CONNECT_TIMEOUT_MS): the queue of its socket is full, so it hangs",
            c->place->leader, (long long)c->place->leader_pid);
    TUTTI_TRY(status);
    if (!tutti_local_wire_is_same_user(c->connection, &pid) && !c->others)
        return tutti_fail(
            TUTTI_ERR_REFUSED,
            "rank %d, the first of this host, runs as another user, or another user has changed its "
            "address in the store; to allow ranks of several users, set TUTTI_SECRET and TUTTI_OTHER_USERS=1 on all",
            c->place->leader);
    return TUTTI_OK;
}

/* Authenticates, and sends the descriptor of the heap. */
static tutti_status prove(tutti_local_bootstrap *c) {
    tutti_local_hello h = {.rank = c->rank};
    tutti_local_proof p;
    uint8_t expected[TUTTI_SHA256_BYTES];
    TUTTI_TRY(tutti_getrandom(h.nonce, sizeof h.nonce));
    TUTTI_TRY(tutti_local_wire_send(c->connection, &h, sizeof h, NULL, 0, c->deadline));
    await_leader(c);
    TUTTI_TRY(
        tutti_local_wire_receive(c->connection, &p, sizeof p, NULL, 0, NULL, c->deadline, "proof of the first rank"));
    tutti_local_mac(c, '0', &h, p.nonce, expected);
    if (!tutti_hmac_equal(expected, p.mac, sizeof expected)) return tutti_local_fail_secret(c->place->leader);
    tutti_local_entry e = {.rank = c->rank};
    tutti_local_mac(c, 'r', &h, p.nonce, e.mac);
    TUTTI_TRY(tutti_heap_init());
    int heap_fd = tutti_heap_fd();
    return tutti_local_wire_send(c->connection, &e, sizeof e, &heap_fd, 1, c->deadline);
}

static tutti_status open_member(tutti_local_bootstrap *c) {
    int fd = -1, nfds = 0;
    TUTTI_TRY(connect_to_leader(c));
    tutti_status status = prove(c);
    if (status == TUTTI_ERR_PEER_DIED)
        return fail_leader(c, "has ended or given up while the communicator was being created");
    if (status == TUTTI_ERR_TIMEOUT) return fail_silent(c);
    TUTTI_TRY(status);
    TUTTI_TRY(hear(c, &fd, 1, &nfds));
    if (nfds != 1) return fail_leader(c, "has sent no descriptor of the segment");
    const tutti_peer_table largest = {.nhosts = c->nranks, .count = c->nranks};
    const tutti_shm_segment_limits limits = {.nranks = c->nranks,
                                             .neighbours = tutti_local_nmembers(c),
                                             .least_table_bytes = sizeof largest,
                                             .most_table_bytes = tutti_peer_table_bytes(&largest),
                                             .listeners_bytes = (size_t)c->nranks * sizeof(tutti_listener_info),
                                             .check_table = tutti_peer_table_check};
    TUTTI_TRY(tutti_shm_segment_join(fd, &limits, &c->segment));
    return tutti_local_list_ranks(c, tutti_shm_segment_peer_table(c->segment));
}

/* ------------------------------------------------------------------------------------------------ both */

tutti_status tutti_local_bootstrap_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out) {
    uint8_t random[16];
    TUTTI_TRY(tutti_getrandom(random, sizeof random));
    int used = snprintf(name_out, TUTTI_SOCKET_NAME_BYTES, "tutti-");
    for (size_t i = 0; i < sizeof random; i++)
        used += snprintf(name_out + used, TUTTI_SOCKET_NAME_BYTES - (size_t)used, "%02x", random[i]);
    return tutti_local_wire_listen(name_out, fd_out);
}

tutti_status tutti_local_bootstrap_open(tutti_local_bootstrap *c, const tutti_peer_table *table) {
    c->begin_ns = c->deadline->spent_ns;
    TUTTI_TRY(choose_key(c));
    TUTTI_TRY(tutti_local_leads(c) ? tutti_local_open_leader(c, table) : open_member(c));
    return tutti_shm_segment_enter(c->segment, c->local_rank);
}

tutti_status tutti_local_bootstrap_ready(tutti_local_bootstrap *c, tutti_status status) {
    tutti_local_message w;
    if (!tutti_local_leads(c)) {
        const tutti_error error = tutti_fail_save();
        tutti_local_fill_message(&w, status);
        if (c->connection < 0) return status;
        tutti_status sent = tutti_local_wire_send(c->connection, &w, sizeof w, NULL, 0, c->deadline);
        if (sent == TUTTI_ERR_PEER_DIED)
            sent = TUTTI_OK; /* its last message, which holds the reason, is still to be read */
        return status != TUTTI_OK ? tutti_fail_again(status, &error) : sent;
    }
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c) && status == TUTTI_OK; local_rank++) {
        while (is_late(c, c->peers[local_rank].connection))
            tutti_log(TUTTI_LOG_WARN,
                      "the start has waited %lld s for rank %d of this host, which makes no progress; waits until "
                      "TUTTI_CONNECT_TIMEOUT_MS",
                      (long long)(c->deadline->spent_ns - c->begin_ns) / TUTTI_NS_PER_S, c->ranks[local_rank]);
        status = tutti_local_wire_receive(c->peers[local_rank].connection, &w, sizeof w, NULL, 0, NULL, c->deadline,
                                          "ready message of a rank");
        if (status == TUTTI_ERR_PEER_DIED)
            status = tutti_local_fail_death(c, tutti_shm_segment_peer_table(c->segment), local_rank);
        if (status == TUTTI_OK) status = admit(&w, c->ranks[local_rank]);
    }
    return status;
}

/* The next local rank, from `local_rank` on, that is the first of its process; the number of members: there is none. */
static int next_process(const tutti_local_bootstrap *c, int local_rank) {
    for (; local_rank < tutti_local_nmembers(c); local_rank++) {
        const uint8_t *id = tutti_shm_segment_member(c->segment, local_rank)->info.id;
        int before = 0;
        while (before < local_rank &&
               memcmp(tutti_shm_segment_member(c->segment, before)->info.id, id, TUTTI_PROCESS_ID_BYTES) != 0)
            before++;
        if (before == local_rank) return local_rank;
    }
    return local_rank;
}

/* Sends the descriptors of all heaps to all ranks, some in each message. */
static tutti_status hand_out(tutti_local_bootstrap *c) {
    tutti_local_message w;
    tutti_local_fill_message(&w, TUTTI_OK);
    for (int next = next_process(c, 0); next < tutti_local_nmembers(c);) {
        int fds[TUTTI_LOCAL_WIRE_FDS], count = 0;
        for (; next < tutti_local_nmembers(c) && count < TUTTI_LOCAL_WIRE_FDS; next = next_process(c, next + 1))
            fds[count++] = next == 0 ? tutti_heap_fd() : c->peers[next].heap_fd;
        for (int local_rank = 1; local_rank < tutti_local_nmembers(c); local_rank++)
            TUTTI_TRY(tutti_local_wire_send(c->peers[local_rank].connection, &w, sizeof w, fds, count, c->deadline));
    }
    return TUTTI_OK;
}

/* Maps the heap of the process of that local rank, unless it is mapped already; takes over the descriptor. */
static tutti_status map_member(tutti_local_bootstrap *c, int local_rank, int heap_fd, tutti_member *members) {
    TUTTI_TRY(tutti_peer_admit(c->segment, local_rank, heap_fd, &members[local_rank].process));
    members[local_rank].page = tutti_shm_segment_page(c->segment, local_rank);
    return TUTTI_OK;
}

static tutti_status map_from_leader(tutti_local_bootstrap *c, tutti_member *members) {
    int next = next_process(c, 0);
    while (next < tutti_local_nmembers(c)) {
        int fds[TUTTI_LOCAL_WIRE_FDS], count = 0, used = 0;
        TUTTI_TRY(hear(c, fds, TUTTI_LOCAL_WIRE_FDS, &count));
        tutti_status status = count > 0 ? TUTTI_OK : fail_leader(c, "has sent too few descriptors");
        for (; next < tutti_local_nmembers(c) && used < count && status == TUTTI_OK; next = next_process(c, next + 1))
            status = map_member(c, next, fds[used++], members);
        while (used < count) close(fds[used++]);
        TUTTI_TRY(status);
    }
    return TUTTI_OK;
}

static tutti_status map_own(tutti_local_bootstrap *c, tutti_member *members) {
    for (int next = next_process(c, 0); next < tutti_local_nmembers(c); next = next_process(c, next + 1)) {
        int fd = c->peers[next].heap_fd;
        c->peers[next].heap_fd = -1;
        TUTTI_TRY(map_member(c, next, fd, members));
    }
    return TUTTI_OK;
}

/* Sends `status` to all connected ranks; ranks that have not connected cannot be reached. */
static void send_all(const tutti_local_bootstrap *c, tutti_status status) {
    tutti_local_message w;
    const tutti_error error = tutti_fail_save();
    tutti_local_fill_message(&w, status);
    for (int local_rank = 1; local_rank < tutti_local_nmembers(c) && c->peers != NULL; local_rank++)
        if (c->peers[local_rank].connection >= 0)
            (void)tutti_local_wire_send(c->peers[local_rank].connection, &w, sizeof w, NULL, 0, c->deadline);
    tutti_fail_again(status, &error);
}

tutti_status tutti_local_bootstrap_share(tutti_local_bootstrap *c, tutti_status status, tutti_member *members) {
    if (tutti_local_leads(c)) {
        if (status == TUTTI_OK) status = hand_out(c);
        if (status != TUTTI_OK) send_all(c, status);
        TUTTI_TRY(status);
        TUTTI_TRY(map_own(c, members));
    } else {
        TUTTI_TRY(map_from_leader(c, members));
    }
    /* further ranks of a process that is mapped by now */
    for (int local_rank = 0; local_rank < tutti_local_nmembers(c); local_rank++)
        if (members[local_rank].process == NULL) TUTTI_TRY(map_member(c, local_rank, -1, members));
    return TUTTI_OK;
}

void tutti_local_bootstrap_close(tutti_local_bootstrap *c) {
    for (int local_rank = 0; c->peers != NULL && local_rank < tutti_local_nmembers(c); local_rank++) {
        const tutti_local_peer *peer = &c->peers[local_rank];
        if (peer->connection >= 0) close(peer->connection);
        if (peer->heap_fd >= 0) close(peer->heap_fd);
        if (peer->pidfd >= 0) close(peer->pidfd);
    }
    if (c->connection >= 0) close(c->connection);
    if (c->listen_fd >= 0) close(c->listen_fd);
    explicit_bzero(c->key, sizeof c->key);
    free(c->peers);
    free(c->ranks);
}
