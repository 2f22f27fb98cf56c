/*
 * The local bootstrap of a host's ranks, and values with proofs: processes that connect to the socket of a host's
 * first rank and their messages, messages from that socket to a rank, and values with a MAC in the store.
 *
 * The first byte selects the part; then follow messages: the number of descriptors and whether the connection ends,
 * the length in two bytes, and the bytes. Random bytes are zeros and waits take no time (the linker replaces them by
 * __wrap_...), so that an example can contain a valid proof. A rank is accepted only with the right proof, and no
 * descriptor is left open.
 */
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/namespace.h"
#include "comm/init/kv_tree.h"
#include "comm/init/local_state.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 3, VISITORS = 4, MOST_MESSAGE = 2048, PATIENCE_MS = 2, MOST_VALUE = 300 };
enum { LEADER, LEADER_OF_THESE, MEMBER, VALUE, PARTS };

typedef struct message {
    int visitor, nfds;
    bool ends;
    size_t bytes;
    const uint8_t *data;
} message;

typedef struct input {
    const uint8_t *next;
    size_t left;
} input;

static void check(int holds) {
    if (!holds) abort();
}

static bool next_message(input *in, message *message_out) {
    if (in->left < 4) return false;
    size_t bytes = tutti_min_size((size_t)(in->next[2] | in->next[3] << 8), in->left - 4);
    *message_out = (message){.visitor = in->next[0] % VISITORS,
                             .nfds = in->next[1] & 3,
                             .ends = (in->next[1] & 4) != 0,
                             .bytes = tutti_min_size(bytes, MOST_MESSAGE),
                             .data = in->next + 4};
    in->next += 4 + bytes;
    in->left -= 4 + bytes;
    return true;
}

static void say(int fd, const message *m) {
    static int null = -1;
    if (null < 0) null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int fds[4] = {null, null, null, null};
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    (void)tutti_local_wire_send(fd, m->data, m->bytes, fds, m->nfds, &deadline);
    if (m->ends) shutdown(fd, SHUT_WR);
}

/* ------------------------------------------------------------------------------------------- in between */

tutti_status __wrap_tutti_getrandom(void *memory, size_t bytes);
int __real_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms);

tutti_status __wrap_tutti_getrandom(void *memory, size_t bytes) {
    memset(memory, 0, bytes);
    return TUTTI_OK;
}

/* A false leader, which sends while the member waits. */
static struct {
    int listener, connection;
    input *says;
} stage = {.listener = -1, .connection = -1};

int __wrap_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms) {
    message m;
    (void)timeout_ms;
    if (stage.listener >= 0 && stage.connection < 0) stage.connection = accept(stage.listener, NULL, NULL);
    if (stage.connection >= 0 && next_message(stage.says, &m)) say(stage.connection, &m);
    return __real_poll(fds, nfds, 0);
}

/* --------------------------------------------------------------------------------------------- the parts */

static tutti_place place = {.comm_id = 7, .nonce = "the random key of the place", .nhosts = 1, .neighbours = RANKS};

/* RANKS ranks of this host, which are this process or others. */
static const tutti_peer_table *roll_of(bool these) {
    static struct {
        tutti_peer_table head;
        tutti_peer_table_host host;
        tutti_peer_table_rank ranks[RANKS];
    } table = {.head = {.nranks = RANKS, .count = RANKS, .nhosts = 1}, .host = {.nranks = RANKS}};
    for (int i = 0; i < RANKS; i++)
        table.ranks[i] = (tutti_peer_table_rank){.pid = getpid(), .pid_space = these ? tutti_namespace_pid() : 1};
    return &table.head;
}

static tutti_local_bootstrap bootstrap_of(int rank, tutti_deadline *deadline) {
    return (tutti_local_bootstrap){.place = &place,
                                   .prefix = "fuzz",
                                   .rank = rank,
                                   .nranks = RANKS,
                                   .deadline = deadline,
                                   .listen_fd = -1,
                                   .connection = -1};
}

static void lead(input *in, bool these) {
    int visitors[VISITORS];
    message m;
    bool right[RANKS] = {false};
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    tutti_local_bootstrap c = bootstrap_of(0, &deadline);
    check(tutti_local_bootstrap_listen(place.socket_name, &c.listen_fd) == TUTTI_OK);
    memcpy(c.key, place.nonce, sizeof place.nonce);
    c.key_bytes = sizeof place.nonce;
    for (int i = 0; i < VISITORS; i++)
        check(tutti_local_wire_connect(place.socket_name, &deadline, &visitors[i]) == TUTTI_OK);
    while (next_message(in, &m)) {
        tutti_local_entry e;
        tutti_local_hello h = {.rank = 0};
        uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES] = {0}, mac[TUTTI_SHA256_BYTES];
        say(visitors[m.visitor], &m);
        if (m.bytes != sizeof e || m.nfds == 0) continue; /* further descriptors are closed */
        memcpy(&e, m.data, sizeof e);                     /* all examples' nonces are zeros */
        h.rank = e.rank;
        tutti_local_mac(&c, 'r', &h, nonce, mac);
        if (e.rank > 0 && e.rank < RANKS && memcmp(mac, e.mac, sizeof mac) == 0) right[e.rank] = true;
    }
    (void)tutti_local_bootstrap_open(&c, roll_of(these));
    for (int local_rank = 1; c.peers != NULL && local_rank < RANKS; local_rank++)
        check(c.peers[local_rank].connection < 0 || right[local_rank]);
    for (int i = 0; i < VISITORS; i++) close(visitors[i]);
    tutti_local_bootstrap_close(&c);
    tutti_shm_segment_release(c.segment);
}

/* A false leader has no key, or the right one; it has no memory to share. */
static void be_led(input *in) {
    tutti_deadline deadline = tutti_deadline_after_ms(PATIENCE_MS);
    tutti_local_bootstrap c = bootstrap_of(1, &deadline);
    check(tutti_local_bootstrap_listen(place.socket_name, &stage.listener) == TUTTI_OK);
    stage.says = in;
    check(tutti_local_bootstrap_open(&c, NULL) != TUTTI_OK);
    if (stage.connection >= 0) close(stage.connection);
    close(stage.listener);
    stage.listener = stage.connection = -1;
    tutti_local_bootstrap_close(&c);
}

/* ----------------------------------------------------------------------------------------------- values */

static tutti_status give(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                         int64_t timeout_ms) {
    const input *in = context;
    (void)key, (void)timeout_ms;
    if (in->left > capacity) return tutti_fail(TUTTI_ERR_DATA, "longer than %zu bytes", capacity);
    memcpy(value, in->next, in->left);
    *bytes_out = in->left;
    return TUTTI_OK;
}

static uint8_t kept[MOST_VALUE];
static size_t kept_bytes;

static tutti_status keep(void *context, const char *key, const void *value, size_t bytes) {
    (void)context, (void)key;
    check(bytes <= sizeof kept);
    memcpy(kept, value, bytes);
    kept_bytes = bytes;
    return TUTTI_OK;
}

static tutti_kv_tree board_over(const tutti_store *store, tutti_deadline *deadline) {
    return (tutti_kv_tree){
        .store = store, .prefix = "fuzz", .deadline = deadline, .proves = true, .key = "what follows from a secret"};
}

/* The first two bytes are the capacity; then the value as it is in the store. */
static void read_value(input in) {
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    tutti_store store = {.context = &in, .get = give, .set = keep};
    tutti_kv_tree tree = board_over(&store, &deadline);
    if (in.left < 2) return;
    size_t capacity = (size_t)(in.next[0] | in.next[1] << 8) % MOST_VALUE, bytes = 0;
    uint8_t *value = malloc(capacity > 0 ? capacity : 1); /* so that a read beyond its end is detected */
    check(value != NULL);
    in.next += 2;
    in.left -= 2;
    if (tutti_kv_tree_get(&tree, "fuzz/value", value, capacity, 0, &bytes) == TUTTI_OK) {
        check(bytes <= capacity && bytes + TUTTI_SHA256_BYTES == in.left);
        check(tutti_kv_tree_set(&tree, "fuzz/value", value, bytes) == TUTTI_OK);
        check(kept_bytes == in.left && memcmp(kept, in.next, in.left) == 0);
    }
    free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int most = -1; /* descriptors that a part may leave open: those that are never closed */
    if (bytes < 1) return 0;
    input in = {.next = data + 1, .left = bytes - 1};
    switch (data[0] % PARTS) {
    case LEADER: lead(&in, /* these */ false); break;
    case LEADER_OF_THESE: lead(&in, /* these */ true); break;
    case MEMBER: be_led(&in); break;
    default: read_value(in);
    }
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest free descriptor */
    close(next);
    if (most < 0) most = next + 16;
    check(next < most);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples */

static size_t put(uint8_t *data, size_t at, int visitor, int flags, const void *bytes, size_t count) {
    data[at] = (uint8_t)visitor;
    data[at + 1] = (uint8_t)flags;
    data[at + 2] = (uint8_t)count;
    data[at + 3] = (uint8_t)(count >> 8);
    memcpy(data + at + 4, bytes, count);
    return at + 4 + count;
}

static size_t visit(uint8_t *data, int part) {
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    tutti_local_bootstrap c = bootstrap_of(0, &deadline);
    uint8_t nonce[TUTTI_LOCAL_NONCE_BYTES] = {0};
    size_t at = 1;
    data[0] = (uint8_t)part;
    memcpy(c.key, place.nonce, sizeof place.nonce);
    c.key_bytes = sizeof place.nonce;
    for (int rank = 1; rank < RANKS; rank++) {
        tutti_local_hello h = {.rank = rank};
        tutti_local_entry e = {.rank = rank};
        tutti_local_mac(&c, 'r', &h, nonce, e.mac);
        at = put(data, at, rank, 0, &h, sizeof h);
        at = put(data, at, rank, 1, &e, sizeof e);
    }
    return at;
}

static size_t answer(uint8_t *data, bool knows) {
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    tutti_local_bootstrap c = bootstrap_of(1, &deadline);
    tutti_local_hello h = {.rank = 1};
    tutti_local_proof p = {.nonce = {0}};
    tutti_local_message w;
    memcpy(c.key, place.nonce, sizeof place.nonce);
    c.key_bytes = sizeof place.nonce;
    if (knows) tutti_local_mac(&c, '0', &h, p.nonce, p.mac);
    data[0] = MEMBER;
    size_t at = put(data, 1, 0, 0, &p, sizeof p);
    tutti_local_fill_message(&w, TUTTI_OK);
    at = put(data, at, 0, 1, &w, sizeof w);
    w.status = TUTTI_ERR_CONFIG;
    memset(w.text, 'x', sizeof w.text);
    return put(data, at, 0, 4, &w, sizeof w);
}

static size_t prove_value(uint8_t *data, size_t capacity, size_t bytes) {
    static const uint8_t value[MOST_VALUE] = "a value";
    tutti_deadline deadline = tutti_deadline_after_ms(0);
    tutti_store store = {.get = give, .set = keep};
    tutti_kv_tree tree = board_over(&store, &deadline);
    check(tutti_kv_tree_set(&tree, "fuzz/value", value, bytes) == TUTTI_OK);
    data[0] = VALUE;
    data[1] = (uint8_t)capacity;
    data[2] = (uint8_t)(capacity >> 8);
    memcpy(data + 3, kept, kept_bytes);
    return 3 + kept_bytes;
}

/* Proofs cover the socket's name, which is random in each run of a part, so always the same here. */
size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    if (capacity < (size_t)8 * MOST_MESSAGE) return 0;
    memcpy(place.socket_name, "tutti-00000000000000000000000000000000", 39);
    switch (index) {
    case 0: return visit(data, LEADER);
    case 1: return visit(data, LEADER_OF_THESE);
    case 2: return answer(data, /* knows */ true);
    case 3: return answer(data, /* knows */ false);
    case 4: return prove_value(data, 100, 100);
    case 5: return prove_value(data, 99, 100);
    case 6: return prove_value(data, 0, 0);
    case 7: return prove_value(data, MOST_VALUE - 1, 10);
    default: return 0;
    }
}
