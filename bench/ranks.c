/*
 * Ranks as forked processes or as threads, which meet in a store in shared memory.
 *
 *   parent: maps the store, starts the ranks, waits; it is not a rank itself
 *   ranks:  make a communicator through the store, run the body, exit
 *
 * The store is a list of entries in a shared mapping, newest first; an entry is never changed, only hidden by a newer
 * one of the same key. The mutex is robust: linking an entry in is the last step, so the list is whole whenever the
 * holder of the mutex dies.
 */
#include "bench/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 2000

typedef struct entry {
    size_t older; /* offset of the next entry in the list; 0: none */
    size_t key_bytes, value_bytes;
    char bytes[]; /* the key with its terminator, then the value */
} entry;

typedef struct store {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t capacity, used; /* bytes of the mapping */
    size_t newest;         /* offset of an entry; 0: none */
} store;

static tutti_status store_create(int nranks, store **store_out) {
    size_t capacity = ((size_t)nranks + 16) << 20; /* address space; only written pages become memory */
    store *s = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED)
        return tutti_fail(TUTTI_ERR_MEMORY, "no shared mapping of %zu bytes for the store: %s", capacity,
                          strerror(errno));
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->mutex, &mutex);
    pthread_condattr_t changed;
    pthread_condattr_init(&changed);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&changed, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &changed);
    s->capacity = capacity;
    s->used = sizeof *s;
    *store_out = s;
    return TUTTI_OK;
}

static void store_destroy(store *s) {
    munmap(s, s->capacity);
}

static void lock(store *s) {
    if (pthread_mutex_lock(&s->mutex) == EOWNERDEAD) pthread_mutex_consistent(&s->mutex);
}

static void unlock(store *s) {
    pthread_mutex_unlock(&s->mutex);
}

/* The functions below require the lock, unless the name begins with store_. */

static entry *at(store *s, size_t offset) {
    return (entry *)((char *)s + offset);
}

static const entry *find(store *s, const char *key) {
    for (size_t next = s->newest; next != 0; next = at(s, next)->older)
        if (strcmp(at(s, next)->bytes, key) == 0) return at(s, next);
    return NULL;
}

static tutti_status append(store *s, const char *key, const void *value, size_t bytes) {
    size_t key_bytes = strlen(key) + 1;
    size_t offset = (s->used + 15) & ~(size_t)15;
    size_t end = offset + sizeof(entry) + key_bytes + bytes;
    if (end > s->capacity) return tutti_fail(TUTTI_ERR_MEMORY, "the ranks' store is full (%zu bytes)", s->capacity);
    entry *e = at(s, offset);
    *e = (entry){.older = s->newest, .key_bytes = key_bytes, .value_bytes = bytes};
    memcpy(e->bytes, key, key_bytes);
    memcpy(e->bytes + key_bytes, value, bytes);
    s->used = end;
    __atomic_store_n(&s->newest, offset, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&s->changed);
    return TUTTI_OK;
}

static tutti_status store_set(void *context, const char *key, const void *value, size_t bytes) {
    lock(context);
    tutti_status status = append(context, key, value, bytes);
    unlock(context);
    return status;
}

static tutti_status copy_value(const entry *e, const char *key, void *value, size_t capacity, size_t *bytes_out) {
    if (e == NULL) return tutti_fail(TUTTI_ERR_TIMEOUT, "no rank has set '%s' in the ranks' store in time", key);
    if (e->value_bytes > capacity)
        return tutti_fail(TUTTI_ERR_DATA, "the value of '%s' has %zu bytes, at most %zu fit", key, e->value_bytes,
                          capacity);
    memcpy(value, e->bytes + e->key_bytes, e->value_bytes);
    *bytes_out = e->value_bytes;
    return TUTTI_OK;
}

static tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    store *s = context;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    lock(s);
    const entry *e;
    int error = 0;
    while ((e = find(s, key)) == NULL && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&s->changed, &s->mutex, &until);
        if (error == EOWNERDEAD) pthread_mutex_consistent(&s->mutex);
    }
    tutti_status status = copy_value(e, key, value, capacity, bytes_out);
    unlock(s);
    return status;
}

/* Counters are kept as PyTorch's stores keep them, as decimal text. */
static tutti_status store_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    char text[32] = "0";
    size_t bytes;
    lock(context);
    const entry *e = find(context, key);
    tutti_status status = e != NULL ? copy_value(e, key, text, sizeof text - 1, &bytes) : TUTTI_OK;
    int64_t value = strtoll(text, NULL, 10) + amount;
    int length = snprintf(text, sizeof text, "%lld", (long long)value);
    if (status == TUTTI_OK) status = append(context, key, text, (size_t)length);
    unlock(context);
    if (status == TUTTI_OK) *value_out = value;
    return status;
}

static tutti_status store_check(void *context, const char *key, int *exists_out) {
    lock(context);
    *exists_out = find(context, key) != NULL;
    unlock(context);
    return TUTTI_OK;
}

/* Called before the communicator is made, so that the ranks detect that they do not share cores. */
static void bind_to_core(int local_rank) {
    cpu_set_t usable, mine;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
    int turn = local_rank % CPU_COUNT(&usable);
    CPU_ZERO(&mine);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &usable) && turn-- == 0) CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

static int run_body(tutti_status status, bench_rank *self, const bench_start *start) {
    if (status != TUTTI_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", self->rank, tutti_status_name(status), tutti_last_error());
        return EXIT_FAILURE;
    }
    int code = start->body(self, start->context);
    tutti_comm_destroy(self->world);
    return code;
}

int bench_ranks_local(const bench_rank *self) {
    tutti_world world;
    if (tutti_world_get(&world) != TUTTI_OK) return 1;
    return self->size > world.size ? self->size
                                   : world.local_size; /* more than the launcher's ranks: they were started here */
}

int bench_ranks_join(const tutti_world *world, const bench_start *start) {
    bench_rank self = {.rank = world->rank, .size = world->size, .local_rank = world->local_rank};
    if (start->bind) bind_to_core(self.local_rank);
    tutti_status status = tutti_comm_create_world(&self.world);
    return run_body(status, &self, start);
}

/* Runs one of the ranks that are started here, from its communicator to its exit code. */
static int run_started(int rank, int nranks, store *s, const bench_start *start) {
    bench_rank self = {.rank = rank, .size = nranks, .local_rank = rank};
    tutti_store callbacks = {.struct_bytes = sizeof callbacks,
                             .context = s,
                             .set = store_set,
                             .get = store_get,
                             .add = store_add,
                             .check = store_check};
    if (start->bind) bind_to_core(rank);
    tutti_comm_options named = TUTTI_COMM_OPTIONS(.name = "world");
    tutti_status status = tutti_comm_create(rank, nranks, &callbacks, "bench", &named, &self.world);
    return run_body(status, &self, start);
}

/* --------------------------------------------------------------------------------------------- processes */

/* Returns the pid, or -1 if fork fails. */
static pid_t start_child(int rank, int nranks, store *s, const bench_start *start) {
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE); /* the parent died before the line above */
    exit(run_started(rank, nranks, s, start));
}

static void kill_all(const pid_t *pids, int nranks) {
    for (int rank = 0; rank < nranks; rank++)
        if (pids[rank] > 0) kill(pids[rank], SIGKILL);
}

/* Reports a rank that failed, and clears its pid. */
static int note_end(pid_t *pids, int nranks, pid_t pid, int status) {
    int rank = 0;
    while (rank < nranks && pids[rank] != pid) rank++;
    if (rank < nranks) pids[rank] = 0;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    fprintf(stderr, "rank %d (pid %d) was killed by signal %d (%s)\n", rank, (int)pid, WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    return 128 + WTERMSIG(status);
}

static int wait_for_children(pid_t *pids, int nranks, int first_code) {
    int code = first_code;
    int patience_ms = GRACE_MS;
    for (int left = nranks; left > 0;) {
        int status;
        pid_t pid = waitpid(-1, &status, code == 0 ? 0 : WNOHANG);
        if (pid > 0) {
            int end = note_end(pids, nranks, pid, status);
            if (code == 0) code = end;
            left--;
        } else if (pid == 0) {
            if (patience_ms == 0) kill_all(pids, nranks);
            patience_ms -= 10;
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        } else if (errno != EINTR) {
            break;
        }
    }
    return code;
}

int bench_ranks_fork(int nranks, const bench_start *start) {
    pid_t pids[BENCH_RANKS_MOST];
    store *s = NULL;
    if (store_create(nranks, &s) != TUTTI_OK) {
        fprintf(stderr, "cannot start the ranks: %s\n", tutti_last_error());
        return EXIT_FAILURE;
    }
    int started = 0;
    fflush(NULL);
    while (started < nranks && (pids[started] = start_child(started, nranks, s, start)) > 0) started++;
    int code = 0;
    if (started < nranks) {
        fprintf(stderr, "cannot fork rank %d of %d: %s\n", started, nranks, strerror(errno));
        code = EXIT_FAILURE;
        kill_all(pids, started);
    }
    code = wait_for_children(pids, started, code);
    store_destroy(s);
    return code;
}

/* ----------------------------------------------------------------------------------------------- threads */

/* The state that the threads share; counters under the lock. */
typedef struct crew {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int nranks, busy, code; /* code: exit code of the first failure */
    store *store;
    const bench_start *start;
} crew;

typedef struct member {
    crew *crew;
    int rank;
    pthread_t thread;
} member;

static void *run_thread(void *context) {
    const member *m = context;
    crew *c = m->crew;
    int code = run_started(m->rank, c->nranks, c->store, c->start);
    pthread_mutex_lock(&c->lock);
    if (c->code == 0) c->code = code;
    c->busy--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Waits until all have ended, or until GRACE_MS after the first failure. */
static void wait_for_threads(crew *c) {
    struct timespec until;
    pthread_mutex_lock(&c->lock);
    while (c->busy > 0 && c->code == 0) pthread_cond_wait(&c->changed, &c->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GRACE_MS / 1000;
    for (int error = 0; c->busy > 0 && error == 0;) error = pthread_cond_timedwait(&c->changed, &c->lock, &until);
    if (c->busy > 0) { /* single threads cannot be ended */
        fflush(NULL);
        _exit(c->code);
    }
    pthread_mutex_unlock(&c->lock);
}

static int run_crew(crew *c, member *members) {
    int started = 0;
    for (; started < c->nranks; started++) {
        members[started] = (member){.crew = c, .rank = started};
        if (pthread_create(&members[started].thread, NULL, run_thread, &members[started]) != 0) break;
    }
    pthread_mutex_lock(&c->lock);
    c->busy -= c->nranks - started;
    if (started < c->nranks) {
        fprintf(stderr, "cannot start rank %d of %d as a thread\n", started, c->nranks);
        c->code = EXIT_FAILURE; /* the others wait for it */
    }
    pthread_mutex_unlock(&c->lock);
    wait_for_threads(c);
    for (int i = 0; i < started; i++) pthread_join(members[i].thread, NULL);
    return c->code;
}

int bench_ranks_threads(int nranks, const bench_start *start) {
    crew c = {.lock = PTHREAD_MUTEX_INITIALIZER,
              .changed = PTHREAD_COND_INITIALIZER,
              .nranks = nranks,
              .busy = nranks,
              .start = start};
    member *members = calloc((size_t)nranks, sizeof *members);
    int code = EXIT_FAILURE;
    if (members == NULL || store_create(nranks, &c.store) != TUTTI_OK)
        fprintf(stderr, "cannot start the ranks: %s\n", members == NULL ? "no memory" : tutti_last_error());
    else code = run_crew(&c, members);
    if (c.store != NULL) store_destroy(c.store);
    free(members);
    return code;
}
