/*
 * The sweep. Parameters that are cheap to combine are combined in full (type, reduction, count, place); roots and
 * kinds of memory alternate, and a second pass covers all roots. Large worlds on few cores take every fifth call.
 */
#include "tests/support/sweep.h"

#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "tests/support/reference.h"

#define CHUNK_BYTES 256
#define CHUNK_TEXT  "256"
#define EAGER_TEXT  "128"

static tutti_status sweep_counts(const ranks_context *context, call *c, unsigned *turn) {
    size_t n = (size_t)context->nranks, item = tutti_type_bytes(c->type);
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 31, CHUNK_BYTES / item + 1, 5 * CHUNK_BYTES / item + 3};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int place = 0; place < CALL_MODES; place++) {
            c->seed = ++*turn;
            if (context->nranks > 4 && *turn % 5 != 0) continue;
            c->count = counts[i];
            c->in_place = (call_mode)place;
            c->shared = (call_mode)(*turn / 3 % CALL_MODES);
            c->root = (int)(*turn / 2 % n);
            TUTTI_TRY(call_run(c, context->comm));
        }
    }
    return TUTTI_OK;
}

static tutti_status sweep_roots(const ranks_context *context, call *c, unsigned *turn) {
    if (!call_has_root(c->kind)) return TUTTI_OK;
    c->type = TUTTI_FLOAT32;
    c->reduction = TUTTI_SUM;
    for (c->root = 0; c->root < context->nranks; c->root++) {
        for (c->count = 1; c->count < 1000; c->count = c->count * 10 + 7) {
            c->seed = ++*turn;
            c->in_place = c->shared = (call_mode)(*turn % CALL_MODES);
            TUTTI_TRY(call_run(c, context->comm));
        }
    }
    return TUTTI_OK;
}

tutti_status sweep_rank(ranks_context *context) {
    call c = {.kind = *(const call_kind *)context->argument};
    unsigned turn = 0;
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        for (int reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
            c.type = (tutti_type)type;
            c.reduction = (tutti_reduction)reduction;
            if (!call_reduces(c.kind) && reduction > 0) break;
            if (call_reduces(c.kind) && !reference_supports(c.type, c.reduction)) continue;
            TUTTI_TRY(sweep_counts(context, &c, &turn));
        }
        if (c.kind == CALL_BARRIER) break;
    }
    return sweep_roots(context, &c, &turn);
}

const char *const sweep_environment[] = {"TUTTI_CHUNK_BYTES=" CHUNK_TEXT, "TUTTI_EAGER_BYTES=" EAGER_TEXT, NULL};

const char *sweep_run(call_kind kind) {
    setenv("TUTTI_CHUNK_BYTES", CHUNK_TEXT, 1);
    setenv("TUTTI_EAGER_BYTES", EAGER_TEXT, 1);
    tutti_settings_reload();
    return ranks_run_worlds((const int[]){1, 2, 3, 4, 7, 16, 0}, &(ranks_options){.argument = &kind}, sweep_rank);
}
