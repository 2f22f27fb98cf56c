/*
 * redistribute_perf from its arguments to its exit code: how fast global tensors change their layouts.
 *
 * Its flags are those of the other programs that apply here, and the ones in own_flags.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report/machine.h"
#include "bench/report/report.h"
#include "bench/tensor/redistribute.h"

/* ------------------------------------------------------------------------------------------------- options */

static tutti_status take_number(const char *flag, const char *text, int64_t most, int64_t *number_out) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 1 || number > most)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s takes a whole number from 1 to %lld, not '%s'", flag, (long long)most,
                          text);
    *number_out = number;
    return TUTTI_OK;
}

static tutti_status take_mesh(bench_redistribute_job *j, const char *text) {
    const char *next = text;
    for (j->naxes = 0; j->naxes < TUTTI_MOST_AXES; next++) {
        char *end;
        long size = strtol(next, &end, 10);
        if (end == next || size < 1 || size > BENCH_RANKS_MOST || (*end != 'x' && *end != '\0')) break;
        j->mesh[j->naxes++] = (int)size;
        if (*end == '\0') return TUTTI_OK;
        next = end;
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "--mesh takes sizes of axes such as 4 or 2x2, not '%s'", text);
}

/* Removes the flags that only this program has from argv. */
static tutti_status take_own_flags(bench_redistribute_job *j, int *argc, char **argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char *value = i + 1 < *argc ? argv[i + 1] : NULL, *flag = argv[i];
        bool own = strcmp(flag, "--from") == 0 || strcmp(flag, "--to") == 0 || strcmp(flag, "--mesh") == 0 ||
                   strcmp(flag, "--many") == 0;
        if (own && value == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s needs a value", flag);
        if (strcmp(flag, "--from") == 0) j->from = value;
        else if (strcmp(flag, "--to") == 0) j->to = value;
        else if (strcmp(flag, "--mesh") == 0) TUTTI_TRY(take_mesh(j, value));
        else if (strcmp(flag, "--many") == 0) TUTTI_TRY(take_number(flag, value, 100000, &j->many));
        else if (strcmp(flag, "--bare") == 0) j->bare = true;
        else argv[kept++] = argv[i];
        i += own;
    }
    argv[ *argc = kept] = NULL;
    if ((j->from == NULL) != (j->to == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--from and --to belong together, for example --from S0 --to B");
    return TUTTI_OK;
}

static const char own_flags[] =
    "\nOnly here (-d, -b to -f, -n, -w, -c, -t, -T, --bind, --ranks, --device, -J and --csv are used of those above):\n"
    "  --from SBP --to SBP   one pair, for example --from 'P(sum)' --to S0; a part for each axis of the mesh, split by "
    "commas\n"
    "  --mesh 2x2            the ranks as an array; by default one axis\n"
    "  --bare                next to each row the plan's collective alone, and a strided copy of as many bytes\n"
    "  --many N              N tensors at once from one half of the ranks to the other, S0 to S1, next to plain "
    "messages\n";

static tutti_status check_pair(const bench_redistribute_job *j) {
    const char *const texts[] = {j->from, j->to};
    for (int i = 0; i < 2 && j->from != NULL; i++) {
        tutti_sbp sbp[TUTTI_MOST_AXES];
        int naxes;
        TUTTI_TRY(tutti_sbp_parse(texts[i], sbp, TUTTI_MOST_AXES, &naxes));
        if (naxes != j->naxes)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "'%s' must have a part for each of the mesh's %d axes, not %d",
                              texts[i], j->naxes, naxes);
    }
    if (j->from == NULL && j->naxes > 2)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "a mesh of %d axes has no default pairs: give --from and --to", j->naxes);
    return TUTTI_OK;
}

static tutti_status check_job(bench_redistribute_job *j, int nranks) {
    int product = 1;
    if (j->naxes == 0) j->mesh[j->naxes++] = nranks;
    for (int i = 0; i < j->naxes; i++) product *= j->mesh[i];
    if (product != nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--mesh is for %d ranks, and there are %d", product, nranks);
    TUTTI_TRY(check_pair(j));
    if (j->many > 0 && nranks % 2 != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--many takes an even number of ranks, not %d", nranks);
    if (j->options.type == BENCH_ALL) return tutti_fail(TUTTI_ERR_ARGUMENT, "-d takes one type here");
    if (j->options.graphs > 0 || j->options.compute_us > 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "-G and --compute have no meaning here: leave them out");
    if (j->options.min_bytes < (int64_t)bench_types[j->options.type].bytes) /* a tensor has at least one element */
        j->options.min_bytes = (int64_t)bench_types[j->options.type].bytes;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------------- ranks */

static tutti_status print_devices(const bench_redistribute *s) {
    bench_device mine, *all;
    const bench_rank *self = s->self;
    bench_machine_describe(self->rank, 0, self->local_rank, &mine);
    if (s->gpu != NULL) bench_gpu_describe(s->gpu, &mine);
    all = calloc((size_t)self->size, sizeof *all);
    if (all == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the names of %d ranks", self->size);
    tutti_status status = tutti_gather(self->world, &mine, all, sizeof mine, TUTTI_UINT8, 0, NULL);
    for (int i = 0; i < self->size && status == TUTTI_OK && s->out != NULL; i++) bench_report_device(s->out, &all[i]);
    free(all);
    return status;
}

/* If some ranks have no GPU, each rank names the first of them, and that one reports why. */
static tutti_status open_gpu(bench_redistribute *s) {
    const bench_rank *self = s->self;
    tutti_status status = bench_gpu_open(self->local_rank, bench_ranks_local(self), &s->job->options, &s->gpu);
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", tutti_last_error());
    int32_t first = status == TUTTI_OK ? self->size : self->rank;
    TUTTI_TRY(tutti_all_reduce(self->world, &first, &first, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    if (first == self->size) {
        s->call.memory = TUTTI_MEMORY_CUDA;
        s->call.stream = bench_gpu_stream(s->gpu);
        return TUTTI_OK;
    }
    if (status == TUTTI_OK) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "rank %d has no GPU", first);
    return tutti_fail(status, "--device cuda: %s; leave out --device cuda to measure host memory", reason);
}

static tutti_status run_all(bench_redistribute *s) {
    const bench_redistribute_job *j = s->job;
    if (j->options.device == BENCH_DEVICE_CUDA) TUTTI_TRY(open_gpu(s));
    if (s->out != NULL) bench_report_start(s->out, j->program, &j->options);
    TUTTI_TRY(print_devices(s));
    TUTTI_TRY(
        tutti_placement_create(s->self->world, bench_redistribute_memory(s), NULL, j->mesh, j->naxes, &s->placement));
    for (int64_t cycle = 0; j->options.cycles == 0 || cycle < j->options.cycles; cycle++)
        TUTTI_TRY(j->many > 0 ? bench_redistribute_many(s) : bench_redistribute_pairs(s));
    return TUTTI_OK;
}

static void print_end(const bench_redistribute *s) {
    if (s->predicted > 0)
        fprintf(s->out,
                "# Predicted within 30 %%, from 64 KiB on: %d of %d rows; predicted / measured, geometric mean: %.2f\n",
                s->predicted_well, s->predicted, exp(s->log_ratios / s->predicted));
    fprintf(s->out, "# Wrong elements: %lld\n#\n", (long long)s->wrong);
}

static int run_rank(const bench_rank *self, void *context) {
    const bench_redistribute_job *j = context;
    bench_redistribute s = {.job = j,
                            .self = self,
                            .type = &bench_types[j->options.type],
                            .out = self->rank == 0 ? stdout : NULL,
                            .call = TUTTI_OPTIONS(.timeout_ms = j->options.timeout_s * 1000)};
    tutti_status status = run_all(&s);
    if (status != TUTTI_OK)
        fprintf(stderr, "rank %d: %s: %s: %s\n", self->rank, j->program, tutti_status_name(status), tutti_last_error());
    else if (s.out != NULL) print_end(&s);
    tutti_placement_destroy(s.placement);
    bench_gpu_close(s.gpu);
    return status == TUTTI_OK && s.wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* --------------------------------------------------------------------------------------------------- files */

static tutti_status open_file(const char *path, const char *first, FILE **file_out) {
    char name[4096];
    *file_out = NULL;
    if (path == NULL) return TUTTI_OK;
    *file_out = bench_report_open_new(path, name, sizeof name);
    if (*file_out == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot create %s: %s", path, strerror(errno));
    printf("# Writing %s\n", name);
    fputs(first, *file_out);
    fflush(*file_out); /* forked ranks must not inherit buffered text */
    return TUTTI_OK;
}

/* Forked ranks wrote through their own descriptors; this process appends. */
static bool close_file(FILE *file, const char *last) {
    if (file == NULL) return true;
    fseek(file, 0, SEEK_END);
    fputs(last, file);
    bool good = ferror(file) == 0;
    return fclose(file) == 0 && good;
}

static tutti_status begin(bench_redistribute_job *j, int argc, char **argv, const tutti_world *world,
                          int *nstarted_out) {
    bool first = world->rank == 0;
    TUTTI_TRY(take_own_flags(j, &argc, argv));
    TUTTI_TRY(bench_options_parse(argc, argv, first ? stderr : NULL, &j->options));
    if (j->options.help) return TUTTI_OK;
    *nstarted_out = (int)(j->options.threads * j->options.devices);
    if (world->size > 1 && *nstarted_out > 1)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-t and -g start ranks, but a launcher has started %d; leave them out",
                          world->size);
    if (*nstarted_out > BENCH_RANKS_MOST)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%d ranks are too many; -t times -g may be %d at most", *nstarted_out,
                          BENCH_RANKS_MOST);
    TUTTI_TRY(check_job(j, world->size * *nstarted_out));
    if (!first) return TUTTI_OK;
    TUTTI_TRY(open_file(j->options.csv,
                        "bytes,shape,from,to,ranks,received,bound,time_us,gbs,wrong,steps,predicted_us\n", &j->csv));
    return open_file(j->options.output, "[", &j->json);
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    bench_redistribute_job j = {.program = slash != NULL ? slash + 1 : argv[0]};
    tutti_world world = {.size = 1};
    int nstarted = 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* rows appear at once, also through pipes */
    tutti_status status = tutti_world_get(&world);
    if (status == TUTTI_OK) status = begin(&j, argc, argv, &world, &nstarted);
    if (status != TUTTI_OK) {
        if (world.rank == 0) fprintf(stderr, "%s: %s\n", j.program, tutti_last_error());
        return EXIT_FAILURE;
    }
    if (j.options.help) {
        if (world.rank == 0) bench_options_help(j.program, stdout), fputs(own_flags, stdout);
        return EXIT_SUCCESS;
    }
    bench_start start = {.body = run_rank, .context = &j, .bind = j.options.bind != 0};
    int code = nstarted == 1                          ? bench_ranks_join(&world, &start)
               : j.options.life == BENCH_LIFE_THREADS ? bench_ranks_threads(nstarted, &start)
                                                      : bench_ranks_fork(nstarted, &start);
    bool written = close_file(j.csv, "");
    written &= close_file(j.json, "\n]\n");
    if (!written) fprintf(stderr, "%s: the JSON or CSV file could not be written in full\n", j.program);
    return written ? code : EXIT_FAILURE;
}
