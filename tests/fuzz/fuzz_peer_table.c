/*
 * The values that a rank reads from the store when a communicator is made: others' parts of the peer table, the
 * verdict, its host's line, and the listeners of other hosts. The first byte selects the part; then follow the values
 * in the order of the reads, each after two bytes with its length. For any values, the results stay within their
 * limits.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "comm/init/address_exchange.h"
#include "comm/init/peer_table.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 3, MOST_KEYS = 16, MOST_VALUE = 8192 };

static void check(int holds) {
    if (!holds) abort();
}

/* ---------------------------------------------------------------------------------------------- stores */

/* Returns the values of the input. After them the first wait times out, and then the store has ended: real waits
 * would take long. */
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
static tutti_peer_info info_of(int rank) {
    tutti_peer_info info = {.rank = rank, .nranks = RANKS, .pid = 1000 + rank, .most_cores = 2};
    strcpy(info.version, "1");
    strcpy(info.settings, "all");
    strcpy(info.host_id, rank == 1 ? "one" : "zero");
    strcpy(info.host, info.host_id);
    strcpy(info.socket_name, "socket");
    return info;
}

static void meet(const tutti_store *store, int rank) {
    tutti_peer_info info = info_of(rank);
    tutti_deadline deadline = tutti_deadline_after_ms(0); /* ranks that are missing now never arrive */
    tutti_place place;
    tutti_peer_table *table = NULL;
    if (tutti_peer_table_exchange(store, "fuzz", &info, &deadline, &place, &table) != TUTTI_OK) return;
    check(place.host >= 0 && place.host < place.nhosts && place.nhosts <= RANKS);
    check(place.leader >= 0 && place.leader <= rank && place.neighbours >= 1 && place.neighbours <= RANKS);
    check((table != NULL) == (rank == 0 || place.leader == rank));
    if (table != NULL) check(tutti_peer_table_check(table, tutti_peer_table_bytes(table), RANKS) == TUTTI_OK);
    for (int i = 0; table != NULL && i < table->nhosts; i++) {
        const tutti_peer_table_host *host = &tutti_peer_table_hosts(table)[i];
        int found = 0;
        for (int r = 0; r < RANKS; r++) found += tutti_peer_table_ranks(table)[r].host == i;
        check(host->nranks == found && memchr(host->name, '\0', sizeof host->name) != NULL);
    }
    free(table);
}

/* A table of RANKS hosts with one rank each. */
static const tutti_peer_table *table_of_hosts(void) {
    static struct {
        tutti_peer_table head;
        tutti_peer_table_host hosts[RANKS];
        tutti_peer_table_rank ranks[RANKS];
    } table = {.head = {.nranks = RANKS, .count = RANKS, .nhosts = RANKS}};
    for (int i = 0; i < RANKS; i++) {
        table.hosts[i] = (tutti_peer_table_host){.first = i, .nranks = 1};
        table.ranks[i].host = i;
    }
    return &table.head;
}

static tutti_listener_info listener_of(int rank) {
    tutti_listener_info listener = {.port = (uint16_t)(1000 + rank), .naddresses = (uint16_t)rank, .transports = 2};
    for (int i = 0; i < rank; i++) listener.addresses[i] = (tutti_listener_address){.bytes = {1}, .interface = "eth0"};
    if (rank == 0) strcpy(listener.why, "no network");
    return listener;
}

static void exchange_listeners(const tutti_store *store, int host) {
    tutti_listener_info listeners[RANKS];
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    for (int rank = 0; rank < RANKS; rank++) listeners[rank] = listener_of(rank);
    if (tutti_address_exchange(store, "fuzz", table_of_hosts(), host, &deadline, listeners) != TUTTI_OK) return;
    for (int rank = 0; rank < RANKS; rank++) {
        check(listeners[rank].naddresses <= TUTTI_LISTENER_ADDRESSES);
        check(memchr(listeners[rank].why, '\0', sizeof listeners[rank].why) != NULL);
        for (int i = 0; i < listeners[rank].naddresses; i++)
            check(memchr(listeners[rank].addresses[i].interface, '\0', 16) != NULL);
    }
}

static void take_part(const tutti_store *store, int part) {
    if (part < RANKS) meet(store, part);
    else exchange_listeners(store, part - RANKS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    canned values = {.next = data + 1, .left = bytes - 1};
    const tutti_store store = {
        .context = &values, .set = no_set, .get = canned_get, .add = same_add, .check = no_check};
    take_part(&store, data[0] % (2 * RANKS));
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples The values
 * read in a successful run: each rank takes part in turn, on a tree that keeps the values that they write. Two values
 * differ in each run: the communicator's id, and the random key beside it.
 */

typedef struct kept {
    char key[64];
    size_t bytes;
    uint8_t value[MOST_VALUE];
} kept;

static struct {
    bool waited; /* a wait of one part has timed out */
    int nkeys;
    kept keys[MOST_KEYS];
    uint8_t *log; /* values read, as an input; NULL: not recorded */
    size_t log_bytes;
} tree;

static kept *find(const char *key) {
    for (int i = 0; i < tree.nkeys; i++)
        if (strcmp(tree.keys[i].key, key) == 0) return &tree.keys[i];
    return NULL;
}

static tutti_status tree_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                             int64_t timeout_ms) {
    const kept *found = find(key);
    (void)context, (void)timeout_ms;
    if (found == NULL && tree.waited) return tutti_fail(TUTTI_ERR_SYSTEM, "the store has ended");
    if (found == NULL) {
        tree.waited = true;
        return tutti_fail(TUTTI_ERR_TIMEOUT, "missing key");
    }
    check(found->bytes <= capacity);
    memcpy(value, found->value, found->bytes);
    *bytes_out = found->bytes;
    if (tree.log == NULL) return TUTTI_OK;
    tree.log[tree.log_bytes++] = (uint8_t)found->bytes;
    tree.log[tree.log_bytes++] = (uint8_t)(found->bytes >> 8);
    memcpy(tree.log + tree.log_bytes, found->value, found->bytes);
    tree.log_bytes += found->bytes;
    return TUTTI_OK;
}

static tutti_status tree_set(void *context, const char *key, const void *value, size_t bytes) {
    kept *place = find(key);
    (void)context;
    if (place == NULL) {
        check(tree.nkeys < MOST_KEYS);
        place = &tree.keys[tree.nkeys++];
    }
    check(bytes <= MOST_VALUE && strlen(key) < sizeof place->key);
    strcpy(place->key, key);
    memcpy(place->value, value, bytes);
    place->bytes = bytes;
    return TUTTI_OK;
}

static void leave_part(const tutti_store *store, int part) {
    tree.waited = false;
    take_part(store, part);
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    const tutti_store store = {.set = tree_set, .get = tree_get, .add = same_add, .check = no_check};
    if (index >= 2 * RANKS || capacity < (size_t)MOST_KEYS * MOST_VALUE / 4) return 0;
    tree.nkeys = 0;
    tree.log = NULL;
    for (int part = RANKS - 1; part >= 0; part--) {
        leave_part(&store, part); /* rank 0 comes last: the values of the others are present */
        leave_part(&store, RANKS + part);
    }
    data[0] = (uint8_t)index;
    tree.log = data + 1;
    tree.log_bytes = 0;
    leave_part(&store, index);
    return 1 + tree.log_bytes;
}
