/*
 * Collectives between hosts over real links: each algorithm once over TCP, ranks as processes and as threads, and the
 * bytes that the pipes count. test_rails.c has all types and sizes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/coll/rail.h"
#include "comm/net/link_state.h"
#include "tests/support/links/mesh.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#define MOST_RANKS  4
#define COUNT       ((size_t)50021) /* a prime, so that each rank has some pieces */
#define PIECE_BYTES 16384

typedef struct stage {
    tutti_op op;
    tutti_rail rail;
    int ranks[MOST_RANKS];
    tutti_cost cost;
    tutti_rail_table table;
    tutti_rail_setup setup;
} stage;

typedef struct given {
    mesh *sockets;
    bool process;
} given;

static void next_call(stage *s, const char *algorithm, size_t piece_bytes) {
    const tutti_rail_rules rules = {
        .n = s->rail.n, .reorders = algorithm != NULL, .piece_bytes = piece_bytes, .forced = algorithm};
    tutti_rail_table_fill(&rules, &s->cost, &s->table);
    s->op.sequence++;
    s->op.signature += 1000;
}

static tutti_status set_up(ranks_context *context, stage *s) {
    given *g = context->argument;
    memset(s, 0, sizeof *s);
    TUTTI_TRY(mesh_adopt(g->sockets, context->comm, g->process));
    for (int rank = 0; rank < context->nranks; rank++) s->ranks[rank] = rank;
    s->op = (tutti_op){
        .kind = TUTTI_KIND_ALL_REDUCE, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM, .count = 1, .signature = 77};
    s->rail =
        (tutti_rail){.comm = context->comm, .op = &s->op, .n = context->nranks, .me = context->rank, .ranks = s->ranks};
    s->setup.table = &s->table;
    s->setup.scratch_bytes = TUTTI_COST_SCRATCH_BYTES;
    s->setup.scratch = aligned_alloc(TUTTI_CACHE_LINE, s->setup.scratch_bytes);
    RANKS_CHECK(s->setup.scratch != NULL, "no memory");
    s->cost = tutti_cost_ordinary;
    next_call(s, NULL, 0);
    return tutti_cost_agree(&s->rail, s->setup.scratch, &s->cost);
}

static void tear_down(stage *s) {
    tutti_link_close_all(s->rail.comm);
    free(s->setup.scratch);
}

static const char *run_worlds(ranks_body body) {
    static char text[2300];
    for (ranks_kind kind = RANKS_PROCESSES; kind <= RANKS_THREADS; kind++)
        for (int nranks = 2; nranks <= MOST_RANKS && (kind == RANKS_THREADS || ranks_have_processes()); nranks++) {
            given g = {.sockets = mesh_create(nranks, MESH_TCP), .process = kind == RANKS_PROCESSES};
            const char *failure = "no sockets";
            if (g.sockets != NULL)
                failure = ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .argument = &g}, body);
            mesh_destroy(g.sockets);
            if (failure == NULL) continue;
            snprintf(text, sizeof text, "%d %s: %s", nranks, kind == RANKS_THREADS ? "threads" : "processes", failure);
            return text;
        }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------ reducing */

typedef struct vectors {
    void *inputs[MOST_RANKS], *result, *expected;
} vectors;

static tutti_status try_sum(stage *s, const char *algorithm, tutti_type type, const vectors *v) {
    int n = s->rail.n;
    for (int rank = 0; rank < n; rank++) reference_fill(v->inputs[rank], COUNT, type, TUTTI_SUM, 3, rank, 0);
    reference_reduce(v->expected, (const void *const *)v->inputs, n, COUNT, type, TUTTI_SUM);
    tutti_rail_vector sum = {
        .src = v->inputs[s->rail.me], .dst = v->result, .count = COUNT, .type = type, .reduction = TUTTI_SUM};
    next_call(s, algorithm, PIECE_BYTES);
    TUTTI_TRY(tutti_rail_all_reduce(&s->rail, &s->setup, &sum));
    size_t differs = reference_compare(v->result, v->expected, COUNT, type);
    RANKS_CHECK(differs == COUNT, "%s of %s differs at %zu", algorithm != NULL ? algorithm : "choice",
                tutti_type_name(type), differs);
    return TUTTI_OK;
}

static tutti_status sums_body(ranks_context *context) {
    static const char *const in_order[] = {NULL, "direct", "direct_whole", "doubling", "halving"};
    static const char *const others[] = {"ring", "double_tree"};
    stage s;
    vectors v;
    void **all[] = {&v.inputs[0], &v.inputs[1], &v.inputs[2], &v.inputs[3], &v.result, &v.expected};
    TUTTI_TRY(set_up(context, &s));
    for (size_t i = 0; i < TUTTI_COUNT_OF(all); i++) TUTTI_TRY(tutti_calloc(COUNT, sizeof(int64_t), all[i]));
    for (size_t i = 0; i < TUTTI_COUNT_OF(in_order); i++) {
        TUTTI_TRY(try_sum(&s, in_order[i], TUTTI_FLOAT32, &v));
        if (i < 3) TUTTI_TRY(try_sum(&s, in_order[i], TUTTI_BFLOAT16, &v)); /* the other algorithms round each sum */
    }
    for (size_t i = 0; i < TUTTI_COUNT_OF(others); i++) {
        TUTTI_TRY(try_sum(&s, others[i], TUTTI_INT64, &v));
        if (s.rail.n == 2) TUTTI_TRY(try_sum(&s, others[i], TUTTI_FLOAT32, &v));
    }
    for (size_t i = 0; i < TUTTI_COUNT_OF(all); i++) free(*all[i]);
    tear_down(&s);
    return TUTTI_OK;
}

Test(rails_links, sums_over_tcp_are_those_of_the_reference) {
    static const int host_of[] = {0, 1, 2, 3};
    reference_set_hosts(host_of);
    const char *failure = run_worlds(sums_body);
    cr_assert(failure == NULL, "%s", failure);
}

/* -------------------------------------------------------------------------------------------------------- moving */

static unsigned char byte_of(int rank, size_t i) {
    return (unsigned char)(i * 31 + i / 253 + (size_t)rank * 57);
}

static tutti_status check_block(const stage *s, const char *what, const tutti_rail_block *block, int rank) {
    for (size_t i = 0; i < block->bytes; i++)
        RANKS_CHECK(((unsigned char *)block->data)[i] == byte_of(rank, i),
                    "%s: byte %zu of rank %d is wrong on rank %d", what, i, rank, s->rail.me);
    return TUTTI_OK;
}

static void fill_block(const tutti_rail_block *block, int rank) {
    for (size_t i = 0; i < block->bytes; i++) ((unsigned char *)block->data)[i] = byte_of(rank, i);
}

static tutti_status try_broadcast(stage *s, const char *name, const tutti_rail_block *blocks) {
    next_call(s, name, PIECE_BYTES);
    int root = s->rail.n - 1;
    memset(blocks[0].data, 0, blocks[0].bytes);
    if (s->rail.me == root) fill_block(&blocks[0], root);
    TUTTI_TRY(tutti_rail_broadcast(&s->rail, &s->setup, root, blocks[0].data, blocks[0].bytes));
    return check_block(s, name, &blocks[0], root);
}

static tutti_status try_all_gather(stage *s, const char *name, const tutti_rail_block *blocks) {
    next_call(s, name, PIECE_BYTES);
    for (int rank = 0; rank < s->rail.n; rank++) memset(blocks[rank].data, 0, blocks[rank].bytes);
    fill_block(&blocks[s->rail.me], s->rail.me);
    TUTTI_TRY(tutti_rail_all_gather(&s->rail, &s->setup, blocks));
    for (int rank = 0; rank < s->rail.n; rank++) TUTTI_TRY(check_block(s, name, &blocks[rank], rank));
    return TUTTI_OK;
}

/* In place: each rank has blocks of the same size for all ranks. */
static tutti_status try_all_to_all(stage *s, const char *name, const tutti_rail_block *blocks) {
    tutti_rail_block equal[MOST_RANKS];
    next_call(s, name, PIECE_BYTES);
    for (int rank = 0; rank < s->rail.n; rank++) {
        equal[rank] = (tutti_rail_block){.data = blocks[rank].data, .bytes = blocks[0].bytes};
        fill_block(&equal[rank], s->rail.me);
    }
    TUTTI_TRY(tutti_rail_all_to_all(&s->rail, &s->setup, equal, equal, true));
    for (int rank = 0; rank < s->rail.n; rank++) TUTTI_TRY(check_block(s, name, &equal[rank], rank));
    return TUTTI_OK;
}

static tutti_status moves_body(ranks_context *context) {
    static const char *const broadcasts[] = {"tree", "direct", "chain", "double_tree"};
    static const char *const all_gathers[] = {"direct", "ring", "bruck"};
    static const char *const all_to_alls[] = {"direct", "bruck"};
    stage s;
    tutti_rail_block blocks[MOST_RANKS];
    TUTTI_TRY(set_up(context, &s));
    for (int rank = 0; rank < s.rail.n; rank++) {
        blocks[rank].bytes = 70001 + 777 * (size_t)rank;
        TUTTI_TRY(tutti_calloc(blocks[rank].bytes, 1, &blocks[rank].data));
    }
    for (size_t i = 0; i < TUTTI_COUNT_OF(broadcasts); i++) TUTTI_TRY(try_broadcast(&s, broadcasts[i], blocks));
    for (size_t i = 0; i < TUTTI_COUNT_OF(all_gathers); i++) TUTTI_TRY(try_all_gather(&s, all_gathers[i], blocks));
    for (size_t i = 0; i < TUTTI_COUNT_OF(all_to_alls); i++) TUTTI_TRY(try_all_to_all(&s, all_to_alls[i], blocks));
    next_call(&s, NULL, 0);
    TUTTI_TRY(tutti_rail_barrier(&s.rail, &s.setup));
    for (int rank = 0; rank < s.rail.n; rank++) free(blocks[rank].data);
    tear_down(&s);
    return TUTTI_OK;
}

Test(rails_links, blocks_over_tcp_arrive) {
    const char *failure = run_worlds(moves_body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------------- counting */

static uint64_t bytes_sent(const stage *s) {
    uint64_t sent = 0;
    for (int rank = 0; rank < s->rail.n; rank++)
        if (rank != s->rail.me) sent += s->rail.comm->net.links->all[rank]->pipe->bytes_out;
    return sent;
}

static tutti_status volume_body(ranks_context *context) {
    static const char *const names[] = {NULL, "direct", "ring"};
    const size_t count = 1 << 20;
    stage s;
    float *data;
    TUTTI_TRY(set_up(context, &s));
    TUTTI_TRY(tutti_calloc(count, sizeof *data, &data));
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++) {
        next_call(&s, names[i], 0);
        uint64_t before = bytes_sent(&s);
        tutti_rail_vector sum = {
            .src = data, .dst = data, .count = count, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM};
        TUTTI_TRY(tutti_rail_all_reduce(&s.rail, &s.setup, &sum));
        double sent = (double)(bytes_sent(&s) - before), n = s.rail.n;
        double needed = 2 * (n - 1) / n * (double)(count * sizeof *data);
        RANKS_CHECK(sent <= 1.05 * needed && sent >= needed, "%s: %g bytes were sent, %g are needed",
                    names[i] != NULL ? names[i] : "choice", sent, needed);
    }
    free(data);
    tear_down(&s);
    return TUTTI_OK;
}

Test(rails_links, long_sums_send_no_more_than_they_must) {
    const char *failure = run_worlds(volume_body);
    cr_assert(failure == NULL, "%s", failure);
}
