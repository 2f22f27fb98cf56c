/*
 * Two sums at the same time, and computation meanwhile.
 *
 *   tuttirun -n 4 ./async
 */
#include <stdio.h>

#include <tutti/tutti.h>

enum { COUNT = 1 << 20 };

static float a[COUNT], b[COUNT], c[COUNT]; /* the calls read and write a and b until their works have ended */

static tutti_status sum_both(tutti_comm *comm) {
    tutti_work *first = NULL, *second = NULL;
    TUTTI_TRY(tutti_all_reduce(comm, a, a, COUNT, TUTTI_FLOAT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &first)));
    tutti_status status =
        tutti_all_reduce(comm, b, b, COUNT, TUTTI_FLOAT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &second));

    for (int i = 0; i < COUNT; i++) c[i] = 0.5f * c[i] + 1;

    if (status == TUTTI_OK) status = tutti_work_wait(second, -1); /* works end in the order of the calls ... */
    if (status == TUTTI_OK) status = tutti_work_wait(first, -1);  /* ... and may be waited for in any */
    tutti_work_free(first);
    tutti_work_free(second);
    return status;
}

static tutti_status run(void) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    for (int i = 0; i < COUNT; i++) {
        a[i] = 1;
        b[i] = (float)rank;
        c[i] = 2;
    }
    tutti_status status = sum_both(comm);
    if (status == TUTTI_OK && rank == 0) printf("%d ranks: %g %g, meanwhile %g\n", nranks, a[0], b[COUNT - 1], c[0]);
    tutti_comm_destroy(comm);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "async: %s\n", tutti_last_error());
    return 1;
}
