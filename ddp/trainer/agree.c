/*
 * Checks that settings, model and data are the same on all ranks. Without this check training would silently go
 * wrong.
 */
#include <string.h>

#include "ddp/trainer/hash.h"
#include "ddp/trainer/train.h"

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
    const unsigned char *next = data;
    for (size_t i = 0; i < bytes; i++) digest = tutti_trainer_hash_add(digest, next[i]);
    return digest;
}

/* The seed to compare; 0: seeds may differ. */
static int64_t agreed_seed(const tutti_trainer *train) {
    return train->reduction.no_broadcast && !train->cut ? 0 : (int64_t)train->seed;
}

static uint64_t mix_text(uint64_t digest, const char *text) {
    return text != NULL ? mix(digest, text, strlen(text) + 1) : mix(digest, "\1", 2);
}

/* Hashes member by member, since the addresses of texts differ between processes. */
static uint64_t mix_layer(uint64_t digest, const tutti_layer *layer) {
    const int64_t numbers[] = {layer->kind,    layer->units, layer->kernel,  layer->stride,
                               layer->padding, layer->relu,  layer->no_bias, layer->initializer};
    const double reals[] = {layer->rate,  layer->epsilon,  layer->momentum, layer->stddev,
                            layer->limit, layer->constant, layer->bias,     layer->bias_limit};
    digest = mix_text(digest, layer->name);
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) digest = mix_text(digest, layer->inputs[i]);
    digest = mix(digest, numbers, sizeof numbers);
    return mix(digest, reals, sizeof reals);
}

static uint64_t mix_operations(uint64_t digest, const tutti_data_op *ops, int nops) {
    for (int i = 0; i < nops; i++) {
        digest = mix_text(digest, ops[i].name);
        digest = mix(digest, ops[i].values, sizeof ops[i].values);
    }
    return digest;
}

/* Compares the options and data that must be equal on all ranks. */
tutti_status tutti_trainer_agree(const tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const tutti_train_data *given = &train->input.given;
    const tutti_input *input = &train->input;
    const char *texts[] = {train->model_name,  train->optimizer_name, options->lr_schedule,          options->loss,
                           options->precision, options->view,         train->compute->kernels->name, given->dataset};
    int64_t numbers[] = {options->batch_size,
                         options->loss_every,
                         options->eval_every,
                         options->eval_samples,
                         train->step,
                         input->train_count,
                         train->total_steps,
                         agreed_seed(train),
                         input->test_count,
                         input->details.height,
                         input->details.width,
                         input->details.channels,
                         input->details.classes,
                         given->no_augment,
                         given->no_shuffle,
                         given->shuffle_buffer,
                         given->repeat,
                         given->ofrecord != NULL && given->ofrecord->truncate,
                         given->ofrecord != NULL && given->ofrecord->shuffle_after_epoch,
                         options->nesterov,
                         options->no_decay_norm_bias,
                         options->warmup_steps,
                         options->catch_signals,
                         options->monitor_every,
                         options->distribute != NULL,
                         options->eager,
                         train->input.own};
    const int64_t reduction[] = {train->reduction.sums, train->reduction.zero, train->reduction.no_broadcast,
                                 options->check_parameters};
    double reals[] = {train->schedule.lr, train->schedule.factor, train->update.options.momentum,
                      options->weight_decay};
    uint64_t digest = TUTTI_TRAINER_HASH_BASIS;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) digest = mix_text(digest, texts[i]);
    for (int i = 0; i < train->list->count; i++) digest = mix_layer(digest, &train->list->layers[i]);
    digest = mix_operations(digest, given->train_ops, given->ntrain_ops);
    digest = mix_operations(digest, given->test_ops, given->ntest_ops);
    digest = mix(digest, numbers, sizeof numbers);
    digest = mix(digest, reduction, sizeof reduction);
    digest = mix(digest, train->list->frozen, sizeof train->list->frozen);
    digest = mix(digest, train->strategy.sizes, sizeof train->strategy.sizes);
    digest = mix(digest, train->strategy.layers, sizeof train->strategy.layers);
    digest = mix(digest, reals, sizeof reals);
    digest = mix(digest, train->schedule.milestones, sizeof train->schedule.milestones);

    int64_t value = (int64_t)(digest >> 2), both[2] = {value, -value};
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT64, TUTTI_MAX, NULL));
    if (both[0] != value || both[1] != -value)
        return tutti_fail(
            TUTTI_ERR_MISMATCH,
            "the ranks were started with different options, layers or data, or only some found a GPU; give all the "
            "same options, including --device, and the same --data on all hosts");
    return TUTTI_OK;
}
