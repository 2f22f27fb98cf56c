/*
 * The way up of a peer table: from the leaves of the tree to rank 0. See peer_table.h.
 *
 * While gathering, hosts and ranks are in two arrays with room for the whole subtree; they are packed for sending.
 * A rank that cannot gather its subtree passes on the error instead, so rank 0 learns of it without delay.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "comm/init/peer_table_state.h"

#define LOOK_MS    500 /* after a wait of this length, check why a rank is missing */
#define MOST_NAMED 16

tutti_status tutti_peer_table_status(int32_t status) {
    return status < TUTTI_OK && status >= TUTTI_ERR_DATA ? (tutti_status)status : TUTTI_ERR_CONFIG;
}

/* ------------------------------------------------------------------------------------------- tutti_gathering */

static void enter_self(tutti_gathering *g) {
    const tutti_peer_info *own = g->own;
    tutti_peer_table_host *host = &g->hosts[g->nhosts++];
    *host = (tutti_peer_table_host){
        .machine = own->machine, .cores = own->cores, .most_cores = own->most_cores, .first = own->rank, .nranks = 1};
    memcpy(host->id, own->host_id, sizeof host->id);
    memcpy(host->name, own->host, sizeof host->name);
    memcpy(host->socket_name, own->socket_name, sizeof host->socket_name);
    g->ranks[g->count++] = (tutti_peer_table_rank){.pid = own->pid, .pid_space = own->pid_space};
}

/* Terminates all texts, so that values from outside can be printed. */
void tutti_peer_table_bound_texts(tutti_peer_table *table) {
    table->version[sizeof table->version - 1] = '\0';
    table->settings[sizeof table->settings - 1] = '\0';
    tutti_peer_table_host *hosts = (tutti_peer_table_host *)(table + 1);
    for (int i = 0; i < table->nhosts; i++) {
        hosts[i].id[sizeof hosts[i].id - 1] = '\0';
        hosts[i].name[sizeof hosts[i].name - 1] = '\0';
        tutti_make_printable(hosts[i].name);
        hosts[i].socket_name[sizeof hosts[i].socket_name - 1] = '\0';
    }
}

/* Whether the number of ranks of each host is right. */
static bool are_counted(const tutti_peer_table *table) {
    const tutti_peer_table_host *hosts = tutti_peer_table_hosts(table);
    const tutti_peer_table_rank *ranks = tutti_peer_table_ranks(table);
    int32_t *found = calloc((size_t)table->nhosts, sizeof *found);
    bool equal = found != NULL;
    for (int i = 0; i < table->count && equal; i++) found[ranks[i].host]++;
    for (int i = 0; i < table->nhosts && equal; i++) equal = found[i] == hosts[i].nranks;
    free(found);
    return equal;
}

/* Whether a table that was read is consistent. */
bool tutti_peer_table_is_sound(const tutti_peer_table *table, size_t bytes) {
    if (bytes < sizeof *table || table->magic != TUTTI_PEER_TABLE_MAGIC || table->status != TUTTI_OK) return false;
    if (table->count < 1 || table->nhosts < 1 || table->nhosts > table->count || table->first < 0) return false;
    if (bytes != tutti_peer_table_bytes(table)) return false;
    const tutti_peer_table_rank *ranks = tutti_peer_table_ranks(table);
    for (int i = 0; i < table->count; i++)
        if (ranks[i].host < 0 || ranks[i].host >= table->nhosts) return false;
    const tutti_peer_table_host *hosts = tutti_peer_table_hosts(table);
    for (int i = 0; i < table->nhosts; i++) {
        int64_t first = (int64_t)hosts[i].first - table->first;
        if (first < 0 || first >= table->count || ranks[first].host != i) return false;
    }
    return are_counted(table);
}

static tutti_status check_equal(const tutti_peer_info *own, const tutti_peer_table *table) {
    const tutti_peer_table_rank *rank = &tutti_peer_table_ranks(table)[0];
    if (table->nranks != own->nranks)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d (host %s, pid %lld) has WORLD_SIZE %d, rank %d has %d: WORLD_SIZE must be "
                          "equal everywhere",
                          table->first, tutti_peer_table_hosts(table)[rank->host].name, (long long)rank->pid,
                          table->nranks, own->rank, own->nranks);
    if (strcmp(table->version, own->version) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d runs Tutti %s, rank %d runs %s: all ranks must load the same version", table->first,
                          table->version, own->rank, own->version);
    if (strcmp(table->settings, own->settings) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "settings differ: rank %d has \"%s\", rank %d has \"%s\"; set them equally on all ranks",
                          table->first, table->settings, own->rank, own->settings);
    return TUTTI_OK;
}

static int find_host(const tutti_gathering *g, const char *id) {
    int host = 0;
    while (host < g->nhosts && strcmp(g->hosts[host].id, id) != 0) host++;
    return host;
}

/* Adds a child's peer table, whose ranks are above all that have been added. */
static tutti_status merge(tutti_gathering *g, const tutti_peer_table *table) {
    const tutti_peer_table_host *hosts = tutti_peer_table_hosts(table);
    const tutti_peer_table_rank *ranks = tutti_peer_table_ranks(table);
    int *index_here;
    TUTTI_TRY(tutti_calloc((size_t)table->nhosts, sizeof *index_here, &index_here));
    for (int i = 0; i < table->nhosts; i++) {
        int host = index_here[i] = find_host(g, hosts[i].id);
        if (host == g->nhosts) {
            g->hosts[g->nhosts++] = hosts[i];
            continue;
        }
        tutti_cpus_add(&g->hosts[host].cores, &hosts[i].cores);
        if (hosts[i].most_cores < g->hosts[host].most_cores) g->hosts[host].most_cores = hosts[i].most_cores;
        g->hosts[host].nranks += hosts[i].nranks;
    }
    for (int i = 0; i < table->count; i++) {
        g->ranks[g->count] = ranks[i];
        g->ranks[g->count++].host = index_here[ranks[i].host];
    }
    free(index_here);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- late ranks */

static bool is_there(const tutti_gathering *g, const char *what, int rank) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int exists = 0;
    const tutti_store *store = g->tree.store;
    tutti_kv_tree_key(&g->tree, what, rank, key);
    return store->check(store->context, key, &exists) == TUTTI_OK && exists;
}

/* A list of ranks, as "2, 5 and 3 more". */
typedef struct listing {
    char text[256];
    size_t used;
    int count;
} listing;

typedef bool (*condition)(const tutti_gathering *g, int rank);

static bool has_not_come(const tutti_gathering *g, int rank) {
    return !is_there(g, "count", rank);
}

/* The rank has joined and all its children have passed on their tables, but it has passed on nothing. */
static bool stands_still(const tutti_gathering *g, int rank) {
    if (is_there(g, "cards", rank)) return false;
    TUTTI_KV_TREE_EACH_CHILD(step, rank, g->own->nranks) if (!is_there(g, "cards", rank + step)) return false;
    return true;
}

/* Until the deadline, a rank that has passed on has its whole subtree; after it, it may have passed on that ranks
 * are missing. */
typedef enum thoroughness { BEFORE_THE_DEADLINE, AFTER_THE_DEADLINE } thoroughness;

/* Lists the ranks in the subtree of `rank`, itself included, that meet the condition. */
static void list_under(const tutti_gathering *g, int rank, condition is_meant, thoroughness when, listing *found) {
    if (when == BEFORE_THE_DEADLINE && is_there(g, "cards", rank)) return;
    if (is_meant(g, rank) && ++found->count <= MOST_NAMED)
        found->used += (size_t)snprintf(found->text + found->used, sizeof found->text - found->used, "%s%d",
                                        found->count > 1 ? ", " : "", rank);
    TUTTI_KV_TREE_EACH_CHILD(step, rank, g->own->nranks) list_under(g, rank + step, is_meant, when, found);
}

/* Lists the ranks of this rank's own subtree that meet the condition. */
static listing list_ranks(const tutti_gathering *g, condition is_meant, thoroughness when) {
    listing found = {.count = 0};
    TUTTI_KV_TREE_EACH_CHILD(step, g->own->rank, g->own->nranks)
    list_under(g, g->own->rank + step, is_meant, when, &found);
    if (found.count > MOST_NAMED)
        snprintf(found.text + found.used, sizeof found.text - found.used, " and %d more", found.count - MOST_NAMED);
    return found;
}

/* Logged by rank 0 for all ranks. That ranks have joined and make no progress is logged only from the second notice
 * on: a busy machine has many such ranks. */
static void say_absent(const tutti_gathering *g) {
    long long seconds = (g->tree.deadline->spent_ns - g->begin_ns) / TUTTI_NS_PER_S;
    listing found = list_ranks(g, has_not_come, BEFORE_THE_DEADLINE);
    if (found.count > 0) {
        tutti_log(TUTTI_LOG_WARN,
                  "the start has waited %lld s for ranks that have not joined, of %d: %s; waits until "
                  "TUTTI_CONNECT_TIMEOUT_MS",
                  seconds, g->own->nranks, found.text);
        return;
    }
    if (g->notice.said < 2) return;
    found = list_ranks(g, stands_still, BEFORE_THE_DEADLINE);
    if (found.count > 0)
        tutti_log(TUTTI_LOG_WARN,
                  "the start has waited %lld s for ranks that have joined, but have ended since or make no progress: "
                  "%s; waits until TUTTI_CONNECT_TIMEOUT_MS",
                  seconds, found.text);
}

static tutti_status fail_absent(const tutti_gathering *g) {
    listing found = list_ranks(g, has_not_come, AFTER_THE_DEADLINE);
    if (found.count > 0)
        return tutti_fail(TUTTI_ERR_TIMEOUT,
                          "%d ranks were expected, but these have not joined before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS): %s",
                          g->own->nranks, found.text);
    found = list_ranks(g, stands_still, AFTER_THE_DEADLINE);
    return tutti_fail(
        TUTTI_ERR_TIMEOUT,
        "%d ranks were expected, and all have joined, but before the deadline (TUTTI_CONNECT_TIMEOUT_MS) these "
        "have ended since or made no progress: %s",
        g->own->nranks, found.count > 0 ? found.text : "none that could be identified");
}

/* A rank with a larger WORLD_SIZE than the others waits for ranks that never join. Its counter or its claim shows
 * that: each rank adds its WORLD_SIZE to its counter. */
static tutti_status check_counter(const tutti_gathering *g, int rank) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int exists = 0;
    int64_t told = 0;
    tutti_kv_tree_key(&g->tree, g->tree.proves ? "claim" : "count", rank, key);
    TUTTI_TRY(tutti_kv_tree_check(&g->tree, key, &exists));
    if (!exists) return TUTTI_OK;
    if (g->tree.proves) {
        tutti_peer_table_claim claim = {.nranks = 0};
        size_t bytes = 0;
        TUTTI_TRY(tutti_kv_tree_get(&g->tree, key, &claim, sizeof claim, LOOK_MS, &bytes));
        told = claim.nranks;
    } else {
        TUTTI_TRY(tutti_kv_tree_add(&g->tree, key, 0, &told));
    }
    if (told == g->own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "rank %d has WORLD_SIZE %lld, rank %d has %d: WORLD_SIZE must be equal everywhere", rank,
                      (long long)told, g->own->rank, g->own->nranks);
}

static tutti_status await_child(tutti_gathering *g, int rank, size_t *bytes_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_kv_tree_key(&g->tree, "cards", rank, key);
    for (;;) {
        tutti_status status = tutti_kv_tree_get(&g->tree, key, g->incoming, g->incoming_capacity, LOOK_MS, bytes_out);
        if (status != TUTTI_ERR_TIMEOUT) return status;
        if (tutti_deadline_left_ms(g->tree.deadline) == 0) return fail_absent(g);
        TUTTI_TRY(check_counter(g, rank));
        if (g->own->rank == 0 && tutti_peer_table_is_late(g)) say_absent(g);
    }
}

/* ------------------------------------------------------------------------------------------ the way up */

/* A child has passed on an error. */
static tutti_status adopt_reason(const tutti_gathering *g, int rank, size_t bytes) {
    tutti_peer_table *table = g->incoming;
    size_t text_bytes = bytes - sizeof *table;
    char text[TUTTI_PEER_TABLE_TEXT_BYTES];
    if (table->status == TUTTI_ERR_TIMEOUT) return fail_absent(g); /* more ranks may be missing */
    snprintf(text, sizeof text, "%.*s", (int)tutti_min_size(text_bytes, sizeof text - 1), (const char *)(table + 1));
    tutti_make_printable(text);
    return tutti_fail(tutti_peer_table_status(table->status), "%s (reported by rank %d)", text, rank);
}

static tutti_status take_child(tutti_gathering *g, int rank) {
    size_t bytes = 0;
    TUTTI_TRY(await_child(g, rank, &bytes));
    tutti_peer_table *table = g->incoming;
    bool readable = bytes >= sizeof *table && table->magic == TUTTI_PEER_TABLE_MAGIC;
    if (readable && table->status != TUTTI_OK) return adopt_reason(g, rank, bytes);
    if (!readable || !tutti_peer_table_is_sound(table, bytes) || table->first != rank ||
        table->count > g->span - g->count)
        return tutti_fail(
            TUTTI_ERR_DATA,
            "the value that rank %d left in the store is not the card of a Tutti rank; is another program "
            "using the same store and prefix?",
            rank);
    tutti_peer_table_bound_texts(table);
    TUTTI_TRY(check_equal(g->own, table));
    if (table->count != tutti_kv_tree_span(rank, g->own->nranks))
        return tutti_fail(TUTTI_ERR_DATA, "rank %d passes on %d ranks, %d expected", rank, table->count,
                          tutti_kv_tree_span(rank, g->own->nranks));
    return merge(g, table);
}

tutti_status tutti_peer_table_gather(tutti_gathering *g) {
    size_t n = (size_t)g->span;
    TUTTI_TRY(tutti_calloc(n, sizeof *g->hosts, &g->hosts));
    TUTTI_TRY(tutti_calloc(n, sizeof *g->ranks, &g->ranks));
    /* The largest child has half of the subtree; more if the subtree is cut off at the end of the world. */
    g->incoming_capacity = tutti_max_size(sizeof *g->incoming + n * (sizeof *g->hosts + sizeof *g->ranks),
                                          sizeof *g->incoming + TUTTI_PEER_TABLE_TEXT_BYTES);
    TUTTI_TRY(tutti_calloc(1, g->incoming_capacity, &g->incoming));
    enter_self(g);
    TUTTI_KV_TREE_EACH_CHILD(step, g->own->rank, g->own->nranks) TUTTI_TRY(take_child(g, g->own->rank + step));
    return TUTTI_OK;
}

tutti_status tutti_peer_table_pack(const tutti_gathering *g, tutti_peer_table **roll_out) {
    tutti_peer_table head = {.magic = TUTTI_PEER_TABLE_MAGIC,
                             .nranks = g->own->nranks,
                             .first = g->own->rank,
                             .count = g->count,
                             .nhosts = g->nhosts};
    memcpy(head.version, g->own->version, sizeof head.version);
    memcpy(head.settings, g->own->settings, sizeof head.settings);
    tutti_peer_table *table;
    TUTTI_TRY(tutti_calloc(1, tutti_peer_table_bytes(&head), &table));
    *table = head;
    memcpy(table + 1, g->hosts, (size_t)g->nhosts * sizeof *g->hosts);
    memcpy((tutti_peer_table_host *)(table + 1) + g->nhosts, g->ranks, (size_t)g->count * sizeof *g->ranks);
    *roll_out = table;
    return TUTTI_OK;
}

/* Writes `head` (head_bytes) followed by this thread's error text; returns the error again. */
tutti_status tutti_peer_table_set_reason(const tutti_kv_tree *tree, const char *key, const void *head,
                                         size_t head_bytes, tutti_status status) {
    char text[TUTTI_PEER_TABLE_TEXT_BYTES], value[sizeof(tutti_peer_table) + TUTTI_PEER_TABLE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    memcpy(value, head, head_bytes);
    memcpy(value + head_bytes, text, strlen(text));
    tutti_kv_tree_set(tree, key, value, head_bytes + strlen(text));
    return tutti_fail(status, "%s", text);
}

/* Passes the subtree's peer table, or the error that prevented it, to the parent. */
tutti_status tutti_peer_table_pass_on(tutti_gathering *g, tutti_status gathered) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_peer_table *table;
    tutti_kv_tree_key(&g->tree, "cards", g->own->rank, key);
    if (gathered != TUTTI_OK) {
        tutti_peer_table head = {.magic = TUTTI_PEER_TABLE_MAGIC, .status = gathered};
        return tutti_peer_table_set_reason(&g->tree, key, &head, sizeof head, gathered);
    }
    TUTTI_TRY(tutti_peer_table_pack(g, &table));
    tutti_status status = tutti_kv_tree_set(&g->tree, key, table, tutti_peer_table_bytes(table));
    free(table);
    return status;
}
