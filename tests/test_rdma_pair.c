/*
 * What pipes over verbs promise, between two processes; both run the same cases in the same order, each on a pipe of its own:
 *
 *   test_rdma_pair serve PORT CASE...
 *   test_rdma_pair join ADDRESS PORT CASE...
 *
 * It needs an RDMA device, so test_rdma_vm runs it in a VM. Prints "ok CASE" or "FAILED CASE: why"; exits with 1 after a
 * failure. `first` is the side that serves.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/status.h"
#include "comm/fork.h"
#include "comm/heap.h"
#include "tests/support/rdma_pair.h"

#define MOST_BYTES ((size_t)4 << 20)
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return tutti_fail(TUTTI_ERR_DATA, __VA_ARGS__);                                              \
    } while (0)

static unsigned char *out, *in; /* MOST_BYTES each */

static unsigned char pattern(size_t i, unsigned seed) {
    return (unsigned char)(i * 7 + (i >> 8) + (i >> 16) * 3 + seed * 31);
}

static void fill(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = pattern(i, seed);
}

static tutti_status compare(const unsigned char *bytes, size_t count, size_t from, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        CHECK(bytes[i] == pattern(from + i, seed), "byte %zu of %zu is %u, not %u", i, count, bytes[i],
              pattern(from + i, seed));
    return TUTTI_OK;
}

static const tutti_rdma_counters *counters(const rdma_pair *pair) {
    return tutti_verbs_counters(pair->pipe);
}

/* One message from one side to the other. */
static tutti_status carry(rdma_pair *pair, bool sends, size_t bytes, unsigned seed) {
    if (sends) {
        fill(out, bytes, seed);
        return rdma_pair_send(pair, out, bytes);
    }
    memset(in, 0xee, bytes + 1);
    TUTTI_TRY(rdma_pair_recv(pair, in, bytes));
    CHECK(in[bytes] == 0xee, "a byte behind the %zu was written", bytes);
    return compare(in, bytes, 0, seed);
}

static tutti_status exchange(rdma_pair *pair, size_t send_bytes, size_t receive_bytes, unsigned seed) {
    struct iovec part = {.iov_base = out, .iov_len = send_bytes};
    fill(out, send_bytes, seed + pair->first);
    memset(in, 0xee, receive_bytes + 1);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, in, receive_bytes));
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    TUTTI_TRY(rdma_pair_finish(pair, 30000));
    CHECK(in[receive_bytes] == 0xee, "a byte behind the %zu was written", receive_bytes);
    return compare(in, receive_bytes, 0, seed + !pair->first);
}

/* -------------------------------------------------------------------------------------------- what goes well */

static tutti_status all_sizes(rdma_pair *pair) {
    static const size_t sizes[] = {
        0,    1,    8,    43,    44,    45,    103,   104,    105,     1000,          4096,
        8191, 8192, 8193, 32767, 32768, 32769, 65536, 100003, 1 << 20, (1 << 20) + 1, 3000017};
    for (unsigned i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        TUTTI_TRY(carry(pair, pair->first, sizes[i], i));
        TUTTI_TRY(carry(pair, !pair->first, sizes[i], i + 1));
        TUTTI_TRY(exchange(pair, sizes[i], sizes[i], i));
    }
    return TUTTI_OK;
}

/* A pipe is a stream: how it was cut when it was sent is not how it is cut when it is received. */
static tutti_status other_bounds(rdma_pair *pair) {
    static const size_t cuts[] = {300007, 777, 40000, 31, 100000, 8192};
    size_t all = 600007;
    fill(out, all, 3);
    for (unsigned i = 0; i < TUTTI_COUNT_OF(cuts); i++) {
        size_t cut = pair->first ? cuts[i] : cuts[(i + 1) % TUTTI_COUNT_OF(cuts)];
        for (size_t done = 0; done < all; done += cut) {
            size_t now = tutti_min_size(cut, all - done);
            if (pair->first) TUTTI_TRY(rdma_pair_send(pair, out + done, now));
            else TUTTI_TRY(rdma_pair_recv(pair, in, now));
            if (!pair->first) TUTTI_TRY(compare(in, now, done, 3));
        }
    }
    return TUTTI_OK;
}

static tutti_status four_parts(rdma_pair *pair) {
    static const size_t lengths[][4] = {
        {8, 0, 100, 1}, {64, 200000, 8, 100000}, {100000, 8, 8, 8}, {0, 40000, 0, 40000}};
    for (unsigned i = 0; i < TUTTI_COUNT_OF(lengths); i++) {
        struct iovec parts[4];
        size_t all = 0;
        for (int part = 0; part < 4; part++) {
            parts[part] = (struct iovec){.iov_base = out + all, .iov_len = lengths[i][part]};
            all += lengths[i][part];
        }
        if (!pair->first) {
            TUTTI_TRY(carry(pair, false, all, i));
            continue;
        }
        fill(out, all, i);
        TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, parts, 4));
        TUTTI_TRY(rdma_pair_finish(pair, 30000));
    }
    return TUTTI_OK;
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Both directions at once, a thousand messages each, most of them small. */
static tutti_status mixed(rdma_pair *pair) {
    uint32_t state = 4711;
    for (unsigned i = 0; i < 1000; i++) {
        uint32_t kind = next_random(&state) % 100;
        uint32_t bytes = next_random(&state) % (kind < 80 ? 300 : kind < 95 ? 20000 : 200000);
        uint32_t back = next_random(&state) % (kind < 90 ? 300 : 100000);
        tutti_status status = exchange(pair, pair->first ? bytes : back, pair->first ? back : bytes, i);
        if (status != TUTTI_OK) return tutti_fail_context(status, "message %u", i);
    }
    return TUTTI_OK;
}

static tutti_status one_work_request_each(rdma_pair *pair) {
    enum { MESSAGES = 1000 };
    char byte[8] = "";
    const tutti_rdma_counters *now = counters(pair);
    for (int i = 0; i < MESSAGES; i++) { /* to and fro: not even a credit */
        TUTTI_TRY(pair->first ? rdma_pair_send(pair, byte, 8) : rdma_pair_recv(pair, byte, 8));
        TUTTI_TRY(pair->first ? rdma_pair_recv(pair, byte, 8) : rdma_pair_send(pair, byte, 8));
    }
    CHECK(now->records == MESSAGES && now->work_requests == MESSAGES && now->receives == 0,
          "%d messages: %lu records, %lu work requests, %lu receives", MESSAGES, now->records, now->work_requests,
          now->receives);
    for (int i = 0; i < MESSAGES; i++) /* one way: credits come from the other side */
        TUTTI_TRY(pair->first ? rdma_pair_send(pair, byte, 8) : rdma_pair_recv(pair, byte, 8));
    uint64_t sent = pair->first ? 2 * MESSAGES : MESSAGES;
    CHECK(now->records == sent && now->work_requests == sent + now->states && now->states <= 8 && now->receives == 0,
          "one way: %lu records, %lu work requests, %lu states, %lu receives", now->records, now->work_requests,
          now->states, now->receives);
    CHECK(!pair->first || now->states == 0, "the sender told its state %lu times", now->states);
    printf("   %lu records, %lu work requests, %lu of them credits, %lu receives posted\n", now->records,
           now->work_requests, now->states, now->receives);
    return TUTTI_OK;
}

static tutti_status known_memory(rdma_pair *pair) {
    void *registrations[2] = {NULL, NULL};
    const tutti_rdma_counters *now = counters(pair);
    TUTTI_TRY(tutti_verbs_transport.register_memory(out, MOST_BYTES, &registrations[0]));
    TUTTI_TRY(tutti_verbs_transport.register_memory(in, MOST_BYTES, &registrations[1]));
    tutti_status status = TUTTI_OK;
    for (unsigned i = 0; i < 10 && status == TUTTI_OK; i++) status = exchange(pair, 100000 + i, 100000 + i, i);
    for (int i = 0; i < 2; i++) tutti_verbs_transport.deregister_memory(registrations[i]);
    TUTTI_TRY(status);
    CHECK(now->registrations == 0 && now->cache_hits == 20, "%lu registrations, %lu found", now->registrations,
          now->cache_hits);
    TUTTI_TRY(exchange(pair, 100000, 100000, 5));
    CHECK(now->registrations == 2 && now->cache_hits == 20, "then %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    return TUTTI_OK;
}

/* Sends and receives from there: whole blocks in both directions. */
static tutti_status exchange_at(rdma_pair *pair, unsigned char *src, unsigned char *dst, size_t bytes, unsigned seed) {
    struct iovec part = {.iov_base = src, .iov_len = bytes};
    fill(src, bytes, seed + pair->first);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, dst, bytes));
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    TUTTI_TRY(rdma_pair_finish(pair, 30000));
    return compare(dst, bytes, 0, seed + !pair->first);
}

/* tutti_mem_alloc's blocks stay registered from their first use on, until their pages go. */
static tutti_status heap_memory(rdma_pair *pair) {
    enum { BYTES = (1 << 20) + 4096, MORE = (1 << 20) + (1 << 18) }; /* of one size class */
    void *src, *dst;
    const tutti_rdma_counters *now = counters(pair);
    TUTTI_TRY(tutti_mem_alloc(BYTES, &src));
    TUTTI_TRY(tutti_mem_alloc(BYTES, &dst));
    for (unsigned i = 0; i < 4; i++) TUTTI_TRY(exchange_at(pair, src, dst, BYTES, i));
    CHECK(now->registrations == 0 && now->cache_hits == 8, "%lu registrations, %lu found", now->registrations,
          now->cache_hits);
    void *before = dst; /* given back and grown, at the same address */
    TUTTI_TRY(tutti_mem_free(dst));
    TUTTI_TRY(tutti_mem_alloc(MORE, &dst));
    CHECK(dst == before, "the block has moved");
    for (unsigned i = 0; i < 2; i++) TUTTI_TRY(exchange_at(pair, dst, (unsigned char *)src, BYTES, i));
    TUTTI_TRY(exchange_at(pair, out, dst, MORE, 7));
    CHECK(now->registrations == 1 && now->cache_hits == 13, "grown: %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    tutti_heap_retire_blocks(); /* so that freed pages go at once; the address stays mapped, and gets other pages */
    TUTTI_TRY(tutti_mem_free(dst));
    TUTTI_TRY(tutti_mem_free(src));
    for (unsigned i = 0; i < 2; i++) TUTTI_TRY(exchange_at(pair, src, dst, BYTES, 20 + i));
    CHECK(now->registrations == 5 && now->cache_hits == 13, "freed: %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    return TUTTI_OK;
}

/* The same address, other pages: what the adapter has known there must be of no effect. */
static tutti_status memory_again(rdma_pair *pair) {
    const size_t bytes = 300000;
    unsigned char *address = NULL;
    const tutti_rdma_counters *now = counters(pair);
    for (unsigned i = 0; i < 6; i++) {
        bool registered = i >= 3;
        void *memory = mmap(address, 2 * bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | (address != NULL ? MAP_FIXED : 0), -1, 0);
        CHECK(memory != MAP_FAILED && (address == NULL || memory == address), "no memory at that address");
        address = memory;
        if (registered) TUTTI_TRY(tutti_mem_register(address, 2 * bytes));
        for (unsigned time = 0; time < 2; time++)
            TUTTI_TRY(exchange_at(pair, address, address + bytes, bytes, 10 * i + time));
        if (registered) TUTTI_TRY(tutti_mem_deregister(address));
        CHECK(munmap(address, 2 * bytes) == 0, "cannot unmap it");
    }
    CHECK(now->registrations == 12 && now->cache_hits == 12, "%lu registrations, %lu found", now->registrations,
          now->cache_hits);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- ends and faults */

static bool says(const char *words) {
    return strstr(tutti_last_error(), words) != NULL;
}

/* Drives what is under way, to its end or an error. */
static tutti_status to_the_end(rdma_pair *pair, int limit_ms) {
    return rdma_pair_finish(pair, limit_ms);
}

static tutti_status sent_before_close(rdma_pair *pair) {
    for (unsigned i = 0; i < 100; i++) TUTTI_TRY(carry(pair, pair->first, 500, i));
    if (pair->first) return TUTTI_OK; /* closes at once */
    usleep(200000);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, in, 8));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("has ended"), "no end was told: %s",
          tutti_last_error());
    return TUTTI_OK;
}

/* The other side reads only after its lanes have failed: what it sends last finds nobody. */
static tutti_status read_after_close(rdma_pair *pair) {
    enum { MESSAGES = 10, BYTES = 3000 };
    char byte = 0;
    TUTTI_TRY(pair->first ? rdma_pair_recv(pair, &byte, 1)
                          : rdma_pair_send(pair, &byte, 1)); /* both are through opening */
    for (unsigned i = 0; pair->first && i < MESSAGES; i++) TUTTI_TRY(carry(pair, true, BYTES, i));
    if (pair->first) return TUTTI_OK; /* closes at once */
    usleep(500000);
    TUTTI_TRY(rdma_pair_send(pair, &byte, 1));
    usleep(1500000);
    for (int i = 0; i < 1000; i++) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
    for (unsigned i = 0; i < MESSAGES; i++) TUTTI_TRY(carry(pair, false, BYTES, i));
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, in, 8));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("has ended"), "no end was told: %s",
          tutti_last_error());
    return TUTTI_OK;
}

/* The receiver has granted its buffer and takes that back: nothing may be written there afterwards. */
static tutti_status cut_off(rdma_pair *pair) {
    struct iovec part = {.iov_base = out, .iov_len = MOST_BYTES};
    if (!pair->first) {
        TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, in, MOST_BYTES));
        while (pair->pipe->received == 0) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
        tutti_verbs_transport.cancel(pair->pipe);
        memset(in, 0x55, MOST_BYTES);
        usleep(300000);
        for (size_t i = 0; i < MOST_BYTES; i++) CHECK(in[i] == 0x55, "byte %zu was written after the cancel", i);
        CHECK(tutti_verbs_transport.send(pair->pipe, &part, 1) == TUTTI_ERR_ABORTED, "the pipe was still of use");
        return TUTTI_OK;
    }
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    CHECK(to_the_end(pair, 5000) == TUTTI_ERR_PEER_DIED && says("cut off"), "no end was told: %s", tutti_last_error());
    return TUTTI_OK;
}

/* The second process is killed in the middle of a transfer. */
static tutti_status killed(rdma_pair *pair) {
    struct iovec part = {.iov_base = out, .iov_len = MOST_BYTES};
    int64_t start = 0;
    tutti_status status = TUTTI_OK;
    for (int round = 0; status == TUTTI_OK && round < 100; round++) {
        start = tutti_now_ns();
        status = tutti_verbs_transport.recv(pair->pipe, in, MOST_BYTES);
        if (status == TUTTI_OK) status = tutti_verbs_transport.send(pair->pipe, &part, 1);
        if (status != TUTTI_OK) break;
        while (!pair->first && pair->pipe->received == 0) TUTTI_TRY(tutti_verbs_transport.progress(pair->pipe));
        if (!pair->first && round == 3) raise(SIGKILL);
        status = to_the_end(pair, 10000);
    }
    int64_t ms = (tutti_now_ns() - start) / TUTTI_NS_PER_MS;
    CHECK(status == TUTTI_ERR_PEER_DIED && says("pid") && ms < 2000, "status %d after %ld ms: %s", status, ms,
          tutti_last_error());
    printf("   known after %ld ms: %s\n", ms, tutti_last_error());
    return TUTTI_OK;
}

/* The same, and a child of it lives on, with copies of all that it had open. */
static tutti_status killed_with_child(rdma_pair *pair) {
    if (!pair->first && fork() == 0) {
        sleep(4);
        _exit(0);
    }
    return killed(pair);
}

/* With TUTTI_FAULT=rdma_bad_key on the first: its adapter writes with a key that the other does not know. */
static tutti_status bad_key(rdma_pair *pair) {
    tutti_status status = exchange(pair, 100000, 100000, 1);
    CHECK(status == (pair->first ? TUTTI_ERR_SYSTEM : TUTTI_ERR_PEER_DIED), "status %d: %s", status,
          tutti_last_error());
    CHECK(says("refused the address or key") && says("pid"), "it says only: %s", tutti_last_error());
    printf("   %s\n", tutti_last_error());
    return TUTTI_OK;
}

/* With TUTTI_FAULT=rdma_break:...: queue pairs fail again and again, and nobody notices. */
static tutti_status broken_pairs(rdma_pair *pair) {
    TUTTI_TRY(mixed(pair));
    CHECK(counters(pair)->repairs > 0, "nothing broke");
    printf("   made anew %lu times\n", counters(pair)->repairs);
    return TUTTI_OK;
}

/* Whoever waits for the file RDMA_PAIR_STARTED takes the way down for two seconds: it goes on until that was noticed, and for
 * a moment more. */
static tutti_status link_down(rdma_pair *pair) {
    const char *started = getenv("RDMA_PAIR_STARTED");
    FILE *file = started != NULL ? fopen(started, "w") : NULL;
    if (file != NULL) fclose(file);
    int64_t end = tutti_now_ns() + 20 * TUTTI_NS_PER_S;
    bool broken = false;
    for (unsigned round = 0;; round++) {
        int64_t now = tutti_now_ns();
        if (!broken && counters(pair)->repairs > 0) broken = true, end = now + TUTTI_NS_PER_S;
        char more = now < end;
        TUTTI_TRY(pair->first ? rdma_pair_send(pair, &more, 1) : rdma_pair_recv(pair, &more, 1));
        if (!more) break;
        TUTTI_TRY(exchange(pair, 1000 + round, 1000 + round, round));
        TUTTI_TRY(exchange(pair, 200000 + round, 200000 + round, round));
    }
    CHECK(counters(pair)->repairs > 0, "nothing broke");
    printf("   made anew %lu times\n", counters(pair)->repairs);
    return TUTTI_OK;
}

/* With TUTTI_FAULT=rdma_register:...: large messages go by the ring. */
static tutti_status no_registration(rdma_pair *pair) {
    for (unsigned i = 0; i < 5; i++) TUTTI_TRY(exchange(pair, 300000 + i, 300000 + i, i));
    CHECK(counters(pair)->pieces == 0, "%lu pieces", counters(pair)->pieces);
    return TUTTI_OK;
}

static tutti_status striped(rdma_pair *pair) {
    for (unsigned i = 0; i < 4; i++) TUTTI_TRY(exchange(pair, MOST_BYTES - i, MOST_BYTES - i, i));
    const tutti_rdma_counters *now = counters(pair);
    uint64_t writes = now->work_requests - now->records - now->states;
    CHECK(writes >= 2 * now->pieces - 4, "%lu writes for %lu pieces: not striped", writes, now->pieces);
    return TUTTI_OK;
}

/* One side has no adapter, or a wrong address: both are told why. */
static tutti_status no_way(rdma_pair *pair) {
    tutti_status status = rdma_pair_open(pair);
    CHECK(status != TUTTI_OK && tutti_last_error()[0] != '\0', "it was opened");
    printf("   %s\n", tutti_last_error());
    return TUTTI_OK;
}

/* Opened and closed at once: whoever is slower finds a peer that has gone, and a pipe that came up all the same. */
static tutti_status closed_at_once(rdma_pair *pair) {
    for (int i = 0; i < 10; i++) {
        TUTTI_TRY(rdma_pair_open(pair));
        rdma_pair_close(pair);
    }
    return TUTTI_OK;
}

/* Soft-RoCE has no dma-buf; that must be said, not crash. */
static tutti_status gpu_memory(rdma_pair *pair) {
    const tutti_module_calls *module;
    void *registration = NULL;
    (void)pair;
    TUTTI_TRY(tutti_module_open("verbs", &module));
    int file = memfd_create("no-dmabuf", MFD_CLOEXEC);
    tutti_status status = ((const tutti_rdma_module *)module)->register_dmabuf(file, 0, out, 4096, &registration);
    close(file);
    CHECK(status == TUTTI_ERR_UNSUPPORTED && says("dma-buf"), "status %d: %s", status, tutti_last_error());
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------------- main */

static const struct {
    const char *name;
    tutti_status (*run)(rdma_pair *pair);
    bool opens; /* the pipe by itself */
} cases[] = {
    {"all_sizes", all_sizes, false},
    {"other_bounds", other_bounds, false},
    {"four_parts", four_parts, false},
    {"mixed", mixed, false},
    {"one_work_request_each", one_work_request_each, false},
    {"known_memory", known_memory, false},
    {"heap_memory", heap_memory, false},
    {"memory_again", memory_again, false},
    {"sent_before_close", sent_before_close, false},
    {"read_after_close", read_after_close, false},
    {"cut_off", cut_off, false},
    {"killed", killed, false},
    {"killed_with_child", killed_with_child, false},
    {"bad_key", bad_key, false},
    {"broken_pairs", broken_pairs, false},
    {"link_down", link_down, false},
    {"no_registration", no_registration, false},
    {"striped", striped, false},
    {"no_way", no_way, true},
    {"closed_at_once", closed_at_once, true},
    {"gpu_memory", gpu_memory, false},
};

static bool run_case(rdma_pair *pair, const char *name) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(cases); i++) {
        if (strcmp(cases[i].name, name) != 0) continue;
        int64_t start = tutti_now_ns();
        tutti_status status = cases[i].opens ? TUTTI_OK : rdma_pair_open(pair);
        if (status == TUTTI_OK) status = cases[i].run(pair);
        if (status != TUTTI_OK) printf("FAILED %s: %s\n", name, tutti_last_error());
        rdma_pair_close(pair);
        if (status == TUTTI_OK) printf("ok %s (%ld ms)\n", name, (long)((tutti_now_ns() - start) / TUTTI_NS_PER_MS));
        fflush(stdout);
        return status == TUTTI_OK;
    }
    printf("FAILED %s: there is no such case\n", name);
    return false;
}

int main(int argc, char **argv) {
    rdma_pair pair;
    int used = rdma_pair_read(&pair, argc, argv), failed = 0;
    out = malloc(MOST_BYTES + 1);
    in = malloc(MOST_BYTES + 1);
    if (used == 0 || out == NULL || in == NULL) {
        fprintf(stderr, "usage: test_rdma_pair serve PORT CASE... | join ADDRESS PORT CASE...\n");
        return 2;
    }
    alarm(100); /* nothing is left behind */
    tutti_fork_watch();
    for (int i = used; i < argc && failed == 0; i++) failed += !run_case(&pair, argv[i]);
    free(in);
    free(out);
    return failed > 0;
}
