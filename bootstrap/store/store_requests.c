/*
 * The store's requests: what each op does.
 *
 * A request is carried out in one step when it is complete and its bounds are checked (store_connection.c), so the
 * functions here read its fields without going back, and no request is ever half done.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/interfaces.h"
#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_wire.h"

/* Reads the fields of a complete request one after the other. */
typedef struct reader {
    const uint8_t *next;
} reader;

static uint64_t take_u64(reader *fields) {
    uint64_t value;
    memcpy(&value, fields->next, sizeof value);
    fields->next += sizeof value;
    return value;
}

static uint32_t take_u32(reader *fields) {
    uint32_t value;
    memcpy(&value, fields->next, sizeof value);
    fields->next += sizeof value;
    return value;
}

static tutti_store_bytes take_bytes(reader *fields) {
    size_t bytes = take_u64(fields);
    tutti_store_bytes taken = {fields->next, bytes};
    fields->next += bytes;
    return taken;
}

static tutti_store_bytes value_of(const tutti_store_entry *entry) {
    if (entry == NULL || !entry->has_value) return (tutti_store_bytes){NULL, 0};
    return (tutti_store_bytes){entry->value, entry->value_bytes};
}

typedef tutti_status (*request_run)(tutti_store_hub *hub, tutti_store_connection *from, reader *fields);

/* -------------------------------------------------------------------------------------------- replies */

static void reply(tutti_store_hub *hub, tutti_store_connection *to, const void *data, size_t bytes) {
    if (to->failed) return;
    if (bytes > TUTTI_STORE_MOST_REPLY_BYTES - tutti_store_buffer_used(&to->out) ||
        tutti_store_buffer_reserve(&to->out, bytes) != TUTTI_OK) {
        to->failed = true;
    } else {
        memcpy(to->out.data + to->out.end, data, bytes);
        to->out.end += bytes;
    }
    if (to->dirty) return;
    to->dirty = true;
    to->next_dirty = hub->dirty;
    hub->dirty = to;
}

static void reply_u8(tutti_store_hub *hub, tutti_store_connection *to, uint8_t value) {
    reply(hub, to, &value, sizeof value);
}

static void reply_i64(tutti_store_hub *hub, tutti_store_connection *to, int64_t value) {
    reply(hub, to, &value, sizeof value);
}

static void reply_bytes(tutti_store_hub *hub, tutti_store_connection *to, tutti_store_bytes value) {
    uint64_t bytes = value.bytes;
    reply(hub, to, &bytes, sizeof bytes);
    if (value.bytes > 0) reply(hub, to, value.data, value.bytes);
}

/* -------------------------------------------------------------------------------------------- waiting */

void tutti_store_requests_unwait(tutti_store_hub *hub, tutti_store_connection *connection) {
    for (size_t i = 0; i < connection->nwaiters; i++) {
        tutti_store_entry *entry = connection->waiters[i].entry;
        tutti_store_table_unwait(&connection->waiters[i]);
        tutti_store_table_tidy(hub->table, entry);
    }
    free(connection->waiters);
    connection->waiters = NULL;
    connection->nwaiters = connection->awaited = 0;
}

static bool ready(const tutti_store_entry *entry) {
    return entry != NULL && (entry->has_value || entry->queue_length > 0);
}

/* Satisfies a waiter; returns true when its connection waits for nothing else. */
static bool satisfy(tutti_store_hub *hub, tutti_store_waiter *waiter) {
    tutti_store_connection *owner = waiter->owner;
    tutti_store_table_unwait(waiter);
    if (--owner->awaited > 0) return false;
    tutti_store_requests_unwait(hub, owner);
    reply_u8(hub, owner, TUTTI_STORE_STOP_WAITING);
    return true;
}

/* Wakes the waiters for the key and, if `arrived` > 0, those that wait for that many arrivals at the barrier. The
 * first waiter is looked up again each time, because ending one wait may remove several waiters from the list. */
static void wake(tutti_store_hub *hub, tutti_store_entry *entry, int64_t arrived) {
    tutti_store_waiter *waiter = entry->first_waiter;
    while (waiter != NULL) {
        bool due = waiter->barrier == 0 || waiter->barrier <= arrived;
        if (due) satisfy(hub, waiter);
        waiter = due ? entry->first_waiter : waiter->next;
    }
}

/* A queued value goes to one connection: satisfies waiters until one of their connections waits for nothing else. */
static void wake_one(tutti_store_hub *hub, tutti_store_entry *entry) {
    for (tutti_store_waiter *waiter = entry->first_waiter, *next; waiter != NULL; waiter = next) {
        next = waiter->next;
        if (waiter->barrier == 0 && satisfy(hub, waiter)) return;
    }
}

static tutti_status begin_wait(tutti_store_connection *from, uint64_t count) {
    if (from->waiters != NULL) return tutti_fail(TUTTI_ERR_DATA, "a wait while another wait is in progress");
    TUTTI_TRY(tutti_calloc(count, sizeof *from->waiters, &from->waiters));
    from->nwaiters = count;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- requests */

static tutti_status put(tutti_store_hub *hub, tutti_store_bytes key, tutti_store_bytes value, bool append) {
    tutti_store_entry *entry;
    TUTTI_TRY(tutti_store_table_need(hub->table, key, &entry));
    tutti_status status = tutti_store_table_put(hub->table, entry, value, append);
    if (status == TUTTI_OK) wake(hub, entry, 0);
    tutti_store_table_tidy(hub->table, entry);
    return status;
}

static tutti_status run_validate(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)hub;
    if (take_u32(fields) != TUTTI_STORE_MAGIC) return tutti_fail(TUTTI_ERR_DATA, "wrong magic number");
    from->validated = true;
    return TUTTI_OK;
}

static tutti_status run_ping(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    uint32_t nonce = take_u32(fields);
    reply(hub, from, &nonce, sizeof nonce);
    return TUTTI_OK;
}

static tutti_status run_set(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)from;
    tutti_store_bytes key = take_bytes(fields);
    return put(hub, key, take_bytes(fields), false);
}

static tutti_status run_append(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)from;
    tutti_store_bytes key = take_bytes(fields);
    return put(hub, key, take_bytes(fields), true);
}

static tutti_status run_multi_set(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    for (uint64_t left = take_u64(fields); left > 0; left--) TUTTI_TRY(run_set(hub, from, fields));
    return TUTTI_OK;
}

/* A missing key counts as empty; if the expected value is not empty, the reply is the expected value, as in PyTorch. */
static tutti_status run_compare_set(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_bytes key = take_bytes(fields);
    tutti_store_bytes expected = take_bytes(fields);
    tutti_store_bytes desired = take_bytes(fields);
    const tutti_store_entry *entry = tutti_store_table_find(hub->table, key);
    bool exists = entry != NULL && entry->has_value;
    tutti_store_bytes now = value_of(entry);
    bool equal = now.bytes == expected.bytes && (now.bytes == 0 || memcmp(now.data, expected.data, now.bytes) == 0);
    if (equal) TUTTI_TRY(put(hub, key, desired, false));
    reply_bytes(hub, from, equal ? desired : exists ? now : expected);
    return TUTTI_OK;
}

static tutti_status run_get(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    reply_bytes(hub, from, value_of(tutti_store_table_find(hub->table, take_bytes(fields))));
    return TUTTI_OK;
}

static tutti_status run_multi_get(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    for (uint64_t left = take_u64(fields); left > 0; left--) TUTTI_TRY(run_get(hub, from, fields));
    return TUTTI_OK;
}

/* Counters are stored as decimal text, so that they can be read like any other value. */
static tutti_status add_to(tutti_store_hub *hub, tutti_store_bytes key, int64_t amount, int64_t *sum_out) {
    tutti_store_bytes old = value_of(tutti_store_table_find(hub->table, key));
    char text[32] = "0";
    if (old.bytes > 0) {
        size_t bytes = tutti_min_size(old.bytes, sizeof text - 1);
        memcpy(text, old.data, bytes);
        text[bytes] = '\0';
    }
    char *end;
    int64_t sum = strtoll(text, &end, 10);
    if (end == text) return tutti_fail(TUTTI_ERR_DATA, "add to a key whose value is not a number");
    if (__builtin_add_overflow(sum, amount, &sum)) return tutti_fail(TUTTI_ERR_DATA, "a counter overflows");
    int bytes = snprintf(text, sizeof text, "%lld", (long long)sum);
    TUTTI_TRY(put(hub, key, (tutti_store_bytes){(const uint8_t *)text, (size_t)bytes}, false));
    *sum_out = sum;
    return TUTTI_OK;
}

static tutti_status run_add(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_bytes key = take_bytes(fields);
    int64_t sum = 0;
    TUTTI_TRY(add_to(hub, key, (int64_t)take_u64(fields), &sum));
    reply_i64(hub, from, sum);
    return TUTTI_OK;
}

static uint64_t count_missing(tutti_store_hub *hub, reader fields) {
    uint64_t missing = 0;
    for (uint64_t left = take_u64(&fields); left > 0; left--)
        missing += !ready(tutti_store_table_find(hub->table, take_bytes(&fields)));
    return missing;
}

/* Returns true when the check is for TUTTI_STORE_PROOF_KEY alone, which asks whether the store wants proofs. */
static bool asks_for_proofs(const tutti_store_hub *hub, reader fields) {
    static const char key[] = TUTTI_STORE_PROOF_KEY;
    if (!hub->secret.is_set || take_u64(&fields) != 1) return false;
    tutti_store_bytes asked = take_bytes(&fields);
    return asked.bytes == sizeof key - 1 && memcmp(asked.data, key, sizeof key - 1) == 0;
}

static tutti_status run_check(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    if (asks_for_proofs(hub, *fields)) {
        reply_u8(hub, from, TUTTI_STORE_READY);
        return TUTTI_OK;
    }
    reply_u8(hub, from, count_missing(hub, *fields) == 0 ? TUTTI_STORE_READY : TUTTI_STORE_NOT_READY);
    return TUTTI_OK;
}

static tutti_status run_wait(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    uint64_t missing = count_missing(hub, *fields);
    if (missing == 0) {
        reply_u8(hub, from, TUTTI_STORE_STOP_WAITING);
        return TUTTI_OK;
    }
    TUTTI_TRY(begin_wait(from, missing));
    for (uint64_t left = take_u64(fields); left > 0; left--) {
        tutti_store_entry *entry;
        TUTTI_TRY(tutti_store_table_need(hub->table, take_bytes(fields), &entry));
        if (ready(entry)) continue;
        tutti_store_waiter *waiter = &from->waiters[from->awaited++];
        waiter->owner = from;
        tutti_store_table_wait(entry, waiter);
    }
    return TUTTI_OK;
}

static tutti_status run_cancel_wait(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)fields;
    tutti_store_requests_unwait(hub, from);
    reply_u8(hub, from, TUTTI_STORE_WAIT_CANCELED);
    return TUTTI_OK;
}

/* A counter under the key: the connection that raises it to the world size releases all waiters; later ones pass. */
static tutti_status run_barrier(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_bytes key = take_bytes(fields);
    int64_t expected = (int64_t)take_u64(fields);
    int64_t arrived = 0;
    TUTTI_TRY(add_to(hub, key, 1, &arrived));
    tutti_store_entry *entry = tutti_store_table_find(hub->table, key);
    assert(entry != NULL);
    if (arrived >= expected) {
        wake(hub, entry, arrived);
        reply_u8(hub, from, TUTTI_STORE_STOP_WAITING);
        return TUTTI_OK;
    }
    TUTTI_TRY(begin_wait(from, 1));
    from->awaited = 1;
    from->waiters[0].owner = from;
    from->waiters[0].barrier = expected;
    tutti_store_table_wait(entry, &from->waiters[0]);
    return TUTTI_OK;
}

static tutti_status run_getnumkeys(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)fields;
    reply_i64(hub, from, tutti_store_table_count(hub->table));
    return TUTTI_OK;
}

static tutti_status run_delete_key(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_entry *entry = tutti_store_table_find(hub->table, take_bytes(fields));
    bool exists = entry != NULL && entry->has_value;
    if (exists) tutti_store_table_drop(hub->table, entry);
    tutti_store_table_tidy(hub->table, entry);
    reply_i64(hub, from, exists);
    return TUTTI_OK;
}

static tutti_status run_queue_push(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)from;
    tutti_store_entry *entry;
    TUTTI_TRY(tutti_store_table_need(hub->table, take_bytes(fields), &entry));
    tutti_status status = tutti_store_table_push(hub->table, entry, take_bytes(fields));
    if (status == TUTTI_OK) wake_one(hub, entry);
    tutti_store_table_tidy(hub->table, entry);
    return status;
}

static tutti_status run_queue_pop(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_entry *entry = tutti_store_table_find(hub->table, take_bytes(fields));
    int64_t length = entry != NULL ? entry->queue_length : 0;
    reply_i64(hub, from, length);
    if (length == 0) return TUTTI_OK;
    reply_bytes(hub, from, tutti_store_table_peek(entry));
    tutti_store_table_pop(hub->table, entry);
    tutti_store_table_tidy(hub->table, entry);
    return TUTTI_OK;
}

static tutti_status run_queue_len(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    const tutti_store_entry *entry = tutti_store_table_find(hub->table, take_bytes(fields));
    reply_i64(hub, from, entry != NULL ? entry->queue_length : 0);
    return TUTTI_OK;
}

typedef struct list_target {
    tutti_store_hub *hub;
    tutti_store_connection *to;
} list_target;

static void list_key(void *context, tutti_store_bytes key) {
    list_target *target = context;
    reply_bytes(target->hub, target->to, key);
}

static tutti_status run_list_keys(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    (void)fields;
    reply_i64(hub, from, tutti_store_table_count(hub->table));
    tutti_store_table_each(hub->table, list_key, &(list_target){hub, from});
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- proofs */

/* Logs the refusal, less often the more of them there are. */
static tutti_status refuse(tutti_store_hub *hub, const tutti_store_connection *from, const char *what) {
    char peer[TUTTI_ADDRESS_TEXT_BYTES];
    uint64_t count = ++hub->nrefused;
    tutti_address_of_peer(from->fd, peer);
    if ((count & (count - 1)) == 0)
        tutti_log(TUTTI_LOG_WARN, "store: a process at %s %s; its connection is closed (number %llu)", peer, what,
                  (unsigned long long)count);
    return tutti_fail(TUTTI_ERR_REFUSED, "%s %s", peer, what);
}

static tutti_status run_challenge(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_bytes client = take_bytes(fields);
    uint8_t answer[TUTTI_STORE_NONCE_BYTES + TUTTI_SHA256_BYTES];
    if (!hub->secret.is_set) return tutti_fail(TUTTI_ERR_DATA, "this store has no secret to prove");
    if (client.bytes != TUTTI_STORE_NONCE_BYTES || from->challenged)
        return tutti_fail(TUTTI_ERR_DATA, "a challenge of %zu bytes, or a second challenge", client.bytes);
    TUTTI_TRY(tutti_getrandom(answer, TUTTI_STORE_NONCE_BYTES));
    tutti_store_prove(&hub->secret, TUTTI_STORE_SERVER, client.data, answer, answer + TUTTI_STORE_NONCE_BYTES);
    tutti_store_prove(&hub->secret, TUTTI_STORE_CLIENT, client.data, answer, from->expected);
    from->challenged = true;
    reply(hub, from, answer, sizeof answer);
    return TUTTI_OK;
}

/* Sends no reply: the client knows from the challenge's answer that both have the same secret. */
static tutti_status run_prove(tutti_store_hub *hub, tutti_store_connection *from, reader *fields) {
    tutti_store_bytes proof = take_bytes(fields);
    from->proved = from->challenged && !from->proved && proof.bytes == sizeof from->expected &&
                   tutti_hmac_equal(proof.data, from->expected, sizeof from->expected);
    return from->proved ? TUTTI_OK : refuse(hub, from, "has sent a wrong proof of this job's secret");
}

/* Checks that the connection may apply the request to each of its keys. */
static tutti_status check_rights(tutti_store_hub *hub, const tutti_store_connection *from, uint8_t op, reader fields) {
    uint64_t keys = 1;
    if (!hub->secret.is_set || from->proved) return TUTTI_OK;
    switch (op) {
    case TUTTI_STORE_MULTI_SET: keys = take_u64(&fields); break;
    case TUTTI_STORE_SET:
    case TUTTI_STORE_COMPARE_SET:
    case TUTTI_STORE_ADD:
    case TUTTI_STORE_DELETE_KEY:
    case TUTTI_STORE_APPEND:
    case TUTTI_STORE_QUEUE_PUSH:
    case TUTTI_STORE_QUEUE_POP:
    case TUTTI_STORE_BARRIER: break;
    default: return TUTTI_OK; /* changes nothing */
    }
    for (; keys > 0; keys--) {
        if (tutti_store_key_is_guarded(take_bytes(&fields)))
            return refuse(hub, from,
                          "has tried to change what the ranks keep there, without a proof of this job's secret");
        if (op == TUTTI_STORE_MULTI_SET) (void)take_bytes(&fields);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- running */

static const request_run runs[TUTTI_STORE_OP_COUNT] = {
    [TUTTI_STORE_VALIDATE] = run_validate,
    [TUTTI_STORE_SET] = run_set,
    [TUTTI_STORE_COMPARE_SET] = run_compare_set,
    [TUTTI_STORE_GET] = run_get,
    [TUTTI_STORE_ADD] = run_add,
    [TUTTI_STORE_CHECK] = run_check,
    [TUTTI_STORE_WAIT] = run_wait,
    [TUTTI_STORE_GETNUMKEYS] = run_getnumkeys,
    [TUTTI_STORE_DELETE_KEY] = run_delete_key,
    [TUTTI_STORE_APPEND] = run_append,
    [TUTTI_STORE_MULTI_GET] = run_multi_get,
    [TUTTI_STORE_MULTI_SET] = run_multi_set,
    [TUTTI_STORE_CANCEL_WAIT] = run_cancel_wait,
    [TUTTI_STORE_PING] = run_ping,
    [TUTTI_STORE_QUEUE_PUSH] = run_queue_push,
    [TUTTI_STORE_QUEUE_POP] = run_queue_pop,
    [TUTTI_STORE_QUEUE_LEN] = run_queue_len,
    [TUTTI_STORE_LIST_KEYS] = run_list_keys,
    [TUTTI_STORE_BARRIER] = run_barrier,
    [TUTTI_STORE_CHALLENGE] = run_challenge,
    [TUTTI_STORE_PROVE] = run_prove,
};

/* ---------------------------------------------------------------------------------------- room for replies */

/* For all requests whose reply is a number or a state. */
enum { SHORT_REPLY_BYTES = 8 };

static size_t blob_bytes(size_t bytes) {
    return sizeof(uint64_t) + bytes;
}

static size_t get_bytes(tutti_store_hub *hub, reader *fields) {
    return blob_bytes(value_of(tutti_store_table_find(hub->table, take_bytes(fields))).bytes);
}

static size_t multi_get_bytes(tutti_store_hub *hub, reader *fields) {
    size_t bytes = 0;
    for (uint64_t left = take_u64(fields); left > 0; left--) bytes += get_bytes(hub, fields);
    return bytes;
}

/* One of the three values, depending on the key's value. */
static size_t compare_set_bytes(tutti_store_hub *hub, reader *fields) {
    size_t now = get_bytes(hub, fields), expected = take_bytes(fields).bytes, desired = take_bytes(fields).bytes;
    return tutti_max_size(now, blob_bytes(tutti_max_size(expected, desired)));
}

static size_t queue_pop_bytes(tutti_store_hub *hub, reader *fields) {
    const tutti_store_entry *entry = tutti_store_table_find(hub->table, take_bytes(fields));
    if (entry == NULL || entry->queue_length == 0) return SHORT_REPLY_BYTES;
    return SHORT_REPLY_BYTES + blob_bytes(tutti_store_table_peek(entry).bytes);
}

/* Upper bound of the bytes in the reply to this complete request. */
static size_t bound_reply(tutti_store_hub *hub, const uint8_t *request) {
    reader fields = {.next = request + 1};
    switch (request[0]) {
    case TUTTI_STORE_GET: return get_bytes(hub, &fields);
    case TUTTI_STORE_MULTI_GET: return multi_get_bytes(hub, &fields);
    case TUTTI_STORE_COMPARE_SET: return compare_set_bytes(hub, &fields);
    case TUTTI_STORE_QUEUE_POP: return queue_pop_bytes(hub, &fields);
    case TUTTI_STORE_CHALLENGE: return TUTTI_STORE_NONCE_BYTES + TUTTI_SHA256_BYTES;
    case TUTTI_STORE_LIST_KEYS: return SHORT_REPLY_BYTES + tutti_store_table_list_bytes(hub->table);
    default: return SHORT_REPLY_BYTES;
    }
}

/* Reserves room for the reply before any of it is built; *room_out is false when the request must wait for it. */
static tutti_status make_room(tutti_store_hub *hub, tutti_store_connection *c, const uint8_t *request, bool *room_out) {
    size_t reply = bound_reply(hub, request);
    size_t held = c->in.capacity + tutti_store_buffer_grown(&c->out, reply);
    if (reply > TUTTI_STORE_MOST_REPLY_BYTES || held > TUTTI_STORE_TURN_BYTES)
        return tutti_fail(TUTTI_ERR_DATA, "a reply of %zu bytes to a request of %zu", reply, c->scan.at);
    *room_out = tutti_store_budget_ask(&hub->budget, c, held);
    return *room_out ? tutti_store_buffer_reserve(&c->out, reply) : TUTTI_OK;
}

tutti_status tutti_store_requests_run(tutti_store_hub *hub, tutti_store_connection *connection) {
    while (!connection->failed && tutti_store_budget_may_go_on(&hub->budget, connection)) {
        bool whole, room = false;
        TUTTI_TRY(tutti_store_scan_request(connection, &connection->scan, &whole));
        if (!whole) return TUTTI_OK;
        const uint8_t *request = connection->in.data + connection->in.start;
        reader fields = {.next = request + 1};
        TUTTI_TRY(check_rights(hub, connection, request[0], fields));
        TUTTI_TRY(make_room(hub, connection, request, &room));
        if (!room) return TUTTI_OK;
        tutti_store_table_write_as(hub->table, !tutti_store_is_own(connection));
        TUTTI_TRY(runs[request[0]](hub, connection, &fields));
        tutti_store_buffer_consume(&connection->in, connection->scan.at);
        connection->scan = (tutti_store_scan){0};
    }
    return TUTTI_OK;
}
