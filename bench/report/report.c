/*
 * nccl-tests' text output (version 2.19.6). The strings look arbitrary, but other programs parse them.
 */
#include "bench/report/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIME_FORMAT "%Y-%m-%d %H:%M:%S"

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest rank: the smallest value that `percent` of all values do not exceed. */
static double percentile(const double *sorted, int count, int percent) {
    int index = (count * percent + 99) / 100 - 1;
    return sorted[index < count ? index : count - 1];
}

tutti_status bench_iterations_summarize(bench_iterations *iterations) {
    int count = iterations->count - iterations->skipped;
    double *sorted = malloc((size_t)count * sizeof *sorted);
    if (sorted == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to sort %d times; lower -n", count);
    memcpy(sorted, iterations->times_us + iterations->skipped, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++) sum += sorted[i];
    double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (sorted[i] - mean) * (sorted[i] - mean);
    iterations->min_us = sorted[0];
    iterations->max_us = sorted[count - 1];
    iterations->mean_us = mean;
    iterations->p50_us = sorted[count / 2];
    iterations->p95_us = percentile(sorted, count, 95);
    iterations->p99_us = percentile(sorted, count, 99);
    iterations->deviation_us = sqrt(squares / count);
    iterations->variation_percent = mean > 0 ? iterations->deviation_us / mean * 100 : 0;
    free(sorted);
    return TUTTI_OK;
}

void bench_report_number(double value, int width, char *text_out) {
    size_t capacity = (size_t)width + 1;
    for (int digits = 2; digits >= 0; digits--)
        if (snprintf(text_out, capacity, "%*.*f", width, digits, value) <= width) return;
    snprintf(text_out, capacity, "%*.*e", width, width >= 7 ? 1 : 0, value);
}

void bench_report_time(char *text_out) {
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(text_out, 32, TIME_FORMAT, &local);
}

int bench_report_version_code(const char *version) {
    int major = 0, minor = 0, patch = 0;
    sscanf(version, "%d.%d.%d", &major, &minor, &patch);
    return major * 10000 + minor * 100 + patch;
}

void bench_report_start(FILE *out, const char *program, const bench_options *options) {
    static const char *const blocking[] = {
        [BENCH_BLOCKING_BARRIER] = "wait and barrier after each inner iteration (-m)",
        [BENCH_BLOCKING_WAIT] = "wait after each inner iteration (-m), no barrier",
        [BENCH_BLOCKING_OUTER_BARRIER] = "wait and barrier after each outer iteration (-n); time excludes barrier"};
    int built = TUTTI_VERSION_MAJOR * 10000 + TUTTI_VERSION_MINOR * 100 + TUTTI_VERSION_PATCH;
    bool multiplies = options->step_factor > 1;
    fprintf(out, "# nccl-tests version %s nccl-headers=%d nccl-library=%d\n", tutti_version(), built,
            bench_report_version_code(tutti_version()));
    fprintf(out, "# Collective test starting: %s\n", program);
    fprintf(out,
            "# nThread %d nGpus %d minBytes %ld maxBytes %ld step: %ld(%s) warmup iters: %d iters: %d agg iters: %d "
            "validation: %d graph: %d unalign: %d\n",
            (int)options->threads, (int)options->devices, (long)options->min_bytes, (long)options->max_bytes,
            (long)(multiplies ? options->step_factor : options->step_bytes), multiplies ? "factor" : "bytes",
            (int)options->warmup, (int)options->iterations, (int)options->grouped, (int)options->checks,
            (int)options->graphs, (int)options->unalign);
    if (options->blocking != BENCH_BLOCKING_OFF) fprintf(out, "# Blocking Enabled: %s \n", blocking[options->blocking]);
    if (options->per_iteration) {
        fprintf(out, "# Per-Iteration Report: host clock timing; i_* uses max over process rows");
        if (options->skip > 0) fprintf(out, "; summary skips first %d iterations", (int)options->skip);
        fprintf(out, " \n");
    }
    if (options->parallel_init) fprintf(out, "# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
    fprintf(out, "#\n# Using devices\n");
}

void bench_report_device(FILE *out, const bench_device *device) {
    fprintf(out, "#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", device->rank, device->group, device->pid,
            device->host, device->index, device->address, device->name);
}

/* A line of column titles: twice time, algbw, busbw, wrong, and with -I four more. */
static void print_titles(FILE *out, const bench_options *options, const char *const first[5], const char *const half[8],
                         const char *stamp) {
    fprintf(out, "# %10s  %12s  %8s  %6s  %6s", first[0], first[1], first[2], first[3], first[4]);
    for (int i = 0; i < 2; i++) {
        fprintf(out, "  %7s  %6s  %6s  %6s", half[0], half[1], half[2], half[3]);
        if (options->per_iteration) fprintf(out, "  %7s  %7s  %7s  %7s", half[4], half[5], half[6], half[7]);
    }
    fprintf(out, " %*s\n", options->timestamps ? 19 : 0, options->timestamps ? stamp : "");
}

void bench_report_header(FILE *out, const bench_options *options) {
    const char *const names[] = {"size", "count", "type", "redop", "root"};
    const char *const units[] = {"(B)", "(elements)", "", "", ""};
    const char *const half[] = {
        options->cpu_time ? "cputime" : "time", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"};
    const char *const half_units[] = {"(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"};
    fprintf(out, "#\n# %10s  %12s  %8s  %6s  %6s", "", "", "", "", "");
    if (options->per_iteration)
        fprintf(out, "              out-of-place (+ per-iteration)                                in-place (+ "
                     "per-iteration)\n");
    else fprintf(out, "           out-of-place                       in-place          \n");
    print_titles(out, options, names, half, "timestamp");
    print_titles(out, options, units, half_units, TIME_FORMAT);
}

static void print_half(FILE *out, const bench_options *options, const bench_half *half) {
    char time_text[8], alg_text[7], bus_text[7];
    bench_report_number(half->time_us, 7, time_text);
    bench_report_number(half->alg_bw, 6, alg_text);
    bench_report_number(half->bus_bw, 6, bus_text);
    fprintf(out, "  %7s  %6s  %6s", time_text, alg_text, bus_text);
    if (half->checked) fprintf(out, "  %6g", (double)half->wrong);
    else fprintf(out, "    N/A");
    if (!options->per_iteration || half->iterations.times_us == NULL) return;
    const double statistics[] = {half->iterations.min_us, half->iterations.max_us, half->iterations.p99_us,
                                 half->iterations.variation_percent};
    for (int i = 0; i < 4; i++) {
        char text[8];
        bench_report_number(statistics[i], 7, text);
        fprintf(out, "  %7s", text);
    }
}

void bench_report_row(FILE *out, const bench_options *options, const bench_row *row) {
    fprintf(out, "%12li  %12li  %8s  %6s  %6i", (long)row->bytes, (long)row->count, row->type, row->reduction,
            row->root);
    print_half(out, options, &row->out_of_place);
    print_half(out, options, &row->in_place);
    if (options->timestamps) {
        char now[32];
        bench_report_time(now);
        fprintf(out, "%21s", now);
    }
    fprintf(out, "\n");
}

void bench_report_percentiles(FILE *out, const bench_row *row) {
    const bench_iterations *there = &row->out_of_place.iterations, *here = &row->in_place.iterations;
    fprintf(out,
            "# percentiles (us) of %zu bytes: out-of-place p50 %.2f p95 %.2f p99 %.2f; in-place p50 %.2f p95 %.2f p99 "
            "%.2f\n",
            row->bytes, there->p50_us, there->p95_us, there->p99_us, here->p50_us, here->p95_us, here->p99_us);
}

void bench_report_compute(FILE *out, const bench_options *options, const bench_row *row) {
    double grouped = (double)options->grouped; /* operations per iteration */
    fprintf(out,
            "# compute of %zu bytes: out-of-place %.2f us alone, %.2f us with the operation; in-place %.2f us alone, "
            "%.2f us with the operation\n",
            row->bytes, row->out_of_place.compute_us, row->out_of_place.elapsed_s * 1e6 * grouped,
            row->in_place.compute_us, row->in_place.elapsed_s * 1e6 * grouped);
}

FILE *bench_report_open_new(const char *path, char *name_out, size_t capacity) {
    snprintf(name_out, capacity, "%s", path);
    FILE *file = fopen(name_out, "wx");
    for (int i = 0; file == NULL && errno == EEXIST && i < 10000; i++) {
        snprintf(name_out, capacity, "%s.%d", path, i);
        file = fopen(name_out, "wx");
    }
    return file;
}

bool bench_report_fast_enough(const bench_summary *summary) {
    return !(summary->bus_bw < summary->least_bw * 0.9);
}

/* "1.50 GB": three digits, powers of 1024. */
static void write_amount(int64_t bytes, char *text_out, size_t capacity) {
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    double amount = (double)bytes;
    int unit = 0;
    while (unit < 3 && fabs(amount) >= 1024) {
        amount /= 1024;
        unit++;
    }
    snprintf(text_out, capacity, "%.*f %s", fabs(amount) < 10 ? 2 : fabs(amount) < 100 ? 1 : 0, amount, units[unit]);
}

static void print_memory(FILE *out, const bench_memory_use *use) {
    const int64_t bytes[] = {use->initialization_bytes, use->buffer_bytes, use->collective_bytes,
                             use->initialization_bytes + use->buffer_bytes + use->collective_bytes};
    char texts[4][32];
    for (int i = 0; i < 4; i++) write_amount(bytes[i], texts[i], sizeof texts[i]);
    fprintf(out, "# %-20s : Initialization %s | User-Allocated %s | Collective %s | Total  %s\n", "GPU memory usage",
            texts[0], texts[1], texts[2], texts[3]);
}

void bench_report_footer(FILE *out, const char *program, const bench_summary *summary) {
    const char *verdict = summary->least_bw == -1 ? "" : bench_report_fast_enough(summary) ? "OK" : "FAILED";
    fprintf(out, "# %-20s : %d %s\n", "Out of bounds values", summary->failed_checks,
            summary->failed_checks > 0 ? "FAILED" : "OK");
    fprintf(out, "# %-20s : %g %s\n", "Avg bus bandwidth", summary->bus_bw, verdict);
    fprintf(out, "#\n# Collective test concluded: %s\n", program);
    if (summary->memory != NULL) print_memory(out, summary->memory);
    fprintf(out, "#\n");
    if (summary->error != NULL && summary->error[0] != '\0') fprintf(out, "# error: %s\n", summary->error);
    else fprintf(out, "\n");
}
