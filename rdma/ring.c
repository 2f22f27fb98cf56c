/*
 * Packing and reading records; see ring.h for the place of the stamps.
 */
#include "rdma/ring.h"

#include <string.h>

/* Orders reads after an adapter's writes before the stamp: on ARM, acquire does not cover devices. */
static inline void order_after_device(void) {
#if defined(__aarch64__)
    __asm__ volatile("dmb oshld" ::: "memory");
#elif defined(__SANITIZE_THREAD__)
    __sync_synchronize(); /* gcc's thread sanitizer does not support C11 fences, and warns */
#else
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

void tutti_rdma_parts_set(tutti_rdma_parts *parts, const struct iovec *list, int count) {
    memcpy(parts->part, list, (size_t)count * sizeof *list);
    parts->count = count;
    parts->at = 0;
    parts->offset = 0;
}

size_t tutti_rdma_parts_left(tutti_rdma_parts *parts) {
    while (parts->at < parts->count) {
        size_t left = parts->part[parts->at].iov_len - parts->offset;
        if (left > 0) return left;
        parts->at++;
        parts->offset = 0;
    }
    return 0;
}

void tutti_rdma_parts_take(tutti_rdma_parts *parts, void *dst, size_t bytes) {
    char *to = dst;
    while (bytes > 0) {
        size_t left = tutti_rdma_parts_left(parts), now = bytes < left ? bytes : left;
        memcpy(to, tutti_rdma_parts_here(parts), now);
        parts->offset += now;
        to += now;
        bytes -= now;
    }
}

/* tutti_rdma_parts_take for a whole line within one part: the compiler knows the length. */
static inline void take_line(tutti_rdma_parts *parts, uint8_t *dst) {
    const struct iovec *part = &parts->part[parts->at];
    if (parts->at < parts->count && part->iov_len - parts->offset >= TUTTI_RDMA_RING_NEXT_BYTES) {
        memcpy(dst, tutti_rdma_parts_here(parts), TUTTI_RDMA_RING_NEXT_BYTES);
        parts->offset += TUTTI_RDMA_RING_NEXT_BYTES;
    } else {
        tutti_rdma_parts_take(parts, dst, TUTTI_RDMA_RING_NEXT_BYTES);
    }
}

void tutti_rdma_ring_pack(tutti_rdma_ring_line *ring, uint64_t line, const tutti_rdma_ring_head *head,
                          tutti_rdma_parts *parts) {
    tutti_rdma_ring_line *at = ring + tutti_rdma_ring_slot(line);
    uint32_t stamp = tutti_rdma_ring_stamp(line);
    size_t left = head->bytes, now = left < TUTTI_RDMA_RING_FIRST_BYTES ? left : TUTTI_RDMA_RING_FIRST_BYTES;
    memcpy(at->data, head, sizeof *head);
    tutti_rdma_parts_take(parts, at->data + sizeof *head, now);
    at->stamp = stamp;
    for (left -= now; left > 0; left -= now) {
        at++;
        now = left < TUTTI_RDMA_RING_NEXT_BYTES ? left : TUTTI_RDMA_RING_NEXT_BYTES;
        if (now == TUTTI_RDMA_RING_NEXT_BYTES) take_line(parts, at->data);
        else tutti_rdma_parts_take(parts, at->data, now);
        at->stamp = stamp;
    }
}

bool tutti_rdma_ring_look(const tutti_rdma_ring_line *ring, uint64_t line, tutti_rdma_ring_head *head_out) {
    const tutti_rdma_ring_line *at = ring + tutti_rdma_ring_slot(line);
    if (__atomic_load_n(&at->stamp, __ATOMIC_RELAXED) != tutti_rdma_ring_stamp(line)) return false;
    order_after_device();
    memcpy(head_out, at->data, sizeof *head_out);
    return true;
}

size_t tutti_rdma_ring_unpack(const tutti_rdma_ring_line *ring, uint64_t line, size_t offset, void *dst, size_t bytes) {
    const tutti_rdma_ring_line *at = ring + tutti_rdma_ring_slot(line);
    uint32_t stamp = tutti_rdma_ring_stamp(line);
    char *to = dst;
    size_t skip = offset + sizeof(tutti_rdma_ring_head), left = bytes; /* the head is part of the first line's data */
    for (at += skip / TUTTI_RDMA_RING_NEXT_BYTES, skip %= TUTTI_RDMA_RING_NEXT_BYTES; left > 0; at++, skip = 0) {
        if (__atomic_load_n(&at->stamp, __ATOMIC_RELAXED) != stamp) break;
        order_after_device();
        size_t now = TUTTI_RDMA_RING_NEXT_BYTES - skip;
        if (now == TUTTI_RDMA_RING_NEXT_BYTES && left >= now) {
            memcpy(to, at->data, TUTTI_RDMA_RING_NEXT_BYTES);
        } else {
            if (now > left) now = left;
            memcpy(to, at->data + skip, now);
        }
        to += now;
        left -= now;
    }
    return bytes - left;
}

bool tutti_rdma_ring_read_state(const tutti_rdma_ring_state *shared, tutti_rdma_ring_state *state) {
    tutti_rdma_ring_state copy;
    /* The line is written from its beginning to its end, so it is read from its end to its beginning: if both
     * numbers are equal, all fields between them belong to one state. */
    uint32_t last = __atomic_load_n(&shared->last, __ATOMIC_RELAXED);
    if (last == state->last) return false;
    order_after_device();
    memcpy(&copy, shared, sizeof copy);
    order_after_device();
    if (__atomic_load_n(&shared->first, __ATOMIC_RELAXED) != last) return false;
    copy.first = copy.last = last;
    *state = copy;
    return true;
}
