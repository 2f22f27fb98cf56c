/*
 * The table as comma-separated values. See csv.h.
 *
 * Each row is flushed at once, so that an interrupted run leaves whole lines. No field needs quotes: names are those
 * of programs, types and reductions.
 */
#include "bench/report/csv.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bench_csv {
    FILE *file;
};

tutti_status bench_csv_open(const char *path, bench_csv **csv_out) {
    char name[4096];
    bench_csv *csv = calloc(1, sizeof *csv);
    if (csv == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to write %s", path);
    csv->file = bench_report_open_new(path, name, sizeof name);
    if (csv->file == NULL) {
        free(csv);
        return tutti_fail(TUTTI_ERR_SYSTEM, "cannot create %s for --csv: %s", name, strerror(errno));
    }
    printf("# Writing CSV output to %s\n", name);
    *csv_out = csv;
    return TUTTI_OK;
}

void bench_csv_header(bench_csv *csv, const bench_options *options) {
    static const char *const halves[] = {"out_of_place", "in_place"};
    static const char *const names[] = {"alg_bw", "bus_bw", "nwrong", "min_us",   "max_us", "avg_us",
                                        "p50_us", "p95_us", "p99_us", "stdev_us", "cv_pct"};
    if (csv == NULL) return;
    fprintf(csv->file, "program,ranks,size,count,type,redop,root");
    for (int i = 0; i < 2; i++) {
        fprintf(csv->file, ",%s_%s", halves[i], options->cpu_time ? "cpu_time_us" : "time_us");
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) fprintf(csv->file, ",%s_%s", halves[i], names[j]);
    }
    fprintf(csv->file, "\n");
    fflush(csv->file);
}

static void put_number(bench_csv *csv, double value) {
    if (isfinite(value)) fprintf(csv->file, ",%f", value);
    else fputc(',', csv->file);
}

static void put_half(bench_csv *csv, const bench_half *half) {
    const bench_iterations *times = &half->iterations;
    const double statistics[] = {times->min_us, times->max_us, times->mean_us,      times->p50_us,
                                 times->p95_us, times->p99_us, times->deviation_us, times->variation_percent};
    put_number(csv, half->time_us);
    put_number(csv, half->alg_bw);
    put_number(csv, half->bus_bw);
    if (half->checked) fprintf(csv->file, ",%lld", (long long)half->wrong);
    else fputc(',', csv->file);
    for (size_t i = 0; i < sizeof statistics / sizeof statistics[0]; i++)
        put_number(csv, times->times_us != NULL ? statistics[i] : NAN);
}

void bench_csv_row(bench_csv *csv, const char *program, int nranks, const bench_row *row) {
    if (csv == NULL) return;
    fprintf(csv->file, "%s,%d,%zu,%zu,%s,%s,%d", program, nranks, row->bytes, row->count, row->type, row->reduction,
            row->root);
    put_half(csv, &row->out_of_place);
    put_half(csv, &row->in_place);
    fputc('\n', csv->file);
    fflush(csv->file);
}

int bench_csv_close(bench_csv *csv) {
    if (csv == NULL) return 0;
    int failed = ferror(csv->file);
    failed |= fclose(csv->file);
    free(csv);
    return failed != 0 ? -1 : 0;
}
