/*
 * Worlds for tests of links: see links.h. links_run_worlds runs processes before threads, since a process that has
 * used the library cannot fork ranks.
 */
#include "tests/support/links/links.h"

#include <stdio.h>
#include <string.h>

#include "comm/shm/flags.h"
#include "tests/support/links/mesh.h"

tutti_status links_set_up(ranks_context *context, links_stage *s) {
    links_setting *given = context->argument;
    memset(s, 0, sizeof *s);
    if (!given->by_doors) TUTTI_TRY(mesh_adopt(given->sockets, context->comm, given->process));
    for (int rank = 0; rank < context->nranks; rank++) s->ranks[rank] = rank;
    s->op = (tutti_op){.kind = TUTTI_KIND_ALL_REDUCE,
                       .type = TUTTI_FLOAT32,
                       .reduction = TUTTI_SUM,
                       .count = 1,
                       .signature = 77,
                       .sequence = 1};
    s->rail =
        (tutti_rail){.comm = context->comm, .op = &s->op, .n = context->nranks, .me = context->rank, .ranks = s->ranks};
    return TUTTI_OK;
}

void links_next_op(links_stage *s) {
    s->op.sequence++;
    s->op.signature += 1000;
    tutti_wait_state_begin(s->rail.comm, &s->op);
}

const char *links_run(int nranks, ranks_kind kind, links_setting *given, ranks_body body) {
    const char *failure = "no sockets";
    given->process = kind == RANKS_PROCESSES;
    given->sockets = mesh_create(nranks, MESH_TCP);
    if (given->sockets != NULL)
        failure = ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .argument = given, .timeout_s = 30}, body);
    mesh_destroy(given->sockets);
    return failure;
}

const char *links_run_worlds(links_setting *given, ranks_body body) {
    static char text[2300];
    for (ranks_kind kind = RANKS_PROCESSES; kind <= RANKS_THREADS; kind++)
        for (int nranks = 2; nranks <= LINKS_MOST_RANKS && (kind == RANKS_THREADS || ranks_have_processes());
             nranks++) {
            const char *failure = links_run(nranks, kind, given, body);
            if (failure == NULL) continue;
            snprintf(text, sizeof text, "%d %s: %s", nranks, kind == RANKS_THREADS ? "threads" : "processes", failure);
            return text;
        }
    return NULL;
}

static char pattern(int rank, size_t at) {
    return (char)((size_t)rank * 31 + at * 7 + at / 251);
}

void links_fill(char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(rank, i);
}

tutti_status links_compare(const char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == pattern(rank, i), "byte %zu of %zu from rank %d is wrong", i, bytes, rank);
    return TUTTI_OK;
}

tutti_status links_open_doors(ranks_context *context, links_doors *d) {
    tutti_listener_info own;
    TUTTI_TRY(tutti_listener_add_key("key", 3));
    TUTTI_TRY(tutti_listener_open(&own));
    d->hosts = (tutti_hosts){.nhosts = context->nranks, .host = context->rank, .listeners = d->cards};
    return tutti_all_gather(context->comm, &own, d->cards, sizeof own, TUTTI_UINT8, NULL);
}

tutti_status links_exchange_by_doors(links_stage *s, links_doors *d, int to, char *mine, int from, char *theirs,
                                     size_t bytes) {
    links_fill(mine, s->rail.me, bytes);
    s->rail.comm->net.hosts = &d->hosts;
    tutti_status status = tutti_link_exchange(&s->rail, to, mine, bytes, from, theirs, bytes);
    s->rail.comm->net.hosts = NULL;
    return status == TUTTI_OK ? links_compare(theirs, from, bytes) : status;
}
