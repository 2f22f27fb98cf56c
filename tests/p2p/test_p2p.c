/*
 * Point to point: tags, any source, order per pair and tag, self, truncation, sizes from nothing to megabytes.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 4, 7, 0};
static const int pairs[] = {2, 3, 0};

static void run(const int *sizes, ranks_body body) {
    setenv("TUTTI_EAGER_BYTES", "1024", 1);
    setenv("TUTTI_CHUNK_BYTES", "1024", 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* One message on each of several tags, taken in the opposite order. */
static tutti_status tags_backwards(ranks_context *context) {
    enum { TAGS = 20 };
    int next = (context->rank + 1) % context->nranks, before = (context->rank + context->nranks - 1) % context->nranks;
    for (int tag = 0; tag < TAGS; tag++) {
        int value = 100 * context->rank + tag;
        TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, next, tag, NULL));
    }
    for (int tag = TAGS - 1; tag >= 0; tag--) {
        int value = -1;
        tutti_received received;
        TUTTI_TRY(
            tutti_recv(context->comm, &value, 1, TUTTI_INT32, before, tag, &TUTTI_OPTIONS(.received = &received)));
        RANKS_CHECK(value == 100 * before + tag, "tag %d brought %d", tag, value);
        RANKS_CHECK(received.source == before && received.tag == tag && received.count == 1,
                    "received says %d %lld %zu", received.source, (long long)received.tag, received.count);
    }
    return TUTTI_OK;
}

Test(p2p, a_receive_gets_the_message_of_its_tag) {
    run(worlds, tags_backwards);
}

/* Sizes change between eager and rendezvous within one stream: the order must stay. */
static tutti_status keep_order(ranks_context *context) {
    enum { MESSAGES = 60, MOST = 3000 };
    int *buffer = malloc(MOST * sizeof *buffer);
    RANKS_CHECK(buffer != NULL, "no memory");
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < MESSAGES && context->rank < 2 && status == TUTTI_OK; i++) {
        size_t count = i % 3 == 0 ? MOST - (size_t)i : (size_t)(i % 5);
        if (context->rank == 0) {
            for (size_t k = 0; k < count; k++) buffer[k] = i * 10000 + (int)k;
            status = tutti_send(context->comm, buffer, count, TUTTI_INT32, 1, 9, NULL);
            continue;
        }
        tutti_received received;
        status = tutti_recv(context->comm, buffer, MOST, TUTTI_INT32, 0, 9, &TUTTI_OPTIONS(.received = &received));
        if (status == TUTTI_OK && received.count != count)
            status = tutti_fail(TUTTI_ERR_DATA, "message %d has %zu elements, not %zu", i, received.count, count);
        for (size_t k = 0; k < count && status == TUTTI_OK; k++)
            if (buffer[k] != i * 10000 + (int)k)
                status = tutti_fail(TUTTI_ERR_DATA, "message %d, element %zu is %d", i, k, buffer[k]);
    }
    free(buffer);
    return status;
}

Test(p2p, messages_of_one_pair_and_tag_keep_their_order_whatever_their_sizes) {
    run(pairs, keep_order);
}

static tutti_status any_source(ranks_context *context) {
    int n = context->nranks;
    if (context->rank != 0) {
        usleep((useconds_t)((n - context->rank) * 1000));
        for (int i = 0; i < 10; i++) {
            int value = context->rank * 100 + i;
            TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, 0, context->rank + 50, NULL));
        }
        return TUTTI_OK;
    }
    int next[n];
    memset(next, 0, sizeof next);
    for (int i = 0; i < 10 * (n - 1); i++) {
        int value;
        tutti_received received;
        TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, TUTTI_ANY_TAG,
                             &TUTTI_OPTIONS(.received = &received)));
        int source = received.source;
        RANKS_CHECK(source > 0 && source < n && received.tag == source + 50, "from %d, tag %lld", source,
                    (long long)received.tag);
        RANKS_CHECK(value == source * 100 + next[source], "from %d: %d", source, value);
        next[source]++;
    }
    return TUTTI_OK;
}

Test(p2p, any_source_and_any_tag_take_what_comes_in_each_senders_order) {
    run(worlds, any_source);
}

static tutti_status to_self(ranks_context *context) {
    enum { COUNT = 4000 };
    static _Thread_local int out[COUNT], in[COUNT];
    for (int i = 0; i < COUNT; i++) out[i] = context->rank + i;
    TUTTI_TRY(tutti_send(context->comm, out, 1, TUTTI_INT32, context->rank, 0, NULL)); /* small: needs no receive */
    TUTTI_TRY(tutti_recv(context->comm, in, 1, TUTTI_INT32, context->rank, 0, NULL));
    RANKS_CHECK(in[0] == context->rank, "the small message is %d", in[0]);
    tutti_work *work;
    TUTTI_TRY(tutti_recv(context->comm, in, COUNT, TUTTI_INT32, TUTTI_ANY_SOURCE, 1, &TUTTI_OPTIONS(.work = &work)));
    tutti_status status = tutti_send(context->comm, out, COUNT, TUTTI_INT32, context->rank, 1, NULL);
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    tutti_work_details details;
    tutti_work_get(work, &details);
    tutti_work_free(work);
    RANKS_CHECK(status == TUTTI_OK, "the large message: %s", tutti_last_error());
    RANKS_CHECK(memcmp(in, out, sizeof in) == 0, "the large message differs");
    RANKS_CHECK(details.source == context->rank && details.tag == 1 && details.count == COUNT, "details: %d %lld %zu",
                details.source, (long long)details.tag, details.count);
    RANKS_CHECK(details.created_ns <= details.start_ns && details.start_ns <= details.end_ns, "times: %lld %lld %lld",
                (long long)details.created_ns, (long long)details.start_ns, (long long)details.end_ns);
    return TUTTI_OK;
}

Test(p2p, a_rank_may_send_to_itself) {
    run(worlds, to_self);
}

/* Small and large messages, that come before and after the receive: the message is consumed, the next one is whole. */
static tutti_status truncate_one(const ranks_context *context, size_t count, bool late) {
    static _Thread_local int buffer[5000];
    int after = -1;
    if (context->rank == 0) {
        if (late) usleep(5000);
        TUTTI_TRY(tutti_send(context->comm, buffer, count, TUTTI_INT32, 1, 2, NULL));
        after = 77;
        return tutti_send(context->comm, &after, 1, TUTTI_INT32, 1, 2, NULL);
    }
    if (context->rank > 1) return TUTTI_OK;
    if (!late) usleep(5000);
    RANKS_EXPECT(TUTTI_ERR_TRUNCATED, tutti_recv(context->comm, buffer, count - 1, TUTTI_INT32, 0, 2, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &after, 1, TUTTI_INT32, 0, 2, NULL));
    RANKS_CHECK(after == 77, "the message after the truncated one is %d", after);
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(context->comm));
    return TUTTI_OK;
}

static tutti_status truncate_all(ranks_context *context) {
    for (int late = 0; late < 2; late++) {
        TUTTI_TRY(truncate_one(context, 5, late));
        TUTTI_TRY(truncate_one(context, 5000, late));
    }
    return tutti_barrier(context->comm, NULL);
}

Test(p2p, a_message_longer_than_its_receive_is_an_error_and_is_consumed) {
    run(pairs, truncate_all);
}

static tutti_status empty_messages(ranks_context *context) {
    for (int peer = 0; peer < context->nranks; peer++)
        TUTTI_TRY(tutti_send(context->comm, NULL, 0, TUTTI_FLOAT64, peer, 3, NULL));
    for (int peer = 0; peer < context->nranks; peer++) {
        tutti_received received = {.count = 9};
        TUTTI_TRY(tutti_recv(context->comm, NULL, 0, TUTTI_FLOAT64, peer, 3, &TUTTI_OPTIONS(.received = &received)));
        RANKS_CHECK(received.count == 0 && received.source == peer, "an empty message of %zu from %d", received.count,
                    received.source);
    }
    return TUTTI_OK;
}

Test(p2p, empty_messages_are_messages) {
    run(worlds, empty_messages);
}

/* Exchanges lengths on both sides of every threshold between two protocols, from either kind of memory, to any address;
 * now and then the receiver is late. */
static tutti_status every_way(ranks_context *context) {
    enum { MOST = (4 << 20) + 3, TURNS = 8, LONG_TURNS = 2 };
    static const size_t lengths[] = {0,     1,      24,     25,     64,      1023,          1025,          4096,
                                     4097,  8192,   8193,   16384,  16385,   40000,         65536,         65537,
                                     98304, 300007, 524287, 524288, 1 << 20, (1 << 20) + 1, (4 << 20) - 1, 4 << 20,
                                     MOST};
    if (context->rank > 1) return TUTTI_OK;
    int peer = 1 - context->rank;
    uint8_t *shared, *out = malloc(MOST), *place = malloc(MOST + TURNS);
    TUTTI_TRY(tutti_mem_alloc(MOST, (void **)&shared));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int turn = 0; turn < (lengths[i] > 2 << 20 ? LONG_TURNS : TURNS); turn++) {
            size_t bytes = lengths[i];
            uint8_t *src = turn % 2 == 0 ? out : shared, *in = place + turn;
            tutti_received received = {.count = 9};
            for (size_t k = 0; k < bytes; k++) src[k] = (uint8_t)(k * 7 + (size_t)turn + (size_t)context->rank);
            if (context->rank == 0) TUTTI_TRY(tutti_send(context->comm, src, bytes, TUTTI_UINT8, 1, turn, NULL));
            if (turn == TURNS - 1) usleep(300);
            memset(in, 0, bytes);
            TUTTI_TRY(tutti_recv(context->comm, in, MOST, TUTTI_UINT8, peer, turn % 3 == 0 ? TUTTI_ANY_TAG : turn,
                                 &TUTTI_OPTIONS(.received = &received)));
            if (context->rank == 1) TUTTI_TRY(tutti_send(context->comm, src, bytes, TUTTI_UINT8, 0, turn, NULL));
            RANKS_CHECK(received.count == bytes && received.source == peer && received.tag == turn,
                        "%zu bytes of rank %d under tag %lld, not %zu of %d under %d", received.count, received.source,
                        (long long)received.tag, bytes, peer, turn);
            for (size_t k = 0; k < bytes; k++)
                RANKS_CHECK(in[k] == (uint8_t)(k * 7 + (size_t)turn + (size_t)peer), "byte %zu of %zu is %d", k, bytes,
                            in[k]);
        }
    free(out);
    free(place);
    tutti_mem_free(shared);
    return TUTTI_OK;
}

Test(p2p, blocking_messages_of_every_length_come_whole) {
    const char *failure = ranks_run_worlds(pairs, NULL, every_way);
    cr_assert(failure == NULL, "%s", failure);
}

Test(p2p, blocking_messages_come_whole_where_ranks_share_a_core) {
    const char *const one_core[] = {"TUTTI_CPUS=1", NULL};
    const char *failure = ranks_run_worlds(pairs, &(ranks_options){.environment = one_core}, every_way);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status both_directions(ranks_context *context) {
    enum { COUNT = 1 << 20 };
    if (context->rank > 1) return TUTTI_OK;
    int *out, *in = malloc(COUNT * sizeof *in);
    TUTTI_TRY(tutti_mem_alloc(COUNT * sizeof *out, (void **)&out));
    for (int i = 0; i < COUNT; i++) out[i] = i * 3 + context->rank;
    tutti_work *work = NULL;
    int peer = 1 - context->rank;
    tutti_status status = tutti_send(context->comm, out, COUNT, TUTTI_INT32, peer, 0, &TUTTI_OPTIONS(.work = &work));
    if (status == TUTTI_OK) status = tutti_recv(context->comm, in, COUNT, TUTTI_INT32, peer, 0, NULL);
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    for (int i = 0; i < COUNT && status == TUTTI_OK; i++)
        if (in[i] != i * 3 + peer) status = tutti_fail(TUTTI_ERR_DATA, "element %d is %d", i, in[i]);
    free(in);
    tutti_mem_free(out);
    return status;
}

Test(p2p, large_messages_cross_in_both_directions_at_once) {
    run(pairs, both_directions);
}

static tutti_status refuse(ranks_context *context) {
    int value = 0, n = context->nranks;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, &value, 1, TUTTI_INT32, n, 0, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, &value, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, 0, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, &value, 1, TUTTI_INT32, 0, TUTTI_ANY_TAG, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, NULL, 1, TUTTI_INT32, 0, 0, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, &value, 1, TUTTI_TYPE_COUNT, 0, 0, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_recv(context->comm, &value, 1, TUTTI_INT32, -2, 0, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, -2, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_recv(context->comm, NULL, 1, TUTTI_INT32, 0, 0, NULL));
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(context->comm));
    return tutti_barrier(context->comm, NULL);
}

Test(p2p, wrong_arguments_are_refused_and_break_nothing) {
    run(worlds, refuse);
}
