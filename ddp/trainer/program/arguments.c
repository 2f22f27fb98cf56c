/*
 * Parses options by a table.
 */
#include "ddp/trainer/program/arguments.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum option_kind {
    OPTION_TEXT,
    OPTION_LIST,
    OPTION_CHOICE,
    OPTION_INT,
    OPTION_BYTES,
    OPTION_REAL,
    OPTION_FLAG
} option_kind;

typedef struct option_row {
    const char *name;
    option_kind kind;
    size_t offset;        /* in tutti_arguments */
    const char *fallback; /* as text; NULL: no default */
    double least, most;   /* INT, REAL */
    const char *value;    /* name of the value in the help; CHOICE: the choices, separated by '|' */
    const char *help;
} option_row;

#define AT(member) offsetof(tutti_arguments, member)
#define MOST_STEPS 1e12

/* clang-format off */
static const option_row rows[] = {
    {"model", OPTION_CHOICE, AT(model), NULL, 0, 0, "lenet|mlp|resnet20|resnet18|resnet50", "the model to train "
     "(default: lenet, for CIFAR resnet20; with --resume the checkpoint's)"},
    {"dataset", OPTION_CHOICE, AT(dataset), NULL, 0, 0, "mnist|digits|cifar10|cifar100|ofrecord", "form of the data "
     "(default: mnist, or drawn digits if no MNIST is found)"},
    {"data", OPTION_TEXT, AT(data), NULL, 0, 0, "DIR", "folder with its files: MNIST's four, those of CIFAR's binary "
     "version, or folders train and test of OFRecord (default: TUTTI_DATA, for mnist also ../shared/data/mnist, "
     "data/mnist)"},
    {"resize", OPTION_INT, AT(resize), NULL, 1, 4096, "N", "resize images to N x N"},
    {"no-augment", OPTION_FLAG, AT(no_augment), NULL, 0, 0, NULL, "CIFAR: train on images as they are, without crop "
     "and flip"},
    {"no-shuffle", OPTION_FLAG, AT(no_shuffle), NULL, 0, 0, NULL, "train in the order of the files"},
    {"shuffle-buffer", OPTION_INT, AT(shuffle_buffer), NULL, 1, 1e8, "N", "shuffle through a buffer of N samples; "
     "OFRecord files are read in order otherwise"},
    {"repeat", OPTION_INT, AT(repeat), "1", 1, 1e6, "N", "an epoch is N passes over the data"},
    {"data-part-num", OPTION_INT, AT(data_part_num), NULL, 1, 1e6, "N", "ofrecord: files of the training data "
     "(default: 1)"},
    {"test-part-num", OPTION_INT, AT(test_part_num), NULL, 1, 1e6, "N", "ofrecord: files of the test data (default: as "
     "many as --data-part-num)"},
    {"part-prefix", OPTION_TEXT, AT(part_prefix), NULL, 0, 0, "TEXT", "ofrecord: file names before their number "
     "(default: part-)"},
    {"part-suffix-length", OPTION_INT, AT(part_suffix_length), NULL, -1, 18, "N", "ofrecord: digits of the number, "
     "filled up with zeros; -1, the default: as needed"},
    {"blob", OPTION_LIST, AT(blobs), NULL, 0, 0, "NAME:SHAPE:TYPE", "ofrecord: a feature, such as "
     "img_raw:28,28,1:float32 and label:1,1:int32; given twice"},
    {"truncate", OPTION_FLAG, AT(truncate), NULL, 0, 0, NULL, "ofrecord: lists of another length than the blob's are "
     "cut, or filled up with zeros"},
    {"shuffle-after-epoch", OPTION_FLAG, AT(shuffle_after_epoch), NULL, 0, 0, NULL, "ofrecord: each pass takes the "
     "training files in another order"},
    {"classes", OPTION_INT, AT(classes), NULL, 2, 1e6, "N", "ofrecord: number of classes (default: 10)"},
    {"batch-size", OPTION_INT, AT(batch_size), "100", 1, 65536, "N", "images per step, of each rank, or with --view "
     "consistent of all"},
    {"view", OPTION_CHOICE, AT(view), "mirrored", 0, 0, "mirrored|consistent", "mirrored: --batch-size is each rank's; "
     "consistent: it is the job's, and losses do not depend on the number of ranks"},
    {"parallel-mode", OPTION_TEXT, AT(parallel_mode), NULL, 0, 0,
     "stand_alone|data_parallel|layerwise_parallel|hybrid_parallel|auto_parallel", "what is divided over ranks; "
     "auto_parallel: chosen by a search; case does not matter (default: data_parallel)"},
    {"mesh", OPTION_TEXT, AT(mesh), NULL, 0, 0, "NxM", "arrangement of the ranks in axes; the last one is used by "
     "layerwise_parallel and hybrid_parallel"},
    {"strategy", OPTION_TEXT, AT(strategy), NULL, 0, 0, "FILE", "hybrid_parallel: a line \"mesh 2x2\", unless --mesh "
     "is given, and lines \"dense1 samples,outputs\", a layer and what is divided along each axis (samples, inputs, "
     "outputs, none)"},
    {"save-strategy", OPTION_TEXT, AT(save_strategy), NULL, 0, 0, "FILE", "write how layers are divided, for "
     "--strategy"},
    {"parameter-broadcast", OPTION_CHOICE, AT(parameter_broadcast), "yes", 0, 0, "yes|no", "start with rank 0's "
     "parameters on all ranks; no: each with its own, and seeds may differ"},
    {"mirror-mean", OPTION_CHOICE, AT(mirror_mean), "yes", 0, 0, "yes|no", "gradients are averaged over ranks; no: "
     "summed"},
    {"zero", OPTION_INT, AT(zero), "0", 0, 1, "STAGE", "1: each rank keeps and updates a part of the optimizer's "
     "state"},
    {"check-parameters", OPTION_INT, AT(check_parameters), "0", 0, MOST_STEPS, "N", "compare the ranks' parameters "
     "every N steps"},
    {"freeze", OPTION_LIST, AT(freeze), NULL, 0, 0, "PREFIX", "do not train parameters whose names begin with PREFIX; "
     "may be given several times"},
    {"memory-limit", OPTION_BYTES, AT(memory_limit), NULL, 0, 0, "SIZE", "auto_parallel: limit for the parameters, "
     "gradients, optimizer state and activations of a rank, such as 2GiB, 500MB or bytes"},
    {"explain", OPTION_FLAG, AT(explain), NULL, 0, 0, NULL, "print how layers are divided, what is sent and the time "
     "of a step, and end"},
    {"device", OPTION_CHOICE, AT(device), "auto", 0, 0, "auto|host|cuda", "where to compute; auto: cuda if there is a "
     "GPU"},
    {"precision", OPTION_CHOICE, AT(precision), "fp32", 0, 0, "fp32|tf32|bf16", "precision of matrix products with "
     "cuda; parameters are always fp32"},
    {"eager", OPTION_FLAG, AT(eager), NULL, 0, 0, NULL, "with cuda: launch every kernel instead of replaying a "
     "recorded step"},
    {"steps", OPTION_INT, AT(steps), NULL, 0, MOST_STEPS, "N", "end after step N (default: by --epochs)"},
    {"epochs", OPTION_INT, AT(epochs), NULL, 0, 1e6, "N", "end after epoch N (default: 1, or by --steps); 0 only "
     "tests"},
    {"loss", OPTION_CHOICE, AT(loss), "softmax_cross_entropy", 0, 0,
     "softmax_cross_entropy|softmax_cross_entropy_expand", "the second in small steps, which does not move logits that "
     "are divided by classes"},
    {"lr", OPTION_REAL, AT(lr), NULL, 0, 1e6, "RATE", "learning rate (default: 0.1; resnet18 and resnet50: 0.01; adam "
     "and adamw: 0.001)"},
    {"optimizer", OPTION_CHOICE, AT(optimizer), NULL, 0, 0, "sgd|momentum|adam|adamw", "how parameters are updated "
     "(default: sgd; with --resume the checkpoint's)"},
    {"momentum", OPTION_REAL, AT(momentum), NULL, 0, 1, "M", "for sgd (default: 0) and momentum (default: 0.9)"},
    {"nesterov", OPTION_FLAG, AT(nesterov), NULL, 0, 0, NULL, "Nesterov's momentum, for sgd and momentum with a "
     "momentum above 0"},
    {"weight-decay", OPTION_REAL, AT(weight_decay), "0", 0, 1e6, "W", "weight decay, for every optimizer"},
    {"no-decay-norm-bias", OPTION_FLAG, AT(no_decay_norm_bias), NULL, 0, 0, NULL, "no weight decay for biases and "
     "batch norm"},
    {"lr-schedule", OPTION_CHOICE, AT(lr_schedule), "constant", 0, 0, "constant|linear|cosine|step", "how the learning "
     "rate falls"},
    {"lr-milestones", OPTION_TEXT, AT(lr_milestones), NULL, 0, 0, "LIST", "for the schedule step: epochs, such as "
     "80,120 (default: after a half and three quarters of all steps)"},
    {"lr-factor", OPTION_REAL, AT(lr_factor), NULL, 0, 1, "F", "for the schedule step: factor of the rate (default: "
     "0.1)"},
    {"warmup-steps", OPTION_INT, AT(warmup_steps), "0", 0, MOST_STEPS, "N", "steps in which the rate grows to --lr"},
    {"hidden", OPTION_INT, AT(hidden), NULL, 1, 1e6, "N", "mlp: units of its hidden layer (default: 512)"},
    {"dropout", OPTION_REAL, AT(dropout), NULL, 0, 0.99, "RATE", "dropout rate instead of the model's default (lenet: "
     "0.5)"},
    {"seed", OPTION_INT, AT(seed), "1", 0, 9e15, "N", "seed of parameters, order of images and dropout"},
    {"eval-samples", OPTION_INT, AT(eval_samples), "0", 0, MOST_STEPS, "N", "test on the first N samples of the test "
     "data (default: all)"},
    {"eval-every", OPTION_INT, AT(eval_every), "0", 0, MOST_STEPS, "N", "test after every N steps (default: at the "
     "end)"},
    {"checkpoint-dir", OPTION_TEXT, AT(checkpoint_dir), NULL, 0, 0, "DIR", "write checkpoints after each epoch, at the "
     "end, and on Ctrl-C; a folder without checkpoints, or that of --resume"},
    {"resume", OPTION_TEXT, AT(resume), NULL, 0, 0, "PATH", "continue from a checkpoint, or from the latest in a "
     "folder"},
    {"overwrite", OPTION_FLAG, AT(overwrite), NULL, 0, 0, NULL, "--checkpoint-dir may contain checkpoints; they are "
     "removed when the first new one is complete"},
    {"metrics", OPTION_TEXT, AT(metrics), NULL, 0, 0, "FILE", "JSON lines: losses, rates, speed, tests"},
    {"log-every", OPTION_INT, AT(log_every), "20", 1, MOST_STEPS, "N", "print the loss of every N-th step"},
    {"monitor", OPTION_TEXT, AT(monitor), NULL, 0, 0, "loss[:N]", "instead, print for each N-th step of an epoch "
     "(default: 1) \"epoch: 1 step: 156, loss is 1.9\"; 0: for none"},
    {"help", OPTION_FLAG, AT(help), NULL, 0, 0, NULL, "print this"},
    {"version", OPTION_FLAG, AT(version), NULL, 0, 0, NULL, "print the version"},
};
/* clang-format on */

#define NROWS      (sizeof rows / sizeof rows[0])
#define NAME_BYTES 64

/* --------------------------------------------------------------------------------------------- values */

static bool is_choice(const char *choices, const char *text) {
    size_t count = strlen(text);
    for (const char *next = choices; next != NULL; next = strchr(next, '|')) {
        if (*next == '|') next++;
        if (strcspn(next, "|") == count && memcmp(next, text, count) == 0) return count > 0;
    }
    return false;
}

static tutti_status read_number(const option_row *row, const char *text, double *number_out) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    bool whole = row->kind != OPTION_INT || number == floor(number);
    if (end == text || *end != '\0' || errno != 0 || !(number >= row->least && number <= row->most) || !whole)
        return tutti_fail(TUTTI_ERR_CONFIG, "--%s %s: expected a %s from %g to %g", row->name, text,
                          row->kind == OPTION_INT ? "whole number" : "number", row->least, row->most);
    *number_out = number;
    return TUTTI_OK;
}

/* "2GiB", "500 MB", "1000000". */
static tutti_status read_bytes(const option_row *row, const char *text, int64_t *bytes_out) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    const double number = strtod(text, &end);
    if (end != text && number > 0)
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            const double bytes = number * units[i].bytes;
            if (strcasecmp(end + strspn(end, " "), units[i].name) != 0 || !(bytes >= 1 && bytes < 0x1p60)) continue;
            *bytes_out = (int64_t)bytes;
            return TUTTI_OK;
        }
    return tutti_fail(TUTTI_ERR_CONFIG, "--%s %s: expected a size above 0, such as 2GiB, 500MB or 1000000 (bytes)",
                      row->name, text);
}

static tutti_status store(const option_row *row, const char *text, tutti_arguments *arguments) {
    char *member = (char *)arguments + row->offset;
    double number = 0;
    switch (row->kind) {
    case OPTION_CHOICE:
        if (!is_choice(row->value, text))
            return tutti_fail(TUTTI_ERR_CONFIG, "--%s %s: expected one of %s", row->name, text, row->value);
        *(const char **)(void *)member = text;
        return TUTTI_OK;
    case OPTION_TEXT:
        if (text[0] == '\0') return tutti_fail(TUTTI_ERR_CONFIG, "--%s: its value is empty", row->name);
        *(const char **)(void *)member = text;
        return TUTTI_OK;
    case OPTION_LIST: {
        tutti_arguments_list *list = (void *)member;
        if (list->count == TUTTI_ARGUMENTS_BLOBS)
            return tutti_fail(TUTTI_ERR_CONFIG, "--%s: given more than %d times", row->name, TUTTI_ARGUMENTS_BLOBS);
        list->texts[list->count++] = text;
        return TUTTI_OK;
    }
    case OPTION_INT:
        TUTTI_TRY(read_number(row, text, &number));
        *(int64_t *)(void *)member = (int64_t)number;
        return TUTTI_OK;
    case OPTION_BYTES: return read_bytes(row, text, (int64_t *)(void *)member);
    case OPTION_REAL: return read_number(row, text, (double *)(void *)member);
    case OPTION_FLAG: *(bool *)member = true; return TUTTI_OK;
    }
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- names */

/* Edits that turn `a` into `b` (Levenshtein, 1966). */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_BYTES + 1];
    size_t count_b = strnlen(b, NAME_BYTES);
    for (size_t j = 0; j <= count_b; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= count_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[count_b];
}

static tutti_status fail_unknown(const char *name) {
    const char *nearest = rows[0].name;
    for (size_t i = 1; i < NROWS; i++)
        if (edit_distance(name, rows[i].name) < edit_distance(name, nearest)) nearest = rows[i].name;
    return tutti_fail(TUTTI_ERR_CONFIG, "unknown option --%s; the nearest known one is --%s (--help lists all)", name,
                      nearest);
}

static const option_row *find_row(const char *name) {
    for (size_t i = 0; i < NROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* Reads the option's name from "--name" or "--name=value", with '_' read as '-'. */
static void read_name(const char *argument, char name_out[NAME_BYTES]) {
    size_t count = 0;
    for (const char *next = argument + 2; *next != '\0' && *next != '=' && count + 1 < NAME_BYTES; next++)
        name_out[count++] = *next == '_' ? '-' : *next;
    name_out[count] = '\0';
}

tutti_status tutti_arguments_parse(int argc, char **argv, tutti_arguments *arguments_out) {
    tutti_arguments arguments = {
        .steps = -1, .epochs = -1, .lr = NAN, .momentum = NAN, .dropout = NAN, .lr_factor = NAN};
    for (size_t i = 0; i < NROWS; i++)
        if (rows[i].fallback != NULL) TUTTI_TRY(store(&rows[i], rows[i].fallback, &arguments));
    for (int i = 1; i < argc; i++) {
        char name[NAME_BYTES];
        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == '\0')
            return tutti_fail(TUTTI_ERR_CONFIG, "unexpected argument %s; options begin with -- (--help lists them)",
                              argv[i]);
        read_name(argv[i], name);
        const option_row *row = find_row(name);
        if (row == NULL) return fail_unknown(name);
        const char *value = strchr(argv[i], '=');
        if (row->kind == OPTION_FLAG && value != NULL) return tutti_fail(TUTTI_ERR_CONFIG, "--%s takes no value", name);
        if (row->kind != OPTION_FLAG && value == NULL && i + 1 == argc)
            return tutti_fail(TUTTI_ERR_CONFIG, "--%s needs a value (%s)", name, row->value);
        if (value != NULL) value++;
        else if (row->kind != OPTION_FLAG) value = argv[++i];
        TUTTI_TRY(store(row, value, &arguments));
    }
    *arguments_out = arguments;
    return TUTTI_OK;
}

void tutti_arguments_print(FILE *file) {
    fputs("tutti-train: trains a small model on images, divided over all ranks that the launcher started\n\n"
          "  tutti-train [options]                              one rank\n"
          "  tutti-train --device_num 2 [options]               two ranks on this machine\n"
          "  tuttirun --nproc_per_node 2 tutti-train [options]  the same\n"
          "  tutti-train --nodes 192.168.1.12,192.168.1.11 --ctrl_port 9988 --device_num 2 [options]\n"
          "                                                     two ranks on each of these, started on both\n\n"
          "Options that start ranks, passed to tuttirun; a rank that a launcher has started checks them:\n\n"
          "  --device_num N                               ranks on each node; also --gpu_device_num N (default: 1)\n"
          "  --nodes LIST                                 all nodes, by name or address, including this one;\n"
          "                                               also [{\"addr\": \"192.168.1.12\"}, ...], or @FILE with "
          "a list\n"
          "  --ctrl_port PORT                             port of the rendezvous on the first node (default: 29500)\n"
          "  --node_rank N                                number of this node, if it cannot be found in the list\n\n"
          "Training options:\n\n",
          file);
    for (size_t i = 0; i < NROWS; i++) {
        char left[NAME_BYTES + 64];
        snprintf(left, sizeof left, "--%s %s", rows[i].name, rows[i].value != NULL ? rows[i].value : "");
        fprintf(file, "  %-44s %s", left, rows[i].help);
        if (rows[i].fallback != NULL && strcmp(rows[i].fallback, "0") != 0)
            fprintf(file, " (default: %s)", rows[i].fallback);
        fputc('\n', file);
    }
}
