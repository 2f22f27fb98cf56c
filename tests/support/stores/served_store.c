/*
 * See served_store.h.
 */
#include "tests/support/stores/served_store.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/store/store.h"

/* Reports the port, 0 for a failure, and serves until it is killed. */
static void serve(int tell) {
    tutti_store_server *server;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int port =
        tutti_store_server_start("127.0.0.1", 0, NULL, &server) == TUTTI_OK ? tutti_store_server_port(server) : 0;
    if (write(tell, &port, sizeof port) == (ssize_t)sizeof port && port > 0) pause();
    _exit(0);
}

pid_t served_store_start(int *port_out) {
    int ends[2], port = 0;
    if (pipe(ends) != 0) return -1;
    pid_t store = fork();
    if (store == 0) {
        close(ends[0]);
        serve(ends[1]);
    }
    close(ends[1]);
    bool told = store > 0 && read(ends[0], &port, sizeof port) == (ssize_t)sizeof port && port > 0;
    close(ends[0]);
    if (told) {
        *port_out = port;
        return store;
    }
    if (store > 0) served_store_end(store);
    return -1;
}

void served_store_end(pid_t store) {
    kill(store, SIGKILL);
    waitpid(store, NULL, 0);
}
