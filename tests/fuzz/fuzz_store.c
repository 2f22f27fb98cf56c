/*
 * Requests to the store's server from two clients, whose bytes arrive in pieces. A byte before each piece contains
 * its client (the lowest bit) and its length (the others). For any input, the server drops only the client that
 * breaks the protocol, with all state of that client. The store has a secret, which neither client can prove: the
 * ranks' data stay unchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/stores/wire.h"

enum { CLIENTS = 2, MOST_PIECE = 128 };

static void check(int holds) {
    if (!holds) abort();
}

/* The ranks' data. */
static const tutti_store_bytes guarded = {(const uint8_t *)"/tutti/k", 8}, kept = {(const uint8_t *)"kept", 4};

static void keep(tutti_store_hub *hub) {
    tutti_store_entry *entry;
    check(tutti_store_table_need(hub->table, guarded, &entry) == TUTTI_OK);
    check(tutti_store_table_put(hub->table, entry, kept, false) == TUTTI_OK);
}

static void check_kept(tutti_store_hub *hub) {
    const tutti_store_entry *entry = tutti_store_table_find(hub->table, guarded);
    check(entry != NULL && entry->has_value && entry->queue_length == 0 && entry->value_bytes == kept.bytes &&
          memcmp(entry->value, kept.data, kept.bytes) == 0);
}

/* Like the server when a client has failed. */
static void leave(tutti_store_hub *hub, tutti_store_connection *client) {
    client->failed = true;
    tutti_store_requests_unwait(hub, client);
    tutti_store_budget_leave(&hub->budget, client);
}

static void run(tutti_store_hub *hub, tutti_store_connection *client) {
    if (client->failed) return;
    if (tutti_store_requests_run(hub, client) != TUTTI_OK || client->failed) leave(hub, client);
    tutti_store_buffer_trim(&client->in);
    if (!client->failed) tutti_store_budget_settle(&hub->budget, client);
    check(client->scan.at <= tutti_store_buffer_used(&client->in));
    check(client->awaited <= client->nwaiters);
}

/* The clients read their replies; requests that waited for that continue. */
static void flush(tutti_store_hub *hub) {
    tutti_store_connection *client;
    while (hub->dirty != NULL || (client = tutti_store_budget_next(&hub->budget)) != NULL) {
        if (hub->dirty == NULL) {
            run(hub, client);
            continue;
        }
        client = hub->dirty;
        hub->dirty = client->next_dirty;
        client->dirty = false;
        if (client->failed) leave(hub, client);
        tutti_store_buffer_consume(&client->out, tutti_store_buffer_used(&client->out));
        if (!client->failed) tutti_store_budget_settle(&hub->budget, client);
        run(hub, client);
    }
}

static void receive(tutti_store_hub *hub, tutti_store_connection *client, const uint8_t *data, size_t bytes) {
    if (client->failed) return;
    check(tutti_store_buffer_reserve(&client->in, bytes) == TUTTI_OK);
    memcpy(client->in.data + client->in.end, data, bytes);
    client->in.end += bytes;
    run(hub, client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tutti_store_connection clients[CLIENTS] = {{.fd = -1, .local_user = true}, {.fd = -1, .foreign = true}};
    tutti_store_hub hub = {.secret = tutti_store_secret_of("our word")};
    check(tutti_store_table_create(&hub.table) == TUTTI_OK);
    keep(&hub);
    while (bytes > 1) {
        size_t piece = 1 + (size_t)(data[0] >> 1);
        if (piece > bytes - 1) piece = bytes - 1;
        receive(&hub, &clients[data[0] & 1], data + 1, piece);
        flush(&hub);
        data += 1 + piece;
        bytes -= 1 + piece;
    }
    check_kept(&hub);
    for (int i = 0; i < CLIENTS; i++) {
        check(!clients[i].proved);
        leave(&hub, &clients[i]);
        check(clients[i].waiters == NULL && clients[i].nwaiters == 0);
        tutti_store_buffer_free(&clients[i].in);
        tutti_store_buffer_free(&clients[i].out);
    }
    check(hub.budget.own.small + hub.budget.own.big + hub.budget.own.waiters == 0);
    check(hub.budget.foreign.small + hub.budget.foreign.big + hub.budget.foreign.waiters == 0);
    check(!tutti_store_budget_is_short(&hub.budget));
    tutti_store_table_destroy(hub.table);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples */

typedef struct script {
    const char *bytes;
    size_t count;
} script;

#define KEY(letter) U64("\2") "/" letter
#define KEPT        U64("\10") "/tutti/k"
#define NONCE       U64("\40") "12345678901234567890123456789012"

/* The first client waits for a key that the second one then sets. */
static const struct {
    script waits, does;
} talks[] = {
    {{BYTES("\6" U64("\2") KEY("a") KEY("b"))}, {BYTES("\1" KEY("a") U64("\5") "hello")}},
    {{BYTES("\6" U64("\1") KEY("Q") "\17" KEY("Q"))}, {BYTES("\16" KEY("Q") U64("\2") "bc")}},
    {{BYTES("\22" KEY("B") U64("\2"))}, {BYTES("\22" KEY("B") U64("\2"))}},
    {{BYTES("\6" U64("\1") KEY("z") "\14")}, {BYTES("\13" U64("\2") KEY("p") U64("\1") "1" KEY("q") U64("\2") "22")}},
    {{BYTES("\4" KEY("n") U64("\5") "\3" KEY("n"))}, {BYTES("\4" KEY("n") "\xF9\xFF\xFF\xFF\xFF\xFF\xFF\xFF")}},
    {{BYTES("\11" KEY("a") U64("\2") "yz")}, {BYTES("\2" KEY("a") U64("\2") "yz" U64("\1") "w")}},
    {{BYTES("\15\x78\x56\x34\x12\7\21")}, {BYTES("\10" KEY("a") "\5" U64("\1") KEY("a") "\20" KEY("Q"))}},
    {{BYTES("\5" U64("\1") U64("\23") "tutti.store/proof/1"
                                      "\100" NONCE "\101" NONCE)},
     {BYTES("\1" KEPT U64("\1") "x")}},
    {{BYTES("\100" NONCE "\3" KEPT "\101" NONCE)}, {BYTES("\13" U64("\2") KEY("p") U64("\1") "1" KEPT U64("\1") "2")}},
    {{BYTES("\6" U64("\1") KEPT "\17" KEPT)}, {BYTES("\10" KEPT)}},
    {{BYTES("\11" KEPT U64("\1") "y")}, {BYTES("\22" KEPT U64("\1"))}},
    {{BYTES("\1" KEY("k") U64("\1") "v\21")}, {BYTES("\12" U64("\2") KEY("k") KEY("y") "\21")}},
};

/* Appends the request in pieces; returns the new number of bytes. */
static size_t put(uint8_t *data, size_t used, int client, const script *text) {
    for (size_t done = 0, piece; done < text->count; done += piece) {
        piece = text->count - done < MOST_PIECE ? text->count - done : MOST_PIECE;
        data[used++] = (uint8_t)((piece - 1) << 1 | (size_t)client);
        memcpy(data + used, text->bytes + done, piece);
        used += piece;
    }
    return used;
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    static const script hello = {BYTES(VALIDATE)};
    if (index >= (int)(sizeof talks / sizeof *talks) || capacity < 1024) return 0;
    size_t used = put(data, put(data, 0, 0, &hello), 1, &hello);
    used = put(data, used, 0, &talks[index].waits);
    used = put(data, used, 1, &talks[index].does);
    return put(data, used, 0, &talks[index].does);
}
