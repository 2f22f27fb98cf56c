/*
 * waiting_perf: the processor time that ranks spend while they wait for a rank that computes.
 *
 *   tuttirun --nproc_per_node N waiting_perf [SECONDS]
 *
 * The last rank computes for SECONDS (by default 1); all others are in a call that needs it. The program measures the
 * time that each waiting process spends on cores, from 10 ms after the call began until it returns, and prints it in
 * per cent of one core: the mean and the maximum over ranks.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tutti/tutti.h>

enum { LARGE_COUNT = 1 << 18 };
#define SETTLE_NS 10000000L

static float *data;

static int last_of(const tutti_comm *comm) {
    return tutti_comm_size(comm) - 1;
}

static tutti_status meet(tutti_comm *comm) {
    return tutti_barrier(comm, NULL);
}

static tutti_status sum_few(tutti_comm *comm) {
    return tutti_all_reduce(comm, data, data, 2, TUTTI_FLOAT32, TUTTI_SUM, NULL);
}

static tutti_status sum_many(tutti_comm *comm) {
    return tutti_all_reduce(comm, data, data, LARGE_COUNT, TUTTI_FLOAT32, TUTTI_SUM, NULL);
}

static tutti_status spread(tutti_comm *comm) {
    return tutti_broadcast(comm, data, 2, TUTTI_FLOAT32, last_of(comm), NULL);
}

static tutti_status receive(tutti_comm *comm) {
    if (tutti_comm_rank(comm) != last_of(comm)) return tutti_recv(comm, data, 2, TUTTI_FLOAT32, last_of(comm), 0, NULL);
    for (int rank = 0; rank < last_of(comm); rank++) TUTTI_TRY(tutti_send(comm, data, 2, TUTTI_FLOAT32, rank, 0, NULL));
    return TUTTI_OK;
}

static tutti_status wait_asynchronously(tutti_comm *comm) {
    tutti_work *work;
    TUTTI_TRY(tutti_all_reduce(comm, data, data, 2, TUTTI_FLOAT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status;
}

static const struct {
    const char *name;
    tutti_status (*call)(tutti_comm *comm);
} rows[] = {
    {"barrier", meet},          {"all_reduce, 8 B", sum_few}, {"all_reduce, 1 MiB", sum_many},
    {"broadcast, 8 B", spread}, {"recv, 8 B", receive},       {"all_reduce, 8 B, and wait", wait_asynchronously}};

static double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

typedef struct sample {
    double wall, cores; /* seconds */
} sample;

static sample take_sample(void) {
    return (sample){.wall = seconds_of(CLOCK_MONOTONIC), .cores = seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
}

/* Runs on a thread of its own: takes the first sample when the wait has settled. */
static void *settle(void *first_out) {
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
    *(sample *)first_out = take_sample();
    return NULL;
}

static void compute(double seconds) {
    double end = seconds_of(CLOCK_MONOTONIC) + seconds;
    while (seconds_of(CLOCK_MONOTONIC) < end) continue;
}

/* Returns the per cent of a core that a waiting rank uses. */
static tutti_status measure(tutti_comm *comm, tutti_status (*call)(tutti_comm *comm), double seconds,
                            double *burnt_out) {
    sample first;
    pthread_t thread;
    bool waits = tutti_comm_rank(comm) != last_of(comm);
    TUTTI_TRY(tutti_barrier(comm, NULL));
    if (!waits) compute(seconds);
    else if (pthread_create(&thread, NULL, settle, &first) != 0) exit(EXIT_FAILURE);
    tutti_status status = call(comm);
    sample end = take_sample();
    if (waits) pthread_join(thread, NULL);
    *burnt_out = waits ? 100 * (end.cores - first.cores) / (end.wall - first.wall) : 0;
    return status;
}

static tutti_status run(double seconds) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    if (last_of(comm) == 0) {
        tutti_comm_destroy(comm);
        fprintf(stderr, "waiting_perf: 1 rank has nothing to wait for; start at least 2: tuttirun --nproc_per_node 2 "
                        "waiting_perf\n");
        exit(2);
    }
    bool shows = tutti_comm_rank(comm) == 0;
    int waiters = last_of(comm);
    tutti_status status = TUTTI_OK;
    if (shows)
        printf("# %d ranks wait for one; per cent of a core, from 10 ms on\n# %-28s %8s %8s\n", waiters, "in", "mean",
               "most");
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == TUTTI_OK; i++) {
        double burnt, sum, most;
        status = measure(comm, rows[i].call, seconds, &burnt);
        if (status == TUTTI_OK) status = tutti_reduce(comm, &burnt, &sum, 1, TUTTI_FLOAT64, TUTTI_SUM, 0, NULL);
        if (status == TUTTI_OK) status = tutti_reduce(comm, &burnt, &most, 1, TUTTI_FLOAT64, TUTTI_MAX, 0, NULL);
        if (status == TUTTI_OK && shows) printf("  %-28s %8.2f %8.2f\n", rows[i].name, sum / waiters, most);
    }
    tutti_comm_destroy(comm);
    return status;
}

int main(int argc, char **argv) {
    char *end = "";
    double seconds = argc > 1 ? strtod(argv[1], &end) : 1;
    if (argc > 2 || *end != '\0' || !(seconds >= 0.1 && seconds <= 60)) {
        fprintf(stderr,
                "usage: tuttirun --nproc_per_node N waiting_perf [SECONDS], N at least 2, SECONDS from 0.1 to 60\n");
        return 2;
    }
    data = calloc(LARGE_COUNT, sizeof *data);
    if (data != NULL && run(seconds) == TUTTI_OK) return EXIT_SUCCESS;
    fprintf(stderr, "waiting_perf: %s\n", data == NULL ? "no memory" : tutti_last_error());
    return EXIT_FAILURE;
}
