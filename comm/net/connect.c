/*
 * How connections are authenticated, and the connecting side. The first half makes and checks the messages of both
 * sides (listener_state.h), with the keys and the addresses that they name, and sends nothing. The second half tries
 * all addresses of a listener at once, and authenticates on the first that leads to the right process:
 *
 *   WAITING (its turn) -> CONNECTING -> REPLY (hello sent) -> PROVED (reply valid) -> WELCOME (proof sent)
 *
 * Addresses that lead to another process or nowhere (another host with the same private address, a bridge inside
 * the other host) are recognized by the listener's own proof, before this side proves anything. Only one connection
 * at a time proceeds to the proof, so that only one arrives.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/machine/interfaces.h"
#include "comm/base/comm.h"
#include "comm/net/listener_state.h"

#define STAGGER_MS      20
#define MOST_CANDIDATES 16
#define FRESH_RETRY_MS  2000 /* a listener that refuses connections may still be opening, or be flooded */
#define SHORTEST_NAP_MS 20
#define LONGEST_NAP_MS  500

#define CLOSED "it closed the connection: it is not a process of this job, or too busy"

/* ------------------------------------------------------------------------------------------------- keys */

static tutti_listener_key all_keys[TUTTI_LISTENER_KEYS]; /* newest first; under TUTTI_LOCK_KEYS */
static int nall_keys;

static void forget(tutti_listener_key *keys, int nkeys) {
    explicit_bzero(keys, (size_t)nkeys * sizeof keys[0]);
}

tutti_status tutti_listener_add_key(const void *key, size_t key_bytes) {
    tutti_listener_key added = {.bytes = key_bytes};
    if (key_bytes == 0 || key_bytes > sizeof added.key)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "a key has 1 to %zu bytes, not %zu", sizeof added.key, key_bytes);
    memcpy(added.key, key, key_bytes);
    tutti_lock(TUTTI_LOCK_KEYS);
    int at = 0;
    while (at < nall_keys && memcmp(&all_keys[at], &added, sizeof added) != 0) at++;
    if (at == nall_keys && nall_keys < TUTTI_LISTENER_KEYS) nall_keys++;
    if (at == TUTTI_LISTENER_KEYS) at--;
    memmove(all_keys + 1, all_keys, (size_t)at * sizeof all_keys[0]);
    all_keys[0] = added;
    tutti_unlock(TUTTI_LOCK_KEYS);
    forget(&added, 1);
    return TUTTI_OK;
}

/* Copies all keys, newest first; returns their number. */
static int copy_keys(tutti_listener_key keys_out[TUTTI_LISTENER_KEYS]) {
    tutti_lock(TUTTI_LOCK_KEYS);
    int count = nall_keys;
    memcpy(keys_out, all_keys, (size_t)count * sizeof all_keys[0]);
    tutti_unlock(TUTTI_LOCK_KEYS);
    return count;
}

/* ------------------------------------------------------------------------------------------------- MACs */

static void hint_at(const tutti_listener_key *key, const tutti_listener_hello *hello,
                    uint8_t hint[TUTTI_LISTENER_HINT_BYTES]) {
    uint8_t text[1 + sizeof hello->nonce] = {'h'}, mac[TUTTI_SHA256_BYTES];
    memcpy(text + 1, hello->nonce, sizeof hello->nonce);
    tutti_hmac_of(key->key, key->bytes, text, sizeof text, mac);
    memcpy(hint, mac, TUTTI_LISTENER_HINT_BYTES);
}

/* The MAC of `side`: 'd' the listener, 'c' the connecting side; with 's', the connection's own key. */
static void prove(const tutti_listener_key *key, char side, const tutti_listener_hello *hello,
                  const uint8_t nonce[TUTTI_LISTENER_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]) {
    uint8_t text[1 + sizeof *hello + TUTTI_LISTENER_NONCE_BYTES];
    text[0] = (uint8_t)side;
    memcpy(text + 1, hello, sizeof *hello);
    memcpy(text + 1 + sizeof *hello, nonce, TUTTI_LISTENER_NONCE_BYTES);
    tutti_hmac_of(key->key, key->bytes, text, sizeof text, mac);
}

/* ---------------------------------------------------------------------------------------------- messages */

tutti_status tutti_listener_make_hello(const tutti_conn_id *conn_id, const tutti_listener_key *keys, int nkeys,
                                       tutti_listener_hello *hello_out) {
    tutti_listener_hello hello;
    memset(&hello, 0, sizeof hello);
    hello.magic = TUTTI_LISTENER_MAGIC;
    hello.conn_id = *conn_id;
    TUTTI_TRY(tutti_getrandom(hello.nonce, sizeof hello.nonce));
    for (int i = 0; i < nkeys && i < TUTTI_LISTENER_HINTS; i++) hint_at(&keys[i], &hello, hello.hints[i]);
    *hello_out = hello;
    return TUTTI_OK;
}

/* The lane number must be valid whatever the connection is for: a pipe has lanes 0 to lanes-1. */
static bool is_sane(const tutti_listener_hello *hello) {
    const tutti_conn_id *conn_id = &hello->conn_id;
    return hello->magic == TUTTI_LISTENER_MAGIC && conn_id->lanes <= TUTTI_LANES_MOST && conn_id->lane < conn_id->lanes;
}

/* The first of our keys that the hello hints at; -1: none. */
static int find_key(const tutti_listener_hello *hello, const tutti_listener_key *keys, int nkeys, uint32_t *hint_out) {
    for (int k = 0; k < nkeys; k++) {
        uint8_t hint[TUTTI_LISTENER_HINT_BYTES];
        hint_at(&keys[k], hello, hint);
        for (uint32_t i = 0; i < TUTTI_LISTENER_HINTS; i++) {
            if (!tutti_hmac_equal(hint, hello->hints[i], sizeof hint)) continue;
            *hint_out = i;
            return k;
        }
    }
    return -1;
}

tutti_status tutti_listener_answer(const tutti_listener_hello *hello, const uint8_t self[16],
                                   const tutti_listener_endpoint *here, tutti_listener_reply *reply_out,
                                   tutti_listener_proof *expected_out, uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]) {
    tutti_listener_key keys[TUTTI_LISTENER_KEYS];
    tutti_listener_reply reply;
    memset(&reply, 0, sizeof reply);
    reply.magic = TUTTI_LISTENER_MAGIC;
    reply.verdict = TUTTI_LISTENER_ACCEPTED;
    int nkeys = copy_keys(keys), key = -1;
    tutti_status status = TUTTI_OK;
    if (!is_sane(hello)) reply.verdict = TUTTI_LISTENER_GARBAGE;
    else if (memcmp(hello->conn_id.to, self, sizeof hello->conn_id.to) != 0) reply.verdict = TUTTI_LISTENER_ELSEWHERE;
    else if (memcmp(&hello->called, here, sizeof *here) != 0) reply.verdict = TUTTI_LISTENER_REDIRECTED;
    else if ((key = find_key(hello, keys, nkeys, &reply.hint)) < 0) reply.verdict = TUTTI_LISTENER_UNKNOWN;
    else status = tutti_getrandom(reply.nonce, sizeof reply.nonce);
    if (status == TUTTI_OK && reply.verdict == TUTTI_LISTENER_ACCEPTED) {
        prove(&keys[key], 'd', hello, reply.nonce, reply.mac);
        prove(&keys[key], 'c', hello, reply.nonce, expected_out->mac);
        prove(&keys[key], 's', hello, reply.nonce, key_out);
    }
    forget(keys, nkeys);
    *reply_out = reply;
    return status;
}

tutti_listener_verdict tutti_listener_check_reply(const tutti_listener_hello *hello, const tutti_listener_reply *reply,
                                                  const tutti_listener_key *keys, int nkeys,
                                                  tutti_listener_proof *proof_out,
                                                  uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]) {
    uint8_t expected[TUTTI_SHA256_BYTES];
    if (reply->magic != TUTTI_LISTENER_MAGIC || reply->verdict >= TUTTI_LISTENER_VERDICTS)
        return TUTTI_LISTENER_GARBAGE;
    if (reply->verdict != TUTTI_LISTENER_ACCEPTED) return (tutti_listener_verdict)reply->verdict;
    if (reply->hint >= TUTTI_LISTENER_HINTS || (int)reply->hint >= nkeys) return TUTTI_LISTENER_GARBAGE;
    prove(&keys[reply->hint], 'd', hello, reply->nonce, expected);
    if (!tutti_hmac_equal(expected, reply->mac, sizeof expected)) return TUTTI_LISTENER_UNPROVED;
    prove(&keys[reply->hint], 'c', hello, reply->nonce, proof_out->mac);
    prove(&keys[reply->hint], 's', hello, reply->nonce, key_out);
    return TUTTI_LISTENER_ACCEPTED;
}

const char *tutti_listener_verdict_text(tutti_listener_verdict verdict) {
    switch (verdict) {
    case TUTTI_LISTENER_ACCEPTED: return "it is accepted";
    case TUTTI_LISTENER_GARBAGE: return "it is not a process of this version of Tutti";
    case TUTTI_LISTENER_ELSEWHERE: return "another process than the intended one listens there";
    case TUTTI_LISTENER_UNKNOWN:
        return "it does not know this job's secret (TUTTI_SECRET or its file must be equal on all hosts)";
    case TUTTI_LISTENER_UNPROVED: return "it could not prove that it knows this job's secret";
    case TUTTI_LISTENER_REDIRECTED:
        return "the connection arrived at another address or port than the one it was made to: address translation "
               "needs TUTTI_ADVERTISE on the host that is called";
    default: return "it gives no reason";
    }
}

/* --------------------------------------------------------------------------------------------- addresses */

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* how an IPv4 address begins as IPv6 */

unsigned tutti_listener_sockaddr(const tutti_listener_address *address, uint16_t port,
                                 struct sockaddr_storage *address_out) {
    memset(address_out, 0, sizeof *address_out);
    if (memcmp(address->bytes, mapped, sizeof mapped) == 0) {
        struct sockaddr_in *four = (struct sockaddr_in *)address_out;
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        memcpy(&four->sin_addr, address->bytes + sizeof mapped, sizeof four->sin_addr);
        return sizeof *four;
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address_out;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    six->sin6_scope_id = address->scope;
    memcpy(&six->sin6_addr, address->bytes, sizeof six->sin6_addr);
    return sizeof *six;
}

tutti_listener_endpoint tutti_listener_called(int fd, bool by_this_side) {
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    tutti_listener_endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    memset(&name, 0, sizeof name);
    int error = by_this_side ? getpeername(fd, (struct sockaddr *)&name, &bytes)
                             : getsockname(fd, (struct sockaddr *)&name, &bytes);
    if (error != 0) return endpoint; /* the connection is broken: the next message fails */
    if (name.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&name;
        memcpy(endpoint.address, mapped, sizeof mapped);
        memcpy(endpoint.address + sizeof mapped, &four->sin_addr, sizeof four->sin_addr);
        endpoint.port = ntohs(four->sin_port);
    } else {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&name;
        memcpy(endpoint.address, &six->sin6_addr, sizeof endpoint.address);
        endpoint.port = ntohs(six->sin6_port);
    }
    return endpoint;
}

/* -------------------------------------------------------------------------------------------- candidates */

typedef enum stage { WAITING, CONNECTING, REPLY, PROVED, WELCOME, FAILED } stage;

typedef struct candidate {
    tutti_listener_address address;
    stage stage;
    int64_t start_ns; /* does not start earlier */
    int fd;
    size_t got;                 /* bytes received of the message that is due */
    tutti_listener_hello hello; /* the connector's hello, with the address that is connected to */
    tutti_listener_reply reply;
    tutti_listener_accepted welcome;
    tutti_listener_proof proof;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES]; /* of the connection, once the listener has authenticated itself */
    int64_t retry_ms;                        /* FAILED: time after the start within which another try may help */
    bool lacks_secret;                       /* FAILED: it does not know the secret */
    char reason[160];
} candidate;

typedef struct connector {
    const tutti_listener_info *listener;
    tutti_listener_hello hello;
    tutti_listener_key *keys;
    int nkeys, ncandidates;
    candidate candidates[MOST_CANDIDATES];
    tutti_deadline *deadline;
    int64_t start_ns;
} connector;

static bool is_link_local(const uint8_t bytes[16]) {
    return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

static void add_candidate(connector *k, const tutti_listener_address *address, uint32_t scope) {
    if (k->ncandidates == MOST_CANDIDATES) return;
    candidate *c = &k->candidates[k->ncandidates++];
    *c = (candidate){.address = *address, .fd = -1};
    c->address.scope = scope;
    c->address.interface[sizeof c->address.interface - 1] = '\0';
}

/* Whether the address is probably in one of our networks, by the first 24 bits (IPv4) or 64 (IPv6). */
static bool is_near(const tutti_listener_address *address, const tutti_interface *own, int nown) {
    size_t same = memcmp(address->bytes, mapped, sizeof mapped) == 0 ? 15 : 8;
    for (int i = 0; i < nown; i++)
        if (memcmp(address->bytes, own[i].address, same) == 0) return true;
    return false;
}

static void list_candidates(connector *k) {
    tutti_interface own[TUTTI_LISTENER_ADDRESSES];
    int nown = 0;
    if (tutti_interfaces_list(own, TUTTI_LISTENER_ADDRESSES, &nown) != TUTTI_OK) nown = 0;
    int naddresses =
        k->listener->naddresses < TUTTI_LISTENER_ADDRESSES ? k->listener->naddresses : TUTTI_LISTENER_ADDRESSES;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < naddresses; i++) {
            const tutti_listener_address *address = &k->listener->addresses[i];
            if (is_near(address, own, nown) != (pass == 0)) continue;
            if (!is_link_local(address->bytes)) add_candidate(k, address, 0);
            /* Valid on one network link only, and only this side knows which of its own links that may be. */
            for (int o = 0; o < nown && is_link_local(address->bytes); o++)
                if (own[o].scope != 0) add_candidate(k, address, own[o].scope);
        }
}

static void give_up(candidate *c, int64_t retry_ms, const char *reason) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->stage = FAILED;
    c->retry_ms = retry_ms;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
}

static void give_up_errno(candidate *c, int error) {
    bool closed = error == ECONNRESET || error == EPIPE, refused = error == ECONNREFUSED;
    int64_t retry_ms = closed || refused ? FRESH_RETRY_MS : tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS);
    give_up(c, retry_ms,
            closed    ? CLOSED
            : refused ? "connection refused: the process has ended, or a firewall blocks it"
                      : strerror(error));
}

/* ------------------------------------------------------------------------------------------------ stages */

static void start(connector *k, candidate *c) {
    struct sockaddr_storage name;
    int one = 1;
    unsigned bytes = tutti_listener_sockaddr(&c->address, k->listener->port, &name);
    c->fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    c->got = 0;
    c->stage = CONNECTING;
    if (c->fd >= 0) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->fd < 0 || (connect(c->fd, (struct sockaddr *)&name, bytes) != 0 && errno != EINPROGRESS))
        give_up_errno(c, errno);
}

static void say(candidate *c, const void *message, size_t bytes, stage next) {
    c->got = 0;
    c->stage = next;
    if (send(c->fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes) give_up_errno(c, errno);
}

/* Receives more of the message that is due; true when it is complete. */
static bool hear(candidate *c, void *message, size_t bytes) {
    ssize_t got = recv(c->fd, (char *)message + c->got, bytes - c->got, MSG_DONTWAIT);
    if (got > 0) c->got += (size_t)got;
    else if (got == 0) give_up(c, FRESH_RETRY_MS, CLOSED);
    else if (errno != EAGAIN && errno != EINTR) give_up_errno(c, errno);
    return c->stage != FAILED && c->got == bytes;
}

static void check_reply(connector *k, candidate *c) {
    tutti_listener_verdict verdict =
        tutti_listener_check_reply(&c->hello, &c->reply, k->keys, k->nkeys, &c->proof, c->key);
    c->stage = PROVED;
    if (verdict == TUTTI_LISTENER_ACCEPTED) return;
    c->lacks_secret = verdict == TUTTI_LISTENER_UNKNOWN || verdict == TUTTI_LISTENER_UNPROVED;
    give_up(c, /* retry_ms */ 0, tutti_listener_verdict_text(verdict));
}

static void advance(connector *k, candidate *c) {
    int error = 0;
    socklen_t bytes = sizeof error;
    switch (c->stage) {
    case CONNECTING:
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
        if (error != 0) {
            give_up_errno(c, error);
            break;
        }
        c->hello = k->hello;
        c->hello.called = tutti_listener_called(c->fd, /* by_this_side */ true);
        say(c, &c->hello, sizeof c->hello, REPLY);
        break;
    case REPLY:
        if (hear(c, &c->reply, sizeof c->reply)) check_reply(k, c);
        break;
    case WELCOME:
        if (!hear(c, &c->welcome, sizeof c->welcome)) break;
        if (c->welcome.magic != TUTTI_LISTENER_MAGIC || c->welcome.verdict != TUTTI_LISTENER_ACCEPTED)
            give_up(c, 0, "it rejected our proof");
        break;
    default: break;
    }
}

static bool is_welcome(const candidate *c) {
    return c->stage == WELCOME && c->got == sizeof c->welcome;
}

/* ------------------------------------------------------------------------------------------------ rounds */

/* Waits for any of them, at most until the next one is due to start. */
static void wait_for_any(connector *k) {
    struct pollfd waited[MOST_CANDIDATES];
    int which[MOST_CANDIDATES], count = 0;
    int64_t now_ns = tutti_now_ns(), next_ns = now_ns + 100 * TUTTI_NS_PER_MS;
    for (int i = 0; i < k->ncandidates; i++) {
        candidate *c = &k->candidates[i];
        if (c->stage == WAITING) next_ns = tutti_min_i64(next_ns, c->start_ns);
        if (c->stage != CONNECTING && c->stage != REPLY && c->stage != WELCOME) continue;
        which[count] = i;
        waited[count++] = (struct pollfd){.fd = c->fd, .events = c->stage == CONNECTING ? POLLOUT : POLLIN};
    }
    struct timespec most = {.tv_nsec = next_ns > now_ns ? next_ns - now_ns : 0};
    if (ppoll(waited, (nfds_t)count, &most, NULL) <= 0) return;
    for (int i = 0; i < count; i++)
        if (waited[i].revents != 0) advance(k, &k->candidates[which[i]]);
}

/* Starts candidates that are due: after a delay, or when all before them have failed. Sends our proof to the first
 * listener that has authenticated itself, if no other proof is on its way. False: no candidate is left. */
static bool look(connector *k) {
    int64_t now_ns = tutti_now_ns();
    bool under_way = false, proving = false, left = false;
    for (int i = 0; i < k->ncandidates; i++) proving = proving || k->candidates[i].stage == WELCOME;
    for (int i = 0; i < k->ncandidates; i++) {
        candidate *c = &k->candidates[i];
        if (c->stage == WAITING && (now_ns >= c->start_ns || !under_way)) start(k, c);
        if (c->stage == PROVED && !proving) {
            proving = true;
            say(c, &c->proof, sizeof c->proof, WELCOME);
        }
        under_way = under_way || (c->stage != WAITING && c->stage != FAILED);
        left = left || c->stage != FAILED;
    }
    return left;
}

static void close_others(connector *k, const candidate *taken) {
    for (int i = 0; i < k->ncandidates; i++) {
        candidate *c = &k->candidates[i];
        if (c == taken || c->fd < 0) continue;
        close(c->fd);
        c->fd = -1;
    }
}

/* Tries all candidates once. TUTTI_NOT_YET: all have failed. */
static tutti_status try_all(connector *k, tutti_connection *connection_out) {
    for (int i = 0; i < k->ncandidates; i++) {
        k->candidates[i].stage = WAITING;
        k->candidates[i].start_ns = tutti_now_ns() + i * STAGGER_MS * TUTTI_NS_PER_MS;
    }
    while (look(k)) {
        wait_for_any(k);
        for (int i = 0; i < k->ncandidates; i++) {
            candidate *c = &k->candidates[i];
            if (!is_welcome(c)) continue;
            close_others(k, c);
            fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) & ~O_NONBLOCK);
            *connection_out = (tutti_connection){.socket = c->fd, .called = true};
            memcpy(connection_out->key, c->key, sizeof c->key);
            return TUTTI_OK;
        }
        TUTTI_TRY(tutti_interrupt_check());
        if (tutti_deadline_passed(k->deadline)) return TUTTI_ERR_TIMEOUT;
    }
    return TUTTI_NOT_YET;
}

static tutti_status unreachable(connector *k, tutti_status status) {
    char table[1400] = "", text[TUTTI_ADDRESS_TEXT_BYTES];
    size_t used = 0;
    bool lacks_secret = false;
    int64_t waited_ms = (tutti_now_ns() - k->start_ns) / TUTTI_NS_PER_MS;
    for (int i = 0; i < k->ncandidates && used < sizeof table; i++) {
        candidate *c = &k->candidates[i];
        if (c->stage != FAILED && c->reason[0] == '\0') /* an earlier try may have a better reason */
            snprintf(c->reason, sizeof c->reason, "%s within %lld ms",
                     c->stage <= CONNECTING ? "no answer" : "it accepts connections, but sends nothing",
                     (long long)waited_ms);
        lacks_secret = lacks_secret || c->lacks_secret;
        tutti_address_text(c->address.bytes, c->address.scope, text);
        used += (size_t)snprintf(table + used, sizeof table - used, "\n  %s port %u (its %s): %s%s", text,
                                 k->listener->port, c->address.interface, c->reason,
                                 tutti_address_is_loopback(c->address.bytes)
                                     ? "; on each host, this address leads to that host itself"
                                     : "");
    }
    if (lacks_secret) status = TUTTI_ERR_REFUSED;
    else if (status == TUTTI_NOT_YET) status = TUTTI_ERR_SYSTEM;
    return tutti_fail(
        status,
        "it was not reached at any of its addresses; tried:%s\nSet TUTTI_SOCKET_IFNAME on its host to the "
        "interfaces that this host can reach",
        table);
}

static tutti_status retry(connector *k, tutti_connection *connection_out) {
    int64_t nap_ms = SHORTEST_NAP_MS;
    for (;;) {
        tutti_status status = try_all(k, connection_out);
        if (status == TUTTI_OK || status == TUTTI_ERR_INTERRUPTED) return status;
        int64_t retry_ms = 0, spent_ms = (tutti_now_ns() - k->start_ns) / TUTTI_NS_PER_MS;
        for (int i = 0; i < k->ncandidates; i++)
            if (k->candidates[i].retry_ms > retry_ms) retry_ms = k->candidates[i].retry_ms;
        if (status != TUTTI_NOT_YET || spent_ms >= retry_ms) return unreachable(k, status);
        tutti_nap(nap_ms * TUTTI_NS_PER_MS);
        nap_ms = tutti_min_i64(2 * nap_ms, LONGEST_NAP_MS);
        if (tutti_deadline_passed(k->deadline)) return unreachable(k, TUTTI_ERR_TIMEOUT);
    }
}

tutti_status tutti_listener_connect(const tutti_listener_info *listener, const tutti_conn_id *conn_id,
                                    tutti_deadline *deadline, tutti_connection *connection_out) {
    connector *k;
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    if (listener->port == 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "it accepts no connections: %.*s", (int)sizeof listener->why,
                          listener->why);
    TUTTI_TRY(tutti_calloc(1, sizeof *k, &k));
    tutti_status status = tutti_calloc(TUTTI_LISTENER_KEYS, sizeof *k->keys, &k->keys);
    if (status == TUTTI_OK) {
        k->listener = listener;
        k->deadline = deadline;
        k->start_ns = tutti_now_ns();
        k->nkeys = copy_keys(k->keys);
        status = k->nkeys > 0 ? tutti_listener_make_hello(conn_id, k->keys, k->nkeys, &k->hello)
                              : tutti_fail(TUTTI_ERR_CONFIG, "this process has no key to authenticate itself with");
    }
    if (status == TUTTI_OK) {
        list_candidates(k);
        status = retry(k, connection_out);
        if (status != TUTTI_OK) close_others(k, NULL);
        forget(k->keys, TUTTI_LISTENER_KEYS);
    }
    free(k->keys);
    explicit_bzero(k, sizeof *k);
    free(k);
    return status;
}
