/*
 * Runs a body on n ranks and gathers the first failure.
 *
 * Processes: one fork per rank, in a process group of their own. A rank leaves its status and text in a slot of
 * shared memory and ends by _exit, after it has run the leak checker (if linked in); an end without a report is a
 * failure, unless the test killed the rank itself. The first failure kills the group. Threads: the first failure
 * aborts all communicators, so that the others return. A thread that is still stuck at the time limit can only be
 * ended together with the test's process.
 */
#include "tests/support/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"

#define TEXT_BYTES    2304
#define CREATE_PREFIX "ranks"

/* Defined if the leak sanitizer is linked in. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

/* Written by the rank, read by the parent after the rank has ended; `forgiven` and `pid` at any time. */
typedef struct slot {
    atomic_int pid;
    atomic_bool forgiven; /* may end without a report */
    atomic_bool reported; /* release after status and text */
    tutti_status status;
    int64_t ended_ns; /* when the body returned */
    char text[TEXT_BYTES];
} slot;

typedef struct run {
    const ranks_options *options;
    ranks_body body;
    tutti_store store;
    slot *slots;
    pthread_mutex_t lock; /* protects comms and failed; threads only */
    pthread_cond_t changed;
    tutti_comm **comms;
    int running;
    int failed; /* rank that failed first, or -1 */
} run;

/* The run that a body belongs to, for ranks_strike and similar calls. One at a time. */
static run *current;
static char failure[TEXT_BYTES + 64];

void ranks_adopt(const char *const *environment) {
    for (int i = 0; environment[i] != NULL; i++) {
        char name[64];
        const char *equals = strchr(environment[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - environment[i]), environment[i]);
        setenv(name, equals + 1, 1);
    }
    tutti_settings_reload();
}

bool ranks_have_processes(void) {
#if defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}

static size_t slots_bytes(const run *r) {
    return (size_t)r->options->nranks * sizeof(slot);
}

static void leave_report(slot *s, tutti_status status) {
    s->status = status;
    snprintf(s->text, sizeof s->text, "%s: %s", tutti_status_name(status), tutti_last_error());
    atomic_store_explicit(&s->reported, true, memory_order_release);
}

/* Runs a rank from start to end. `know` passes the communicator to a run of threads, and NULL before its end. */
static tutti_status live(run *r, int rank, void (*know)(run *, int, tutti_comm *)) {
    ranks_context context = {
        .rank = rank, .nranks = r->options->nranks, .argument = r->options->argument, .store = &r->store};
    if (r->options->enter != NULL) {
        TUTTI_TRY(r->options->enter(&context));
        tutti_settings_reload();
    }
    if (r->options->world) TUTTI_TRY(tutti_comm_create_world(&context.comm));
    else if (!r->options->no_comm)
        TUTTI_TRY(tutti_comm_create(rank, r->options->nranks, &r->store, CREATE_PREFIX, NULL, &context.comm));
    know(r, rank, context.comm);
    tutti_status status = r->body(&context);
    r->slots[rank].ended_ns = tutti_now_ns();
    know(r, rank, NULL);
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_status destroyed = tutti_comm_destroy(context.comm);
    return status != TUTTI_OK ? tutti_fail(status, "%s", text) : destroyed;
}

/* ------------------------------------------------------------------------------------------- processes */

static void know_nothing(run *r, int rank, tutti_comm *comm) {
    (void)r, (void)rank, (void)comm;
}

static void leave_unchecked(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static _Noreturn void be_process(run *r, int rank, pid_t parent, pid_t group) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3); /* it died before the line above */
    setpgid(0, group);
    for (const char *const *next = r->options->environment; next != NULL && *next != NULL; next++)
        putenv((char *)*next);
    tutti_settings_reload();
    slot *s = &r->slots[rank];
    atomic_store(&s->pid, getpid());
    tutti_status status = live(r, rank, know_nothing);
    leave_report(s, status);
    if (status == TUTTI_OK && __lsan_do_recoverable_leak_check != NULL) {
        /* If another thread held the allocator's lock at the fork, the check would wait forever. */
        signal(SIGALRM, leave_unchecked);
        alarm(5);
        if (__lsan_do_recoverable_leak_check() != 0)
            leave_report(s, status = tutti_fail(TUTTI_ERR_MEMORY, "the rank leaked memory: see the report"));
    }
    fflush(NULL);
    _exit(status == TUTTI_OK ? 0 : 1);
}

/* Records the failure of a process that has ended; false when there is none. */
static bool ended_badly(const slot *s, int rank, int wait_status) {
    bool reported = atomic_load_explicit(&s->reported, memory_order_acquire);
    if (reported && s->status != TUTTI_OK) {
        snprintf(failure, sizeof failure, "rank %d: %s", rank, s->text);
        return true;
    }
    if (reported && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return false;
    if (atomic_load(&s->forgiven)) return false;
    if (WIFSIGNALED(wait_status))
        snprintf(failure, sizeof failure, "rank %d: ended by signal %d (%s)", rank, WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(failure, sizeof failure, "rank %d: ended with exit code %d%s", rank, WEXITSTATUS(wait_status),
                 reported ? " after its report" : " before its report");
    return true;
}

/* The number of ranks that must still end by themselves. */
static int count_expected(const run *r, const pid_t *pids) {
    int expected = 0;
    for (int i = 0; i < r->options->nranks; i++) expected += pids[i] > 0 && !atomic_load(&r->slots[i].forgiven);
    return expected;
}

static bool watch_processes(run *r, pid_t *pids, int64_t timeout_ms) {
    int64_t start_ns = tutti_now_ns();
    while (count_expected(r, pids) > 0) {
        bool ended = false;
        for (int i = 0; i < r->options->nranks; i++) {
            int wait_status;
            if (pids[i] <= 0 || waitpid(pids[i], &wait_status, WNOHANG) != pids[i]) continue;
            ended = true;
            pids[i] = 0;
            if (ended_badly(&r->slots[i], i, wait_status)) return false;
        }
        if (ended) continue;
        if (tutti_now_ns() - start_ns > timeout_ms * 1000000) {
            int stuck = 0;
            while (pids[stuck] <= 0 || atomic_load(&r->slots[stuck].forgiven)) stuck++;
            snprintf(failure, sizeof failure, "rank %d: not done after %lld ms; all were killed", stuck,
                     (long long)timeout_ms);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    return true;
}

/* One failure soon causes others: prints the first of those that are reported within a moment. */
static void tell_first_failure(const run *r) {
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    const slot *first = NULL;
    for (int i = 0; i < r->options->nranks; i++) {
        const slot *s = &r->slots[i];
        if (!atomic_load_explicit(&s->reported, memory_order_acquire) || s->status == TUTTI_OK) continue;
        if (first == NULL || s->ended_ns < first->ended_ns) first = s;
    }
    if (first != NULL) snprintf(failure, sizeof failure, "rank %d: %s", (int)(first - r->slots), first->text);
}

static bool run_processes(run *r, int64_t timeout_ms) {
    int nranks = r->options->nranks;
    pid_t parent = getpid(), pids[nranks];
    memset(pids, 0, sizeof pids);
    fflush(NULL); /* else each child writes this process's buffered output once more */
    bool good = true;
    for (int i = 0; i < nranks && good; i++) {
        pids[i] = fork();
        if (pids[i] == 0) be_process(r, i, parent, i == 0 ? 0 : pids[0]);
        if (pids[i] > 0) {
            setpgid(pids[i], pids[0]);
        } else {
            snprintf(failure, sizeof failure, "fork of rank %d: %s", i, strerror(errno));
            good = false;
        }
    }
    pid_t group = pids[0];
    if (good && !watch_processes(r, pids, timeout_ms)) {
        good = false;
        tell_first_failure(r);
    }
    if (group > 0) kill(-group, SIGKILL); /* the ranks that still run, and what they have forked */
    for (int i = 0; i < nranks; i++)
        if (pids[i] > 0) waitpid(pids[i], NULL, 0);
    return good;
}

/* --------------------------------------------------------------------------------------------- threads */

typedef struct thread_argument {
    run *run;
    int rank;
} thread_argument;

static void know_comm(run *r, int rank, tutti_comm *comm) {
    pthread_mutex_lock(&r->lock);
    r->comms[rank] = comm;
    if (comm != NULL && r->failed >= 0) tutti_comm_abort(comm, "another rank of the test failed");
    pthread_mutex_unlock(&r->lock);
}

static void *be_thread(void *argument) {
    run *r = ((thread_argument *)argument)->run;
    int rank = ((thread_argument *)argument)->rank;
    tutti_status status = live(r, rank, know_comm);
    pthread_mutex_lock(&r->lock);
    leave_report(&r->slots[rank], status);
    if (status != TUTTI_OK && r->failed < 0) {
        r->failed = rank;
        for (int i = 0; i < r->options->nranks; i++)
            if (r->comms[i] != NULL) tutti_comm_abort(r->comms[i], "another rank of the test failed");
    }
    r->running--;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Waits until no thread runs; ends the process at the time limit, since a thread cannot be killed alone. */
static void await_threads(run *r, int64_t timeout_ms) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000;
    pthread_mutex_lock(&r->lock);
    while (r->running > 0) {
        if (pthread_cond_timedwait(&r->changed, &r->lock, &end) != ETIMEDOUT) continue;
        int stuck = 0;
        while (atomic_load(&r->slots[stuck].reported)) stuck++;
        fprintf(stderr, "rank %d (a thread): not done after %lld ms%s%s\n", stuck, (long long)timeout_ms,
                r->failed >= 0 ? "; first failure: " : "", r->failed >= 0 ? r->slots[r->failed].text : "");
        abort();
    }
    pthread_mutex_unlock(&r->lock);
}

static bool run_threads(run *r, int64_t timeout_ms) {
    int nranks = r->options->nranks;
    pthread_t threads[nranks];
    thread_argument arguments[nranks];
    tutti_comm *comms[nranks];
    memset(comms, 0, sizeof comms);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->comms = comms;
    r->running = nranks;
    for (int i = 0; i < nranks; i++) {
        arguments[i] = (thread_argument){.run = r, .rank = i};
        if (pthread_create(&threads[i], NULL, be_thread, &arguments[i]) != 0) {
            fprintf(stderr, "cannot start a thread for rank %d\n", i);
            abort();
        }
    }
    await_threads(r, timeout_ms);
    for (int i = 0; i < nranks; i++) pthread_join(threads[i], NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    if (r->failed >= 0) snprintf(failure, sizeof failure, "rank %d: %s", r->failed, r->slots[r->failed].text);
    return r->failed < 0;
}

/* ------------------------------------------------------------------------------------------------- both */

/* The part of TUTTI_TEST_WORLDS for that kind: "2,8/2,4" is processes, then threads; NULL: all worlds are wanted. */
static const char *wanted_list(ranks_kind kind) {
    const char *list = getenv("TUTTI_TEST_WORLDS");
    if (list == NULL || kind == RANKS_PROCESSES) return list;
    const char *threads = strchr(list, '/');
    return threads != NULL ? threads + 1 : NULL;
}

static bool is_wanted(const char *list, int size) {
    while (*list != '\0' && *list != '/') {
        if (atoi(list) == size) return true;
        list += strcspn(list, ",/");
        if (*list == ',') list++;
    }
    return false;
}

const char *ranks_run(const ranks_options *options, ranks_body body) {
    run r = {.options = options, .body = body, .failed = -1};
    int64_t timeout_ms = 1000 * (int64_t)(options->timeout_s > 0 ? options->timeout_s : 60);
    const char *wanted = wanted_list(options->kind);
    if (wanted != NULL && is_wanted(wanted, 0)) return NULL;
    if (ranks_store_create(&r.store) != TUTTI_OK) return tutti_last_error();
    r.slots = mmap(NULL, slots_bytes(&r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.slots == MAP_FAILED) {
        ranks_store_destroy(&r.store);
        return "cannot map shared memory for the reports of the ranks";
    }
    current = &r;
    bool good = options->kind == RANKS_PROCESSES ? run_processes(&r, timeout_ms) : run_threads(&r, timeout_ms);
    current = NULL;
    munmap(r.slots, slots_bytes(&r));
    ranks_store_destroy(&r.store);
    return good ? NULL : failure;
}

/* If none of a test's worlds is wanted, its first one runs, so that no test passes without a run. */
static bool is_to_run(const int *sizes, const int *size, ranks_kind kind) {
    const char *list = wanted_list(kind);
    bool any = false;
    if (list == NULL) return true;
    for (const int *other = sizes; *other > 0; other++) any = any || is_wanted(list, *other);
    return any ? is_wanted(list, *size) : size == sizes;
}

const char *ranks_run_worlds(const int *sizes, const ranks_options *options, ranks_body body) {
    static char text[sizeof failure + 64];
    for (int kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS; kind <= RANKS_THREADS; kind++) {
        for (const int *size = sizes; *size > 0; size++) {
            ranks_options world = options != NULL ? *options : (ranks_options){0};
            if (!is_to_run(sizes, size, (ranks_kind)kind)) continue;
            world.kind = (ranks_kind)kind;
            world.nranks = *size;
            const char *failed = ranks_run(&world, body);
            if (failed == NULL) continue;
            snprintf(text, sizeof text, "%d %s: %s", *size, kind == RANKS_PROCESSES ? "processes" : "threads", failed);
            return text;
        }
    }
    return NULL;
}

void ranks_forgive(const ranks_context *context, int rank) {
    (void)context;
    atomic_store(&current->slots[rank].forgiven, true);
}

void ranks_strike(const ranks_context *context, int signal_number) {
    ranks_forgive(context, context->rank);
    raise(signal_number);
}

int ranks_pid(const ranks_context *context, int rank) {
    (void)context;
    return atomic_load(&current->slots[rank].pid);
}
