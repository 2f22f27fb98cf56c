/*
 * The ring into which a peer writes small messages, and the line with which it publishes its state. Plain memory:
 * nothing here depends on ibverbs.
 *
 *   line   | 60 bytes of data                                       | stamp |      64 bytes, aligned
 *   record | position, consumed, bytes | 44 bytes of payload        | stamp |      its first line
 *          | 60 bytes of payload                                    | stamp |      all others
 *
 * A record is written by one RDMA write, and the reader polls its memory. When can the reader trust what it sees? A
 * write's bytes may become visible in any order: adapters split it into packets, and these may overtake each other
 * on the bus. So a last byte, or a head and a tail, prove nothing about the bytes between them. But the bytes of
 * one aligned line of 64 bytes become visible at once, or from the first to the last: no adapter writes the end of
 * a line before its beginning. So each line is validated by the stamp at its end, and no order between lines is
 * needed. The stamp is the number of the lap around the ring, so it differs from what the line held before, and
 * nothing has to be cleared.
 *
 * Lines are counted from the pipe's opening (`line`, free running). A record does not wrap: one that begins near
 * the end continues into spare lines behind it, and the next record begins with the next lap. The writer keeps a
 * copy of the ring that is equal to what the peer's ring should hold; after a fault it writes the whole copy again,
 * which changes nothing that has arrived.
 *
 * Invariant: no line is written before the reader has announced that it has consumed the line's former content.
 */
#ifndef TUTTI_RDMA_RING_H
#define TUTTI_RDMA_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    TUTTI_RDMA_RING_LINE_BYTES = 64,
    TUTTI_RDMA_RING_LINES = 1024,        /* lines of a lap; a power of two */
    TUTTI_RDMA_RING_RECORD_BYTES = 8192, /* payload of a record, at most */
    TUTTI_RDMA_RING_FIRST_BYTES = 44,    /* payload in a record's first line */
    TUTTI_RDMA_RING_NEXT_BYTES = 60,
    TUTTI_RDMA_RING_RECORD_LINES = 1 +
        (TUTTI_RDMA_RING_RECORD_BYTES - TUTTI_RDMA_RING_FIRST_BYTES + TUTTI_RDMA_RING_NEXT_BYTES - 1) /
            TUTTI_RDMA_RING_NEXT_BYTES,
    TUTTI_RDMA_RING_ALL_LINES = TUTTI_RDMA_RING_LINES + TUTTI_RDMA_RING_RECORD_LINES
};

typedef struct tutti_rdma_ring_line {
    uint8_t data[TUTTI_RDMA_RING_NEXT_BYTES];
    uint32_t stamp;
} __attribute__((aligned(64))) tutti_rdma_ring_line;

/* The start of a record's first line. */
typedef struct tutti_rdma_ring_head {
    uint64_t position; /* position of its first byte in the stream */
    uint32_t consumed; /* lines of its own ring that the writer has consumed, modulo 2^32 */
    uint32_t bytes;
} tutti_rdma_ring_head;

/* The position of the next byte in the parts of a send. */
typedef struct tutti_rdma_parts {
    struct iovec part[4];
    int count, at;
    size_t offset; /* in part[at] */
} tutti_rdma_parts;

void tutti_rdma_parts_set(tutti_rdma_parts *parts, const struct iovec *list, int count);
/* Bytes left in the current part; advances to the next part that has any. 0: no more. */
size_t tutti_rdma_parts_left(tutti_rdma_parts *parts);
static inline const char *tutti_rdma_parts_here(const tutti_rdma_parts *parts) {
    return (const char *)parts->part[parts->at].iov_base + parts->offset;
}
/* Copies the next bytes, across part boundaries. */
void tutti_rdma_parts_take(tutti_rdma_parts *parts, void *dst, size_t bytes);

static inline uint32_t tutti_rdma_ring_lines_of(size_t bytes) {
    return bytes <= TUTTI_RDMA_RING_FIRST_BYTES
               ? 1
               : 1 + (uint32_t)((bytes - TUTTI_RDMA_RING_FIRST_BYTES + TUTTI_RDMA_RING_NEXT_BYTES - 1) /
                                TUTTI_RDMA_RING_NEXT_BYTES);
}
static inline uint32_t tutti_rdma_ring_slot(uint64_t line) {
    return (uint32_t)line & (TUTTI_RDMA_RING_LINES - 1);
}
/* Never 0, which the memory holds at first. */
static inline uint32_t tutti_rdma_ring_stamp(uint64_t line) {
    return (uint32_t)(line / TUTTI_RDMA_RING_LINES) + 1;
}
/* How much `line` advances over a record that begins there: lines behind the end of the lap are not counted. */
static inline uint32_t tutti_rdma_ring_step(uint64_t line, size_t bytes) {
    uint32_t lines = tutti_rdma_ring_lines_of(bytes), left = TUTTI_RDMA_RING_LINES - tutti_rdma_ring_slot(line);
    return lines < left ? lines : left;
}

/* Writes a record at its place in `ring`; takes head->bytes from parts. */
void tutti_rdma_ring_pack(tutti_rdma_ring_line *ring, uint64_t line, const tutti_rdma_ring_head *head,
                          tutti_rdma_parts *parts);
/* Returns whether the record at that line has begun to arrive. */
bool tutti_rdma_ring_look(const tutti_rdma_ring_line *ring, uint64_t line, tutti_rdma_ring_head *head_out);
/* Copies bytes [offset, offset + bytes) of that record's payload, as far as they have arrived; returns how many. */
size_t tutti_rdma_ring_unpack(const tutti_rdma_ring_line *ring, uint64_t line, size_t offset, void *dst, size_t bytes);

/* The line that publishes a peer's state. Always written whole: the last one counts, and a lost one does not matter. */
typedef struct tutti_rdma_ring_state {
    uint32_t first;         /* number of the state */
    uint32_t consumed;      /* lines of its ring that the writer has read, modulo 2^32 */
    uint64_t granted_at;    /* position in the stream from which on the writer requests bytes */
    uint64_t granted_bytes; /* how many bytes it requests */
    uint64_t address;       /* the address for them; 0: by the ring */
    uint32_t keys[4];       /* by lane */
    uint64_t waiting_at;    /* position from which on the writer has bytes to send, and waits for a grant */
    uint32_t sleeps;        /* times that the writer has gone to sleep */
    uint32_t last;          /* equal to `first`, unless the line is being written */
} __attribute__((aligned(64))) tutti_rdma_ring_state;

_Static_assert(sizeof(tutti_rdma_ring_line) == TUTTI_RDMA_RING_LINE_BYTES, "a line");
_Static_assert(sizeof(tutti_rdma_ring_state) == TUTTI_RDMA_RING_LINE_BYTES, "a line");

/* Reads a peer's state if it is newer than *state and whole. */
bool tutti_rdma_ring_read_state(const tutti_rdma_ring_state *shared, tutti_rdma_ring_state *state);

#endif
