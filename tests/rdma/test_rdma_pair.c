/*
 * What pipes over verbs promise, between two processes; both run the same cases in the same order, each on a pipe of
 * its own:
 *
 * test_rdma_pair serve PORT CASE... test_rdma_pair join ADDRESS PORT CASE...
 *
 * It needs an RDMA device, so test_rdma_vm runs it in a VM. Prints "ok CASE" or "FAILED CASE: why"; exits with 1
 * after a failure. `first` is the side that serves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/base/fork.h"
#include "comm/shm/heap.h"
#include "tests/support/links/rdma_cases.h"

/* -------------------------------------------------------------------------------------------- what goes well */

static tutti_status all_sizes(rdma_pair *pair) {
    static const size_t sizes[] = {
        0,    1,    8,    43,    44,    45,    103,   104,    105,     1000,          4096,
        8191, 8192, 8193, 32767, 32768, 32769, 65536, 100003, 1 << 20, (1 << 20) + 1, 3000017};
    for (unsigned i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        TUTTI_TRY(rdma_case_carry(pair, pair->first, sizes[i], i));
        TUTTI_TRY(rdma_case_carry(pair, !pair->first, sizes[i], i + 1));
        TUTTI_TRY(rdma_case_exchange(pair, sizes[i], sizes[i], i));
    }
    return TUTTI_OK;
}

/* A pipe is a stream: the parts in which it is sent need not be the parts in which it is received. */
static tutti_status other_bounds(rdma_pair *pair) {
    static const size_t cuts[] = {300007, 777, 40000, 31, 100000, 8192};
    size_t all = 600007;
    rdma_case_fill(pair->out, all, 3);
    for (unsigned i = 0; i < TUTTI_COUNT_OF(cuts); i++) {
        size_t cut = pair->first ? cuts[i] : cuts[(i + 1) % TUTTI_COUNT_OF(cuts)];
        for (size_t done = 0; done < all; done += cut) {
            size_t now = tutti_min_size(cut, all - done);
            if (pair->first) TUTTI_TRY(rdma_pair_send(pair, pair->out + done, now));
            else TUTTI_TRY(rdma_pair_recv(pair, pair->in, now));
            if (!pair->first) TUTTI_TRY(rdma_case_compare(pair->in, now, done, 3));
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
            parts[part] = (struct iovec){.iov_base = pair->out + all, .iov_len = lengths[i][part]};
            all += lengths[i][part];
        }
        if (!pair->first) {
            TUTTI_TRY(rdma_case_carry(pair, false, all, i));
            continue;
        }
        rdma_case_fill(pair->out, all, i);
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
tutti_status rdma_case_mixed(rdma_pair *pair) {
    uint32_t state = 4711;
    for (unsigned i = 0; i < 1000; i++) {
        uint32_t kind = next_random(&state) % 100;
        uint32_t bytes = next_random(&state) % (kind < 80 ? 300 : kind < 95 ? 20000 : 200000);
        uint32_t back = next_random(&state) % (kind < 90 ? 300 : 100000);
        tutti_status status = rdma_case_exchange(pair, pair->first ? bytes : back, pair->first ? back : bytes, i);
        if (status != TUTTI_OK) return tutti_fail_context(status, "message %u", i);
    }
    return TUTTI_OK;
}

static tutti_status one_work_request_each(rdma_pair *pair) {
    enum { MESSAGES = 1000 };
    char byte[8] = "";
    const tutti_rdma_counters *now = rdma_case_counters(pair);
    pair->restless = true;
    for (int i = 0; i < MESSAGES; i++) { /* to and fro: not even credits are needed */
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
    CHECK(!pair->first || now->states == 0, "the sender reported its state %lu times", now->states);
    printf("   %lu records, %lu work requests, %lu of them credits, %lu receives posted\n", now->records,
           now->work_requests, now->states, now->receives);
    pair->restless = false;
    return TUTTI_OK;
}

static tutti_status initialized(rdma_pair *pair) {
    (void)pair;
    for (int i = 0; i < 2; i++) {
        TUTTI_TRY(tutti_init_rdma());
        CHECK(tutti_rdma_is_initialized() == 1, "it is not initialized");
    }
    return TUTTI_OK;
}

static tutti_status known_memory(rdma_pair *pair) {
    const tutti_rdma_counters *now = rdma_case_counters(pair);
    TUTTI_TRY(tutti_mem_register(pair->out, RDMA_CASE_BYTES));
    TUTTI_TRY(tutti_mem_register(pair->in, RDMA_CASE_BYTES));
    tutti_status status = TUTTI_OK;
    for (unsigned i = 0; i < 10 && status == TUTTI_OK; i++)
        status = rdma_case_exchange(pair, 100000 + i, 100000 + i, i);
    TUTTI_TRY(tutti_mem_deregister(pair->out));
    TUTTI_TRY(tutti_mem_deregister(pair->in));
    TUTTI_TRY(status);
    CHECK(now->registrations == 0 && now->cache_hits == 20, "%lu registrations, %lu found", now->registrations,
          now->cache_hits);
    TUTTI_TRY(rdma_case_exchange(pair, 100000, 100000, 5));
    CHECK(now->registrations == 2 && now->cache_hits == 20, "then %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    return TUTTI_OK;
}

/* Sends and receives from there: whole blocks in both directions. */
static tutti_status exchange_at(rdma_pair *pair, unsigned char *src, unsigned char *dst, size_t bytes, unsigned seed) {
    struct iovec part = {.iov_base = src, .iov_len = bytes};
    rdma_case_fill(src, bytes, seed + pair->first);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, dst, bytes));
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    TUTTI_TRY(rdma_pair_finish(pair, 30000));
    return rdma_case_compare(dst, bytes, 0, seed + !pair->first);
}

/* Blocks of tutti_mem_alloc stay registered from their first use on, until their pages are released. */
static tutti_status heap_memory(rdma_pair *pair) {
    enum { BYTES = (1 << 20) + 4096, MORE = (1 << 20) + (1 << 18) }; /* of one size class */
    void *src, *dst;
    const tutti_rdma_counters *now = rdma_case_counters(pair);
    TUTTI_TRY(tutti_mem_alloc(BYTES, &src));
    TUTTI_TRY(tutti_mem_alloc(BYTES, &dst));
    for (unsigned i = 0; i < 4; i++) TUTTI_TRY(exchange_at(pair, src, dst, BYTES, i));
    CHECK(now->registrations == 0 && now->cache_hits == 8, "%lu registrations, %lu found", now->registrations,
          now->cache_hits);
    void *before = dst; /* freed and allocated larger, at the same address */
    TUTTI_TRY(tutti_mem_free(dst));
    TUTTI_TRY(tutti_mem_alloc(MORE, &dst));
    CHECK(dst == before, "the block has moved");
    for (unsigned i = 0; i < 2; i++) TUTTI_TRY(exchange_at(pair, dst, (unsigned char *)src, BYTES, i));
    TUTTI_TRY(exchange_at(pair, pair->out, dst, MORE, 7));
    CHECK(now->registrations == 1 && now->cache_hits == 13, "grown: %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    tutti_heap_retire_blocks(); /* freed pages are released at once; the address stays mapped, and gets other pages */
    TUTTI_TRY(tutti_mem_free(dst));
    TUTTI_TRY(tutti_mem_free(src));
    for (unsigned i = 0; i < 2; i++) TUTTI_TRY(exchange_at(pair, src, dst, BYTES, 20 + i));
    CHECK(now->registrations == 5 && now->cache_hits == 13, "freed: %lu registrations, %lu found", now->registrations,
          now->cache_hits);
    return TUTTI_OK;
}

/* The same address with other pages: the adapter's earlier registration there must have no effect. */
static tutti_status memory_again(rdma_pair *pair) {
    const size_t bytes = 300000;
    unsigned char *address = NULL;
    const tutti_rdma_counters *now = rdma_case_counters(pair);
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

/* ------------------------------------------------------------------------------------------------------- main */

static const rdma_case cases[] = {
    {"initialized", initialized, true},    {"all_sizes", all_sizes, false},
    {"other_bounds", other_bounds, false}, {"four_parts", four_parts, false},
    {"mixed", rdma_case_mixed, false},     {"one_work_request_each", one_work_request_each, false},
    {"known_memory", known_memory, false}, {"heap_memory", heap_memory, false},
    {"memory_again", memory_again, false}, {NULL, NULL, false},
};

static const rdma_case *find(const rdma_case *table, const char *name) {
    while (table->name != NULL && strcmp(table->name, name) != 0) table++;
    return table->name != NULL ? table : NULL;
}

static bool run_case(rdma_pair *pair, const char *name) {
    const rdma_case *found = find(cases, name);
    if (found == NULL) found = find(rdma_fault_cases, name);
    if (found == NULL) found = find(rdma_sleep_cases, name);
    if (found == NULL) {
        printf("FAILED %s: there is no such case\n", name);
        return false;
    }
    int64_t start = tutti_now_ns();
    tutti_status status = found->opens ? TUTTI_OK : rdma_pair_open(pair);
    if (status == TUTTI_OK) status = found->run(pair);
    if (status != TUTTI_OK) printf("FAILED %s: %s\n", name, tutti_last_error());
    rdma_pair_close(pair);
    if (status == TUTTI_OK) printf("ok %s (%ld ms)\n", name, (long)((tutti_now_ns() - start) / TUTTI_NS_PER_MS));
    fflush(stdout);
    return status == TUTTI_OK;
}

int main(int argc, char **argv) {
    rdma_pair pair;
    int used = rdma_pair_read(&pair, argc, argv), failed = 0;
    pair.out = malloc(RDMA_CASE_BYTES + 1);
    pair.in = malloc(RDMA_CASE_BYTES + 1);
    if (used == 0 || pair.out == NULL || pair.in == NULL) {
        fprintf(stderr, "usage: test_rdma_pair serve PORT CASE... | join ADDRESS PORT CASE...\n");
        return 2;
    }
    alarm(100); /* nothing is left behind */
    tutti_fork_watch();
    for (int i = used; i < argc && failed == 0; i++) failed += !run_case(&pair, argv[i]);
    free(pair.in);
    free(pair.out);
    return failed > 0;
}
