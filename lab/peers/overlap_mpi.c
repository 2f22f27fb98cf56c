/*
 * MPI for bench/overlap: MPI_Iallreduce per bucket, MPI_Waitall at the end. Kinds: "plain", as programs usually do
 * it; "test", which calls MPI_Testall while it computes; "async", which is plain, but requests MPI's support of calls
 * from threads: an implementation's progress threads need it.
 */
#include <mpi.h>
#include <string.h>

#include "overlap.h"

#define MOST_REQUESTS 1024

static MPI_Request requests[MOST_REQUESTS];
static MPI_Status statuses[MOST_REQUESTS];
static int started;

static int start(int index, float *data, size_t count) {
    (void)index;
    if (started == MOST_REQUESTS) return 1;
    return MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[started++]);
}

static int progress(void) {
    int done;
    return started > 0 ? MPI_Testall(started, requests, &done, statuses) : 0;
}

static int finish(void) {
    int status = MPI_Waitall(started, requests, statuses);
    started = 0;
    return status;
}

int main(int argc, char **argv) {
    overlap_begin(argc, argv);
    const char *kind = overlap_kind(argc, argv);
    int level;
    MPI_Init_thread(&argc, &argv, strcmp(kind, "async") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    overlap_peer peer = {.start = start, .finish = finish};
    if (strcmp(kind, "test") == 0) peer.progress = progress;
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    int status = overlap_run(&peer, argc, argv);
    if (status != 0) MPI_Abort(MPI_COMM_WORLD, status); /* other ranks may be waiting */
    MPI_Finalize();
    return status;
}
