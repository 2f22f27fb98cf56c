/*
 * The rows of redistribute_perf: how fast a global tensor changes its layout. There is a row for each pair of layouts
 * and each size, with the bytes that the plan receives, the least bytes possible, and its steps.
 *
 * --bare adds two more times to each row, measured in turn with it: the plan's collective alone, and a strided copy
 * of the target's shard on all ranks at once.
 */
#include "bench/tensor/redistribute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/device.h>

#include "bench/report/report.h"
#include "kernels/device.h"

enum { TEXT_BYTES = 160, ROUNDS = 9 };

/* One row: a tensor in two layouts. */
typedef struct scene {
    tutti_tensor *src, *dst;
    tutti_sbp from[TUTTI_MOST_AXES], to[TUTTI_MOST_AXES];
    int64_t shape[2];
    size_t bytes; /* bytes of the tensor */
    tutti_plan_details plan;
    char steps[TEXT_BYTES];
    bench_pattern pattern;
    bool checkable;
    /* --bare */
    void *one, *other;
    tutti_comm *comm;
    tutti_box_copy copy;
} scene;

/* -------------------------------------------------------------------------------------------------- values */

/* Numbers the terms of partial axes like the ranks of the test values. */
static int term_of(const bench_redistribute *s, const tutti_sbp *sbp, int *count_out, tutti_reduction *reduction_out) {
    int term = 0;
    *count_out = 1;
    for (int axis = 0; axis < s->job->naxes; axis++) {
        if (sbp[axis].kind != TUTTI_SBP_PARTIAL) continue;
        term = term * s->job->mesh[axis] + tutti_placement_coordinate(s->placement, axis);
        *count_out *= s->job->mesh[axis];
        *reduction_out = sbp[axis].reduction;
    }
    return term;
}

/* True if all partial axes have one reduction, and the test values support it. */
static bool is_known(const bench_redistribute *s, const tutti_sbp *sbp) {
    int first = -1;
    for (int axis = 0; axis < s->job->naxes; axis++) {
        if (sbp[axis].kind != TUTTI_SBP_PARTIAL) continue;
        if (sbp[axis].reduction > TUTTI_AVG || (first >= 0 && sbp[axis].reduction != sbp[first].reduction))
            return false;
        first = axis;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- memory */

tutti_memory bench_redistribute_memory(const bench_redistribute *s) {
    return s->gpu != NULL ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST;
}

bench_pattern bench_redistribute_pattern(const bench_redistribute *s, uint32_t round) {
    return (bench_pattern){.type = s->type,
                           .nranks = 1,
                           .round = round,
                           .on_gpu = s->gpu != NULL,
                           .stream = s->gpu != NULL ? bench_gpu_stream(s->gpu) : NULL};
}

tutti_status bench_redistribute_spoil(const bench_redistribute *s, const tutti_tensor *tensor) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    size_t bytes = local.count * s->type->bytes;
    if (s->gpu != NULL) return tutti_device_fill(local.data, 0xa5, bytes, bench_gpu_stream(s->gpu));
    if (bytes > 0) memset(local.data, 0xa5, bytes);
    return TUTTI_OK;
}

tutti_status bench_redistribute_alloc(const bench_redistribute *s, size_t bytes, void **memory_out) {
    if (s->gpu != NULL) return bench_gpu_alloc(s->gpu, bytes, memory_out);
    TUTTI_TRY(tutti_mem_alloc(bytes, memory_out));
    memset(*memory_out, 0, bytes);
    return TUTTI_OK;
}

void bench_redistribute_free(const bench_redistribute *s, void *memory) {
    if (s->gpu != NULL) bench_gpu_free(s->gpu, memory);
    else (void)tutti_mem_free(memory);
}

static tutti_status meet(const bench_redistribute *s) {
    return tutti_barrier(s->self->world, &TUTTI_OPTIONS(.timeout_ms = s->call.timeout_ms, .memory = TUTTI_MEMORY_HOST));
}

tutti_status bench_redistribute_settle(const bench_redistribute *s) {
    if (s->gpu == NULL) return TUTTI_OK;
    TUTTI_TRY(bench_gpu_wait(s->gpu));
    return meet(s);
}

/* ------------------------------------------------------------------------------------------- filled, checked */

/* Writes one row of the shard at a time. */
tutti_status bench_redistribute_fill(const bench_pattern *pattern, int term, const tutti_tensor *tensor) {
    tutti_local local;
    int64_t columns = tutti_tensor_layout(tensor)->shape[1];
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    for (int64_t row = 0; row < local.shape[0] && local.count > 0; row++)
        TUTTI_TRY(bench_values_fill(pattern, term, (size_t)((local.first[0] + row) * columns + local.first[1]),
                                    (size_t)local.shape[1],
                                    (char *)local.data + (size_t)(row * local.shape[1]) * pattern->type->bytes));
    return TUTTI_OK;
}

tutti_status bench_redistribute_check(const bench_pattern *pattern, const tutti_tensor *tensor, int64_t *wrong_out) {
    tutti_local local;
    int64_t columns = tutti_tensor_layout(tensor)->shape[1], wrong = 0;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    for (int64_t row = 0; row < local.shape[0] && local.count > 0; row++) {
        size_t first = (size_t)((local.first[0] + row) * columns + local.first[1]), count = (size_t)local.shape[1];
        const char *got = (const char *)local.data + (size_t)row * count * pattern->type->bytes;
        wrong += pattern->reduces ? bench_values_check_reduced(pattern, first, count, got)
                                  : bench_values_check_moved(pattern, 0, first, count, got);
    }
    *wrong_out = wrong;
    return TUTTI_OK;
}

static tutti_status fill_source(const bench_redistribute *s, scene *c) {
    int terms;
    c->pattern = bench_redistribute_pattern(s, (uint32_t)s->rows + 1);
    int term = term_of(s, c->from, &terms, &c->pattern.reduction);
    c->pattern.nranks = terms;
    c->pattern.reduces = terms > 1;
    c->checkable = is_known(s, c->from);
    return bench_redistribute_fill(&c->pattern, term, c->src);
}

/* The wrong elements of all ranks. For a partial target only the ranks that hold the value are checked. */
static tutti_status check_target(const bench_redistribute *s, const scene *c, int64_t *wrong_out) {
    int64_t wrong = 0;
    bool holds = true;
    for (int axis = 0; axis < s->job->naxes; axis++)
        holds = holds && (c->to[axis].kind != TUTTI_SBP_PARTIAL || tutti_placement_coordinate(s->placement, axis) == 0);
    if (holds) TUTTI_TRY(bench_redistribute_check(&c->pattern, c->dst, &wrong));
    return tutti_all_reduce(s->self->world, &wrong, wrong_out, 1, TUTTI_INT64, TUTTI_SUM, NULL);
}

/* -------------------------------------------------------------------------------------------------- times */

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* The time of one call: the mean over iterations and ranks. */
static tutti_status time_calls(const bench_redistribute *s, void *measured, bench_redistribute_call run,
                               int64_t iterations, double *us_out) {
    if (s->gpu != NULL) TUTTI_TRY(bench_gpu_wait(s->gpu));
    TUTTI_TRY(meet(s));
    double start = now_us();
    for (int64_t i = 0; i < iterations; i++) TUTTI_TRY(run(s, measured));
    if (s->gpu != NULL) TUTTI_TRY(bench_gpu_wait(s->gpu));
    double each = (now_us() - start) / (double)iterations;
    return tutti_all_reduce(s->self->world, &each, us_out, 1, TUTTI_FLOAT64, TUTTI_AVG, NULL);
}

static int by_value(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

tutti_status bench_redistribute_time(const bench_redistribute *s, void *measured, const bench_redistribute_call *calls,
                                     int count, double *us_out) {
    double rounds[4][ROUNDS];
    int64_t iterations = s->job->options.iterations / ROUNDS + 1;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++)
            if (calls[i] != NULL) TUTTI_TRY(time_calls(s, measured, calls[i], iterations, &rounds[i][round]));
    for (int i = 0; i < count; i++) {
        us_out[i] = 0;
        if (calls[i] == NULL) continue;
        qsort(rounds[i], ROUNDS, sizeof *rounds[i], by_value);
        us_out[i] = rounds[i][ROUNDS / 2];
    }
    return TUTTI_OK;
}

static tutti_status redistribute(const bench_redistribute *s, void *context) {
    scene *c = context;
    return tutti_tensor_redistribute(c->src, c->dst, &s->call);
}

/* -------------------------------------------------------------------------------------------------- --bare */

static size_t share_of(const bench_redistribute *s, const scene *c, int times) {
    size_t bytes = c->bytes;
    for (int i = 0; i < times; i++) bytes /= (size_t)s->self->size;
    return bytes > 0 ? bytes : 1;
}

static tutti_status bare_gather(const bench_redistribute *s, void *context) {
    scene *c = context;
    return tutti_all_gather(c->comm, c->one, c->other, share_of(s, c, 1), TUTTI_UINT8, &s->call);
}

static tutti_status bare_all_to_all(const bench_redistribute *s, void *context) {
    scene *c = context;
    return tutti_all_to_all(c->comm, c->one, c->other, share_of(s, c, 2), TUTTI_UINT8, &s->call);
}

static tutti_status bare_all_reduce(const bench_redistribute *s, void *context) {
    scene *c = context;
    return tutti_all_reduce(c->comm, c->one, c->other, c->bytes / s->type->bytes, s->type->type, c->pattern.reduction,
                            &s->call);
}

static tutti_status bare_reduce_scatter(const bench_redistribute *s, void *context) {
    scene *c = context;
    return tutti_reduce_scatter(c->comm, c->one, c->other, share_of(s, c, 1) / s->type->bytes, s->type->type,
                                c->pattern.reduction, &s->call);
}

static tutti_status copy_strided(const bench_redistribute *s, void *context) {
    scene *c = context;
    const tutti_device *device;
    if (s->gpu == NULL) {
        tutti_box_run(&c->copy, c->other, c->one);
        return TUTTI_OK;
    }
    TUTTI_TRY(tutti_device_open(&device));
    return device->copy_box(&c->copy, c->other, c->one, bench_gpu_stream(s->gpu));
}

/* The collective of a plan that consists of one; else NULL. */
static bench_redistribute_call find_bare(const scene *c) {
    static const struct {
        const char *name;
        bench_redistribute_call run;
    } bares[] = {{"all_gather of", bare_gather},
                 {"all_reduce of", bare_all_reduce},
                 {"reduce_scatter of", bare_reduce_scatter},
                 {"all_to_all of", bare_all_to_all}};
    for (size_t i = 0; i < sizeof bares / sizeof *bares; i++)
        if (strncmp(c->steps, bares[i].name, strlen(bares[i].name)) == 0 && c->plan.steps == 1) return bares[i].run;
    return NULL;
}

/* Prepares the copy: strided as the target's shard lies in the whole tensor; if the shard is the whole tensor, the
 * first half of the columns. */
static tutti_status open_bare(const bench_redistribute *s, scene *c) {
    tutti_local local;
    size_t room = c->bytes + (size_t)(s->self->size * s->self->size);
    TUTTI_TRY(tutti_tensor_local(c->dst, &local));
    TUTTI_TRY(bench_redistribute_alloc(s, room, &c->one));
    TUTTI_TRY(bench_redistribute_alloc(s, room, &c->other));
    if (s->gpu == NULL) memset(c->one, 1, room); /* reading never-written memory would be faster */
    tutti_box_plan(&(tutti_box){.ndims = 2,
                                .element_bytes = s->type->bytes,
                                .shape = {local.shape[0], local.shape[1]},
                                .dst_strides = {local.shape[1], 1},
                                .src_strides = {c->shape[1], 1}},
                   &c->copy);
    return tutti_placement_comm(s->placement, (1u << s->job->naxes) - 1, &c->comm);
}

/* --------------------------------------------------------------------------------------------------- rows */

static const char *const header[] = {
    "#\n# received, bound: bytes of all ranks together that the plan receives, and that any plan must; GB/s: of the "
    "tensor's bytes\n#\n"
    "#     bytes         shape from           to              received        bound  time(us)  predicted us    GB/s  "
    "#wrong",
    "  bare(us)  copy(us)"};

static void print_row(bench_redistribute *s, const char *from, const char *to, const scene *c, const double *us,
                      int64_t wrong) {
    char shape[48], wrong_text[24] = "N/A", time_text[16], predicted[16] = "N/A", speed[16], bare[2][16];
    double gbs = (double)c->bytes * 1e-3 / us[0];
    const bench_redistribute_job *j = s->job;
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)c->shape[0], (long long)c->shape[1]);
    if (wrong >= 0) snprintf(wrong_text, sizeof wrong_text, "%lld", (long long)wrong);
    bench_report_number(us[0], 9, time_text);
    bench_report_number(gbs, 7, speed);
    if (c->plan.predicted_us > 0) bench_report_number(c->plan.predicted_us, 13, predicted);
    fprintf(s->out, "%11zu %13s %-14s %-14s %10llu %12llu %9s %13s %7s %7s", c->bytes, shape, from, to,
            (unsigned long long)c->plan.received_bytes, (unsigned long long)c->plan.least_bytes, time_text, predicted,
            speed, wrong_text);
    for (int i = 0; i < 2 && j->bare; i++) {
        bench_report_number(us[1 + i], 9, bare[i]);
        fprintf(s->out, " %9s", us[1 + i] > 0 ? bare[i] : "N/A");
    }
    fprintf(s->out, "  %s\n", c->steps);
    if (j->csv != NULL)
        fprintf(j->csv, "%zu,%s,\"%s\",\"%s\",%d,%llu,%llu,%.3f,%.4f,%s,\"%s\",%.3f\n", c->bytes, shape, from, to,
                s->self->size, (unsigned long long)c->plan.received_bytes, (unsigned long long)c->plan.least_bytes,
                us[0], gbs, wrong >= 0 ? wrong_text : "", c->steps, c->plan.predicted_us);
    if (j->json != NULL)
        fprintf(j->json,
                "%s\n  {\"bytes\": %zu, \"shape\": [%lld, %lld], \"from\": \"%s\", \"to\": \"%s\", \"ranks\": %d, "
                "\"received\": %llu, \"bound\": %llu, \"time_us\": %.3f, \"predicted_us\": %.3f, \"gbs\": %.4f, "
                "\"wrong\": %s, "
                "\"steps\": \"%s\"}",
                s->rows > 0 ? "," : "", c->bytes, (long long)c->shape[0], (long long)c->shape[1], from, to,
                s->self->size, (unsigned long long)c->plan.received_bytes, (unsigned long long)c->plan.least_bytes,
                us[0], c->plan.predicted_us, gbs, wrong >= 0 ? wrong_text : "null", c->steps);
}

/* Counts the good predictions, among sizes where the bytes dominate. */
static void judge_prediction(bench_redistribute *s, const scene *c, double us) {
    enum { LEAST_BYTES = 64 << 10 };
    if (c->bytes < LEAST_BYTES || us <= 0 || c->plan.predicted_us <= 0) return;
    double ratio = c->plan.predicted_us / us;
    s->predicted++;
    s->predicted_well += ratio > 0.7 && ratio < 1.3;
    s->log_ratios += log(ratio);
}

static tutti_status read_plan(const bench_redistribute *s, scene *c) {
    tutti_plan *plan;
    TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(c->src), tutti_tensor_layout(c->dst), 1, &plan));
    tutti_status status = tutti_plan_get(plan, &c->plan);
    if (status == TUTTI_OK) status = tutti_plan_describe(plan, c->steps, sizeof c->steps);
    tutti_plan_destroy(plan);
    TUTTI_TRY(status);
    char *numbers = strstr(c->steps, ": receives");
    if (numbers != NULL) *numbers = '\0';
    uint64_t sums[2] = {c->plan.received_bytes, c->plan.least_bytes};
    TUTTI_TRY(tutti_all_reduce(s->self->world, sums, sums, 2, TUTTI_UINT64, TUTTI_SUM, NULL));
    c->plan.received_bytes = sums[0];
    c->plan.least_bytes = sums[1];
    return TUTTI_OK;
}

size_t bench_redistribute_shape(size_t bytes, size_t element_bytes, int64_t shape[2]) {
    int64_t elements = (int64_t)(bytes / element_bytes);
    for (shape[1] = 1; shape[1] * shape[1] * 4 <= elements;) shape[1] *= 2;
    shape[0] = elements / shape[1];
    return (size_t)(shape[0] * shape[1]) * element_bytes;
}

static tutti_status open_scene(const bench_redistribute *s, const char *from, const char *to, size_t bytes, scene *c) {
    int naxes;
    *c = (scene){0};
    TUTTI_TRY(tutti_sbp_parse(from, c->from, TUTTI_MOST_AXES, &naxes));
    TUTTI_TRY(tutti_sbp_parse(to, c->to, TUTTI_MOST_AXES, &naxes));
    c->bytes = bench_redistribute_shape(bytes, s->type->bytes, c->shape);
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = s->placement, .sbp = c->from, .type = s->type->type, .ndims = 2, .shape = c->shape);
    TUTTI_TRY(tutti_tensor_create(&layout, &c->src));
    layout.sbp = c->to;
    return tutti_tensor_create(&layout, &c->dst);
}

static void close_scene(const bench_redistribute *s, scene *c) {
    tutti_tensor_destroy(c->src);
    tutti_tensor_destroy(c->dst);
    bench_redistribute_free(s, c->one);
    bench_redistribute_free(s, c->other);
}

static tutti_status measure(bench_redistribute *s, scene *c, double us[3], int64_t *wrong_out) {
    const bench_options *options = &s->job->options;
    *wrong_out = -1;
    TUTTI_TRY(fill_source(s, c));
    TUTTI_TRY(bench_redistribute_spoil(s, c->dst));
    for (int64_t i = 0; i <= options->warmup; i++) TUTTI_TRY(redistribute(s, c));
    if (s->job->bare) {
        TUTTI_TRY(open_bare(s, c));
        const bench_redistribute_call calls[] = {redistribute, find_bare(c), copy_strided};
        TUTTI_TRY(bench_redistribute_time(s, c, calls, 3, us));
    } else {
        TUTTI_TRY(time_calls(s, c, redistribute, options->iterations, &us[0]));
    }
    return options->checks > 0 && c->checkable ? check_target(s, c, wrong_out) : TUTTI_OK;
}

static tutti_status run_row(bench_redistribute *s, const char *from, const char *to, size_t bytes) {
    scene c;
    double us[3];
    int64_t wrong;
    tutti_status status = open_scene(s, from, to, bytes, &c);
    if (status == TUTTI_OK) status = read_plan(s, &c);
    if (status == TUTTI_OK) status = measure(s, &c, us, &wrong);
    if (status == TUTTI_OK) {
        if (s->out != NULL) print_row(s, from, to, &c, us, wrong);
        judge_prediction(s, &c, us[0]);
        s->wrong += wrong > 0 ? wrong : 0;
        s->rows++;
    }
    if (status == TUTTI_OK) status = bench_redistribute_settle(s);
    close_scene(s, &c);
    return status == TUTTI_OK ? bench_redistribute_settle(s) : status;
}

tutti_status bench_redistribute_pairs(bench_redistribute *s) {
    static const char *const lines[][2] = {{"S0", "B"},     {"B", "S0"},      {"S0", "S1"},     {"S1", "B"},
                                           {"P(sum)", "B"}, {"P(sum)", "S0"}, {"P(sum)", "S1"}, {NULL, NULL}};
    static const char *const grids[][2] = {
        {"S0,S1", "S1,S0"},    {"B,S0", "S0,S0"}, {"S0,S1", "B,B"}, {"P(sum),P(sum)", "B,B"},
        {"P(sum),S0", "S0,B"}, {"S0,B", "B,S1"},  {NULL, NULL}};
    const bench_options *options = &s->job->options;
    const char *const asked[][2] = {{s->job->from, s->job->to}, {NULL, NULL}};
    const char *const(*pairs)[2] = s->job->from != NULL ? asked : s->job->naxes == 2 ? grids : lines;
    if (s->out != NULL) fprintf(s->out, "%s%s  steps\n", header[0], s->job->bare ? header[1] : "");
    for (; (*pairs)[0] != NULL; pairs++)
        for (size_t bytes = (size_t)options->min_bytes; bytes <= (size_t)options->max_bytes;
             bytes = bench_options_next_bytes(options, bytes))
            TUTTI_TRY(run_row(s, (*pairs)[0], (*pairs)[1], bytes));
    return TUTTI_OK;
}
