/*
 * Translates options to the settings of tutti_train. Each option has a line below.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/program/arguments.h"

/* ----------------------------------------------------------------------------------------------- OFRecord */

static tutti_status fail_blob(const char *text) {
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "--blob %s: expected NAME:SHAPE:TYPE, such as img_raw:28,28,1:float32 or label:1,1:int32; types of images "
        "are uint8 and float32, of labels uint8, int8, int32 and int64",
        text);
}

/* Reads "img_raw:28,28,1:float32" in a copy, which the blob's name then points into. */
static tutti_status read_blob(const char *text, char *copy, size_t capacity, tutti_ofrecord_blob *blob) {
    static const tutti_type types[] = {TUTTI_UINT8, TUTTI_INT8, TUTTI_INT32, TUTTI_INT64, TUTTI_FLOAT32};
    if (snprintf(copy, capacity, "%s", text) >= (int)capacity) return fail_blob(text);
    char *type = strrchr(copy, ':'), *shape = NULL, *end;
    if (type != NULL) *type++ = '\0', shape = strrchr(copy, ':');
    if (shape == NULL || shape == copy) return fail_blob(text);
    *shape++ = '\0';
    *blob = (tutti_ofrecord_blob){.name = copy};
    for (; *shape != '\0'; shape = *end == ',' ? end + 1 : end) {
        long extent = strtol(shape, &end, 10);
        if (end == shape || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0') || extent < 1 ||
            blob->ndims == TUTTI_OFRECORD_DIMS)
            return fail_blob(text);
        blob->shape[blob->ndims++] = extent;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(tutti_type_name(types[i]), type) == 0) {
            blob->type = types[i];
            return TUTTI_OK;
        }
    return fail_blob(text);
}

static tutti_status fill_ofrecord(const tutti_arguments *arguments, tutti_arguments_settings *settings) {
    for (int i = 0; i < arguments->blobs.count; i++)
        TUTTI_TRY(
            read_blob(arguments->blobs.texts[i], settings->names[i], sizeof settings->names[i], &settings->blobs[i]));
    settings->ofrecord =
        TUTTI_OFRECORD_OPTIONS(.data_part_num = (int)arguments->data_part_num,
                               .part_name_prefix = arguments->part_prefix,
                               .part_name_suffix_length = (int)arguments->part_suffix_length,
                               .truncate = arguments->truncate, .shuffle_after_epoch = arguments->shuffle_after_epoch,
                               .classes = (int)arguments->classes);
    settings->data.blobs = settings->blobs;
    settings->data.nblobs = arguments->blobs.count;
    settings->data.ofrecord = &settings->ofrecord;
    settings->data.test_part_num = (int)arguments->test_part_num;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ all */

/* An option 0 means none; in <tutti/train.h> 0 means the default, and a number below 0 means none. */
static double none_or(double given) {
    return isnan(given) ? 0 : given == 0 ? -1 : given;
}

static int64_t none_or_count(int64_t given) {
    return given < 0 ? 0 : given == 0 ? -1 : given;
}

/* Reads "loss" or "loss:20"; "loss:0" becomes -1. */
static tutti_status read_monitor(const char *text, int64_t *every_out) {
    char *end = "";
    long long every = 1;
    if (text == NULL) return TUTTI_OK;
    const bool numbered = strncmp(text, "loss:", 5) == 0;
    if (numbered) every = strtoll(text + 5, &end, 10);
    if ((!numbered && strcmp(text, "loss") != 0) || (numbered && (end == text + 5 || *end != '\0')) || every < 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "--monitor %s: expected loss, or loss:N with a number of steps", text);
    *every_out = every == 0 ? -1 : every;
    return TUTTI_OK;
}

tutti_status tutti_arguments_fill(const tutti_arguments *arguments, tutti_arguments_settings *settings) {
    settings->model = TUTTI_TRAIN_MODEL(.name = arguments->model, .dropout = none_or(arguments->dropout),
                                        .hidden = (int)arguments->hidden);
    settings->data =
        TUTTI_TRAIN_DATA(.dataset = arguments->dataset, .folder = arguments->data, .no_augment = arguments->no_augment,
                         .resize = (int)arguments->resize, .no_shuffle = arguments->no_shuffle,
                         .shuffle_buffer = arguments->shuffle_buffer, .repeat = arguments->repeat);
    settings->options =
        TUTTI_TRAIN_OPTIONS(.steps = none_or_count(arguments->steps), .epochs = none_or_count(arguments->epochs),
                            .batch_size = arguments->batch_size, .seed = (uint64_t)arguments->seed,
                            .loss = arguments->loss, .optimizer = arguments->optimizer, .lr = none_or(arguments->lr),
                            .momentum = none_or(arguments->momentum), .weight_decay = arguments->weight_decay,
                            .nesterov = arguments->nesterov, .no_decay_norm_bias = arguments->no_decay_norm_bias,
                            .lr_schedule = arguments->lr_schedule, .lr_milestones = arguments->lr_milestones,
                            .lr_factor = none_or(arguments->lr_factor), .warmup_steps = arguments->warmup_steps,
                            .view = arguments->view, .parallel_mode = arguments->parallel_mode, .mesh = arguments->mesh,
                            .strategy = arguments->strategy, .memory_limit = arguments->memory_limit,
                            .save_strategy = arguments->save_strategy, .device = arguments->device,
                            .precision = arguments->precision, .eager = arguments->eager,
                            .checkpoint_dir = arguments->checkpoint_dir, .overwrite = arguments->overwrite,
                            .resume = arguments->resume, .catch_signals = true, .eval_every = arguments->eval_every,
                            .eval_samples = arguments->eval_samples, .zero = (int)arguments->zero,
                            .check_parameters = arguments->check_parameters,
                            .no_parameter_broadcast = strcmp(arguments->parameter_broadcast, "no") == 0,
                            .no_mirror_mean = strcmp(arguments->mirror_mean, "no") == 0,
                            .freeze = arguments->freeze.texts, .nfreeze = arguments->freeze.count,
                            .loss_every = arguments->log_every, .print = true, .metrics = arguments->metrics);
    TUTTI_TRY(read_monitor(arguments->monitor, &settings->options.monitor_every));
    if (arguments->explain) { /* ends before training, and does not touch the files of other runs */
        settings->options.checkpoint_dir = settings->options.metrics = NULL;
        settings->options.overwrite = false;
    }
    return fill_ofrecord(arguments, settings);
}
