/*
 * The exchange of listeners. See address_exchange.h.
 */
#include "comm/init/address_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "comm/init/kv_tree.h"

#define LOOK_MS         500                  /* interval of checks on leaders that log what they wait for */
#define ADDRESSES_MAGIC UINT32_C(0x32727464) /* "dtr2" */

/* Header of a value. */
typedef struct addresses_head {
    uint32_t magic;
    int32_t first, nhosts; /* the hosts whose listeners follow, the ranks of each host in ascending order */
    uint32_t unused;
} addresses_head;

enum { LISTENER_NEW = 1, LISTENER_LIKE_BEFORE = 2 };

/* ---------------------------------------------------------------------------------------------- packing */

static size_t put(uint8_t *bytes, size_t used, const void *data, size_t count) {
    memcpy(bytes + used, data, count);
    return used + count;
}

static bool is_like(const tutti_listener_info *listener, const tutti_listener_info *before) {
    return before != NULL && listener->naddresses == before->naddresses && listener->transports == before->transports &&
           strcmp(listener->why, before->why) == 0 &&
           memcmp(listener->addresses, before->addresses, listener->naddresses * sizeof listener->addresses[0]) == 0;
}

size_t tutti_address_exchange_pack(const tutti_listener_info *listener, const tutti_listener_info *before,
                                   uint8_t *bytes_out) {
    size_t used = 0;
    uint8_t kind = is_like(listener, before) ? LISTENER_LIKE_BEFORE : LISTENER_NEW;
    bytes_out[used++] = kind;
    used = put(bytes_out, used, listener->process, sizeof listener->process);
    used = put(bytes_out, used, &listener->port, sizeof listener->port);
    if (kind == LISTENER_LIKE_BEFORE) return used;
    uint8_t why_bytes = (uint8_t)strlen(listener->why);
    used = put(bytes_out, used, &listener->transports, sizeof listener->transports);
    bytes_out[used++] = (uint8_t)listener->naddresses;
    bytes_out[used++] = why_bytes;
    used = put(bytes_out, used, listener->addresses, listener->naddresses * sizeof listener->addresses[0]);
    return put(bytes_out, used, listener->why, why_bytes);
}

/* Reads the next `count` bytes; false: there are not as many. */
static bool take(const uint8_t *bytes, size_t available, size_t *used, void *data, size_t count) {
    if (count > available - *used) return false;
    memcpy(data, bytes + *used, count);
    *used += count;
    return true;
}

size_t tutti_address_exchange_unpack(const uint8_t *bytes, size_t available, const tutti_listener_info *before,
                                     tutti_listener_info *listener_out) {
    size_t used = 0;
    uint8_t kind = 0, naddresses = 0, why_bytes = 0;
    tutti_listener_info listener = {.port = 0};
    if (!take(bytes, available, &used, &kind, 1) || (kind != LISTENER_NEW && kind != LISTENER_LIKE_BEFORE)) return 0;
    if (kind == LISTENER_LIKE_BEFORE) {
        if (before == NULL) return 0;
        listener = *before;
    }
    if (!take(bytes, available, &used, listener.process, sizeof listener.process)) return 0;
    if (!take(bytes, available, &used, &listener.port, sizeof listener.port)) return 0;
    if (kind == LISTENER_NEW) {
        if (!take(bytes, available, &used, &listener.transports, sizeof listener.transports) ||
            !take(bytes, available, &used, &naddresses, 1) || !take(bytes, available, &used, &why_bytes, 1) ||
            naddresses > TUTTI_LISTENER_ADDRESSES || why_bytes >= sizeof listener.why)
            return 0;
        listener.naddresses = naddresses;
        if (!take(bytes, available, &used, listener.addresses, naddresses * sizeof listener.addresses[0]) ||
            !take(bytes, available, &used, listener.why, why_bytes))
            return 0;
        for (int i = 0; i < naddresses; i++)
            listener.addresses[i].interface[sizeof listener.addresses[i].interface - 1] = '\0';
    }
    *listener_out = listener;
    return used;
}

/* ------------------------------------------------------------------------------------------------ hosts */

typedef struct passing {
    tutti_kv_tree tree;
    const tutti_peer_table *table;
    int host;
    int *ranks;     /* ranks of all hosts, grouped by host */
    int *first_of;  /* by host: index of its first rank in `ranks`, and one more entry for the end */
    uint8_t *value; /* a header and packed listeners */
    size_t used, capacity;
    int64_t begin_ns;    /* time charged to the deadline when the exchange began */
    tutti_notice notice; /* when to log the next notice about the host that this one waits for */
} passing;

static tutti_status lay_out(passing *p) {
    int nhosts = p->table->nhosts, nranks = p->table->nranks;
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *p->ranks, &p->ranks));
    TUTTI_TRY(tutti_calloc((size_t)nhosts + 1, sizeof *p->first_of, &p->first_of));
    p->capacity = sizeof(addresses_head) + (size_t)nranks * TUTTI_ADDRESS_EXCHANGE_PACKED_BYTES;
    TUTTI_TRY(tutti_calloc(1, p->capacity, &p->value));
    const tutti_peer_table_rank *ranks = tutti_peer_table_ranks(p->table);
    for (int rank = 0; rank < nranks; rank++) p->first_of[ranks[rank].host + 1]++;
    for (int host = 0; host < nhosts; host++) p->first_of[host + 1] += p->first_of[host];
    int *next;
    TUTTI_TRY(tutti_calloc((size_t)nhosts, sizeof *next, &next));
    for (int rank = 0; rank < nranks; rank++) {
        int host = ranks[rank].host;
        p->ranks[p->first_of[host] + next[host]++] = rank;
    }
    free(next);
    return TUTTI_OK;
}

static tutti_status fail_addresses(int host) {
    return tutti_fail(TUTTI_ERR_DATA,
                      "the listener addresses that the first rank of host %d left in the store are malformed", host);
}

/* Packs the listeners of hosts [first, first + nhosts). */
static void pack_hosts(passing *p, const tutti_listener_info *listeners, int first, int nhosts) {
    addresses_head head = {.magic = ADDRESSES_MAGIC, .first = first, .nhosts = nhosts};
    p->used = put(p->value, 0, &head, sizeof head);
    for (int i = p->first_of[first]; i < p->first_of[first + nhosts]; i++) {
        const tutti_listener_info *before = i > p->first_of[first] ? &listeners[p->ranks[i - 1]] : NULL;
        p->used += tutti_address_exchange_pack(&listeners[p->ranks[i]], before, p->value + p->used);
    }
}

/* Unpacks them, except those of this rank's own host. */
static tutti_status unpack_hosts(const passing *p, size_t bytes, int first, int nhosts,
                                 tutti_listener_info *listeners) {
    addresses_head head;
    size_t used = sizeof head;
    if (bytes < sizeof head) return fail_addresses(first);
    memcpy(&head, p->value, sizeof head);
    if (head.magic != ADDRESSES_MAGIC || head.first != first || head.nhosts != nhosts) return fail_addresses(first);
    tutti_listener_info before;
    for (int i = p->first_of[first]; i < p->first_of[first + nhosts]; i++) {
        tutti_listener_info listener;
        size_t took = tutti_address_exchange_unpack(p->value + used, bytes - used,
                                                    i > p->first_of[first] ? &before : NULL, &listener);
        if (took == 0) return fail_addresses(tutti_peer_table_ranks(p->table)[p->ranks[i]].host);
        used += took;
        before = listener;
        if (tutti_peer_table_ranks(p->table)[p->ranks[i]].host != p->host) listeners[p->ranks[i]] = listener;
    }
    return used == bytes ? TUTTI_OK : fail_addresses(first);
}

/* Waits for the value of another host's leader in the store. Only a few leaders log that they wait for host 0. */
static tutti_status await_addresses(passing *p, int host, const char *key, size_t *bytes_out) {
    const tutti_peer_table_host *there = &tutti_peer_table_hosts(p->table)[host];
    bool speaks = host > 0 || (p->host & (p->host - 1)) == 0;
    for (;;) {
        tutti_status status =
            tutti_kv_tree_get(&p->tree, key, p->value, p->capacity, speaks ? LOOK_MS : INT64_MAX, bytes_out);
        if (status != TUTTI_ERR_TIMEOUT) return status;
        if (tutti_deadline_left_ms(p->tree.deadline) == 0)
            return tutti_fail(
                status,
                "rank %d, the first of host %s, has not published the addresses of its host's ranks before "
                "the deadline (TUTTI_CONNECT_TIMEOUT_MS): it makes no progress, or has ended",
                there->first, there->name);
        if (speaks && tutti_notice_due(&p->notice, p->tree.deadline->spent_ns - p->begin_ns))
            tutti_log(
                TUTTI_LOG_WARN,
                "the start has waited %lld s for rank %d, the first of host %s, to publish the addresses of its host's "
                "ranks; waits until TUTTI_CONNECT_TIMEOUT_MS",
                (long long)(p->tree.deadline->spent_ns - p->begin_ns) / TUTTI_NS_PER_S, there->first, there->name);
    }
}

static tutti_status pass(passing *p, tutti_listener_info *listeners) {
    char key[TUTTI_KV_TREE_KEY_BYTES];
    size_t bytes = 0;
    int nhosts = p->table->nhosts;
    TUTTI_KV_TREE_EACH_CHILD(step, p->host, nhosts) {
        int child = p->host + step;
        tutti_kv_tree_key(&p->tree, "addresses", child, key);
        TUTTI_TRY(await_addresses(p, child, key, &bytes));
        TUTTI_TRY(unpack_hosts(p, bytes, child, tutti_kv_tree_span(child, nhosts), listeners));
    }
    pack_hosts(p, listeners, p->host, tutti_kv_tree_span(p->host, nhosts));
    tutti_kv_tree_key(&p->tree, "addresses", p->host > 0 ? p->host : -1, key);
    TUTTI_TRY(tutti_kv_tree_set(&p->tree, key, p->value, p->used));
    if (p->host == 0) return TUTTI_OK;
    tutti_kv_tree_key(&p->tree, "addresses", -1, key);
    TUTTI_TRY(await_addresses(p, 0, key, &bytes));
    return unpack_hosts(p, bytes, 0, nhosts, listeners);
}

tutti_status tutti_address_exchange(const tutti_store *store, const char *prefix, const tutti_peer_table *table,
                                    int host, tutti_deadline *deadline, tutti_listener_info *listeners) {
    passing p = {.table = table, .host = host, .begin_ns = deadline->spent_ns};
    tutti_status status = tutti_kv_tree_open(store, prefix, deadline, &p.tree);
    if (status == TUTTI_OK) status = lay_out(&p);
    if (status == TUTTI_OK) status = pass(&p, listeners);
    free(p.ranks);
    free(p.first_of);
    free(p.value);
    tutti_kv_tree_close(&p.tree);
    return status;
}
