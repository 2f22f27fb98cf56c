/*
 * Links between ranks: what the algorithms between hosts are written in, over ready connections.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/status.h"
#include "comm/arena.h"
#include "comm/comm.h"
#include "comm/hosts.h"
#include "comm/link.h"
#include "comm/transports/transport.h"
#include "tests/support/mesh.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#define MOST_RANKS 4

/* What a body runs on: links to everyone, and a rail of all ranks. */
typedef struct setting {
    mesh *sockets;
    bool process;
    bool by_doors; /* no sockets are given */
} setting;

typedef struct stage {
    tutti_op op;
    tutti_rail rail;
    int ranks[MOST_RANKS];
} stage;

static tutti_status set_up(ranks_context *context, stage *s) {
    setting *given = context->argument;
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

static void next_op(stage *s) {
    s->op.sequence++;
    s->op.signature += 1000;
    tutti_patience_begin(s->rail.comm, &s->op);
}

static const char *run(int nranks, ranks_kind kind, setting *given, ranks_body body) {
    const char *failure = "no sockets";
    given->process = kind == RANKS_PROCESSES;
    given->sockets = mesh_create(nranks, MESH_TCP);
    if (given->sockets != NULL)
        failure = ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .argument = given, .timeout_s = 30}, body);
    mesh_destroy(given->sockets);
    return failure;
}

/* In worlds of 2 to MOST_RANKS, as processes and then as threads: who has used the library cannot fork ranks. */
static const char *run_worlds(setting *given, ranks_body body) {
    static char text[2300];
    for (ranks_kind kind = RANKS_PROCESSES; kind <= RANKS_THREADS; kind++)
        for (int nranks = 2; nranks <= MOST_RANKS && (kind == RANKS_THREADS || ranks_have_processes()); nranks++) {
            const char *failure = run(nranks, kind, given, body);
            if (failure == NULL) continue;
            snprintf(text, sizeof text, "%d %s: %s", nranks, kind == RANKS_THREADS ? "threads" : "processes", failure);
            return text;
        }
    return NULL;
}

static char pattern(int rank, size_t at) {
    return (char)((size_t)rank * 31 + at * 7 + at / 251);
}

static void fill(char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(rank, i);
}

static tutti_status compare(const char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == pattern(rank, i), "byte %zu of %zu from rank %d is wrong", i, bytes, rank);
    return TUTTI_OK;
}

static const size_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 131071, 131072, 131073, 3000001};

static tutti_status ring_exchange(ranks_context *context) {
    stage s;
    TUTTI_TRY(set_up(context, &s));
    int to = (context->rank + 1) % context->nranks, from = (context->rank + context->nranks - 1) % context->nranks;
    char *mine = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]), *theirs = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]);
    tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; first++) {
        for (size_t i = 0; i < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; i++) {
            size_t bytes = sizes[(first + i) % TUTTI_COUNT_OF(sizes)];
            fill(mine, context->rank, bytes);
            status = tutti_link_exchange(&s.rail, to, mine, bytes, from, theirs, bytes);
            if (status == TUTTI_OK) status = compare(theirs, from, bytes);
        }
        next_op(&s);
    }
    free(mine);
    free(theirs);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, exchanges_every_size_first_in_an_operation_and_later) {
    const char *failure = run_worlds(&(setting){0}, ring_exchange);
    cr_assert_null(failure, "%s", failure);
}

/* Two ranks: both send their input and fold the other's into their own. */
static tutti_status fold_one(stage *s, tutti_fold fold, size_t count) {
    size_t bytes = count * tutti_type_bytes(fold.type);
    int me = s->rail.me, peer = 1 - me;
    char *memory = malloc(4 * bytes + 4);
    char *src = memory, *acc = src + bytes, *theirs = acc + bytes, *expected = theirs + bytes;
    reference_fill(src, count, fold.type, fold.reduction, 5, me, 0);
    reference_fill(acc, count, fold.type, fold.reduction, 5, me, 1);
    reference_fill(theirs, count, fold.type, fold.reduction, 5, peer, 0);
    reference_reduce(expected, (const void *[]){acc, theirs}, 2, count, fold.type, fold.reduction);
    tutti_status status = count % 2 == 0 || me == 0
                              ? tutti_link_exchange_reduce(&s->rail, peer, src, bytes, peer, acc, count, fold)
                              : tutti_link_send(&s->rail, peer, src, bytes);
    if (status == TUTTI_OK && count % 2 != 0 && me == 1)
        status = tutti_link_recv_reduce(&s->rail, peer, acc, count, fold);
    size_t wrong = status == TUTTI_OK ? reference_compare(acc, expected, count, fold.type) : count;
    free(memory);
    RANKS_CHECK(wrong == count, "%s %s of %zu: element %zu is wrong", tutti_type_name(fold.type),
                tutti_reduction_name(fold.reduction), count, wrong);
    return status;
}

static tutti_status fold_all(ranks_context *context) {
    static const size_t counts[] = {0, 1, 512, 1025, 9000, 70001, 262144, 300002};
    stage s;
    TUTTI_TRY(set_up(context, &s));
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (int reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
            if (reduction == TUTTI_AVG || reduction == TUTTI_PREMUL_SUM) continue;
            if (!reference_supports((tutti_type)type, (tutti_reduction)reduction)) continue;
            bool also_long = type == TUTTI_FLOAT32 || (type == TUTTI_BFLOAT16 && reduction == TUTTI_SUM);
            for (size_t i = 0; i < (also_long ? TUTTI_COUNT_OF(counts) : 5); i++) {
                if (i % 2 == 0) next_op(&s);
                TUTTI_TRY(fold_one(&s, (tutti_fold){(tutti_type)type, (tutti_reduction)reduction}, counts[i]));
            }
        }
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link, folds_what_comes_for_all_types_and_reductions) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, fold_all);
    cr_assert_null(failure, "%s", failure);
}

/* ------------------------------------------------------------------------------------ made when first used */

/* As if every rank were a host of its own: all connect by their doors. */
typedef struct doors {
    tutti_door_card cards[MOST_RANKS];
    tutti_hosts hosts;
} doors;

static tutti_status open_doors(ranks_context *context, doors *d) {
    tutti_door_card own;
    TUTTI_TRY(tutti_door_add_key("key", 3));
    TUTTI_TRY(tutti_door_open(&own));
    d->hosts = (tutti_hosts){.nhosts = context->nranks, .host = context->rank, .doors = d->cards};
    return tutti_all_gather(context->comm, &own, d->cards, sizeof own, TUTTI_UINT8, NULL);
}

/* Between ranks that are so far apart. For the rest the communicator is one of this host. */
static tutti_status exchange_by_doors(stage *s, doors *d, int to, char *mine, int from, char *theirs, size_t bytes) {
    fill(mine, s->rail.me, bytes);
    s->rail.comm->hosts = &d->hosts;
    tutti_status status = tutti_link_exchange(&s->rail, to, mine, bytes, from, theirs, bytes);
    s->rail.comm->hosts = NULL;
    return status == TUTTI_OK ? compare(theirs, from, bytes) : status;
}

static tutti_status ring_by_doors(ranks_context *context) {
    doors d;
    stage s;
    char mine[5000], theirs[sizeof mine];
    TUTTI_TRY(open_doors(context, &d));
    TUTTI_TRY(set_up(context, &s));
    tutti_status status = TUTTI_OK;
    for (int step = 1; step < context->nranks && status == TUTTI_OK; step++) {
        int to = (context->rank + step) % context->nranks;
        int from = (context->rank + context->nranks - step) % context->nranks;
        status = exchange_by_doors(&s, &d, to, mine, from, theirs, sizeof mine);
    }
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, is_made_when_it_is_first_used) {
    const char *failure = run_worlds(&(setting){.by_doors = true}, ring_by_doors);
    cr_assert_null(failure, "%s", failure);
}

/* -------------------------------------------------------------------------------------------- many at once */

static tutti_status move_all(ranks_context *context) {
    enum { MOST = 70000 };
    stage s;
    tutti_link_part parts[2 * MOST_RANKS];
    char *memory = malloc(2 * MOST_RANKS * MOST);
    tutti_status status = set_up(context, &s);
    for (size_t bytes = 0; bytes <= MOST && status == TUTTI_OK; bytes = bytes * 17 + 3, next_op(&s)) {
        int nparts = 0;
        for (int rank = 0; rank < context->nranks; rank++) {
            char *in = memory + (size_t)rank * 2 * MOST, *out = in + MOST;
            if (rank == context->rank) continue;
            fill(out, context->rank, bytes);
            parts[nparts++] = (tutti_link_part){.rank = rank, .sends = true, .data = out, .bytes = bytes};
            parts[nparts++] = (tutti_link_part){.rank = rank, .sends = false, .data = in, .bytes = bytes};
        }
        status = tutti_link_move(&s.rail, parts, nparts);
        for (int rank = 0; rank < context->nranks && status == TUTTI_OK; rank++)
            if (rank != context->rank) status = compare(memory + (size_t)rank * 2 * MOST, rank, bytes);
    }
    free(memory);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, moves_many_parts_at_once) {
    const char *failure = run_worlds(&(setting){0}, move_all);
    cr_assert_null(failure, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ failures */

static tutti_status differ(ranks_context *context) {
    stage s;
    char byte;
    TUTTI_TRY(set_up(context, &s));
    if (context->rank == 1) {
        s.op.count = 5;
        s.op.signature = 78;
    }
    int peer = 1 - context->rank;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_exchange(&s.rail, peer, "x", 1, peer, &byte, 1));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "rank 0 all_reduce(float32, 1, sum) #1, rank 1 all_reduce(float32, 5, sum) #1"), "%s",
                text);
    /* And it stays broken. */
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_send(&s.rail, peer, "x", 1));
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link, shows_both_calls_where_they_differ) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, differ);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status counts_differ(ranks_context *context) {
    stage s;
    char bytes[20000] = "";
    TUTTI_TRY(set_up(context, &s));
    int peer = 1 - context->rank;
    size_t mine = context->rank == 0 ? 10 : sizeof bytes;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_link_exchange(&s.rail, peer, bytes, mine, peer, bytes, mine));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "rank 1 sends 20000 bytes to rank 0, which expects 10") ||
                    strstr(text, "rank 0 sends 10 bytes to rank 1, which expects 20000"),
                "%s", text);
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link, tells_that_counts_differ) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, counts_differ);
    cr_assert_null(failure, "%s", failure);
}

/* Rank 0 gives up; 1 waits for its data, 2 sends to it what does not fit into any buffer, 3 waits for somebody else. */
static tutti_status give_up(ranks_context *context) {
    enum { MUCH = 64 << 20 };
    stage s;
    char byte;
    TUTTI_TRY(set_up(context, &s));
    if (context->rank == 0) {
        struct timespec moment = {.tv_nsec = 300 * TUTTI_NS_PER_MS};
        nanosleep(&moment, NULL);
        tutti_fail(TUTTI_ERR_DATA, "the cat sat on the keyboard");
        tutti_comm_break(context->comm, TUTTI_ERR_DATA);
        tutti_link_break_all(context->comm);
        return TUTTI_OK; /* its links stay until the others have read */
    }
    if (context->rank == 1) {
        RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 0, &byte, 1));
    } else if (context->rank == 2) {
        char *much = calloc(1, MUCH);
        tutti_status status = tutti_link_send(&s.rail, 0, much, MUCH);
        free(much);
        RANKS_EXPECT(TUTTI_ERR_DATA, status);
    } else {
        RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 2, &byte, 1));
    }
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "the cat sat on the keyboard (told by rank "), "%s", text);
    return TUTTI_OK;
}

Test(link, tells_everyone_why_one_gave_up) {
    const char *failure = run(4, RANKS_THREADS, &(setting){0}, give_up);
    cr_assert_null(failure, "%s", failure);
}

/* Whoever has finished may leave while others go on. */
static tutti_status leave_early(ranks_context *context) {
    stage s;
    char byte = 'a';
    TUTTI_TRY(set_up(context, &s));
    int me = context->rank;
    if (me == 0) {
        TUTTI_TRY(tutti_link_send(&s.rail, 1, &byte, 1));
        tutti_link_close_all(context->comm);
        return TUTTI_OK;
    }
    struct timespec moment = {.tv_nsec = 300 * TUTTI_NS_PER_MS};
    nanosleep(&moment, NULL);
    if (me == 1) TUTTI_TRY(tutti_link_recv(&s.rail, 0, &byte, 1));
    if (me == 1) nanosleep(&moment, NULL); /* rank 2 looks around meanwhile */
    TUTTI_TRY(me == 1 ? tutti_link_send(&s.rail, 2, &byte, 1) : tutti_link_recv(&s.rail, 1, &byte, 1));
    RANKS_CHECK(byte == 'a', "a wrong byte came");
    next_op(&s);
    RANKS_EXPECT(TUTTI_ERR_BROKEN, tutti_link_recv(&s.rail, 0, &byte, 1));
    RANKS_CHECK(strstr(tutti_last_error(), "rank 0 has destroyed communicator"), "%s", tutti_last_error());
    return TUTTI_OK;
}

Test(link, lets_who_has_finished_leave) {
    const char *failure = run(3, RANKS_THREADS, &(setting){0}, leave_early);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status wait_in_vain(ranks_context *context) {
    stage s;
    char byte;
    TUTTI_TRY(set_up(context, &s));
    struct timespec longer = {.tv_sec = 1};
    if (context->rank == 0) return nanosleep(&longer, NULL) == 0 ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    s.op.timeout_ms = 300;
    int64_t start_ns = tutti_now_ns();
    RANKS_EXPECT(TUTTI_ERR_TIMEOUT, tutti_link_recv(&s.rail, 0, &byte, 1));
    int64_t took_ms = (tutti_now_ns() - start_ns) / TUTTI_NS_PER_MS;
    RANKS_CHECK(took_ms >= 290 && took_ms < 3000, "the deadline of 300 ms passed after %lld", (long long)took_ms);
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "deadline of 300 ms") && strstr(text, "rank 0") && strstr(text, "0 of 1 bytes"), "%s",
                text);
    return TUTTI_OK;
}

Test(link, minds_the_deadline) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, wait_in_vain);
    cr_assert_null(failure, "%s", failure);
}

static int ask_to_end(void *context) {
    (void)context;
    return 1;
}

static tutti_status interrupted(ranks_context *context) {
    stage s;
    char byte;
    TUTTI_TRY(set_up(context, &s));
    struct timespec longer = {.tv_sec = 1};
    if (context->rank == 0) return nanosleep(&longer, NULL) == 0 ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    tutti_interrupt_set(ask_to_end, NULL);
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, tutti_link_recv(&s.rail, 0, &byte, 1));
    tutti_interrupt_set(NULL, NULL);
    return TUTTI_OK;
}

Test(link, ends_when_it_is_interrupted) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, interrupted);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status die(ranks_context *context) {
    doors d;
    stage s;
    char mine[9000], theirs[9000];
    TUTTI_TRY(open_doors(context, &d));
    TUTTI_TRY(set_up(context, &s));
    int peer = 1 - context->rank;
    for (int i = 0; i < 20; i++, next_op(&s))
        TUTTI_TRY(exchange_by_doors(&s, &d, peer, mine, peer, theirs, sizeof mine));
    if (context->rank == 0) ranks_strike(context, SIGKILL);
    RANKS_EXPECT(TUTTI_ERR_PEER_DIED, exchange_by_doors(&s, &d, peer, mine, peer, theirs, sizeof mine));
    const char *text = tutti_last_error();
    RANKS_CHECK(strstr(text, "lost its connection") && strstr(text, "to rank 0 (host "), "%s", text);
    return TUTTI_OK;
}

Test(link, tells_that_the_other_process_died) {
    if (!ranks_have_processes()) cr_skip("needs processes");
    const char *failure = run(2, RANKS_PROCESSES, &(setting){.by_doors = true}, die);
    cr_assert_null(failure, "%s", failure);
}

/* What comes is no record. */
static tutti_status hear_garbage(ranks_context *context) {
    stage s;
    char data[70000];
    TUTTI_TRY(set_up(context, &s));
    tutti_pipe *pipe;
    int pair[2];
    tutti_deadline deadline = tutti_deadline_after_ms(1000);
    if (context->rank != 0) return TUTTI_OK;
    TUTTI_TRY(mesh_pair(MESH_UNIX, pair));
    TUTTI_TRY(tutti_tcp_transport.open(pair[0], &deadline, &pipe));
    TUTTI_TRY(tutti_link_adopt(context->comm, 1, pipe));
    memset(data, 'G', 200);
    RANKS_CHECK(send(pair[1], data, 200, 0) == 200, "cannot send");
    RANKS_EXPECT(TUTTI_ERR_DATA, tutti_link_recv(&s.rail, 1, data, sizeof data));
    RANKS_CHECK(strstr(tutti_last_error(), "no record"), "%s", tutti_last_error());
    close(pair[1]);
    return TUTTI_OK;
}

Test(link, refuses_garbage) {
    const char *failure = run(2, RANKS_THREADS, &(setting){.by_doors = true}, hear_garbage);
    cr_assert_null(failure, "%s", failure);
}
