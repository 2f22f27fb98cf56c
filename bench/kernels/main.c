/*
 * kernels_perf: the times of the library's and the trainer's kernels, on the processor (one thread) or on a GPU,
 * relative to copying memory in the same run; matrix products relative to the rate of a large one.
 *
 *   kernels_perf [--device host|cuda] [--bytes SIZE] [--rounds N] [--precision fp32|tf32|bf16] [--only WORD]
 *                [--csv FILE] [--json FILE]
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/kernels/bench.h"
#include "bench/report/machine.h"
#include "bench/report/report.h"

#define MIB        ((size_t)1 << 20)
#define LEAST      (64 * (size_t)1024) /* least bytes of a region */
#define PAGE_BYTES ((size_t)4096)

typedef struct request {
    bool cuda, help;
    size_t bytes; /* 0: the device's default */
    int rounds;
    tutti_precision precision;
    const char *only, *csv, *json; /* NULL: all rows; no file */
} request;

/* Rates of the rows that the others are compared with. */
typedef struct yardstick {
    double copy_gb_per_s, peak_gflop_per_s;
} yardstick;

/* --------------------------------------------------------------------------------------------- the compute */

static tutti_status fail_without_gpu(void) {
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", tutti_last_error());
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "--device cuda: %s; leave out --device cuda to measure the processor",
                      reason);
}

static tutti_status choose_kernels(const request *q, bench_lab *lab) {
    tutti_compute_options options = {.precision = q->precision};
    if (q->cuda) {
        if (tutti_device_open(&lab->device) != TUTTI_OK) return fail_without_gpu();
        TUTTI_TRY(tutti_device_choose(&options.device));
        TUTTI_TRY(lab->device->use(options.device));
        TUTTI_TRY(tutti_device_kernels(&lab->kernels));
    } else {
#ifdef BENCH_HOST_KERNELS
        lab->kernels = &tutti_kernels_host;
#else
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "this build lacks the host's kernels, which need CBLAS and zlib; "
                                                 "measure a GPU with --device cuda");
#endif
    }
    return lab->kernels->open(&options, &lab->compute);
}

static tutti_status take(bench_lab *lab, size_t bytes, void *place_out) {
    void *memory;
    TUTTI_TRY(lab->kernels->alloc(lab->compute, (bytes + 63) / 64 * 64, &memory));
    memcpy(place_out, &memory, sizeof memory);
    return TUTTI_OK;
}

static tutti_status open_lab(const request *q, bench_lab *lab) {
    static const tutti_normal normal = {.seed = 1, .stddev = 1};
    const tutti_step_values values = {.lr = (tutti_real)0.001,
                                      .adam = {.keep = 1, .rate = (tutti_real)0.001, .correction = 1}};
    size_t bytes = q->bytes > 0 ? q->bytes : q->cuda ? 256 * MIB : 64 * MIB;
    lab->bytes = (bytes > LEAST ? bytes : LEAST) / PAGE_BYTES * PAGE_BYTES;
    lab->rounds = q->rounds;
    lab->precision = q->precision;
    TUTTI_TRY(choose_kernels(q, lab));
    for (int i = 0; i < BENCH_REGIONS; i++) {
        TUTTI_TRY(take(lab, lab->bytes, &lab->regions[i]));
        if (i == 0)
            lab->kernels->truncated_normal(lab->compute, &normal, lab->bytes / sizeof(tutti_real), lab->regions[0]);
        else if (i < BENCH_REGIONS - 1) lab->kernels->copy(lab->compute, lab->regions[i], lab->regions[0], lab->bytes);
    }
    TUTTI_TRY(take(lab, sizeof values, &lab->values));
    TUTTI_TRY(take(lab, 2 * sizeof *lab->sums, &lab->sums));
    TUTTI_TRY(take(lab, BENCH_LABELS * sizeof *lab->labels, &lab->labels));
    TUTTI_TRY(take(lab, lab->bytes / 4, &lab->where));
    lab->kernels->upload(lab->compute, lab->values, &values, sizeof values);
    return lab->kernels->wait(lab->compute);
}

static void close_lab(bench_lab *lab) {
    if (lab->compute == NULL) return;
    void *rest[] = {lab->values, lab->sums, lab->labels, lab->where};
    for (int i = 0; i < BENCH_REGIONS; i++) lab->kernels->free(lab->compute, lab->regions[i]);
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) lab->kernels->free(lab->compute, rest[i]);
    lab->kernels->close(lab->compute);
}

/* ------------------------------------------------------------------------------------------------ output */

static void describe(bench_lab *lab, char *text, size_t capacity) {
    tutti_device_facts facts;
    bench_device processor;
    int index = 0;
    bench_machine_describe(0, 0, 0, &processor);
    snprintf(text, capacity, "%s", processor.name);
    if (lab->device == NULL || lab->device->current(&index) != TUTTI_OK ||
        lab->device->facts(index, &facts) != TUTTI_OK)
        return;
    snprintf(text, capacity, "%s", facts.name);
}

static void print_head(const request *q, bench_lab *lab) {
    static const char *const precisions[] = {"fp32", "tf32", "bf16"};
    char name[128];
    describe(lab, name, sizeof name);
    printf("# kernels of %s on %s, regions of %zu KiB, products in %s, median of %d rounds\n", lab->kernels->name, name,
           lab->bytes / 1024, precisions[q->precision], lab->rounds);
    if (lab->device == NULL) printf("# one thread; reductions by %s\n", tutti_reduce_variant_name());
    printf("# GB/s: of the bytes that must be read and written; %%copy: of the first row's; %%peak: of the last row's "
           "GFLOP/s.\n");
    if (lab->device != NULL) printf("# unfold, fold: a convolution's time less that of its product\n");
    printf("#\n# %-20s  %-30s  %10s  %8s  %6s  %9s  %6s\n", "kernel", "shape", "us", "GB/s", "%copy", "GFLOP/s",
           "%peak");
}

static double gb_per_s(const bench_kernel *row) {
    return row->us > 0 ? row->bytes * 1e-3 / row->us : 0;
}

static double gflop_per_s(const bench_kernel *row) {
    return row->us > 0 ? row->flops * 1e-3 / row->us : 0;
}

/* "-" for an unknown value. */
static const char *number(char text[16], const char *format, double value) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (value > 0) snprintf(text, 16, format, value);
    else snprintf(text, 16, "-");
#pragma GCC diagnostic pop
    return text;
}

static double share(double value, double of) {
    return of > 0 ? 100 * value / of : 0;
}

static void print_row(const bench_kernel *row, const yardstick *y) {
    char us[16], rate[16], copies[16], flops[16], peaks[16];
    printf("  %-20s  %-30s  %10s  %8s  %6s  %9s  %6s  %s\n", row->name, row->text, number(us, "%.2f", row->us),
           number(rate, "%.1f", gb_per_s(row)), number(copies, "%.1f", share(gb_per_s(row), y->copy_gb_per_s)),
           number(flops, "%.1f", gflop_per_s(row)), number(peaks, "%.1f", share(gflop_per_s(row), y->peak_gflop_per_s)),
           row->bound);
}

/* Unknown fields are empty, in JSON null. */
static void put_field(FILE *file, bool json, const char *name, double value) {
    if (json) fprintf(file, ",\"%s\":", name);
    else fputc(',', file);
    if (value > 0) fprintf(file, "%.6g", value);
    else if (json) fputs("null", file);
}

static void put_row(FILE *file, bool json, const bench_kernel *row, const yardstick *y) {
    fprintf(file, json ? "{\"kernel\":\"%s\",\"shape\":\"%s\"" : "%s,\"%s\"", row->name, row->text);
    put_field(file, json, "us", row->us);
    put_field(file, json, "bytes", row->bytes);
    put_field(file, json, "gb_per_s", gb_per_s(row));
    put_field(file, json, "share_of_copy", share(gb_per_s(row), y->copy_gb_per_s));
    put_field(file, json, "gflop_per_s", gflop_per_s(row));
    put_field(file, json, "share_of_peak", share(gflop_per_s(row), y->peak_gflop_per_s));
    fprintf(file, json ? ",\"bound\":\"%s\"}" : ",%s", row->bound);
}

static tutti_status write_file(const char *path, bool json, const bench_kernel *rows, int count, const yardstick *y) {
    char name[4096];
    if (path == NULL) return TUTTI_OK;
    FILE *file = bench_report_open_new(path, name, sizeof name);
    if (file == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot create %s", name);
    fputs(json ? "[" : "kernel,shape,us,bytes,gb_per_s,share_of_copy,gflop_per_s,share_of_peak,bound\n", file);
    for (int i = 0; i < count; i++) {
        if (json && i > 0) fputs(",\n", file);
        put_row(file, json, &rows[i], y);
        if (!json) fputc('\n', file);
    }
    if (json) fputs("]\n", file);
    int failed = ferror(file);
    failed |= fclose(file);
    return failed == 0 ? TUTTI_OK : tutti_fail(TUTTI_ERR_SYSTEM, "%s could not be written in full", name);
}

/* ---------------------------------------------------------------------------------------------- the run */

/* The largest product is the last row, if it fits into the memory. */
static bool is_peak(const bench_kernel *row) {
    return strncmp(row->text, "peak", 4) == 0;
}

/* Measures the two rows that the others are compared with, before the others. */
static tutti_status measure_yardstick(bench_lab *lab, bench_kernel *rows, int count, yardstick *y_out) {
    bench_kernel *peak = &rows[count - 1];
    TUTTI_TRY(bench_kernels_time(lab, &rows[0]));
    y_out->copy_gb_per_s = gb_per_s(&rows[0]);
    if (!is_peak(peak)) return TUTTI_OK;
    TUTTI_TRY(bench_kernels_time(lab, peak));
    y_out->peak_gflop_per_s = gflop_per_s(peak);
    return TUTTI_OK;
}

/* Removes rows that were not requested; keeps the two that others are compared with. */
static int keep_asked(const request *q, bench_kernel *rows, int count) {
    int kept = 0;
    for (int i = 0; i < count; i++) {
        bool asked = q->only == NULL || strstr(rows[i].name, q->only) != NULL;
        if (asked || i == 0 || is_peak(&rows[i])) rows[kept++] = rows[i];
    }
    return kept;
}

/* Checks that some row's name contains --only. The error lists the names, each once. */
static tutti_status check_only(const request *q, const bench_kernel *rows, int count) {
    char names[2048] = "";
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (q->only == NULL || strstr(rows[i].name, q->only) != NULL) return TUTTI_OK;
        bool again = false;
        for (int k = 0; k < i && !again; k++) again = strcmp(rows[k].name, rows[i].name) == 0;
        if (!again && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", rows[i].name);
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "--only %s: no kernel's name contains it; there are %s", q->only, names);
}

static tutti_status run(const request *q, bench_lab *lab) {
    static bench_kernel rows[BENCH_ROWS_MOST];
    yardstick y = {0};
    TUTTI_TRY(open_lab(q, lab));
    int count = bench_kernels_list(lab, rows);
    TUTTI_TRY(check_only(q, rows, count));
    count = keep_asked(q, rows, count);
    print_head(q, lab);
    TUTTI_TRY(measure_yardstick(lab, rows, count, &y));
    for (int i = 0; i < count; i++) {
        if (rows[i].us == 0) TUTTI_TRY(bench_kernels_time(lab, &rows[i]));
        print_row(&rows[i], &y);
        fflush(stdout);
    }
    TUTTI_TRY(write_file(q->csv, false, rows, count, &y));
    return write_file(q->json, true, rows, count, &y);
}

/* ------------------------------------------------------------------------------------------ command line */

static void print_usage(FILE *out) {
    fprintf(out, "usage: kernels_perf [options]\n\n"
                 "  --device host|cuda           measure its kernels (host: one thread)\n"
                 "  --bytes SIZE                 of an array; K, M, G are powers of 1024 (64M, cuda: 256M; from 64K)\n"
                 "  --rounds N                   rounds; a time is their median (7)\n"
                 "  --precision fp32|tf32|bf16   of matrix products; the last two with cuda\n"
                 "  --only WORD                  rows whose name contains it, and those they are compared with\n"
                 "  --csv FILE, --json FILE      write the rows there too\n");
}

static bool read_size(const char *text, size_t *bytes_out) {
    static const char units[] = "KMG";
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (end == text || (*end != '\0' && (unit == NULL || end[1] != '\0'))) return false;
    int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    if (value == 0 || value > (UINT64_C(1) << 40) >> shift) return false;
    *bytes_out = (size_t)value << shift;
    return true;
}

static bool read_word(const char *text, const char *const *words, int count, int *index_out) {
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], text) != 0) continue;
        *index_out = i;
        return true;
    }
    return false;
}

static bool read_option(int letter, request *q) {
    static const char *const devices[] = {"host", "cuda"}, *const precisions[] = {"fp32", "tf32", "bf16"};
    int index = 0;
    switch (letter) {
    case 'd':
        if (!read_word(optarg, devices, 2, &index)) return false;
        q->cuda = index == 1;
        return true;
    case 'b': return read_size(optarg, &q->bytes);
    case 'r': return (q->rounds = atoi(optarg)) > 0;
    case 'p':
        if (!read_word(optarg, precisions, 3, &index)) return false;
        q->precision = (tutti_precision)index;
        return true;
    case 'o': q->only = optarg; return true;
    case 'c': q->csv = optarg; return true;
    case 'j': q->json = optarg; return true;
    case 'h': q->help = true; return true;
    default: return false;
    }
}

static bool read_request(int argc, char **argv, request *q_out) {
    static const struct option longs[] = {{"device", required_argument, NULL, 'd'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"precision", required_argument, NULL, 'p'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"csv", required_argument, NULL, 'c'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *q_out = (request){.rounds = 7};
    for (int letter; (letter = getopt_long(argc, argv, "h", longs, NULL)) != -1;)
        if (!read_option(letter, q_out)) return false;
    return optind == argc;
}

int main(int argc, char **argv) {
    request q;
    bench_lab lab = {.bytes = 0};
    if (!read_request(argc, argv, &q)) {
        print_usage(stderr);
        return EXIT_FAILURE;
    }
    if (q.help) {
        print_usage(stdout);
        return EXIT_SUCCESS;
    }
    tutti_status status = run(&q, &lab);
    if (status != TUTTI_OK) fprintf(stderr, "kernels_perf: %s: %s\n", tutti_status_name(status), tutti_last_error());
    close_lab(&lab);
    return status == TUTTI_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
