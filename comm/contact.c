/*
 * First contact on a host. See contact.h for what is said.
 *
 * The leader serves one connection after the other; each takes a few messages. Whoever does not come is looked after by his
 * process id, as the roll gives it, so that an end is noticed before the deadline; and so is one of them who does not know
 * the secret, which else could be any stranger.
 */
#include "comm/contact.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bootstrap/base/hmac.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/contact_wire.h"
#include "comm/heap.h"

#define NONCE_BYTES 16
#define STRANGER_MS 2000 /* who is not in the roll must prove himself within this */
#define LOOK_MS     200  /* nobody has come for so long: have those ended that are missing? */
#define TEXT_BYTES  1024

typedef struct hello {
    int32_t rank, unused;
    uint8_t nonce[NONCE_BYTES];
} hello;

typedef struct proof {
    uint8_t nonce[NONCE_BYTES];
    uint8_t mac[TUTTI_SHA256_BYTES];
} proof;

typedef struct entry {
    uint8_t mac[TUTTI_SHA256_BYTES];
    int32_t rank, unused;
} entry;

/* From the leader, and as `ready` to it. */
typedef struct word {
    int32_t status, unused;
    char text[TEXT_BYTES]; /* where status is not TUTTI_OK */
} word;

static bool leads(const tutti_contact *c) {
    return c->rank == c->place->leader;
}

static int nseats(const tutti_contact *c) {
    return c->place->neighbours;
}

static tutti_status choose_key(tutti_contact *c) {
    TUTTI_TRY(tutti_secret_get((char *)c->key, sizeof c->key, &c->secret));
    if (!c->secret && tutti_setting_int(TUTTI_SETTING_SECRET_REQUIRED) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "TUTTI_SECRET_REQUIRED is set, but neither TUTTI_SECRET nor TUTTI_SECRET_FILE");
    c->key_bytes = c->secret ? strlen((char *)c->key) : sizeof c->place->nonce;
    if (!c->secret) memcpy(c->key, c->place->nonce, sizeof c->place->nonce);
    return TUTTI_OK;
}

static void compute_mac(const tutti_contact *c, char side, const hello *h, const uint8_t nonce[NONCE_BYTES],
                        uint8_t mac[TUTTI_SHA256_BYTES]) {
    uint8_t text[1 + sizeof *h + NONCE_BYTES];
    text[0] = (uint8_t)side;
    memcpy(text + 1, h, sizeof *h);
    memcpy(text + 1 + sizeof *h, nonce, NONCE_BYTES);
    tutti_hmac_of(c->key, c->key_bytes, text, sizeof text, mac);
}

static tutti_status fail_secret(int rank) {
    return tutti_fail(TUTTI_ERR_REFUSED,
                      "rank %d does not know this job's secret: TUTTI_SECRET (or its file) must be equal on all ranks",
                      rank);
}

/* Who sits where: the host's ranks in their order. */
static tutti_status list_ranks(tutti_contact *c, const tutti_roll *roll) {
    TUTTI_TRY(tutti_calloc((size_t)nseats(c), sizeof *c->ranks, &c->ranks));
    int count = 0;
    for (int rank = 0; rank < c->nranks; rank++) {
        if (tutti_roll_ranks(roll)[rank].host != c->place->host) continue;
        if (count == nseats(c)) return tutti_fail(TUTTI_ERR_DATA, "the list of all ranks contradicts this host's line");
        if (rank == c->rank) c->seat = count;
        c->ranks[count++] = rank;
    }
    if (count == nseats(c) && c->ranks[0] == c->place->leader && c->ranks[c->seat] == c->rank) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the list of all ranks contradicts this host's line");
}

/* ---------------------------------------------------------------------------------------------- members */

static void fill_word(word *w, tutti_status status) {
    memset(w, 0, sizeof *w);
    w->status = status;
    if (status != TUTTI_OK) snprintf(w->text, sizeof w->text, "%s", tutti_last_error());
}

static tutti_status heed(word *w, int from) {
    if (w->status == TUTTI_OK) return TUTTI_OK;
    w->text[sizeof w->text - 1] = '\0';
    tutti_status status =
        w->status < TUTTI_OK && w->status >= TUTTI_ERR_DATA ? (tutti_status)w->status : TUTTI_ERR_BROKEN;
    return tutti_fail(status, "%s (told by rank %d)", w->text, from);
}

static tutti_status fail_leader(const tutti_contact *c, const char *what) {
    return tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (pid %lld), the first of this host, %s", c->place->leader,
                      (long long)c->place->leader_pid, what);
}

/* A word from the leader, with at most `capacity` descriptors. */
static tutti_status hear(tutti_contact *c, int *fds, int capacity, int *nfds_out) {
    word w;
    int nfds = 0;
    tutti_status status =
        tutti_wire_receive(c->connection, &w, sizeof w, fds, capacity, &nfds, c->deadline, "word of the first rank");
    if (status == TUTTI_ERR_PEER_DIED) return fail_leader(c, "has ended or given up while the communicator was made");
    TUTTI_TRY(status);
    status = heed(&w, c->place->leader);
    for (int i = 0; i < nfds && status != TUTTI_OK; i++) close(fds[i]);
    TUTTI_TRY(status);
    *nfds_out = nfds;
    return TUTTI_OK;
}

static tutti_status connect_to_leader(tutti_contact *c) {
    int64_t pid;
    tutti_status status = tutti_wire_connect(c->place->socket_name, c->deadline, &c->connection);
    if (status == TUTTI_ERR_PEER_DIED)
        return fail_leader(c, "has ended or given up, or TUTTI_HOST_ID joins two network namespaces, which share no "
                              "memory");
    TUTTI_TRY(status);
    if (!tutti_wire_is_same_user(c->connection, &pid) && !c->secret)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "rank %d runs as another user: set TUTTI_SECRET on all ranks to allow that",
                          c->place->leader);
    return TUTTI_OK;
}

/* Proves itself, and gives the heap. */
static tutti_status prove(tutti_contact *c) {
    hello h = {.rank = c->rank};
    proof p;
    uint8_t expected[TUTTI_SHA256_BYTES];
    TUTTI_TRY(tutti_random_bytes(h.nonce, sizeof h.nonce));
    TUTTI_TRY(tutti_wire_send(c->connection, &h, sizeof h, NULL, 0, c->deadline));
    TUTTI_TRY(tutti_wire_receive(c->connection, &p, sizeof p, NULL, 0, NULL, c->deadline, "proof of the first rank"));
    compute_mac(c, '0', &h, p.nonce, expected);
    if (!tutti_hmac_equal(expected, p.mac, sizeof expected)) return fail_secret(c->place->leader);
    entry e = {.rank = c->rank};
    compute_mac(c, 'r', &h, p.nonce, e.mac);
    TUTTI_TRY(tutti_heap_init());
    int heap_fd = tutti_heap_fd();
    return tutti_wire_send(c->connection, &e, sizeof e, &heap_fd, 1, c->deadline);
}

static tutti_status open_member(tutti_contact *c) {
    int fd = -1, nfds = 0;
    TUTTI_TRY(connect_to_leader(c));
    tutti_status status = prove(c);
    if (status == TUTTI_ERR_PEER_DIED) return fail_leader(c, "has ended or given up while the communicator was made");
    TUTTI_TRY(status);
    TUTTI_TRY(hear(c, &fd, 1, &nfds));
    if (nfds != 1) return fail_leader(c, "has sent no shared memory");
    TUTTI_TRY(tutti_hall_join(fd, c->nranks, nseats(c), &c->hall));
    return list_ranks(c, tutti_hall_roll(c->hall));
}

/* ----------------------------------------------------------------------------------------------- leader */

static int seat_of(const tutti_contact *c, int rank) {
    int seat = 0;
    while (seat < nseats(c) && c->ranks[seat] != rank) seat++;
    return seat;
}

/* Is that process one of the ranks that are missing? */
static bool is_awaited(const tutti_contact *c, const tutti_roll *roll, int64_t pid) {
    uint64_t space = tutti_card_pid_space();
    for (int seat = 1; seat < nseats(c) && pid > 0; seat++) {
        const tutti_roll_rank *rank = &tutti_roll_ranks(roll)[c->ranks[seat]];
        if (c->guests[seat].connection < 0 && rank->pid == pid && rank->pid_space == space) return true;
    }
    return false;
}

/* Lets one connection prove itself, and gives it the hall. */
static tutti_status admit(tutti_contact *c, int fd, tutti_deadline *patience) {
    hello h;
    proof p;
    entry e;
    uint8_t expected[TUTTI_SHA256_BYTES];
    TUTTI_TRY(tutti_wire_receive(fd, &h, sizeof h, NULL, 0, NULL, patience, "hello"));
    int seat = seat_of(c, h.rank), heap_fd = -1, nfds = 0;
    if (seat == 0 || seat == nseats(c) || c->guests[seat].connection >= 0)
        return tutti_fail(TUTTI_ERR_REFUSED, "hello of rank %d, which cannot be", h.rank);
    TUTTI_TRY(tutti_random_bytes(p.nonce, sizeof p.nonce));
    compute_mac(c, '0', &h, p.nonce, p.mac);
    TUTTI_TRY(tutti_wire_send(fd, &p, sizeof p, NULL, 0, patience));
    tutti_status status = tutti_wire_receive(fd, &e, sizeof e, &heap_fd, 1, &nfds, patience, "entry");
    if (status == TUTTI_ERR_PEER_DIED) return fail_secret(h.rank); /* it has not believed our proof */
    TUTTI_TRY(status);
    compute_mac(c, 'r', &h, p.nonce, expected);
    if (!tutti_hmac_equal(expected, e.mac, sizeof expected) || e.rank != h.rank || nfds != 1) {
        if (nfds == 1) close(heap_fd);
        return fail_secret(h.rank);
    }
    word welcome;
    int hall_fd = tutti_hall_fd(c->hall);
    fill_word(&welcome, TUTTI_OK);
    c->guests[seat].connection = fd;
    c->guests[seat].heap_fd = heap_fd;
    return tutti_wire_send(fd, &welcome, sizeof welcome, &hall_fd, 1, c->deadline);
}

/* Somebody is at the door. A stranger is sent away with a log line. */
static tutti_status answer(tutti_contact *c, const tutti_roll *roll) {
    int64_t pid = 0;
    tutti_deadline stranger = tutti_deadline_after_ms(STRANGER_MS);
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        return tutti_fail_errno(errno,
                                "the first rank of a host needs two descriptors for each other one; raise 'ulimit -n'");
    if (fd < 0) return TUTTI_OK;
    bool same_user = tutti_wire_is_same_user(fd, &pid), awaited = is_awaited(c, roll, pid);
    tutti_status status = c->secret || same_user ? admit(c, fd, awaited ? c->deadline : &stranger)
                                                 : tutti_fail(TUTTI_ERR_REFUSED, "another user connected");
    if (status == TUTTI_OK) return TUTTI_OK;
    for (int seat = 1; seat < nseats(c); seat++)
        if (c->guests[seat].connection == fd) return status; /* closed with the contact */
    close(fd);
    if (awaited) return status;
    tutti_log(TUTTI_LOG_WARN, "a connection was refused: %s", tutti_last_error());
    return TUTTI_OK;
}

static void list_missing(const tutti_contact *c, const tutti_roll *roll, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int seat = 1; seat < nseats(c) && used < capacity; seat++)
        if (c->guests[seat].connection < 0)
            used += (size_t)snprintf(text + used, capacity - used, "%srank %d (host %s, pid %lld)",
                                     used > 0 ? ", " : "", c->ranks[seat], tutti_roll_hosts(roll)[c->place->host].name,
                                     (long long)tutti_roll_ranks(roll)[c->ranks[seat]].pid);
}

static tutti_status fail_death(const tutti_contact *c, const tutti_roll *roll, int seat) {
    return tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (host %s, pid %lld) died while the communicator was made",
                      c->ranks[seat], tutti_roll_hosts(roll)[c->place->host].name,
                      (long long)tutti_roll_ranks(roll)[c->ranks[seat]].pid);
}

/* Has one of the missing ranks ended, or one of those that are here? */
static tutti_status look_for_deaths(const tutti_contact *c, const tutti_roll *roll) {
    uint64_t space = tutti_card_pid_space();
    for (int seat = 1; seat < nseats(c); seat++) {
        tutti_guest *guest = &c->guests[seat];
        const tutti_roll_rank *rank = &tutti_roll_ranks(roll)[c->ranks[seat]];
        struct pollfd look = {.fd = guest->connection, .events = 0};
        if (guest->connection < 0) {
            if (rank->pid_space != space || space == 0) continue;
            if (guest->pidfd < 0) guest->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)rank->pid, 0);
            if (guest->pidfd < 0 && errno == ESRCH) return fail_death(c, roll, seat);
            look = (struct pollfd){.fd = guest->pidfd, .events = POLLIN};
        }
        if (look.fd >= 0 && poll(&look, 1, 0) > 0) {
            bool came = guest->connection < 0 && poll(&(struct pollfd){.fd = c->listen_fd, .events = POLLIN}, 1, 0) > 0;
            if (!came) return fail_death(c, roll, seat);
        }
    }
    return TUTTI_OK;
}

static int count_missing(const tutti_contact *c) {
    int missing = 0;
    for (int seat = 1; seat < nseats(c); seat++) missing += c->guests[seat].connection < 0;
    return missing;
}

static tutti_status await_guests(tutti_contact *c, const tutti_roll *roll) {
    char missing[600];
    while (count_missing(c) > 0) {
        struct pollfd door = {.fd = c->listen_fd, .events = POLLIN};
        int ready = poll(&door, 1, LOOK_MS);
        if (ready < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll while waiting for ranks of this host");
        if (ready > 0) TUTTI_TRY(answer(c, roll));
        if (ready == 0) TUTTI_TRY(look_for_deaths(c, roll));
        if (!tutti_deadline_passed(c->deadline)) continue;
        list_missing(c, roll, missing, sizeof missing);
        return tutti_fail(TUTTI_ERR_TIMEOUT,
                          "not all ranks of this host have connected before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS); missing: %s",
                          missing);
    }
    return TUTTI_OK;
}

static tutti_status open_leader(tutti_contact *c, const tutti_roll *roll) {
    TUTTI_TRY(tutti_calloc((size_t)nseats(c), sizeof *c->guests, &c->guests));
    for (int seat = 0; seat < nseats(c); seat++)
        c->guests[seat] = (tutti_guest){.connection = -1, .heap_fd = -1, .pidfd = -1};
    TUTTI_TRY(list_ranks(c, roll));
    TUTTI_TRY(tutti_hall_create(roll, c->place->host, &c->hall));
    return await_guests(c, roll);
}

/* Says it to all who are here; who is not is beyond help. */
static void say_to_all(const tutti_contact *c, tutti_status status) {
    word w;
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    fill_word(&w, status);
    for (int seat = 1; seat < nseats(c) && c->guests != NULL; seat++)
        if (c->guests[seat].connection >= 0)
            (void)tutti_wire_send(c->guests[seat].connection, &w, sizeof w, NULL, 0, c->deadline);
    tutti_fail(status, "%s", text);
}

/* ------------------------------------------------------------------------------------------------ both */

tutti_status tutti_contact_listen(char name_out[TUTTI_SOCKET_NAME_BYTES], int *fd_out) {
    uint8_t random[16];
    TUTTI_TRY(tutti_random_bytes(random, sizeof random));
    int used = snprintf(name_out, TUTTI_SOCKET_NAME_BYTES, "tutti-");
    for (size_t i = 0; i < sizeof random; i++)
        used += snprintf(name_out + used, TUTTI_SOCKET_NAME_BYTES - (size_t)used, "%02x", random[i]);
    return tutti_wire_listen(name_out, fd_out);
}

tutti_status tutti_contact_open(tutti_contact *c, const tutti_roll *roll) {
    TUTTI_TRY(choose_key(c));
    TUTTI_TRY(leads(c) ? open_leader(c, roll) : open_member(c));
    return tutti_hall_sit(c->hall, c->seat);
}

tutti_status tutti_contact_ready(tutti_contact *c, tutti_status status) {
    word w;
    if (!leads(c)) {
        char text[TEXT_BYTES];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        fill_word(&w, status);
        if (c->connection < 0) return status;
        tutti_status sent = tutti_wire_send(c->connection, &w, sizeof w, NULL, 0, c->deadline);
        if (sent == TUTTI_ERR_PEER_DIED) sent = TUTTI_OK; /* its last word, which tells why, is yet to be heard */
        return status != TUTTI_OK ? tutti_fail(status, "%s", text) : sent;
    }
    for (int seat = 1; seat < nseats(c) && status == TUTTI_OK; seat++) {
        status = tutti_wire_receive(c->guests[seat].connection, &w, sizeof w, NULL, 0, NULL, c->deadline,
                                    "readiness of a rank");
        if (status == TUTTI_ERR_PEER_DIED) status = fail_death(c, tutti_hall_roll(c->hall), seat);
        if (status == TUTTI_OK) status = heed(&w, c->ranks[seat]);
    }
    return status;
}

/* The seats that are the first of their process, from `seat` on; nseats: there is none. */
static int next_process(const tutti_contact *c, int seat) {
    for (; seat < nseats(c); seat++) {
        const uint8_t *id = tutti_hall_seat(c->hall, seat)->card.id;
        int before = 0;
        while (before < seat && memcmp(tutti_hall_seat(c->hall, before)->card.id, id, TUTTI_PROCESS_ID_BYTES) != 0)
            before++;
        if (before == seat) return seat;
    }
    return seat;
}

/* Gives all heaps to all, some at a time. */
static tutti_status hand_out(tutti_contact *c) {
    word w;
    fill_word(&w, TUTTI_OK);
    for (int next = next_process(c, 0); next < nseats(c);) {
        int fds[TUTTI_WIRE_FDS], count = 0;
        for (; next < nseats(c) && count < TUTTI_WIRE_FDS; next = next_process(c, next + 1))
            fds[count++] = next == 0 ? tutti_heap_fd() : c->guests[next].heap_fd;
        for (int seat = 1; seat < nseats(c); seat++)
            TUTTI_TRY(tutti_wire_send(c->guests[seat].connection, &w, sizeof w, fds, count, c->deadline));
    }
    return TUTTI_OK;
}

/* Maps the process of that seat, unless it is known; takes the descriptor. */
static tutti_status map_member(tutti_contact *c, int seat, int heap_fd, tutti_member *members) {
    TUTTI_TRY(tutti_peer_admit(c->hall, seat, heap_fd, &members[seat].process));
    members[seat].page = tutti_hall_page(c->hall, seat);
    return TUTTI_OK;
}

static tutti_status map_from_leader(tutti_contact *c, tutti_member *members) {
    int next = next_process(c, 0);
    while (next < nseats(c)) {
        int fds[TUTTI_WIRE_FDS], count = 0, used = 0;
        TUTTI_TRY(hear(c, fds, TUTTI_WIRE_FDS, &count));
        tutti_status status = count > 0 ? TUTTI_OK : fail_leader(c, "has sent too little");
        for (; next < nseats(c) && used < count && status == TUTTI_OK; next = next_process(c, next + 1))
            status = map_member(c, next, fds[used++], members);
        while (used < count) close(fds[used++]);
        TUTTI_TRY(status);
    }
    return TUTTI_OK;
}

static tutti_status map_own(tutti_contact *c, tutti_member *members) {
    for (int next = next_process(c, 0); next < nseats(c); next = next_process(c, next + 1)) {
        int fd = c->guests[next].heap_fd;
        c->guests[next].heap_fd = -1;
        TUTTI_TRY(map_member(c, next, fd, members));
    }
    return TUTTI_OK;
}

tutti_status tutti_contact_share(tutti_contact *c, tutti_status status, tutti_member *members) {
    if (leads(c)) {
        if (status == TUTTI_OK) status = hand_out(c);
        if (status != TUTTI_OK) say_to_all(c, status);
        TUTTI_TRY(status);
        TUTTI_TRY(map_own(c, members));
    } else {
        TUTTI_TRY(map_from_leader(c, members));
    }
    for (int seat = 0; seat < nseats(c); seat++) /* further ranks of a process that is known by now */
        if (members[seat].process == NULL) TUTTI_TRY(map_member(c, seat, -1, members));
    return TUTTI_OK;
}

void tutti_contact_close(tutti_contact *c) {
    for (int seat = 0; c->guests != NULL && seat < nseats(c); seat++) {
        const tutti_guest *guest = &c->guests[seat];
        if (guest->connection >= 0) close(guest->connection);
        if (guest->heap_fd >= 0) close(guest->heap_fd);
        if (guest->pidfd >= 0) close(guest->pidfd);
    }
    if (c->connection >= 0) close(c->connection);
    if (c->listen_fd >= 0) close(c->listen_fd);
    memset(c->key, 0, sizeof c->key);
    free(c->guests);
    free(c->ranks);
}
