/*
 * The door's messages: a hello as it comes from a stranger, and a door's reply as it comes to who connects. Without the key
 * nobody is welcome.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/door_state.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t self[16] = "this process";

static void check(int holds) {
    if (!holds) abort();
}

static tutti_ticket example_ticket(void) {
    tutti_ticket ticket;
    memset(&ticket, 0, sizeof ticket);
    memcpy(ticket.to, self, sizeof ticket.to);
    ticket.comm_id = 99;
    ticket.lanes = 1;
    return ticket;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tutti_door_key own = {.bytes = 4, .key = "ours"};
    tutti_door_hello hello, our_hello;
    tutti_door_reply reply, answer;
    tutti_door_proof expected, proof;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES];
    tutti_ticket ticket = example_ticket();
    if (bytes < sizeof hello + sizeof reply) return 0;
    memcpy(&hello, data, sizeof hello);
    memcpy(&reply, data + sizeof hello, sizeof reply);
    check(tutti_door_add_key(own.key, own.bytes) == TUTTI_OK);
    check(tutti_door_answer(&hello, self, &hello.called, &answer, &expected, key) == TUTTI_OK);
    check(answer.verdict != TUTTI_DOOR_WELCOME); /* no example knows our key */
    for (size_t i = 0; i < sizeof answer.mac; i++) check(answer.mac[i] == 0);
    check(tutti_door_make_hello(&ticket, &own, 1, &our_hello) == TUTTI_OK);
    check(tutti_door_check_reply(&our_hello, &reply, &own, 1, &proof, key) != TUTTI_DOOR_WELCOME);
    return 0;
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    tutti_door_key other = {.bytes = 6, .key = "theirs"};
    tutti_ticket ticket = example_ticket();
    tutti_door_hello hello;
    tutti_door_reply reply = {.magic = TUTTI_DOOR_MAGIC, .verdict = (uint32_t)index % TUTTI_DOOR_VERDICTS};
    if (index >= 2 * TUTTI_DOOR_VERDICTS || capacity < sizeof hello + sizeof reply) return 0;
    if (index >= TUTTI_DOOR_VERDICTS) ticket.to[0] ^= 1;
    if (tutti_door_make_hello(&ticket, &other, 1, &hello) != TUTTI_OK) return 0;
    memset(hello.nonce, index, sizeof hello.nonce); /* the same in every run */
    memset(hello.hints, index, sizeof hello.hints);
    memcpy(data, &hello, sizeof hello);
    memcpy(data + sizeof hello, &reply, sizeof reply);
    return sizeof hello + sizeof reply;
}
