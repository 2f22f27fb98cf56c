/*
 * The messages of listener_state.h: how they are made and checked, with the keys and the addresses that they name.
 * Nothing here sends or receives.
 */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/lock.h"
#include "comm/net/listener_state.h"

static tutti_listener_key all_keys[TUTTI_LISTENER_KEYS]; /* newest first; under TUTTI_LOCK_KEYS */
static int nall_keys;

/* ------------------------------------------------------------------------------------------------- keys */

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
    tutti_listener_forget(&added, 1);
    return TUTTI_OK;
}

int tutti_listener_keys(tutti_listener_key keys_out[TUTTI_LISTENER_KEYS]) {
    tutti_lock(TUTTI_LOCK_KEYS);
    int count = nall_keys;
    memcpy(keys_out, all_keys, (size_t)count * sizeof all_keys[0]);
    tutti_unlock(TUTTI_LOCK_KEYS);
    return count;
}

void tutti_listener_forget(tutti_listener_key *keys, int nkeys) {
    explicit_bzero(keys, (size_t)nkeys * sizeof keys[0]);
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
    int nkeys = tutti_listener_keys(keys), key = -1;
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
    tutti_listener_forget(keys, nkeys);
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

unsigned tutti_listener_sockaddr(const tutti_listener_address *address, uint16_t port,
                                 struct sockaddr_storage *address_out) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
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
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
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
