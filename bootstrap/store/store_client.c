/*
 * The store's client: one socket, one request at a time, a deadline on everything.
 *
 * Connecting is retried, with growing and jittered pauses, until the store answers a ping. A read waits on the
 * server (WAIT) and then fetches (GET); at its deadline it cancels the wait (CANCEL_WAIT), so that the connection
 * stays usable. After a failure in the middle of a reply the stream is out of step: every later call then fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/machine/async_call.h"
#include "bootstrap/store/store.h"
#include "bootstrap/store/store_proof.h"
#include "bootstrap/store/store_wire.h"

enum {
    LOOK_MS = 100,       /* interval at which a waiter checks its deadline */
    FIRST_PAUSE_MS = 10, /* first pause between attempts to connect; doubles */
    LAST_PAUSE_MS = 1000,
    SLOW_MS = 500,          /* a name server that has not answered after this time may not answer at all */
    TRY_MS = 10000,         /* limit of one attempt to connect */
    TRY_ONE_OF_MS = 1500,   /* the same for one of several hosts */
    REFUSED_MS = 1000,      /* time that another job's store gets to release the port */
    MOST_SKIPPED = 64 << 20 /* a value too long for the caller is read and discarded up to this size */
};

struct tutti_store_client {
    int fd;
    bool broken;
    char host[512];
    int port;
    tutti_store_client_options options;
    /* While the client connects: */
    const tutti_deadline *total; /* for all attempts; NULL: it is connected */
    char reason[320];            /* why the last attempt failed */
    tutti_lookup *lookup;        /* of the name looked_up; it may outlast an attempt */
    char looked_up[256];
};

/* ---------------------------------------------------------------------------------------- bytes in and out */

/* Called in every wait: checks for an interrupt and, while connecting, reports the time waited. */
static tutti_status mind(const tutti_store_client *client, const tutti_deadline *deadline) {
    TUTTI_TRY(tutti_interrupt_check());
    if (client->total == NULL || client->options.late == NULL) return TUTTI_OK;
    int64_t waited_ns = client->total->spent_ns + (deadline != client->total ? deadline->spent_ns : 0);
    client->options.late(client->options.context, waited_ns, client->reason[0] != '\0' ? client->reason : "no answer");
    return TUTTI_OK;
}

/* Waits until the socket is ready for `events` or the deadline passes. */
static tutti_status wait_ready(tutti_store_client *client, short events, tutti_deadline *deadline) {
    for (;;) {
        struct pollfd item = {.fd = client->fd, .events = events};
        int ready = poll(&item, 1, (int)tutti_min_i64(tutti_deadline_left_ms(deadline), LOOK_MS));
        if (ready > 0) return TUTTI_OK;
        if (ready < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll");
        bool passed = tutti_deadline_passed(deadline);
        TUTTI_TRY(mind(client, deadline));
        if (passed && client->total != NULL) return tutti_fail(TUTTI_ERR_TIMEOUT, "no answer");
        if (passed)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "the store at %s:%d does not answer", client->host, client->port);
    }
}

static tutti_status fail_lost(tutti_store_client *client, const char *reason) {
    return tutti_fail(TUTTI_ERR_SYSTEM,
                      "lost the store at %s:%d (%s); its host, rank 0 or the launcher on node 0, has probably ended",
                      client->host, client->port, reason);
}

static tutti_status send_all(tutti_store_client *client, const void *data, size_t bytes, tutti_deadline *deadline) {
    const uint8_t *next = data;
    while (bytes > 0) {
        ssize_t sent = send(client->fd, next, bytes, MSG_NOSIGNAL);
        if (sent >= 0) {
            next += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            TUTTI_TRY(wait_ready(client, POLLOUT, deadline));
        } else if (errno != EINTR) {
            return fail_lost(client, strerror(errno));
        }
    }
    return TUTTI_OK;
}

static tutti_status receive_all(tutti_store_client *client, void *data, size_t bytes, tutti_deadline *deadline) {
    uint8_t *next = data;
    while (bytes > 0) {
        ssize_t got = recv(client->fd, next, bytes, 0);
        if (got > 0) {
            next += got;
            bytes -= (size_t)got;
        } else if (got == 0 && client->total != NULL) {
            return tutti_fail(TUTTI_ERR_SYSTEM, "it closed the connection; a store refuses other users of its host");
        } else if (got == 0) {
            return fail_lost(client, "it closed the connection");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            TUTTI_TRY(wait_ready(client, POLLIN, deadline));
        } else if (errno != EINTR) {
            return fail_lost(client, strerror(errno));
        }
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ connecting */

static tutti_status connect_address(tutti_store_client *client, const struct addrinfo *address,
                                    tutti_deadline *deadline) {
    int on = 1;
    client->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (client->fd < 0) return tutti_fail_errno(errno, "socket");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(client->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (connect(client->fd, address->ai_addr, address->ai_addrlen) == 0) return TUTTI_OK;
    int error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        socklen_t bytes = sizeof error;
        TUTTI_TRY(wait_ready(client, POLLOUT, deadline));
        getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    const char *reason = strerrordesc_np(error);
    return error == 0 ? TUTTI_OK : tutti_fail(TUTTI_ERR_SYSTEM, "%s", reason != NULL ? reason : "an unknown error");
}

/* The two sides prove to each other that they know the secret. See store_proof.h. */
static tutti_status prove(tutti_store_client *client, tutti_deadline *deadline) {
    struct __attribute__((packed)) {
        uint8_t op;
        uint64_t bytes;
        uint8_t data[TUTTI_STORE_NONCE_BYTES];
    } challenge = {TUTTI_STORE_CHALLENGE, sizeof challenge.data, {0}},
      proof = {TUTTI_STORE_PROVE, sizeof proof.data, {0}};
    struct {
        uint8_t nonce[TUTTI_STORE_NONCE_BYTES], mac[TUTTI_SHA256_BYTES];
    } answer;
    uint8_t expected[TUTTI_SHA256_BYTES];
    tutti_store_secret secret = tutti_store_secret_of(client->options.secret);
    if (!secret.is_set)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "the store there belongs to a job with a secret, and none is set here; set TUTTI_SECRET or "
                          "TUTTI_SECRET_FILE as on the job's other ranks and nodes");
    TUTTI_TRY(tutti_getrandom(challenge.data, sizeof challenge.data));
    TUTTI_TRY(send_all(client, &challenge, sizeof challenge, deadline));
    TUTTI_TRY(receive_all(client, &answer, sizeof answer, deadline));
    tutti_store_prove(&secret, TUTTI_STORE_SERVER, challenge.data, answer.nonce, expected);
    tutti_store_prove(&secret, TUTTI_STORE_CLIENT, challenge.data, answer.nonce, proof.data);
    explicit_bzero(&secret, sizeof secret);
    if (!tutti_hmac_equal(expected, answer.mac, sizeof expected))
        return tutti_fail(
            TUTTI_ERR_REFUSED,
            "the store there has another secret than this process: it belongs to another job, or TUTTI_SECRET (or "
            "its file) is not equal on all ranks and nodes");
    return send_all(client, &proof, sizeof proof, deadline);
}

/* Checks that a store answers; this rejects a socket that the kernel connected to itself. The same message asks
 * whether the store wants proofs. */
static tutti_status greet(tutti_store_client *client, tutti_deadline *deadline) {
    static const char key[] = TUTTI_STORE_PROOF_KEY;
    struct __attribute__((packed)) {
        uint8_t validate;
        uint32_t magic;
        uint8_t ping;
        uint32_t nonce;
        uint8_t check;
        uint64_t count, bytes;
        char key[sizeof key - 1];
    } hello = {.validate = TUTTI_STORE_VALIDATE,
               .magic = TUTTI_STORE_MAGIC,
               .ping = TUTTI_STORE_PING,
               .nonce = (uint32_t)getpid(),
               .check = TUTTI_STORE_CHECK,
               .count = 1,
               .bytes = sizeof hello.key};
    uint32_t nonce = hello.nonce, echo = 0;
    uint8_t answer = TUTTI_STORE_NOT_READY;
    memcpy(hello.key, key, sizeof hello.key);
    TUTTI_TRY(send_all(client, &hello, sizeof hello, deadline));
    TUTTI_TRY(receive_all(client, &echo, sizeof echo, deadline));
    if (echo != nonce) return tutti_fail(TUTTI_ERR_DATA, "the process that answers there is not a store");
    TUTTI_TRY(receive_all(client, &answer, sizeof answer, deadline));
    return answer == TUTTI_STORE_READY ? prove(client, deadline) : TUTTI_OK;
}

static void disconnect(tutti_store_client *client) {
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

/* Charges the time spent in one attempt to the total; checking only the total would charge less for a long attempt. */
static void charge(tutti_deadline *total, const tutti_deadline *part) {
    total->last_ns = part->last_ns;
    total->spent_ns += part->spent_ns;
    if (total->budget_ns == INT64_MAX) return;
    total->budget_ns = total->budget_ns > part->spent_ns ? total->budget_ns - part->spent_ns : 0;
}

static void end_lookup(tutti_store_client *client) {
    tutti_lookup_end(client->lookup);
    client->lookup = NULL;
}

/* Finds the addresses of a name; the result belongs to the client's lookup. A lookup without an answer is continued
 * at the next attempt; no second one is started beside it. */
static tutti_status look_up(tutti_store_client *client, const char *host, tutti_deadline *deadline,
                            const struct addrinfo **found_out) {
    if (client->lookup != NULL && strcmp(client->looked_up, host) != 0) end_lookup(client);
    if (client->lookup == NULL) TUTTI_TRY(tutti_lookup_start(host, client->port, &client->lookup));
    snprintf(client->looked_up, sizeof client->looked_up, "%s", host);
    for (;;) {
        int64_t wait_ms = tutti_min_i64(tutti_deadline_left_ms(deadline), LOOK_MS);
        tutti_status status = tutti_lookup_look(client->lookup, wait_ms, found_out);
        if (status != TUTTI_OK && status != TUTTI_NOT_YET) end_lookup(client);
        if (status != TUTTI_NOT_YET) return status;
        bool passed = tutti_deadline_passed(deadline);
        if (deadline->spent_ns > SLOW_MS * TUTTI_NS_PER_MS)
            snprintf(client->reason, sizeof client->reason, "no name server has answered for '%s'", host);
        TUTTI_TRY(mind(client, deadline));
        if (passed) return tutti_fail(TUTTI_ERR_TIMEOUT, "%s", client->reason);
    }
}

/* Makes one attempt at each address of a name. */
static tutti_status try_name(tutti_store_client *client, const char *host, int most_ms, tutti_deadline *total) {
    const struct addrinfo *found = NULL;
    (void)tutti_deadline_passed(total); /* charges the preceding pause */
    tutti_deadline deadline = tutti_deadline_after_ms(tutti_min_i64(tutti_deadline_left_ms(total), most_ms));
    tutti_status status = look_up(client, host, &deadline, &found);
    charge(total, &deadline);
    TUTTI_TRY(status);
    status = tutti_fail(TUTTI_ERR_SYSTEM, "host name '%s' has no address", host);
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        (void)tutti_deadline_passed(total);
        deadline = tutti_deadline_after_ms(tutti_min_i64(tutti_deadline_left_ms(total), most_ms));
        status = connect_address(client, at, &deadline);
        if (status == TUTTI_OK) status = greet(client, &deadline);
        charge(total, &deadline);
        if (status == TUTTI_OK) break;
        disconnect(client);
        if (status == TUTTI_ERR_INTERRUPTED) break;
    }
    end_lookup(client);
    return status;
}

/* Makes one attempt at each name or address of the list, with little time for each of several: some may not answer. */
static tutti_status try_connect(tutti_store_client *client, tutti_deadline *total) {
    tutti_status status = tutti_fail(TUTTI_ERR_CONFIG, "no host is given");
    int most_ms = strchr(client->host, ',') != NULL ? TRY_ONE_OF_MS : TRY_MS;
    for (const char *next = client->host; *next != '\0' && status != TUTTI_OK && status != TUTTI_ERR_INTERRUPTED;
         next += *next == ',') {
        char host[256];
        size_t length = strcspn(next, ",");
        snprintf(host, sizeof host, "%.*s", (int)length, next);
        status = try_name(client, host, most_ms, total);
        next += length;
    }
    return status;
}

/* Returns half to one and a half of the pause, so that a thousand ranks do not reconnect all at once. */
static int64_t jittered(int64_t ms) {
    uint16_t random = 0;
    if (tutti_getrandom(&random, sizeof random) != TUTTI_OK) random = 32768;
    return ms / 2 + ms * random / 65536;
}

/* Retries until the store answers, the time is over or the program interrupts. A store with another secret may
 * belong to an earlier job that is about to end. */
static tutti_status connect_in_time(tutti_store_client *client, tutti_deadline *total) {
    int64_t refused_ns = 0;
    for (int64_t gap_ms = FIRST_PAUSE_MS;; gap_ms = tutti_min_i64(2 * gap_ms, LAST_PAUSE_MS)) {
        tutti_status status = try_connect(client, total);
        if (status == TUTTI_OK || status == TUTTI_ERR_INTERRUPTED) return status;
        snprintf(client->reason, sizeof client->reason, "%.250s", tutti_last_error());
        if (status == TUTTI_ERR_REFUSED && refused_ns == 0) refused_ns = tutti_now_ns();
        if (status == TUTTI_ERR_REFUSED && tutti_now_ns() - refused_ns > REFUSED_MS * TUTTI_NS_PER_MS) return status;
        if (tutti_deadline_passed(total)) return TUTTI_ERR_TIMEOUT;
        int64_t left_ms = tutti_min_i64(jittered(gap_ms), tutti_deadline_left_ms(total));
        for (; left_ms > 0 && !tutti_deadline_passed(total); left_ms -= LOOK_MS) {
            TUTTI_TRY(mind(client, total));
            tutti_nap(tutti_min_i64(left_ms, LOOK_MS) * TUTTI_NS_PER_MS);
        }
    }
}

tutti_status tutti_store_client_reach(const char *host, int port, const tutti_store_client_options *wanted,
                                      tutti_store_client **client_out) {
    tutti_store_client *client;
    if (port <= 0 || port > 65535) return tutti_fail(TUTTI_ERR_CONFIG, "store port %d is not in 1 to 65535", port);
    TUTTI_TRY(tutti_calloc(1, sizeof *client, &client));
    tutti_deadline total = tutti_deadline_after_ms(wanted->connect_ms);
    client->fd = -1;
    client->port = port;
    client->options = *wanted;
    client->total = &total;
    snprintf(client->host, sizeof client->host, "%s", host);
    tutti_status status = connect_in_time(client, &total);
    client->total = NULL;
    client->options.secret = NULL; /* belongs to the caller */
    end_lookup(client);
    if (status == TUTTI_OK) {
        *client_out = client;
        return TUTTI_OK;
    }
    if (status == TUTTI_ERR_REFUSED) status = tutti_fail(status, "%s:%d: %s", host, port, client->reason);
    if (status == TUTTI_ERR_TIMEOUT)
        status = tutti_fail(TUTTI_ERR_TIMEOUT,
                            "no store at %s:%d within %lld ms (last error: %s); is rank 0 or its launcher running, and "
                            "are MASTER_ADDR and MASTER_PORT right?",
                            host, port, (long long)wanted->connect_ms, client->reason);
    free(client);
    return status;
}

bool tutti_store_client_is_broken(const tutti_store_client *client) {
    return client->broken;
}

void tutti_store_client_close(tutti_store_client *client) {
    if (client == NULL) return;
    disconnect(client);
    free(client);
}

/* -------------------------------------------------------------------------------------------- requests */

/* A request under construction: op byte, then fields. */
typedef struct request {
    uint8_t *data;
    size_t bytes, capacity;
} request;

static void put_raw(request *r, const void *data, size_t bytes) {
    if (bytes > 0) memcpy(r->data + r->bytes, data, bytes);
    r->bytes += bytes;
}

static void put_u64(request *r, uint64_t value) {
    put_raw(r, &value, sizeof value);
}

/* Allocates room for the op, the key with its prefix and `more` bytes. `counted`: a count of 1 precedes the key. */
static tutti_status begin_request(tutti_store_client *client, tutti_store_op op, bool counted, const char *key,
                                  size_t more, request *r) {
    if (client->broken)
        return tutti_fail(TUTTI_ERR_BROKEN, "the connection to the store at %s:%d failed before", client->host,
                          client->port);
    size_t prefix = sizeof TUTTI_STORE_KEY_PREFIX - 1, key_bytes = strlen(key) + prefix;
    if (key_bytes > TUTTI_STORE_MOST_KEY_BYTES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "the store key has %zu bytes; at most %llu are allowed", key_bytes,
                          (unsigned long long)TUTTI_STORE_MOST_KEY_BYTES);
    *r = (request){.capacity = 1 + 2 * sizeof(uint64_t) + key_bytes + more};
    TUTTI_TRY(tutti_calloc(r->capacity, 1, &r->data));
    r->data[r->bytes++] = (uint8_t)op;
    if (counted) put_u64(r, 1);
    put_u64(r, key_bytes);
    put_raw(r, TUTTI_STORE_KEY_PREFIX, prefix);
    put_raw(r, key, strlen(key));
    return TUTTI_OK;
}

/* A failure to send or receive leaves the stream out of step. */
static tutti_status judge(tutti_store_client *client, tutti_status status) {
    if (status != TUTTI_OK) client->broken = true;
    return status;
}

static tutti_status send_request(tutti_store_client *client, request *r, tutti_deadline *deadline) {
    tutti_status status = judge(client, send_all(client, r->data, r->bytes, deadline));
    free(r->data);
    return status;
}

static tutti_status receive_reply(tutti_store_client *client, void *data, size_t bytes, tutti_deadline *deadline) {
    return judge(client, receive_all(client, data, bytes, deadline));
}

/* The deadline for a request that does not wait for other ranks. */
static tutti_deadline answer_deadline(const tutti_store_client *client) {
    int64_t answer_ms = client->options.answer_ms;
    return tutti_deadline_after_ms(answer_ms > 0 ? answer_ms : tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
}

static tutti_status client_set(void *context, const char *key, const void *value, size_t bytes) {
    tutti_store_client *client = context;
    if (bytes > TUTTI_STORE_MOST_VALUE_BYTES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "the store value has %zu bytes; at most %llu are allowed", bytes,
                          (unsigned long long)TUTTI_STORE_MOST_VALUE_BYTES);
    request r;
    tutti_deadline deadline = answer_deadline(client);
    TUTTI_TRY(begin_request(client, TUTTI_STORE_SET, false, key, sizeof(uint64_t) + bytes, &r));
    put_u64(&r, bytes);
    put_raw(&r, value, bytes);
    return send_request(client, &r, &deadline);
}

static tutti_status client_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    tutti_store_client *client = context;
    request r;
    int64_t value;
    tutti_deadline deadline = answer_deadline(client);
    TUTTI_TRY(begin_request(client, TUTTI_STORE_ADD, false, key, sizeof amount, &r));
    put_u64(&r, (uint64_t)amount);
    TUTTI_TRY(send_request(client, &r, &deadline));
    TUTTI_TRY(receive_reply(client, &value, sizeof value, &deadline));
    *value_out = value;
    return TUTTI_OK;
}

static tutti_status client_check(void *context, const char *key, int *exists_out) {
    tutti_store_client *client = context;
    request r;
    uint8_t answer;
    tutti_deadline deadline = answer_deadline(client);
    TUTTI_TRY(begin_request(client, TUTTI_STORE_CHECK, true, key, 0, &r));
    TUTTI_TRY(send_request(client, &r, &deadline));
    TUTTI_TRY(receive_reply(client, &answer, sizeof answer, &deadline));
    if (answer != TUTTI_STORE_READY && answer != TUTTI_STORE_NOT_READY)
        return judge(client, tutti_fail(TUTTI_ERR_DATA, "unexpected answer %u of the store to a check", answer));
    *exists_out = answer == TUTTI_STORE_READY;
    return TUTTI_OK;
}

/* Cancels the wait. The key's arrival may cross the request: then its answer comes first. */
static tutti_status cancel_wait(tutti_store_client *client, bool *arrived_out) {
    uint8_t op = TUTTI_STORE_CANCEL_WAIT, answer;
    tutti_deadline deadline = answer_deadline(client);
    *arrived_out = false;
    TUTTI_TRY(judge(client, send_all(client, &op, sizeof op, &deadline)));
    TUTTI_TRY(receive_reply(client, &answer, sizeof answer, &deadline));
    if (answer == TUTTI_STORE_STOP_WAITING) {
        *arrived_out = true;
        TUTTI_TRY(receive_reply(client, &answer, sizeof answer, &deadline));
    }
    if (answer != TUTTI_STORE_WAIT_CANCELED)
        return judge(client,
                     tutti_fail(TUTTI_ERR_DATA, "unexpected answer %u of the store to the end of a wait", answer));
    return TUTTI_OK;
}

static tutti_status wait_for(tutti_store_client *client, const char *key, int64_t timeout_ms) {
    request r;
    uint8_t answer;
    tutti_deadline sending = answer_deadline(client), deadline = tutti_deadline_after_ms(timeout_ms);
    TUTTI_TRY(begin_request(client, TUTTI_STORE_WAIT, true, key, 0, &r));
    TUTTI_TRY(send_request(client, &r, &sending));
    tutti_status status = receive_all(client, &answer, sizeof answer, &deadline);
    bool arrived = false;
    if (status == TUTTI_ERR_TIMEOUT) {
        TUTTI_TRY(cancel_wait(client, &arrived));
        if (arrived) return TUTTI_OK;
        return tutti_fail(TUTTI_ERR_TIMEOUT,
                          "key '%s' was not set in the store at %s:%d within %lld ms; the rank that sets it has "
                          "probably failed or not started",
                          key, client->host, client->port, (long long)timeout_ms);
    }
    TUTTI_TRY(judge(client, status));
    if (answer != TUTTI_STORE_STOP_WAITING)
        return judge(client, tutti_fail(TUTTI_ERR_DATA, "unexpected answer %u of the store to a wait", answer));
    return TUTTI_OK;
}

/* Reads and discards a value that does not fit the caller's buffer, so that the stream stays in step. */
static tutti_status skip(tutti_store_client *client, const char *key, uint64_t bytes, size_t capacity,
                         tutti_deadline *deadline) {
    uint8_t piece[4096];
    if (bytes > MOST_SKIPPED) client->broken = true;
    for (uint64_t left = bytes; !client->broken && left > 0;) {
        size_t some = tutti_min_size(left, sizeof piece);
        TUTTI_TRY(receive_reply(client, piece, some, deadline));
        left -= some;
    }
    return tutti_fail(TUTTI_ERR_DATA, "key '%s' holds %llu bytes in the store, expected at most %zu", key,
                      (unsigned long long)bytes, capacity);
}

static tutti_status client_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                               int64_t timeout_ms) {
    tutti_store_client *client = context;
    request r;
    uint64_t bytes;
    TUTTI_TRY(wait_for(client, key, timeout_ms));
    tutti_deadline deadline = answer_deadline(client);
    TUTTI_TRY(begin_request(client, TUTTI_STORE_GET, false, key, 0, &r));
    TUTTI_TRY(send_request(client, &r, &deadline));
    TUTTI_TRY(receive_reply(client, &bytes, sizeof bytes, &deadline));
    if (bytes > capacity) return skip(client, key, bytes, capacity, &deadline);
    TUTTI_TRY(receive_reply(client, value, bytes, &deadline));
    *bytes_out = bytes;
    return TUTTI_OK;
}

tutti_store tutti_store_client_callbacks(tutti_store_client *client) {
    return (tutti_store){.struct_bytes = sizeof(tutti_store),
                         .context = client,
                         .set = client_set,
                         .get = client_get,
                         .add = client_add,
                         .check = client_check};
}
