/*
 * Messages with a pattern, between two processes.
 */
#include "tests/support/links/rdma_cases.h"

#include <string.h>

static unsigned char pattern(size_t i, unsigned seed) {
    return (unsigned char)(i * 7 + (i >> 8) + (i >> 16) * 3 + seed * 31);
}

void rdma_case_fill(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = pattern(i, seed);
}

tutti_status rdma_case_compare(const unsigned char *bytes, size_t count, size_t from, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        CHECK(bytes[i] == pattern(from + i, seed), "byte %zu of %zu is %u, not %u", i, count, bytes[i],
              pattern(from + i, seed));
    return TUTTI_OK;
}

const tutti_rdma_counters *rdma_case_counters(const rdma_pair *pair) {
    return tutti_verbs_counters(pair->pipe);
}

tutti_status rdma_case_carry(rdma_pair *pair, bool sends, size_t bytes, unsigned seed) {
    if (sends) {
        rdma_case_fill(pair->out, bytes, seed);
        return rdma_pair_send(pair, pair->out, bytes);
    }
    memset(pair->in, 0xee, bytes + 1);
    TUTTI_TRY(rdma_pair_recv(pair, pair->in, bytes));
    CHECK(pair->in[bytes] == 0xee, "a byte behind the %zu was written", bytes);
    return rdma_case_compare(pair->in, bytes, 0, seed);
}

tutti_status rdma_case_exchange(rdma_pair *pair, size_t send_bytes, size_t receive_bytes, unsigned seed) {
    struct iovec part = {.iov_base = pair->out, .iov_len = send_bytes};
    rdma_case_fill(pair->out, send_bytes, seed + pair->first);
    memset(pair->in, 0xee, receive_bytes + 1);
    TUTTI_TRY(tutti_verbs_transport.recv(pair->pipe, pair->in, receive_bytes));
    TUTTI_TRY(tutti_verbs_transport.send(pair->pipe, &part, 1));
    TUTTI_TRY(rdma_pair_finish(pair, 30000));
    CHECK(pair->in[receive_bytes] == 0xee, "a byte behind the %zu was written", receive_bytes);
    return rdma_case_compare(pair->in, receive_bytes, 0, seed + !pair->first);
}
