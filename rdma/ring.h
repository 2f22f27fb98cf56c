/*
 * The ring into which a peer writes small messages, and the line by which it tells its state. Plain memory: nothing here
 * knows of ibverbs.
 *
 *   line   | 60 bytes of data                                       | stamp |      64 bytes, aligned
 *   record | position, consumed, bytes | 44 bytes of payload        | stamp |      its first line
 *          | 60 bytes of payload                                    | stamp |      all others
 *
 * A record is written by one RDMA write, and the reader polls its memory. When may it believe what it sees? A write's
 * bytes may become visible in any order: adapters split it into packets, and the bus may let these overtake each other.
 * So a last byte, or a head and a tail, prove nothing of what lies between. But what lies in one aligned line of 64 bytes
 * comes whole, or rises from its first byte to its last: no adapter writes the end of a line before its beginning. So each line
 * proves itself by the stamp at its end, and no order between lines is needed. The stamp is the number of the lap around the
 * ring, hence differs from what the line held before, and nothing has to be cleared.
 *
 * Lines are counted from the pipe's opening (`line`, free running). A record does not wrap: one that begins near the end
 * goes on into spare lines behind it, and the next one begins with the next lap. The writer keeps a copy of the ring that
 * looks as the peer's should; after a fault the whole copy is written again, which changes nothing that has arrived.
 *
 * Invariant: no line is written before the reader has told that it has consumed what it held.
 */
#ifndef TUTTI_RDMA_RING_H
#define TUTTI_RDMA_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    TUTTI_RDMA_RING_LINE_BYTES = 64,
    TUTTI_RDMA_RING_LINES = 1024,        /* of a lap; a power of two */
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

/* What a record's first line begins with. */
typedef struct tutti_rdma_ring_head {
    uint64_t position; /* of its first byte in the stream */
    uint32_t consumed; /* lines that its writer has consumed of its own ring, modulo 2^32 */
    uint32_t bytes;
} tutti_rdma_ring_head;

/* Where in the parts of a send the next byte is. */
typedef struct tutti_rdma_parts {
    struct iovec part[4];
    int count, at;
    size_t offset; /* in part[at] */
} tutti_rdma_parts;

void tutti_rdma_parts_set(tutti_rdma_parts *parts, const struct iovec *list, int count);
/* Bytes left in the part at hand; goes on to the next part that has any. 0: no more. */
size_t tutti_rdma_parts_left(tutti_rdma_parts *parts);
static inline const char *tutti_rdma_parts_here(const tutti_rdma_parts *parts) {
    return (const char *)parts->part[parts->at].iov_base + parts->offset;
}
/* Copies the next bytes, over parts' bounds. */
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
/* The memory holds 0 at first. */
static inline uint32_t tutti_rdma_ring_stamp(uint64_t line) {
    return (uint32_t)(line / TUTTI_RDMA_RING_LINES) + 1;
}
/* By how much `line` rises over a record that begins there: what lies behind the lap's end is not counted. */
static inline uint32_t tutti_rdma_ring_step(uint64_t line, size_t bytes) {
    uint32_t lines = tutti_rdma_ring_lines_of(bytes), left = TUTTI_RDMA_RING_LINES - tutti_rdma_ring_slot(line);
    return lines < left ? lines : left;
}

/* Writes a record at its place in `ring`; takes head->bytes from parts. */
void tutti_rdma_ring_pack(tutti_rdma_ring_line *ring, uint64_t line, const tutti_rdma_ring_head *head,
                          tutti_rdma_parts *parts);
/* Has the record there begun to arrive? */
bool tutti_rdma_ring_look(const tutti_rdma_ring_line *ring, uint64_t line, tutti_rdma_ring_head *head_out);
/* Copies bytes [offset, offset + bytes) of that record's payload, as far as they have arrived; says how many. */
size_t tutti_rdma_ring_unpack(const tutti_rdma_ring_line *ring, uint64_t line, size_t offset, void *dst, size_t bytes);

/* The line that tells a peer's state; always written whole, so that the last one says all, and a lost one does not matter. */
typedef struct tutti_rdma_ring_state {
    uint32_t first;         /* number of the state */
    uint32_t consumed;      /* lines of the ring that its writer has read, modulo 2^32 */
    uint64_t granted_at;    /* position in the stream from which on it asks for bytes, */
    uint64_t granted_bytes; /* so many of them, */
    uint64_t address;       /* to this address; 0: by the ring */
    uint32_t keys[4];       /* by lane */
    uint64_t waiting_at;    /* it has bytes to send from this position on, and waits to be asked */
    uint32_t sleeps;        /* times that its writer has gone to sleep */
    uint32_t last;          /* the same as `first`, else it is just being written */
} __attribute__((aligned(64))) tutti_rdma_ring_state;

_Static_assert(sizeof(tutti_rdma_ring_line) == TUTTI_RDMA_RING_LINE_BYTES, "a line");
_Static_assert(sizeof(tutti_rdma_ring_state) == TUTTI_RDMA_RING_LINE_BYTES, "a line");

/* Reads a peer's state if it is newer than *state and whole. */
bool tutti_rdma_ring_read_state(const tutti_rdma_ring_state *shared, tutti_rdma_ring_state *state);

#endif
