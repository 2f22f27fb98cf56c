/*
 * Where the ranks meet, and with which secret. Criterion runs each test in a process of its own, so the variables
 * that a test sets are its own.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/meeting.h"
#include "bootstrap/launcher/world.h"
#include "bootstrap/machine/interfaces.h"
#include "bootstrap/store/secret.h"
#include "tests/support/programs/variables.h"

TestSuite(meeting, .timeout = 60);

/* ---------------------------------------------------------------------------------------------- places */

Test(meeting, an_address_to_meet_at_is_needed_and_checked) {
    static const char *const places[] = {
        "",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=29500",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=x",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=0",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=70000",
        "RANK=0 WORLD_SIZE=2 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=a", /* torchrun's give the rank, not the address */
        "PMI_RANK=0 PMI_SIZE=2", /* on one host, but nothing distinguishes this job from another */
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        tutti_rendezvous *rendezvous;
        tutti_world world;
        variables_set(places[i]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", places[i], tutti_last_error());
        if (world.size == 1) world.size = 2;
        cr_assert_eq(tutti_rendezvous_open(&world, &rendezvous), TUTTI_ERR_CONFIG, "'%s' was taken", places[i]);
        cr_assert(strstr(tutti_last_error(), "MASTER_ADDR") != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "MASTER_PORT") != NULL, "%s", tutti_last_error());
    }
    tutti_rendezvous_close(NULL);
}

#define SLURM_STEP "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 "
#define ONE_HOST                                                                                                       \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "

static tutti_meeting find_meeting(const char *variables) {
    tutti_world world;
    tutti_meeting meeting;
    variables_set(variables);
    cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", variables, tutti_last_error());
    cr_assert_eq(tutti_meeting_find(&world, &meeting), TUTTI_OK, "'%s': %s", variables, tutti_last_error());
    return meeting;
}

Test(meeting, the_address_to_meet_at_follows_from_the_launchers_variables) {
    tutti_meeting meeting =
        find_meeting("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RUN_ID=job");
    cr_assert(strcmp(meeting.host, "h") == 0 && meeting.port == 1 && strcmp(meeting.run, "job") == 0 && !meeting.agent);
    meeting = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=node[07-09],x SLURM_JOB_ID=12 SLURM_STEP_ID=3");
    cr_assert_str_eq(meeting.host, "node07");
    cr_assert_str_eq(meeting.run, "slurm-12.3");
    cr_assert(meeting.port >= 20000 && meeting.port < 30000, "%d", meeting.port);
    tutti_meeting other = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=node[07-09],x SLURM_JOB_ID=12 SLURM_STEP_ID=4");
    cr_assert_neq(other.port, meeting.port, "two steps have the same port");
    other = find_meeting(SLURM_STEP "SLURM_STEP_NODELIST=a SLURM_JOB_ID=12 MASTER_ADDR=b MASTER_PORT=5");
    cr_assert(strcmp(other.host, "b") == 0 && other.port == 5, "MASTER_ADDR and MASTER_PORT count first");
    meeting = find_meeting(ONE_HOST "OMPI_MCA_ess_base_jobid=17");
    cr_assert_str_eq(meeting.host, "127.0.0.1");
    cr_assert(meeting.port >= 20000 && strcmp(meeting.run, "mpi-17") == 0 && !meeting.exchange);
    meeting = find_meeting(ONE_HOST "MASTER_PORT=77");
    cr_assert(strcmp(meeting.host, "127.0.0.1") == 0 && meeting.port == 77);
    setenv("TUTTI_STORE_PORT", "12345", 1);
    tutti_settings_reload();
    cr_assert_eq(find_meeting(ONE_HOST).port, 12345);
}

Test(meeting, the_store_listens_on_the_interface_of_its_address) {
    cr_assert_str_eq(tutti_meeting_listen_address("localhost"), "127.0.0.1");
    cr_assert_str_eq(tutti_meeting_listen_address("127.0.0.1"), "127.0.0.1");
    cr_assert_null(tutti_meeting_listen_address("node1"), "a name may mean another address elsewhere");
    cr_assert_null(tutti_meeting_listen_address("203.0.113.77"), "not an address of this host");
}

Test(meeting, a_store_that_rank_0_announces_listens_at_the_announced_address) {
    tutti_world one = {.rank = 0, .size = 4, .local_size = 4, .nodes = 1},
                two = {.size = 4, .local_size = 2, .nodes = 2};
    char text[TUTTI_ADDRESS_TEXT_BYTES];
    tutti_interface own[16];
    int count = 0, told = 0;
    cr_assert_str_eq(tutti_meeting_own_address(&one, text), "127.0.0.1");
    setenv("TUTTI_SOCKET_IFNAME", "=lo", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_interfaces_list(own, 16, &count), TUTTI_OK, "%s", tutti_last_error());
    for (int i = 0; i < count; i++) told += own[i].scope == 0;
    const char *address = tutti_meeting_own_address(&two, text);
    if (told == 1) cr_assert_str_eq(address, "127.0.0.1");
    else cr_assert_null(address, "one of %d: %s", told, address);
    setenv("TUTTI_SOCKET_IFNAME", "=no-such", 1);
    tutti_settings_reload();
    cr_assert_null(tutti_meeting_own_address(&two, text), "an interface that does not exist has an address");
}

/* ------------------------------------------------------------------------------------------------ secret */

static void set_secret(const char *secret, const char *file) {
    setenv("TUTTI_SECRET", secret, 1);
    setenv("TUTTI_SECRET_FILE", file, 1);
    tutti_settings_reload();
}

static const char *secret_file(const char *content, size_t bytes) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tutti-secret-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, content, bytes) == (ssize_t)bytes);
    close(fd);
    return path;
}

Test(meeting, the_secret_comes_from_its_variable_or_its_file) {
    char secret[TUTTI_SECRET_BYTES];
    bool set = true;
    set_secret("", "");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK);
    cr_assert(!set && *secret == '\0');
    const char *path = secret_file("from the file \r\n\n", 17);
    set_secret("", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(set);
    cr_assert_str_eq(secret, "from the file");
    set_secret("from the variable", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_OK);
    cr_assert_str_eq(secret, "from the variable");
    unlink(path);
}

static void refuse_file(const char *content, size_t bytes, const char *why) {
    char secret[16];
    bool set;
    const char *path = secret_file(content, bytes);
    set_secret("", path);
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG, "%s", why);
    cr_assert(strstr(tutti_last_error(), path) != NULL, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), why) != NULL, "%s", tutti_last_error());
    unlink(path);
}

Test(meeting, a_secret_that_cannot_be_read_is_an_error) {
    char secret[16];
    bool set;
    set_secret("", "/nowhere/secret");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "/nowhere/secret") != NULL, "%s", tutti_last_error());
    set_secret("", "/tmp");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    set_secret("sixteen bytes it", "");
    cr_assert_eq(tutti_secret_get(secret, sizeof secret, &set), TUTTI_ERR_CONFIG);
    refuse_file("", 0, "empty");
    refuse_file(" \n\n", 3, "empty");
    refuse_file("a\0b", 3, "zero byte");
    refuse_file("sixteen bytes it", 16, "longer than 15 bytes");
}
