/*
 * Barrier by dissemination: in step k each rank sends a byte to the rank 2^k after it and waits for one from the
 * rank 2^k before it. After log2(n) steps, rounded up, all have arrived, since the sender in step k has heard,
 * directly or indirectly, from 2^k ranks.
 *
 * Source: Hensgen, Finkel, Manber: Two algorithms for barrier synchronization (1988).
 */
#include "comm/net/coll/rail_call.h"

tutti_status tutti_dissemination_barrier(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    for (int distance = 1; distance < rail->n; distance *= 2) {
        const char sent = 1;
        char received;
        TUTTI_TRY(tutti_link_exchange(rail, tutti_rail_next(call, rail->me, distance), &sent, 1,
                                      tutti_rail_next(call, rail->me, -distance), &received, 1));
    }
    return TUTTI_OK;
}
