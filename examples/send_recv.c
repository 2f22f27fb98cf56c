/*
 * Messages: a number goes round the ring of ranks, then rank 0 receives one from each of the others, in order of
 * arrival.
 *
 *   tuttirun -n 4 ./send_recv
 */
#include <stdio.h>

#include <tutti/tutti.h>

enum { RING = 1, REPORT = 2 }; /* tags */

/* Each rank adds its own number. */
static tutti_status go_round(tutti_comm *comm, int rank, int nranks) {
    int32_t sum = 0;
    int next = (rank + 1) % nranks, previous = (rank + nranks - 1) % nranks;
    if (rank > 0) TUTTI_TRY(tutti_recv(comm, &sum, 1, TUTTI_INT32, previous, RING, NULL));
    sum += rank;
    TUTTI_TRY(tutti_send(comm, &sum, 1, TUTTI_INT32, next, RING, NULL));
    if (rank > 0) return TUTTI_OK;
    TUTTI_TRY(tutti_recv(comm, &sum, 1, TUTTI_INT32, previous, RING, NULL));
    printf("round the ring of %d ranks: %d\n", nranks, sum);
    return TUTTI_OK;
}

/* Rank r sends r numbers; the receiver learns afterwards from which rank they came, and how many. */
static tutti_status report(tutti_comm *comm, int rank, int nranks) {
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t received = 0;
    if (rank > 0) return tutti_send(comm, values, rank < 8 ? (size_t)rank : 8, TUTTI_FLOAT64, 0, REPORT, NULL);
    for (int i = 1; i < nranks; i++) {
        tutti_received came;
        TUTTI_TRY(
            tutti_recv(comm, values, 8, TUTTI_FLOAT64, TUTTI_ANY_SOURCE, REPORT, &TUTTI_OPTIONS(.received = &came)));
        if (came.count != (size_t)(came.source < 8 ? came.source : 8))
            return tutti_fail(TUTTI_ERR_DATA, "rank %d sent %zu numbers", came.source, came.count);
        received += came.count;
    }
    printf("from the others: %zu numbers\n", received);
    return TUTTI_OK;
}

static tutti_status run(void) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    tutti_status status = go_round(comm, rank, nranks);
    if (status == TUTTI_OK) status = report(comm, rank, nranks);
    tutti_comm_destroy(comm);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "send_recv: %s\n", tutti_last_error());
    return 1;
}
