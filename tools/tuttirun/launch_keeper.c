/*
 * The keeper: a small process that outlives a tuttirun killed with SIGKILL and ends the process groups of its
 * ranks.
 *
 * The ranks themselves die with tuttirun (PR_SET_PDEATHSIG), but the processes that they have started do not. The
 * keeper reads the ids of the groups from a pipe; at the end of the pipe it kills all of them and calls the last
 * words, which report the end of tuttirun to the other nodes at once. A zero means that tuttirun has ended
 * normally.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/tuttirun/launch.h"

enum { MOST_GROUPS = 1 << 14, LAST_WORDS_S = 10 };

static pid_t keeper_pid;

/* Calls the last words, limited by an alarm. */
static void say_last_words(const tutti_launch_last_words *words) {
    sigset_t alarm_only;
    int null_fd = 0; /* descriptors opened from here on must not become standard output */
    while (null_fd >= 0 && null_fd <= STDERR_FILENO) null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    alarm(LAST_WORDS_S);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL);
    words->say(words->context);
}

/* Runs in the keeper: only async-signal-safe calls, except for the last words. */
static void keep(int fd, const tutti_launch_last_words *words) {
    static pid_t groups[MOST_GROUPS];
    int ngroups = 0;
    bool well = false;
    for (;;) {
        pid_t group;
        ssize_t got = read(fd, &group, sizeof group);
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof group) break;
        well = group == 0;
        if (group == 0) ngroups = 0;
        else if (group > 0 && ngroups < MOST_GROUPS) groups[ngroups++] = group;
        else if (group < 0) /* the group has ended: its number may be reused by another process */
            for (int i = 0; i < ngroups; i++)
                if (groups[i] == -group) groups[i] = groups[--ngroups];
    }
    for (int i = 0; i < ngroups; i++) kill(-groups[i], SIGKILL);
    if (!well && words->say != NULL) say_last_words(words);
    _exit(0);
}

tutti_status tutti_launch_keeper_start(const tutti_launch_last_words *words, int *fd_out) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return tutti_fail_errno(errno, "pipe");
    keeper_pid = fork();
    if (keeper_pid < 0) {
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        return tutti_fail_errno(error, "cannot start the keeper");
    }
    if (keeper_pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        setsid(); /* the keeper must not get signals from a terminal */
        prctl(PR_SET_NAME, "tuttirun-keeper");
        close(ends[1]);
        close(STDIN_FILENO);
        close(STDOUT_FILENO); /* the reader of our output must see its end when tuttirun ends */
        close(STDERR_FILENO);
        keep(ends[0], words);
    }
    close(ends[0]);
    *fd_out = ends[1];
    return TUTTI_OK;
}

void tutti_launch_keeper_add(int fd, pid_t group) {
    ssize_t written = write(fd, &group, sizeof group);
    (void)written; /* without a keeper only the death signal of the ranks remains */
}

void tutti_launch_keeper_stop(int fd) {
    tutti_launch_keeper_add(fd, 0);
    close(fd);
    while (waitpid(keeper_pid, NULL, 0) < 0 && errno == EINTR) {}
}
