/*
 * Who knows the key: the messages of door_state.h, made and checked. Nothing here touches a socket.
 */
#include <pthread.h>
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/door_state.h"

static pthread_mutex_t keys_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_door_key all_keys[TUTTI_DOOR_KEYS]; /* newest first; under keys_lock */
static int nall_keys;

/* ------------------------------------------------------------------------------------------------- keys */

tutti_status tutti_door_add_key(const void *key, size_t key_bytes) {
    tutti_door_key new = {.bytes = key_bytes};
    if (key_bytes == 0 || key_bytes > sizeof new.key)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "a key has 1 to %zu bytes, not %zu", sizeof new.key, key_bytes);
    memcpy(new.key, key, key_bytes);
    pthread_mutex_lock(&keys_lock);
    int at = 0;
    while (at < nall_keys && memcmp(&all_keys[at], &new, sizeof new) != 0) at++;
    if (at == nall_keys && nall_keys < TUTTI_DOOR_KEYS) nall_keys++;
    if (at == TUTTI_DOOR_KEYS) at--;
    memmove(all_keys + 1, all_keys, (size_t)at * sizeof all_keys[0]);
    all_keys[0] = new;
    pthread_mutex_unlock(&keys_lock);
    tutti_door_forget(&new, 1);
    return TUTTI_OK;
}

int tutti_door_keys(tutti_door_key keys_out[TUTTI_DOOR_KEYS]) {
    pthread_mutex_lock(&keys_lock);
    int count = nall_keys;
    memcpy(keys_out, all_keys, (size_t)count * sizeof all_keys[0]);
    pthread_mutex_unlock(&keys_lock);
    return count;
}

void tutti_door_forget(tutti_door_key *keys, int nkeys) {
    explicit_bzero(keys, (size_t)nkeys * sizeof keys[0]);
}

/* ------------------------------------------------------------------------------------------------- MACs */

static void hint_at(const tutti_door_key *key, const tutti_door_hello *hello, uint8_t hint[TUTTI_DOOR_HINT_BYTES]) {
    uint8_t text[1 + sizeof hello->nonce] = {'h'}, mac[TUTTI_SHA256_BYTES];
    memcpy(text + 1, hello->nonce, sizeof hello->nonce);
    tutti_hmac_of(key->key, key->bytes, text, sizeof text, mac);
    memcpy(hint, mac, TUTTI_DOOR_HINT_BYTES);
}

/* What `side` proves: 'd' the door, 'c' who connects; or, with 's', the connection's own key. */
static void prove(const tutti_door_key *key, char side, const tutti_door_hello *hello,
                  const uint8_t nonce[TUTTI_DOOR_NONCE_BYTES], uint8_t mac[TUTTI_SHA256_BYTES]) {
    uint8_t text[1 + sizeof *hello + TUTTI_DOOR_NONCE_BYTES];
    text[0] = (uint8_t)side;
    memcpy(text + 1, hello, sizeof *hello);
    memcpy(text + 1 + sizeof *hello, nonce, TUTTI_DOOR_NONCE_BYTES);
    tutti_hmac_of(key->key, key->bytes, text, sizeof text, mac);
}

/* ---------------------------------------------------------------------------------------------- messages */

tutti_status tutti_door_make_hello(const tutti_ticket *ticket, const tutti_door_key *keys, int nkeys,
                                   tutti_door_hello *hello_out) {
    tutti_door_hello hello;
    memset(&hello, 0, sizeof hello);
    hello.magic = TUTTI_DOOR_MAGIC;
    hello.ticket = *ticket;
    TUTTI_TRY(tutti_random_bytes(hello.nonce, sizeof hello.nonce));
    for (int i = 0; i < nkeys && i < TUTTI_DOOR_HINTS; i++) hint_at(&keys[i], &hello, hello.hints[i]);
    *hello_out = hello;
    return TUTTI_OK;
}

/* Whatever a lane is for, there is no pipe of which it could be one, if not. */
static bool is_sane(const tutti_door_hello *hello) {
    const tutti_ticket *ticket = &hello->ticket;
    return hello->magic == TUTTI_DOOR_MAGIC && ticket->lanes <= TUTTI_LANES_MOST && ticket->lane < ticket->lanes;
}

/* The first key of ours that the hello hints at; -1: none. */
static int find_key(const tutti_door_hello *hello, const tutti_door_key *keys, int nkeys, uint32_t *hint_out) {
    for (int k = 0; k < nkeys; k++) {
        uint8_t hint[TUTTI_DOOR_HINT_BYTES];
        hint_at(&keys[k], hello, hint);
        for (uint32_t i = 0; i < TUTTI_DOOR_HINTS; i++) {
            if (!tutti_hmac_equal(hint, hello->hints[i], sizeof hint)) continue;
            *hint_out = i;
            return k;
        }
    }
    return -1;
}

tutti_status tutti_door_answer(const tutti_door_hello *hello, const uint8_t self[16], const tutti_door_endpoint *here,
                               tutti_door_reply *reply_out, tutti_door_proof *expected_out,
                               uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]) {
    tutti_door_key keys[TUTTI_DOOR_KEYS];
    tutti_door_reply reply;
    memset(&reply, 0, sizeof reply);
    reply.magic = TUTTI_DOOR_MAGIC;
    reply.verdict = TUTTI_DOOR_WELCOME;
    int nkeys = tutti_door_keys(keys), key = -1;
    tutti_status status = TUTTI_OK;
    if (!is_sane(hello)) reply.verdict = TUTTI_DOOR_GARBAGE;
    else if (memcmp(hello->ticket.to, self, sizeof hello->ticket.to) != 0) reply.verdict = TUTTI_DOOR_ELSEWHERE;
    else if (memcmp(&hello->called, here, sizeof *here) != 0) reply.verdict = TUTTI_DOOR_REDIRECTED;
    else if ((key = find_key(hello, keys, nkeys, &reply.hint)) < 0) reply.verdict = TUTTI_DOOR_UNKNOWN;
    else status = tutti_random_bytes(reply.nonce, sizeof reply.nonce);
    if (status == TUTTI_OK && reply.verdict == TUTTI_DOOR_WELCOME) {
        prove(&keys[key], 'd', hello, reply.nonce, reply.mac);
        prove(&keys[key], 'c', hello, reply.nonce, expected_out->mac);
        prove(&keys[key], 's', hello, reply.nonce, key_out);
    }
    tutti_door_forget(keys, nkeys);
    *reply_out = reply;
    return status;
}

tutti_door_verdict tutti_door_check_reply(const tutti_door_hello *hello, const tutti_door_reply *reply,
                                          const tutti_door_key *keys, int nkeys, tutti_door_proof *proof_out,
                                          uint8_t key_out[TUTTI_CONNECTION_KEY_BYTES]) {
    uint8_t expected[TUTTI_SHA256_BYTES];
    if (reply->magic != TUTTI_DOOR_MAGIC || reply->verdict >= TUTTI_DOOR_VERDICTS) return TUTTI_DOOR_GARBAGE;
    if (reply->verdict != TUTTI_DOOR_WELCOME) return (tutti_door_verdict)reply->verdict;
    if (reply->hint >= TUTTI_DOOR_HINTS || (int)reply->hint >= nkeys) return TUTTI_DOOR_GARBAGE;
    prove(&keys[reply->hint], 'd', hello, reply->nonce, expected);
    if (!tutti_hmac_equal(expected, reply->mac, sizeof expected)) return TUTTI_DOOR_UNPROVED;
    prove(&keys[reply->hint], 'c', hello, reply->nonce, proof_out->mac);
    prove(&keys[reply->hint], 's', hello, reply->nonce, key_out);
    return TUTTI_DOOR_WELCOME;
}

const char *tutti_door_verdict_text(tutti_door_verdict verdict) {
    switch (verdict) {
    case TUTTI_DOOR_WELCOME: return "it is welcome";
    case TUTTI_DOOR_GARBAGE: return "it is no process of this version of Tutti";
    case TUTTI_DOOR_ELSEWHERE: return "another process than the one that was meant listens there";
    case TUTTI_DOOR_UNKNOWN:
        return "it does not know this job's secret (TUTTI_SECRET or its file must be equal on all hosts)";
    case TUTTI_DOOR_UNPROVED: return "it could not prove that it knows this job's secret";
    case TUTTI_DOOR_REDIRECTED:
        return "it has arrived at another address or port than the one that was called: no relay and no translation "
               "of addresses may be between the hosts";
    default: return "it does not say why";
    }
}
