/*
 * Not a library, but the limit for one between two hosts: bare TCP sockets move the bytes that a collective must move
 * over the network, and do nothing else. Results are wrong, and are not checked.
 *
 * Rank r of the first host and rank r of the second one (n ranks on each, ranks in blocks) have one connection. Bytes
 * that each sends for a vector of V bytes, if the ranks of a host do among themselves all that they can:
 *   all_reduce V / n; all_gather, reduce_scatter V / 2n; all_to_all V / 2; broadcast V / n one way; barrier 1
 * Pieces of three sizes take turns in the first operations on each size; the fastest size is then used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core.h"
#include "meeting.h"
#include "wire.h"

#define PORT       29600 /* the first port; there is one for each rank of a host */
#define WARM       6     /* operations of the core's warm-up, over which the trials are spread */
#define PATIENT_MS 20000

static const size_t pieces[] = {(size_t)64 << 10, (size_t)256 << 10, (size_t)1 << 20};
enum { PIECES = sizeof pieces / sizeof *pieces };

static int rank, size, connection;
static wire_wait wait_mode;

static struct {
    size_t count;
    int done;
    double ns[PIECES];
} trials;

static size_t choose_piece(void) {
    size_t best = 0;
    if (trials.done < WARM) return (size_t)trials.done % PIECES;
    for (size_t i = 1; i < PIECES; i++)
        if (trials.ns[i] < trials.ns[best]) best = i;
    return best;
}

static int move(const void *src, size_t send_bytes, void *dst, size_t recv_bytes) {
    size_t piece = choose_piece();
    double start = meeting_now_ns();
    const wire_job job = {.src = src,
                          .dst = dst,
                          .send_bytes = send_bytes,
                          .recv_bytes = recv_bytes,
                          .piece = pieces[piece],
                          .wait = wait_mode};
    int status = wire_exchange(connection, &job);
    if (trials.done < WARM) {
        double spent = meeting_now_ns() - start;
        if (trials.ns[piece] == 0 || spent < trials.ns[piece]) trials.ns[piece] = spent;
        trials.done++;
    }
    return status;
}

static int run(int collective, const float *src, float *dst, size_t count, int root) {
    size_t each = (size_t)size / 2, bytes = count * sizeof *src;
    int first = rank < size / 2;
    char byte = 0;
    if (count != trials.count) {
        trials.count = count;
        trials.done = 0;
        for (int i = 0; i < PIECES; i++) trials.ns[i] = 0;
    }
    switch (collective) {
    case CORE_ALL_REDUCE: return move(src, (bytes + each - 1) / each, dst, (bytes + each - 1) / each);
    case CORE_ALL_GATHER:
    case CORE_REDUCE_SCATTER: return move(src, bytes, dst, bytes);
    case CORE_ALL_TO_ALL: return move(src, bytes * each, dst, bytes * each);
    case CORE_BROADCAST:
        return first == (root < size / 2) ? move(dst, bytes / each, NULL, 0) : move(NULL, 0, dst, bytes / each);
    case CORE_BARRIER: return move(&byte, 1, &byte, 1);
    case CORE_PING_PONG:
        if (first && move(src, bytes, NULL, 0) != 0) return -1;
        if (move(NULL, 0, dst, bytes) != 0) return -1;
        return first ? 0 : move(src, bytes, NULL, 0);
    default: return -1;
    }
}

static int number_of(const char *name) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

/* The first host listens. */
static int meet(void) {
    const char *address = getenv("MASTER_ADDR");
    int rail = rank % (size / 2);
    if (rank >= size / 2) return wire_connect(address, PORT + rail, PATIENT_MS, NULL);
    int listener = wire_listen(address, PORT + rail);
    return listener >= 0 ? wire_accept(listener, NULL) : -1;
}

int main(int argc, char **argv) {
    core_start(argc, argv);
    rank = number_of("RANK"), size = number_of("WORLD_SIZE");
    if (size < 2 || size % 2 != 0) {
        fprintf(stderr, "sockets: needs an even number of ranks\n");
        return EXIT_FAILURE;
    }
    wait_mode = size > sysconf(_SC_NPROCESSORS_ONLN) ? WIRE_YIELD : WIRE_SPIN;
    connection = meet();
    core_peer peer = {.rank = rank, .size = size, .run = run};
    return connection >= 0 ? core_run(&peer, argc, argv) : EXIT_FAILURE;
}
