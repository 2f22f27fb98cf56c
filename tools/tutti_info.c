/*
 * tutti-info: reports what this build and this machine support, for users and for bug reports.
 *
 * Each line is a fact that was read or tested just now, never an assumption; for each missing feature it prints the
 * reason.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/tutti.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "bootstrap/launcher/pmix.h"
#include "bootstrap/launcher/rank_table.h"
#include "bootstrap/machine/interfaces.h"
#include "bootstrap/machine/topology.h"
#include "comm/api/api.h"
#include "comm/gpu/nccl/nccl_library.h"
#include "comm/gpu/stream.h"
#include "comm/net/coll/rail.h"
#include "comm/net/transport/transport.h"
#include "comm/shm/heap.h"
#include "kernels/device.h"

static void print_settings(void) {
    printf("\nSettings (environment variables; * differs from its default)\n");
    for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
        const tutti_setting_row *row = tutti_setting_row_of((tutti_setting)i);
        const char *text = tutti_setting_text((tutti_setting)i);
        bool changed = strcmp(text, row->fallback) != 0;
        if (i == TUTTI_SETTING_SECRET && *text != '\0') text = "(set)";
        printf("%c %-26s %-10s %s", changed ? '*' : ' ', row->name, *text != '\0' ? text : "-", row->help);
        if (row->kind == TUTTI_SETTING_KIND_CHOICE) printf(" (%s)", row->choices);
        if (changed && *row->fallback != '\0') printf(" (default %s)", row->fallback);
        if (row->agreed) printf("; equal on all ranks");
        putchar('\n');
    }
    if (tutti_settings_check() != TUTTI_OK) printf("! %s\n", tutti_last_error());
}

/* Prints a transport between hosts. */
static void print_transport(const tutti_transport *transport, bool used, bool tell_why) {
    char text[512];
    if (transport->check() == TUTTI_OK) {
        transport->describe(text, sizeof text);
        printf("%c %-10s yes: %s", used ? '*' : ' ', transport->name, text);
        if (!used && tell_why) printf("; %s", tutti_transport_left_out(transport));
        putchar('\n');
    } else {
        printf("  %-10s no: %s\n", transport->name, tutti_last_error());
    }
}

/* Prints all transports. */
static void print_transports(void) {
    uint32_t used = 0;
    printf("\nTransports (* may be used; between two hosts it is the first that both have)\n");
    if (tutti_heap_init() == TUTTI_OK)
        printf("* %-10s yes: ranks of one host, which map each other's heaps (memfds, room for %.1f GiB)\n", "shm",
               (double)tutti_heap_bytes() / (1 << 30));
    else printf("  %-10s no: %s\n", "shm", tutti_last_error());
    tutti_status status = tutti_transports_available(&used);
    if (status != TUTTI_OK) printf("! %s\n", tutti_last_error());
    for (int i = 0; tutti_transports[i] != NULL; i++)
        print_transport(tutti_transports[i], (used >> i & 1) != 0, status == TUTTI_OK);
}

static void print_gpu(const tutti_device *device, int index) {
    tutti_device_facts facts;
    char label[32];
    snprintf(label, sizeof label, "GPU %d", index);
    if (device->facts(index, &facts) != TUTTI_OK) {
        printf("    %-24s unknown: %s\n", label, tutti_last_error());
        return;
    }
    printf("    %-24s %s, %.1f GiB, %d processors, compute capability %d.%d, PCI %s", label, facts.name,
           (double)facts.memory_bytes / (1 << 30), facts.processors, facts.major, facts.minor, facts.pci);
    if (!facts.stream_waits) printf("; its streams cannot wait for values in memory");
    if (!facts.ipc) printf("; its memory cannot be shared between processes");
    putchar('\n');
}

static void print_gpus(void) {
    const tutti_device *device = NULL;
    char text[128];
    int count = 0;
    if (tutti_device_open(&device) != TUTTI_OK || device->count(&count) != TUTTI_OK) {
        printf("  %-26s no: %s\n", "CUDA", tutti_last_error());
        return;
    }
    device->describe(text, sizeof text);
    printf("  %-26s yes: %s, %d GPU%s\n", "CUDA", text, count, count == 1 ? "" : "s");
    for (int i = 0; i < count; i++) print_gpu(device, i);
}

/* Prints the NCCL library that would be used. */
static void print_nccl(void) {
    const tutti_nccl *nccl;
    char version[16];
    if (tutti_nccl_open(&nccl) != TUTTI_OK) printf("  %-26s no: %s\n", "NCCL", tutti_last_error());
    else
        printf("  %-26s yes: %s, %s%s%s\n", "NCCL", tutti_nccl_version_text(nccl->version, version), nccl->file,
               nccl->lacking[0] != '\0' ? "; without " : "", nccl->lacking);
}

static void print_parts(const tutti_topology *topology) {
    printf("\nParts\n");
    print_gpus();
    print_nccl();
    bool hwloc = topology->no_hwloc[0] == '\0';
    printf("  %-26s %s%s\n", "hwloc", hwloc ? "yes: " : "no: ", hwloc ? topology->source : topology->no_hwloc);
    bool tables = tutti_rank_table_check() == TUTTI_OK;
    printf("  %-26s %s%s\n", "rank tables", tables ? "yes, with cJSON" : "no: ", tables ? "" : tutti_last_error());
    bool pmix = tutti_pmix_check() == TUTTI_OK;
    printf("  %-26s %s%s\n", "PMIx (mpirun, srun)", pmix ? "yes" : "no: ", pmix ? "" : tutti_last_error());
}

/* First line of a file, without its newline; false when it cannot be read. */
static bool read_line(const char *path, char *line, int capacity) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return false;
    bool good = fgets(line, capacity, file) != NULL;
    fclose(file);
    if (good) line[strcspn(line, "\n")] = '\0';
    return good;
}

static void print_cores(void) {
    cpu_set_t mask;
    char quota[64];
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        printf("  %-26s %d of %ld\n", "cores by affinity", CPU_COUNT(&mask), sysconf(_SC_NPROCESSORS_ONLN));
    else printf("  %-26s unknown: %s\n", "cores by affinity", strerror(errno));
    if (read_line("/sys/fs/cgroup/cpu.max", quota, sizeof quota)) {
        double limit, period;
        if (sscanf(quota, "%lf %lf", &limit, &period) == 2 && period > 0)
            printf("  %-26s %.2f cores (cpu.max %s)\n", "cgroup limit", limit / period, quota);
        else printf("  %-26s none (cpu.max %s)\n", "cgroup limit", quota);
    } else {
        printf("  %-26s none found\n", "cgroup limit");
    }
}

static const char *plural(int count) {
    return count == 1 ? "" : "s";
}

/* Prints the part of the machine that this process may use. */
static void print_topology(const tutti_topology *topology) {
    if (topology->ncpus == 0) {
        printf("  %-26s unknown: %s\n", "topology", topology->no_hwloc);
        return;
    }
    printf("  %-26s %d package%s, %d NUMA node%s, ", "topology", topology->npackages, plural(topology->npackages),
           topology->nnodes, plural(topology->nnodes));
    if (topology->cache_level > 0)
        printf("%d L%d domain%s, ", topology->ncaches, topology->cache_level, plural(topology->ncaches));
    else printf("caches unknown, ");
    printf("%d core%s, %d thread%s (by %s%s)\n", topology->ncores, plural(topology->ncores), topology->ncpus,
           plural(topology->ncpus), topology->source,
           topology->foreign ? "; of another machine, as hwloc is configured" : "");
}

static void print_memory(void) {
    char line[128];
    long pages = sysconf(_SC_PHYS_PAGES), free_pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    printf("  %-26s %.1f GiB, %.1f GiB free\n", "memory", (double)pages * (double)page / (1 << 30),
           (double)free_pages * (double)page / (1 << 30));
    if (read_line("/sys/fs/cgroup/memory.max", line, sizeof line))
        printf("  %-26s %s\n", "cgroup memory limit", strcmp(line, "max") == 0 ? "none" : line);
    if (read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof line))
        printf("  %-26s %s\n", "huge pages in shared memory", line);
}

/* Prints the addresses that ranks on other hosts get to reach this one, best first. */
static void print_addresses(void) {
    enum { MOST_SHOWN = 16 };
    tutti_interface own[MOST_SHOWN];
    int count = 0;
    if (tutti_interfaces_list(own, MOST_SHOWN, &count) != TUTTI_OK)
        printf("  %-26s none: %s\n", "network addresses", tutti_last_error());
    for (int i = 0; i < count; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES], speed[40] = "";
        tutti_address_text(own[i].address, own[i].scope, address);
        if (own[i].speed_mbit > 0) snprintf(speed, sizeof speed, ", %u Mbit/s", own[i].speed_mbit);
        printf("  %-26s %s on %s%s%s\n", i == 0 ? "network addresses" : "", address, own[i].name, speed,
               own[i].loopback  ? ": reaches this host only"
               : own[i].running ? ""
                                : ", without a carrier");
    }
}

/* Tests shared memory as the library creates it: a sealed memfd with allocated pages. */
static void print_memfd(void) {
    const char *failed = NULL;
    int file = memfd_create("tutti-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) failed = "memfd_create";
    else if (ftruncate(file, 1 << 20) != 0 || posix_fallocate(file, 0, 1 << 20) != 0) failed = "allocation";
    if (failed != NULL) printf("  %-26s no: %s: %s\n", "memfd", failed, strerror(errno));
    else printf("  %-26s yes\n", "memfd");
    if (file >= 0) close(file);
}

/* Tests single-copy reads between processes: reads the memory of a child. */
static void print_single_copy(void) {
    static volatile int probe = 1;
    int ready[2];
    char byte;
    if (pipe(ready) != 0) return;
    pid_t child = fork();
    if (child == 0) {
        close(ready[0]);
        probe = 4711;
        if (write(ready[1], "x", 1) != 1) _exit(1);
        alarm(5); /* the child ends even if the parent does not kill it */
        pause();
        _exit(1);
    }
    close(ready[1]);
    if (child > 0 && read(ready[0], &byte, 1) == 1) {
        int copy = 0;
        struct iovec here = {&copy, sizeof copy}, there = {(void *)&probe, sizeof probe};
        bool good = process_vm_readv(child, &here, 1, &there, 1, 0) == (ssize_t)sizeof copy && copy == 4711;
        printf("  %-26s %s%s\n", "reads between processes", good ? "yes" : "no: ", good ? "" : strerror(errno));
    }
    close(ready[0]);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    char scope[16];
    if (read_line("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope))
        printf("  %-26s %s (0: any process of this user, 1: only children, ...)\n", "yama ptrace_scope", scope);
}

/* Prints the algorithms chosen between `nhosts` hosts, at the costs of an ordinary network. */
static void print_rails(int nhosts) {
    const tutti_cost cost = tutti_cost_ordinary;
    tutti_rail_table table;
    char text[512];
    tutti_rail_rules rules = {.n = nhosts,
                              .reorders = tutti_setting_int(TUTTI_SETTING_DETERMINISTIC) == 0,
                              .forced = tutti_setting_text(TUTTI_SETTING_ALGORITHM)};
    tutti_rail_table_fill(&rules, &cost, &table);
    printf("\nBetween %d hosts, floats, where a message takes %.4g us and a link carries %.4g GB/s (an "
           "ordinary network; jobs measure theirs)\n",
           nhosts, cost.latency_us, cost.bandwidth_gbs);
    for (int kind = 0; kind < TUTTI_KIND_COUNT; kind++)
        for (int line = 0; tutti_rail_explain(&table, (tutti_kind)kind, line, text, sizeof text) != NULL; line++)
            printf("  %s\n", text);
}

static int print_algorithms(const char *hosts) {
    enum { HOSTS = 4, MOST_HOSTS = 1 << 20 };
    char text[512], *end = NULL;
    long nhosts = hosts != NULL ? strtol(hosts, &end, 10) : HOSTS;
    if (nhosts < 2 || nhosts > MOST_HOSTS || (end != NULL && *end != '\0')) {
        fprintf(stderr, "tutti-info --algorithms %s: must be a whole number from 2 to %d, the number of hosts\n", hosts,
                MOST_HOSTS);
        return 2;
    }
    printf("Algorithms; the first that fits is taken, TUTTI_ALGORITHM=NAME puts NAME first\n");
    for (int i = 0; tutti_select_row(i, text, sizeof text) != NULL; i++) printf("  %s\n", text);
    printf("On CUDA memory, one for all calls of a communicator:\n");
    for (int i = 0; tutti_engines_row(i, text, sizeof text) != NULL; i++) printf("  %s\n", text);
    print_rails((int)nhosts);
    return 0;
}

static void print_threads(const tutti_comm *comm) {
    printf("Threads that the library may start, and how many this process has now, with a communicator of %d rank%s\n",
           tutti_comm_size(comm), plural(tutti_comm_size(comm)));
    for (int kind = 0; kind < TUTTI_THREAD_KINDS; kind++)
        printf("  %-16s %d  %s; %s\n", tutti_threads[kind].name, tutti_thread_count((tutti_thread_kind)kind),
               tutti_threads[kind].does, tutti_threads[kind].lasts);
}

static void print_locks(void) {
    static const char *const forks[] = {
        [TUTTI_AT_FORK_UNUSED] = "a child's calls fail before they take it",
        [TUTTI_AT_FORK_HELD] = "held during a fork, so that a child finds it free",
        [TUTTI_AT_FORK_LEFT] = "not held during a fork: a child must not need it",
        [TUTTI_AT_FORK_STRUCT] = "one in each such struct",
    };
    size_t used, committed;
    printf("\nLocks; a thread takes one only while those that it holds come before it in this list\n");
    for (int kind = 0; kind < TUTTI_LOCK_KINDS; kind++)
        printf("  %-14s %-40s %s; %s\n", tutti_locks[kind].name, tutti_locks[kind].file, tutti_locks[kind].protects,
               forks[tutti_locks[kind].at_fork]);
    tutti_heap_usage(&used, &committed);
    printf("\nShared heap: %zu KiB in use, %zu KiB backed by memory\n", used >> 10, committed >> 10);
}

/* What a process has that uses the library: this one makes the communicator of its world for that. Rank 0 prints. */
static int print_process(void) {
    tutti_comm *comm = NULL;
    tutti_status status = tutti_comm_create_world(&comm);
    if (status == TUTTI_OK) status = tutti_barrier(comm, NULL);
    if (status == TUTTI_OK && tutti_comm_rank(comm) == 0) {
        print_threads(comm);
        print_locks();
    }
    if (status != TUTTI_OK) fprintf(stderr, "tutti-info --process: %s\n", tutti_last_error());
    tutti_comm_destroy(comm);
    return status == TUTTI_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--algorithms") == 0) return print_algorithms(argc > 2 ? argv[2] : NULL);
    if (argc > 1 && strcmp(argv[1], "--process") == 0) return print_process();
    if (argc > 1 && (strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "--version") == 0)) {
        printf("tutti-info %s\n", tutti_version());
        return 0;
    }
    if (argc > 1) {
        bool help = strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr,
                "usage: tutti-info [--version | --algorithms [HOSTS] | --process]\nPrints version, transports, parts, "
                "settings and machine; or the table of algorithms, and those chosen between HOSTS hosts "
                "(4); or the threads and locks of a process with a communicator (of several ranks under tuttirun).\n");
        return help ? 0 : 2;
    }
    struct utsname system;
    tutti_topology topology = {0};
    if (tutti_topology_read(&topology) != TUTTI_OK)
        snprintf(topology.no_hwloc, sizeof topology.no_hwloc, "%s", tutti_last_error());
    printf("Tutti %s\n", tutti_version());
    print_transports();
    print_parts(&topology);
    print_settings();
    printf("\nMachine\n");
    if (uname(&system) == 0) printf("  %-26s %s %s on %s\n", "system", system.sysname, system.release, system.machine);
    print_cores();
    print_topology(&topology);
    print_memory();
    print_addresses();
    print_memfd();
    print_single_copy();
    tutti_topology_free(&topology);
    return 0;
}
