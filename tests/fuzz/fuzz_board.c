/*
 * What a rank reads in the store when a communicator is made: rolls of others' ranks, the verdict, its host's line, and the doors of
 * other hosts. The first byte says whose part of it; then the values follow in the order in which they are asked for, each
 * behind two bytes that say how long it is. Whatever they are, what is taken from them leads nowhere outside.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/doors.h"
#include "comm/roll.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 3, MOST_KEYS = 16, MOST_VALUE = 8192 };

static void check(int holds) {
    if (!holds) abort();
}

/* ---------------------------------------------------------------------------------------------- stores */

/* Gives what is in the input. After that the first wait is in vain, and then the store has ended: real waits would take long. */
typedef struct canned {
    const uint8_t *next;
    size_t left;
    bool waited;
} canned;

static tutti_status canned_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                               int64_t timeout_ms) {
    canned *c = context;
    (void)key, (void)timeout_ms;
    if (c->left < 2 && c->waited) return tutti_fail(TUTTI_ERR_SYSTEM, "the store has ended");
    if (c->left < 2) {
        c->waited = true;
        return tutti_fail(TUTTI_ERR_TIMEOUT, "no more");
    }
    size_t bytes = (size_t)c->next[0] | (size_t)c->next[1] << 8;
    if (bytes > c->left - 2) bytes = c->left - 2;
    if (bytes > capacity) return tutti_fail(TUTTI_ERR_DATA, "longer than %zu bytes", capacity);
    memcpy(value, c->next + 2, bytes);
    c->next += 2 + bytes;
    c->left -= 2 + bytes;
    *bytes_out = bytes;
    return TUTTI_OK;
}

static tutti_status no_set(void *context, const char *key, const void *value, size_t bytes) {
    (void)context, (void)key, (void)value, (void)bytes;
    return TUTTI_OK;
}

static tutti_status same_add(void *context, const char *key, int64_t amount, int64_t *sum_out) {
    (void)context, (void)key;
    *sum_out = amount;
    return TUTTI_OK;
}

static tutti_status no_check(void *context, const char *key, int *exists_out) {
    (void)context, (void)key;
    *exists_out = 0;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- parts */

/* Ranks 0 and 2 are on one host. */
static tutti_card card_of(int rank) {
    tutti_card card = {.rank = rank, .nranks = RANKS, .pid = 1000 + rank, .most_cores = 2};
    strcpy(card.version, "1");
    strcpy(card.settings, "all");
    strcpy(card.host_id, rank == 1 ? "one" : "zero");
    strcpy(card.host, card.host_id);
    strcpy(card.socket_name, "socket");
    return card;
}

static void meet(const tutti_store *store, int rank) {
    tutti_card card = card_of(rank);
    tutti_deadline deadline = tutti_deadline_after_ms(0); /* who is not there will not come */
    tutti_place place;
    tutti_roll *roll = NULL;
    if (tutti_roll_exchange(store, "fuzz", &card, &deadline, &place, &roll) != TUTTI_OK) return;
    check(place.host >= 0 && place.host < place.nhosts && place.nhosts <= RANKS);
    check(place.leader >= 0 && place.leader <= rank && place.neighbours >= 1 && place.neighbours <= RANKS);
    check((roll != NULL) == (rank == 0 || place.leader == rank));
    if (roll != NULL) check(tutti_roll_check(roll, tutti_roll_bytes(roll), RANKS) == TUTTI_OK);
    for (int i = 0; roll != NULL && i < roll->nhosts; i++) {
        const tutti_roll_host *host = &tutti_roll_hosts(roll)[i];
        int found = 0;
        for (int r = 0; r < RANKS; r++) found += tutti_roll_ranks(roll)[r].host == i;
        check(host->nranks == found && memchr(host->name, '\0', sizeof host->name) != NULL);
    }
    free(roll);
}

/* A roll of RANKS hosts with one rank each. */
static const tutti_roll *roll_of_hosts(void) {
    static struct {
        tutti_roll head;
        tutti_roll_host hosts[RANKS];
        tutti_roll_rank ranks[RANKS];
    } roll = {.head = {.nranks = RANKS, .count = RANKS, .nhosts = RANKS}};
    for (int i = 0; i < RANKS; i++) {
        roll.hosts[i] = (tutti_roll_host){.first = i, .nranks = 1};
        roll.ranks[i].host = i;
    }
    return &roll.head;
}

static tutti_door_card door_of(int rank) {
    tutti_door_card door = {.port = (uint16_t)(1000 + rank), .naddresses = (uint16_t)rank, .transports = 2};
    for (int i = 0; i < rank; i++) door.addresses[i] = (tutti_door_address){.bytes = {1}, .interface = "eth0"};
    if (rank == 0) strcpy(door.why, "no network");
    return door;
}

static void exchange_doors(const tutti_store *store, int host) {
    tutti_door_card doors[RANKS];
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    for (int rank = 0; rank < RANKS; rank++) doors[rank] = door_of(rank);
    if (tutti_doors_exchange(store, "fuzz", roll_of_hosts(), host, &deadline, doors) != TUTTI_OK) return;
    for (int rank = 0; rank < RANKS; rank++) {
        check(doors[rank].naddresses <= TUTTI_DOOR_ADDRESSES);
        check(memchr(doors[rank].why, '\0', sizeof doors[rank].why) != NULL);
        for (int i = 0; i < doors[rank].naddresses; i++)
            check(memchr(doors[rank].addresses[i].interface, '\0', 16) != NULL);
    }
}

static void take_part(const tutti_store *store, int part) {
    if (part < RANKS) meet(store, part);
    else exchange_doors(store, part - RANKS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    canned values = {.next = data + 1, .left = bytes - 1};
    const tutti_store store = {
        .context = &values, .set = no_set, .get = canned_get, .add = same_add, .check = no_check};
    take_part(&store, data[0] % (2 * RANKS));
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples
 * What is read when all goes well: each takes part in turn, on a board that keeps what they leave. So much is different in each
 * run: the communicator's id, and the random key beside it.
 */

typedef struct kept {
    char key[64];
    size_t bytes;
    uint8_t value[MOST_VALUE];
} kept;

static struct {
    bool waited; /* one part has waited in vain */
    int nkeys;
    kept keys[MOST_KEYS];
    uint8_t *log; /* what is read, as an input; NULL: nobody wants to know */
    size_t log_bytes;
} board;

static kept *find(const char *key) {
    for (int i = 0; i < board.nkeys; i++)
        if (strcmp(board.keys[i].key, key) == 0) return &board.keys[i];
    return NULL;
}

static tutti_status board_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    const kept *found = find(key);
    (void)context, (void)timeout_ms;
    if (found == NULL && board.waited) return tutti_fail(TUTTI_ERR_SYSTEM, "the store has ended");
    if (found == NULL) {
        board.waited = true;
        return tutti_fail(TUTTI_ERR_TIMEOUT, "it is not there");
    }
    check(found->bytes <= capacity);
    memcpy(value, found->value, found->bytes);
    *bytes_out = found->bytes;
    if (board.log == NULL) return TUTTI_OK;
    board.log[board.log_bytes++] = (uint8_t)found->bytes;
    board.log[board.log_bytes++] = (uint8_t)(found->bytes >> 8);
    memcpy(board.log + board.log_bytes, found->value, found->bytes);
    board.log_bytes += found->bytes;
    return TUTTI_OK;
}

static tutti_status board_set(void *context, const char *key, const void *value, size_t bytes) {
    kept *place = find(key);
    (void)context;
    if (place == NULL) {
        check(board.nkeys < MOST_KEYS);
        place = &board.keys[board.nkeys++];
    }
    check(bytes <= MOST_VALUE && strlen(key) < sizeof place->key);
    strcpy(place->key, key);
    memcpy(place->value, value, bytes);
    place->bytes = bytes;
    return TUTTI_OK;
}

static void leave_part(const tutti_store *store, int part) {
    board.waited = false;
    take_part(store, part);
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    const tutti_store store = {.set = board_set, .get = board_get, .add = same_add, .check = no_check};
    if (index >= 2 * RANKS || capacity < (size_t)MOST_KEYS * MOST_VALUE / 4) return 0;
    board.nkeys = 0;
    board.log = NULL;
    for (int part = RANKS - 1; part >= 0; part--) {
        leave_part(&store, part); /* rank 0 comes last: the others' cards are there */
        leave_part(&store, RANKS + part);
    }
    data[0] = (uint8_t)index;
    board.log = data + 1;
    board.log_bytes = 0;
    leave_part(&store, index);
    return 1 + board.log_bytes;
}
