/*
 * Checks of models and options, and their defaults.
 */
#include "ddp/trainer/settings.h"

#include <math.h>
#include <string.h>

#include "ddp/trainer/layers/layers.h"
#include "ddp/trainer/layers/loss.h"
#include "ddp/trainer/models/models.h"
#include "ddp/trainer/update.h"

#define DEFAULT_BATCH      100
#define MOST_BATCH         65536
#define DEFAULT_LOSS_EVERY 20
#define MOST_CALLBACKS     1024
/* together with "moving_variance" and a state's name they fit into a tensor's name in a checkpoint */
#define NAME_LETTERS 40

/* ------------------------------------------------------------------------------------------- models */

static bool is_name(const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t count = name != NULL ? strnlen(name, NAME_LETTERS + 1) : 0;
    return count > 0 && count <= NAME_LETTERS && strspn(name, letters) == count;
}

static tutti_status fail_name(const char *what, const char *name) {
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: its name is %s; expected 1 to %d letters, digits and ._-", what,
                      name == NULL ? "NULL" : name, NAME_LETTERS);
}

static tutti_status fail_member(const tutti_layer *layer, const char *member, double value, const char *expected) {
    return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s (%s): %s is %g; expected %s", layer->name,
                      tutti_layers_row(layer->kind)->name, member, value, expected);
}

static tutti_status check_numbers(const tutti_layer *layer) {
    const bool pools_all = layer->kind == TUTTI_LAYER_AVERAGE_POOL && layer->kernel == 0;
    const bool has_window = layer->kind == TUTTI_LAYER_CONV || layer->kind == TUTTI_LAYER_MAX_POOL ||
                            (layer->kind == TUTTI_LAYER_AVERAGE_POOL && !pools_all);
    const bool has_units = layer->kind == TUTTI_LAYER_CONV || layer->kind == TUTTI_LAYER_DENSE;
    if (has_units && layer->units < 1) return fail_member(layer, "units", layer->units, "at least 1");
    if (has_window && layer->kernel < 1) return fail_member(layer, "kernel", layer->kernel, "at least 1");
    if (has_window && layer->stride < 1) return fail_member(layer, "stride", layer->stride, "at least 1");
    if ((unsigned)layer->padding > TUTTI_PADDING_SAME)
        return fail_member(layer, "padding", layer->padding, "a tutti_padding");
    if ((unsigned)layer->initializer > TUTTI_INITIALIZER_CONSTANT)
        return fail_member(layer, "initializer", layer->initializer, "a tutti_initializer");
    if (!(layer->rate >= 0 && layer->rate < 1)) return fail_member(layer, "rate", layer->rate, "0 or more, below 1");
    const double starts[] = {layer->stddev, layer->limit, layer->constant, layer->bias, layer->bias_limit};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (!isfinite(starts[i]))
            return fail_member(layer, "a number that weights or biases start from", starts[i], "a finite one");
    return TUTTI_OK;
}

#define KIND(kind) (1u << TUTTI_LAYER_##kind)

/* Refuses members that the layer's kind does not use and that would be ignored. */
static tutti_status check_members(const tutti_layer *layer) {
    const unsigned windows = KIND(CONV) | KIND(MAX_POOL) | KIND(AVERAGE_POOL), dense = KIND(CONV) | KIND(DENSE);
    const unsigned weights = dense | KIND(BATCH_NORM);
    const struct {
        const char *member;
        double value;
        unsigned kinds; /* that use the member */
    } rows[] = {{"units", layer->units, dense},
                {"kernel", layer->kernel, windows},
                {"stride", layer->stride, windows},
                {"padding", layer->padding, windows},
                {"relu", layer->relu, weights | KIND(ADD)},
                {"no_bias", layer->no_bias, dense},
                {"rate", layer->rate, KIND(DROPOUT)},
                {"epsilon", layer->epsilon, KIND(BATCH_NORM)},
                {"momentum", layer->momentum, KIND(BATCH_NORM)},
                {"initializer", layer->initializer, weights},
                {"stddev", layer->stddev, weights},
                {"limit", layer->limit, weights},
                {"constant", layer->constant, weights},
                {"bias", layer->bias, weights},
                {"bias_limit", layer->bias_limit, weights}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].value != 0 && (rows[i].kinds >> layer->kind & 1) == 0)
            return fail_member(layer, rows[i].member, rows[i].value, "0, since layers of this kind do not use it");
    return TUTTI_OK;
}

static tutti_status check_layer(const tutti_layer *layers, int index) {
    const tutti_layer *layer = &layers[index];
    if ((unsigned)layer->kind > TUTTI_LAYER_AVERAGE_POOL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %d of the list: its kind, %d, is not a tutti_layer_kind", index,
                          (int)layer->kind);
    if (!is_name(layer->name) || strcmp(layer->name, "input") == 0)
        return fail_name("a layer of the list", layer->name);
    for (int i = 0; i < index; i++)
        if (strcmp(layers[i].name, layer->name) == 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s occurs twice in the list; give each layer its own name",
                              layer->name);
    TUTTI_TRY(check_numbers(layer));
    return check_members(layer);
}

static tutti_status take_model(const tutti_train_model *given, tutti_train_model *model) {
    *model = TUTTI_TRAIN_MODEL(.name = NULL);
    if (given != NULL) TUTTI_TRY(tutti_struct_take("model", "TUTTI_TRAIN_MODEL(...)", given, model, sizeof *model));
    if (model->layer_bytes != sizeof(tutti_layer))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "model: layer_bytes is %zu, not %zu: fill it with TUTTI_TRAIN_MODEL(...)",
                          model->layer_bytes, sizeof(tutti_layer));
    if (!(model->dropout < 1) || model->classes < 0 || model->hidden < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "model: dropout is %g, classes %d, hidden %d; expected a rate below 1, and at least 0",
                          model->dropout, model->classes, model->hidden);
    if (model->layers == NULL) {
        if (model->name == NULL || tutti_models_find(model->name) != NULL) return TUTTI_OK;
        return tutti_fail(TUTTI_ERR_CONFIG, "--model %s: expected " TUTTI_MODELS_NAMES ", or a list of layers",
                          model->name);
    }
    if (model->nlayers < 1 || model->nlayers > TUTTI_TRAIN_LAYERS)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "model: a list of %d layers; expected 1 to %d", model->nlayers,
                          TUTTI_TRAIN_LAYERS);
    if (model->name == NULL) model->name = "model";
    if (!is_name(model->name)) return fail_name("the model", model->name);
    for (int i = 0; i < model->nlayers; i++) TUTTI_TRY(check_layer(model->layers, i));
    return TUTTI_OK;
}

void tutti_train_settings_fill_initializers(tutti_layer *layers, int nlayers) {
    for (int i = 0; i < nlayers; i++) {
        tutti_layer *layer = &layers[i];
        if (layer->initializer != TUTTI_INITIALIZER_TRUNCATED_NORMAL || layer->stddev != 0) continue;
        layer->initializer = layer->relu ? TUTTI_INITIALIZER_HE_NORMAL : TUTTI_INITIALIZER_XAVIER_UNIFORM;
        if (layer->kind != TUTTI_LAYER_BATCH_NORM) continue;
        layer->initializer = TUTTI_INITIALIZER_CONSTANT;
        layer->constant = 1;
    }
}

/* ------------------------------------------------------------------------------------------ options */

/* Takes one of "a|b|c"; NULL becomes `fallback`. */
static tutti_status take_choice(const char *option, const char *choices, const char *fallback, const char **text) {
    if (*text == NULL) *text = fallback;
    if (*text == NULL) return TUTTI_OK;
    const size_t count = strlen(*text);
    for (const char *next = choices; next != NULL; next = strchr(next, '|')) {
        if (*next == '|') next++;
        if (count > 0 && strcspn(next, "|") == count && memcmp(next, *text, count) == 0) return TUTTI_OK;
    }
    return tutti_fail(TUTTI_ERR_CONFIG, "--%s %s: expected one of %s", option, *text, choices);
}

static tutti_status check_real(const char *option, double value, double most) {
    if (value <= most) return TUTTI_OK; /* not NaN */
    return tutti_fail(TUTTI_ERR_CONFIG, "--%s %g: expected a number up to %g", option, value, most);
}

static tutti_status check_count(const char *option, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "--%s %lld: expected a number from %lld to %lld", option, (long long)value,
                      (long long)least, (long long)most);
}

static tutti_status take_options(const tutti_train_options *given, tutti_train_options *options) {
    const int64_t most = INT64_C(1000000000000);
    *options = TUTTI_TRAIN_OPTIONS(.steps = 0);
    if (given != NULL)
        TUTTI_TRY(tutti_struct_take("options", "TUTTI_TRAIN_OPTIONS(...)", given, options, sizeof *options));
    TUTTI_TRY(take_choice("optimizer", TUTTI_UPDATE_NAMES, NULL, &options->optimizer));
    TUTTI_TRY(take_choice("loss", TUTTI_LOSS_NAMES, "softmax_cross_entropy", &options->loss));
    if (options->distribute != NULL && !tutti_loss_is_expanded(options))
        return tutti_fail(TUTTI_ERR_CONFIG, "labels as distributions need --loss softmax_cross_entropy_expand, not %s",
                          options->loss);
    TUTTI_TRY(take_choice("lr-schedule", TUTTI_SCHEDULE_NAMES, "constant", &options->lr_schedule));
    TUTTI_TRY(take_choice("view", "mirrored|consistent", "mirrored", &options->view));
    TUTTI_TRY(take_choice("device", "auto|host|cuda", "auto", &options->device));
    TUTTI_TRY(take_choice("precision", "fp32|tf32|bf16", "fp32", &options->precision));
    TUTTI_TRY(check_count("steps", options->steps, -1, most));
    TUTTI_TRY(check_count("epochs", options->epochs, -1, 1000000));
    TUTTI_TRY(check_count("batch-size", options->batch_size, 0, MOST_BATCH));
    TUTTI_TRY(check_count("memory-limit", options->memory_limit, 0, INT64_C(1) << 60));
    TUTTI_TRY(check_count("warmup-steps", options->warmup_steps, 0, most));
    TUTTI_TRY(check_count("zero", options->zero, 0, 1));
    TUTTI_TRY(check_count("check-parameters", options->check_parameters, 0, most));
    for (int i = 0; i < options->nfreeze; i++)
        if (options->freeze == NULL || options->freeze[i] == NULL || options->freeze[i][0] == '\0')
            return tutti_fail(TUTTI_ERR_CONFIG, "--freeze: prefix %d of %d is empty", i, options->nfreeze);
    TUTTI_TRY(check_count("eval-every", options->eval_every, 0, most));
    TUTTI_TRY(check_count("eval-samples", options->eval_samples, 0, most));
    TUTTI_TRY(check_count("log-every", options->loss_every, 0, most));
    TUTTI_TRY(check_count("monitor", options->monitor_every, -1, most));
    if (options->ncallbacks < 0 || options->ncallbacks > MOST_CALLBACKS ||
        (options->ncallbacks > 0 && options->callbacks == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "options: %d callbacks; expected a list of 0 to %d", options->ncallbacks,
                          MOST_CALLBACKS);
    TUTTI_TRY(check_real("lr", options->lr, 1e6));
    TUTTI_TRY(check_real("momentum", options->momentum, 1));
    TUTTI_TRY(check_real("weight-decay", options->weight_decay, 1e6));
    TUTTI_TRY(check_real("lr-factor", options->lr_factor, 1));
    if (options->weight_decay < 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "--weight-decay %g: expected a number from 0 on", options->weight_decay);
    if (options->batch_size == 0) options->batch_size = DEFAULT_BATCH;
    if (options->loss_every == 0) options->loss_every = DEFAULT_LOSS_EVERY;
    return TUTTI_OK;
}

tutti_status tutti_train_settings_take(const tutti_train_model *model, const tutti_train_data *data,
                                       const tutti_train_options *options, tutti_train_model *model_out,
                                       tutti_train_data *data_out, tutti_train_options *options_out) {
    TUTTI_TRY(take_model(model, model_out));
    TUTTI_TRY(take_options(options, options_out));
    if (data == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "data must not be NULL: fill it with TUTTI_TRAIN_DATA(...)");
    return tutti_struct_take("data", "TUTTI_TRAIN_DATA(...)", data, data_out, sizeof *data_out);
}

/* ------------------------------------------------------------------------------------------------- use */

static bool is(const char *text, const char *name) {
    return text != NULL && strcmp(text, name) == 0;
}

tutti_status tutti_train_settings_check_use(const tutti_train_model *model, const tutti_train_data *data,
                                            const tutti_train_options *options, const tutti_settings_chosen *chosen) {
    const tutti_ofrecord_options none = {.classes = 0}, *files = data->ofrecord != NULL ? data->ofrecord : &none;
    const char *ready = model->layers == NULL ? chosen->model : NULL;
    const bool records = is(data->dataset, "ofrecord");
    const bool cifar = is(data->dataset, "cifar10") || is(data->dataset, "cifar100");
    const bool by_name = data->train_source == NULL && data->train == NULL;
    const bool together = !chosen->stand_alone;
    const bool writes = options->checkpoint_dir != NULL || !chosen->is_first;
    static const char shared[] = "modes in which ranks train together, not stand_alone";
    const struct {
        const char *option;
        bool given, applies;
        const char *what_for;
    } rows[] = {
        {"blob", data->nblobs != 0, records, "--dataset ofrecord"},
        {"data-part-num", files->data_part_num != 0, records, "--dataset ofrecord"},
        {"test-part-num", data->test_part_num != 0, records, "--dataset ofrecord"},
        {"part-prefix", files->part_name_prefix != NULL, records, "--dataset ofrecord"},
        {"part-suffix-length", files->part_name_suffix_length != 0, records, "--dataset ofrecord"},
        {"truncate", files->truncate != 0, records, "--dataset ofrecord"},
        {"shuffle-after-epoch", files->shuffle_after_epoch != 0, records, "--dataset ofrecord"},
        {"classes", files->classes != 0, records, "--dataset ofrecord"},
        {"classes", model->classes != 0, ready != NULL, "ready models; in a list of layers the last layer sets it"},
        {"no-augment", data->no_augment, cifar, "--dataset cifar10 and cifar100"},
        {"resize", data->resize != 0, by_name, "sets by name; sources and pipelines have the operation resize"},
        {"no-shuffle", data->no_shuffle, data->train == NULL, "sets by name and sources; a pipeline has its own order"},
        {"shuffle-buffer", data->shuffle_buffer != 0, data->train == NULL,
         "sets by name and sources; a pipeline has the operation shuffle"},
        {"shuffle-buffer", data->shuffle_buffer != 0, !data->no_shuffle, "training without --no-shuffle"},
        {"hidden", model->hidden != 0, is(ready, "mlp"), "--model mlp"},
        {"dropout", model->dropout > 0, is(ready, "lenet") || is(ready, "mlp"), "--model lenet and mlp"},
        {"momentum", options->momentum > 0, is(chosen->optimizer, "sgd") || is(chosen->optimizer, "momentum"),
         "--optimizer sgd and momentum"},
        {"lr-factor", options->lr_factor != 0, is(options->lr_schedule, "step"), "--lr-schedule step"},
        {"eager", options->eager, chosen->on_gpu, "training on a GPU"},
        {"overwrite", options->overwrite, writes, "--checkpoint-dir"},
        {"zero", options->zero != 0, together, shared},
        {"check-parameters", options->check_parameters != 0, together, shared},
        {"parameter-broadcast no", options->no_parameter_broadcast, together, shared},
        {"mirror-mean no", options->no_mirror_mean, together, shared},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given && !rows[i].applies)
            return tutti_fail(TUTTI_ERR_CONFIG, "--%s: it is for %s, and would be ignored here; leave it out",
                              rows[i].option, rows[i].what_for);
    return TUTTI_OK;
}
