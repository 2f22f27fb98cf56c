/*
 * The peer table of a new communicator. See peer_table.h.
 *
 * The way up, from the leaves of the tree to rank 0: while gathering, hosts and ranks are in two arrays with room for
 * the whole subtree; they are packed for sending. A rank that cannot gather its subtree passes on the error instead, so
 * rank 0 learns of it without delay. Rank 0 publishes the result, which all ranks then read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "comm/init/kv_tree.h"
#include "comm/init/peer_table.h"

#define MAGIC      UINT64_C(0x32306c6c6f727474) /* "ttroll02" */
#define TEXT_BYTES 1024
#define LOOK_MS    500 /* after a wait of this length, check why a rank is missing */
#define MOST_NAMED 16
#define TWIN_MS    500  /* a second process with this rank has left its claim by then; kv_tree.c waits longer */
#define GRACE_MS   1000 /* after the deadline, for the error to arrive from rank 0 */

/* "claim/<rank>", if values are authenticated: it replaces the counter, which any process can change. */
typedef struct claim {
    int32_t nranks, unused;
} claim;

typedef struct gathering {
    tutti_kv_tree tree;
    const tutti_peer_info *own;
    int span; /* number of ranks in this rank's subtree */
    int count, nhosts;
    tutti_peer_table_host *hosts; /* room for `span` hosts */
    tutti_peer_table_rank *ranks; /* room for `span` ranks */
    tutti_peer_table *incoming;   /* room for a child's largest peer table, or an error text */
    size_t incoming_capacity;
    int64_t begin_ns;    /* time charged to the deadline when the exchange began */
    tutti_notice notice; /* when to log the next notice about the ranks that this one waits for */
} gathering;

/* Whether it is time for this rank to log which ranks it waits for. */
static bool is_late(gathering *g) {
    return tutti_notice_due(&g->notice, g->tree.deadline->spent_ns - g->begin_ns);
}

/* A status received from another rank; TUTTI_ERR_CONFIG if it is not a valid error. */
static tutti_status status_of(int32_t status) {
    return status < TUTTI_OK && status >= TUTTI_ERR_DATA ? (tutti_status)status : TUTTI_ERR_CONFIG;
}

/* ---------------------------------------------------------------------------------------- what is gathered */

static void enter_self(gathering *g) {
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
static void bound_texts(tutti_peer_table *table) {
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
static bool is_sound(const tutti_peer_table *table, size_t bytes) {
    if (bytes < sizeof *table || table->magic != MAGIC || table->status != TUTTI_OK) return false;
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

static int find_host(const gathering *g, const char *id) {
    int host = 0;
    while (host < g->nhosts && strcmp(g->hosts[host].id, id) != 0) host++;
    return host;
}

/* Adds a child's peer table, whose ranks are above all that have been added. */
static tutti_status merge(gathering *g, const tutti_peer_table *table) {
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

static bool is_there(const gathering *g, const char *what, int rank) {
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

typedef bool (*condition)(const gathering *g, int rank);

static bool has_not_come(const gathering *g, int rank) {
    return !is_there(g, "count", rank);
}

/* The rank has joined and all its children have passed on their tables, but it has passed on nothing. */
static bool stands_still(const gathering *g, int rank) {
    if (is_there(g, "peer_info", rank)) return false;
    TUTTI_KV_TREE_EACH_CHILD(step, rank, g->own->nranks) if (!is_there(g, "peer_info", rank + step)) return false;
    return true;
}

/* Until the deadline, a rank that has passed on has its whole subtree; after it, perhaps only a report. */
typedef enum thoroughness { BEFORE_THE_DEADLINE, AFTER_THE_DEADLINE } thoroughness;

/* Lists the ranks in the subtree of `rank`, itself included, that meet the condition. */
static void list_under(const gathering *g, int rank, condition is_meant, thoroughness when, listing *found) {
    if (when == BEFORE_THE_DEADLINE && is_there(g, "peer_info", rank)) return;
    if (is_meant(g, rank) && ++found->count <= MOST_NAMED)
        found->used += (size_t)snprintf(found->text + found->used, sizeof found->text - found->used, "%s%d",
                                        found->count > 1 ? ", " : "", rank);
    TUTTI_KV_TREE_EACH_CHILD(step, rank, g->own->nranks) list_under(g, rank + step, is_meant, when, found);
}

/* Lists the ranks of this rank's own subtree that meet the condition. */
static listing list_ranks(const gathering *g, condition is_meant, thoroughness when) {
    listing found = {.count = 0};
    TUTTI_KV_TREE_EACH_CHILD(step, g->own->rank, g->own->nranks)
    list_under(g, g->own->rank + step, is_meant, when, &found);
    if (found.count > MOST_NAMED)
        snprintf(found.text + found.used, sizeof found.text - found.used, " and %d more", found.count - MOST_NAMED);
    return found;
}

/* Logged by rank 0 for all. That ranks make no progress only from the second notice on: a busy machine has many. */
static void say_absent(const gathering *g) {
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

static tutti_status fail_absent(const gathering *g) {
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
static tutti_status check_counter(const gathering *g, int rank) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int exists = 0;
    int64_t stored = 0;
    tutti_kv_tree_key(&g->tree, g->tree.proves ? "claim" : "count", rank, key);
    TUTTI_TRY(tutti_kv_tree_check(&g->tree, key, &exists));
    if (!exists) return TUTTI_OK;
    if (g->tree.proves) {
        claim found = {.nranks = 0};
        size_t bytes = 0;
        TUTTI_TRY(tutti_kv_tree_get(&g->tree, key, &found, sizeof found, LOOK_MS, &bytes));
        stored = found.nranks;
    } else {
        TUTTI_TRY(tutti_kv_tree_add(&g->tree, key, 0, &stored));
    }
    if (stored == g->own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "rank %d has WORLD_SIZE %lld, rank %d has %d: WORLD_SIZE must be equal everywhere", rank,
                      (long long)stored, g->own->rank, g->own->nranks);
}

static tutti_status await_child(gathering *g, int rank, size_t *bytes_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_kv_tree_key(&g->tree, "peer_info", rank, key);
    for (;;) {
        tutti_status status = tutti_kv_tree_get(&g->tree, key, g->incoming, g->incoming_capacity, LOOK_MS, bytes_out);
        if (status != TUTTI_ERR_TIMEOUT) return status;
        if (tutti_deadline_left_ms(g->tree.deadline) == 0) return fail_absent(g);
        TUTTI_TRY(check_counter(g, rank));
        if (g->own->rank == 0 && is_late(g)) say_absent(g);
    }
}

/* ------------------------------------------------------------------------------------------ the way up */

/* A child has passed on an error. */
static tutti_status adopt_reason(const gathering *g, int rank, size_t bytes) {
    tutti_peer_table *table = g->incoming;
    char text[TEXT_BYTES];
    int text_bytes = (int)tutti_min_size(bytes - sizeof *table, sizeof text - 1);
    if (table->status == TUTTI_ERR_TIMEOUT) return fail_absent(g); /* more ranks may be missing */
    snprintf(text, sizeof text, "%.*s", text_bytes, (const char *)(table + 1));
    tutti_make_printable(text);
    return tutti_fail(status_of(table->status), "%s (reported by rank %d)", text, rank);
}

static tutti_status take_child(gathering *g, int rank) {
    size_t bytes = 0;
    TUTTI_TRY(await_child(g, rank, &bytes));
    tutti_peer_table *table = g->incoming;
    bool readable = bytes >= sizeof *table && table->magic == MAGIC;
    if (readable && table->status != TUTTI_OK) return adopt_reason(g, rank, bytes);
    if (!readable || !is_sound(table, bytes) || table->first != rank || table->count > g->span - g->count)
        return tutti_fail(TUTTI_ERR_DATA,
                          "the value that rank %d left in the store is not the peer info of a Tutti rank; is another "
                          "program using the same store and prefix?",
                          rank);
    bound_texts(table);
    TUTTI_TRY(check_equal(g->own, table));
    if (table->count != tutti_kv_tree_span(rank, g->own->nranks))
        return tutti_fail(TUTTI_ERR_DATA, "rank %d passes on %d ranks, %d expected", rank, table->count,
                          tutti_kv_tree_span(rank, g->own->nranks));
    return merge(g, table);
}

/* Gathers the peer table of the subtree from the store. */
static tutti_status gather(gathering *g) {
    size_t n = (size_t)g->span;
    TUTTI_TRY(tutti_calloc(n, sizeof *g->hosts, &g->hosts));
    TUTTI_TRY(tutti_calloc(n, sizeof *g->ranks, &g->ranks));
    /* The largest child has half of the subtree; more if the subtree is cut off at the end of the world. */
    g->incoming_capacity = tutti_max_size(sizeof *g->incoming + n * (sizeof *g->hosts + sizeof *g->ranks),
                                          sizeof *g->incoming + TEXT_BYTES);
    TUTTI_TRY(tutti_calloc(1, g->incoming_capacity, &g->incoming));
    enter_self(g);
    TUTTI_KV_TREE_EACH_CHILD(step, g->own->rank, g->own->nranks) TUTTI_TRY(take_child(g, g->own->rank + step));
    return TUTTI_OK;
}

static tutti_status pack(const gathering *g, tutti_peer_table **table_out) {
    tutti_peer_table head = {
        .magic = MAGIC, .nranks = g->own->nranks, .first = g->own->rank, .count = g->count, .nhosts = g->nhosts};
    memcpy(head.version, g->own->version, sizeof head.version);
    memcpy(head.settings, g->own->settings, sizeof head.settings);
    tutti_peer_table *table;
    TUTTI_TRY(tutti_calloc(1, tutti_peer_table_bytes(&head), &table));
    *table = head;
    memcpy(table + 1, g->hosts, (size_t)g->nhosts * sizeof *g->hosts);
    memcpy((tutti_peer_table_host *)(table + 1) + g->nhosts, g->ranks, (size_t)g->count * sizeof *g->ranks);
    *table_out = table;
    return TUTTI_OK;
}

/* Writes `head` (head_bytes) followed by this thread's error text; returns the error again. */
static tutti_status set_reason(const tutti_kv_tree *tree, const char *key, const void *head, size_t head_bytes,
                               tutti_status status) {
    char value[sizeof(tutti_peer_table) + TEXT_BYTES], *text = value + head_bytes;
    memcpy(value, head, head_bytes);
    snprintf(text, TEXT_BYTES, "%s", tutti_last_error());
    tutti_kv_tree_set(tree, key, value, head_bytes + strlen(text));
    return tutti_fail(status, "%s", text);
}

/* Passes the subtree's peer table, or the error that prevented it, to the parent; returns that error again. */
static tutti_status pass_on(gathering *g, tutti_status gathered) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_peer_table *table;
    tutti_kv_tree_key(&g->tree, "peer_info", g->own->rank, key);
    if (gathered != TUTTI_OK) {
        tutti_peer_table head = {.magic = MAGIC, .status = gathered};
        return set_reason(&g->tree, key, &head, sizeof head, gathered);
    }
    TUTTI_TRY(pack(g, &table));
    tutti_status status = tutti_kv_tree_set(&g->tree, key, table, tutti_peer_table_bytes(table));
    free(table);
    return status;
}

/* ---------------------------------------------------------------------------------------- the way down */

/* The key "peer_table"; followed by an error text if status is not TUTTI_OK. */
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

static void host_key(const tutti_kv_tree *tree, const char *id, char text[TUTTI_KV_TREE_KEY_BYTES]) {
    char what[80];
    snprintf(what, sizeof what, "host/%s", id);
    tutti_kv_tree_key(tree, what, -1, text);
}

static tutti_status publish(const gathering *g, const tutti_peer_table *table) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    verdict v = {.magic = MAGIC, .nhosts = table->nhosts};
    TUTTI_TRY(tutti_getrandom(&v.comm_id, sizeof v.comm_id));
    v.comm_id |= 1; /* 0 means no communicator */
    TUTTI_TRY(tutti_getrandom(v.nonce, sizeof v.nonce));
    if (table->nhosts > 1)
        TUTTI_TRY(tutti_kv_tree_set(&g->tree, tutti_kv_tree_key(&g->tree, "ranks", -1, key), table,
                                    tutti_peer_table_bytes(table)));
    for (int i = 0; i < table->nhosts; i++) {
        const tutti_peer_table_host *host = &tutti_peer_table_hosts(table)[i];
        host_line line = {.magic = MAGIC, .host = i, .leader = host->first, .nranks = host->nranks};
        line.leader_pid = tutti_peer_table_ranks(table)[host->first].pid;
        memcpy(line.socket_name, host->socket_name, sizeof line.socket_name);
        host_key(&g->tree, host->id, key);
        TUTTI_TRY(tutti_kv_tree_set(&g->tree, key, &line, sizeof line));
    }
    return tutti_kv_tree_set(&g->tree, tutti_kv_tree_key(&g->tree, "peer_table", -1, key), &v, sizeof v);
}

/* Rank 0: publishes the peer table, or the error that prevented it. */
static tutti_status conclude(gathering *g, tutti_status gathered, tutti_peer_table **table_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    tutti_peer_table *table = NULL;
    tutti_status status = gathered == TUTTI_OK ? pack(g, &table) : gathered;
    if (status == TUTTI_OK) status = publish(g, table);
    if (status != TUTTI_OK) {
        verdict v = {.magic = MAGIC, .status = status};
        free(table);
        return set_reason(&g->tree, tutti_kv_tree_key(&g->tree, "peer_table", -1, key), &v, sizeof v, status);
    }
    *table_out = table;
    return TUTTI_OK;
}

/* Rank 0 knows which ranks are missing; some ranks, those that are powers of two, check whether rank 0 itself is. */
static void say_first_absent(gathering *g) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int there = 0;
    const tutti_store *store = g->tree.store;
    if (!is_late(g)) return;
    tutti_kv_tree_key(&g->tree, "count", 0, key);
    if (store->check(store->context, key, &there) != TUTTI_OK || (there && g->notice.said < 2)) return;
    tutti_log(TUTTI_LOG_WARN, "the start has waited %lld s for rank 0, which %s; waits until TUTTI_CONNECT_TIMEOUT_MS",
              (long long)((g->tree.deadline->spent_ns - g->begin_ns) / TUTTI_NS_PER_S),
              there ? "is gathering the others, or has ended" : "has not joined");
}

/* Waits for the key "peer_table", until shortly after the deadline. */
static tutti_status await_verdict(gathering *g, const char *key, void *value, size_t capacity, size_t *bytes_out) {
    int rank = g->own->rank;
    bool speaks = rank > 0 && (rank & (rank - 1)) == 0;
    tutti_deadline extended = *g->tree.deadline;
    if (extended.budget_ns != INT64_MAX) extended.budget_ns += GRACE_MS * TUTTI_NS_PER_MS;
    tutti_kv_tree patient = g->tree;
    patient.deadline = &extended;
    for (;;) {
        tutti_status status =
            tutti_kv_tree_get(&patient, key, value, capacity, speaks ? LOOK_MS : INT64_MAX, bytes_out);
        tutti_deadline_passed(g->tree.deadline);
        if (status != TUTTI_ERR_TIMEOUT || !speaks || tutti_deadline_left_ms(&extended) == 0) return status;
        say_first_absent(g);
    }
}

static tutti_status get_verdict(gathering *g, int nranks, verdict *verdict_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES], value[sizeof(verdict) + TEXT_BYTES];
    size_t bytes = 0;
    tutti_kv_tree_key(&g->tree, "peer_table", -1, key);
    tutti_status status = await_verdict(g, key, value, sizeof value, &bytes);
    if (status == TUTTI_ERR_TIMEOUT)
        return tutti_fail(status,
                          "%d ranks were expected, but rank 0 has not gathered them before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS): it has not joined, or has ended",
                          nranks);
    TUTTI_TRY(status);
    verdict v = {0};
    if (bytes >= sizeof v) memcpy(&v, value, sizeof v);
    if (bytes < sizeof v || v.magic != MAGIC)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" is not from a rank 0 of this version of Tutti", key);
    if (v.status != TUTTI_OK) {
        char text[TEXT_BYTES + 1];
        snprintf(text, sizeof text, "%.*s", (int)(bytes - sizeof v), value + sizeof v);
        tutti_make_printable(text);
        return tutti_fail(status_of(v.status), "%s (reported by rank 0)", text);
    }
    *verdict_out = v;
    return TUTTI_OK;
}

static tutti_status find_place(gathering *g, const tutti_peer_info *own, tutti_place *place_out) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    verdict v = {0};
    host_line line;
    size_t bytes = 0;
    TUTTI_TRY(get_verdict(g, own->nranks, &v));
    host_key(&g->tree, own->host_id, key);
    TUTTI_TRY(tutti_kv_tree_get(&g->tree, key, &line, sizeof line, INT64_MAX, &bytes));
    line.socket_name[sizeof line.socket_name - 1] = '\0';
    if (bytes != sizeof line || line.magic != MAGIC || v.nhosts > own->nranks || line.host < 0 ||
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
    if (is_sound(table, bytes) && table->first == 0 && table->count == nranks && table->nranks == nranks)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the peer table is malformed");
}

static tutti_status read_table(const tutti_kv_tree *tree, int nranks, int nhosts, tutti_peer_table **table_out) {
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
    bound_texts(table);
    *table_out = table;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ both */

/* Whether another process with this rank that knows the secret has left its claim, or does so within TWIN_MS; else
 * a process without the secret has changed the counter. */
static bool is_claimed(const tutti_kv_tree *tree, int rank) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    claim found;
    size_t bytes = 0;
    tutti_deadline soon = tutti_deadline_after_ms(TWIN_MS);
    tutti_kv_tree brief = *tree;
    brief.deadline = &soon; /* also limits the wait for a claim with a wrong MAC */
    tutti_kv_tree_key(tree, "claim", rank, key);
    bool claimed = tutti_kv_tree_get(&brief, key, &found, sizeof found, TWIN_MS, &bytes) == TUTTI_OK;
    tutti_kv_tree_close(&brief);
    if (!claimed)
        tutti_log(TUTTI_LOG_WARN,
                  "the store's counter of rank %d is ignored: a process that does not know this job's secret has "
                  "changed it",
                  rank);
    return claimed;
}

static tutti_status count_self(const tutti_kv_tree *tree, const tutti_peer_info *own) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    int64_t sum = 0;
    tutti_kv_tree_key(tree, "count", own->rank, key);
    TUTTI_TRY(tutti_kv_tree_add(tree, key, own->nranks, &sum));
    if (tree->proves && (sum == own->nranks || !is_claimed(tree, own->rank))) {
        const claim own_claim = {.nranks = own->nranks};
        return tutti_kv_tree_set(tree, tutti_kv_tree_key(tree, "claim", own->rank, key), &own_claim, sizeof own_claim);
    }
    if (sum == own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "two processes have rank %d (or the store still holds \"%s\" of an earlier job): each "
                      "process needs a RANK of its own",
                      own->rank, tree->prefix);
}

static tutti_status exchange(gathering *g, tutti_place *place, tutti_peer_table **table) {
    TUTTI_TRY(count_self(&g->tree, g->own));
    tutti_status status = gather(g);
    if (g->own->rank == 0) {
        TUTTI_TRY(conclude(g, status, table));
        return find_place(g, g->own, place);
    }
    /* A rank that timed out waits for rank 0, which knows all missing ranks. */
    status = pass_on(g, status);
    if (status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT) return status;
    TUTTI_TRY(find_place(g, g->own, place));
    return place->leader == g->own->rank ? read_table(&g->tree, g->own->nranks, place->nhosts, table) : TUTTI_OK;
}

tutti_status tutti_peer_table_exchange(const tutti_store *store, const char *prefix, const tutti_peer_info *own,
                                       tutti_deadline *deadline, tutti_place *place_out, tutti_peer_table **table_out) {
    gathering g = {.own = own, .begin_ns = deadline->spent_ns, .span = tutti_kv_tree_span(own->rank, own->nranks)};
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
    *table_out = table;
    return TUTTI_OK;
}
