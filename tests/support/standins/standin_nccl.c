/*
 * libstandin_nccl.so: NCCL without GPUs, for tests (TUTTI_NCCL_LIBRARY names it). Bytes really move, between threads
 * and between processes, in the order of the streams of the stand-in for CUDA; so tests check results, but nothing
 * about speed or NCCL itself. It is as unkind as NCCL: communicators are non-blocking and stay "in progress" for a
 * while, a call made meanwhile is refused, a call that fails ends them for good, calls that differ and peers that
 * have died hang until ncclCommAbort, two ranks on one GPU are refused, pointers to memory that is not a GPU's end
 * the process.
 *
 *   STANDIN_NCCL_PROGRESS_US=n          how long a call stays in progress at most (300)
 *   STANDIN_NCCL_FAIL=call:nth:result   the nth such call of this process fails with that number; "async": from the nth
 *                                       batch on ncclCommGetAsyncError returns it; several are separated by ','
 *                                       "open": opening fails with it; "die": the process ends in it
 *   STANDIN_NCCL_RANK=r                 only on that rank
 *   STANDIN_NCCL_VERSION=n              the version of ncclGetVersion
 *   STANDIN_NCCL_ORDER=ranks            sums in the order of ranks
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/standins/standin_nccl.h"

typedef struct unique {
    uint64_t magic;
    int64_t process, file;
} unique;

static pthread_key_t own_group;

static void make_key(void) {
    if (pthread_key_create(&own_group, free) != 0) abort();
}

/* Not _Thread_local: the leak checker cannot look into such memory of libraries that are opened late. */
standin_group *standin_nccl_mine(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    standin_group *g = pthread_getspecific(own_group);
    if (g == NULL) {
        g = calloc(1, sizeof *g);
        if (g == NULL || pthread_setspecific(own_group, g) != 0) abort();
    }
    return g;
}

/* For tests: how often a call was made in this process. */
static const char *const counted[] = {"ncclCommInitRankConfig", "ncclCommSplit", "ncclSend", "ncclRecv",
                                      "ncclGroupEnd"};
static atomic_int counts[sizeof counted / sizeof *counted];

void standin_nccl_count_call(const char *name) {
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        if (strcmp(counted[i], name) == 0) atomic_fetch_add(&counts[i], 1);
}

EXPORT int standin_nccl_count(const char *name);
EXPORT int standin_nccl_count(const char *name) {
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        if (strcmp(counted[i], name) == 0) return atomic_load(&counts[i]);
    return -1;
}

/* ---------------------------------------------------------------------------------------- CUDA's stand-in */

static standin_cuda_calls cuda;

static void find(void *module, const char *name, void *function_out) {
    void *symbol = dlsym(module, name);
    if (symbol == NULL) {
        fprintf(stderr, "NCCL's stand-in: CUDA's stand-in lacks %s\n", name);
        abort();
    }
    memcpy(function_out, &symbol, sizeof symbol);
}

static void find_cuda(void) {
    const char *file = getenv("TUTTI_CUDA_MODULE");
    void *module = file != NULL ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (module == NULL) {
        fprintf(stderr, "NCCL's stand-in works with that of CUDA only: TUTTI_CUDA_MODULE\n");
        abort();
    }
    find(module, "standin_enqueue", &cuda.enqueue);
    find(module, "standin_record", &cuda.record);
    find(module, "standin_reach_as_gpu", &cuda.reach_as_gpu);
    find(module, "standin_current", &cuda.current);
    find(module, "standin_set_current", &cuda.set_current);
    find(module, "standin_id", &cuda.id);
    find(module, "standin_alloc_unshared", &cuda.alloc_unshared);
    find(module, "standin_free", &cuda.free);
}

const standin_cuda_calls *standin_cuda(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_cuda);
    return &cuda;
}

/* ----------------------------------------------------------------------------------------------- failures */

tutti_nccl_result standin_nccl_fail(tutti_nccl_result result, const char *why) {
    snprintf(standin_nccl_mine()->error, sizeof standin_nccl_mine()->error, "%s", why);
    return result;
}

/* The result that STANDIN_NCCL_FAIL sets for this pass through `name`; rank -1: without a communicator. */
tutti_nccl_result standin_nccl_fault(const char *name, int rank) {
    static atomic_int passes[8];
    const char *list = getenv("STANDIN_NCCL_FAIL"), *only = getenv("STANDIN_NCCL_RANK");
    size_t length = strlen(name);
    if (only != NULL && rank >= 0 && atoi(only) != rank) return OK;
    for (int i = 0; list != NULL && i < 8; i++) {
        if (strncmp(list, name, length) == 0 && list[length] == ':') {
            int nth = 1, result = TUTTI_NCCL_INTERNAL_ERROR;
            sscanf(list + length, ":%d:%d", &nth, &result);
            if (atomic_fetch_add(&passes[i], 1) + 1 == nth)
                return standin_nccl_fail((tutti_nccl_result)result, "made to fail");
        }
        list = strchr(list, ',');
        if (list != NULL) list++;
    }
    return OK;
}

tutti_nccl_result standin_nccl_check(tutti_nccl_comm comm, const char *name) {
    if (comm == NULL || comm->magic != MAGIC) {
        fprintf(stderr, "NCCL's stand-in: %s on a destroyed communicator\n", name);
        abort();
    }
    tutti_nccl_result made = standin_nccl_fault(name, comm->rank);
    if (made != OK) return made;
    int state = atomic_load(&comm->state);
    if (state == TUTTI_NCCL_IN_PROGRESS)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT,
                                 "the communicator was used before its last call had ended");
    if (state != OK) return standin_nccl_fail((tutti_nccl_result)state, "the communicator has failed before");
    if (standin_cuda()->current() != comm->gpu)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_USAGE, "another GPU is current than that of the communicator");
    return OK;
}

tutti_nccl_result ncclGetVersion(int *version) {
    const char *text = getenv("STANDIN_NCCL_VERSION");
    *version = text != NULL ? atoi(text) : 22809;
    return OK;
}

const char *ncclGetErrorString(tutti_nccl_result result) {
    static const char *const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof names / sizeof names[0] ? names[result] : "unknown result code";
}

const char *ncclGetLastError(tutti_nccl_comm comm) {
    return comm != NULL && comm->error[0] != '\0' ? comm->error : standin_nccl_mine()->error;
}

/* ------------------------------------------------------------------------------------------ communicators */

tutti_nccl_result ncclGetUniqueId(tutti_nccl_id *id) {
    tutti_nccl_result made = standin_nccl_fault("ncclGetUniqueId", -1);
    if (made != OK) return made;
    int file = memfd_create("standin-nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(standin_area)) != 0)
        return standin_nccl_fail(TUTTI_NCCL_SYSTEM_ERROR, "no memfd");
    unique known = {.magic = MAGIC, .process = getpid(), .file = file};
    memset(id, 0, sizeof *id);
    memcpy(id, &known, sizeof known);
    return OK;
}

static bool attach(tutti_nccl_comm comm, const unique *known) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)known->process, (int)known->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return false;
    void *memory = mmap(NULL, sizeof(standin_area), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    comm->area = memory != MAP_FAILED ? memory : NULL;
    comm->area_file = comm->rank == 0 && known->process == getpid() ? (int)known->file : -1;
    return comm->area != NULL;
}

void standin_nccl_linger(unsigned *seed) {
    const char *text = getenv("STANDIN_NCCL_PROGRESS_US");
    int most = text != NULL ? atoi(text) : 300;
    if (most > 0) usleep((unsigned)rand_r(seed) % (unsigned)most + 1);
}

/* NCCL knows GPUs by their PCI addresses, which MIG instances ("a/1", "a/2") share. */
static bool same_gpu(const char *a, const char *b) {
    size_t length = strcspn(a, "/");
    return strcspn(b, "/") == length && strncmp(a, b, length) == 0;
}

/* Waits for all ranks; then each finds by itself whether two of them have one GPU. */
tutti_nccl_result standin_nccl_meet(tutti_nccl_comm comm) {
    tutti_nccl_result result = OK;
    snprintf(comm->area->gpus[comm->rank], STANDIN_ID_BYTES, "%s", standin_cuda()->id(comm->gpu));
    atomic_fetch_add(&comm->area->arrived, 1);
    while (atomic_load(&comm->area->arrived) < comm->nranks && !atomic_load(&comm->abort)) usleep(100);
    for (int a = 0; a < comm->nranks && !atomic_load(&comm->abort); a++)
        for (int b = a + 1; b < comm->nranks; b++) {
            if (!same_gpu(comm->area->gpus[a], comm->area->gpus[b])) continue;
            snprintf(comm->error, sizeof comm->error, "Duplicate GPU detected : rank %d and rank %d", a, b);
            result = TUTTI_NCCL_INVALID_USAGE;
        }
    tutti_nccl_result made = standin_nccl_fault("open", comm->rank);
    return made != OK ? made : result;
}

static void *open_thread(void *context) {
    tutti_nccl_comm comm = context;
    unsigned seed = (unsigned)comm->rank;
    standin_nccl_linger(&seed);
    tutti_nccl_result result = standin_nccl_meet(comm);
    atomic_store(&comm->state, result);
    atomic_fetch_sub(&comm->pending, 1);
    return NULL;
}

bool standin_nccl_is_config(const tutti_nccl_config *config) {
    return config != NULL && config->magic == TUTTI_NCCL_CONFIG_MAGIC && config->bytes == sizeof *config &&
           config->version >= TUTTI_NCCL_OLDEST && config->blocking == 0;
}

/* NULL: rank 0's process has ended. */
tutti_nccl_comm standin_nccl_make(const tutti_nccl_id *id, int rank, int nranks, int gpu) {
    unique known;
    memcpy(&known, id, sizeof known);
    tutti_nccl_comm comm = calloc(1, sizeof *comm);
    if (comm == NULL) abort();
    comm->magic = MAGIC;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->gpu = gpu;
    if (attach(comm, &known)) return comm;
    free(comm);
    return NULL;
}

tutti_nccl_result ncclCommInitRankConfig(tutti_nccl_comm *comm_out, int nranks, tutti_nccl_id id, int rank,
                                         tutti_nccl_config *config) {
    unique known;
    memcpy(&known, &id, sizeof known);
    standin_nccl_count_call("ncclCommInitRankConfig");
    if (standin_nccl_fault("die", rank) != OK) raise(SIGKILL);
    tutti_nccl_result made = standin_nccl_fault("ncclCommInitRankConfig", rank);
    if (made != OK) return made;
    if (!standin_nccl_is_config(config))
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "the stand-in has non-blocking communicators only");
    if (known.magic != MAGIC || nranks > STANDIN_RANKS || rank < 0 || rank >= nranks)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "the id is unknown, or the rank is out of range");
    tutti_nccl_comm comm = standin_nccl_make(&id, rank, nranks, standin_cuda()->current());
    if (comm == NULL) return standin_nccl_fail(TUTTI_NCCL_SYSTEM_ERROR, "rank 0's process has ended");
    pthread_t thread;
    atomic_store(&comm->state, TUTTI_NCCL_IN_PROGRESS);
    atomic_store(&comm->pending, 1);
    if (pthread_create(&thread, NULL, open_thread, comm) != 0) abort();
    pthread_detach(thread);
    *comm_out = comm;
    return TUTTI_NCCL_IN_PROGRESS;
}

/* -------------------------------------------------------------------------------------------------- the end */

/* It has no work in progress any more. */
static void dispose(tutti_nccl_comm comm) {
    munmap(comm->area, sizeof *comm->area);
    if (comm->area_file >= 0) close(comm->area_file);
    comm->magic = 0;
    free(comm);
}

static void wait_for_end(tutti_nccl_comm comm) {
    for (int waits = 0; atomic_load(&comm->pending) > 0; waits++) {
        if (waits > 30 * 1000) {
            fprintf(stderr, "NCCL's stand-in: rank %d waits for its own calls for 30 s\n", comm->rank);
            abort();
        }
        usleep(1000);
    }
}

tutti_nccl_result ncclCommAbort(tutti_nccl_comm comm) {
    if (comm == NULL || comm->magic != MAGIC) abort();
    atomic_store(&comm->abort, true);
    wait_for_end(comm);
    dispose(comm);
    return OK;
}

tutti_nccl_result ncclCommDestroy(tutti_nccl_comm comm) {
    tutti_nccl_result made = standin_nccl_check(comm, "ncclCommDestroy");
    if (made != OK) return made;
    wait_for_end(comm);
    if (atomic_load(&comm->registered) != 0) fprintf(stderr, "NCCL's stand-in: memory is still registered\n");
    dispose(comm);
    return OK;
}

static void *finalize_thread(void *context) {
    tutti_nccl_comm comm = context;
    while (atomic_load(&comm->pending) > 1 && !atomic_load(&comm->abort)) usleep(100);
    atomic_store(&comm->state, OK);
    atomic_fetch_sub(&comm->pending, 1);
    return NULL;
}

tutti_nccl_result ncclCommFinalize(tutti_nccl_comm comm) {
    pthread_t thread;
    tutti_nccl_result made = standin_nccl_check(comm, "ncclCommFinalize");
    if (made != OK) return made;
    atomic_store(&comm->state, TUTTI_NCCL_IN_PROGRESS);
    atomic_fetch_add(&comm->pending, 1);
    if (pthread_create(&thread, NULL, finalize_thread, comm) != 0) abort();
    pthread_detach(thread);
    return TUTTI_NCCL_IN_PROGRESS;
}

tutti_nccl_result ncclCommGetAsyncError(tutti_nccl_comm comm, tutti_nccl_result *error) {
    if (comm == NULL || comm->magic != MAGIC) abort();
    *error = (tutti_nccl_result)atomic_load(&comm->state);
    return OK;
}
