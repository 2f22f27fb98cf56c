/*
 * The options of tutti-train in one table (arguments.c): name, kind, default, bounds, help; and their translation
 * to <tutti/train.h> (settings.c).
 */
#ifndef TUTTI_TRAINER_PROGRAM_ARGUMENTS_H
#define TUTTI_TRAINER_PROGRAM_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/train.h>

#define TUTTI_ARGUMENTS_BLOBS 8

/* The values of an option that may be given several times. */
typedef struct tutti_arguments_list {
    const char *texts[TUTTI_ARGUMENTS_BLOBS];
    int count;
} tutti_arguments_list;

/* Texts point into argv or are constants. */
typedef struct tutti_arguments {
    const char *model, *data, *device, *precision, *optimizer, *lr_schedule, *lr_milestones, *view, *parallel_mode,
        *mesh, *strategy, *save_strategy; /* NULL: not given */
    int64_t memory_limit;                 /* bytes; 0: none */
    const char *dataset, *part_prefix;
    tutti_arguments_list blobs, freeze;
    const char *parameter_broadcast, *mirror_mean; /* yes or no */
    int64_t zero, check_parameters;
    const char *checkpoint_dir, *resume, *metrics, *monitor, *loss;
    int64_t batch_size, seed, eval_every, eval_samples, log_every, warmup_steps;
    int64_t resize, shuffle_buffer, classes, hidden;          /* 0: not given */
    int64_t data_part_num, test_part_num, part_suffix_length; /* 0: not given */
    int64_t repeat;
    int64_t steps, epochs;                   /* below 0: not given */
    double lr, momentum, dropout, lr_factor; /* NaN: not given */
    double weight_decay;
    bool no_augment, no_shuffle, truncate, shuffle_after_epoch, nesterov, no_decay_norm_bias;
    bool eager, overwrite, explain, help, version;
} tutti_arguments;

/* Accepts "--name value" and "--name=value", and '_' for '-' in names. An unknown option is an error that names the
 * nearest known one. */
tutti_status tutti_arguments_parse(int argc, char **argv, tutti_arguments *arguments_out);

/* The same options in the form that tutti_train takes. Texts are those of the arguments. */
typedef struct tutti_arguments_settings {
    tutti_train_model model;
    tutti_train_data data; /* points into this struct */
    tutti_train_options options;
    tutti_ofrecord_blob blobs[TUTTI_ARGUMENTS_BLOBS];
    char names[TUTTI_ARGUMENTS_BLOBS][256]; /* names of blobs */
    tutti_ofrecord_options ofrecord;
} tutti_arguments_settings;

tutti_status tutti_arguments_fill(const tutti_arguments *arguments, tutti_arguments_settings *settings);

/* The help text. */
void tutti_arguments_print(FILE *file);

#endif
