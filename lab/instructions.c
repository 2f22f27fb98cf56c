/*
 * instructions: counts the instructions of the loops that reduce and copy, and of calls of the library. A count is
 * the same in every run on one kind of processor; times are not.
 *
 *   child    prepares, warms up, stops itself (mark), runs the region, stops itself again (mark)
 *   parent   between the marks executes the child step by step (PTRACE_SINGLESTEP) and counts
 *
 * The count of an empty region, which includes the marks, is subtracted. A step that leaves the program counter where
 * it was is a further turn of an instruction that repeats itself (rep movsb): processors step through those turn by
 * turn. Turns are counted separately. Work of the kernel within a step (a page fault, a system call) does not count,
 * and neither do the clocks that the kernel maps into each process (vdso): they read again when a tick falls between
 * two of their steps.
 *
 * A step takes 1 to 25 us, more in virtual machines. So a size is left out, unless with --all, if the next smaller
 * one predicts more than MOST_STEPS instructions for it.
 *
 *   instructions [--all] [BYTES...]     default: 64 4096 65536; exits with 77 if processes may not be traced
 */
#include <gnu/libc-version.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/report/machine.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"

#define EXIT_SKIP    77
#define MOST_SOURCES 4
#define MOST_SIZES   16
#define MOST_BYTES   ((size_t)1 << 20)
#define MOST_STEPS   250000
#define CALL_REPEATS 9

/* A measured region, with its parameters. */
typedef struct region {
    void (*run)(const struct region *);
    const char *variant; /* variant of the reductions; NULL: the best */
    tutti_type type;
    int nsrcs;
    size_t bytes; /* bytes of the result */
    bool needs_comm;
    tutti_comm *comm; /* has one rank; made by the child */
} region;

typedef struct counts {
    long long instructions, turns;
} counts;

/* The requests of the command line. */
typedef struct request {
    size_t sizes[MOST_SIZES];
    int nsizes;
    bool all;
} request;

/* Sources, then the result; one array, so that their distances are the same in every run. */
static _Alignas(4096) char memory[MOST_SOURCES + 1][MOST_BYTES];
static char *const result = memory[MOST_SOURCES];

/* ------------------------------------------------------------------------------------------------ regions */

static void run_nothing(const region *r) {
    (void)r;
}

static void run_reduce(const region *r) {
    const void *const srcs[MOST_SOURCES] = {memory[0], memory[1], memory[2], memory[3]};
    tutti_reduce_host(&(tutti_reduce_args){.dst = result,
                                           .srcs = srcs,
                                           .nsrcs = r->nsrcs,
                                           .count = r->bytes / tutti_type_bytes(r->type),
                                           .type = r->type,
                                           .reduction = TUTTI_SUM});
}

static void run_memcpy(const region *r) {
    memcpy(result, memory[0], r->bytes);
}

static void run_copy_stream(const region *r) {
    tutti_copy_stream(result, memory[0], r->bytes);
}

#if defined(__x86_64__)
static void run_rep_movsb(const region *r) {
    void *dst = result;
    const void *src = memory[0];
    size_t bytes = r->bytes;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}
#endif

static void run_all_reduce(const region *r) {
    tutti_all_reduce(r->comm, memory[0], result, r->bytes / sizeof(float), TUTTI_FLOAT32, TUTTI_SUM, NULL);
}

static void run_broadcast(const region *r) {
    tutti_broadcast(r->comm, result, r->bytes, TUTTI_UINT8, 0, NULL);
}

static void run_all_gather(const region *r) {
    tutti_all_gather(r->comm, memory[0], result, r->bytes, TUTTI_UINT8, NULL);
}

static void run_barrier(const region *r) {
    tutti_barrier(r->comm, NULL);
}

/* ------------------------------------------------------------------------------------------------- counting */

static uintptr_t program_counter(pid_t child) {
    struct user_regs_struct registers;
    struct iovec view = {.iov_base = &registers, .iov_len = sizeof registers};
    if (ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &view) != 0) return 0;
#if defined(__x86_64__)
    return registers.rip;
#elif defined(__aarch64__)
    return registers.pc;
#else
#error "no name for this processor's program counter"
#endif
}

/* The pages of the vdso; a child of fork has them at the same place. Empty where there is none. */
typedef struct range {
    uintptr_t from, to;
} range;

static range find_vdso(void) {
    const char *image = (const char *)getauxval(AT_SYSINFO_EHDR);
    if (image == NULL) return (range){0};
    const ElfW(Ehdr) *head = (const void *)image;
    const ElfW(Phdr) *segments = (const void *)(image + head->e_phoff);
    range r = {.from = (uintptr_t)image, .to = (uintptr_t)image};
    for (int i = 0; i < head->e_phnum; i++) {
        uintptr_t end = (uintptr_t)image + segments[i].p_offset + segments[i].p_memsz;
        if (segments[i].p_type == PT_LOAD && end > r.to) r.to = end;
    }
    return r;
}

static _Noreturn void be_child(region r) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(EXIT_SKIP);
    if (!tutti_reduce_use_variant(r.variant)) _exit(EXIT_FAILURE);
    if (r.needs_comm && tutti_comm_create(0, 1, NULL, NULL, NULL, &r.comm) != TUTTI_OK) _exit(EXIT_FAILURE);
    for (int i = 0; i < 3; i++) r.run(&r); /* warm-up of one-time work: pages, names of functions, tables */
    raise(SIGSTOP);
    r.run(&r);
    raise(SIGSTOP);
    _exit(EXIT_SUCCESS);
}

/* Counts from the first mark, at which the child has stopped, to the second. */
static bool count_steps(pid_t child, counts *counts_out) {
    counts c = {0};
    const range vdso = find_vdso();
    uintptr_t last = program_counter(child);
    int status;
    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child) return false;
        if (!WIFSTOPPED(status)) return false;
        if (WSTOPSIG(status) == SIGSTOP) break;
        uintptr_t now = program_counter(child);
        bool in_clock = last >= vdso.from && last < vdso.to;
        if (!in_clock && now == last) c.turns++;
        if (!in_clock && now != last) c.instructions++;
        last = now;
    }
    *counts_out = c;
    return true;
}

static counts count_raw(const region *r) {
    counts c = {0};
    int status = 0;
    pid_t child = fork();
    if (child == 0) be_child(*r);
    bool stands = child > 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    if (stands && count_steps(child, &c)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return c;
    }
    if (!stands && child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIP) {
        fprintf(stderr, "instructions: this system does not let a process trace its child (ptrace)\n");
        exit(EXIT_SKIP);
    }
    fprintf(stderr, "instructions: the child ended before it was measured\n");
    exit(EXIT_FAILURE);
}

static int compare_counts(const void *a, const void *b) {
    const counts *one = a, *other = b;
    return (one->instructions > other->instructions) - (one->instructions < other->instructions);
}

/* Work that a call does only after some time has passed is counted in most runs, since steps are slow, but not in
 * all: so a call's count is the median of several. */
static counts count(const region *r) {
    static counts empty;
    counts several[CALL_REPEATS];
    size_t n = r->needs_comm ? CALL_REPEATS : 1;
    if (empty.instructions == 0) empty = count_raw(&(region){.run = run_nothing});
    for (size_t i = 0; i < n; i++) several[i] = count_raw(r);
    qsort(several, n, sizeof *several, compare_counts);
    counts c = several[n / 2];
    return (counts){c.instructions - empty.instructions, c.turns - empty.turns};
}

/* --------------------------------------------------------------------------------------------------- table */

static long long print_row(const char *what, const char *variant, const char *type, const region *r) {
    counts c = count(r);
    char sources[16] = "-", turns[32] = "-";
    if (r->nsrcs > 0) snprintf(sources, sizeof sources, "%d", r->nsrcs);
    if (c.turns > 0) snprintf(turns, sizeof turns, "%lld", c.turns);
    printf("%-16s %-8s %-12s %7s %8zu %12lld", what, variant, type, sources, r->bytes, c.instructions);
    if (r->bytes >= 64) printf(" %12.1f", (double)c.instructions * 64 / (double)r->bytes);
    else printf(" %12s", "-");
    printf(" %8s\n", turns);
    fflush(stdout); /* a child would write it again */
    return c.instructions + c.turns;
}

/* Prints a row per size. */
static void print_sizes(const char *what, const char *variant, const char *type, region r, const request *q) {
    double per_byte = 0;
    for (int i = 0; i < q->nsizes; i++) {
        r.bytes = q->sizes[i];
        if (!q->all && per_byte * (double)r.bytes > MOST_STEPS) continue;
        per_byte = (double)print_row(what, variant, type, &r) / (double)r.bytes;
    }
}

static void print_reductions(const request *q) {
    static const char *const variants[] = {"plain", "neon", "avx2", "avx512"};
    static const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3, TUTTI_INT32};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        if (!tutti_reduce_use_variant(variants[v])) continue;
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int nsrcs = 2; nsrcs <= MOST_SOURCES; nsrcs += 2)
                print_sizes("sum", variants[v], tutti_type_name(types[t]),
                            (region){.run = run_reduce, .variant = variants[v], .type = types[t], .nsrcs = nsrcs}, q);
    }
}

static void print_copies(const request *q) {
    print_sizes("memcpy", "-", "-", (region){.run = run_memcpy}, q);
    print_sizes("copy_stream", "-", "-", (region){.run = run_copy_stream}, q);
#if defined(__x86_64__)
    print_sizes("rep movsb", "-", "-", (region){.run = run_rep_movsb}, q);
#endif
}

/* A communicator of one rank: the whole call except the meeting and the peers. Messages are left out: while they
 * wait, they read the clock, which never gives the same count twice. */
static void print_calls(void) {
    static const struct {
        const char *name;
        void (*run)(const region *);
        size_t bytes;
    } calls[] = {{"all_reduce", run_all_reduce, 8},
                 {"broadcast", run_broadcast, 8},
                 {"all_gather", run_all_gather, 8},
                 {"barrier", run_barrier, 0}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        print_row(calls[i].name, "1 rank", "-",
                  &(region){.run = calls[i].run, .bytes = calls[i].bytes, .needs_comm = true});
}

static void print_head(const request *q) {
    bench_device device;
    bench_machine_describe(0, 0, 0, &device);
    printf(
        "# Instructions in user mode between two marks, less those of an empty region; by single steps, so exact and\n"
        "# the same in every run. Turns: of instructions that repeat themselves (rep movsb is 1 instruction here,\n"
        "# whatever its turns). Buffers start on pages. per 64: per 64 bytes of the result.\n"
        "# sum: tutti_reduce_host. Calls: a communicator of 1 rank, the whole call, without a peer to wait for.\n"
        "# %s, glibc %s, compiler %s\n",
        device.name, gnu_get_libc_version(), __VERSION__);
    if (!q->all) printf("# Rows of more than %d instructions are left out (--all).\n", MOST_STEPS);
    printf("#\n# %-14s %-8s %-12s %7s %8s %12s %12s %8s\n", "what", "variant", "type", "sources", "bytes",
           "instructions", "per 64", "turns");
    fflush(stdout);
}

/* Both processes on one core: a step is then a switch of tasks and no wake-up of another core. */
static void stay_here(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static bool read_request(int argc, char **argv, request *q_out) {
    request q = {.sizes = {64, 4096, 65536}, .nsizes = 3};
    int next = 1, given = 0;
    if (next < argc && strcmp(argv[next], "--all") == 0) q.all = true, next++;
    for (; next < argc; next++) {
        char *end;
        unsigned long long bytes = strtoull(argv[next], &end, 10);
        if (given == MOST_SIZES || *end != '\0' || bytes == 0 || bytes > MOST_BYTES || bytes % 8 != 0) return false;
        q.sizes[given++] = bytes;
        q.nsizes = given;
    }
    *q_out = q;
    return true;
}

int main(int argc, char **argv) {
    request q;
    if (!read_request(argc, argv, &q)) {
        fprintf(stderr, "usage: instructions [--all] [BYTES...]  (up to %d sizes, multiples of 8, at most %zu)\n",
                MOST_SIZES, MOST_BYTES);
        return EXIT_FAILURE;
    }
    stay_here();
    count(&(region){.run = run_nothing}); /* a skip must come before the table */
    print_head(&q);
    print_reductions(&q);
    print_copies(&q);
    print_calls();
    return EXIT_SUCCESS;
}
