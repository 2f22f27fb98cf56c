/*
 * Memory that the ranks of a host share: collectives on it skip a copy, all_reduce in place most of all.
 *
 *   tuttirun -n 4 ./mem_alloc
 *
 * The calls are the same as for any other memory; only where it comes from differs.
 */
#include <stdio.h>

#include <tutti/tutti.h>

enum { COUNT = 1 << 20 };

static tutti_status run(void) {
    tutti_comm *comm;
    void *memory = NULL;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    tutti_status status = tutti_mem_alloc(COUNT * sizeof(float), &memory);
    float *values = memory;
    if (status == TUTTI_OK) {
        for (int i = 0; i < COUNT; i++) values[i] = (float)(rank + 1);
        status = tutti_all_reduce(comm, values, values, COUNT, TUTTI_FLOAT32, TUTTI_AVG, NULL);
    }
    if (status == TUTTI_OK && rank == 0) printf("%d ranks: mean %g\n", nranks, values[COUNT - 1]);
    tutti_mem_free(memory);
    tutti_comm_destroy(comm);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "mem_alloc: %s\n", tutti_last_error());
    return 1;
}
