/*
 * A small JSON writer and nccl-tests' document on top of it.
 *
 * The writer keeps the kinds of the open brackets and whether the next value needs a comma; a key is followed
 * directly by its value.
 */
#include "bench/report/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEPTH        16
#define FILE_VERSION 3

extern char **environ;

struct bench_json {
    FILE *file;
    char closers[DEPTH]; /* closing characters of the open brackets, outermost first */
    int depth;
    bool comma;
};

static void start_value(bench_json *json) {
    if (json->comma) fputc(',', json->file);
    json->comma = true;
}

static void open_bracket(bench_json *json, char opener) {
    start_value(json);
    fputc(opener, json->file);
    json->closers[json->depth++] = opener == '{' ? '}' : ']';
    json->comma = false;
}

static void close_bracket(bench_json *json) {
    fputc(json->closers[--json->depth], json->file);
    json->comma = true;
}

/* Bytes outside printable ASCII become \u00XX: the file stays valid whatever the environment contains. */
static void write_quoted(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n') fputs("\\n", file);
        else if (c == '\t') fputs("\\t", file);
        else if (c < 0x20 || c >= 0x7f) fprintf(file, "\\u%04x", c);
        else if (strchr("\"\\/", c) != NULL) fprintf(file, "\\%c", c);
        else fputc(c, file);
    }
    fputc('"', file);
}

static void put_key(bench_json *json, const char *name) {
    start_value(json);
    write_quoted(json->file, name);
    fputc(':', json->file);
    json->comma = false;
}

static void put_text(bench_json *json, const char *text) {
    start_value(json);
    write_quoted(json->file, text);
}

static void put_number(bench_json *json, double value) {
    start_value(json);
    if (!isfinite(value)) fputs("\"nan\"", json->file);
    else fprintf(json->file, "%lf", value);
}

static void key_text(bench_json *json, const char *name, const char *text) {
    put_key(json, name);
    put_text(json, text);
}

static void key_flag(bench_json *json, const char *name, bool value) {
    key_text(json, name, value ? "true" : "false");
}

static void key_int(bench_json *json, const char *name, int64_t value) {
    put_key(json, name);
    start_value(json);
    fprintf(json->file, "%lld", (long long)value);
}

static void key_number(bench_json *json, const char *name, double value) {
    put_key(json, name);
    put_number(json, value);
}

static void key_time(bench_json *json, const char *name) {
    char now[32];
    bench_report_time(now);
    key_text(json, name, now);
}

static void key_open(bench_json *json, const char *name, char opener) {
    put_key(json, name);
    open_bracket(json, opener);
}

static bool is_secret(const char *variable) {
    static const char *const words[] = {"SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY"};
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(variable, "="), variable);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasestr(name, words[i]) != NULL) return true;
    return false;
}

static void put_environment(bench_json *json) {
    key_open(json, "env", '[');
    for (char **variable = environ; *variable != NULL; variable++) {
        char hidden[300];
        snprintf(hidden, sizeof hidden, "%.*s=(not shown)", (int)strcspn(*variable, "="), *variable);
        put_text(json, is_secret(*variable) ? hidden : *variable);
    }
    close_bracket(json);
}

bench_json *bench_json_open(const char *path, int argc, char **argv) {
    char name[4096];
    const char *suffix = strrchr(path, '.');
    if (suffix == NULL || strcasecmp(suffix, ".json") != 0) {
        printf("# skipping json output; %s does not end in .json\n", path);
        return NULL;
    }
    bench_json *json = calloc(1, sizeof *json);
    if (json != NULL) json->file = bench_report_open_new(path, name, sizeof name);
    if (json == NULL || json->file == NULL) {
        printf("# skipping json output; %s not accessible\n", name);
        free(json);
        return NULL;
    }
    printf("# Writing JSON output to %s\n", name);
    open_bracket(json, '{');
    key_int(json, "version", FILE_VERSION);
    key_time(json, "start_time");
    key_open(json, "args", '[');
    for (int i = 0; i < argc; i++) put_text(json, argv[i]);
    close_bracket(json);
    put_environment(json);
    key_int(json, "nccl_version", bench_report_version_code(tutti_version()));
    return json;
}

static void put_device(bench_json *json, const bench_device *device) {
    open_bracket(json, '{');
    key_int(json, "rank", device->rank);
    key_int(json, "group", device->group);
    key_int(json, "pid", device->pid);
    key_text(json, "hostname", device->host);
    key_int(json, "device", device->index);
    key_text(json, "device_hex", device->address);
    key_text(json, "device_info", device->name);
    close_bracket(json);
}

void bench_json_config(bench_json *json, const bench_options *options, const bench_device *devices, int ndevices) {
    if (json == NULL) return;
    key_open(json, "config", '{');
    key_int(json, "nthreads", options->threads);
    key_int(json, "ngpus", options->devices);
    key_int(json, "minimum_bytes", options->min_bytes);
    key_int(json, "maximum_bytes", options->max_bytes);
    if (options->step_factor > 1) key_int(json, "step_factor", options->step_factor);
    else key_int(json, "step_bytes", options->step_bytes);
    key_int(json, "warmup_iters", options->warmup);
    key_int(json, "iterations", options->iterations);
    key_int(json, "aggregated_iterations", options->grouped);
    key_int(json, "validation", options->checks);
    key_int(json, "graph", options->graphs);
    key_flag(json, "blocking_collectives", options->blocking != BENCH_BLOCKING_OFF);
    key_flag(json, "per_iter_timing", bench_options_times_each(options));
    key_int(json, "per_iter_skip", options->skip);
    key_flag(json, "parallel_init", options->parallel_init != 0);
    key_open(json, "devices", '[');
    for (int i = 0; i < ndevices; i++) put_device(json, &devices[i]);
    close_bracket(json);
    close_bracket(json);
}

void bench_json_header(bench_json *json) {
    if (json != NULL) key_open(json, "results", '[');
}

static void put_times(bench_json *json, const double *times_us, int count) {
    for (int i = 0; i < count; i++) put_number(json, times_us[i]);
    close_bracket(json);
}

static void put_iterations(bench_json *json, const char *name, const bench_iterations *iterations) {
    if (iterations->times_us == NULL) return;
    key_open(json, name, '{');
    key_int(json, "skipped_iterations", iterations->skipped);
    key_number(json, "min_us", iterations->min_us);
    key_number(json, "max_us", iterations->max_us);
    key_number(json, "avg_us", iterations->mean_us);
    key_number(json, "p50_us", iterations->p50_us);
    key_number(json, "p95_us", iterations->p95_us);
    key_number(json, "p99_us", iterations->p99_us);
    key_number(json, "stdev_us", iterations->deviation_us);
    key_number(json, "cv_pct", iterations->variation_percent);
    key_open(json, "times_us", '[');
    put_times(json, iterations->times_us, iterations->count);
    if (iterations->rank_times_us != NULL && iterations->nranks > 1) {
        key_open(json, "per_process_max_times_us", '[');
        for (int rank = 0; rank < iterations->nranks; rank++) {
            open_bracket(json, '[');
            put_times(json, iterations->rank_times_us + (size_t)rank * (size_t)iterations->count, iterations->count);
        }
        close_bracket(json);
    }
    close_bracket(json);
}

static void put_half(bench_json *json, const char *name, const bench_options *options, const bench_half *half) {
    key_open(json, name, '{');
    key_number(json, options->cpu_time ? "cpu_time" : "time", half->time_us);
    key_number(json, "alg_bw", half->alg_bw);
    key_number(json, "bus_bw", half->bus_bw);
    put_key(json, "nwrong");
    if (half->checked) {
        put_number(json, (double)half->wrong);
    } else {
        start_value(json);
        fputs("null", json->file);
    }
    close_bracket(json);
}

void bench_json_row(bench_json *json, const bench_options *options, const bench_row *row) {
    if (json == NULL) return;
    char root[16];
    snprintf(root, sizeof root, "%6i", row->root);
    open_bracket(json, '{');
    key_int(json, "size", (int64_t)row->bytes);
    key_int(json, "count", (int64_t)row->count);
    key_text(json, "type", row->type);
    key_text(json, "redop", row->reduction);
    key_text(json, "root", root);
    put_half(json, "out_of_place", options, &row->out_of_place);
    put_iterations(json, "out_of_place_per_iter", &row->out_of_place.iterations);
    put_half(json, "in_place", options, &row->in_place);
    put_iterations(json, "in_place_per_iter", &row->in_place.iterations);
    key_int(json, "actual_iterations", options->iterations);
    key_text(json, "experiment_name", "");
    close_bracket(json);
}

void bench_json_footer(bench_json *json, const bench_summary *summary) {
    if (json == NULL) return;
    close_bracket(json); /* of the results */
    key_open(json, "out_of_bounds", '{');
    key_int(json, "count", summary->failed_checks);
    key_flag(json, "okay", summary->failed_checks == 0);
    close_bracket(json);
    key_open(json, "average_bus_bandwidth", '{');
    key_number(json, "bandwidth", summary->bus_bw);
    if (summary->least_bw == -1) key_text(json, "okay", "unchecked");
    else key_flag(json, "okay", bench_report_fast_enough(summary));
    close_bracket(json);
    key_open(json, "errors", '[');
    if (summary->error != NULL && summary->error[0] != '\0') put_text(json, summary->error);
    close_bracket(json);
}

int bench_json_close(bench_json *json) {
    if (json == NULL) return 0;
    while (json->depth > 1) close_bracket(json);
    key_time(json, "end_time");
    close_bracket(json);
    fputc('\n', json->file);
    int failed = ferror(json->file);
    failed |= fclose(json->file);
    free(json);
    return failed != 0 ? -1 : 0;
}
