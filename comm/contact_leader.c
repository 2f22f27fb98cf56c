/*
 * The leader lets the others of its host in. See contact.h for what is said.
 *
 * It serves one connection after the other; each takes a few messages. Whoever does not come is looked after by his
 * process id, as the roll gives it, so that an end is noticed before the deadline; and so is one of them who does not know
 * the secret, which else could be any stranger.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "comm/contact_state.h"
#include "comm/contact_wire.h"

#define STRANGER_MS 2000 /* who is not in the roll must prove himself within this */
#define LOOK_MS     200  /* nobody has come for so long: have those ended that are missing? */

static int seat_of(const tutti_contact *c, int rank) {
    int seat = 0;
    while (seat < tutti_contact_nseats(c) && c->ranks[seat] != rank) seat++;
    return seat;
}

/* Is that process one of the ranks that are missing? */
static bool is_awaited(const tutti_contact *c, const tutti_roll *roll, int64_t pid) {
    uint64_t space = tutti_card_pid_space();
    for (int seat = 1; seat < tutti_contact_nseats(c) && pid > 0; seat++) {
        const tutti_roll_rank *rank = &tutti_roll_ranks(roll)[c->ranks[seat]];
        if (c->guests[seat].connection < 0 && rank->pid == pid && rank->pid_space == space) return true;
    }
    return false;
}

/* Lets one connection prove itself, and gives it the hall. */
static tutti_status admit(tutti_contact *c, int fd, tutti_deadline *patience) {
    tutti_contact_hello h;
    tutti_contact_proof p;
    tutti_contact_entry e;
    uint8_t expected[TUTTI_SHA256_BYTES];
    TUTTI_TRY(tutti_wire_receive(fd, &h, sizeof h, NULL, 0, NULL, patience, "hello"));
    int seat = seat_of(c, h.rank), heap_fd = -1, nfds = 0;
    if (seat == 0 || seat == tutti_contact_nseats(c) || c->guests[seat].connection >= 0)
        return tutti_fail(TUTTI_ERR_REFUSED, "hello of rank %d, which cannot be", h.rank);
    TUTTI_TRY(tutti_random_bytes(p.nonce, sizeof p.nonce));
    tutti_contact_mac(c, '0', &h, p.nonce, p.mac);
    TUTTI_TRY(tutti_wire_send(fd, &p, sizeof p, NULL, 0, patience));
    tutti_status status = tutti_wire_receive(fd, &e, sizeof e, &heap_fd, 1, &nfds, patience, "entry");
    if (status == TUTTI_ERR_PEER_DIED) return tutti_contact_fail_secret(h.rank); /* it has not believed our proof */
    TUTTI_TRY(status);
    tutti_contact_mac(c, 'r', &h, p.nonce, expected);
    if (!tutti_hmac_equal(expected, e.mac, sizeof expected) || e.rank != h.rank || nfds != 1) {
        if (nfds == 1) close(heap_fd);
        return tutti_contact_fail_secret(h.rank);
    }
    tutti_contact_word welcome;
    int hall_fd = tutti_hall_fd(c->hall);
    tutti_contact_fill_word(&welcome, TUTTI_OK);
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
    for (int seat = 1; seat < tutti_contact_nseats(c); seat++)
        if (c->guests[seat].connection == fd) return status; /* closed with the contact */
    close(fd);
    if (awaited) return status;
    tutti_log(TUTTI_LOG_WARN, "a connection was refused: %s", tutti_last_error());
    return TUTTI_OK;
}

static void list_missing(const tutti_contact *c, const tutti_roll *roll, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int seat = 1; seat < tutti_contact_nseats(c) && used < capacity; seat++)
        if (c->guests[seat].connection < 0)
            used += (size_t)snprintf(text + used, capacity - used, "%srank %d (host %s, pid %lld)",
                                     used > 0 ? ", " : "", c->ranks[seat], tutti_roll_hosts(roll)[c->place->host].name,
                                     (long long)tutti_roll_ranks(roll)[c->ranks[seat]].pid);
}

tutti_status tutti_contact_fail_death(const tutti_contact *c, const tutti_roll *roll, int seat) {
    return tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (host %s, pid %lld) died while the communicator was made",
                      c->ranks[seat], tutti_roll_hosts(roll)[c->place->host].name,
                      (long long)tutti_roll_ranks(roll)[c->ranks[seat]].pid);
}

/* Has one of the missing ranks ended, or one of those that are here? */
static tutti_status look_for_deaths(const tutti_contact *c, const tutti_roll *roll) {
    uint64_t space = tutti_card_pid_space();
    for (int seat = 1; seat < tutti_contact_nseats(c); seat++) {
        tutti_guest *guest = &c->guests[seat];
        const tutti_roll_rank *rank = &tutti_roll_ranks(roll)[c->ranks[seat]];
        struct pollfd look = {.fd = guest->connection, .events = 0};
        if (guest->connection < 0) {
            if (rank->pid_space != space || space == 0) continue;
            if (guest->pidfd < 0) guest->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)rank->pid, 0);
            if (guest->pidfd < 0 && errno == ESRCH) return tutti_contact_fail_death(c, roll, seat);
            look = (struct pollfd){.fd = guest->pidfd, .events = POLLIN};
        }
        if (look.fd >= 0 && poll(&look, 1, 0) > 0) {
            bool came = guest->connection < 0 && poll(&(struct pollfd){.fd = c->listen_fd, .events = POLLIN}, 1, 0) > 0;
            if (!came) return tutti_contact_fail_death(c, roll, seat);
        }
    }
    return TUTTI_OK;
}

static int count_missing(const tutti_contact *c) {
    int missing = 0;
    for (int seat = 1; seat < tutti_contact_nseats(c); seat++) missing += c->guests[seat].connection < 0;
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
        if (!tutti_deadline_passed(c->deadline)) {
            if (!tutti_notice_due(&c->notice, c->deadline->spent_ns - c->begin_ns)) continue;
            list_missing(c, roll, missing, sizeof missing);
            tutti_log(TUTTI_LOG_WARN,
                      "the start has waited %lld s for ranks of this host that do not go on: %s; waits until "
                      "TUTTI_CONNECT_TIMEOUT_MS",
                      (long long)(c->deadline->spent_ns - c->begin_ns) / TUTTI_NS_PER_S, missing);
            continue;
        }
        list_missing(c, roll, missing, sizeof missing);
        return tutti_fail(TUTTI_ERR_TIMEOUT,
                          "not all ranks of this host have connected before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS); missing: %s",
                          missing);
    }
    return TUTTI_OK;
}

tutti_status tutti_contact_open_leader(tutti_contact *c, const tutti_roll *roll) {
    TUTTI_TRY(tutti_calloc((size_t)tutti_contact_nseats(c), sizeof *c->guests, &c->guests));
    for (int seat = 0; seat < tutti_contact_nseats(c); seat++)
        c->guests[seat] = (tutti_guest){.connection = -1, .heap_fd = -1, .pidfd = -1};
    TUTTI_TRY(tutti_contact_list_ranks(c, roll));
    TUTTI_TRY(tutti_hall_create(roll, c->place->host, &c->hall));
    return await_guests(c, roll);
}

void tutti_contact_say_to_all(const tutti_contact *c, tutti_status status) {
    tutti_contact_word w;
    char text[TUTTI_CONTACT_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_contact_fill_word(&w, status);
    for (int seat = 1; seat < tutti_contact_nseats(c) && c->guests != NULL; seat++)
        if (c->guests[seat].connection >= 0)
            (void)tutti_wire_send(c->guests[seat].connection, &w, sizeof w, NULL, 0, c->deadline);
    tutti_fail(status, "%s", text);
}
