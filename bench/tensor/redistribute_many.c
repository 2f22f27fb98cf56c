/*
 * Many tensors in one round, from one half of the ranks to the other: as when a trainer passes its weights to the
 * ranks that serve them. For comparison the same bytes in plain messages: one between each two ranks, and one for
 * each tensor between each two ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/report/report.h"
#include "bench/tensor/redistribute.h"

enum { TAG = 1 };

typedef struct crowd {
    tutti_placement *from, *to;
    tutti_tensor **srcs, **dsts;
    tutti_plan *plan;
    tutti_plan_details details;
    bench_pattern pattern;
    int64_t shape[2];
    size_t bytes, count; /* bytes of one tensor; number of tensors */
    char *buffer;        /* for the plain messages */
} crowd;

static tutti_status run_plan(const bench_redistribute *s, void *context) {
    crowd *c = context;
    return tutti_plan_run(c->plan, (const tutti_tensor *const *)c->srcs, c->dsts, &s->call);
}

/* Sends `parts` messages of `bytes` from each rank of the first half to each of the second. */
static tutti_status run_messages(const bench_redistribute *s, crowd *c, size_t parts, size_t bytes) {
    int half = s->self->size / 2;
    bool sends = s->self->rank < half;
    char *at = c->buffer;
    tutti_comm *comm = s->self->world;
    TUTTI_TRY(tutti_group_begin(comm));
    for (int peer = sends ? half : 0; peer < (sends ? 2 * half : half); peer++)
        for (size_t i = 0; i < parts; i++, at += bytes) {
            tutti_status status = sends ? tutti_send(comm, at, bytes, TUTTI_UINT8, peer, TAG, &s->call)
                                        : tutti_recv(comm, at, bytes, TUTTI_UINT8, peer, TAG, &s->call);
            if (status == TUTTI_OK) continue;
            (void)tutti_group_cancel(comm);
            return status;
        }
    return tutti_group_end(comm, &s->call);
}

static size_t piece_of(const bench_redistribute *s, const crowd *c) {
    size_t half = (size_t)s->self->size / 2;
    return c->bytes / (half * half);
}

static tutti_status run_plain(const bench_redistribute *s, void *context) {
    crowd *c = context;
    return run_messages(s, c, 1, c->count * piece_of(s, c));
}

static tutti_status run_plain_each(const bench_redistribute *s, void *context) {
    crowd *c = context;
    return run_messages(s, c, c->count, piece_of(s, c));
}

/* ------------------------------------------------------------------------------------------------- tensors */

static tutti_status make_tensors(const bench_redistribute *s, crowd *c) {
    tutti_sbp rows = TUTTI_SPLIT(0), columns = TUTTI_SPLIT(1);
    tutti_layout src =
        TUTTI_LAYOUT(.placement = c->from, .sbp = &rows, .type = s->type->type, .ndims = 2, .shape = c->shape);
    tutti_layout dst = src, *layouts = calloc(2 * c->count, sizeof *layouts);
    if (layouts == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %zu layouts", c->count);
    dst.placement = c->to;
    dst.sbp = &columns;
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < c->count && status == TUTTI_OK; i++) {
        layouts[i] = src;
        layouts[c->count + i] = dst;
        status = tutti_tensor_create(&src, &c->srcs[i]);
        if (status == TUTTI_OK) status = tutti_tensor_create(&dst, &c->dsts[i]);
    }
    if (status == TUTTI_OK) status = tutti_plan_create(layouts, layouts + c->count, c->count, &c->plan);
    free(layouts);
    return status;
}

static tutti_status open_crowd(const bench_redistribute *s, size_t bytes, crowd *c) {
    int half = s->self->size / 2, *ranks = calloc((size_t)s->self->size, sizeof *ranks);
    if (ranks == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %d ranks", s->self->size);
    for (int i = 0; i < s->self->size; i++) ranks[i] = i;
    tutti_comm *world = s->self->world;
    tutti_memory memory = bench_redistribute_memory(s);
    tutti_status status = tutti_placement_create(world, memory, ranks, &half, 1, &c->from);
    if (status == TUTTI_OK) status = tutti_placement_create(world, memory, ranks + half, &half, 1, &c->to);
    free(ranks);
    TUTTI_TRY(status);
    c->count = (size_t)s->job->many;
    c->bytes = bench_redistribute_shape(bytes, s->type->bytes, c->shape);
    c->srcs = calloc(2 * c->count, sizeof *c->srcs);
    if (c->srcs == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %zu tensors", c->count);
    c->dsts = c->srcs + c->count;
    size_t room = c->count * c->bytes / (size_t)half + 1;
    void *buffer;
    TUTTI_TRY(bench_redistribute_alloc(s, room, &buffer));
    c->buffer = buffer;
    TUTTI_TRY(make_tensors(s, c));
    TUTTI_TRY(tutti_plan_get(c->plan, &c->details));
    uint64_t sums[2] = {c->details.received_bytes, c->details.least_bytes};
    TUTTI_TRY(tutti_all_reduce(world, sums, sums, 2, TUTTI_UINT64, TUTTI_SUM, NULL));
    c->details.received_bytes = sums[0];
    c->details.least_bytes = sums[1];
    return TUTTI_OK;
}

static void close_crowd(const bench_redistribute *s, crowd *c) {
    tutti_plan_destroy(c->plan);
    for (size_t i = 0; i < c->count && c->srcs != NULL; i++) {
        tutti_tensor_destroy(c->srcs[i]);
        tutti_tensor_destroy(c->dsts[i]);
    }
    free(c->srcs);
    bench_redistribute_free(s, c->buffer);
    tutti_placement_destroy(c->from);
    tutti_placement_destroy(c->to);
}

/* Each tensor gets its own values. */
static tutti_status fill_all(const bench_redistribute *s, crowd *c) {
    c->pattern = bench_redistribute_pattern(s, 0);
    for (size_t i = 0; i < c->count; i++) {
        c->pattern.round = (uint32_t)(i + 1);
        TUTTI_TRY(bench_redistribute_fill(&c->pattern, 0, c->srcs[i]));
        TUTTI_TRY(bench_redistribute_spoil(s, c->dsts[i]));
    }
    return TUTTI_OK;
}

static tutti_status check_all(const bench_redistribute *s, crowd *c, int64_t *wrong_out) {
    int64_t wrong = 0, one;
    for (size_t i = 0; i < c->count; i++) {
        c->pattern.round = (uint32_t)(i + 1);
        TUTTI_TRY(bench_redistribute_check(&c->pattern, c->dsts[i], &one));
        wrong += one;
    }
    return tutti_all_reduce(s->self->world, &wrong, wrong_out, 1, TUTTI_INT64, TUTTI_SUM, NULL);
}

/* --------------------------------------------------------------------------------------------------- table */

static tutti_status measure(bench_redistribute *s, crowd *c) {
    const bench_redistribute_call calls[] = {run_plan, run_plain, run_plain_each};
    const bench_redistribute_job *j = s->job;
    double us[3];
    int64_t wrong = -1;
    TUTTI_TRY(fill_all(s, c));
    for (int64_t i = 0; i <= j->options.warmup; i++)
        for (int k = 0; k < 3; k++) TUTTI_TRY(calls[k](s, c));
    TUTTI_TRY(bench_redistribute_time(s, c, calls, 3, us));
    if (j->options.checks > 0) TUTTI_TRY(check_all(s, c, &wrong));
    s->wrong += wrong > 0 ? wrong : 0;
    if (s->out == NULL) return TUTTI_OK;
    char text[3][16], wrong_text[24] = "N/A", steps[160];
    TUTTI_TRY(tutti_plan_describe(c->plan, steps, sizeof steps));
    char *numbers = strstr(steps, ": receives");
    if (numbers != NULL) *numbers = '\0';
    if (wrong >= 0) snprintf(wrong_text, sizeof wrong_text, "%lld", (long long)wrong);
    for (int k = 0; k < 3; k++) bench_report_number(us[k], 10, text[k]);
    fprintf(s->out, "%11zu %8zu %12llu %12llu %10s %10s %10s %7.3f %7s  %s\n", c->bytes, c->count,
            (unsigned long long)c->details.received_bytes, (unsigned long long)c->details.least_bytes, text[0], text[1],
            text[2], (double)(c->count * c->bytes) * 1e-3 / us[0], wrong_text, steps);
    if (j->csv != NULL)
        fprintf(j->csv, "%zu,%lldx%lldx%zu,S0,S1,%d,%llu,%llu,%.3f,%.4f,%s,\"%s\"\n", c->count * c->bytes,
                (long long)c->shape[0], (long long)c->shape[1], c->count, s->self->size,
                (unsigned long long)c->details.received_bytes, (unsigned long long)c->details.least_bytes, us[0],
                (double)(c->count * c->bytes) * 1e-3 / us[0], wrong >= 0 ? wrong_text : "", steps);
    if (j->json != NULL)
        fprintf(
            j->json,
            "%s\n  {\"bytes\": %zu, \"tensors\": %zu, \"ranks\": %d, \"received\": %llu, \"bound\": %llu, "
            "\"time_us\": %.3f, \"messages_us\": %.3f, \"message_each_us\": %.3f, \"wrong\": %s, \"steps\": \"%s\"}",
            s->rows > 0 ? "," : "", c->bytes, c->count, s->self->size, (unsigned long long)c->details.received_bytes,
            (unsigned long long)c->details.least_bytes, us[0], us[1], us[2], wrong >= 0 ? wrong_text : "null", steps);
    return TUTTI_OK;
}

tutti_status bench_redistribute_many(bench_redistribute *s) {
    const bench_options *options = &s->job->options;
    if (s->out != NULL)
        fputs(
            "#\n# One round for all tensors, S0 on the first half of the ranks to S1 on the second. Plain: one message "
            "of the same\n"
            "# bytes between each two ranks; each: one for each tensor.\n#\n"
            "#     bytes  tensors     received        bound   time(us)  plain(us)   each(us)    GB/s  #wrong  steps\n",
            s->out);
    for (size_t bytes = (size_t)options->min_bytes; bytes <= (size_t)options->max_bytes;
         bytes = bench_options_next_bytes(options, bytes)) {
        crowd c = {0};
        tutti_status status = open_crowd(s, bytes, &c);
        if (status == TUTTI_OK) status = measure(s, &c);
        if (status == TUTTI_OK) status = bench_redistribute_settle(s);
        close_crowd(s, &c);
        TUTTI_TRY(status);
        TUTTI_TRY(bench_redistribute_settle(s));
        s->rows++;
    }
    return TUTTI_OK;
}
