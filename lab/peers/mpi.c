/*
 * MPI for the comparison: one source for Open MPI and MPICH, compiled with the compiler wrapper of each.
 */
#include <mpi.h>

#include "core.h"

static int rank;

static int ping_pong(const float *src, float *dst, int count) {
    int other = rank ^ 1, status;
    if (rank % 2 == 0) {
        status = MPI_Send(src, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
        return status | MPI_Recv(dst, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    status = MPI_Recv(dst, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return status | MPI_Send(src, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
}

static int run(int collective, const float *src, float *dst, size_t elements, int root) {
    int count = (int)elements;
    const void *from = src == dst ? MPI_IN_PLACE : src;
    switch (collective) {
    case CORE_ALL_REDUCE: return MPI_Allreduce(from, dst, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case CORE_ALL_GATHER: return MPI_Allgather(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, MPI_COMM_WORLD);
    case CORE_REDUCE_SCATTER: return MPI_Reduce_scatter_block(from, dst, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case CORE_BROADCAST: return MPI_Bcast(dst, count, MPI_FLOAT, root, MPI_COMM_WORLD);
    case CORE_ALL_TO_ALL: return MPI_Alltoall(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, MPI_COMM_WORLD);
    case CORE_BARRIER: return MPI_Barrier(MPI_COMM_WORLD);
    case CORE_PING_PONG: return ping_pong(src, dst, count);
    case CORE_GATHER: return MPI_Gather(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, root, MPI_COMM_WORLD);
    case CORE_SCATTER: return MPI_Scatter(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, root, MPI_COMM_WORLD);
    default: return 1;
    }
}

int main(int argc, char **argv) {
    core_start(argc, argv);
    core_peer peer = {.run = run};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    rank = peer.rank;
    int status = core_run(&peer, argc, argv);
    if (status != 0) MPI_Abort(MPI_COMM_WORLD, status); /* other ranks may be waiting */
    MPI_Finalize();
    return status;
}
