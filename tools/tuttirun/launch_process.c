/*
 * Starts one rank: its environment (torchrun's variables), the destinations of its output, and the fork.
 *
 * A rank leads a process group of its own, so that all processes it starts can be ended with it, and asks the
 * kernel to kill it when tuttirun dies. Between fork and exec only async-signal-safe functions are called: the
 * store's thread may have held any lock at the fork.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tools/tuttirun/launch.h"

extern char **environ;

/* ------------------------------------------------------------------------------------------ environment */

typedef struct variables {
    char **items; /* our own first, [0..nown), then the inherited ones; NULL at the end */
    size_t count, nown;
} variables;

enum { MOST_OWN = 32 };

static size_t name_bytes(const char *item) {
    return strcspn(item, "=") + 1;
}

/* Sets a variable, which replaces an inherited one of the same name. Fails if an allocation fails, since the rank
 * would lack the variable. */
TUTTI_PRINTF(2, 3) static tutti_status set_variable(variables *list, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the environment of a rank");
    list->items[list->nown++] = text;
    return TUTTI_OK;
}

static void free_variables(variables *list) {
    for (size_t i = 0; i < list->nown; i++) free(list->items[i]);
    free(list->items);
}

static tutti_status set_places(const tutti_launch_job *job, int local_rank, variables *list) {
    const tutti_launch_options *options = job->options;
    const int rank = tutti_launch_rank_of(options, local_rank), size = options->size;
    TUTTI_TRY(set_variable(list, "RANK=%d", rank));
    TUTTI_TRY(set_variable(list, "WORLD_SIZE=%d", size));
    TUTTI_TRY(set_variable(list, "LOCAL_RANK=%d", local_rank));
    TUTTI_TRY(set_variable(list, "LOCAL_WORLD_SIZE=%d", options->nproc));
    TUTTI_TRY(set_variable(list, "GROUP_RANK=%d", options->node_rank));
    TUTTI_TRY(set_variable(list, "GROUP_WORLD_SIZE=%d", options->nnodes));
    TUTTI_TRY(set_variable(list, "ROLE_RANK=%d", rank));
    TUTTI_TRY(set_variable(list, "ROLE_WORLD_SIZE=%d", size));
    TUTTI_TRY(set_variable(list, "ROLE_NAME=%.200s", options->role));
    TUTTI_TRY(set_variable(list, "RANK_ID=%d", rank)); /* MindSpore's names */
    TUTTI_TRY(set_variable(list, "RANK_SIZE=%d", size));
    TUTTI_TRY(set_variable(list, "DEVICE_ID=%d",
                           options->entries != NULL ? options->entries[local_rank].device : local_rank));
    if (options->entries != NULL) TUTTI_TRY(set_variable(list, "RANK_TABLE_FILE=%s", options->rank_table));
    TUTTI_TRY(set_variable(list, "MASTER_ADDR=%.255s", job->master_addr));
    return set_variable(list, "MASTER_PORT=%d", job->master_port);
}

static tutti_status set_job(const tutti_launch_job *job, int attempt, const tutti_launch_rank *rank, variables *list) {
    const tutti_launch_options *options = job->options;
    TUTTI_TRY(set_variable(list, "TORCHELASTIC_RESTART_COUNT=%d", attempt));
    TUTTI_TRY(set_variable(list, "TORCHELASTIC_MAX_RESTARTS=%d", options->max_restarts));
    TUTTI_TRY(set_variable(list, "TORCHELASTIC_RUN_ID=%.255s", options->run_id));
    TUTTI_TRY(set_variable(list, "TORCHELASTIC_USE_AGENT_STORE=True"));
    TUTTI_TRY(set_variable(list, "PYTHONUNBUFFERED=1"));
    if (rank->error_file[0] != '\0') TUTTI_TRY(set_variable(list, "TORCHELASTIC_ERROR_FILE=%s", rank->error_file));
    if (job->made_secret) TUTTI_TRY(set_variable(list, "TUTTI_SECRET=%s", job->secret));
    if (getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL)
        TUTTI_TRY(set_variable(list, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"));
    if (options->nproc > 1 && getenv("OMP_NUM_THREADS") == NULL) TUTTI_TRY(set_variable(list, "OMP_NUM_THREADS=1"));
    return TUTTI_OK;
}

static tutti_status make_environment(const tutti_launch_job *job, int attempt, const tutti_launch_rank *rank,
                                     variables *list) {
    size_t inherited = 0;
    while (environ[inherited] != NULL) inherited++;
    TUTTI_TRY(tutti_calloc(inherited + MOST_OWN + 1, sizeof(char *), &list->items));
    TUTTI_TRY(set_places(job, rank->local_rank, list));
    TUTTI_TRY(set_job(job, attempt, rank, list));
    list->count = list->nown;
    for (size_t i = 0; i < inherited; i++) {
        size_t same = 0;
        while (same < list->nown && strncmp(list->items[same], environ[i], name_bytes(environ[i])) != 0) same++;
        if (same == list->nown) list->items[list->count++] = environ[i];
    }
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- output */

static tutti_status make_folder(const char *path) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return tutti_fail(TUTTI_ERR_SYSTEM, "cannot make the folder %s: %s", part, strerror(errno));
        if (slash == NULL) return TUTTI_OK;
        *slash = '/';
    }
}

static bool wants_files(const tutti_launch_options *options) {
    int mask = 0;
    for (int i = 0, one; i < options->nproc; i++) {
        if (tutti_launch_mask(options->tee, i, &one) == TUTTI_OK) mask |= one;
        if (tutti_launch_mask(options->redirects, i, &one) == TUTTI_OK) mask |= one;
    }
    return mask != 0;
}

/* Whether files have OneFlow's names: --logdir without torchrun's options for files. */
static bool has_old_names(const tutti_launch_options *options) {
    return options->redirect_all || (options->logdir != NULL && options->log_dir == NULL && !wants_files(options));
}

tutti_status tutti_launch_log_root(tutti_launch_job *job) {
    const tutti_launch_options *options = job->options;
    const char *folder = options->log_dir != NULL ? options->log_dir : options->logdir;
    job->log_root[0] = '\0';
    if (has_old_names(options)) {
        if (strlen(options->logdir) >= sizeof job->log_root)
            return tutti_fail(TUTTI_ERR_CONFIG, "--logdir has %zu characters; at most %zu are supported",
                              strlen(options->logdir), sizeof job->log_root - 1);
        strcpy(job->log_root, options->logdir);
        return make_folder(job->log_root);
    }
    if (options->log_dir == NULL && !wants_files(options)) return TUTTI_OK;
    if (folder != NULL) TUTTI_TRY(make_folder(folder));
    char id[101];
    snprintf(id, sizeof id, "%s", options->run_id);
    for (char *c = id; *c != '\0'; c++)
        if (*c == '/') *c = '_';
    int bytes = snprintf(job->log_root, sizeof job->log_root, "%s/%s_XXXXXX", folder != NULL ? folder : "/tmp", id);
    if (bytes >= (int)sizeof job->log_root || mkdtemp(job->log_root) == NULL)
        return tutti_fail(TUTTI_ERR_SYSTEM, "cannot make a folder for logs, %s: %s", job->log_root, strerror(errno));
    tutti_launch_say("logs are in %s", job->log_root);
    return TUTTI_OK;
}

/* Creates the folder of the rank, and writes its name to `folder`. */
static tutti_status log_folder(const tutti_launch_job *job, int attempt, int local_rank, char *folder,
                               size_t capacity) {
    const tutti_launch_options *options = job->options;
    if (options->rank_dirs != NULL)
        snprintf(folder, capacity, "%s%d", options->rank_dirs, tutti_launch_rank_of(options, local_rank));
    else if (has_old_names(options)) snprintf(folder, capacity, "%s/local_rank_%d", job->log_root, local_rank);
    else snprintf(folder, capacity, "%s/attempt_%d/%d", job->log_root, attempt, local_rank);
    return make_folder(folder);
}

/* Destination of one stream of a rank: the descriptor for the rank, and our end. */
typedef struct route {
    int rank_fd; /* descriptor for the rank; -1: it inherits ours */
    tutti_launch_stream stream;
} route;

static tutti_status open_file(const char *folder, const char *name, int *fd_out) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *fd_out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (*fd_out < 0) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    return TUTTI_OK;
}

static tutti_status open_route(const tutti_launch_job *job, int local_rank, int which, const char *folder, route *way) {
    const tutti_launch_options *options = job->options;
    int tee = 0, redirects = 0, file_fd = -1, ends[2];
    char name[32];
    bool old_names = has_old_names(options);
    TUTTI_TRY(tutti_launch_mask(options->tee, local_rank, &tee));
    TUTTI_TRY(tutti_launch_mask(options->redirects, local_rank, &redirects));
    if (old_names) tee = TUTTI_LAUNCH_BOTH;
    bool only_file = options->redirect_all || options->rank_dirs != NULL || (redirects & which & ~tee);
    bool shown = !only_file && tutti_launch_listed(options->local_ranks_filter, local_rank);
    snprintf(name, sizeof name, "%s%s", which == TUTTI_LAUNCH_OUT ? "stdout" : "stderr", old_names ? "" : ".log");
    if (options->rank_dirs != NULL) snprintf(name, sizeof name, "log%d", tutti_launch_rank_of(options, local_rank));
    if (only_file || (tee & which)) TUTTI_TRY(open_file(folder, name, &file_fd));
    if (only_file) {
        way->rank_fd = file_fd;
        return TUTTI_OK;
    }
    if (file_fd < 0 && shown && options->nproc == 1) return TUTTI_OK; /* a single rank writes to our output itself */
    if (pipe2(ends, O_CLOEXEC) != 0) {
        if (file_fd >= 0) close(file_fd);
        return tutti_fail_errno(errno, "pipe");
    }
    way->rank_fd = ends[1];
    int terminal_fd = which == TUTTI_LAUNCH_OUT ? STDOUT_FILENO : STDERR_FILENO;
    return tutti_launch_stream_open(ends[0], file_fd, shown ? terminal_fd : -1, local_rank, !options->no_prefix,
                                    &way->stream);
}

/* Writes the output of `env`, without the secret of the job. */
static tutti_status write_environment(const char *folder, int rank, const variables *list) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/env%d.log", folder, rank);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        const int error = errno;
        if (fd >= 0) close(fd);
        return tutti_fail_errno(error, "cannot write %s", path);
    }
    for (size_t i = 0; i < list->count; i++)
        if (strncmp(list->items[i], "TUTTI_SECRET=", name_bytes("TUTTI_SECRET=")) != 0)
            fprintf(file, "%s\n", list->items[i]);
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) return tutti_fail_errno(errno, "cannot write %s", path);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- start */

/* Called in the child: only async-signal-safe calls. */
static void fail_child(const char *const *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ssize_t written = write(STDERR_FILENO, parts[i], strlen(parts[i]));
        (void)written;
    }
    _exit(127);
}

/* Called in the child. The first rank gets stdin, as with mpirun, unless it is a terminal: ranks are not in its
 * foreground group. */
static void become_rank(const tutti_launch_job *job, pid_t parent, const char *folder, int out_fd, int err_fd,
                        int local_rank, char **environment) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* tuttirun died before the request */
    setpgid(0, 0);
    if (local_rank != 0 || isatty(STDIN_FILENO)) {
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
    }
    if (out_fd >= 0) dup2(out_fd, STDOUT_FILENO);
    if (err_fd >= 0) dup2(err_fd, STDERR_FILENO);
    setrlimit(RLIMIT_NOFILE, &job->child_files);
    tutti_launch_bind_self(&job->binding, local_rank);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &job->child_signals, NULL);
    const bool moved = job->options->rank_dirs == NULL || chdir(folder) == 0;
    if (moved) execvpe(job->argv[0], job->argv, environment);
    const char *reason = strerrordesc_np(errno);
    const char *parts[] = {moved ? "tuttirun: cannot run " : "tuttirun: cannot go to the folder ",
                           moved ? job->argv[0] : folder, ": ", reason != NULL ? reason : "?", "\n"};
    fail_child(parts, TUTTI_COUNT_OF(parts));
}

static tutti_status fork_rank(const tutti_launch_job *job, const char *folder, int out_fd, int err_fd,
                              char **environment, tutti_launch_rank *rank) {
    pid_t parent = getpid();
    rank->pid = fork();
    if (rank->pid < 0) return tutti_fail_errno(errno, "cannot start rank %d", rank->rank);
    if (rank->pid == 0) become_rank(job, parent, folder, out_fd, err_fd, rank->local_rank, environment);
    setpgid(rank->pid, rank->pid); /* parent and child both set it: either may run first */
    tutti_launch_keeper_add(job->keeper_fd, rank->pid);
    rank->running = true;
    return TUTTI_OK;
}

tutti_status tutti_launch_rank_start(const tutti_launch_job *job, int attempt, int local_rank,
                                     tutti_launch_rank *rank_out) {
    const tutti_launch_stream none = {.pipe_fd = -1, .file_fd = -1, .terminal_fd = -1};
    route out = {.rank_fd = -1, .stream = none}, err = {.rank_fd = -1, .stream = none};
    variables list = {0};
    char folder[PATH_MAX] = "";
    tutti_launch_rank rank = {.local_rank = local_rank, .rank = tutti_launch_rank_of(job->options, local_rank)};
    tutti_status status = TUTTI_OK;
    if (job->log_root[0] != '\0' || job->options->rank_dirs != NULL)
        TUTTI_TRY(log_folder(job, attempt, local_rank, folder, sizeof folder));
    if (job->log_root[0] != '\0') {
        snprintf(rank.error_file, sizeof rank.error_file, "%.4080s/error.json", folder);
    }
    TUTTI_TRY_GOTO(status, open_route(job, local_rank, TUTTI_LAUNCH_OUT, folder, &out), done);
    TUTTI_TRY_GOTO(status, open_route(job, local_rank, TUTTI_LAUNCH_ERR, folder, &err), done);
    TUTTI_TRY_GOTO(status, make_environment(job, attempt, &rank, &list), done);
    if (job->options->rank_dirs != NULL) TUTTI_TRY_GOTO(status, write_environment(folder, rank.rank, &list), done);
    TUTTI_TRY_GOTO(status, fork_rank(job, folder, out.rank_fd, err.rank_fd, list.items, &rank), done);
    rank.out = out.stream;
    rank.err = err.stream;
    *rank_out = rank;
done:
    if (out.rank_fd >= 0) close(out.rank_fd);
    if (err.rank_fd >= 0) close(err.rank_fd);
    if (status != TUTTI_OK) {
        tutti_launch_stream_close(&out.stream);
        tutti_launch_stream_close(&err.stream);
    }
    free_variables(&list);
    return status;
}
