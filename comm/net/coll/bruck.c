/*
 * Bruck's algorithms: log2(n) steps, rounded up, for short blocks, of which several share a message.
 *
 *   all_gather   a rank collects the blocks of me, me+1, me+2, ... in this order; in the step with distance d it sends
 *                all it has (at most what is still missing) to me-d and receives as much from me+d
 *   all_to_all   the block for rank me+i is kept in slot i; in the step with distance d all slots with bit d in their
 *                number are sent to me+d. So a block that has i ranks to go moves once per set bit of i: log2(n) / 2
 *                times, on average
 *
 * Source: Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in multiport
 * message-passing systems (1997).
 */
#include "comm/net/coll/rail_call.h"

/* `bytes`: size of the largest block. */
size_t tutti_bruck_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)piece_bytes;
    size_t all = tutti_rail_room((size_t)n * bytes);
    return 3 * all;
}

/* Bytes of `count` blocks, beginning with that of `first`, around the ring. */
static size_t bytes_of(const tutti_rail_call *call, int first, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += call->receives[tutti_rail_next(call, first, i)].bytes;
    return bytes;
}

tutti_status tutti_bruck_all_gather(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    int n = rail->n, me = rail->me;
    char *collected = tutti_rail_take(call, (size_t)n * call->bytes);
    size_t collected_bytes = call->receives[me].bytes;
    tutti_rail_copy(collected, call->receives[me].data, collected_bytes);
    for (int distance = 1; distance < n; distance *= 2) {
        int to = tutti_rail_next(call, me, -distance), from = tutti_rail_next(call, me, distance);
        int count = distance < n - distance ? distance : n - distance;
        size_t in_bytes = bytes_of(call, from, count);
        TUTTI_TRY(tutti_link_exchange(rail, to, collected, bytes_of(call, me, count), from, collected + collected_bytes,
                                      in_bytes));
        collected_bytes += in_bytes;
    }
    const char *next = collected + call->receives[me].bytes;
    for (int i = 1; i < n; i++) {
        int rank = tutti_rail_next(call, me, i);
        tutti_rail_copy(call->receives[rank].data, next, call->receives[rank].bytes);
        next += call->receives[rank].bytes;
    }
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------------- all_to_all */

/* Copies the slots with bit `distance` to `packed`, or back; returns their bytes. */
static size_t pack(int n, int distance, char *slots, char *packed, size_t bytes, bool back) {
    size_t used = 0;
    for (int slot = distance; slot < n; slot++) {
        if ((slot & distance) == 0) continue;
        char *waits = slots + (size_t)slot * bytes;
        tutti_rail_copy(back ? waits : packed + used, back ? packed + used : waits, bytes);
        used += bytes;
    }
    return used;
}

tutti_status tutti_bruck_all_to_all(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    int n = rail->n, me = rail->me;
    size_t bytes = call->bytes;
    char *slots = tutti_rail_take(call, (size_t)n * bytes), *sent = tutti_rail_take(call, (size_t)n * bytes);
    char *received = tutti_rail_take(call, (size_t)n * bytes);
    for (int i = 1; i < n; i++)
        tutti_rail_copy(slots + (size_t)i * bytes, call->sends[tutti_rail_next(call, me, i)].data, bytes);
    for (int distance = 1; distance < n; distance *= 2) {
        size_t moved = pack(n, distance, slots, sent, bytes, false);
        TUTTI_TRY(tutti_link_exchange(rail, tutti_rail_next(call, me, distance), sent, moved,
                                      tutti_rail_next(call, me, -distance), received, moved));
        pack(n, distance, slots, received, bytes, true);
    }
    /* The block in slot i now comes from the rank i before this one. */
    for (int i = 1; i < n; i++)
        tutti_rail_copy(call->receives[tutti_rail_next(call, me, -i)].data, slots + (size_t)i * bytes, bytes);
    return TUTTI_OK;
}
