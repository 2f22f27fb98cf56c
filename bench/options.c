/*
 * The command line, from one table: a row per flag with its letters, kind, bounds, default and help.
 *
 * getopt_long parses; the row defines how to read the value and where to store it. Flags that have no meaning here are
 * rows without a place: they are accepted, and a line reports why they are ignored. The same holds for flags for GPUs
 * if the buffers are the host's.
 */
#include "bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ranks.h"
#include "bench/values.h"

typedef enum option_kind {
    KIND_INT,
    KIND_BYTES,
    KIND_TYPE,
    KIND_REDUCTION,
    KIND_CHOICE,
    KIND_TEXT,
    KIND_FLAG,
    KIND_IGNORED /* for compatibility only: reported with the help as the reason, unless 0 */
} option_kind;

typedef struct option_row {
    int letter; /* getopt's value; above 255: no short form */
    const char *name;
    option_kind kind;
    size_t offset; /* position in bench_options of the int64_t (KIND_TEXT: const char *) */
    int64_t fallback, least, most;
    const char *value, *help;
    const char *const *choices; /* KIND_CHOICE: two words, the value is the index of one */
    bool gpu_only;              /* for host memory: reset to the default, and reported unless 0 */
} option_row;

#define LETTER_TOUCH       256
#define LETTER_MEMORY      257
#define LETTER_BIND        258
#define LETTER_CSV         259
#define LETTER_PERCENTILES 260
#define LETTER_DEVICE      261
#define LETTER_RANKS       262
#define LETTER_COMPUTE     263
#define CHOICES            2
#define AT(field)          .offset = offsetof(bench_options, field)
#define MANY               INT32_MAX
#define MIB                (INT64_C(1) << 20)

#define OF_THE_DEVICE_API "of NCCL's device API, which no program here uses"

/* In the order of the enums. */
static const char *const devices[CHOICES] = {"host", "cuda"};
static const char *const lives[CHOICES] = {"processes", "threads"};
static const char *const memories[CHOICES] = {"malloc", "tutti"};

/* clang-format off */
static const option_row rows[] = {
    {.letter = 't', .name = "nthreads", .kind = KIND_INT, AT(threads), .fallback = 1, .least = 1,
     .most = BENCH_RANKS_MOST, .value = "N", .help = "ranks that this program starts; not under a launcher"},
    {.letter = 'g', .name = "ngpus", .kind = KIND_INT, AT(devices), .fallback = 1, .least = 1,
     .most = BENCH_RANKS_MOST, .value = "N", .help = "GPUs per -t: multiplies it, since each is a rank; on the host too"},
    {.letter = LETTER_DEVICE, .name = "device", .kind = KIND_CHOICE, .choices = devices, AT(device),
     .value = "host|cuda", .help = "where the buffers are. cuda: a rank's GPU is its rank on the host,\nmodulo the number of GPUs; "
     "more ranks than GPUs share them"},
    {.letter = LETTER_RANKS, .name = "ranks", .kind = KIND_CHOICE, .choices = lives, AT(life),
     .value = "processes|threads", .help = "what -t and -g start"},
    {.letter = 'b', .name = "minbytes", .kind = KIND_BYTES, AT(min_bytes), .fallback = 32 * MIB,
     .value = "SIZE", .help = "smallest size; K, M, G are powers of 1024"},
    {.letter = 'e', .name = "maxbytes", .kind = KIND_BYTES, AT(max_bytes), .fallback = 32 * MIB,
     .value = "SIZE", .help = "largest size"},
    {.letter = 'i', .name = "stepbytes", .kind = KIND_BYTES, AT(step_bytes), .fallback = MIB,
     .value = "SIZE", .help = "added from size to size"},
    {.letter = 'f', .name = "stepfactor", .kind = KIND_INT, AT(step_factor), .fallback = 1, .most = MANY,
     .value = "N", .help = "multiplied from size to size; above 1 it wins over -i"},
    {.letter = 'n', .name = "iters", .kind = KIND_INT, AT(iterations), .fallback = 20, .least = 1, .most = MANY,
     .value = "N", .help = "timed iterations"},
    {.letter = 'w', .name = "warmup_iters", .kind = KIND_INT, AT(warmup), .fallback = 1, .most = MANY,
     .value = "N", .help = "iterations before, not timed"},
    {.letter = 'm', .name = "agg_iters", .kind = KIND_INT, AT(grouped), .fallback = 1, .least = 1, .most = MANY,
     .value = "N", .help = "operations per iteration, in one group"},
    {.letter = 'N', .name = "run_cycles", .kind = KIND_INT, AT(cycles), .fallback = 1, .most = MANY,
     .value = "N", .help = "runs of the table; 0: forever"},
    {.letter = 'I', .name = "per_iter_timing", .kind = KIND_INT, AT(per_iteration), .most = 1,
     .value = "0|1", .help = "statistics over the iterations"},
    {.letter = 'K', .name = "per_iter_skip", .kind = KIND_INT, AT(skip), .most = MANY,
     .value = "N", .help = "first iterations left out of the -I statistics"},
    {.letter = 'c', .name = "check", .kind = KIND_INT, AT(checks), .fallback = 1, .most = MANY,
     .value = "N", .help = "calls whose every element is checked; 0: none"},
    {.letter = 'o', .name = "op", .kind = KIND_REDUCTION, AT(reduction),
     .value = "OP", .help = "sum, prod, max, min, avg, mulsum or all"},
    {.letter = 'd', .name = "datatype", .kind = KIND_TYPE, AT(type), .fallback = BENCH_TYPE_FLOAT, .value = "TYPE",
     .help = "int8 uint8 int32 uint32 int64 uint64 half float double\nbfloat16 f8e4m3 f8e5m2, or all"},
    {.letter = 'r', .name = "root", .kind = KIND_INT, AT(root), .least = BENCH_ALL, .most = MANY,
     .value = "RANK", .help = "root of broadcast, reduce, gather, scatter; -1: each"},
    {.letter = 'z', .name = "blocking", .kind = KIND_INT, AT(blocking), .most = BENCH_BLOCKING_OUTER_BARRIER,
     .value = "0-3", .help = "1: wait and barrier after each operation; 2: wait only;\n3: wait and barrier between iterations, not timed"},
    {.letter = 'T', .name = "timeout", .kind = KIND_INT, AT(timeout_s), .most = MANY,
     .value = "SECONDS", .help = "deadline of each operation"},
    {.letter = 'C', .name = "report_cputime", .kind = KIND_INT, AT(cpu_time), .most = 1,
     .value = "0|1", .help = "rank 0's processor time per operation, not elapsed time"},
    {.letter = 'a', .name = "average", .kind = KIND_INT, AT(average), .fallback = BENCH_AVERAGE_MEAN,
     .most = BENCH_AVERAGE_MAX, .value = "0-3", .help = "time of rank 0, mean, minimum or maximum over ranks"},
    {.letter = 'J', .name = "output_file", .kind = KIND_TEXT, AT(output),
     .value = "FILE.json", .help = "writes the results as JSON too"},
    {.letter = LETTER_CSV, .name = "csv", .kind = KIND_TEXT, AT(csv),
     .value = "FILE", .help = "writes the results as CSV too, a line per row"},
    {.letter = LETTER_PERCENTILES, .name = "percentiles", .kind = KIND_FLAG, AT(percentiles),
     .help = "p50, p95 and p99 of the iterations in a comment below each\nrow; with --csv and -J the -I statistics go there"},
    {.letter = 'S', .name = "report_timestamps", .kind = KIND_INT, AT(timestamps), .most = 1,
     .value = "0|1", .help = "time of day in each row"},
    {.letter = 'u', .name = "unalign", .kind = KIND_INT, AT(unalign), .most = 1 << 20,
     .value = "N", .help = "first element's index in its buffer"},
    {.letter = LETTER_TOUCH, .name = "touch", .kind = KIND_FLAG, AT(touch),
     .help = "each rank rewrites its data and reads its result between\niterations, not timed, as a program does"},
    {.letter = LETTER_MEMORY, .name = "mem", .kind = KIND_CHOICE, .choices = memories, AT(memory),
     .value = "malloc|tutti", .help = "buffers from malloc (cudaMalloc), or from tutti_mem_alloc\n(tutti_mem_alloc_cuda)"},
    {.letter = 'R', .name = "local_register", .kind = KIND_INT, AT(registers), .most = 2, .gpu_only = true,
     .value = "0-2", .help = "GPUs; 1, 2: the same as --mem tutti, which is registered"},
    {.letter = 'G', .name = "cudagraph", .kind = KIND_INT, AT(graphs), .most = MANY, .gpu_only = true,
     .value = "N", .help = "GPUs: the iterations as a CUDA graph, launched N times"},
    {.letter = 'y', .name = "stream_null", .kind = KIND_INT, AT(stream_null), .most = 1, .gpu_only = true,
     .value = "0|1", .help = "GPUs; 1: in the default stream"},
    {.letter = 'x', .name = "cta_policy", .kind = KIND_INT, AT(cta_policy), .fallback = BENCH_CTA_UNSET, .most = 2,
     .gpu_only = true, .value = "0-2", .help = "GPUs; NCCL's use of their processors: 0 default, 1 sparing, 2 none\n"
     "where copies suffice (sets NCCL_CTA_POLICY; NCCL 2.27 or later)"},
    {.letter = 'M', .name = "memory", .kind = KIND_INT, AT(memory_report), .most = 1, .gpu_only = true,
     .value = "0|1", .help = "GPUs; 1: reports at the end the memory that communicators, buffers and\ncalls took on the GPU that "
     "lost most, for all ranks on it"},
    {.letter = 'p', .name = "parallel_init", .kind = KIND_INT, AT(parallel_init), .most = 1,
     .value = "0|1", .help = "1: a line says that ranks make their communicators at the same\ntime, as they always do"},
    {.letter = LETTER_COMPUTE, .name = "compute", .kind = KIND_INT, AT(compute_us), .most = 10000000,
     .value = "US", .help = "each iteration begins with that many microseconds of work\n(GPUs: matrix products in the rank's stream); the time is\n"
     "for both, and a comment below each row has that of the work alone"},
    {.letter = LETTER_BIND, .name = "bind", .kind = KIND_FLAG, AT(bind),
     .help = "each rank stays on a core of its own, if there are enough cores"},
    {.letter = 'h', .name = "help", .kind = KIND_FLAG, AT(help), .help = "shows this"},
    {.letter = 'D', .name = "device_implementation", .kind = KIND_IGNORED, .value = "N",
     .help = "for compatibility only: a kernel " OF_THE_DEVICE_API},
    {.letter = 'V', .name = "device_cta_count", .kind = KIND_IGNORED, .value = "N",
     .help = "for compatibility only: blocks of a kernel " OF_THE_DEVICE_API},
};
/* clang-format on */

#define ROWS (sizeof rows / sizeof rows[0])

static const option_row *row_of(int letter) {
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].letter == letter) return &rows[i];
    return NULL;
}

static size_t smallest(size_t a, size_t b, size_t c) {
    size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* The number of edits that turn one word into the other (Levenshtein), one row of the table at a time. */
static size_t distance(const char *a, const char *b) {
    size_t width = strlen(b);
    size_t line[64];
    if (width >= sizeof line / sizeof line[0]) return SIZE_MAX;
    for (size_t j = 0; j <= width; j++) line[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t corner = line[0];
        line[0] = i + 1;
        for (size_t j = 1; j <= width; j++) {
            size_t above = line[j];
            line[j] = smallest(above + 1, line[j - 1] + 1, corner + (a[i] != b[j - 1]));
            corner = above;
        }
    }
    return line[width];
}

/* The nearest of `count` names that lie `stride` bytes apart. */
static const char *nearest(const char *word, const void *names, size_t count, size_t stride) {
    const char *best = "";
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)names + i * stride, sizeof name);
        size_t edits = distance(word, name);
        if (edits < least) {
            least = edits;
            best = name;
        }
    }
    return best;
}

/* getopt returned '?': the flag is unknown, or it is a long flag with a value that it does not take. */
static tutti_status fail_unknown(const char *word, int letter) {
    if (letter > 0 && letter <= UINT8_MAX && row_of(letter) == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "unknown option -%c (-h lists all)", letter);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    if (letter > 0) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s takes no value", name);
    return tutti_fail(TUTTI_ERR_ARGUMENT, "unknown option %s; the nearest is --%s (-h lists all)", name,
                      nearest(name + strspn(name, "-"), &rows[0].name, ROWS, sizeof rows[0]));
}

static tutti_status read_int(const option_row *row, const char *text, int64_t *value_out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 0);
    if (end == text || *end != '\0' || errno != 0 || value < row->least || value > row->most)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--%s takes a whole number from %lld to %lld, not '%s'", row->name,
                          (long long)row->least, (long long)row->most, text);
    *value_out = value;
    return TUTTI_OK;
}

static tutti_status read_bytes(const option_row *row, const char *text, int64_t *bytes_out) {
    char *end;
    double value = strtod(text, &end);
    double unit = 1;
    if (end != text && *end != '\0') {
        unit = *end == 'k' || *end == 'K'   ? 0x1p10
               : *end == 'm' || *end == 'M' ? 0x1p20
               : *end == 'g' || *end == 'G' ? 0x1p30
                                            : NAN;
        end++;
    }
    if (end == text || *end != '\0' || !(value * unit >= 0 && value * unit <= 0x1p60))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--%s takes a size such as 8, 64K, 1.5M or 1G, not '%s'", row->name,
                          text);
    *bytes_out = (int64_t)(value * unit);
    return TUTTI_OK;
}

/* `names`: the first members of `count` structures of `stride` bytes. */
static tutti_status read_name(const option_row *row, const char *text, const void *names, size_t count, size_t stride,
                              int64_t *index_out) {
    for (size_t i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)names + i * stride, sizeof name);
        if (strcmp(name, text) == 0) {
            *index_out = (int64_t)i;
            return TUTTI_OK;
        }
    }
    return tutti_fail(TUTTI_ERR_ARGUMENT, "--%s has no '%s'; the nearest is '%s'", row->name, text,
                      nearest(text, names, count, stride));
}

static tutti_status read_row(const option_row *row, const char *text, bench_options *options) {
    void *place = (char *)options + row->offset;
    int64_t value = 0;
    switch (row->kind) {
    case KIND_INT: TUTTI_TRY(read_int(row, text, &value)); break;
    case KIND_BYTES: TUTTI_TRY(read_bytes(row, text, &value)); break;
    case KIND_TYPE:
        if (strcmp(text, "all") == 0) value = BENCH_ALL;
        else TUTTI_TRY(read_name(row, text, bench_types, BENCH_TYPES, sizeof bench_types[0], &value));
        break;
    case KIND_REDUCTION:
        if (strcmp(text, "all") == 0) value = BENCH_ALL;
        else TUTTI_TRY(read_name(row, text, bench_reductions, BENCH_REDUCTIONS, sizeof bench_reductions[0], &value));
        break;
    case KIND_CHOICE: TUTTI_TRY(read_name(row, text, row->choices, CHOICES, sizeof row->choices[0], &value)); break;
    case KIND_TEXT: memcpy(place, &text, sizeof text); return TUTTI_OK;
    case KIND_FLAG: value = 1; break;
    case KIND_IGNORED: return TUTTI_OK;
    }
    memcpy(place, &value, sizeof value);
    return TUTTI_OK;
}

static void note_ignored(const option_row *row, const char *text, FILE *notes) {
    if (row->kind != KIND_IGNORED || notes == NULL || strcmp(text, "0") == 0) return;
    fprintf(notes, "note: -%c %s (--%s) is ignored: %s\n", row->letter, text, row->name, row->help);
}

/* Drops the flags for GPUs, for host memory. */
static void drop_gpu_only(bench_options *options, FILE *notes) {
    for (size_t i = 0; i < ROWS; i++) {
        if (!rows[i].gpu_only) continue;
        int64_t value, none = rows[i].fallback;
        memcpy(&value, (char *)options + rows[i].offset, sizeof value);
        memcpy((char *)options + rows[i].offset, &none, sizeof none);
        if (value != none && value != 0 && notes != NULL)
            fprintf(notes, "note: -%c %lld (--%s) has no meaning for host memory and is ignored\n", rows[i].letter,
                    (long long)value, rows[i].name);
    }
}

/* Rejects flags that a graph cannot include, and flags that need the rank's own stream. */
static tutti_status check_streams(const bench_options *options) {
    if (options->graphs > 0 && (options->blocking != BENCH_BLOCKING_OFF || bench_options_times_each(options) ||
                                options->touch || options->stream_null))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "-G does not go with -z, -I, --percentiles, --touch or -y: a graph is launched as a whole");
    if (options->stream_null && options->life == BENCH_LIFE_THREADS)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-y does not go with --ranks threads: threads that share a GPU share its "
                                              "default stream, and would wait for each other in it");
    if (options->compute_us > 0 && options->stream_null)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--compute does not go with -y: it works in the rank's own stream");
    return TUTTI_OK;
}

/* getopt's two descriptions of the flags. The leading ':' distinguishes a missing value from an unknown flag. */
static void describe(char *letters, struct option *longs) {
    *letters++ = ':';
    for (size_t i = 0; i < ROWS; i++) {
        bool takes_value = rows[i].kind != KIND_FLAG;
        longs[i] = (struct option){
            .name = rows[i].name, .has_arg = takes_value ? required_argument : no_argument, .val = rows[i].letter};
        if (rows[i].letter > UINT8_MAX) continue;
        *letters++ = (char)rows[i].letter;
        if (takes_value) *letters++ = ':';
    }
    *letters = '\0';
}

static void set_defaults(bench_options *options) {
    *options = (bench_options){.output = NULL};
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].kind == KIND_TEXT || rows[i].kind == KIND_IGNORED) continue;
        memcpy((char *)options + rows[i].offset, &rows[i].fallback, sizeof rows[i].fallback);
    }
}

bool bench_options_times_each(const bench_options *options) {
    return options->per_iteration || options->percentiles;
}

static tutti_status check(bench_options *options, FILE *notes) {
    if (options->min_bytes > options->max_bytes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "invalid sizes for 'minbytes' and 'maxbytes': %lld > %lld",
                          (long long)options->min_bytes, (long long)options->max_bytes);
    if (options->min_bytes < options->max_bytes && options->step_factor <= 1 && options->step_bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "with a step of 0 bytes the sizes never reach --maxbytes; set -i or -f");
    if (options->skip > 0 && (!bench_options_times_each(options) || options->skip >= options->iterations)) {
        if (notes != NULL)
            fprintf(notes,
                    "note: -K needs -I 1 or --percentiles and must be below the number of iterations; it is ignored\n");
        options->skip = 0;
    }
    if (options->device == BENCH_DEVICE_HOST) drop_gpu_only(options, notes);
    if (options->registers > 0) options->memory = BENCH_MEMORY_TUTTI;
    return check_streams(options);
}

tutti_status bench_options_parse(int argc, char **argv, FILE *notes, bench_options *options_out) {
    char letters[2 * ROWS + 2];
    struct option longs[ROWS + 1] = {0};
    bench_options options;
    describe(letters, longs);
    set_defaults(&options);
    opterr = 0;
    optind = 0; /* glibc: restart, also when called a second time */
    for (int letter; (letter = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        if (letter == '?') return fail_unknown(argv[optind - 1], optopt);
        if (letter == ':') return tutti_fail(TUTTI_ERR_ARGUMENT, "--%s needs a value", row_of(optopt)->name);
        const option_row *row = row_of(letter);
        note_ignored(row, optarg, notes);
        TUTTI_TRY(read_row(row, optarg, &options));
    }
    if (optind < argc) return tutti_fail(TUTTI_ERR_ARGUMENT, "'%s' is not an option (-h lists all)", argv[optind]);
    TUTTI_TRY(check(&options, notes));
    *options_out = options;
    return TUTTI_OK;
}

void bench_options_help(const char *program, FILE *out) {
    fprintf(out, "usage: %s [options]\n       tuttirun --nproc_per_node N %s [options]\n\n", program, program);
    for (size_t i = 0; i < ROWS; i++) {
        char names[64], letter[8] = "    ";
        if (rows[i].letter <= UINT8_MAX) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
        snprintf(names, sizeof names, "%s--%s%s%s", letter, rows[i].name, rows[i].value != NULL ? " " : "",
                 rows[i].value != NULL ? rows[i].value : "");
        const char *line = rows[i].help;
        for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1, names[0] = '\0')
            fprintf(out, "  %-32s %.*s\n", names, (int)(end - line), line);
        fprintf(out, "  %-32s %s\n", names, line);
    }
    fprintf(out,
            "\nenvironment: NCCL_TESTS_MIN_BW, NCCL_TESTS_SPLIT, NCCL_TESTS_SPLIT_MASK;\n  GPUs: NCCL_TESTS_DEVICE "
            "(the first), TUTTI_DEVICE (the same for all ranks);\n  alltoallv_perf: "
            "NCCL_TESTS_ALLTOALLV_SPREAD, "
            "_MATRIX_FILE, _MATRIX_SCALE, _PRINT_SUMMARY\n");
}

size_t bench_options_next_bytes(const bench_options *options, size_t bytes) {
    size_t factor = options->step_factor > 1 ? (size_t)options->step_factor : 1;
    if (factor > 1) return bytes == 0 ? 1 : bytes > SIZE_MAX / factor ? SIZE_MAX : bytes * factor;
    return options->step_bytes > 0 ? bytes + (size_t)options->step_bytes : SIZE_MAX;
}
