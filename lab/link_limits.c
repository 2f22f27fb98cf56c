/*
 * link_limits: the limits of one TCP connection between two hosts, as a reference for the other programs: round
 * trips, both ways at once and one way, per congestion control.
 *
 *   host A:  link_limits --listen [ADDRESS]
 *   host B:  link_limits ADDRESS [CONGESTION...]        prints the table; A ends with it
 *
 * B sends A an order, then both carry it out. A figure is the median over samples; for large sizes the best size of
 * pieces counts. Any process that reaches the port can give orders: do not use it in untrusted networks.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lab/peers/wire.h"

#define PORT       29601
#define PATIENT_MS 10000
#define MOST_BYTES ((size_t)256 << 20)
#define SAMPLES    9
#define SAMPLE_US  20000.0

/* The next measurement of both sides. */
typedef struct order {
    uint64_t there, back; /* bytes that B sends, and that A sends */
    uint64_t piece;
    uint32_t iterations; /* 0: no more orders */
    uint32_t in_turn;    /* A sends after it has received all; else both at once */
    uint32_t wait;
    char congestion[20];
} order;

static char *out_buffer, *in_buffer;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int move(int fd, const order *o, size_t send_bytes, size_t recv_bytes) {
    const wire_job job = {.src = out_buffer,
                          .dst = in_buffer,
                          .send_bytes = send_bytes,
                          .recv_bytes = recv_bytes,
                          .piece = o->piece,
                          .wait = (wire_wait)o->wait};
    return wire_exchange(fd, &job);
}

/* Passes an order over the connection; waits asleep. */
static int pass_order(int fd, order *o, int sends) {
    const wire_job job = {.src = o,
                          .dst = o,
                          .send_bytes = sends ? sizeof *o : 0,
                          .recv_bytes = sends ? 0 : sizeof *o,
                          .piece = sizeof *o,
                          .wait = WIRE_SLEEP};
    return wire_exchange(fd, &job);
}

/* ---------------------------------------------------------------------------------------------- host A */

static int check_order(order *o) {
    o->congestion[sizeof o->congestion - 1] = '\0';
    return o->there <= MOST_BYTES && o->back <= MOST_BYTES && o->piece > 0 && o->wait <= WIRE_SLEEP ? 0 : -1;
}

static int obey(int fd, const order *o) {
    for (uint32_t i = 0; i < o->iterations; i++) {
        if (o->in_turn && (move(fd, o, 0, o->there) != 0 || move(fd, o, o->back, 0) != 0)) return -1;
        if (!o->in_turn && move(fd, o, o->back, o->there) != 0) return -1;
    }
    return 0;
}

static int serve(const char *address) {
    int listener = wire_listen(address, PORT);
    int fd = listener >= 0 ? wire_accept(listener, NULL) : -1;
    for (order next; fd >= 0 && pass_order(fd, &next, 0) == 0;) {
        if (next.iterations == 0) return EXIT_SUCCESS;
        if (check_order(&next) != 0 || wire_set_congestion(fd, next.congestion) != 0 || obey(fd, &next) != 0) break;
    }
    return EXIT_FAILURE;
}

/* ---------------------------------------------------------------------------------------------- host B */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Mean time of an iteration in microseconds. Ends the program if the connection ends. */
static double time_order(int fd, order *o) {
    if (wire_set_congestion(fd, o->congestion) != 0 || pass_order(fd, o, 1) != 0) exit(EXIT_FAILURE);
    double start = now_us();
    for (uint32_t i = 0; i < o->iterations; i++) {
        int failed = o->in_turn ? move(fd, o, o->there, 0) | move(fd, o, 0, o->back) : move(fd, o, o->there, o->back);
        if (failed) exit(EXIT_FAILURE);
    }
    return (now_us() - start) / o->iterations;
}

static double measure(int fd, order o) {
    double times[SAMPLES];
    o.iterations = 4;
    double fit = SAMPLE_US / time_order(fd, &o);
    o.iterations = fit < 1 ? 1 : fit > 1000 ? 1000 : (uint32_t)fit;
    for (int i = 0; i < SAMPLES; i++) times[i] = time_order(fd, &o);
    qsort(times, SAMPLES, sizeof *times, by_value);
    return times[SAMPLES / 2];
}

/* Measures with the best size of pieces, which it stores in the order. */
static double measure_pieces(int fd, order *o) {
    double best = 0;
    uint64_t best_piece = 0;
    for (o->piece = (size_t)64 << 10; o->piece <= (size_t)1 << 20; o->piece *= 4) {
        double us = measure(fd, *o);
        if (best_piece == 0 || us < best) best = us, best_piece = o->piece;
        if (o->there <= o->piece) break;
    }
    o->piece = best_piece;
    return best;
}

static void print_times(int fd, const char *congestion) {
    static const size_t sizes[] = {8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, MOST_BYTES};
    order o = {.there = 8, .back = 8, .piece = 64, .in_turn = 1};
    snprintf(o.congestion, sizeof o.congestion, "%s", congestion);
    printf("congestion control %s\n", *congestion != '\0' ? congestion : "of the system");
    printf("  8 bytes to and fro, one way     %10.2f us spinning", measure(fd, o) / 2);
    o.wait = WIRE_SLEEP;
    printf("  %10.2f us sleeping\n", measure(fd, o) / 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        o = (order){.there = sizes[i], .back = sizes[i]};
        snprintf(o.congestion, sizeof o.congestion, "%s", congestion);
        double us = measure_pieces(fd, &o);
        printf("  %9zu bytes both ways at once %10.2f us  %8.3f GB/s each, pieces of %zu KiB\n", sizes[i], us,
               (double)sizes[i] / us * 1e-3, (size_t)o.piece >> 10);
        fflush(stdout);
    }
    o = (order){.there = MOST_BYTES, .back = 1, .in_turn = 1};
    snprintf(o.congestion, sizeof o.congestion, "%s", congestion);
    double us = measure_pieces(fd, &o);
    printf("  %9zu bytes one way           %10.2f us  %8.3f GB/s, pieces of %zu KiB\n", MOST_BYTES, us,
           (double)MOST_BYTES / us * 1e-3, (size_t)o.piece >> 10);
}

static int ask(const char *address, char **congestions) {
    int fd = wire_connect(address, PORT, PATIENT_MS, NULL);
    if (fd < 0) return EXIT_FAILURE;
    if (*congestions == NULL) print_times(fd, "");
    for (; *congestions != NULL; congestions++) print_times(fd, *congestions);
    return pass_order(fd, &(order){0}, 1) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: link_limits --listen [ADDRESS]            on one host\n"
               "       link_limits ADDRESS [CONGESTION...]       on the other one; ADDRESS is the first one's\n");
        return argc < 2 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    out_buffer = calloc(1, MOST_BYTES), in_buffer = malloc(MOST_BYTES);
    if (out_buffer == NULL || in_buffer == NULL) return EXIT_FAILURE;
    memset(in_buffer, 0, MOST_BYTES);
    memset(out_buffer, 1, MOST_BYTES);
    return strcmp(argv[1], "--listen") == 0 ? serve(argv[2]) : ask(argv[1], argv + 2);
}
