/*
 * Who am I: torchrun's variables in all their combinations, and the secret. Criterion runs each test in a process of
 * its own, so the variables that a test sets are its own.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/secret.h"
#include "bootstrap/world.h"

static const char *const launcher_variables[] = {"RANK",
                                                 "WORLD_SIZE",
                                                 "LOCAL_RANK",
                                                 "LOCAL_WORLD_SIZE",
                                                 "GROUP_RANK",
                                                 "GROUP_WORLD_SIZE",
                                                 "MASTER_ADDR",
                                                 "MASTER_PORT",
                                                 "OMPI_COMM_WORLD_SIZE",
                                                 "PMI_SIZE",
                                                 "SLURM_STEP_NUM_TASKS",
                                                 "TORCHELASTIC_RESTART_COUNT",
                                                 "TORCHELASTIC_USE_AGENT_STORE",
                                                 "TORCHELASTIC_RUN_ID"};

/* Only these: "RANK=1 WORLD_SIZE=2". */
static void set_variables(const char *list) {
    char copy[512], *rest = copy;
    for (size_t i = 0; i < sizeof launcher_variables / sizeof *launcher_variables; i++) unsetenv(launcher_variables[i]);
    snprintf(copy, sizeof copy, "%s", list);
    for (char *item; (item = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(item, '=');
        if (value == NULL) continue;
        *value = '\0';
        setenv(item, value + 1, 1);
    }
}

TestSuite(world, .timeout = 60);

typedef struct good {
    const char *variables;
    tutti_world world;
} good;

static const good goods[] = {
    {"", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK= WORLD_SIZE=", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK=0 WORLD_SIZE=1", {0, 1, 0, 1, 0, 1, 0}},
    {"RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=1", {2, 4, 2, 4, 0, 1, 0}},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=3",
     {5, 8, 1, 4, 1, 2, 3}},
    /* nodes of different sizes: what the launcher says counts */
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2", {3, 4, 0, 1, 1, 2, 0}},
    /* OneFlow's launcher says no more than this */
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", {1, 2, 1, 2, 0, 1, 0}},
    {"RANK=1 WORLD_SIZE=3", {1, 3, 1, 3, 0, 1, 0}},
    {"RANK=5 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2", {5, 6, 1, 2, 2, 3, 0}},
    {"RANK=5 WORLD_SIZE=6 GROUP_WORLD_SIZE=2", {5, 6, 2, 3, 1, 2, 0}},
    {"RANK=4 WORLD_SIZE=5 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", {4, 5, 0, 2, 2, 3, 0}},
};

Test(world, is_what_the_launcher_says) {
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        tutti_world world;
        set_variables(goods[i].variables);
        cr_assert_eq(tutti_world_get(&world), TUTTI_OK, "'%s': %s", goods[i].variables, tutti_last_error());
        const tutti_world *want = &goods[i].world;
        cr_assert(world.rank == want->rank && world.size == want->size, "'%s'", goods[i].variables);
        cr_assert(world.local_rank == want->local_rank && world.local_size == want->local_size, "'%s': local %d of %d",
                  goods[i].variables, world.local_rank, world.local_size);
        cr_assert(world.node == want->node && world.nodes == want->nodes, "'%s': node %d of %d", goods[i].variables,
                  world.node, world.nodes);
        cr_assert_eq(world.restart, want->restart);
    }
}

static const char *const bads[][2] = {
    /* variables, what the error must say */
    {"RANK=0", "WORLD_SIZE is missing"},
    {"WORLD_SIZE=2", "RANK is missing"},
    {"LOCAL_RANK=0", "RANK is missing"},
    {"RANK=2 WORLD_SIZE=2", "RANK=2 must be less than WORLD_SIZE=2"},
    {"RANK=0 WORLD_SIZE=0", "RANK=0 must be less than WORLD_SIZE=0"},
    {"RANK=-1 WORLD_SIZE=2", "RANK=-1 is not a whole number"},
    {"RANK=one WORLD_SIZE=2", "RANK=one is not a whole number"},
    {"RANK=0x1 WORLD_SIZE=2", "RANK=0x1 is not a whole number"},
    {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE=99999999999999999999 is not"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=2"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE is more than WORLD_SIZE"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0", "LOCAL_WORLD_SIZE must be at least 1"},
    {"RANK=0 WORLD_SIZE=2 GROUP_WORLD_SIZE=0", "GROUP_WORLD_SIZE must be at least 1"},
    {"RANK=0 WORLD_SIZE=2 GROUP_RANK=2 GROUP_WORLD_SIZE=2", "GROUP_RANK=2 must be less than GROUP_WORLD_SIZE=2"},
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1", "LOCAL_WORLD_SIZE is needed"},
    {"RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=x", "TORCHELASTIC_RESTART_COUNT=x is not"},
};

Test(world, contradictions_are_one_line_with_all_that_was_found) {
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        tutti_world world = {.rank = 77};
        set_variables(bads[i][0]);
        cr_assert_eq(tutti_world_get(&world), TUTTI_ERR_CONFIG, "'%s' was taken", bads[i][0]);
        cr_assert_eq(world.rank, 77, "written only on success");
        cr_assert(strstr(tutti_last_error(), bads[i][1]) != NULL, "'%s': %s", bads[i][0], tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "GROUP_WORLD_SIZE") != NULL, "lists: %s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "tuttirun") != NULL, "says what to do: %s", tutti_last_error());
        cr_assert_null(strchr(tutti_last_error(), '\n'));
    }
    cr_assert_eq(tutti_world_get(NULL), TUTTI_ERR_ARGUMENT);
}

Test(world, a_place_to_meet_is_needed_and_checked) {
    static const char *const places[] = {"",
                                         "MASTER_ADDR=127.0.0.1",
                                         "MASTER_PORT=29500",
                                         "MASTER_ADDR=127.0.0.1 MASTER_PORT=x",
                                         "MASTER_ADDR=127.0.0.1 MASTER_PORT=0",
                                         "MASTER_ADDR=127.0.0.1 MASTER_PORT=70000"};
    const tutti_world world = {.rank = 0, .size = 2};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        tutti_rendezvous *rendezvous;
        set_variables(places[i]);
        cr_assert_eq(tutti_rendezvous_open(&world, &rendezvous), TUTTI_ERR_CONFIG, "'%s' was taken", places[i]);
        cr_assert(strstr(tutti_last_error(), "MASTER_ADDR") != NULL, "%s", tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "MASTER_PORT") != NULL, "%s", tutti_last_error());
    }
    tutti_rendezvous_close(NULL);
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

Test(world, the_secret_comes_from_its_variable_or_its_file) {
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

Test(world, a_secret_that_cannot_be_read_is_an_error) {
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
