/*
 * Communicators: worlds of 1, splits, groups made by their members, many at once, settings and secrets that differ.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 4, 7, 0};

static void run(const int *sizes, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status try_out(tutti_comm *comm, int rank, int nranks) {
    RANKS_CHECK(tutti_comm_rank(comm) == rank && tutti_comm_size(comm) == nranks, "rank %d of %d, not %d of %d",
                tutti_comm_rank(comm), tutti_comm_size(comm), rank, nranks);
    for (int kind = 0; kind < CALL_KINDS; kind++)
        TUTTI_TRY(
            call_run(&(call){.kind = (call_kind)kind, .type = TUTTI_INT32, .count = 37, .root = nranks - 1}, comm));
    return TUTTI_OK;
}

static tutti_status try_and_destroy(tutti_comm *comm, int rank, int nranks) {
    tutti_status status = try_out(comm, rank, nranks);
    tutti_status destroyed = tutti_comm_destroy(comm);
    return status != TUTTI_OK ? status : destroyed;
}

Test(comm, one_process_without_launcher_variables_is_a_world_of_one) {
    static const char *const variables[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                            "MASTER_ADDR", "MASTER_PORT"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    tutti_comm *comm;
    cr_assert_eq(tutti_comm_create_world(&comm), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(try_and_destroy(comm, 0, 1), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(tutti_comm_destroy(NULL), TUTTI_OK);
}

static tutti_status split_by_parity(ranks_context *context) {
    int rank = context->rank, n = context->nranks;
    tutti_comm *half, *backwards, *nested;
    TUTTI_TRY(tutti_comm_split(context->comm, rank % 2, rank, NULL, &half));
    int half_size = (n + 1 - rank % 2) / 2;
    TUTTI_TRY(try_out(half, rank / 2, half_size));
    TUTTI_TRY(tutti_comm_split(half, 7, -rank, NULL, &nested)); /* keys may be negative */
    TUTTI_TRY(tutti_comm_destroy(half));                        /* a child outlives its parent */
    TUTTI_TRY(try_and_destroy(nested, half_size - 1 - rank / 2, half_size));
    TUTTI_TRY(tutti_comm_split(context->comm, 3, n - rank, NULL, &backwards));
    return try_and_destroy(backwards, n - 1 - rank, n);
}

Test(comm, split_orders_by_key_within_each_colour_and_nests) {
    run(worlds, split_by_parity);
}

static tutti_status split_equal_keys_and_none(ranks_context *context) {
    tutti_comm *comm = (tutti_comm *)&comm;
    bool out = context->rank == context->nranks - 1;
    TUTTI_TRY(tutti_comm_split(context->comm, out ? TUTTI_COLOR_NONE : 1, 0, NULL, &comm));
    if (out) {
        RANKS_CHECK(comm == NULL, "a rank of no colour got a communicator");
        return TUTTI_OK;
    }
    return try_and_destroy(comm, context->rank, context->nranks - 1);
}

Test(comm, ranks_without_a_colour_take_part_and_get_null) {
    run(worlds, split_equal_keys_and_none);
}

/* The last rank's options are wrong: the other ranks of its colour learn that, and the other colour is made. */
static tutti_status split_with_wrong_options(ranks_context *context) {
    int rank = context->rank, last = context->nranks - 1;
    bool concerned = rank % 2 == last % 2;
    char name[32];
    tutti_comm *comm = NULL;
    tutti_comm_options options = TUTTI_COMM_OPTIONS(.timeout_ms = rank == last ? -1 : 0);
    tutti_status status = tutti_comm_split(context->comm, rank % 2, 0, &options, &comm);
    if (!concerned) {
        TUTTI_TRY(status);
        TUTTI_TRY(try_and_destroy(comm, rank / 2, (context->nranks + 1 - rank % 2) / 2));
    } else {
        RANKS_EXPECT(rank == last ? TUTTI_ERR_ARGUMENT : TUTTI_ERR_ABORTED, status);
        RANKS_CHECK(comm == NULL, "written on failure");
        snprintf(name, sizeof name, "rank %d", last);
        RANKS_CHECK(strstr(tutti_last_error(), rank == last ? "timeout_ms" : name) != NULL, "%s", tutti_last_error());
    }
    TUTTI_TRY(tutti_comm_split(context->comm, 0, 0, NULL, &comm)); /* the parent is whole */
    return try_and_destroy(comm, rank, context->nranks);
}

Test(comm, wrong_options_of_a_split_are_an_error_on_all_ranks_of_the_colour) {
    run(worlds, split_with_wrong_options);
}

/* Pairs of neighbours make groups; rank 0 never calls. */
static tutti_status create_by_members(ranks_context *context) {
    int rank = context->rank, n = context->nranks;
    if (rank == 0) return TUTTI_OK;
    int first = (rank - 1) / 2 * 2 + 1, members[2] = {first + 1, first}; /* in this order */
    int size = first + 1 < n ? 2 : 1;
    if (size == 1) members[0] = first;
    tutti_comm *pair;
    TUTTI_TRY(tutti_comm_create_group(context->comm, members, size, 4, NULL, &pair));
    return try_and_destroy(pair, size == 1 ? 0 : rank == first, size);
}

/* Expects the cores of TUTTI_CPUS, or without it those of the affinity mask, unless a quota allows fewer. */
static tutti_status ask_cores(ranks_context *context) {
    const char *given = getenv("TUTTI_CPUS");
    tutti_comm_details details;
    tutti_comm *half;
    cpu_set_t allowed;
    RANKS_CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "no affinity mask");
    const int most = given != NULL ? atoi(given) : CPU_COUNT(&allowed), least = given != NULL ? most : 1;
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank % 2, 0, NULL, &half));
    for (int i = 0; i < 2; i++) {
        TUTTI_TRY(tutti_comm_get(i == 0 ? context->comm : half, &details));
        RANKS_CHECK(details.host_ranks == context->nranks, "%d of %d ranks", details.host_ranks, context->nranks);
        RANKS_CHECK(details.host_cores >= least && details.host_cores <= most, "%d cores, not %d to %d",
                    details.host_cores, least, most);
    }
    return tutti_comm_destroy(half);
}

Test(comm, the_cores_that_the_ranks_of_a_host_share_are_told) {
    static const char *const settings[][2] = {{"TUTTI_CPUS=3", NULL}, {NULL}};
    for (int nranks = 1; nranks <= 4; nranks += 3)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            if (settings[i][0] != NULL && !ranks_have_processes()) continue;
            const char *failure = ranks_run(&(ranks_options){.nranks = nranks, .environment = settings[i]}, ask_cores);
            cr_assert(failure == NULL, "%d ranks: %s", nranks, failure);
        }
}

Test(comm, a_group_is_made_by_its_members_alone) {
    run(worlds, create_by_members);
}

static tutti_status create_wrong_groups(ranks_context *context) {
    tutti_comm *comm;
    int n = context->nranks, beyond[] = {context->rank, n}, twice[] = {context->rank, context->rank};
    int others[] = {(context->rank + 1) % n};
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, beyond, 2, 0, NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, twice, 2, 0, NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, twice, 0, 0, NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, NULL, 1, 0, NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, twice, 1, -1, NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_split(context->comm, -2, 0, NULL, &comm));
    if (n > 1) RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create_group(context->comm, others, 1, 0, NULL, &comm));
    return tutti_barrier(context->comm, NULL);
}

Test(comm, wrong_groups_are_refused) {
    run(worlds, create_wrong_groups);
}

enum { MANY = 500 };

static tutti_status many_splits(ranks_context *context) {
    tutti_comm *comms[MANY];
    for (int i = 0; i < MANY; i++) TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comms[i]));
    for (int i = 0; i < MANY; i += 7) {
        int value = i;
        TUTTI_TRY(tutti_all_reduce(comms[i], &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
        RANKS_CHECK(value == i * context->nranks, "communicator %d: sum %d", i, value);
    }
    for (int i = 0; i < MANY; i++) TUTTI_TRY(tutti_comm_destroy(comms[i]));
    return TUTTI_OK;
}

Test(comm, five_hundred_communicators_live_in_one_process, .timeout = 200) {
    run((const int[]){1, 3, 0}, many_splits);
}

/* Without what Criterion keeps in /dev/shm for the tests that run beside this one. */
static int count_entries(const char *folder) {
    int count = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        count += strncmp(entry->d_name, "bxf", 3) != 0;
    if (directory != NULL) closedir(directory);
    return count;
}

static tutti_status create_again_and_again(ranks_context *context) {
    int files = 0, shared = count_entries("/dev/shm");
    for (int i = 0; i < 30; i++) {
        char prefix[32];
        tutti_comm *comm;
        snprintf(prefix, sizeof prefix, "again/%d", i);
        TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, prefix, NULL, &comm));
        TUTTI_TRY(try_and_destroy(comm, context->rank, context->nranks));
        if (i == 4) files = count_entries("/proc/self/fd");
    }
    /* What belongs to a peer may go a little later than the communicator; a leak would show 25 times. */
    RANKS_CHECK(count_entries("/proc/self/fd") <= files + 4 * context->nranks,
                "%d files are open after 30 rounds, %d after 5", count_entries("/proc/self/fd"), files);
    RANKS_CHECK(count_entries("/dev/shm") <= shared, "something was left in /dev/shm");
    return TUTTI_OK;
}

Test(comm, creating_and_destroying_leaves_no_file_behind) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .no_comm = true}, create_again_and_again);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------- what must agree */

static tutti_status create_with_own_chunks(ranks_context *context) {
    tutti_comm *comm;
    tutti_status status = tutti_comm_create(context->rank, context->nranks, context->store, "chunks", NULL, &comm);
    RANKS_CHECK(status == TUTTI_ERR_CONFIG, "'%s' (%s)", tutti_status_name(status),
                status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "TUTTI_CHUNK_BYTES=1024") != NULL &&
                    strstr(tutti_last_error(), "TUTTI_CHUNK_BYTES=2048") != NULL,
                "the error does not show both: %s", tutti_last_error());
    return TUTTI_OK;
}

static tutti_status settings_differ(ranks_context *context) {
    setenv("TUTTI_CHUNK_BYTES", context->rank == 1 ? "2048" : "1024", 1);
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "5000", 1);
    tutti_settings_reload();
    return create_with_own_chunks(context);
}

Test(comm, settings_that_differ_are_an_error_that_shows_both) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .no_comm = true}, settings_differ);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status secrets_differ(ranks_context *context) {
    setenv("TUTTI_SECRET", context->rank == 1 ? "password" : "our word", 1);
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "4000", 1);
    tutti_settings_reload();
    tutti_comm *comm;
    tutti_status status = tutti_comm_create(context->rank, context->nranks, context->store, "secret", NULL, &comm);
    /* Rank 0 meets rank 1; rank 2 may see the end of rank 0 first. */
    RANKS_CHECK(context->rank == 1 ? status == TUTTI_ERR_REFUSED : status != TUTTI_OK, "'%s' (%s)",
                tutti_status_name(status), status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "password") == NULL && strstr(tutti_last_error(), "our word") == NULL,
                "the error tells a secret");
    return TUTTI_OK;
}

Test(comm, a_rank_with_another_secret_is_refused) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .no_comm = true}, secrets_differ);
    cr_assert(failure == NULL, "%s", failure);
}

/* Rank 1 comes to a group too late for the deadline that its parent was made with, long before that of the setting. */
static tutti_status come_late_to_a_group(ranks_context *context) {
    tutti_comm *comm, *group;
    int64_t begin_ns = tutti_now_ns();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "hasty",
                                &TUTTI_COMM_OPTIONS(.timeout_ms = 500, .connect_timeout_ms = 500), &comm));
    if (context->rank == 1) usleep(2500 * 1000);
    tutti_status status = tutti_comm_create_group(comm, (int[]){0, 1}, 2, 0, NULL, &group);
    RANKS_CHECK(status != TUTTI_OK, "the group has come");
    int64_t took_ms = (tutti_now_ns() - begin_ns) / TUTTI_NS_PER_MS;
    RANKS_CHECK(took_ms < 5000, "it took %lld ms", (long long)took_ms);
    return tutti_comm_destroy(comm);
}

Test(comm, groups_keep_to_the_deadlines_of_their_parent) {
    const char *failure =
        ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 2, .no_comm = true}, come_late_to_a_group);
    cr_assert(failure == NULL, "%s", failure);
}

/* Stores of callers that do not keep to the rules. */
static tutti_status add_answers_seven(void *context, const char *key, int64_t amount, int64_t *value_out) {
    (void)context, (void)key, (void)amount, (void)value_out;
    return (tutti_status)7;
}

static tutti_status get_too_much(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                                 int64_t timeout_ms) {
    (void)context, (void)key, (void)value, (void)timeout_ms;
    *bytes_out = capacity + 1;
    return TUTTI_OK;
}

static tutti_status create_wrong(ranks_context *context) {
    tutti_comm *comm;
    const tutti_store *store = context->store;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(-1, 1, store, "wrong", NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(1, 1, store, "wrong", NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 0, store, "wrong", NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 1, store, "wrong", NULL, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 2, NULL, "wrong", NULL, &comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 2, store, NULL, NULL, &comm));
    const tutti_comm_options foreign = {.struct_bytes = 7};
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 1, NULL, NULL, &foreign, &comm));
    tutti_store unsized = *store;
    unsized.struct_bytes = 0;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_comm_create(0, 2, &unsized, "wrong", NULL, &comm));
    tutti_store odd = *store;
    odd.add = add_answers_seven;
    RANKS_EXPECT(TUTTI_ERR_SYSTEM, tutti_comm_create(0, 2, &odd, "odd", NULL, &comm));
    RANKS_CHECK(strstr(tutti_last_error(), "add returned 7") != NULL, "'%s'", tutti_last_error());
    odd = *store;
    odd.get = get_too_much;
    RANKS_EXPECT(TUTTI_ERR_DATA, tutti_comm_create(1, 2, &odd, "much", NULL, &comm));
    RANKS_CHECK(strstr(tutti_last_error(), "were asked for") != NULL, "'%s'", tutti_last_error());
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "300", 1);
    tutti_settings_reload();
    RANKS_EXPECT(TUTTI_ERR_TIMEOUT, tutti_comm_create(0, 2, store, "alone", NULL, &comm));
    return TUTTI_OK;
}

Test(comm, wrong_arguments_and_missing_ranks_are_errors) {
    const char *failure = ranks_run(&(ranks_options){.kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS,
                                                     .nranks = 1,
                                                     .no_comm = true},
                                    create_wrong);
    cr_assert(failure == NULL, "%s", failure);
}
