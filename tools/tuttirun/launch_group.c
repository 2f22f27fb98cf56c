/*
 * Watches the ranks of one attempt until the last has ended.
 *
 *     RUNNING --a rank fails--> SETTLING (2 s) --> ENDING (SIGTERM, 5 s) --> KILLING (SIGKILL)
 *        \------- a signal for tuttirun: passed on ------^ (then 30 s; a second Ctrl-C kills at once)
 *
 * A rank that the kernel does not end (it waits for a device or a file server that does not answer) is left behind
 * after 20 s of KILLING.
 *
 * A failure on another node, reported by launch_nodes.c, counts like a local one. The first failure is logged when
 * it is detected; the failures that follow are logged in one line at the end. With several nodes, the attempt
 * lasts until the ranks of all nodes have ended. The process group of a rank is killed while its leader is a
 * zombie that still holds the number, so that the number cannot belong to another process.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "tools/tuttirun/launch.h"

enum { SETTLE_MS = 2000, TERM_MS = 5000, ASKED_MS = 30000, LOOK_MS = 1000, MOST_KILLS = 20, NOTED_KILLS = 3 };

typedef enum phase { RUNNING, SETTLING, ENDING, KILLING } phase;

typedef struct group {
    const tutti_launch_job *job;
    tutti_launch_rank *ranks;
    struct pollfd *polls;
    int nranks, nrunning;
    phase phase;
    int64_t phase_end_ns;
    int nkills;             /* number of times that SIGKILL was sent */
    int asked_signal;       /* signal that asked tuttirun to end, 0: none */
    int first_failed;       /* local rank of the first failure, -1: none */
    tutti_launch_news news; /* news from the other nodes */
    bool ending;            /* another node has failed first, or the store is lost */
    bool ended_reported;    /* the end of all ranks here has been reported to the other nodes */
} group;

/* --------------------------------------------------------------------------------------------- messages */

static const char *signal_name(int number) {
    const char *name = sigabbrev_np(number);
    return name != NULL ? name : "?";
}

/* "was killed by SIGKILL" or "ended with exit code 3". */
static const char *describe_end(const tutti_launch_rank *rank, char *text, size_t capacity) {
    if (rank->signal != 0)
        snprintf(text, capacity, "was killed by SIG%s (signal %d)", signal_name(rank->signal), rank->signal);
    else snprintf(text, capacity, "ended with exit code %d", rank->exit_code);
    return text;
}

/* Writes "; the other 2 get 2 s to end by themselves", "; the 2 here get ..." after a failure on another node, or
 * "" if no rank is left. */
static const char *describe_rest(const group *g, char *text, size_t capacity) {
    text[0] = '\0';
    if (g->nrunning == 1)
        snprintf(text, capacity, "; the %s gets %d s to end by itself", g->ending ? "one here" : "other",
                 SETTLE_MS / 1000);
    if (g->nrunning > 1)
        snprintf(text, capacity, "; the %s%d%s get %d s to end by themselves", g->ending ? "" : "other ", g->nrunning,
                 g->ending ? " here" : "", SETTLE_MS / 1000);
    return text;
}

/* Logs the first failure, and reports it to the other nodes. */
static void tell_first_failure(const group *g) {
    const tutti_launch_rank *rank = &g->ranks[g->first_failed];
    char end[96], others[96], file[PATH_MAX + 32] = "", what[600];
    describe_end(rank, end, sizeof end);
    if (rank->error_file[0] != '\0' && access(rank->error_file, R_OK) == 0)
        snprintf(file, sizeof file, "; its error is in %s", rank->error_file);
    snprintf(what, sizeof what, "rank %d (local rank %d, host %.200s, pid %d) %s", rank->rank, rank->local_rank,
             g->job->host, (int)rank->pid, end);
    tutti_launch_say("%s%s%s", what, file, describe_rest(g, others, sizeof others));
    if (g->job->nodes != NULL && !g->ending)
        tutti_launch_nodes_report(g->job->nodes, TUTTI_LAUNCH_FAILED, rank->exit_code, what);
}

/* Logs the failures of ranks after the first one. */
static void say_followers(const group *g) {
    char line[1500] = "", end[96];
    size_t used = 0;
    for (int i = 0; i < g->nranks && used < sizeof line - 200; i++) {
        if (i == g->first_failed || !g->ranks[i].failed) continue;
        used += (size_t)snprintf(line + used, sizeof line - used, "%srank %d %s", used > 0 ? ", " : "",
                                 g->ranks[i].rank, describe_end(&g->ranks[i], end, sizeof end));
    }
    if (used == 0) return;
    if (g->first_failed >= 0) tutti_launch_say("after rank %d: %s", g->ranks[g->first_failed].rank, line);
    else if (g->news.failed_node >= 0) tutti_launch_say("after node %d: %s", g->news.failed_node, line);
    else tutti_launch_say("after that: %s", line);
}

/* Writes "rank 1 (pid 12), rank 3 (pid 15, stopped by SIGSTOP 7 s ago)": the running ranks. */
static void list_running(const group *g, char *line, size_t capacity) {
    size_t used = 0;
    line[0] = '\0';
    for (int i = 0; i < g->nranks && used + 100 < capacity; i++) {
        const tutti_launch_rank *rank = &g->ranks[i];
        if (!rank->running) continue;
        used += (size_t)snprintf(line + used, capacity - used, "%srank %d (pid %d", used > 0 ? ", " : "", rank->rank,
                                 (int)rank->pid);
        if (rank->stopped)
            used += (size_t)snprintf(line + used, capacity - used, ", stopped by SIG%s %lld s ago",
                                     signal_name(rank->stop_signal),
                                     (long long)((tutti_now_ns() - rank->stopped_ns) / TUTTI_NS_PER_S));
        used += (size_t)snprintf(line + used, capacity - used, ")");
    }
}

/* --------------------------------------------------------------------------------------------- signalling */

static void signal_all(group *g, int number) {
    for (int i = 0; i < g->nranks; i++) {
        if (g->ranks[i].running) kill(-g->ranks[i].pid, number);
    }
}

static void enter(group *g, phase next, int64_t wait_ms) {
    g->phase = next;
    g->phase_end_ns = tutti_now_ns() + wait_ms * TUTTI_NS_PER_MS;
}

/* A stopped rank must continue to receive the signal. */
static void begin_ending(group *g, int number, int64_t wait_ms) {
    signal_all(g, number);
    signal_all(g, SIGCONT);
    enter(g, ENDING, wait_ms);
}

static void begin_killing(group *g) {
    signal_all(g, SIGKILL);
    enter(g, KILLING, LOOK_MS);
}

/* A rank that SIGKILL has not ended is blocked in the kernel, and dies when that call returns. */
static void leave_behind(group *g) {
    for (int i = 0; i < g->nranks; i++) {
        tutti_launch_rank *rank = &g->ranks[i];
        if (!rank->running) continue;
        tutti_launch_stream_close(&rank->out);
        tutti_launch_stream_close(&rank->err);
        rank->running = false;
        rank->failed = true;
        rank->signal = SIGKILL;
        rank->exit_code = 128 + SIGKILL;
    }
    g->nrunning = 0;
}

static void kill_again(group *g, const char *line) {
    if (++g->nkills == NOTED_KILLS)
        tutti_launch_say("the kernel has not ended %s after SIGKILL; waits for up to %d s", line,
                         MOST_KILLS - NOTED_KILLS);
    if (g->nkills < MOST_KILLS) {
        begin_killing(g);
        return;
    }
    tutti_launch_say("leaves behind %s", line);
    leave_behind(g);
}

/* The phase has timed out. */
static void escalate(group *g) {
    char line[1200];
    list_running(g, line, sizeof line);
    switch (g->phase) {
    case RUNNING: break;
    case SETTLING:
        tutti_launch_say("stops the ranks that still run: %s", line);
        begin_ending(g, SIGTERM, TERM_MS);
        break;
    case ENDING:
        tutti_launch_say("kills the ranks that do not end: %s", line);
        begin_killing(g);
        break;
    case KILLING: kill_again(g, line); break;
    }
}

/* Ctrl-Z: the ranks are not in the terminal's foreground group, so tuttirun stops them and continues them with
 * itself. */
static void pause_all(group *g) {
    for (int i = 0; i < g->nranks; i++) g->ranks[i].stop_expected = g->ranks[i].running && !g->ranks[i].stopped;
    signal_all(g, SIGSTOP);
    raise(SIGSTOP);
    signal_all(g, SIGCONT);
}

static void take_signal(group *g, int number) {
    switch (number) {
    case SIGCHLD:
    case SIGCONT: return;
    case SIGTSTP: pause_all(g); return;
    case SIGUSR1:
    case SIGUSR2: signal_all(g, number); return;
    default: break;
    }
    if (g->asked_signal != 0 && number == SIGINT) {
        tutti_launch_say("a second SIGINT: kills the ranks");
        begin_killing(g);
        return;
    }
    if (g->asked_signal == 0) {
        tutti_launch_say("SIG%s: passes it on to %d rank%s", signal_name(number), g->nrunning,
                         g->nrunning == 1 ? "" : "s");
        g->asked_signal = number;
        if (g->job->nodes != NULL) {
            char what[128];
            snprintf(what, sizeof what, "tuttirun on host %.64s was asked to end by SIG%s", g->job->host,
                     signal_name(number));
            tutti_launch_nodes_report(g->job->nodes, TUTTI_LAUNCH_FAILED_FINALLY, 128 + number, what);
        }
    }
    if (g->phase != KILLING) begin_ending(g, number, ASKED_MS);
}

static void take_signals(group *g) {
    struct signalfd_siginfo info;
    while (read(g->job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) take_signal(g, (int)info.ssi_signo);
}

/* --------------------------------------------------------------------------------------------- reaping */

static void note_stop(group *g, tutti_launch_rank *rank, const siginfo_t *info) {
    if (info->si_code == CLD_CONTINUED) {
        if (rank->stopped && g->phase == RUNNING) tutti_launch_say("rank %d continues", rank->rank);
        rank->stopped = false;
    } else if (rank->stop_expected) {
        rank->stop_expected = false;
    } else if (!rank->stopped) {
        rank->stopped = true;
        rank->stop_signal = info->si_status;
        rank->stopped_ns = tutti_now_ns();
        tutti_launch_say("rank %d (local rank %d, host %s, pid %d) was stopped by SIG%s; 'kill -CONT %d' continues it",
                         rank->rank, rank->local_rank, g->job->host, (int)rank->pid, signal_name(info->si_status),
                         (int)rank->pid);
    }
}

/* Kills the rest of the process group of the rank, then records the end of the rank. */
static void reap(group *g, tutti_launch_rank *rank, const siginfo_t *info) {
    kill(-rank->pid, SIGKILL);
    tutti_launch_stream_close(&rank->out);
    tutti_launch_stream_close(&rank->err);
    tutti_launch_keeper_add(g->job->keeper_fd, -rank->pid);
    while (waitpid(rank->pid, NULL, 0) < 0 && errno == EINTR) {}
    rank->running = false;
    rank->signal = info->si_code == CLD_EXITED ? 0 : info->si_status;
    rank->exit_code = info->si_code == CLD_EXITED ? info->si_status : 128 + info->si_status;
    rank->failed = rank->exit_code != 0;
    g->nrunning--;
}

static bool look_at(group *g, tutti_launch_rank *rank) {
    siginfo_t info = {0};
    while (waitid(P_PID, (id_t)rank->pid, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0) {
        note_stop(g, rank, &info);
        info.si_pid = 0;
    }
    info.si_pid = 0;
    if (waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
    reap(g, rank, &info);
    return rank->failed;
}

/* If several failures are detected at once, a death by signal is the cause: ranks that detect a dead peer exit. */
static void look_at_all(group *g) {
    int failed = -1;
    for (int i = 0; i < g->nranks; i++) {
        if (!g->ranks[i].running || !look_at(g, &g->ranks[i])) continue;
        if (failed < 0 || (g->ranks[failed].signal == 0 && g->ranks[i].signal != 0)) failed = i;
    }
    if (failed < 0 || g->first_failed >= 0 || g->ending || g->asked_signal != 0) return;
    g->first_failed = failed;
    tell_first_failure(g);
    if (g->nrunning > 0) enter(g, SETTLING, SETTLE_MS);
}

/* ------------------------------------------------------------------------------------------ other nodes */

/* A failure on another node counts like a local one. */
static void take_news(group *g) {
    char others[96];
    tutti_launch_nodes_look(g->job->nodes, &g->news);
    bool failed = g->news.failed_node >= 0 && g->news.failed_node != g->job->options->node_rank;
    if (g->ending || g->first_failed >= 0 || g->asked_signal != 0) return;
    if (!failed && g->news.verdict != TUTTI_LAUNCH_LOST) return;
    g->ending = true;
    describe_rest(g, others, sizeof others);
    if (failed) tutti_launch_say("node %d: %s%s", g->news.failed_node, g->news.text, others);
    else tutti_launch_say("the store on node 0 is lost (%s)%s", g->news.text, others);
    if (g->nrunning > 0) enter(g, SETTLING, SETTLE_MS);
}

/* The ranks here have ended. A tuttirun that was asked to end does not wait for other nodes. */
static bool waits_for_nodes(group *g) {
    if (g->job->nodes == NULL) return false;
    if (!g->ended_reported) tutti_launch_nodes_ended(g->job->nodes);
    g->ended_reported = true;
    return g->news.verdict == TUTTI_LAUNCH_OPEN && g->asked_signal == 0;
}

/* ------------------------------------------------------------------------------------------------- loop */

static int fill_polls(group *g) {
    int count = 0;
    g->polls[count++] = (struct pollfd){.fd = g->job->signal_fd, .events = POLLIN};
    g->polls[count++] =
        (struct pollfd){.fd = g->job->nodes != NULL ? tutti_launch_nodes_fd(g->job->nodes) : -1, .events = POLLIN};
    for (int i = 0; i < g->nranks; i++) {
        g->polls[count++] = (struct pollfd){.fd = g->ranks[i].out.pipe_fd, .events = POLLIN};
        g->polls[count++] = (struct pollfd){.fd = g->ranks[i].err.pipe_fd, .events = POLLIN};
    }
    return count;
}

static int timeout_ms(const group *g) {
    if (g->phase == RUNNING || g->nrunning == 0) return -1;
    int64_t left_ns = g->phase_end_ns - tutti_now_ns();
    return left_ns <= 0 ? 0 : (int)(left_ns / TUTTI_NS_PER_MS) + 1;
}

static void watch(group *g) {
    while (g->nrunning > 0 || waits_for_nodes(g)) {
        int count = fill_polls(g);
        if (poll(g->polls, (nfds_t)count, timeout_ms(g)) < 0 && errno != EINTR) break;
        for (int i = 0; i < g->nranks; i++) {
            if (g->polls[2 + 2 * i].revents != 0) tutti_launch_stream_carry(&g->ranks[i].out);
            if (g->polls[3 + 2 * i].revents != 0) tutti_launch_stream_carry(&g->ranks[i].err);
        }
        if (g->polls[1].revents != 0) take_news(g);
        if (g->polls[0].revents != 0) {
            take_signals(g);
            look_at_all(g);
        }
        if (g->nrunning > 0 && g->phase != RUNNING && tutti_now_ns() >= g->phase_end_ns) escalate(g);
    }
}

static void judge(const group *g, tutti_launch_result *result) {
    bool any_failed = false;
    for (int i = 0; i < g->nranks; i++) any_failed = any_failed || g->ranks[i].failed;
    *result = (tutti_launch_result){.signalled = g->asked_signal != 0, .again = g->news.verdict == TUTTI_LAUNCH_AGAIN};
    if (g->ending) {
        result->exit_code = g->news.failed_node >= 0 ? g->news.exit_code : 1;
        say_followers(g);
    } else if (g->first_failed >= 0) {
        result->exit_code = g->ranks[g->first_failed].exit_code;
        say_followers(g);
    } else if (any_failed) {
        result->exit_code = 128 + g->asked_signal;
    }
}

tutti_status tutti_launch_attempt(const tutti_launch_job *job, int attempt, tutti_launch_result *result_out) {
    group g = {.job = job, .nranks = job->options->nproc, .first_failed = -1, .news.failed_node = -1};
    tutti_status status = TUTTI_OK;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)g.nranks, sizeof *g.ranks, &g.ranks), done);
    TUTTI_TRY_GOTO(status, tutti_calloc(2 + 2 * (size_t)g.nranks, sizeof *g.polls, &g.polls), done);
    for (int i = 0; i < g.nranks && status == TUTTI_OK; i++) {
        g.ranks[i].out.pipe_fd = g.ranks[i].err.pipe_fd = -1;
        status = tutti_launch_rank_start(job, attempt, i, &g.ranks[i]);
        g.nrunning += status == TUTTI_OK;
    }
    if (status != TUTTI_OK) {
        if (job->nodes != NULL)
            tutti_launch_nodes_report(job->nodes, TUTTI_LAUNCH_FAILED_FINALLY, 1, tutti_last_error());
        g.asked_signal = SIGKILL; /* a job is not started in part */
        begin_killing(&g);
    }
    watch(&g);
    if (status == TUTTI_OK) judge(&g, result_out);
done:
    free(g.polls);
    free(g.ranks);
    return status;
}
