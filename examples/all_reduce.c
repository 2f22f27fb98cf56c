/*
 * Every rank contributes its number; all get the sum.
 *
 *   tuttirun --nproc_per_node 4 ./all_reduce
 */
#include <stdio.h>

#include <tutti/tutti.h>

static tutti_status run(void) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);

    float sums[4] = {1, 10, 100, rank + 1.0f};
    tutti_status status = tutti_all_reduce(comm, sums, sums, 4, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    if (status == TUTTI_OK && rank == 0) printf("%d ranks: %g %g %g %g\n", nranks, sums[0], sums[1], sums[2], sums[3]);
    tutti_comm_destroy(comm);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "all_reduce: %s\n", tutti_last_error());
    return 1;
}
