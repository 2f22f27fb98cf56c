/*
 * Who am I and how many are we: torchrun's variables, read into tutti_world.
 *
 * Nothing is guessed silently. RANK and WORLD_SIZE come together or not at all; what launchers leave out about
 * the host is filled in and said; whatever contradicts is one error that shows all variables as they are.
 */
#include "bootstrap/world.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"

enum { MOST_RANKS = 1 << 20 };

typedef enum variable {
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    GROUP_RANK,
    GROUP_WORLD_SIZE,
    RESTART_COUNT,
    VARIABLE_COUNT
} variable;

static const char *const names[VARIABLE_COUNT] = {
    [RANK] = "RANK",
    [WORLD_SIZE] = "WORLD_SIZE",
    [LOCAL_RANK] = "LOCAL_RANK",
    [LOCAL_WORLD_SIZE] = "LOCAL_WORLD_SIZE",
    [GROUP_RANK] = "GROUP_RANK",
    [GROUP_WORLD_SIZE] = "GROUP_WORLD_SIZE",
    [RESTART_COUNT] = "TORCHELASTIC_RESTART_COUNT",
};

enum { UNSET = -1 };

/* "RANK=3, WORLD_SIZE is not set, ...": what was looked for and what was found. */
static const char *describe(char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < RESTART_COUNT && used < capacity; i++) {
        const char *value = getenv(names[i]);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s%s%.40s", i > 0 ? ", " : "", names[i],
                                 value != NULL ? "=" : " not set", value != NULL ? value : "");
    }
    return text;
}

static tutti_status fail_world(const char *problem) {
    char found[512];
    return tutti_fail(TUTTI_ERR_CONFIG, "launcher variables: %s (%s); start with tuttirun or torchrun, or set them",
                      problem, describe(found, sizeof found));
}

static tutti_status read_variable(variable which, int *value_out) {
    const char *text = getenv(names[which]);
    *value_out = UNSET;
    if (text == NULL || *text == '\0') return TUTTI_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > MOST_RANKS) {
        char problem[160];
        snprintf(problem, sizeof problem, "%s=%.40s is not a whole number from 0 to %d", names[which], text,
                 MOST_RANKS);
        return fail_world(problem);
    }
    *value_out = (int)value;
    return TUTTI_OK;
}

/* `index` counts from 0 up to `count`; both are known here. */
static tutti_status check_index(variable index, variable count, const int *values) {
    char problem[160];
    if (values[index] < values[count]) return TUTTI_OK;
    snprintf(problem, sizeof problem, "%s=%d must be less than %s=%d", names[index], values[index], names[count],
             values[count]);
    return fail_world(problem);
}

/* Other launchers start processes without RANK: each would be a world of its own, which nobody wants. */
static void warn_of_other_launchers(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    static atomic_flag told = ATOMIC_FLAG_INIT;
    for (size_t i = 0; i < TUTTI_COUNT_OF(sizes); i++) {
        const char *text = getenv(sizes[i]);
        if (text == NULL || atoi(text) < 2 || atomic_flag_test_and_set(&told)) continue;
        tutti_log(TUTTI_LOG_WARN, "%s=%s but RANK and WORLD_SIZE are not set: this process is a world of 1", sizes[i],
                  text);
    }
}

static void say_assumed(const int *values) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&told)) return;
    tutti_log(values[RANK] == 0 ? TUTTI_LOG_WARN : TUTTI_LOG_INFO,
              "LOCAL_RANK or LOCAL_WORLD_SIZE is not set: takes all %d ranks to be on one host", values[WORLD_SIZE]);
}

/* One of the two may follow from the other; else all ranks count as one host's. */
static tutti_status fill_local(int *values) {
    int nodes = values[GROUP_WORLD_SIZE];
    if (values[LOCAL_WORLD_SIZE] == UNSET && nodes > 0 && values[WORLD_SIZE] % nodes == 0)
        values[LOCAL_WORLD_SIZE] = values[WORLD_SIZE] / nodes;
    if (values[LOCAL_WORLD_SIZE] != UNSET && values[LOCAL_RANK] == UNSET) {
        if (values[LOCAL_WORLD_SIZE] == 0) return fail_world("LOCAL_WORLD_SIZE must be at least 1");
        values[LOCAL_RANK] = values[RANK] % values[LOCAL_WORLD_SIZE];
    }
    if (values[LOCAL_WORLD_SIZE] != UNSET) return TUTTI_OK;
    if (values[LOCAL_RANK] != UNSET && values[LOCAL_RANK] != values[RANK])
        return fail_world("LOCAL_RANK differs from RANK, so there are several hosts: LOCAL_WORLD_SIZE is needed");
    if (values[WORLD_SIZE] > 1) say_assumed(values);
    values[LOCAL_RANK] = values[RANK];
    values[LOCAL_WORLD_SIZE] = values[WORLD_SIZE];
    return TUTTI_OK;
}

static void fill_group(int *values) {
    if (values[GROUP_WORLD_SIZE] == UNSET)
        values[GROUP_WORLD_SIZE] = (values[WORLD_SIZE] + values[LOCAL_WORLD_SIZE] - 1) / values[LOCAL_WORLD_SIZE];
    if (values[GROUP_RANK] == UNSET)
        values[GROUP_RANK] = (int)tutti_min_i64(values[RANK] / values[LOCAL_WORLD_SIZE], values[GROUP_WORLD_SIZE] - 1);
}

static tutti_status complete(int *values) {
    if (values[RANK] == UNSET || values[WORLD_SIZE] == UNSET)
        return fail_world(values[RANK] == UNSET ? "RANK is missing" : "WORLD_SIZE is missing");
    TUTTI_TRY(check_index(RANK, WORLD_SIZE, values));
    TUTTI_TRY(fill_local(values));
    TUTTI_TRY(check_index(LOCAL_RANK, LOCAL_WORLD_SIZE, values));
    if (values[LOCAL_WORLD_SIZE] > values[WORLD_SIZE]) return fail_world("LOCAL_WORLD_SIZE is more than WORLD_SIZE");
    if (values[GROUP_WORLD_SIZE] == 0) return fail_world("GROUP_WORLD_SIZE must be at least 1");
    fill_group(values);
    return check_index(GROUP_RANK, GROUP_WORLD_SIZE, values);
}

tutti_status tutti_world_get(tutti_world *world_out) {
    int values[VARIABLE_COUNT];
    bool any = false;
    if (world_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_world_get: world_out is NULL");
    for (int i = 0; i < VARIABLE_COUNT; i++) {
        TUTTI_TRY(read_variable((variable)i, &values[i]));
        any = any || (i < RESTART_COUNT && values[i] != UNSET);
    }
    if (any) {
        TUTTI_TRY(complete(values));
    } else {
        warn_of_other_launchers();
        values[RANK] = values[LOCAL_RANK] = values[GROUP_RANK] = 0;
        values[WORLD_SIZE] = values[LOCAL_WORLD_SIZE] = values[GROUP_WORLD_SIZE] = 1;
    }
    *world_out = (tutti_world){.rank = values[RANK],
                               .size = values[WORLD_SIZE],
                               .local_rank = values[LOCAL_RANK],
                               .local_size = values[LOCAL_WORLD_SIZE],
                               .node = values[GROUP_RANK],
                               .nodes = values[GROUP_WORLD_SIZE],
                               .restart = values[RESTART_COUNT] == UNSET ? 0 : values[RESTART_COUNT]};
    return TUTTI_OK;
}
