/*
 * The listener's messages: a hello as it arrives from a stranger, a listener's reply as the connecting process
 * receives it, the endpoint where the hello arrived, and the bytes that an attacker in the network changed in the
 * hello of a sender that knows the key. The listener rejects senders without the key, and every hello that was
 * changed or arrived at another endpoint.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/listener_state.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t self[16] = "this process";

static void check(int holds) {
    if (!holds) abort();
}

static tutti_conn_id example_conn_id(void) {
    tutti_conn_id conn_id;
    memset(&conn_id, 0, sizeof conn_id);
    memcpy(conn_id.to, self, sizeof conn_id.to);
    conn_id.comm_id = 99;
    conn_id.lanes = 1;
    return conn_id;
}

/* Our own hello arrives at our own listener: changed or not, at its endpoint or another. */
static void try_changed(const tutti_listener_hello *ours, const tutti_listener_key *own,
                        const tutti_listener_endpoint *here, const uint8_t *changes) {
    tutti_listener_hello hello = *ours, changed;
    tutti_listener_reply reply;
    tutti_listener_proof expected, proof;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES], other_key[TUTTI_CONNECTION_KEY_BYTES];
    memset(&hello.called, 7, sizeof hello.called);
    memcpy(&changed, &hello, sizeof changed);
    for (size_t i = 0; i < sizeof changed; i++) ((uint8_t *)&changed)[i] ^= changes[i];
    bool same = memcmp(&changed, &hello, sizeof hello) == 0;
    bool meant = memcmp(&changed.called, here, sizeof *here) == 0;
    check(tutti_listener_answer(&changed, self, here, &reply, &expected, key) == TUTTI_OK);
    if (!meant) check(reply.verdict != TUTTI_LISTENER_ACCEPTED);
    if (same) check(reply.verdict == (meant ? TUTTI_LISTENER_ACCEPTED : TUTTI_LISTENER_REDIRECTED));
    bool taken = tutti_listener_check_reply(&hello, &reply, own, 1, &proof, other_key) == TUTTI_LISTENER_ACCEPTED;
    check(taken == (same && meant));
    if (taken) check(memcmp(&proof, &expected, sizeof proof) == 0 && memcmp(key, other_key, sizeof key) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tutti_listener_key own = {.bytes = 4, .key = "ours"};
    tutti_listener_hello hello, our_hello;
    tutti_listener_reply reply, answer;
    tutti_listener_proof expected, proof;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES];
    tutti_conn_id conn_id = example_conn_id();
    tutti_listener_endpoint here;
    if (bytes < 2 * sizeof hello + sizeof reply + sizeof here) return 0;
    memcpy(&hello, data, sizeof hello);
    memcpy(&reply, data + sizeof hello, sizeof reply);
    memcpy(&here, data + sizeof hello + sizeof reply, sizeof here);
    check(tutti_listener_add_key(own.key, own.bytes) == TUTTI_OK);
    check(tutti_listener_answer(&hello, self, &hello.called, &answer, &expected, key) == TUTTI_OK);
    check(answer.verdict != TUTTI_LISTENER_ACCEPTED); /* no example knows our key */
    for (size_t i = 0; i < sizeof answer.mac; i++) check(answer.mac[i] == 0);
    check(tutti_listener_make_hello(&conn_id, &own, 1, &our_hello) == TUTTI_OK);
    check(tutti_listener_check_reply(&our_hello, &reply, &own, 1, &proof, key) != TUTTI_LISTENER_ACCEPTED);
    check(tutti_listener_answer(&hello, self, &here, &answer, &expected, key) == TUTTI_OK);
    check(answer.verdict != TUTTI_LISTENER_ACCEPTED);
    try_changed(&our_hello, &own, &here, data + sizeof hello + sizeof reply + sizeof here);
    return 0;
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    tutti_listener_key other = {.bytes = 6, .key = "theirs"};
    tutti_conn_id conn_id = example_conn_id();
    tutti_listener_hello hello;
    tutti_listener_reply reply = {.magic = TUTTI_LISTENER_MAGIC, .verdict = (uint32_t)index % TUTTI_LISTENER_VERDICTS};
    const size_t all = 2 * sizeof hello + sizeof reply + sizeof(tutti_listener_endpoint);
    if (index >= 2 * TUTTI_LISTENER_VERDICTS || capacity < all) return 0;
    if (index >= TUTTI_LISTENER_VERDICTS) conn_id.to[0] ^= 1;
    if (tutti_listener_make_hello(&conn_id, &other, 1, &hello) != TUTTI_OK) return 0;
    memset(hello.nonce, index, sizeof hello.nonce); /* the same in every run */
    memset(hello.hints, index, sizeof hello.hints);
    memset(data, 0, all);
    memcpy(data, &hello, sizeof hello);
    memcpy(data + sizeof hello, &reply, sizeof reply);
    /* The endpoint of try_changed's hello, except in every fourth example; without changes, except in every third. */
    memset(data + sizeof hello + sizeof reply, index % 4 != 3 ? 7 : 8, sizeof(tutti_listener_endpoint));
    if (index % 3 == 2) data[all - sizeof hello + offsetof(tutti_listener_hello, conn_id)] = 1;
    return all;
}
