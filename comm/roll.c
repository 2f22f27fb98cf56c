/*
 * The roll of a new communicator. See roll.h.
 *
 * Gathering keeps hosts and ranks in two arrays that have room for the whole subtree; they are packed to be sent. A rank
 * that cannot gather its subtree hands on the reason in its place, so rank 0 learns it as soon as anybody does.
 */
#include "comm/roll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/board.h"

#define ROLL_MAGIC UINT64_C(0x32306c6c6f727474) /* "ttroll02" */
#define LOOK_MS    500                          /* after so long a wait, a look at why somebody does not come */
#define GRACE_MS   1000                         /* beyond the deadline, for the reason to come down from rank 0 */
#define TEXT_BYTES 1024
#define MOST_NAMED 16

/* The key "roll"; followed by a text where status is not TUTTI_OK. */
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

/* A roll that is being gathered. */
typedef struct gathering {
    tutti_board board;
    const tutti_card *own;
    int span; /* ranks of the subtree */
    int count, nhosts;
    tutti_roll_host *hosts; /* room for span */
    tutti_roll_rank *ranks; /* likewise */
    tutti_roll *incoming;   /* room for the largest roll of a child, or a text */
    size_t incoming_capacity;
} gathering;

static tutti_status told_status(int32_t status) {
    return status < TUTTI_OK && status >= TUTTI_ERR_DATA ? (tutti_status)status : TUTTI_ERR_CONFIG;
}

/* ------------------------------------------------------------------------------------------- gathering */

static void enter_self(gathering *g) {
    const tutti_card *own = g->own;
    tutti_roll_host *host = &g->hosts[g->nhosts++];
    *host = (tutti_roll_host){.cores = own->cores, .most_cores = own->most_cores, .first = own->rank, .nranks = 1};
    memcpy(host->id, own->host_id, sizeof host->id);
    memcpy(host->name, own->host, sizeof host->name);
    memcpy(host->socket_name, own->socket_name, sizeof host->socket_name);
    g->ranks[g->count++] = (tutti_roll_rank){.pid = own->pid, .pid_space = own->pid_space};
}

/* Ends all texts, so that what came from outside can be printed. */
static void bound_texts(tutti_roll *roll) {
    roll->version[sizeof roll->version - 1] = '\0';
    roll->settings[sizeof roll->settings - 1] = '\0';
    tutti_roll_host *hosts = (tutti_roll_host *)(roll + 1);
    for (int i = 0; i < roll->nhosts; i++) {
        hosts[i].id[sizeof hosts[i].id - 1] = '\0';
        hosts[i].name[sizeof hosts[i].name - 1] = '\0';
        hosts[i].socket_name[sizeof hosts[i].socket_name - 1] = '\0';
    }
}

/* Does what was read hang together? */
static bool is_sound(const tutti_roll *roll, size_t bytes) {
    if (bytes < sizeof *roll || roll->magic != ROLL_MAGIC || roll->status != TUTTI_OK) return false;
    if (roll->count < 1 || roll->nhosts < 1 || roll->nhosts > roll->count || roll->first < 0) return false;
    if (bytes != tutti_roll_bytes(roll)) return false;
    const tutti_roll_rank *ranks = tutti_roll_ranks(roll);
    for (int i = 0; i < roll->count; i++)
        if (ranks[i].host < 0 || ranks[i].host >= roll->nhosts) return false;
    const tutti_roll_host *hosts = tutti_roll_hosts(roll);
    for (int i = 0; i < roll->nhosts; i++) {
        int first = hosts[i].first - roll->first;
        if (first < 0 || first >= roll->count || ranks[first].host != i || hosts[i].nranks < 1) return false;
    }
    return true;
}

static tutti_status check_equal(const tutti_card *own, const tutti_roll *roll) {
    const tutti_roll_rank *rank = &tutti_roll_ranks(roll)[0];
    if (roll->nranks != own->nranks)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d (host %s, pid %lld) says %d ranks, rank %d says %d: WORLD_SIZE must be "
                          "equal everywhere",
                          roll->first, tutti_roll_hosts(roll)[rank->host].name, (long long)rank->pid, roll->nranks,
                          own->rank, own->nranks);
    if (strcmp(roll->version, own->version) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d runs Tutti %s, rank %d runs %s: all ranks must load the same version", roll->first,
                          roll->version, own->rank, own->version);
    if (strcmp(roll->settings, own->settings) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "settings differ: rank %d has \"%s\", rank %d has \"%s\"; set them alike",
                          roll->first, roll->settings, own->rank, own->settings);
    return TUTTI_OK;
}

static int find_host(const gathering *g, const char *id) {
    int host = 0;
    while (host < g->nhosts && strcmp(g->hosts[host].id, id) != 0) host++;
    return host;
}

/* Adds a child's roll, whose ranks are above all that are here. */
static tutti_status merge(gathering *g, const tutti_roll *roll) {
    const tutti_roll_host *hosts = tutti_roll_hosts(roll);
    const tutti_roll_rank *ranks = tutti_roll_ranks(roll);
    int *index_here;
    TUTTI_TRY(tutti_calloc((size_t)roll->nhosts, sizeof *index_here, &index_here));
    for (int i = 0; i < roll->nhosts; i++) {
        int host = index_here[i] = find_host(g, hosts[i].id);
        if (host == g->nhosts) {
            g->hosts[g->nhosts++] = hosts[i];
            continue;
        }
        tutti_cores_join(&g->hosts[host].cores, &hosts[i].cores);
        if (hosts[i].most_cores < g->hosts[host].most_cores) g->hosts[host].most_cores = hosts[i].most_cores;
        g->hosts[host].nranks += hosts[i].nranks;
    }
    for (int i = 0; i < roll->count; i++) {
        g->ranks[g->count] = ranks[i];
        g->ranks[g->count++].host = index_here[ranks[i].host];
    }
    free(index_here);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ who is late */

/* "2, 5 and 3 more": ranks of the subtree that have not counted themselves. */
static void list_absent(const gathering *g, char *text, size_t capacity) {
    char key[TUTTI_BOARD_KEY_BYTES];
    const tutti_store *store = g->board.store;
    size_t used = 0;
    int absent = 0;
    text[0] = '\0';
    for (int rank = g->own->rank; rank < g->own->rank + g->span; rank++) {
        int exists = 0;
        tutti_board_key(&g->board, "count", rank, key);
        if (store->check(store->context, key, &exists) != TUTTI_OK || exists) continue;
        if (++absent <= MOST_NAMED && used < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s%d", absent > 1 ? ", " : "", rank);
    }
    if (absent > MOST_NAMED && used < capacity)
        snprintf(text + used, capacity - used, " and %d more", absent - MOST_NAMED);
    if (absent == 0)
        snprintf(text, capacity, "nobody: all have come, but one of them has ended since or does not go on");
}

static tutti_status fail_absent(const gathering *g) {
    char absent[256];
    list_absent(g, absent, sizeof absent);
    return tutti_fail(TUTTI_ERR_TIMEOUT,
                      "%d ranks should meet, but these have not come before the deadline "
                      "(TUTTI_CONNECT_TIMEOUT_MS): %s",
                      g->own->nranks, absent);
}

/* A rank that was told of more ranks than the others waits for ones that will never come. Its counter tells: each counts by
 * the number of ranks that it was told. */
static tutti_status check_counter(const gathering *g, int rank) {
    char key[TUTTI_BOARD_KEY_BYTES];
    int exists = 0;
    int64_t told = 0;
    const tutti_store *store = g->board.store;
    tutti_board_key(&g->board, "count", rank, key);
    TUTTI_TRY(store->check(store->context, key, &exists));
    if (!exists) return TUTTI_OK;
    TUTTI_TRY(store->add(store->context, key, 0, &told));
    if (told == g->own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "rank %d says %lld ranks, rank %d says %d: WORLD_SIZE must be equal everywhere",
                      rank, (long long)told, g->own->rank, g->own->nranks);
}

static tutti_status await_child(gathering *g, int rank, size_t *bytes_out) {
    char key[TUTTI_BOARD_KEY_BYTES];
    tutti_board_key(&g->board, "cards", rank, key);
    for (;;) {
        tutti_status status = tutti_board_get(&g->board, key, g->incoming, g->incoming_capacity, LOOK_MS, bytes_out);
        if (status != TUTTI_ERR_TIMEOUT) return status;
        if (tutti_deadline_left_ms(g->board.deadline) == 0) return fail_absent(g);
        TUTTI_TRY(check_counter(g, rank));
    }
}

/* ------------------------------------------------------------------------------------------ the way up */

/* A child has handed on a reason. */
static tutti_status adopt_reason(const gathering *g, int rank, size_t bytes) {
    tutti_roll *roll = g->incoming;
    size_t text_bytes = bytes - sizeof *roll;
    char text[TEXT_BYTES];
    if (roll->status == TUTTI_ERR_TIMEOUT) return fail_absent(g); /* there may be more of them */
    snprintf(text, sizeof text, "%.*s", (int)tutti_min_size(text_bytes, sizeof text - 1), (const char *)(roll + 1));
    return tutti_fail(told_status(roll->status), "%s (told by rank %d)", text, rank);
}

static tutti_status take_child(gathering *g, int rank) {
    size_t bytes = 0;
    TUTTI_TRY(await_child(g, rank, &bytes));
    tutti_roll *roll = g->incoming;
    bool readable = bytes >= sizeof *roll && roll->magic == ROLL_MAGIC;
    if (readable && roll->status != TUTTI_OK) return adopt_reason(g, rank, bytes);
    if (!readable || !is_sound(roll, bytes) || roll->first != rank || roll->count > g->span - g->count)
        return tutti_fail(TUTTI_ERR_DATA,
                          "what rank %d left in the store is no card of a Tutti rank; is another program "
                          "using the same store and prefix?",
                          rank);
    bound_texts(roll);
    TUTTI_TRY(check_equal(g->own, roll));
    if (roll->count != tutti_board_span(rank, g->own->nranks))
        return tutti_fail(TUTTI_ERR_DATA, "rank %d speaks for %d ranks, %d expected", rank, roll->count,
                          tutti_board_span(rank, g->own->nranks));
    return merge(g, roll);
}

static tutti_status gather(gathering *g) {
    size_t n = (size_t)g->span;
    TUTTI_TRY(tutti_calloc(n, sizeof *g->hosts, &g->hosts));
    TUTTI_TRY(tutti_calloc(n, sizeof *g->ranks, &g->ranks));
    /* The largest child has half of the subtree, or more in the world's last one. */
    g->incoming_capacity = tutti_max_size(sizeof *g->incoming + n * (sizeof *g->hosts + sizeof *g->ranks),
                                          sizeof *g->incoming + TEXT_BYTES);
    TUTTI_TRY(tutti_calloc(1, g->incoming_capacity, &g->incoming));
    enter_self(g);
    TUTTI_BOARD_EACH_CHILD(step, g->own->rank, g->own->nranks) TUTTI_TRY(take_child(g, g->own->rank + step));
    return TUTTI_OK;
}

static tutti_status pack(const gathering *g, tutti_roll **roll_out) {
    tutti_roll head = {
        .magic = ROLL_MAGIC, .nranks = g->own->nranks, .first = g->own->rank, .count = g->count, .nhosts = g->nhosts};
    memcpy(head.version, g->own->version, sizeof head.version);
    memcpy(head.settings, g->own->settings, sizeof head.settings);
    tutti_roll *roll;
    TUTTI_TRY(tutti_calloc(1, tutti_roll_bytes(&head), &roll));
    *roll = head;
    memcpy(roll + 1, g->hosts, (size_t)g->nhosts * sizeof *g->hosts);
    memcpy((tutti_roll_host *)(roll + 1) + g->nhosts, g->ranks, (size_t)g->count * sizeof *g->ranks);
    *roll_out = roll;
    return TUTTI_OK;
}

/* Writes `head` (of head_bytes) and this thread's error text behind it; gives the error again. */
static tutti_status set_reason(const tutti_board *board, const char *key, const void *head, size_t head_bytes,
                               tutti_status status) {
    char text[TEXT_BYTES], value[sizeof(tutti_roll) + TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    memcpy(value, head, head_bytes);
    memcpy(value + head_bytes, text, strlen(text));
    tutti_board_set(board, key, value, head_bytes + strlen(text));
    return tutti_fail(status, "%s", text);
}

/* Hands the subtree's roll, or why there is none, to the parent. */
static tutti_status hand_on(gathering *g, tutti_status gathered) {
    char key[TUTTI_BOARD_KEY_BYTES];
    tutti_roll *roll;
    tutti_board_key(&g->board, "cards", g->own->rank, key);
    if (gathered != TUTTI_OK) {
        tutti_roll head = {.magic = ROLL_MAGIC, .status = gathered};
        return set_reason(&g->board, key, &head, sizeof head, gathered);
    }
    TUTTI_TRY(pack(g, &roll));
    tutti_status status = tutti_board_set(&g->board, key, roll, tutti_roll_bytes(roll));
    free(roll);
    return status;
}

/* ---------------------------------------------------------------------------------------- the way down */

static void host_key(const tutti_board *board, const char *id, char text[TUTTI_BOARD_KEY_BYTES]) {
    char what[80];
    snprintf(what, sizeof what, "host/%s", id);
    tutti_board_key(board, what, -1, text);
}

static tutti_status publish(const gathering *g, const tutti_roll *roll) {
    char key[TUTTI_BOARD_KEY_BYTES];
    verdict v = {.magic = ROLL_MAGIC, .nhosts = roll->nhosts};
    TUTTI_TRY(tutti_random_bytes(&v.comm_id, sizeof v.comm_id));
    v.comm_id |= 1; /* 0 stands for no communicator */
    TUTTI_TRY(tutti_random_bytes(v.nonce, sizeof v.nonce));
    if (roll->nhosts > 1)
        TUTTI_TRY(
            tutti_board_set(&g->board, tutti_board_key(&g->board, "ranks", -1, key), roll, tutti_roll_bytes(roll)));
    for (int i = 0; i < roll->nhosts; i++) {
        const tutti_roll_host *host = &tutti_roll_hosts(roll)[i];
        host_line line = {.magic = ROLL_MAGIC, .host = i, .leader = host->first, .nranks = host->nranks};
        line.leader_pid = tutti_roll_ranks(roll)[host->first].pid;
        memcpy(line.socket_name, host->socket_name, sizeof line.socket_name);
        host_key(&g->board, host->id, key);
        TUTTI_TRY(tutti_board_set(&g->board, key, &line, sizeof line));
    }
    return tutti_board_set(&g->board, tutti_board_key(&g->board, "roll", -1, key), &v, sizeof v);
}

/* Rank 0: all have been gathered, or not. */
static tutti_status conclude(gathering *g, tutti_status gathered, tutti_roll **roll_out) {
    char key[TUTTI_BOARD_KEY_BYTES];
    tutti_roll *roll = NULL;
    tutti_status status = gathered;
    if (status == TUTTI_OK) status = pack(g, &roll);
    if (status == TUTTI_OK) status = publish(g, roll);
    if (status != TUTTI_OK) {
        verdict v = {.magic = ROLL_MAGIC, .status = status};
        free(roll);
        return set_reason(&g->board, tutti_board_key(&g->board, "roll", -1, key), &v, sizeof v, status);
    }
    *roll_out = roll;
    return TUTTI_OK;
}

static tutti_status get_verdict(const tutti_board *board, int nranks, verdict *verdict_out) {
    char key[TUTTI_BOARD_KEY_BYTES], value[sizeof(verdict) + TEXT_BYTES];
    tutti_deadline patience = *board->deadline;
    if (patience.budget_ns != INT64_MAX) patience.budget_ns += GRACE_MS * TUTTI_NS_PER_MS;
    const tutti_board patient = {.store = board->store, .prefix = board->prefix, .deadline = &patience};
    size_t bytes = 0;
    tutti_status status =
        tutti_board_get(&patient, tutti_board_key(board, "roll", -1, key), value, sizeof value, INT64_MAX, &bytes);
    tutti_deadline_passed(board->deadline);
    if (status == TUTTI_ERR_TIMEOUT)
        return tutti_fail(status,
                          "%d ranks should meet, but rank 0 has not gathered them before the deadline "
                          "(TUTTI_CONNECT_TIMEOUT_MS): it has not come, or has ended",
                          nranks);
    TUTTI_TRY(status);
    verdict v = {0};
    if (bytes >= sizeof v) memcpy(&v, value, sizeof v);
    if (bytes < sizeof v || v.magic != ROLL_MAGIC)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" is not from a rank 0 of this version of Tutti", key);
    if (v.status != TUTTI_OK)
        return tutti_fail(told_status(v.status), "%.*s (told by rank 0)", (int)(bytes - sizeof v), value + sizeof v);
    *verdict_out = v;
    return TUTTI_OK;
}

static tutti_status find_place(const tutti_board *board, const tutti_card *own, tutti_place *place_out) {
    char key[TUTTI_BOARD_KEY_BYTES];
    verdict v = {0};
    host_line line;
    size_t bytes = 0;
    TUTTI_TRY(get_verdict(board, own->nranks, &v));
    host_key(board, own->host_id, key);
    TUTTI_TRY(tutti_board_get(board, key, &line, sizeof line, INT64_MAX, &bytes));
    line.socket_name[sizeof line.socket_name - 1] = '\0';
    if (bytes != sizeof line || line.magic != ROLL_MAGIC || line.host < 0 || line.host >= v.nhosts || line.leader < 0 ||
        line.leader > own->rank || line.nranks < 1 || line.nranks > own->nranks)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" makes no sense", key);
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

tutti_status tutti_roll_check(const tutti_roll *roll, size_t bytes, int nranks) {
    if (is_sound(roll, bytes) && roll->first == 0 && roll->count == nranks && roll->nranks == nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the list of all ranks makes no sense");
}

static tutti_status read_roll(const tutti_board *board, int nranks, int nhosts, tutti_roll **roll_out) {
    char key[TUTTI_BOARD_KEY_BYTES];
    size_t bytes = 0;
    tutti_roll *roll;
    const tutti_roll all = {.nhosts = nhosts, .count = nranks};
    TUTTI_TRY(tutti_calloc(1, tutti_roll_bytes(&all), &roll));
    tutti_status status = tutti_board_get(board, tutti_board_key(board, "ranks", -1, key), roll, tutti_roll_bytes(&all),
                                          INT64_MAX, &bytes);
    if (status == TUTTI_OK) status = tutti_roll_check(roll, bytes, nranks);
    if (status != TUTTI_OK) {
        free(roll);
        return status;
    }
    bound_texts(roll);
    *roll_out = roll;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ both */

static tutti_status count_self(const tutti_board *board, const tutti_card *own) {
    char key[TUTTI_BOARD_KEY_BYTES];
    int64_t sum = 0;
    tutti_board_key(board, "count", own->rank, key);
    TUTTI_TRY(board->store->add(board->store->context, key, own->nranks, &sum));
    if (sum == own->nranks) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "rank %d is there twice (or the store still holds \"%s\" of an earlier job): each "
                      "process needs a RANK of its own",
                      own->rank, board->prefix);
}

static tutti_status exchange(gathering *g, tutti_place *place, tutti_roll **roll) {
    const tutti_card *own = g->own;
    TUTTI_TRY(count_self(&g->board, own));
    tutti_status status = gather(g);
    if (own->rank == 0) {
        TUTTI_TRY(conclude(g, status, roll));
        return find_place(&g->board, own, place);
    }
    /* Whoever found that ranks are missing waits for rank 0, which knows of all of them. */
    status = hand_on(g, status);
    if (status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT) return status;
    TUTTI_TRY(find_place(&g->board, own, place));
    return place->leader == own->rank ? read_roll(&g->board, own->nranks, place->nhosts, roll) : TUTTI_OK;
}

tutti_status tutti_roll_exchange(const tutti_store *store, const char *prefix, const tutti_card *own,
                                 tutti_deadline *deadline, tutti_place *place_out, tutti_roll **roll_out) {
    gathering g = {.board = {.store = store, .prefix = prefix, .deadline = deadline},
                   .own = own,
                   .span = tutti_board_span(own->rank, own->nranks)};
    tutti_place place;
    tutti_roll *roll = NULL;
    tutti_status status = exchange(&g, &place, &roll);
    free(g.hosts);
    free(g.ranks);
    free(g.incoming);
    if (status != TUTTI_OK) {
        free(roll);
        return status;
    }
    *place_out = place;
    *roll_out = roll;
    return TUTTI_OK;
}
