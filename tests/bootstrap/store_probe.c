/*
 * Our store's two ends as a program, for the test with PyTorch's (store_torch.py):
 *   store_probe serve           prints its port and serves until its input ends
 *   store_probe client PORT     sets, adds, reads and waits as the script expects; exits with 0 on success
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/store/store.h"

static int fail(const char *what) {
    fprintf(stderr, "store_probe: %s: %s\n", what, tutti_last_error());
    return 1;
}

static int serve(void) {
    tutti_store_server *server;
    if (tutti_store_server_start("127.0.0.1", 0, NULL, &server) != TUTTI_OK) return fail("serve");
    printf("%d\n", tutti_store_server_port(server));
    fflush(stdout);
    while (getchar() != EOF) {}
    tutti_store_server_stop(server);
    return 0;
}

static int talk(int port) {
    tutti_store_client *client;
    char value[64];
    size_t bytes = 0;
    int64_t sum = 0;
    int exists = -1;
    if (tutti_store_client_reach("127.0.0.1", port, &(tutti_store_client_options){.connect_ms = 10000}, &client) !=
        TUTTI_OK)
        return fail("connect");
    tutti_store store = tutti_store_client_callbacks(client);
    if (store.get(client, "from torch", value, sizeof value, &bytes, 10000) != TUTTI_OK) return fail("get");
    if (bytes != 5 || memcmp(value, "a\0b\377c", 5) != 0) return fail("another value");
    if (store.set(client, "from tutti", "d\0e\376f", 5) != TUTTI_OK) return fail("set");
    if (store.add(client, "count", 40, &sum) != TUTTI_OK || sum != 42) return fail("add");
    if (store.check(client, "from torch", &exists) != TUTTI_OK || exists != 1) return fail("check");
    if (store.check(client, "nowhere", &exists) != TUTTI_OK || exists != 0) return fail("check of a missing key");
    if (store.get(client, "nowhere", value, sizeof value, &bytes, 200) != TUTTI_ERR_TIMEOUT) return fail("a timeout");
    if (store.get(client, "from torch", value, 2, &bytes, 5000) != TUTTI_ERR_DATA) return fail("a small buffer");
    if (store.add(client, "count", 0, &sum) != TUTTI_OK || sum != 42) return fail("in step");
    tutti_store_client_close(client);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "serve") == 0) return serve();
    if (argc == 3 && strcmp(argv[1], "client") == 0) return talk(atoi(argv[2]));
    fprintf(stderr, "usage: store_probe serve | client PORT\n");
    return 2;
}
