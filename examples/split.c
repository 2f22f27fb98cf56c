/*
 * Communicators of some of the ranks: the even ranks and the odd ranks each compute a sum of their own.
 *
 *   tuttirun -n 4 ./split
 */
#include <stdio.h>

#include <tutti/tutti.h>

/* Ranks of `half` count from 0. */
static tutti_status sum_in(tutti_comm *half, int rank) {
    int32_t sum = rank;
    TUTTI_TRY(tutti_all_reduce(half, &sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    if (tutti_comm_rank(half) == 0)
        printf("%s: %d ranks, sum %d\n", rank % 2 == 0 ? "even" : "odd", tutti_comm_size(half), sum);
    return TUTTI_OK;
}

static tutti_status run(void) {
    tutti_comm *world, *half;
    TUTTI_TRY(tutti_comm_create_world(&world));
    int rank = tutti_comm_rank(world), color = rank % 2, key = rank;
    tutti_status status = tutti_comm_split(world, color, key, &TUTTI_COMM_OPTIONS(.name = "half"), &half);
    if (status == TUTTI_OK) {
        status = sum_in(half, rank);
        tutti_comm_destroy(half);
    }
    tutti_comm_destroy(world);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "split: %s\n", tutti_last_error());
    return 1;
}
