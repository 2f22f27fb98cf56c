/*
 * Rails of threads. See rails.h.
 */
#include "tests/support/links/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/links/strict_links.h"

typedef struct run {
    rails_body body;
    void *argument;
} run;

static tutti_status be_rank(ranks_context *context) {
    run *r = context->argument;
    int ranks[context->nranks];
    for (int i = 0; i < context->nranks; i++) ranks[i] = i;
    tutti_comm host = {.host_ranks = 1, .host_cores = 1}; /* the only parts of the communicator that are used */
    rails_rank rank = {.rail = {.comm = &host, .n = context->nranks, .me = context->rank, .ranks = ranks},
                       .argument = r->argument};
    rank.rail.op = &rank.op;
    rank.setup.table = &rank.table;
    tutti_status status = r->body(&rank);
    free(rank.setup.scratch);
    if (status == TUTTI_OK) return TUTTI_OK;
    strict_links_give_up();
    if (status == TUTTI_ERR_ABORTED) usleep(200000); /* so that the cause is reported first */
    return status;
}

const char *rails_run(const int *sizes, rails_body body, void *argument) {
    static char text[1200];
    run r = {.body = body, .argument = argument};
    for (const int *size = sizes; *size > 0; size++) {
        if (strict_links_create(*size) != TUTTI_OK) return tutti_last_error();
        const char *failure = ranks_run(
            &(ranks_options){.kind = RANKS_THREADS, .nranks = *size, .timeout_s = 100, .argument = &r, .no_comm = true},
            be_rank);
        strict_links_destroy();
        if (failure == NULL) continue;
        snprintf(text, sizeof text, "%d ranks: %s", *size, failure);
        return text;
    }
    return NULL;
}

void rails_next(rails_rank *rank, const char *algorithm, size_t piece_bytes) {
    const tutti_rail_rules rules = {
        .n = rank->rail.n, .reorders = algorithm != NULL, .piece_bytes = piece_bytes, .forced = algorithm};
    tutti_rail_table_fill(&rules, &tutti_cost_ordinary, &rank->table);
    rank->op.sequence++;
}

tutti_status rails_prepare(rails_rank *rank, tutti_kind kind, size_t bytes) {
    size_t needed = tutti_rail_scratch_bytes(&rank->table, kind, bytes);
    free(rank->setup.scratch);
    rank->setup.scratch_bytes = needed;
    rank->setup.scratch = aligned_alloc(TUTTI_CACHE_LINE, tutti_align_up(needed + 1, TUTTI_CACHE_LINE));
    if (rank->setup.scratch == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "out of memory for scratch");
    memset(rank->setup.scratch, 0x5a, needed);
    return TUTTI_OK;
}
