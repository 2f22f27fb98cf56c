/*
 * The command line of tuttirun: the options of OneFlow's launcher and torchrun in one table, and mpirun's -n. '-'
 * and '_' are equivalent, values follow after '=' or a space, and each option with a value can also be set by
 * PET_<NAME>. All arguments after the name of the program belong to the program.
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tools/tuttirun/launch.h"

enum { MOST_NODES = 1 << 16, MOST_LOCAL = 4096, NAME_BYTES = 64 };

typedef enum option_kind { FLAG, NUMBER, TEXT, UNUSED_FLAG, UNUSED_TEXT } option_kind;

typedef struct option_row {
    const char *name; /* spelled with '-' */
    char letter;
    option_kind kind;
    size_t offset;
    int least, most;
    const char *help; /* NULL: accepted, not shown */
} option_row;

#define AT(member) offsetof(tutti_launch_options, member)

static const option_row rows[] = {
    {"nnodes", 0, TEXT, AT(nnodes_text), 0, 0, "N   nodes of the job (1)"},
    {"node-rank", 0, NUMBER, AT(node_rank), 0, MOST_NODES, "N   number of this node, from 0 (0)"},
    {"nproc-per-node", 0, TEXT, AT(nproc_text), 0, 0, "N   ranks on this node: a number, cpu, gpu or auto (1)"},
    {"np", 'n', TEXT, AT(count_text), 0, 0, "N   ranks on one node, as with mpirun; any free port; also -np N"},
    {"master-addr", 0, TEXT, AT(master_addr), 0, 0, "HOST   where node 0 is (127.0.0.1)"},
    {"master-port", 0, NUMBER, AT(master_port), 0, 65535, "PORT   port of the store on node 0 (29500)"},
    {"nodes", 0, TEXT, AT(nodes), 0, 0, "LIST   all nodes, as 10.0.0.1,10.0.0.2 or @FILE; this one is found in it"},
    {"ctrl-port", 0, NUMBER, AT(master_port), 0, 65535, "PORT   the same as --master-port"},
    {"device-num", 0, TEXT, AT(nproc_text), 0, 0, "N   the same as --nproc-per-node"},
    {"gpu-device-num", 0, TEXT, AT(nproc_text), 0, 0, NULL}, /* OneFlow's name in programs */
    {"rank-table", 0, TEXT, AT(rank_table), 0, 0, "FILE   nodes and ranks as in a rank table of MindSpore or HCCL"},
    {"write-rank-table", 0, TEXT, AT(write_rank_table), 0, 0, "FILE   write a rank table of --nodes, start nothing"},
    {"standalone", 0, FLAG, AT(standalone), 0, 0, "   one node, any free port"},
    {"module", 'm', FLAG, AT(module), 0, 0, "   the program is a Python module"},
    {"no-python", 0, FLAG, AT(no_python), 0, 0, "   run the program directly, whatever its name"},
    {"max-restarts", 0, NUMBER, AT(max_restarts), 0, 1000000, "N   start all ranks again up to N times (0)"},
    {"tee", 't', TEXT, AT(tee), 0, 0, "MASK   also to files: 1 out, 2 err, 3 both, or by rank 0:1,1:3"},
    {"redirects", 'r', TEXT, AT(redirects), 0, 0, "MASK   only to files"},
    {"log-dir", 0, TEXT, AT(log_dir), 0, 0, "DIR   for those files: DIR/<run>_<random>/attempt_<k>/<local rank>/"},
    {"local-ranks-filter", 0, TEXT, AT(local_ranks_filter), 0, 0, "0,2   show only these ranks' output"},
    {"no-prefix", 0, FLAG, AT(no_prefix), 0, 0, "   lines of output as they are, without [local rank]"},
    {"redirect-stdout-and-stderr", 0, FLAG, AT(redirect_all), 0, 0, "   only to files below --logdir"},
    {"logdir", 0, TEXT, AT(logdir), 0, 0, "DIR   also to files: DIR/local_rank_<n>/stdout and stderr"},
    {"rank-dirs", 0, TEXT, AT(rank_dirs), 0, 0,
     "NAME   rank n runs in the folder NAME<n>: output only in log<n>, env<n>.log"},
    {"bind", 0, TEXT, AT(bind), 0, 0, "WHERE   a rank's cores: auto, none, core, l3, numa, socket (auto)"},
    {"numa-binding", 0, TEXT, AT(numa_binding), 0, 0, "KIND   near its GPU: node, socket, exclusive, core-complex"},
    {"rdzv-endpoint", 0, TEXT, AT(endpoint), 0, 0, "HOST:PORT   the same as --master-addr and --master-port"},
    {"rdzv-id", 0, TEXT, AT(run_id), 0, 0, "ID   name of the job, part of the store's keys (none)"},
    {"rdzv-backend", 0, TEXT, AT(backend), 0, 0, "NAME   static or c10d: both mean the store on node 0"},
    {"role", 0, TEXT, AT(role), 0, 0, "NAME   handed on to the ranks (default)"},
    {"help", 'h', FLAG, AT(help), 0, 0, "   this page"},
    {"version", 'V', FLAG, AT(version), 0, 0, "   the version"},
    {"use-env", 0, UNUSED_FLAG, 0, 0, 0, NULL},
    {"run-path", 0, UNUSED_FLAG, 0, 0, 0, NULL},
    {"rdzv-conf", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"monitor-interval", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"start-method", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"event-log-handler", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"logs-specs", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"local-addr", 0, UNUSED_TEXT, 0, 0, 0, NULL},
    {"signals-to-handle", 0, UNUSED_TEXT, 0, 0, 0, NULL},
};

void tutti_launch_options_help(void) {
    printf("usage: tuttirun [options] program [arguments of the program]\n\n"
           "Starts a program on several ranks and sets torchrun's variables for them. A .py file, and a file\n"
           "that is not executable, run with python3 (or PYTHON_EXEC), anything else directly. '-' and '_' are "
           "equivalent in option names.\n\n");
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        if (rows[i].help == NULL) continue;
        const char *gap = strstr(rows[i].help, "   ");
        int value = (int)(gap - rows[i].help);
        char left[80];
        snprintf(left, sizeof left, "%s%c%s--%s %.*s", rows[i].letter ? "-" : "", rows[i].letter ? rows[i].letter : ' ',
                 rows[i].letter ? ", " : "   ", rows[i].name, value, rows[i].help);
        printf("  %-36s %s\n", left, gap + 3);
    }
    printf("\nOnce several ranks print, their lines begin with [local rank]. OMP_NUM_THREADS is 1 unless set.\n"
           "With --bind auto each rank gets its share of the cores, near each other; more ranks than cores are not\n"
           "bound. TUTTI_LOG=info shows the cores of each rank.\n"
           "When a rank fails the others get 2 s to end by themselves; then they are stopped. The exit code is that\n"
           "of the first failure, 128 + signal for a death by signal.\n");
}

/* Spells a name as in `rows`; false if it is too long for any of them. */
static bool normalize(const char *text, size_t length, char name[NAME_BYTES]) {
    if (length >= NAME_BYTES) return false;
    for (size_t i = 0; i < length; i++) name[i] = text[i] == '_' ? '-' : text[i];
    name[length] = '\0';
    return true;
}

/* Edit distance: insertions, deletions, replacements. */
static int distance(const char *a, const char *b) {
    int row[NAME_BYTES + 1];
    int nb = (int)strlen(b);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int above = row[j];
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            int stepped = (above < row[j - 1] ? above : row[j - 1]) + 1;
            row[j] = replaced < stepped ? replaced : stepped;
            diagonal = above;
        }
    }
    return row[nb];
}

static tutti_status fail_unknown(const char *argument, const char *name) {
    const char *nearest = rows[0].name;
    int least = NAME_BYTES;
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        bool begun = *name != '\0' && strncmp(rows[i].name, name, strlen(name)) == 0;
        int steps = begun ? 0 : distance(name, rows[i].name);
        if (steps >= least) continue;
        least = steps;
        nearest = rows[i].name;
    }
    char shown[NAME_BYTES];
    snprintf(shown, sizeof shown, "%s", nearest);
    if (strchr(argument, '_') != NULL)
        for (char *c = shown; *c != '\0'; c++) *c = *c == '-' ? '_' : *c;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "unknown option %.*s; did you mean --%s? (tuttirun --help lists all)",
                      (int)strcspn(argument, "="), argument, shown);
}

static tutti_status read_int(const char *what, const char *text, int least, int most, int *number_out) {
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < least || number > most)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s %s: must be a whole number from %d to %d", what, text, least, most);
    *number_out = (int)number;
    return TUTTI_OK;
}

static tutti_status assign(tutti_launch_options *options, const option_row *row, const char *shown, const char *value) {
    void *target = (char *)options + row->offset;
    switch (row->kind) {
    case FLAG: memcpy(target, &(bool){true}, sizeof(bool)); break;
    case NUMBER: return read_int(shown, value, row->least, row->most, target);
    case TEXT: memcpy(target, &value, sizeof value); break;
    case UNUSED_FLAG:
    case UNUSED_TEXT: break;
    }
    return TUTTI_OK;
}

static bool takes_value(const option_row *row) {
    return row->kind == NUMBER || row->kind == TEXT || row->kind == UNUSED_TEXT;
}

/* Finds the row of "--name", "--name=value", "-x", "-xvalue", or mpirun's "-np", which is "--np". *value_out: the
 * attached value, NULL if there is none. */
static tutti_status find_row(const char *argument, const option_row **row_out, const char **value_out) {
    char name[NAME_BYTES] = "";
    bool is_np = strncmp(argument, "-np", 3) == 0 && (argument[3] == '\0' || argument[3] == '=');
    bool is_long = argument[1] == '-' || is_np;
    const char *begin = argument + (is_np ? 1 : 2);
    size_t length = is_long ? strcspn(begin, "=") : 0;
    bool fits = is_long && normalize(begin, length, name);
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        if (is_long ? !fits || strcmp(rows[i].name, name) != 0 : rows[i].letter != argument[1]) continue;
        const char *rest = begin + length;
        if (*rest == '=') rest++;
        else if (*rest == '\0') rest = NULL;
        if (rest != NULL && !takes_value(&rows[i])) break;
        *row_out = &rows[i];
        *value_out = rest;
        return TUTTI_OK;
    }
    if (!is_long) normalize(argument + 1, tutti_min_size(strlen(argument + 1), NAME_BYTES - 1), name);
    return fail_unknown(argument, name);
}

static tutti_status read_arguments(int argc, char **argv, tutti_launch_options *options) {
    for (int i = 1; i < argc; i++) {
        const option_row *row = NULL;
        const char *value = NULL;
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            options->program = &argv[i];
            return TUTTI_OK;
        }
        if (strcmp(argv[i], "--") == 0) {
            options->program = i + 1 < argc ? &argv[i + 1] : NULL;
            return TUTTI_OK;
        }
        const char *shown = argv[i];
        TUTTI_TRY(find_row(argv[i], &row, &value));
        if (takes_value(row) && value == NULL) {
            if (i + 1 >= argc) return tutti_fail(TUTTI_ERR_ARGUMENT, "option %s needs a value", shown);
            value = argv[++i];
        }
        char name[NAME_BYTES + 8];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(shown, "="), shown);
        TUTTI_TRY(assign(options, row, name, value));
    }
    return TUTTI_OK;
}

static tutti_status read_environment(tutti_launch_options *options) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        char name[NAME_BYTES + 8] = "PET_";
        for (size_t j = 0; rows[i].name[j] != '\0'; j++) {
            char c = rows[i].name[j];
            name[4 + j] = (char)(c == '-' ? '_' : c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
            name[5 + j] = '\0';
        }
        const char *value = getenv(name);
        if (value == NULL || *value == '\0') continue;
        if (!takes_value(&rows[i]) && strcmp(value, "0") == 0) continue;
        TUTTI_TRY(assign(options, &rows[i], name, value));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- checking */

static int count_gpus(void) {
    int count = 0;
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    if (folder == NULL) return 0;
    for (struct dirent *item; (item = readdir(folder)) != NULL;) count += item->d_name[0] != '.';
    closedir(folder);
    return count;
}

static int count_cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* mpirun's -n is the number of all ranks of the job, which on one node is --nproc-per-node. */
static tutti_status check_count(const tutti_launch_options *options) {
    if (options->nproc_text != NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "-n %s and --nproc-per-node %s are the same option; give one of them",
                          options->count_text, options->nproc_text);
    if (options->nnodes > 1)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "-n %s with %d nodes could mean the ranks of each node or of all; give --nproc-per-node, the "
                          "ranks of each",
                          options->count_text, options->nnodes);
    return TUTTI_OK;
}

static tutti_status check_nproc(tutti_launch_options *options) {
    const char *text = options->nproc_text;
    const char *shown = options->count_text != NULL ? "-n" : "--nproc-per-node";
    int gpus = count_gpus();
    if (strcmp(text, "gpu") == 0 && gpus == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s gpu: this machine shows no NVIDIA GPU; give a number", shown);
    if (strcmp(text, "gpu") == 0 || (strcmp(text, "auto") == 0 && gpus > 0)) options->nproc = gpus;
    else if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0) options->nproc = count_cpus();
    else return read_int(shown, text, 1, MOST_LOCAL, &options->nproc);
    return TUTTI_OK;
}

/* "2" or "2:2". A real range would mean that nodes join and leave, which a launcher alone cannot support. */
static tutti_status check_nnodes(tutti_launch_options *options) {
    char least[32];
    const char *colon = strchr(options->nnodes_text, ':');
    size_t length = colon != NULL ? (size_t)(colon - options->nnodes_text) : strlen(options->nnodes_text);
    snprintf(least, sizeof least, "%.*s", (int)tutti_min_size(length, sizeof least - 1), options->nnodes_text);
    if (colon != NULL && strcmp(colon + 1, least) != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--nnodes %s: a range is not supported, give one number",
                          options->nnodes_text);
    TUTTI_TRY(read_int("--nnodes", least, 1, MOST_NODES, &options->nnodes));
    if (options->node_rank < 0) options->node_rank = 0;
    if (options->node_rank >= options->nnodes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--node-rank %d must be less than --nnodes %d", options->node_rank,
                          options->nnodes);
    return TUTTI_OK;
}

static tutti_status check_endpoint(tutti_launch_options *options) {
    static char host[256];
    const char *colon = strrchr(options->endpoint, ':');
    int length = colon != NULL ? (int)(colon - options->endpoint) : (int)strlen(options->endpoint);
    if (length <= 0 || length >= (int)sizeof host)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--rdzv-endpoint %s: must be HOST or HOST:PORT", options->endpoint);
    snprintf(host, sizeof host, "%.*s", length, options->endpoint);
    options->master_addr = host;
    return colon != NULL ? read_int("--rdzv-endpoint: port", colon + 1, 0, 65535, &options->master_port) : TUTTI_OK;
}

/* --nodes gives the number of nodes, the host of the store and, unless --node-rank is given, the number of this
 * node. */
static tutti_status check_nodes(tutti_launch_options *options) {
    static char first[256], count[16], *list; /* as long as the options, which point to them */
    int nnodes = 0;
    TUTTI_TRY(tutti_launch_expand_nodes(options->nodes, &list));
    options->nodes = list;
    TUTTI_TRY(tutti_launch_read_nodes(options->nodes, &nnodes, first, sizeof first));
    if (options->nnodes_text != NULL && strtol(options->nnodes_text, NULL, 10) != nnodes)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--nodes names %d, but --nnodes is %s", nnodes, options->nnodes_text);
    if (options->node_rank < 0 && options->write_rank_table == NULL) /* else any machine may write it */
        TUTTI_TRY(tutti_launch_find_node(options->nodes, &options->node_rank));
    if (options->master_addr == NULL) options->master_addr = first;
    snprintf(count, sizeof count, "%d", nnodes);
    options->nnodes_text = count;
    return TUTTI_OK;
}

static tutti_status check_conflicts(const tutti_launch_options *options) {
    if (options->write_rank_table != NULL && options->rank_table != NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--write-rank-table and --rank-table exclude each other");
    if (options->program == NULL && options->write_rank_table == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "no program given; usage: tuttirun [options] program [arguments]");
    if (options->module && options->no_python)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--module and --no-python exclude each other");
    if (options->redirect_all && options->logdir == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--redirect-stdout-and-stderr needs --logdir DIR");
    if (options->rank_dirs != NULL && options->rank_dirs[0] == '\0')
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--rank-dirs needs a prefix of the folder names, such as device");
    if (options->standalone && options->nnodes > 1)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--standalone means one node, but --nnodes is %d", options->nnodes);
    if (options->nnodes > 1 && options->master_port == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "several nodes must agree on a port: give --master-port");
    if (strcmp(options->backend, "static") != 0 && strcmp(options->backend, "c10d") != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "--rdzv-backend %s is not supported; static and c10d are",
                          options->backend);
    bool files = options->redirect_all || options->logdir != NULL || options->log_dir != NULL;
    for (int i = 0, tee, redirects; i < options->nproc; i++) {
        TUTTI_TRY(tutti_launch_mask(options->tee, i, &tee));
        TUTTI_TRY(tutti_launch_mask(options->redirects, i, &redirects));
        files |= tee != 0 || redirects != 0;
    }
    if (options->rank_dirs == NULL || !files) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "--rank-dirs says where output goes; leave out --logdir, --log-dir, --tee, --redirects and "
                      "--redirect-stdout-and-stderr");
}

/* The nodes and the ranks of this one. default_nproc: PET_NPROC_PER_NODE, or NULL. */
static tutti_status check_placement(tutti_launch_options *options, const char *default_nproc) {
    if (options->nodes != NULL) TUTTI_TRY(check_nodes(options));
    if (options->nnodes_text == NULL) options->nnodes_text = "1";
    TUTTI_TRY(check_nnodes(options));
    if (options->count_text != NULL) TUTTI_TRY(check_count(options));
    if (options->nproc_text == NULL)
        options->nproc_text = options->count_text != NULL ? options->count_text : default_nproc;
    if (options->nproc_text == NULL) options->nproc_text = "1";
    TUTTI_TRY(check_nproc(options));
    options->size = options->nnodes * options->nproc;
    return TUTTI_OK;
}

tutti_status tutti_launch_options_parse(int argc, char **argv, tutti_launch_options *options_out) {
    tutti_launch_options options = {
        .node_rank = -1, .master_port = -1, .role = "default", .backend = "static", .tee = "0", .redirects = "0"};
    TUTTI_TRY(read_environment(&options));
    const char *nproc = options.count_text != NULL ? options.count_text : options.nproc_text;
    options.count_text = options.nproc_text = NULL; /* the command line takes precedence */
    TUTTI_TRY(read_arguments(argc, argv, &options));
    if (!options.help && !options.version) {
        if (options.endpoint != NULL && *options.endpoint != '\0') TUTTI_TRY(check_endpoint(&options));
        if (options.rank_table != NULL) TUTTI_TRY(tutti_launch_read_table(&options));
        else TUTTI_TRY(check_placement(&options, nproc));
        bool any_port = options.standalone || options.count_text != NULL ||
                        (options.rank_table != NULL && options.nnodes == 1); /* no port on which jobs could collide */
        if (options.master_port < 0) options.master_port = any_port ? 0 : 29500;
        if (options.master_addr == NULL || options.standalone) options.master_addr = "127.0.0.1";
        TUTTI_TRY(check_conflicts(&options));
        TUTTI_TRY(tutti_launch_bind_parse(&options));
    }
    *options_out = options;
    return TUTTI_OK;
}

tutti_status tutti_launch_mask(const char *text, int local_rank, int *mask_out) {
    *mask_out = 0;
    if (strchr(text, ':') == NULL) return read_int("mask (--tee, --redirects)", text, 0, 3, mask_out);
    for (const char *next = text; *next != '\0'; next += strcspn(next, ","), next += *next == ',') {
        int rank, mask, used = 0;
        if (sscanf(next, "%d:%d%n", &rank, &mask, &used) != 2 || mask < 0 || mask > 3 ||
            (next[used] != ',' && next[used] != '\0'))
            return tutti_fail(TUTTI_ERR_ARGUMENT, "mask %s (--tee, --redirects): must be 0 to 3, or like 0:1,1:3",
                              text);
        if (rank == local_rank) *mask_out = mask;
    }
    return TUTTI_OK;
}

bool tutti_launch_listed(const char *list, int local_rank) {
    if (list == NULL || *list == '\0') return true;
    for (const char *next = list; *next != '\0'; next += strcspn(next, ","), next += *next == ',') {
        if (atoi(next) == local_rank) return true;
    }
    return false;
}
