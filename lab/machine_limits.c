/*
 * machine_limits: the limits of this machine, as a reference for the other programs. In one run: bandwidth of
 * copying, through the caches and past them, and of adding per level of cache, by one core and by all at once; the
 * transfer time of a cache line between two cores, a task switch, a wake-up; with more processes than cores, a barrier,
 * and a word that they pass on in turn.
 *
 * All cores at once: a thread on each, with its own memory; their total work in the time of the slowest. Measurements
 * with two sides run a second thread on another core (or, for the switch, on the same one). The figure is the best of
 * several rounds: a disturbance makes a round slower, never faster.
 *
 * With --line it prints only the transfer time of a cache line between the first two cores, in ns: programs that
 * measure something else ask for it before and after, since virtual cores move.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/copy.h"
#include "kernels/reduce.h"

#define ROUNDS     5
#define LINE       64
#define PAGE       ((size_t)4096)
#define MOST_CORES 256

enum { MOST_PROCESSES = 256 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --------------------------------------------------------------------------------------------- cores */

static int cores[MOST_CORES]; /* cores that this process may use */
static int core_count;

static void find_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int core = 0; core < CPU_SETSIZE && core_count < MOST_CORES; core++)
        if (CPU_ISSET(core, &set)) cores[core_count++] = core;
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ----------------------------------------------------------------------------------------- bandwidth */

static void copy(float *dst, const float *a, const float *b, size_t count) {
    (void)b;
    memcpy(dst, a, count * sizeof *dst);
}

static void copy_past(float *dst, const float *a, const float *b, size_t count) {
    (void)b;
    tutti_copy_stream(dst, a, count * sizeof *dst);
}

/* The library's own loop for this processor's instruction set. */
static void add(float *dst, const float *a, const float *b, size_t count) {
    const void *const srcs[] = {a, b};
    tutti_reduce_host(&(tutti_reduce_args){
        .dst = dst, .srcs = srcs, .nsrcs = 2, .count = count, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM});
}

typedef void (*kernel)(float *dst, const float *a, const float *b, size_t count);

/* Threads that do the same work at the same time, each in its own memory. */
typedef struct team {
    kernel run;
    size_t count, repeats; /* elements of a buffer; number of writes of a buffer per round */
    int threads;
    _Alignas(LINE) int arrived; /* calls of line_up() by all threads together */
    _Alignas(LINE) double seconds[ROUNDS + 1][MOST_CORES];
} team;

typedef struct member {
    team *team;
    int index;
    float *memory;
    pthread_t thread;
} member;

static void line_up(team *t, int times) {
    __atomic_fetch_add(&t->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&t->arrived, __ATOMIC_ACQUIRE) < times * t->threads) relax();
}

static void *work(void *context) {
    const member *m = context;
    team *t = m->team;
    pin(cores[m->index]);
    for (int round = 0; round <= ROUNDS; round++) {
        line_up(t, round + 1);
        double start = now_s();
        for (size_t i = 0; i < t->repeats; i++) {
            t->run(m->memory, m->memory + t->count, m->memory + 2 * t->count, t->count);
            __asm__ volatile("" : : "r"(m->memory) : "memory"); /* no repetition may be optimized away */
        }
        t->seconds[round][m->index] = now_s() - start;
    }
    return NULL;
}

/* Bytes of result per second, in GB/s, of all threads together. */
static double best_rate(const team *t) {
    double best = 0;
    for (int round = 1; round <= ROUNDS; round++) { /* the first one warms up */
        double slowest = 0;
        for (int i = 0; i < t->threads; i++)
            if (t->seconds[round][i] > slowest) slowest = t->seconds[round][i];
        double bytes = (double)(t->repeats * t->count * sizeof(float)) * t->threads;
        if (bytes / slowest * 1e-9 > best) best = bytes / slowest * 1e-9;
    }
    return best;
}

/* `working_set`: bytes of all `nbuffers` buffers of a thread. */
static double bandwidth(kernel run, int nbuffers, size_t working_set, member *members, int threads) {
    static team t;
    t = (team){.run = run, .threads = threads};
    t.count = working_set / (size_t)nbuffers / LINE * LINE / sizeof(float);
    t.repeats = ((size_t)32 << 20) / (t.count * sizeof(float)) + 1;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    for (int i = 0; i < threads; i++) members[i].team = &t, members[i].index = i;
    for (int i = 1; i < threads; i++) {
        if (pthread_create(&members[i].thread, NULL, work, &members[i]) == 0) continue;
        fprintf(stderr, "machine_limits: cannot start %d threads\n",
                threads); /* the running threads would wait forever */
        exit(EXIT_FAILURE);
    }
    work(&members[0]);
    for (int i = 1; i < threads; i++) pthread_join(members[i].thread, NULL);
    sched_setaffinity(0, sizeof before, &before);
    return best_rate(&t);
}

static void print_bandwidth(const char *level, size_t cache, size_t working_set, int threads) {
    member members[MOST_CORES] = {{.memory = NULL}};
    size_t bytes = (working_set + 4 * PAGE) / PAGE * PAGE;
    bool there = working_set >= 64 * LINE;
    for (int i = 0; i < threads && there; i++) {
        members[i].memory = aligned_alloc(PAGE, bytes);
        there = members[i].memory != NULL;
        if (there) memset(members[i].memory, 0, bytes);
    }
    if (there)
        printf("%-8s  %10zu  %10zu  %10.1f  %10.1f  %10.1f\n", level, cache / 1024, working_set / 1024,
               bandwidth(copy, 2, working_set, members, threads),
               bandwidth(copy_past, 2, working_set, members, threads),
               bandwidth(add, 3, working_set, members, threads));
    for (int i = 0; i < threads; i++) free(members[i].memory);
}

/* The first word of a file of core 0's cache description; "" if the system does not provide it. */
#define CACHE_TEXT 64 /* bytes of a word */
static void read_cache(int index, const char *name, char text_out[CACHE_TEXT]) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    text_out[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    if (fscanf(file, "%63s", text_out) != 1) text_out[0] = '\0';
    fclose(file);
}

/* The number of this process's cores that are named in a list like 0-3,8. */
static int count_listed(const char *list) {
    int found = 0;
    for (const char *text = list; *text != '\0';) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (int i = 0; i < core_count; i++) found += cores[i] >= first && cores[i] <= last;
        if (*end != ',') break;
        text = end + 1;
    }
    return found > 0 ? found : 1;
}

typedef struct cache {
    size_t bytes; /* 0: there is none */
    int sharers;  /* this process's cores that share the cache */
} cache;

/* Core 0's data cache of a level. In virtual machines sysconf() reports the whole chip's. */
static cache find_cache(int level) {
    char text[CACHE_TEXT];
    for (int index = 0; index < 8; index++) {
        read_cache(index, "level", text);
        if (atoi(text) != level) continue;
        read_cache(index, "type", text);
        if (strcmp(text, "Instruction") == 0) continue;
        read_cache(index, "size", text);
        cache found = {.bytes = (size_t)atol(text) << (strchr(text, 'M') != NULL ? 20 : 10)};
        read_cache(index, "shared_cpu_list", text);
        found.sharers = count_listed(text);
        return found;
    }
    return (cache){.sharers = 1};
}

/* Threads on all cores share caches: each works on a part of the data. */
static void print_bandwidths(int threads) {
    static const char *const names[] = {"L1", "L2", "L3"};
    const size_t most = (size_t)512 << 20;
    cache caches[] = {find_cache(1), find_cache(2), find_cache(3)}, *last = &caches[2];
    printf("# %-6s  %10s  %10s  %10s  %10s  %10s\n", "level", "cache KiB", "data KiB", "copy GB/s", "past GB/s",
           "add GB/s");
    for (int i = 0; i < 3; i++) {
        size_t data = i == 0 ? caches[i].bytes * 3 / 4 : caches[i].bytes / 2;
        print_bandwidth(names[i], caches[i].bytes, data / (size_t)(threads > 1 ? caches[i].sharers : 1), threads);
    }
    size_t memory = 4 * (last->bytes > 0 ? last->bytes : (size_t)32 << 20);
    if (memory > most) memory = most;
    print_bandwidth("memory", 0, memory / (size_t)(threads > 1 ? last->sharers : 1), threads);
}

static void print_all_bandwidths(void) {
    printf("# bytes of result; copy: dst = a; past: the same with non-temporal stores; add: dst = a + b (float)\n");
    printf("# one core\n");
    print_bandwidths(1);
    if (core_count < 2) return;
    printf("# all %d cores at once, data of each\n", core_count);
    print_bandwidths(core_count);
}

/* ------------------------------------------------------------------------------------- two threads */

/* Two threads take turns: side 0 makes the number odd, side 1 even again. */
typedef struct table {
    _Alignas(LINE) uint32_t turn;
    _Alignas(LINE) int turns;
    int cores[2];
    void (*wait)(uint32_t *turn, uint32_t seen);
    void (*tell)(uint32_t *turn);
} table;

static void spin(uint32_t *turn, uint32_t seen) {
    (void)turn, (void)seen;
    relax();
}

static void yield(uint32_t *turn, uint32_t seen) {
    (void)turn, (void)seen;
    sched_yield();
}

static void futex_wait(uint32_t *turn, uint32_t seen) {
    syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(uint32_t *turn) {
    syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void say_nothing(uint32_t *turn) {
    (void)turn;
}

static void take_turns(table *t, uint32_t side) {
    pin(t->cores[side]);
    for (int i = 0; i < t->turns; i++) {
        uint32_t seen; /* acquire pairs with the other side's release */
        while ((seen = __atomic_load_n(&t->turn, __ATOMIC_ACQUIRE)) % 2 != side) t->wait(&t->turn, seen);
        __atomic_store_n(&t->turn, seen + 1, __ATOMIC_RELEASE);
        t->tell(&t->turn);
    }
}

static void *second_side(void *context) {
    take_turns(context, 1);
    return NULL;
}

/* Nanoseconds from one side's turn to the other's; -1 when no thread could be started. */
static double one_way_ns(table *t) {
    double best = 1e30;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t second;
        t->turn = 0;
        if (pthread_create(&second, NULL, second_side, t) != 0) return -1;
        double start = now_s();
        take_turns(t, 0);
        pthread_join(second, NULL);
        double each = (now_s() - start) * 1e9 / (2.0 * t->turns);
        if (each < best) best = each;
    }
    sched_setaffinity(0, sizeof before, &before);
    return best;
}

static void print_time(const char *name, double ns) {
    printf("%-24s  %10.1f\n", name, ns);
}

static double line_ns(void) {
    table line = {.turns = 100000, .cores = {cores[0], cores[1]}, .wait = spin, .tell = say_nothing};
    return one_way_ns(&line);
}

static void print_times(void) {
    table wake = {.turns = 5000, .cores = {cores[0], cores[1]}, .wait = futex_wait, .tell = futex_wake};
    table hand = {.turns = 20000, .cores = {cores[0], cores[0]}, .wait = yield, .tell = say_nothing};
    printf("#\n# %-22s  %10s\n", "one way", "ns");
    if (core_count >= 2) {
        print_time("cache line, 2 cores", line_ns());
        print_time("futex wake, 2 cores", one_way_ns(&wake));
    } else {
        printf("# cache line and futex wake: this process may use one core only\n");
    }
    print_time("sched_yield, 1 core", one_way_ns(&hand));
    double start = now_s();
    for (int i = 0; i < 1000000; i++) now_s();
    print_time("reading the clock", (now_s() - start) * 1e3);
}

/* ---------------------------------------------------------------------------------- more processes than cores */

/* What the processes of a measurement share. */
typedef struct gate {
    _Alignas(LINE) uint64_t arrived;
} gate;

/* One process's part in that many turns; `count` processes take part. */
typedef void (*turn_taker)(gate *g, int process, int count, int turns);

static void wait_until(const gate *g, uint64_t arrived) {
    while (__atomic_load_n(&g->arrived, __ATOMIC_ACQUIRE) < arrived) sched_yield();
}

/* All processes count up; each waits until all have done so. Every core must run each of its processes once for each
 * barrier, so that a collective that needs all ranks takes at least this long. */
static void pass_barriers(gate *g, int process, int count, int turns) {
    (void)process;
    for (int i = 1; i <= turns; i++) {
        __atomic_fetch_add(&g->arrived, 1, __ATOMIC_ACQ_REL);
        wait_until(g, (uint64_t)i * (uint64_t)count);
    }
}

/* Process k counts up from k, k + count, ...: a message to the next process, or a broadcast whose root is the next
 * process each time. */
static void pass_on(gate *g, int process, int count, int turns) {
    for (int i = process; i < turns; i += count) {
        wait_until(g, (uint64_t)i);
        __atomic_fetch_add(&g->arrived, 1, __ATOMIC_ACQ_REL);
    }
    wait_until(g, (uint64_t)turns);
}

/* Takes the turns after one barrier; returns nanoseconds per turn. */
static double time_turns(gate gates[2], turn_taker take, int process, int count, int turns) {
    pin(cores[process % core_count]);
    pass_barriers(&gates[0], process, count, 1);
    double start = now_s();
    take(&gates[1], process, count, turns);
    return (now_s() - start) * 1e9 / turns;
}

/* Starts the processes 1 to count - 1; returns how many there are now. */
static int start_processes(gate gates[2], turn_taker take, int count, int turns) {
    for (int process = 1; process < count; process++) {
        pid_t child = fork();
        if (child < 0) return process;
        if (child > 0) continue;
        time_turns(gates, take, process, count, turns);
        _exit(EXIT_SUCCESS);
    }
    return count;
}

/* -1 when the processes could not be started. */
static double turn_ns(turn_taker take, int count, int turns) {
    double best = 1e30;
    cpu_set_t before;
    gate *gates = mmap(NULL, 2 * sizeof *gates, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (gates == MAP_FAILED) return -1;
    sched_getaffinity(0, sizeof before, &before);
    for (int round = 0; round < ROUNDS && best > 0; round++) {
        memset(gates, 0, 2 * sizeof *gates);
        int started = start_processes(gates, take, count, turns);
        if (started < count) /* releases them */
            for (int i = 0; i < 2; i++) __atomic_store_n(&gates[i].arrived, UINT64_MAX / 2, __ATOMIC_RELEASE);
        double each = started < count ? -1 : time_turns(gates, take, 0, count, turns);
        if (each < best) best = each;
        while (wait(NULL) > 0) {}
    }
    sched_setaffinity(0, sizeof before, &before);
    munmap(gates, 2 * sizeof *gates);
    return best;
}

static void print_turns(const char *title, turn_taker take) {
    printf("#\n# %s\n", title);
    for (int each = 4; each <= 32 && each * core_count <= MOST_PROCESSES; each *= each < 8 ? 2 : 4) {
        char name[64];
        snprintf(name, sizeof name, "%d processes, %d cores", each * core_count, core_count);
        print_time(name, turn_ns(take, each * core_count, 8000 / each));
    }
}

int main(int argc, char **argv) {
    bool line_only = argc == 2 && strcmp(argv[1], "--line") == 0;
    if (argc > 1 && !line_only) {
        fprintf(stderr, "usage: machine_limits [--line]\n");
        return EXIT_FAILURE;
    }
    find_cores();
    if (line_only) {
        printf("%.1f\n", core_count >= 2 ? line_ns() : 0);
        return EXIT_SUCCESS;
    }
    print_all_bandwidths();
    print_times();
    print_turns("barrier: one counter, and sched_yield", pass_barriers);
    print_turns("one process after the other counts up, and sched_yield", pass_on);
    return EXIT_SUCCESS;
}
