/*
 * Collectives that move data, against the reference: every type by its bytes, counts 0 and NULL pointers included.
 */
#include <criterion/criterion.h>

#include "tests/support/sweep.h"

#define SWEEP_TEST(name, kind)                                                                                         \
    Test(collectives_move, name) {                                                                                     \
        const char *failure = sweep_run(kind);                                                                         \
        cr_assert(failure == NULL, "%s", failure);                                                                     \
    }

SWEEP_TEST(broadcast_gives_the_roots_data_to_all, CALL_BROADCAST)
SWEEP_TEST(all_gather_puts_the_ranks_data_in_rank_order, CALL_ALL_GATHER)
SWEEP_TEST(all_to_all_exchanges_each_slice_with_its_rank, CALL_ALL_TO_ALL)
SWEEP_TEST(gather_puts_the_ranks_data_in_order_on_the_root, CALL_GATHER)
SWEEP_TEST(scatter_gives_each_rank_its_slice_of_the_roots_data, CALL_SCATTER)
SWEEP_TEST(barrier_takes_every_rank, CALL_BARRIER)
SWEEP_TEST(all_gather_v_takes_separate_buffers_of_different_counts, CALL_ALL_GATHER_V)
SWEEP_TEST(all_to_all_v_takes_separate_buffers_of_different_counts, CALL_ALL_TO_ALL_V)
SWEEP_TEST(gather_v_takes_separate_buffers_of_different_counts, CALL_GATHER_V)
SWEEP_TEST(scatter_v_takes_separate_buffers_of_different_counts, CALL_SCATTER_V)
