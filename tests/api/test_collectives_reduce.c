/*
 * Collectives that reduce, against the reference: every type with every reduction, bit for bit.
 */
#include <criterion/criterion.h>

#include "tests/support/sweep.h"

Test(collectives_reduce, all_reduce_equals_the_sum_in_rank_order) {
    const char *failure = sweep_run(CALL_ALL_REDUCE);
    cr_assert(failure == NULL, "%s", failure);
}

Test(collectives_reduce, reduce_gives_the_sum_in_rank_order_to_the_root) {
    const char *failure = sweep_run(CALL_REDUCE);
    cr_assert(failure == NULL, "%s", failure);
}

Test(collectives_reduce, reduce_scatter_gives_each_rank_its_slice) {
    const char *failure = sweep_run(CALL_REDUCE_SCATTER);
    cr_assert(failure == NULL, "%s", failure);
}

Test(collectives_reduce, reduce_scatter_v_takes_separate_buffers_of_different_counts) {
    const char *failure = sweep_run(CALL_REDUCE_SCATTER_V);
    cr_assert(failure == NULL, "%s", failure);
}
