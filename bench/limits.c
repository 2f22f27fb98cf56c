/*
 * machine_limits: what this machine can do at best, as a yardstick for the other programs. In one run: bandwidth
 * of copying and of adding per level of cache, the way of a cache line between two cores, a switch of tasks, a
 * wake-up.
 *
 * Two-sided measurements run a second thread on another core (or, for the switch, on the same one). The figure
 * is the best of several rounds: what disturbs a round makes it slower, never faster.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/reduce.h"

#define ROUNDS 5
#define LINE   64

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ----------------------------------------------------------------------------------------- bandwidth */

static void copy(float *dst, const float *a, const float *b, size_t count) {
    (void)b;
    memcpy(dst, a, count * sizeof *dst);
}

/* The library's own loop for the instructions of this processor. */
static void add(float *dst, const float *a, const float *b, size_t count) {
    const void *const srcs[] = {a, b};
    tutti_reduce_host(&(tutti_reduce_args){
        .dst = dst, .srcs = srcs, .nsrcs = 2, .count = count, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM});
}

typedef void (*kernel)(float *dst, const float *a, const float *b, size_t count);

/* Bytes of result per second, in GB/s, when `nbuffers` buffers take `working_set` bytes together. */
static double bandwidth(kernel run, int nbuffers, size_t working_set, float *memory) {
    size_t count = working_set / (size_t)nbuffers / LINE * LINE / sizeof(float);
    size_t repeats = ((size_t)32 << 20) / (count * sizeof(float)) + 1;
    double best = 0;
    for (int round = 0; round <= ROUNDS; round++) { /* the first one warms up */
        double start = now_s();
        for (size_t i = 0; i < repeats; i++) {
            run(memory, memory + count, memory + 2 * count, count);
            __asm__ volatile("" : : "r"(memory) : "memory"); /* each repetition counts */
        }
        double rate = (double)(repeats * count * sizeof(float)) / (now_s() - start) * 1e-9;
        if (round > 0 && rate > best) best = rate;
    }
    return best;
}

static void print_bandwidth(const char *level, size_t cache, size_t working_set) {
    if (working_set == 0) return;
    size_t bytes = working_set + (size_t)4 * 4096;
    float *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory == NULL) return;
    memset(memory, 0, bytes);
    printf("%-8s  %10zu  %10zu  %10.1f  %10.1f\n", level, cache / 1024, working_set / 1024,
           bandwidth(copy, 2, working_set, memory), bandwidth(add, 3, working_set, memory));
    free(memory);
}

/* The first word of a file of core 0's cache description; "" where the system does not tell. */
static void read_cache(int index, const char *name, char text_out[32]) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    text_out[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) return;
    if (fscanf(file, "%31s", text_out) != 1) text_out[0] = '\0';
    fclose(file);
}

/* Bytes of the data cache of a level as a core sees it, or 0. In virtual machines sysconf() tells the whole chip's. */
static size_t cache_bytes(int level) {
    char text[32];
    for (int index = 0; index < 8; index++) {
        read_cache(index, "level", text);
        if (atoi(text) != level) continue;
        read_cache(index, "type", text);
        if (strcmp(text, "Instruction") == 0) continue;
        read_cache(index, "size", text);
        return (size_t)atol(text) << (strchr(text, 'M') != NULL ? 20 : 10);
    }
    return 0;
}

static void print_bandwidths(void) {
    size_t l1 = cache_bytes(1), l2 = cache_bytes(2), l3 = cache_bytes(3);
    size_t memory = 4 * (l3 > 0 ? l3 : (size_t)32 << 20), most = (size_t)512 << 20;
    printf("# one core, bytes of result; copy: dst = a; add: dst = a + b (float)\n");
    printf("# %-6s  %10s  %10s  %10s  %10s\n", "level", "cache KiB", "data KiB", "copy GB/s", "add GB/s");
    print_bandwidth("L1", l1, l1 * 3 / 4);
    print_bandwidth("L2", l2, l2 / 2);
    print_bandwidth("L3", l3, l3 / 2);
    print_bandwidth("memory", 0, memory < most ? memory : most);
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
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
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

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
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

/* Fills in the first two cores that this process may use; gives how many there are. */
static int usable_cores(int cores_out[2]) {
    cpu_set_t set;
    int found = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    for (int core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &set)) cores_out[found++] = core;
    return found;
}

static void print_time(const char *name, double ns) {
    printf("%-24s  %10.1f\n", name, ns);
}

static void print_times(void) {
    int cores[2] = {0, 0};
    int found = usable_cores(cores);
    table line = {.turns = 100000, .cores = {cores[0], cores[1]}, .wait = spin, .tell = say_nothing};
    table wake = {.turns = 5000, .cores = {cores[0], cores[1]}, .wait = futex_wait, .tell = futex_wake};
    table hand = {.turns = 20000, .cores = {cores[0], cores[0]}, .wait = yield, .tell = say_nothing};
    printf("#\n# %-22s  %10s\n", "one way", "ns");
    if (found == 2) {
        print_time("cache line, 2 cores", one_way_ns(&line));
        print_time("futex wake, 2 cores", one_way_ns(&wake));
    } else {
        printf("# cache line and futex wake: this process may use one core only\n");
    }
    print_time("sched_yield, 1 core", one_way_ns(&hand));
    double start = now_s();
    for (int i = 0; i < 1000000; i++) now_s();
    print_time("reading the clock", (now_s() - start) * 1e3);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "machine_limits takes no options\n");
        return EXIT_FAILURE;
    }
    print_bandwidths();
    print_times();
    return EXIT_SUCCESS;
}
