/*
 * tuttirun: starts a program on several ranks, hosts the store in which they meet, and runs until all have ended.
 *
 * On node 0 the port of the store is bound here, once, before any rank starts, and the store outlives all ranks
 * and all restarts. On the other nodes the ranks are clients of the store on node 0, and so are the tuttiruns:
 * through it they fail, restart and end together (launch_nodes.h). Node 0 ends last.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/meeting.h"
#include "bootstrap/machine/async_call.h"
#include "bootstrap/store/store.h"
#include "tools/tuttirun/launch.h"

/* KNOWN_MS: how long node 0 tries to resolve its own name. */
enum { USAGE_EXIT = 2, FAILURE_EXIT = 1, KNOWN_MS = 4000, KNOWN_PAUSE_MS = 500, LEAST_SILENT_MS = 3000 };

/* Receives signals through a descriptor. Signals that were ignored when tuttirun started stay ignored (nohup). */
static tutti_status take_over_signals(tutti_launch_job *job) {
    static const int ours[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < TUTTI_COUNT_OF(ours); i++) sigaddset(&set, ours[i]);
    signal(SIGCHLD, SIG_DFL); /* if it were ignored, the exit codes of children would be lost */
    signal(SIGPIPE, SIG_IGN); /* a closed reader of our output must not end tuttirun and leave the ranks alone */
    if (sigprocmask(SIG_BLOCK, &set, &job->child_signals) != 0) return tutti_fail_errno(errno, "sigprocmask");
    job->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signal_fd >= 0 ? TUTTI_OK : tutti_fail_errno(errno, "signalfd");
}

/* Many ranks need many pipes and connections. The ranks start with the limit that tuttirun was given. */
static void raise_file_limit(tutti_launch_job *job) {
    struct rlimit raised;
    if (getrlimit(RLIMIT_NOFILE, &job->child_files) != 0) return;
    raised = job->child_files;
    raised.rlim_cur = raised.rlim_max;
    setrlimit(RLIMIT_NOFILE, &raised);
}

/* The secret that the user has set; without one, a job on one node gets a new one. */
static tutti_status find_secret(tutti_launch_job *job) {
    uint8_t random[32];
    bool brought = false;
    TUTTI_TRY(tutti_secret_get(job->secret, sizeof job->secret, &brought));
    job->made_secret = !brought && job->options->nnodes == 1;
    if (!job->made_secret) return TUTTI_OK;
    TUTTI_TRY(tutti_getrandom(random, sizeof random));
    for (size_t i = 0; i < sizeof random; i++) snprintf(job->secret + 2 * i, 3, "%02x", random[i]);
    return TUTTI_OK;
}

static tutti_status name_run(tutti_launch_options *options) {
    static char id[40];
    uint8_t random[16];
    if (options->run_id != NULL && *options->run_id != '\0') return TUTTI_OK;
    options->run_id = "none";
    if (!options->standalone) return TUTTI_OK;
    TUTTI_TRY(tutti_getrandom(random, sizeof random));
    for (size_t i = 0; i < sizeof random; i++) snprintf(id + 2 * i, 3, "%02x", random[i]);
    options->run_id = id;
    return TUTTI_OK;
}

/* Address at which node 0 reaches its own store. */
static const char *own_store_host(const tutti_launch_job *job) {
    const char *address = tutti_meeting_listen_address(job->options->master_addr);
    return address != NULL ? address : "127.0.0.1";
}

static tutti_status host_store(tutti_launch_job *job, tutti_store_server **server_out) {
    const tutti_launch_options *options = job->options;
    const char *address = tutti_meeting_listen_address(options->master_addr);
    tutti_status status = tutti_store_server_start(address, options->master_port, job->secret, server_out);
    if (status != TUTTI_OK && options->nnodes == 1)
        return tutti_fail(status, "%s; --standalone takes a free one", tutti_last_error());
    if (status == TUTTI_OK) job->master_port = tutti_store_server_port(*server_out);
    return status;
}

/* ------------------------------------------------------------------------------------------- several nodes */

/* The ranks of node 0 must resolve its name like all others; an error is reported here, once. */
static tutti_status check_own_name(const tutti_launch_options *options) {
    int64_t most_ms = tutti_min_i64(KNOWN_MS, tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_deadline deadline = tutti_deadline_after_ms(most_ms);
    const struct addrinfo *found;
    tutti_status status = TUTTI_NOT_YET;
    char reason[400] = "no name server has answered";
    while (status != TUTTI_OK && !tutti_deadline_passed(&deadline)) {
        tutti_lookup *lookup = NULL;
        TUTTI_TRY(tutti_lookup_start(options->master_addr, 0, &lookup));
        while ((status = tutti_lookup_look(lookup, 100, &found)) == TUTTI_NOT_YET &&
               !tutti_deadline_passed(&deadline)) {}
        if (status != TUTTI_OK && status != TUTTI_NOT_YET) {
            snprintf(reason, sizeof reason, "%s", tutti_last_error());
            tutti_nap(KNOWN_PAUSE_MS * TUTTI_NS_PER_MS);
        }
        tutti_lookup_end(lookup);
    }
    if (status == TUTTI_OK) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "--master-addr %s: %s; this is node 0, so give a name or an address of this host, under which the "
        "ranks of all nodes reach it",
        options->master_addr, reason);
}

static tutti_launch_nodes_options nodes_options(const tutti_launch_job *job) {
    const tutti_launch_options *options = job->options;
    int64_t peer_ms = tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS);
    return (tutti_launch_nodes_options){.host = options->node_rank == 0 ? own_store_host(job) : job->master_addr,
                                        .port = job->master_port,
                                        .master = job->master_addr,
                                        .run_id = options->run_id,
                                        .own_host = job->host,
                                        .secret = job->secret,
                                        .list = options->nodes,
                                        .nnodes = options->nnodes,
                                        .node = options->node_rank,
                                        .nproc = options->entries != NULL ? 0 : options->nproc,
                                        .table_hash = options->table_hash,
                                        .pid = (int)job->pid,
                                        .max_restarts = options->max_restarts,
                                        .join_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS),
                                        .silent_ms = peer_ms > LEAST_SILENT_MS ? peer_ms : LEAST_SILENT_MS};
}

static tutti_status join_nodes(tutti_launch_job *job) {
    const tutti_launch_nodes_options nodes = nodes_options(job);
    return nodes.nnodes == 1 ? TUTTI_OK : tutti_launch_nodes_open(&nodes, &job->nodes);
}

/* Called in the keeper. If node 0 has been killed, its store has died with it, which the other nodes detect
 * themselves. */
static void tell_death(void *context) {
    const tutti_launch_nodes_options nodes = nodes_options(context);
    if (nodes.nnodes > 1 && nodes.node > 0) tutti_launch_nodes_testify(&nodes);
}

/* A signal has asked tuttirun to end before it started ranks; reports this to the other nodes. */
static void end_early(const tutti_launch_job *job, int number, tutti_launch_result *result) {
    char what[128];
    const char *name = sigabbrev_np(number);
    snprintf(what, sizeof what, "tuttirun on host %.64s was asked to end by SIG%s", job->host,
             name != NULL ? name : "?");
    tutti_launch_nodes_report(job->nodes, TUTTI_LAUNCH_FAILED_FINALLY, 128 + number, what);
    *result = (tutti_launch_result){.exit_code = 128 + number, .signalled = true};
}

/* Waits until all nodes have joined, which determines the attempt; or until a signal asks tuttirun to end. */
static tutti_status wait_joined(const tutti_launch_job *job, int *attempt, tutti_launch_result *result) {
    tutti_launch_news news = {.joined = true, .attempt = *attempt};
    if (job->nodes != NULL) tutti_launch_nodes_look(job->nodes, &news);
    while (!news.joined) {
        struct signalfd_siginfo info;
        struct pollfd polls[] = {{.fd = job->signal_fd, .events = POLLIN},
                                 {.fd = tutti_launch_nodes_fd(job->nodes), .events = POLLIN}};
        if (news.verdict == TUTTI_LAUNCH_LOST) return tutti_fail(TUTTI_ERR_TIMEOUT, "%s", news.text);
        if (poll(polls, TUTTI_COUNT_OF(polls), -1) < 0 && errno != EINTR) return tutti_fail_errno(errno, "poll");
        while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            int number = (int)info.ssi_signo;
            if (number != SIGINT && number != SIGTERM && number != SIGHUP && number != SIGQUIT) continue;
            end_early(job, number, result);
            return TUTTI_OK;
        }
        tutti_launch_nodes_look(job->nodes, &news);
    }
    *attempt = news.attempt;
    return TUTTI_OK;
}

/* Node 0, which hosts the store, stays until the others have ended, unless a signal has asked it to end. */
static void leave_nodes(tutti_launch_job *job, bool signalled) {
    sigprocmask(SIG_SETMASK, &job->child_signals,
                NULL); /* no ranks are left: from here on a signal simply ends tuttirun */
    tutti_launch_nodes_close(job->nodes, signalled ? TUTTI_LAUNCH_LEAVE_PROMPTLY : TUTTI_LAUNCH_LEAVE);
    job->nodes = NULL;
}

static tutti_status run_attempts(const tutti_launch_job *job, tutti_launch_result *result) {
    int most = job->options->max_restarts;
    for (int attempt = 0;; attempt++) {
        TUTTI_TRY(wait_joined(job, &attempt, result));
        if (result->signalled) return TUTTI_OK;
        TUTTI_TRY(tutti_launch_attempt(job, attempt, result));
        bool again = job->nodes != NULL ? result->again : result->exit_code != 0 && attempt < most;
        if (!again || result->signalled) return TUTTI_OK;
        tutti_launch_say("starts all ranks again (restart %d of %d)", attempt + 1, most);
        if (job->nodes != NULL) tutti_launch_nodes_begin(job->nodes, attempt + 1);
    }
}

static tutti_status run_job(tutti_launch_options *options, tutti_launch_result *result) {
    static tutti_launch_job job; /* static: it is large, and lives as long as the program */
    const tutti_launch_last_words last_words = {.say = tell_death, .context = &job};
    tutti_store_server *server = NULL;
    tutti_status status = TUTTI_OK;
    char error[TUTTI_ERROR_TEXT_BYTES];
    job.options = options;
    job.master_addr = options->master_addr;
    job.master_port = options->master_port;
    job.keeper_fd = job.signal_fd = -1;
    job.pid = getpid();
    gethostname(job.host, sizeof job.host - 1);
    TUTTI_TRY(name_run(options));
    TUTTI_TRY(tutti_launch_command(options, &job.argv));
    if (options->node_rank == 0) TUTTI_TRY_GOTO(status, check_own_name(options), done);
    TUTTI_TRY_GOTO(status, tutti_launch_bind_plan(options, &job.binding), done);
    TUTTI_TRY_GOTO(status, find_secret(&job), done);
    TUTTI_TRY_GOTO(status, take_over_signals(&job), done);
    TUTTI_TRY_GOTO(status, tutti_launch_keeper_start(&last_words, &job.keeper_fd), done);
    raise_file_limit(&job);
    if (options->node_rank == 0) TUTTI_TRY_GOTO(status, host_store(&job, &server), done);
    TUTTI_TRY_GOTO(status, tutti_launch_log_root(&job), done);
    TUTTI_TRY_GOTO(status, join_nodes(&job), done);
    TUTTI_TRY_GOTO(status, run_attempts(&job, result), done);
done:
    if (status != TUTTI_OK) snprintf(error, sizeof error, "%s", tutti_last_error());
    if (job.nodes != NULL) leave_nodes(&job, status != TUTTI_OK || result->signalled);
    tutti_store_server_stop(server);
    if (job.keeper_fd >= 0) tutti_launch_keeper_stop(job.keeper_fd);
    if (job.signal_fd >= 0) close(job.signal_fd);
    tutti_launch_bind_free(&job.binding);
    free(job.argv);
    return status == TUTTI_OK ? TUTTI_OK : tutti_fail(status, "%s", error);
}

int main(int argc, char **argv) {
    tutti_launch_options options;
    tutti_launch_result result = {0};
    tutti_status status = tutti_launch_options_parse(argc, argv, &options);
    if (status == TUTTI_OK && options.help) {
        tutti_launch_options_help();
        return 0;
    }
    if (status == TUTTI_OK && options.version) {
        printf("tuttirun %d.%d.%d\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
        return 0;
    }
    if (status == TUTTI_OK) status = tutti_settings_check(); /* each rank would report the same error */
    if (status == TUTTI_OK && options.write_rank_table != NULL) status = tutti_launch_write_table(&options);
    else if (status == TUTTI_OK) status = run_job(&options, &result);
    if (status == TUTTI_OK) return result.exit_code;
    tutti_launch_say("%s", tutti_last_error());
    return status == TUTTI_ERR_ARGUMENT ? USAGE_EXIT : FAILURE_EXIT;
}
