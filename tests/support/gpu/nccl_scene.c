/*
 * Shared by tests of NCCL on stand-ins. See nccl_scene.h.
 */
#include "tests/support/gpu/nccl_scene.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"

#define ARENA_BYTES ((size_t)8 << 20)

void nccl_run(const int *sizes, const char *const *environment, ranks_body body) {
    ranks_adopt(environment); /* for threads */
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 200, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

void nccl_run_processes(int nranks, const char *const *environment, ranks_body body) {
    if (!ranks_have_processes()) cr_skip_test("calls are counted per process");
    const char *failure = ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = nranks, .timeout_s = 60, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

tutti_status nccl_with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_status status = cuda_rank_open(context, ARENA_BYTES, &rank);
    if (status == TUTTI_OK) status = body(context, &rank);
    if (status == TUTTI_OK) status = cuda_rank_close(&rank, context->comm);
    return status;
}

int nccl_count(const char *name) {
    int (*count)(const char *name) = NULL;
    void *library = dlopen(getenv("TUTTI_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library != NULL ? dlsym(library, "standin_nccl_count") : NULL;
    if (symbol == NULL) return -1;
    memcpy(&count, &symbol, sizeof count);
    return count(name);
}

tutti_status nccl_capture(tutti_stream stream, bool captures) {
    void (*tell)(void *stream, bool captures);
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_capture") : NULL;
    RANKS_CHECK(symbol != NULL, "no standin_capture");
    memcpy(&tell, &symbol, sizeof tell);
    tell(stream, captures);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- failures */

struct nccl_stage *nccl_stage;

void nccl_set_stage(void) {
    nccl_stage = mmap(NULL, sizeof *nccl_stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(nccl_stage, MAP_FAILED);
}

void nccl_run_as(int nranks, ranks_kind kind, const char *const *environment, ranks_body body) {
    if (kind == RANKS_PROCESSES && !ranks_have_processes()) return;
    ranks_adopt(environment); /* for threads */
    /* NCCL's own calls free memory, and an abort waits for the calls of other threads: where CUDA blocks those until
     * a free has ended, ranks that are threads hang after a failure (docs/cuda.md). */
    if (kind == RANKS_THREADS) setenv("STANDIN_FREE_ALONE", "0", 1);
    const char *failure =
        ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .timeout_s = 60, .environment = environment}, body);
    cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
}

tutti_status nccl_meet(const ranks_context *context) {
    long turn = atomic_fetch_add(&nccl_stage->arrived, 1) / context->nranks;
    for (int i = 0; atomic_load(&nccl_stage->arrived) < (turn + 1) * context->nranks; i++) {
        RANKS_CHECK(i < 3000, "a rank did not come to meet the others");
        usleep(10000);
    }
    return TUTTI_OK;
}

tutti_status nccl_open_rank(const ranks_context *context, cuda_rank *rank, void **memory_out) {
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, rank));
    TUTTI_TRY(cuda_alloc(rank, 4096, memory_out));
    return rank->device->fill(*memory_out, 0, 4096, rank->streams[0]);
}

tutti_status nccl_sum_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms,
                             tutti_work **work_out) {
    return tutti_all_reduce(comm, memory, memory, 256, nccl_stage->ordered ? TUTTI_INT16 : TUTTI_INT32, TUTTI_SUM,
                            &TUTTI_OPTIONS(.stream = rank->streams[0], .timeout_ms = timeout_ms, .work = work_out));
}

tutti_status nccl_sum(tutti_comm *comm, cuda_rank *rank, void *memory, tutti_work **work_out) {
    return nccl_sum_within(comm, rank, memory, 0, work_out);
}

tutti_status nccl_wait_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms) {
    tutti_work *work = NULL;
    TUTTI_TRY(nccl_sum_within(comm, rank, memory, timeout_ms, &work));
    tutti_status status = tutti_work_wait(work, -1);
    if (status != TUTTI_OK) tutti_fail(status, "%s", tutti_work_error(work));
    tutti_work_free(work);
    return status;
}

tutti_status nccl_sum_and_wait(tutti_comm *comm, cuda_rank *rank, void *memory) {
    return nccl_wait_within(comm, rank, memory, 0);
}

tutti_status nccl_check_streams(cuda_rank *rank) {
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(took_ms < 20000, "the stream went on after %lld ms", (long long)took_ms);
    return TUTTI_OK;
}
