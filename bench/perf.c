/*
 * A benchmark program from its arguments to its exit code: starts the ranks, describes them, then prints, for each
 * type, reduction and root, a table row per size.
 *
 * All ranks run the same code and take part in each measurement; rank 0 alone prints.
 */
#include "bench/perf.h"

#include <stdlib.h>
#include <string.h>

#include "bench/collectives.h"
#include "bench/gpu.h"
#include "bench/measure.h"
#include "bench/options.h"
#include "bench/ranks.h"
#include "bench/report/csv.h"
#include "bench/report/json.h"
#include "bench/report/machine.h"
#include "bench/report/report.h"
#include "bench/traffic.h"

typedef struct bench_job {
    const bench_collective *row;
    const char *program; /* the name it was called by */
    bench_options options;
    bench_traffic traffic;
    bench_csv *csv; /* NULL: none */
    int argc;
    char **argv;
} bench_job;

/* A rank's share of the work. `out` is NULL on all ranks but the first. */
typedef struct session {
    const bench_job *job;
    bench_options options; /* sizes reduced to fit into memory */
    bench_run run;
    FILE *out;
    bench_json *json;
    bench_csv *csv;
    int roots;      /* size of the smallest group: all groups use the same roots */
    double bus_sum; /* summed over halves of rows */
    int64_t halves;
    int64_t free_bytes; /* -M: the GPU's free memory at the last check */
    bench_memory_use memory;
    bool told;    /* another rank failed, and reports the error */
    bool started; /* the table has begun */
} session;

/* ----------------------------------------------------------------------------------------- the start */

static tutti_status print_devices(session *s, const bench_rank *self, int color) {
    bench_device mine;
    bench_machine_describe(self->rank, color, self->local_rank, &mine);
    if (s->run.gpu != NULL) bench_gpu_describe(s->run.gpu, &mine);
    bench_device *all = calloc((size_t)self->size, sizeof *all);
    if (all == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the names of %d ranks", self->size);
    tutti_status status = tutti_gather(self->world, &mine, all, sizeof mine, TUTTI_UINT8, 0, NULL);
    if (status == TUTTI_OK && s->out != NULL) {
        for (int i = 0; i < self->size; i++) bench_report_device(s->out, &all[i]);
        bench_json_config(s->json, &s->options, all, self->size);
    }
    free(all);
    return status;
}

/* A program that was started N times without the variables that join the copies is N separate worlds of one rank. */
static void print_alone(const session *s) {
    if (s->out == NULL || s->run.self->size > 1) return;
    const char *launcher = bench_machine_foreign_launcher();
    if (launcher != NULL)
        fprintf(s->out,
                "# One rank: %s=%s is set, but RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not, so each process is "
                "a world of its own\n",
                launcher, getenv(launcher));
    else fprintf(s->out, "# One rank: nothing is sent; start with -t N or with tuttirun --nproc_per_node N\n");
}

/* Lowers max_bytes to what each rank can allocate. */
static tutti_status fit_memory(session *s, const bench_rank *self) {
    const bench_gpu *gpu = s->run.gpu;
    size_t all = gpu != NULL ? bench_gpu_memory_bytes(gpu) : bench_machine_memory_bytes();
    int sharers = gpu != NULL ? bench_gpu_sharers(gpu) : bench_ranks_local(self);
    int64_t most = (int64_t)bench_machine_buffer_bytes(all, sharers, s->options.checks > 0 ? 3 : 2);
    TUTTI_TRY(tutti_all_reduce(self->world, &most, &most, 1, TUTTI_INT64, TUTTI_MIN, NULL));
    if (s->options.max_bytes <= most) return TUTTI_OK;
    s->options.max_bytes = most;
    if (s->options.min_bytes > most) s->options.min_bytes = most;
    if (s->out != NULL) fprintf(s->out, "#\n# Reducing maxBytes to %ld due to memory limitation\n", (long)most);
    return TUTTI_OK;
}

/* -M: the decrease of the GPU's free memory since the last call, once all ranks have finished their earlier work; the
 * largest of all ranks. */
static tutti_status look_at_memory(session *s, int64_t *bytes_out) {
    tutti_comm *world = s->run.self->world;
    int64_t now, lost;
    if (!s->options.memory_report) return TUTTI_OK;
    TUTTI_TRY(tutti_barrier(world, NULL));
    TUTTI_TRY(bench_gpu_free_bytes(s->run.gpu, &now));
    lost = s->free_bytes - now;
    s->free_bytes = now;
    return tutti_all_reduce(world, &lost, bytes_out, 1, TUTTI_INT64, TUTTI_MAX, NULL);
}

/* Communicators allocate a GPU's memory at their first call there. */
static tutti_status open_communicator(session *s, const bench_rank *self, int color) {
    TUTTI_TRY(look_at_memory(s, &s->memory.initialization_bytes));
    TUTTI_TRY(tutti_comm_split(self->world, color, self->rank, NULL, &s->run.comm));
    if (!s->options.memory_report) return TUTTI_OK;
    void *stream = bench_gpu_stream(s->run.gpu);
    TUTTI_TRY(tutti_barrier(s->run.comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = stream)));
    TUTTI_TRY(bench_gpu_wait(s->run.gpu));
    return look_at_memory(s, &s->memory.initialization_bytes);
}

/* The buffers have -e bytes; a traffic file may need more. */
static tutti_status check_traffic(const session *s) {
    if (!s->job->row->uneven || s->job->traffic.matrix == NULL) return TUTTI_OK;
    size_t least = bench_traffic_most_bytes(&s->job->traffic, s->run.nranks, 0);
    if (least <= s->run.buffer_bytes) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "a rank sends or receives %zu bytes by the traffic file; set -b and -e to "
                      "at least that (now %zu)",
                      least, s->run.buffer_bytes);
}

/* If some ranks have no GPU, the first of them reports why. */
static tutti_status open_gpu(session *s, const bench_rank *self) {
    tutti_status status = bench_gpu_open(self->local_rank, bench_ranks_local(self), &s->options, &s->run.gpu);
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", tutti_last_error());
    int32_t first = status == TUTTI_OK ? self->size : self->rank;
    TUTTI_TRY(tutti_all_reduce(self->world, &first, &first, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (first == self->size) return TUTTI_OK;
    s->told = first != self->rank;
    if (status == TUTTI_OK) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "rank %d has no GPU", first);
    return tutti_fail(status, "--device cuda: %s; leave out --device cuda to measure host memory", reason);
}

static tutti_status prepare(session *s, const bench_rank *self) {
    const bench_job *job = s->job;
    int color;
    TUTTI_TRY(bench_options_color(self->rank, &color));
    if (s->options.device == BENCH_DEVICE_CUDA) TUTTI_TRY(open_gpu(s, self));
    if (s->out != NULL && s->options.output != NULL) s->json = bench_json_open(s->options.output, job->argc, job->argv);
    s->started = true;
    if (s->out != NULL) bench_report_start(s->out, job->program, &s->options);
    TUTTI_TRY(print_devices(s, self, color));
    print_alone(s);
    TUTTI_TRY(fit_memory(s, self));
    TUTTI_TRY(open_communicator(s, self, color));
    s->run.rank = tutti_comm_rank(s->run.comm);
    s->run.nranks = tutti_comm_size(s->run.comm);
    s->run.buffer_bytes = (size_t)s->options.max_bytes;
    s->run.graphs = s->options.graphs;
    TUTTI_TRY(tutti_all_reduce(self->world, &s->run.nranks, &s->roots, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (s->job->row->has_root && s->options.root >= s->roots)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-r %d: the smallest group has the ranks 0 to %d", (int)s->options.root,
                          s->roots - 1);
    TUTTI_TRY(check_traffic(s));
    TUTTI_TRY(bench_measure_open(&s->run));
    return look_at_memory(s, &s->memory.buffer_bytes);
}

/* ----------------------------------------------------------------------------------------- the table */

static bench_case make_case(const session *s, const bench_type *type, tutti_reduction reduction, int root,
                            size_t bytes) {
    bool from_file = s->job->row->uneven && s->job->traffic.matrix != NULL; /* then `bytes` is unused */
    return (bench_case){.type = type,
                        .reduction = reduction,
                        .root = root,
                        .count =
                            from_file ? 0 : bench_collective_count(s->job->row, bytes, type->bytes, s->run.nranks)};
}

static void print_traffic(const session *s, const bench_case *c, const bench_row *line) {
    size_t total = c->count * c->type->bytes * (size_t)s->run.nranks;
    if (!s->job->row->uneven) return;
    bench_traffic_print(&s->job->traffic, s->out, s->run.nranks, total, line->out_of_place.elapsed_s);
    bench_traffic_print(&s->job->traffic, s->out, s->run.nranks, total, line->in_place.elapsed_s);
}

static tutti_status run_row(session *s, const bench_case *c, const char *reduction_name) {
    const bench_collective *row = s->job->row;
    bench_row line = {.bytes = bench_measure_bytes(&s->run, c),
                      .count = c->count,
                      .type = c->type->name,
                      .reduction = reduction_name,
                      .root = row->has_root ? c->root : -1};
    bool graphs = s->run.graphs > 0;
    TUTTI_TRY(bench_measure_half(&s->run, c, false, &line.out_of_place));
    TUTTI_TRY(bench_measure_half(&s->run, c, true, &line.in_place));
    s->bus_sum += line.out_of_place.bus_bw + line.in_place.bus_bw;
    s->halves += 2;
    if (s->out == NULL) return TUTTI_OK;
    if (graphs && s->run.graphs == 0)
        fprintf(s->out, "# Option -G (CUDA graph) not supported: %s. Ignoring\n", s->run.refusal);
    print_traffic(s, c, &line);
    bench_report_row(s->out, &s->options, &line);
    if (s->options.percentiles) bench_report_percentiles(s->out, &line);
    if (s->options.compute_us > 0) bench_report_compute(s->out, &s->options, &line);
    bench_csv_row(s->csv, s->job->row->name, s->run.nranks, &line);
    bench_json_row(s->json, &s->options, &line);
    return TUTTI_OK;
}

/* Runs all sizes, -N times, after a warm-up over all powers of two. */
static tutti_status run_sizes(session *s, const bench_type *type, const bench_reduction *reduction, int root) {
    const bench_options *options = &s->options;
    bench_redop redop = s->job->row->redop;
    const char *shown = redop == BENCH_REDOP_NONE ? "none" : redop == BENCH_REDOP_BLANK ? "" : reduction->name;
    size_t least = (size_t)options->min_bytes, most = (size_t)options->max_bytes;
    for (size_t bytes = least; bytes <= most; bytes = bytes > 0 ? bytes * 2 : 1) {
        bench_case c = make_case(s, type, reduction->reduction, root, bytes);
        TUTTI_TRY(bench_measure_warm_up(&s->run, &c));
    }
    for (int64_t cycle = 0; options->cycles == 0 || cycle < options->cycles; cycle++)
        for (size_t bytes = least; bytes <= most; bytes = bench_options_next_bytes(options, bytes)) {
            bench_case c = make_case(s, type, reduction->reduction, root, bytes);
            TUTTI_TRY(run_row(s, &c, shown));
        }
    return TUTTI_OK;
}

/* The bounds of a loop over an option's choice: one value, or all `count`. */
static int first_of(int64_t choice) {
    return choice == BENCH_ALL ? 0 : (int)choice;
}

static int last_of(int64_t choice, int count) {
    return choice == BENCH_ALL ? count - 1 : (int)choice;
}

static tutti_status run_table(session *s) {
    const bench_collective *row = s->job->row;
    const bench_options *options = &s->options;
    bool each = row->redop == BENCH_REDOP_SHOWN || row->redop == BENCH_REDOP_USED;
    int64_t reduction = each ? options->reduction : 0;
    int64_t root = row->has_root ? options->root : 0;
    for (int i = first_of(options->type); i <= last_of(options->type, BENCH_TYPES); i++)
        for (int j = first_of(reduction); j <= last_of(reduction, BENCH_REDUCTIONS); j++)
            for (int k = first_of(root); k <= last_of(root, s->roots); k++)
                TUTTI_TRY(run_sizes(s, &bench_types[i], &bench_reductions[j], k));
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- the end */

static tutti_status summarize(const session *s, bench_summary *summary_out) {
    const char *least = getenv("NCCL_TESTS_MIN_BW");
    int32_t failed = s->run.failed_checks;
    TUTTI_TRY(tutti_all_reduce(s->run.self->world, &failed, &failed, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    *summary_out = (bench_summary){.failed_checks = failed,
                                   .bus_bw = s->bus_sum / (double)s->halves,
                                   .least_bw = least != NULL ? atof(least) : -1};
    return TUTTI_OK;
}

static tutti_status run_all(session *s, const bench_rank *self, bool *good_out) {
    bench_summary summary;
    TUTTI_TRY(prepare(s, self));
    if (s->out != NULL) bench_report_header(s->out, &s->options);
    bench_json_header(s->json);
    bench_csv_header(s->csv, &s->options);
    TUTTI_TRY(run_table(s));
    TUTTI_TRY(look_at_memory(s, &s->memory.collective_bytes));
    TUTTI_TRY(summarize(s, &summary));
    if (s->options.memory_report) summary.memory = &s->memory;
    *good_out = summary.failed_checks == 0 && bench_report_fast_enough(&summary);
    if (s->out == NULL) return TUTTI_OK;
    bench_report_footer(s->out, s->job->program, &summary);
    bench_json_footer(s->json, &summary);
    return TUTTI_OK;
}

/* The body of each rank. Bandwidth differs between groups, so only rank 0's verdict counts; wrong values are
 * known to all. */
static int run_rank(const bench_rank *self, void *context) {
    bench_job *job = context;
    session s = {.job = job, .options = job->options};
    if (self->rank == 0) {
        s.out = stdout;
        s.csv = job->csv;
    }
    s.run = (bench_run){.row = job->row, .options = &s.options, .traffic = &job->traffic, .self = self};
    bool good = false;
    tutti_status status = run_all(&s, self, &good);
    if (status != TUTTI_OK && !s.told) {
        fprintf(stderr, "rank %d: %s: %s: %s\n", self->rank, job->program, tutti_status_name(status),
                tutti_last_error());
        if (s.out != NULL && s.started) fprintf(s.out, "# error: %s\n", tutti_last_error());
    }
    bench_measure_close(&s.run);
    tutti_comm_destroy(s.run.comm);
    bench_gpu_close(s.run.gpu);
    bool written = bench_json_close(s.json) == 0;
    written &= bench_csv_close(s.csv) == 0;
    if (self->rank == 0) job->csv = NULL;
    if (!written) {
        fprintf(stderr, "%s: the JSON or CSV file could not be written in full\n", job->program);
        status = TUTTI_ERR_SYSTEM;
    }
    return status == TUTTI_OK && good ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Checks that the row and the traffic file allow this number of ranks. */
static tutti_status check_group(const bench_job *job, int size) {
    if (job->row->ranks_power_of_two && (size & (size - 1)) != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s needs 1, 2, 4, 8 ... ranks (a power of two), not %d", job->row->name,
                          size);
    if (job->row->uneven && job->traffic.matrix != NULL && size > job->traffic.dimension)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "the traffic file is for %d ranks, and there are %d",
                          job->traffic.dimension, size);
    return TUTTI_OK;
}

/* Checks the size of each group; the groups follow from the environment alone. */
static tutti_status check_groups(const bench_job *job, int nranks) {
    int *colors = calloc((size_t)nranks, sizeof *colors);
    if (colors == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the groups of %d ranks", nranks);
    tutti_status status = TUTTI_OK;
    for (int rank = 0; rank < nranks && status == TUTTI_OK; rank++) status = bench_options_color(rank, &colors[rank]);
    for (int rank = 0; rank < nranks && status == TUTTI_OK; rank++) {
        int size = 0;
        for (int peer = 0; peer < nranks; peer++) size += colors[peer] == colors[rank];
        status = check_group(job, size);
    }
    free(colors);
    return status;
}

/* Errors that every rank would have are reported once, before the ranks start. */
static tutti_status check_job(const bench_job *job, const tutti_world *world, int nstarted) {
    int nranks = world->size * nstarted;
    if (world->size > 1 && nstarted > 1)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-t and -g start ranks, but a launcher has started %d; leave them out",
                          world->size);
    if (nstarted > BENCH_RANKS_MOST)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%d ranks are too many; -t times -g may be %d at most", nstarted,
                          BENCH_RANKS_MOST);
    if (job->row->has_root && job->options.root >= nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-r %d: the ranks are 0 to %d", (int)job->options.root, nranks - 1);
    if (job->traffic.matrix != NULL && job->options.min_bytes != job->options.max_bytes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "the traffic file sets all sizes; set -b and -e to the same value");
    return check_groups(job, nranks);
}

/* Prepares this process before the ranks start. `first`: it is, or forks, rank 0. */
static tutti_status start_job(bench_job *job, const tutti_world *world, bool first, int *nstarted_out) {
    int nstarted = (int)(job->options.threads * job->options.devices);
    if (job->row->uneven) TUTTI_TRY(bench_traffic_read(&job->traffic));
    TUTTI_TRY(check_job(job, world, nstarted));
    if (first && job->options.csv != NULL) TUTTI_TRY(bench_csv_open(job->options.csv, &job->csv));
    *nstarted_out = nstarted;
    return TUTTI_OK;
}

int bench_perf_main(const char *row_name, int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    bench_job job = {.row = bench_collective_find(row_name),
                     .program = slash != NULL ? slash + 1 : argv[0],
                     .argc = argc,
                     .argv = argv};
    tutti_world world = {.size = 1};
    int nstarted = 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* rows appear at once, also through pipes */
    tutti_status status = tutti_world_get(&world);
    bool first = status != TUTTI_OK || world.rank == 0;
    if (status == TUTTI_OK) status = bench_options_parse(argc, argv, first ? stderr : NULL, &job.options);
    if (status == TUTTI_OK && job.options.help) {
        if (first) bench_options_help(job.program, stdout);
        return EXIT_SUCCESS;
    }
    if (status == TUTTI_OK) status = start_job(&job, &world, first, &nstarted);
    if (status != TUTTI_OK) {
        if (first) fprintf(stderr, "%s: %s\n", job.program, tutti_last_error());
        return EXIT_FAILURE;
    }
    if (job.options.cta_policy != BENCH_CTA_UNSET) {
        const char policy[] = {(char)('0' + job.options.cta_policy), '\0'};
        setenv("NCCL_CTA_POLICY", policy, /* overwrite */ 1);
    }
    /* Threads on one GPU wait for each other in their streams, which must not share a hardware queue. */
    if (job.options.life == BENCH_LIFE_THREADS) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /* overwrite */ 0);
    /* With -t and -g the ranks are started here; under a launcher the processes are the ranks. */
    bench_start start = {.body = run_rank, .context = &job, .bind = job.options.bind != 0};
    int code = nstarted == 1                            ? bench_ranks_join(&world, &start)
               : job.options.life == BENCH_LIFE_THREADS ? bench_ranks_threads(nstarted, &start)
                                                        : bench_ranks_fork(nstarted, &start);
    bench_csv_close(job.csv); /* forked ranks have their own */
    bench_traffic_free(&job.traffic);
    return code;
}
