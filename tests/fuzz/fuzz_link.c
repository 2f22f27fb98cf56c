/*
 * What comes on a link: records, data, last words, in pieces of any size. The first byte says what is received; the next one
 * in what pieces the rest comes. Whatever it is, the call ends, and writes nowhere but into its buffer.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/arena.h"
#include "comm/link_state.h"
#include "tests/fuzz/fuzz.h"

#define MOST_BYTES 20000

/* A pipe that gives what is in the input, then ends. */
typedef struct canned_pipe {
    tutti_pipe pipe; /* first */
    const uint8_t *next;
    size_t left, piece;
    char *dst;
} canned_pipe;

static tutti_status canned_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    pipe->to_send = 0;
    for (int i = 0; i < nparts; i++) pipe->to_send += parts[i].iov_len;
    pipe->sent = pipe->to_send;
    return TUTTI_OK;
}

static tutti_status canned_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    ((canned_pipe *)pipe)->dst = dst;
    pipe->to_receive = bytes;
    pipe->received = 0;
    return pipe->status;
}

static tutti_status canned_progress(tutti_pipe *pipe) {
    canned_pipe *canned = (canned_pipe *)pipe;
    size_t bytes = tutti_min_size(pipe->to_receive - pipe->received, tutti_min_size(canned->left, canned->piece));
    if (tutti_pipe_has_received(pipe)) return pipe->status;
    if (bytes == 0) return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED, "the end");
    memcpy(canned->dst + pipe->received, canned->next, bytes);
    canned->next += bytes;
    canned->left -= bytes;
    pipe->received += bytes;
    pipe->bytes_in += bytes;
    return TUTTI_OK;
}

static int canned_sleep_on(tutti_pipe *pipe, short *events_out) {
    (void)pipe;
    *events_out = 0;
    return -1;
}

static void canned_cancel(tutti_pipe *pipe) {
    pipe->to_send = pipe->sent = pipe->to_receive = pipe->received = 0;
}

static void canned_close(tutti_pipe *pipe) {
    (void)pipe;
}

static const tutti_transport canned_transport = {.name = "canned",
                                                 .send = canned_send,
                                                 .recv = canned_recv,
                                                 .progress = canned_progress,
                                                 .sleep_on = canned_sleep_on,
                                                 .cancel = canned_cancel,
                                                 .close = canned_close};

static const size_t lengths[] = {0, 1, 40, 4096, 4097, MOST_BYTES};

static tutti_op example_op(void) {
    return (tutti_op){.kind = TUTTI_KIND_ALL_GATHER, .type = TUTTI_UINT8, .count = 5, .signature = 7, .sequence = 3};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static tutti_page page;
    if (bytes < 2) return 0;
    tutti_comm comm = {.rank = 0, .nranks = 2, .id = 1, .name = "fuzz", .timeout_ms = 1000, .page = &page};
    canned_pipe canned = {
        .pipe = {.transport = &canned_transport}, .next = data + 2, .left = bytes - 2, .piece = 1 + data[1]};
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
    /* 22 * 6 has the bit that folds, and leaves the length as it is. */
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
