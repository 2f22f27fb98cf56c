/*
 * The peer table of a new communicator. See peer_table.h.
 *
 * peer_table_gather.c passes it up to rank 0; this file publishes the result, which all ranks then read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "comm/init/peer_table_state.h"

#define TWIN_MS                                                                                                        \
    500 /* a second process with this rank has left its claim by then; less than kv_tree.c waits for a value */
#define GRACE_MS 1000 /* after the deadline, for the error to arrive from rank 0 */
#define LOOK_MS  500  /* interval of checks on ranks that log what they wait for */

/* The key "roll"; followed by an error text if status is not TUTTI_OK. */
typedef struct verdict {
    uint64_t magic, comm_id;
    uint8_t nonce[TUTTI_NONCE_BYTES];
    int32_t status, nhosts;
} verdict;

/* The key "host/<id>". */
typedef struct host_line {
    uint64_t magic;
    int64_t leader_pid;
    int32_t host, leader, nranks, unused;
    char socket_name[TUTTI_SOCKET_NAME_BYTES];
} host_line;

/* ---------------------------------------------------------------------------------------- the way down */

static void host_key(const tutti_kv_tree *tree, const char *id, char text[TUTTI_KV_TREE_KEY_BYTES]) {
    char what[80];
    snprintf(what, sizeof what, "host/%s", id);
    tutti_kv_tree_key(tree, what, -1, text);
}

static tutti_status publish(const tutti_gathering *g, const tutti_peer_table *table) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    verdict v = {.magic = TUTTI_PEER_TABLE_MAGIC, .nhosts = table->nhosts};
    TUTTI_TRY(tutti_random_bytes(&v.comm_id, sizeof v.comm_id));
    v.comm_id |= 1; /* 0 means no communicator */
    TUTTI_TRY(tutti_random_bytes(v.nonce, sizeof v.nonce));
    if (table->nhosts > 1)
        TUTTI_TRY(tutti_kv_tree_set(&g->tree, tutti_kv_tree_key(&g->tree, "ranks", -1, key), table,
                                    tutti_peer_table_bytes(table)));
    for (int i = 0; i < table->nhosts; i++) {
        const tutti_peer_table_host *host = &tutti_peer_table_hosts(table)[i];
        host_line line = {.magic = TUTTI_PEER_TABLE_MAGIC, .host = i, .leader = host->first, .nranks = host->nranks};
        line.leader_pid = tutti_peer_table_ranks(table)[host->first].pid;
        memcpy(line.socket_name, host->socket_name, sizeof line.socket_name);
        host_key(&g->tree, host->id, key);
        TUTTI_TRY(tutti_kv_tree_set(&g->tree, key, &line, sizeof line));
    }
    return tutti_kv_tree_set(&g->tree, tutti_kv_tree_key(&g->tree, "roll", -1, key), &v, sizeof v);
}

/* Rank 0: publishes the peer table, or the error that prevented it. */
static tutti_status conclude(tutti_gathering *g, tutti_status gathered, tutti_peer_table **roll_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_peer_table *table = NULL;
    tutti_status status = gathered;
    if (status == TUTTI_OK) status = tutti_peer_table_pack(g, &table);
    if (status == TUTTI_OK) status = publish(g, table);
    if (status != TUTTI_OK) {
        verdict v = {.magic = TUTTI_PEER_TABLE_MAGIC, .status = status};
        free(table);
        return tutti_peer_table_set_reason(&g->tree, tutti_kv_tree_key(&g->tree, "roll", -1, key), &v, sizeof v,
                                           status);
    }
    *roll_out = table;
    return TUTTI_OK;
}

/* Rank 0 knows which ranks are missing; whether rank 0 itself is missing, some other ranks check: those that are
 * powers of two. */
static void say_first_absent(tutti_gathering *g) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int there = 0;
    const tutti_store *store = g->tree.store;
    if (!tutti_peer_table_is_late(g)) return;
    tutti_kv_tree_key(&g->tree, "count", 0, key);
    if (store->check(store->context, key, &there) != TUTTI_OK || (there && g->notice.said < 2)) return;
    tutti_log(TUTTI_LOG_WARN, "the start has waited %lld s for rank 0, which %s; waits until TUTTI_CONNECT_TIMEOUT_MS",
              (long long)((g->tree.deadline->spent_ns - g->begin_ns) / TUTTI_NS_PER_S),
              there ? "is gathering the others, or has ended" : "has not joined");
}

/* Waits for the key `roll`, until shortly after the deadline. */
static tutti_status await_roll(tutti_gathering *g, const char *key, void *value, size_t capacity, size_t *bytes_out) {
    int rank = g->own->rank;
    bool speaks = rank > 0 && (rank & (rank - 1)) == 0;
    tutti_deadline patience = *g->tree.deadline;
    if (patience.budget_ns != INT64_MAX) patience.budget_ns += GRACE_MS * TUTTI_NS_PER_MS;
    tutti_kv_tree patient = g->tree;
    patient.deadline = &patience;
    for (;;) {
        tutti_status status =
            tutti_kv_tree_get(&patient, key, value, capacity, speaks ? LOOK_MS : INT64_MAX, bytes_out);
        tutti_deadline_passed(g->tree.deadline);
        if (status != TUTTI_ERR_TIMEOUT || !speaks || tutti_deadline_left_ms(&patience) == 0) return status;
        say_first_absent(g);
    }
}

static tutti_status get_verdict(tutti_gathering *g, int nranks, verdict *verdict_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES], value[sizeof(verdict) + TUTTI_PEER_TABLE_TEXT_BYTES];
    size_t bytes = 0;
    tutti_kv_tree_key(&g->tree, "roll", -1, key);
    tutti_status status = await_roll(g, key, value, sizeof value, &bytes);
    if (status == TUTTI_ERR_TIMEOUT)
        return tutti_fail(status,
                          "%d ranks were expected, but rank 0 has not gathered them before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS): it has not joined, or has ended",
                          nranks);
    TUTTI_TRY(status);
    verdict v = {0};
    if (bytes >= sizeof v) memcpy(&v, value, sizeof v);
    if (bytes < sizeof v || v.magic != TUTTI_PEER_TABLE_MAGIC)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" is not from a rank 0 of this version of Tutti", key);
    if (v.status != TUTTI_OK) {
        char text[TUTTI_PEER_TABLE_TEXT_BYTES + 1];
        snprintf(text, sizeof text, "%.*s", (int)(bytes - sizeof v), value + sizeof v);
        tutti_make_printable(text);
        return tutti_fail(tutti_peer_table_status(v.status), "%s (reported by rank 0)", text);
    }
    *verdict_out = v;
    return TUTTI_OK;
}

static tutti_status find_place(tutti_gathering *g, const tutti_peer_info *own, tutti_place *place_out) {
    const tutti_kv_tree *tree = &g->tree;
    char key[TUTTI_KV_TREE_KEY_BYTES];
    verdict v = {0};
    host_line line;
    size_t bytes = 0;
    TUTTI_TRY(get_verdict(g, own->nranks, &v));
    host_key(tree, own->host_id, key);
    TUTTI_TRY(tutti_kv_tree_get(tree, key, &line, sizeof line, INT64_MAX, &bytes));
    line.socket_name[sizeof line.socket_name - 1] = '\0';
    if (bytes != sizeof line || line.magic != TUTTI_PEER_TABLE_MAGIC || v.nhosts > own->nranks || line.host < 0 ||
        line.host >= v.nhosts || line.leader < 0 || line.leader > own->rank || line.nranks < 1 ||
        line.nranks > own->nranks)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" is malformed", key);
    *place_out = (tutti_place){.comm_id = v.comm_id,
                               .nhosts = v.nhosts,
                               .host = line.host,
                               .leader = line.leader,
                               .neighbours = line.nranks,
                               .leader_pid = line.leader_pid};
    memcpy(place_out->nonce, v.nonce, sizeof v.nonce);
    memcpy(place_out->socket_name, line.socket_name, sizeof line.socket_name);
    return TUTTI_OK;
}

tutti_status tutti_peer_table_check(const void *memory, size_t bytes, int nranks) {
    const tutti_peer_table *table = memory;
    if (tutti_peer_table_is_sound(table, bytes) && table->first == 0 && table->count == nranks &&
        table->nranks == nranks)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the peer table is malformed");
}

static tutti_status read_roll(const tutti_kv_tree *tree, int nranks, int nhosts, tutti_peer_table **roll_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    size_t bytes = 0;
    tutti_peer_table *table;
    const tutti_peer_table all = {.nhosts = nhosts, .count = nranks};
    TUTTI_TRY(tutti_calloc(1, tutti_peer_table_bytes(&all), &table));
    tutti_status status = tutti_kv_tree_get(tree, tutti_kv_tree_key(tree, "ranks", -1, key), table,
                                            tutti_peer_table_bytes(&all), INT64_MAX, &bytes);
    if (status == TUTTI_OK) status = tutti_peer_table_check(table, bytes, nranks);
    if (status != TUTTI_OK) {
        free(table);
        return status;
    }
    tutti_peer_table_bound_texts(table);
    *roll_out = table;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ both */

/* Whether another process with this rank that knows the secret has left its claim, or does so within TWIN_MS; else
 * a process without the secret has changed the counter. */
static bool is_claimed(const tutti_kv_tree *tree, int rank) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_peer_table_claim claim;
    size_t bytes = 0;
    tutti_deadline soon = tutti_deadline_after_ms(TWIN_MS);
    tutti_kv_tree brief = *tree;
    brief.deadline = &soon; /* also limits the wait for a claim with a wrong MAC */
    tutti_kv_tree_key(tree, "claim", rank, key);
    bool claimed = tutti_kv_tree_get(&brief, key, &claim, sizeof claim, TWIN_MS, &bytes) == TUTTI_OK;
    tutti_kv_tree_close(&brief);
    if (!claimed)
        tutti_log(
            TUTTI_LOG_WARN,
            "the store's counter of rank %d is ignored: a process that does not know this job's secret has changed it",
            rank);
    return claimed;
}

static tutti_status count_self(const tutti_kv_tree *tree, const tutti_peer_info *own) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int64_t sum = 0;
    tutti_kv_tree_key(tree, "count", own->rank, key);
    TUTTI_TRY(tutti_kv_tree_add(tree, key, own->nranks, &sum));
    if (tree->proves && (sum == own->nranks || !is_claimed(tree, own->rank))) {
        const tutti_peer_table_claim claim = {.nranks = own->nranks};
        return tutti_kv_tree_set(tree, tutti_kv_tree_key(tree, "claim", own->rank, key), &claim, sizeof claim);
    }
    if (sum == own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "two processes have rank %d (or the store still holds \"%s\" of an earlier job): each "
                      "process needs a RANK of its own",
                      own->rank, tree->prefix);
}

static tutti_status exchange(tutti_gathering *g, tutti_place *place, tutti_peer_table **table) {
    const tutti_peer_info *own = g->own;
    TUTTI_TRY(count_self(&g->tree, own));
    tutti_status status = tutti_peer_table_gather(g);
    if (own->rank == 0) {
        TUTTI_TRY(conclude(g, status, table));
        return find_place(g, own, place);
    }
    /* A rank that timed out waits for rank 0, which knows all missing ranks. */
    status = tutti_peer_table_pass_on(g, status);
    if (status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT) return status;
    TUTTI_TRY(find_place(g, own, place));
    return place->leader == own->rank ? read_roll(&g->tree, own->nranks, place->nhosts, table) : TUTTI_OK;
}

tutti_status tutti_peer_table_exchange(const tutti_store *store, const char *prefix, const tutti_peer_info *own,
                                       tutti_deadline *deadline, tutti_place *place_out, tutti_peer_table **roll_out) {
    tutti_gathering g = {
        .own = own, .begin_ns = deadline->spent_ns, .span = tutti_kv_tree_span(own->rank, own->nranks)};
    tutti_place place;
    tutti_peer_table *table = NULL;
    tutti_status status = tutti_kv_tree_open(store, prefix, deadline, &g.tree);
    if (status == TUTTI_OK) status = exchange(&g, &place, &table);
    tutti_kv_tree_close(&g.tree);
    free(g.hosts);
    free(g.ranks);
    free(g.incoming);
    if (status != TUTTI_OK) {
        free(table);
        return status;
    }
    *place_out = place;
    *roll_out = table;
    return TUTTI_OK;
}
