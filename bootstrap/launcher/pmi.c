/*
 * PMI-1, as implemented by MPICH's mpiexec (hydra) and Slurm's pmi2 plugin: lines of "name=value" on a socket that
 * they leave open (PMI_FD). The server answers each line with one line.
 *
 *     cmd=init pmi_version=1 pmi_subversion=1                      cmd=response_to_init ... rc=0
 *     cmd=get_my_kvsname                                           cmd=my_kvsname kvsname=...
 *     cmd=put kvsname=... key=... value=...     (rank 0)           cmd=put_result rc=0 ...
 *     cmd=barrier_in                                               cmd=barrier_out, when all have arrived
 *     cmd=get kvsname=... key=...                                  cmd=get_result rc=0 value=...
 *     cmd=finalize                              (at the end)       cmd=finalize_ack
 *
 * mpiexec treats a process that ends without cmd=finalize as failed. If MPI has already sent it for the same
 * process, the socket is closed by then.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/launcher/pmix.h"

enum { LINE_BYTES = 2048, LOOK_MS = 100, LEAVE_MS = 1000 };

#define STORE_KEY "tutti-store"

static tutti_status fail(const char *what, const char *line) {
    return tutti_fail(TUTTI_ERR_SYSTEM,
                      "PMI: %s (%.100s); set MASTER_ADDR and MASTER_PORT to start without the launcher's server", what,
                      line);
}

static int server_fd(void) {
    const char *text = tutti_launcher_variable("PMI_FD");
    return text != NULL ? atoi(text) : -1;
}

bool tutti_pmi_present(void) {
    int type;
    socklen_t bytes = sizeof type;
    int fd = server_fd(); /* a shell between mpiexec and this process may have closed it */
    return fd > 2 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM;
}

/* Only rank 0 logs waiting. */
static _Thread_local bool speaks;

/* Reads byte by byte, since the bytes behind the line may be another user's of the socket. Lines are few and short. */
static tutti_status receive_line(int fd, tutti_deadline *deadline, char line[LINE_BYTES]) {
    tutti_notice notice = {0};
    for (size_t used = 0; used < LINE_BYTES - 1;) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, LOOK_MS) <= 0) {
            if (tutti_deadline_passed(deadline))
                return tutti_fail(TUTTI_ERR_TIMEOUT,
                                  "PMI: the launcher's server does not answer; check that all ranks have "
                                  "started");
            if (speaks && tutti_notice_due(&notice, deadline->spent_ns))
                tutti_log(
                    TUTTI_LOG_WARN,
                    "the start has waited %lld s for the launcher's server (PMI), which waits for ranks that have "
                    "not arrived; waits until TUTTI_CONNECT_TIMEOUT_MS",
                    (long long)(deadline->spent_ns / TUTTI_NS_PER_S));
            continue;
        }
        ssize_t got = read(fd, line + used, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0)
            return fail("the launcher's server closed the connection", got == 0 ? "end of file" : strerror(errno));
        if (line[used] == '\n') {
            line[used] = '\0';
            return TUTTI_OK;
        }
        used++;
    }
    return fail("an answer is too long", "");
}

/* Copies the value of "name=value" in the line. */
static bool find_value(const char *line, const char *name, char *value, size_t capacity) {
    size_t length = strlen(name);
    for (const char *next = line; *next != '\0'; next += strspn(next, " ")) {
        size_t word = strcspn(next, " ");
        if (word > length && strncmp(next, name, length) == 0 && next[length] == '=') {
            if (word - length - 1 >= capacity) return false;
            snprintf(value, capacity, "%.*s", (int)(word - length - 1), next + length + 1);
            return true;
        }
        next += word;
    }
    return false;
}

/* Sends a line and receives the answer, which must be the command `answer` without an error. */
TUTTI_PRINTF(5, 6)
static tutti_status ask(int fd, tutti_deadline *deadline, const char *answer, char line[LINE_BYTES], const char *format,
                        ...) {
    char command[64], code[32] = "0";
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, LINE_BYTES - 1, format, arguments);
    va_end(arguments);
    if (bytes < 0 || bytes >= LINE_BYTES - 1) return fail("a request is too long", format);
    line[bytes++] = '\n';
    ssize_t sent = send(fd, line, (size_t)bytes, MSG_NOSIGNAL); /* it fits any socket's buffer */
    if (sent != bytes)
        return fail("the launcher's server closed the connection", sent < 0 ? strerror(errno) : "cut off");
    TUTTI_TRY(receive_line(fd, deadline, line));
    bool named = find_value(line, "cmd", command, sizeof command) && strcmp(command, answer) == 0;
    (void)find_value(line, "rc", code, sizeof code);
    return named && strcmp(code, "0") == 0 ? TUTTI_OK : fail("unexpected answer", line);
}

static pid_t joined; /* a forked child has not joined */

__attribute__((destructor)) static void leave(void) {
    char line[LINE_BYTES];
    tutti_deadline time = tutti_deadline_after_ms(LEAVE_MS);
    if (joined == getpid()) (void)ask(server_fd(), &time, "finalize_ack", line, "cmd=finalize");
}

tutti_status tutti_pmi_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]) {
    char line[LINE_BYTES], space[256];
    int fd = server_fd();
    tutti_deadline time = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    TUTTI_TRY(ask(fd, &time, "response_to_init", line, "cmd=init pmi_version=1 pmi_subversion=1"));
    TUTTI_TRY(ask(fd, &time, "my_kvsname", line, "cmd=get_my_kvsname"));
    if (!find_value(line, "kvsname", space, sizeof space)) return fail("the answer has no key space", line);
    speaks = mine != NULL;
    if (mine != NULL)
        TUTTI_TRY(ask(fd, &time, "put_result", line, "cmd=put kvsname=%s key=%s value=%s", space, STORE_KEY, mine));
    TUTTI_TRY(ask(fd, &time, "barrier_out", line, "cmd=barrier_in"));
    TUTTI_TRY(ask(fd, &time, "get_result", line, "cmd=get kvsname=%s key=%s", space, STORE_KEY));
    char text[TUTTI_PMIX_TEXT_BYTES];
    if (!find_value(line, "value", text, sizeof text))
        return fail("rank 0 has not published its store's address", line);
    joined = getpid();
    snprintf(text_out, TUTTI_PMIX_TEXT_BYTES, "%s", text);
    return TUTTI_OK;
}
