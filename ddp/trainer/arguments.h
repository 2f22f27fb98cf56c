/*
 * The options of tutti-train, in one table (arguments.c): name, kind, default, bounds, help.
 */
#ifndef TUTTI_TRAINER_ARGUMENTS_H
#define TUTTI_TRAINER_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/tutti.h>

#define TUTTI_ARGUMENTS_BLOBS 8

/* An option that may be given several times. */
typedef struct tutti_arguments_list {
    const char *texts[TUTTI_ARGUMENTS_BLOBS];
    int count;
} tutti_arguments_list;

/* Texts point into argv or are constants. */
typedef struct tutti_arguments {
    const char *model, *data, *device, *precision, *optimizer, *lr_schedule, *lr_milestones, *view, *parallel_mode,
        *mesh, *strategy, *save_strategy; /* NULL: not given */
    const char *dataset, *part_prefix;
    tutti_arguments_list blobs;
    const char *checkpoint_dir, *resume, *metrics;
    int64_t batch_size, seed, eval_every, log_every, warmup_steps;
    int64_t resize, shuffle_buffer, classes, test_part_num; /* 0: not given */
    int64_t repeat, data_part_num, part_suffix_length;
    int64_t steps, epochs;                      /* below 0: not given */
    double lr, momentum, weight_decay, dropout; /* NaN: not given */
    double lr_factor;
    bool no_augment, no_shuffle, nesterov, no_decay_norm_bias;
    bool eager, overwrite, explain, help, version;
    bool silent; /* no option: a rank that trains by itself beside rank 0 */
} tutti_arguments;

/* Accepts "--name value" and "--name=value", and '_' for '-' in names. An unknown option is an error that gives the
 * nearest known one. */
tutti_status tutti_arguments_parse(int argc, char **argv, tutti_arguments *arguments_out);

/* The help text. */
void tutti_arguments_print(FILE *file);

#endif
