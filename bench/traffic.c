/*
 * Traffic between ranks, from NCCL_TESTS_ALLTOALLV_* variables. See traffic.h.
 *
 * The file holds a square of numbers, a line per sending rank; it may have more lines than there are ranks.
 */
#include "bench/traffic.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE(name) "NCCL_TESTS_ALLTOALLV_" name
#define BLANKS         " \t\r\n\v\f"
#define PART_MOST      0x1p60 /* bytes */

static size_t round_down(double bytes) {
    return (size_t)bytes & ~(size_t)15;
}

static tutti_status read_number(const char *variable, double fallback, double most, double *number_out) {
    const char *text = getenv(variable);
    char *end;
    *number_out = fallback;
    if (text == NULL || *text == '\0') return TUTTI_OK;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !(number >= 0 && number <= most))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s=%s: must be a number from 0 to %g", variable, text, most);
    *number_out = number;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- file */

static int count_words(const char *line) {
    int count = 0;
    for (line += strspn(line, BLANKS); *line != '\0'; line += strspn(line, BLANKS)) {
        line += strcspn(line, BLANKS);
        count++;
    }
    return count;
}

static tutti_status read_cells(const char *path, const char *line, double scale, int row, bench_traffic *traffic) {
    for (int column = 0; column < traffic->dimension; column++) {
        char *end;
        double bytes = strtod(line, &end) * scale;
        if (end == line || strchr(BLANKS, *end) == NULL || !(bytes >= 0 && bytes <= PART_MOST))
            return tutti_fail(TUTTI_ERR_DATA, "%s: row %d, column %d: not a number of bytes", path, row, column);
        traffic->matrix[(size_t)row * (size_t)traffic->dimension + (size_t)column] = round_down(bytes);
        line = end;
    }
    return TUTTI_OK;
}

/* The length of the first row is the size of the square. */
static tutti_status read_row(const char *path, const char *line, int row, bench_traffic *traffic) {
    int columns = count_words(line);
    if (row == 0) {
        traffic->dimension = columns;
        traffic->matrix = calloc((size_t)columns * (size_t)columns, sizeof *traffic->matrix);
        if (traffic->matrix == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the %d by %d numbers of %s", columns, columns, path);
    }
    if (columns != traffic->dimension || row >= traffic->dimension)
        return tutti_fail(TUTTI_ERR_DATA, "%s: must be a square of numbers; row 0 has %d, row %d has %d", path,
                          traffic->dimension, row, columns);
    return read_cells(path, line, traffic->scale, row, traffic);
}

static tutti_status read_rows(const char *path, FILE *file, bench_traffic *traffic) {
    char *line = NULL;
    size_t capacity = 0;
    int row = 0;
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK && getline(&line, &capacity, file) != -1)
        if (count_words(line) > 0) status = read_row(path, line, row++, traffic);
    free(line);
    TUTTI_TRY(status);
    if (ferror(file)) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot read %s", path);
    if (row == 0) return tutti_fail(TUTTI_ERR_DATA, "%s holds no numbers", path);
    if (row < traffic->dimension)
        return tutti_fail(TUTTI_ERR_DATA, "%s: must be a square of numbers; row 0 has %d, but there are %d rows", path,
                          traffic->dimension, row);
    return TUTTI_OK;
}

tutti_status bench_traffic_read(bench_traffic *traffic_out) {
    const char *path = getenv(VARIABLE("MATRIX_FILE"));
    const char *summary = getenv(VARIABLE("PRINT_SUMMARY"));
    bench_traffic traffic = {.summary = summary != NULL && atoi(summary) != 0};
    TUTTI_TRY(read_number(VARIABLE("SPREAD"), 1, 1, &traffic.spread));
    TUTTI_TRY(read_number(VARIABLE("MATRIX_SCALE"), 1, PART_MOST, &traffic.scale));
    if (path != NULL && *path != '\0') {
        FILE *file = fopen(path, "r");
        if (file == NULL)
            return tutti_fail(TUTTI_ERR_SYSTEM, "cannot open %s=%s: %s", VARIABLE("MATRIX_FILE"), path,
                              strerror(errno));
        tutti_status status = read_rows(path, file, &traffic);
        fclose(file);
        if (status != TUTTI_OK) bench_traffic_free(&traffic);
        TUTTI_TRY(status);
    }
    *traffic_out = traffic;
    return TUTTI_OK;
}

void bench_traffic_free(bench_traffic *traffic) {
    free(traffic->matrix);
    traffic->matrix = NULL;
}

/* --------------------------------------------------------------------------------------------- parts */

size_t bench_traffic_bytes(const bench_traffic *traffic, int from, int to, int nranks, size_t total) {
    if (traffic->matrix != NULL) return traffic->matrix[(size_t)from * (size_t)traffic->dimension + (size_t)to];
    if (nranks == 1) return total & ~(size_t)15;
    double distance = (to - from + nranks) % nranks;
    double distances = (double)nranks * (nranks - 1) / 2; /* sum of the distances to all other ranks */
    double uniform = (double)total / nranks;
    double distant = distance * (double)total / distances;
    return round_down((1 - traffic->spread) * uniform + traffic->spread * distant);
}

static size_t sent_bytes(const bench_traffic *traffic, int rank, int nranks, size_t total) {
    size_t sum = 0;
    for (int peer = 0; peer < nranks; peer++) sum += bench_traffic_bytes(traffic, rank, peer, nranks, total);
    return sum;
}

static size_t received_bytes(const bench_traffic *traffic, int rank, int nranks, size_t total) {
    size_t sum = 0;
    for (int peer = 0; peer < nranks; peer++) sum += bench_traffic_bytes(traffic, peer, rank, nranks, total);
    return sum;
}

static size_t rank_bytes(const bench_traffic *traffic, int rank, int nranks, size_t total) {
    size_t sent = sent_bytes(traffic, rank, nranks, total), received = received_bytes(traffic, rank, nranks, total);
    return sent > received ? sent : received;
}

size_t bench_traffic_most_bytes(const bench_traffic *traffic, int nranks, size_t total) {
    size_t most = 0;
    int different = traffic->matrix != NULL ? nranks : 1; /* without a file all ranks send and receive the same */
    for (int rank = 0; rank < different; rank++) {
        size_t bytes = rank_bytes(traffic, rank, nranks, total);
        if (bytes > most) most = bytes;
    }
    return most;
}

void bench_traffic_print(const bench_traffic *traffic, FILE *out, int nranks, size_t total, double time_s) {
    if (!traffic->summary) return;
    fprintf(out, "# %s: ", VARIABLE("PRINT_SUMMARY"));
    if (traffic->matrix == NULL)
        fprintf(out, "mode=generated nranks=%d total_bytes=%zu spread=%.3f", nranks, total, traffic->spread);
    else fprintf(out, "mode=matrix nranks=%d matrix_dim=%d scale=%.3f", nranks, traffic->dimension, traffic->scale);
    fprintf(out, " time_usec=%.2f\n", time_s * 1e6);
    for (int rank = 0; rank < nranks; rank++) {
        double bandwidth = (double)rank_bytes(traffic, rank, nranks, total) * 1e-9 / time_s;
        fprintf(out, "#   rank=%d send_bytes=%zu recv_bytes=%zu alg_bw=%.2f bus_bw=%.2f\n", rank,
                sent_bytes(traffic, rank, nranks, total), received_bytes(traffic, rank, nranks, total), bandwidth,
                bandwidth * (nranks - 1) / nranks);
    }
}
