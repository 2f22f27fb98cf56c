/*
 * Are settings, model and data the same on all ranks? Otherwise training would go wrong without a word.
 */
#include <string.h>

#include "ddp/trainer/train.h"

/* FNV-1a. */
static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
    const unsigned char *next = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ next[i]) * UINT64_C(0x100000001b3);
    return digest;
}

/* Options and data that must be equal on all ranks, or training would go wrong without a word. */
tutti_status tutti_trainer_agree(const tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const tutti_train_data *given = &train->input.given;
    const tutti_input *input = &train->input;
    const char *texts[] = {train->model_name,
                           train->optimizer_name,
                           options->lr_schedule,
                           options->loss,
                           options->precision,
                           options->view,
                           train->compute->kernels->name,
                           given->dataset != NULL ? given->dataset : ""};
    int64_t numbers[] = {
        options->batch_size,    options->loss_every,         options->eval_every,     train->step,
        input->train_count,     train->total_steps,          (int64_t)train->seed,    input->test_count,
        input->details.height,  input->details.width,        input->details.channels, input->details.classes,
        given->no_augment,      given->no_shuffle,           given->shuffle_buffer,   given->repeat,
        options->nesterov,      options->no_decay_norm_bias, options->warmup_steps,   options->catch_signals,
        options->monitor_every, options->distribute != NULL, options->eager,          train->input.own};
    double reals[] = {train->schedule.lr, train->schedule.factor, train->update.options.momentum,
                      options->weight_decay};
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) digest = mix(digest, texts[i], strlen(texts[i]) + 1);
    digest = mix(digest, numbers, sizeof numbers);
    digest = mix(digest, train->strategy.sizes, sizeof train->strategy.sizes);
    digest = mix(digest, train->strategy.layers, sizeof train->strategy.layers);
    digest = mix(digest, reals, sizeof reals);
    digest = mix(digest, train->schedule.milestones, sizeof train->schedule.milestones);

    int64_t value = (int64_t)(digest >> 2), both[2] = {value, -value};
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT64, TUTTI_MAX, NULL));
    if (both[0] != value || both[1] != -value)
        return tutti_fail(
            TUTTI_ERR_MISMATCH,
            "the ranks were started with different options or data, or only some found a GPU; give all the "
            "same options, --device among them, and the same --data on all hosts");
    return TUTTI_OK;
}
