/*
 * The job's store as ranks find it: rank 0 serves it, or joins an existing one, or the launcher hosts it.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/launcher/world.h"
#include "bootstrap/store/store.h"
#include "tests/support/ranks.h"
#include "tests/support/stores/served_store.h"
#include "tests/support/stores/wire.h"

TestSuite(rendezvous, .timeout = 60);

enum { NRANKS = 4, NTIMES = 3 };

typedef struct place {
    int port;
    const char *agent; /* TORCHELASTIC_USE_AGENT_STORE, NULL: not set */
    bool rank_0_ends;  /* right after its close */
} place;

static tutti_status set_place(const ranks_context *context) {
    const place *where = context->argument;
    char text[32];
    snprintf(text, sizeof text, "%d", context->rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", context->nranks);
    setenv("WORLD_SIZE", text, 1);
    setenv("LOCAL_WORLD_SIZE", text, 1);
    setenv("MASTER_ADDR", "localhost", 1);
    snprintf(text, sizeof text, "%d", where->port);
    setenv("MASTER_PORT", text, 1);
    setenv("TORCHELASTIC_RUN_ID", "job", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    if (where->agent != NULL) setenv("TORCHELASTIC_USE_AGENT_STORE", where->agent, 1);
    return TUTTI_OK;
}

/* Each rank writes its own rank and reads those of all the others; some ranks come late. */
static tutti_status exchange(const ranks_context *context, const tutti_rendezvous *rendezvous) {
    const tutti_store *store = tutti_rendezvous_store(rendezvous);
    const char *prefix = tutti_rendezvous_prefix(rendezvous);
    char key[400], value[32];
    size_t bytes;
    snprintf(key, sizeof key, "%s/%d", prefix, context->rank);
    snprintf(value, sizeof value, "rank %d", context->rank);
    TUTTI_TRY(store->set(store->context, key, value, strlen(value) + 1));
    if (context->rank == context->nranks - 1) usleep(300000); /* rank 0 must still be there then */
    for (int i = 0; i < context->nranks; i++) {
        char expected[32];
        snprintf(key, sizeof key, "%s/%d", prefix, i);
        snprintf(expected, sizeof expected, "rank %d", i);
        TUTTI_TRY(store->get(store->context, key, value, sizeof value, &bytes, 10000));
        RANKS_CHECK(strcmp(value, expected) == 0, "'%s' from rank %d", value, i);
    }
    return TUTTI_OK;
}

static tutti_status meet(ranks_context *context) {
    const place *where = context->argument;
    tutti_world world;
    TUTTI_TRY(set_place(context));
    TUTTI_TRY(tutti_world_get(&world));
    for (int i = 0; i < NTIMES; i++) {
        tutti_rendezvous *rendezvous;
        char expected[64];
        TUTTI_TRY(tutti_rendezvous_open(&world, &rendezvous));
        snprintf(expected, sizeof expected, "tutti/job/2/%d", i);
        RANKS_CHECK(strcmp(tutti_rendezvous_prefix(rendezvous), expected) == 0, "prefix '%s'",
                    tutti_rendezvous_prefix(rendezvous));
        tutti_status status = exchange(context, rendezvous);
        tutti_rendezvous_close(rendezvous);
        TUTTI_TRY(status);
        if (where->rank_0_ends) return TUTTI_OK;
    }
    return TUTTI_OK;
}

static void run(place where) {
    const char *problem = ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = NRANKS, .no_comm = true, .argument = &where}, meet);
    cr_assert_null(problem, "%s", problem);
}

Test(rendezvous, rank_0_serves_again_and_again) {
    run((place){.port = wire_free_port()});
}

Test(rendezvous, rank_0_leaves_last) {
    run((place){.port = wire_free_port(), .rank_0_ends = true});
}

static void run_with_store(const char *agent) {
    int port = 0;
    pid_t store = served_store_start(&port);
    cr_assert_gt(store, 0);
    run((place){.port = port, .agent = agent});
    served_store_end(store);
}

Test(rendezvous, the_launcher_hosts_the_store) {
    run_with_store("True");
}

Test(rendezvous, rank_0_joins_an_existing_store) {
    run_with_store("False");
}

Test(rendezvous, a_port_that_is_in_use_is_named) {
    int port, fd = wire_listen(&port);
    char text[32];
    const tutti_world world = {.rank = 0, .size = 2, .local_size = 2, .nodes = 1};
    tutti_rendezvous *rendezvous;
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    cr_assert_eq(tutti_rendezvous_open(&world, &rendezvous), TUTTI_ERR_CONFIG);
    snprintf(text, sizeof text, "port %d is in use", port);
    cr_assert(strstr(tutti_last_error(), text) != NULL, "%s", tutti_last_error());
    close(fd);
}

/* Starts a store of another user at the job's port, before rank 0; reports when it listens. */
static pid_t start_strangers_store(int *port_out) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    pid_t stranger = fork();
    if (stranger == 0) {
        tutti_store_server *server;
        if (setuid(65534) != 0 || tutti_store_server_start("127.0.0.1", 0, NULL, &server) != TUTTI_OK) _exit(1);
        int port = tutti_store_server_port(server);
        if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    ssize_t got = stranger > 0 ? read(ends[0], port_out, sizeof *port_out) : -1;
    close(ends[0]);
    return got == sizeof *port_out ? stranger : -1;
}

Test(rendezvous, another_users_store_is_not_joined) {
    int port;
    char text[32];
    const tutti_world world = {.rank = 0, .size = 2, .local_size = 2, .nodes = 1};
    tutti_rendezvous *rendezvous;
    if (geteuid() != 0) cr_skip_test("needs root, to be another user later");
    pid_t stranger = start_strangers_store(&port);
    cr_assert_gt(stranger, 0, "the other user's store has not come up");
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    tutti_status status = tutti_rendezvous_open(&world, &rendezvous);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    cr_assert_eq(status, TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "is in use by a process of user 65534; choose another port") != NULL, "%s",
              tutti_last_error());
}

Test(rendezvous, an_error_recorded_before_the_close_is_still_there_after_it) {
    tutti_store_server *server;
    const tutti_world world = {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .nodes = 1};
    tutti_rendezvous *rendezvous;
    char text[32];
    cr_assert_eq(tutti_store_server_start("127.0.0.1", 0, NULL, &server), TUTTI_OK);
    snprintf(text, sizeof text, "%d", tutti_store_server_port(server));
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    cr_assert_eq(tutti_rendezvous_open(&world, &rendezvous), TUTTI_OK, "%s", tutti_last_error());
    tutti_store_server_stop(server);
    (void)tutti_fail(TUTTI_ERR_DATA, "the real reason");
    tutti_rendezvous_close(rendezvous);
    cr_assert_str_eq(tutti_last_error(), "the real reason");
}
