/*
 * See store_clients.h.
 */
#include "tests/support/stores/store_clients.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/stores/wire.h"

enum { SOON_MS = CLIENTS_MEASURES ? 1000 : 10000 };

netns *clients_network;
tutti_store_server *clients_server;
int clients_port;

void clients_serve(void) {
    cr_assert_eq(tutti_store_server_start(NULL, 0, NULL, &clients_server), TUTTI_OK, "%s", tutti_last_error());
    clients_port = tutti_store_server_port(clients_server);
}

void clients_serve_on_hosts(int nhosts) {
    if (netns_create(&(netns_options){.nhosts = nhosts}, &clients_network) != TUTTI_OK)
        cr_skip_test("%s", tutti_last_error());
    cr_assert_eq(netns_enter(clients_network, 0), TUTTI_OK, "%s", tutti_last_error());
    clients_serve();
}

int clients_call(const char *address, int to_port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)to_port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

int clients_join(void) {
    char address[16];
    int fd = clients_call(netns_address(0, address), clients_port);
    if (fd < 0 || wire_send(fd, BYTES(VALIDATE))) return fd;
    close(fd);
    return -1;
}

static int ready_fd;

void clients_say_ready(void) {
    ssize_t written = write(ready_fd, "r", 1);
    (void)written;
}

pid_t clients_begin(int host, clients_play play) {
    int ends[2];
    char word;
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ready_fd = ends[1];
        if (clients_network != NULL && netns_enter(clients_network, host) != TUTTI_OK) _exit(99);
        _exit(play());
    }
    cr_assert(child > 0);
    close(ends[1]);
    struct pollfd item = {.fd = ends[0], .events = POLLIN};
    bool ready = poll(&item, 1, 20000) > 0 && read(ends[0], &word, 1) == 1;
    close(ends[0]);
    cr_assert(ready, "the other process has ended, or takes too long");
    return child;
}

int clients_end(pid_t child) {
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void clients_stop(pid_t child) {
    kill(child, SIGKILL);
    (void)clients_end(child);
}

bool clients_ping(int fd) {
    return wire_talk(fd,
                     BYTES("\15"
                           "ping"),
                     BYTES("ping"));
}

int clients_mean_well(int fd) {
    int64_t begun_ns = tutti_now_ns();
    if (fd < 0) return 1;
    if (!clients_ping(fd)) return 2;
    for (int i = 0; i < 10; i++)
        if (!wire_talk(fd,
                       BYTES("\1" U64("\4") "good" U64("\5") "value"
                                                             "\3" U64("\4") "good"),
                       BYTES(U64("\5") "value")))
            return 3;
    close(fd);
    return tutti_now_ns() - begun_ns < SOON_MS * INT64_C(1000000) ? 0 : 4;
}
