/*
 * Shared by the cases of test_rdma_pair: messages with a pattern, and the table of cases.
 */
#ifndef TUTTI_TEST_RDMA_CASES_H
#define TUTTI_TEST_RDMA_CASES_H

#include "tests/support/links/rdma_pair.h"

#define RDMA_CASE_BYTES ((size_t)4 << 20) /* most bytes of a message */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return tutti_fail(TUTTI_ERR_DATA, __VA_ARGS__);                                              \
    } while (0)

typedef struct rdma_case {
    const char *name; /* NULL: the end of the table */
    tutti_status (*run)(rdma_pair *pair);
    bool opens; /* the pipe by itself */
} rdma_case;

/* test_rdma_pair_faults.c */
extern const rdma_case rdma_fault_cases[];
/* test_rdma_pair_sleep.c */
extern const rdma_case rdma_sleep_cases[];

void rdma_case_fill(unsigned char *bytes, size_t count, unsigned seed);
tutti_status rdma_case_compare(const unsigned char *bytes, size_t count, size_t from, unsigned seed);
const tutti_rdma_counters *rdma_case_counters(const rdma_pair *pair);
/* One message from one side to the other. */
tutti_status rdma_case_carry(rdma_pair *pair, bool sends, size_t bytes, unsigned seed);
/* One message in each direction, at once. */
tutti_status rdma_case_exchange(rdma_pair *pair, size_t send_bytes, size_t receive_bytes, unsigned seed);
/* Both directions at once, a thousand messages each, most of them small. */
tutti_status rdma_case_mixed(rdma_pair *pair);

#endif
