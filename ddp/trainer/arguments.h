/*
 * The options of tutti-train, in one table (arguments.c): name, kind, default, bounds, help.
 */
#ifndef TUTTI_TRAINER_ARGUMENTS_H
#define TUTTI_TRAINER_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/tutti.h>

/* Texts point into argv or are constants. */
typedef struct tutti_arguments {
    const char *model, *data, *device, *precision, *optimizer, *lr_schedule, *lr_milestones; /* NULL: not given */
    const char *checkpoint_dir, *resume, *metrics;
    int64_t batch_size, seed, eval_every, log_every, warmup_steps;
    int64_t steps, epochs;                      /* below 0: not given */
    double lr, momentum, weight_decay, dropout; /* NaN: not given */
    double lr_factor;
    bool eager, overwrite, help, version, nesterov, no_decay_norm_bias;
} tutti_arguments;

/* Accepts "--name value" and "--name=value", and '_' for '-' in names. An unknown option is an error that gives the
 * nearest known one. */
tutti_status tutti_arguments_parse(int argc, char **argv, tutti_arguments *arguments_out);

/* The help text. */
void tutti_arguments_print(FILE *file);

#endif
