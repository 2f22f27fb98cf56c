/*
 * Bytes received on a link: records, data, last words, in pieces of any size. The first byte selects the receiving
 * call, the next one the size of the pieces. For any input the call ends, and writes only to its buffer.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/net/link_state.h"
#include "comm/shm/flags.h"
#include "tests/fuzz/canned.h"
#include "tests/fuzz/fuzz.h"

#define MOST_BYTES 20000

static const size_t lengths[] = {0, 1, 40, 4096, 4097, MOST_BYTES};

static tutti_op example_op(void) {
    return (tutti_op){.kind = TUTTI_KIND_ALL_GATHER, .type = TUTTI_UINT8, .count = 5, .signature = 7, .sequence = 3};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static tutti_page page;
    if (bytes < 2) return 0;
    tutti_comm comm = {.rank = 0, .nranks = 2, .id = 1, .name = "fuzz", .timeout_ms = 1000, .page = &page};
    canned_pipe canned = canned_of(data + 2, bytes - 2, 1 + (size_t)data[1]);
    tutti_op op = example_op();
    int ranks[2] = {0, 1};
    tutti_rail rail = {.comm = &comm, .op = &op, .n = 2, .me = 0, .ranks = ranks};
    size_t length = lengths[data[0] % TUTTI_COUNT_OF(lengths)];
    char *dst = malloc(length + 1);
    dst[length] = 'e';
    memset(&page, 0, sizeof page);
    if (tutti_link_adopt(&comm, 1, &canned.pipe) != TUTTI_OK) abort();
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 5 && status == TUTTI_OK; i++)
        status = data[0] & 0x80 ? tutti_link_recv_reduce(&rail, 1, dst, length, (tutti_fold){TUTTI_UINT8, TUTTI_BXOR})
                                : tutti_link_recv(&rail, 1, dst, length);
    if (dst[length] != 'e') abort();
    if (status != TUTTI_OK && tutti_comm_check(&comm) == TUTTI_OK) abort(); /* a failure breaks the communicator */
    tutti_link_close_all(&comm);
    free(dst);
    return 0;
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    tutti_op op = example_op();
    int nlengths = (int)TUTTI_COUNT_OF(lengths);
    if (index >= 3 * nlengths) return 0;
    size_t length = lengths[index % nlengths];
    tutti_link_record record = tutti_link_record_of(&op, length);
    if (2 * (sizeof record + length) + 2 > capacity) return 0;
    uint8_t *at = data;
    /* 22 * 6 has the bit that selects a reduction, and does not change the length. */
    *at++ = (uint8_t)(index % nlengths + (index / nlengths == 1 ? 22 * nlengths : 0));
    *at++ = (uint8_t)(37 * index);
    if (index / nlengths == 2) { /* last words */
        record.signature = TUTTI_SIGNATURE_BROKEN;
        record.status = TUTTI_ERR_ABORTED;
        record.reason_bytes = 1 + (uint32_t)tutti_min_size(length, 900);
        length = record.reason_bytes;
    }
    for (int i = 0; i < 2; i++) {
        memcpy(at, &record, sizeof record);
        memset(at + sizeof record, 'r', length);
        at += sizeof record + length;
    }
    return (size_t)(at - data);
}
