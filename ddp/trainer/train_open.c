/*
 * Makes a run that is ready to start from the options, and ends it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tensor.h>

#include "ddp/trainer/auto/batches.h"
#include "ddp/trainer/layers/freeze.h"
#include "ddp/trainer/models/models.h"
#include "ddp/trainer/settings.h"
#include "ddp/trainer/stop.h"
#include "ddp/trainer/train.h"
#include "kernels/device.h"

#define DEFAULT_FACTOR 0.1

static tutti_status open_gpu(tutti_compute_options *options, tutti_compute **compute_out) {
    const tutti_kernels *kernels;
    TUTTI_TRY(tutti_device_kernels(&kernels));
    TUTTI_TRY(tutti_device_choose(&options->device));
    return kernels->open(options, compute_out);
}

static tutti_status fail_without_gpu(void) {
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "--device cuda: %s; leave out --device cuda to train on the processor",
                      tutti_last_error());
}

/* With --device auto uses a GPU if there is one. If it exists but cannot be used, rank 0 logs the reason. */
static tutti_status open_compute(tutti_trainer *train) {
    static const char *const precisions[] = {
        [TUTTI_PRECISION_FP32] = "fp32", [TUTTI_PRECISION_TF32] = "tf32", [TUTTI_PRECISION_BF16] = "bf16"};
    const char *device = train->options.device;
    tutti_compute_options options = {.precision = TUTTI_PRECISION_FP32};
    const tutti_device *gpus;
    while (strcmp(precisions[options.precision], train->options.precision) != 0) options.precision++;
    bool automatic = strcmp(device, "auto") == 0;
    if (strcmp(device, "cuda") == 0 || (automatic && tutti_device_open(&gpus) == TUTTI_OK)) {
        tutti_status status = open_gpu(&options, &train->compute);
        if (status == TUTTI_ERR_UNSUPPORTED && !automatic) return fail_without_gpu();
        if (status != TUTTI_ERR_UNSUPPORTED) return status;
        if (train->rank == 0 && train->options.print)
            fprintf(stderr, "tutti-train: training on the processor, not on a GPU: %s\n", tutti_last_error());
    }
    return tutti_kernels_host.open(&options, &train->compute);
}

static tutti_status fill_list(tutti_trainer *train) {
    const tutti_train_model *given = &train->given;
    tutti_models_options options = {
        .classes = given->classes > 0 ? given->classes : train->input.classes,
        .dropout = given->dropout == 0  ? -1
                   : given->dropout < 0 ? 0
                                        : given->dropout,
        .hidden = given->hidden,
    };
    train->list = calloc(1, sizeof *train->list);
    if (train->list == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model");
    if (given->layers != NULL) {
        memcpy(train->list->layers, given->layers, (size_t)given->nlayers * sizeof *given->layers);
        train->list->count = given->nlayers;
        tutti_train_settings_fill_initializers(train->list->layers, train->list->count);
        return tutti_freeze(train->list, train->options.freeze, train->options.nfreeze);
    }
    if (options.classes < 1)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%s: the data do not say how many classes there are; set the model's classes",
                          train->model_name);
    tutti_models_find(train->model_name)->fill(&options, train->list);
    return tutti_freeze(train->list, train->options.freeze, train->options.nfreeze);
}

/* Chooses what is divided over ranks: the batch, unless options name another mode. */
static tutti_status choose_mode(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    train->mode = options->strategy != NULL ? TUTTI_MODE_HYBRID_PARALLEL : TUTTI_MODE_DATA_PARALLEL;
    if (options->parallel_mode != NULL) TUTTI_TRY(tutti_strategy_find_mode(options->parallel_mode, &train->mode));
    if (options->strategy != NULL && train->mode != TUTTI_MODE_HYBRID_PARALLEL)
        return tutti_fail(TUTTI_ERR_CONFIG, "--strategy %s: it is for --parallel-mode hybrid_parallel, not %s",
                          options->strategy, options->parallel_mode);
    if (options->memory_limit > 0 && train->mode != TUTTI_MODE_AUTO_PARALLEL)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "--memory-limit: only --parallel-mode auto_parallel uses it; leave it out, or set that mode");
    return TUTTI_OK;
}

static tutti_update_options update_options(const tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const double momentum = options->momentum;
    return (tutti_update_options){
        .momentum = momentum == 0  ? -1
                    : momentum < 0 ? 0
                                   : momentum,
        .weight_decay = options->weight_decay,
        .nesterov = options->nesterov,
        .only_arrays_decay = options->no_decay_norm_bias,
    };
}

tutti_status tutti_trainer_open_auto(tutti_trainer *train, bool searches) {
    const tutti_data_details *about = &train->input.details;
    double sample_us;
    TUTTI_TRY(tutti_measure_batches(&train->input, train->comm, &sample_us));
    const tutti_auto_setup setup = {
        .comm = train->comm,
        .compute = train->compute,
        .precision = train->options.precision,
        .list = train->list,
        .in = {about->height, about->width, about->channels},
        .batch = (int)train->global_batch,
        .optimizer = train->optimizer_name,
        .update = update_options(train),
        .zero = train->options.zero == 1,
        .expanded = tutti_loss_is_expanded(&train->options),
        .sample_us = sample_us,
        .memory_limit = train->options.memory_limit,
        .naxes = searches && train->options.mesh != NULL ? train->strategy.naxes : 0,
        .sizes = train->strategy.sizes,
        .given = searches ? NULL : &train->strategy,
        .searches = searches,
    };
    train->automatic = calloc(1, sizeof *train->automatic);
    if (train->automatic == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory to predict what a step takes");
    return tutti_auto_open(train->automatic, &setup);
}

static tutti_status choose_strategy(tutti_trainer *train) {
    tutti_strategy_fill(train->mode, train->list, &train->strategy);
    if (train->options.strategy == NULL) return TUTTI_OK;
    return tutti_strategy_read(train->options.strategy, train->list, &train->strategy);
}

/* Chooses how gradients are reduced and how initial parameters are shared. */
static tutti_status choose_reduction(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    if (options->no_mirror_mean && train->sums)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "--mirror-mean no: it is for --view mirrored where only the batch is divided; here losses are "
            "those of the whole batch, whatever the number of ranks");
    train->reduction = (tutti_gradients_options){
        .sums = train->sums || options->no_mirror_mean,
        .no_broadcast = options->no_parameter_broadcast,
        .zero = options->zero == 1,
    };
    return TUTTI_OK;
}

static tutti_status fail_pipeline(const tutti_trainer *train) {
    const char *mode = train->options.parallel_mode != NULL ? train->options.parallel_mode : "hybrid_parallel";
    if (!train->cut)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "view consistent divides each batch over the ranks, and a pipeline of the caller's gives each "
            "rank batches of its own; set view mirrored, or give sources");
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "parallel_mode %s divides layers, so ranks need samples of each other's batches, and a pipeline "
                      "of the caller's gives each rank its own; set parallel_mode data_parallel, or give sources",
                      mode);
}

/* Computes the samples of a step and, if layers are not cut, this rank's samples. A cut model itself determines
 * which samples it reads. */
static tutti_status divide_batch(tutti_trainer *train) {
    const tutti_data_details *details = &train->input.details;
    const int64_t nranks = train->nranks;
    const bool consistent = strcmp(train->options.view, "consistent") == 0;
    train->cut = !tutti_strategy_is_data_parallel(&train->strategy);
    if (train->input.given.train != NULL) { /* the caller's pipeline defines the batches */
        if (consistent || train->cut) return fail_pipeline(train);
        if (details->num_shards != nranks || details->shard_id != train->rank)
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "the training pipeline gives shard %d of %d to rank %d of %d; expected the shard of each "
                              "rank: set comm in tutti_data_options, or give sources",
                              details->shard_id, details->num_shards, train->rank, train->nranks);
        train->options.batch_size = details->batch_size;
    }
    const int64_t batch_size = train->options.batch_size;
    train->sums = consistent || train->cut;
    train->global_batch = consistent ? batch_size : batch_size * nranks;
    if (!train->cut && train->global_batch < nranks)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "--batch-size %lld: with --view consistent it is the batch of all ranks, and there are %d; "
                          "give each of them a sample at least",
                          (long long)batch_size, train->nranks);
    train->first = 0;
    train->rows = train->global_batch;
    if (train->cut) return TUTTI_OK;
    train->first = tutti_split_begin(train->global_batch, train->rank, train->nranks, TUTTI_SPLIT_BALANCED);
    train->rows =
        tutti_split_begin(train->global_batch, train->rank + 1, train->nranks, TUTTI_SPLIT_BALANCED) - train->first;
    return TUTTI_OK;
}

/* Starts the pipelines for this division; for a cut model once the model is made and determines which samples this
 * rank needs. */
static tutti_status start_input(tutti_trainer *train) {
    tutti_input_division division = {
        .rank = train->rank,
        .nranks = train->nranks,
        .batch = (int)(train->sums ? train->global_batch : train->rows),
        .together = train->sums,
        .first = train->sums ? (int)train->first : 0,
        .rows = (int)train->rows,
        .cut = train->cut,
        .bounded = train->options.eval_samples > 0,
        .whole = (int)train->global_batch,
        .row = (int)train->first,
    };
    if (train->model != NULL && train->cut) {
        const tutti_part *losses = tutti_model_output_part(train->model);
        division.all_labels = losses->batch != train->rows || (int64_t)losses->first_sample != train->first;
    }
    return tutti_input_start(&train->input, &division, train->seed);
}

static tutti_status create_model(tutti_trainer *train) {
    const tutti_data_details *about = &train->input.details;
    const tutti_shape in = {about->height, about->width, about->channels};
    const tutti_strategy *strategy = &train->strategy;
    if (!train->cut) return tutti_model_create(train->list, in, (int)train->rows, train->compute, &train->model);
    TUTTI_TRY(tutti_placement_create(train->comm, train->compute->kernels->memory, NULL, strategy->sizes,
                                     strategy->naxes, &train->placement));
    train->parallel = (tutti_parallel){train->comm, train->placement, strategy, (int)train->global_batch,
                                       tutti_loss_is_expanded(&train->options)};
    TUTTI_TRY(tutti_model_create_part(train->list, in, &train->parallel, train->compute, &train->model));
    train->first = (int64_t)train->model->nodes[0].part->first_sample;
    train->rows = train->model->nodes[0].part->batch;
    return TUTTI_OK;
}

static tutti_status check_classes(const tutti_trainer *train) {
    const int gives = tutti_model_classes(train->model), has = train->input.classes;
    if (gives >= 2 && gives >= has) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "%s gives %d logits; expected one for each of the classes of the data, %d",
                      train->model_name, gives, has > 2 ? has : 2);
}

static tutti_status create_update(tutti_trainer *train) {
    const tutti_update_options how = update_options(train);
    tutti_ddp_part *parts = calloc((size_t)train->model->nparameters, sizeof *parts);
    if (parts == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    tutti_status status = tutti_gradients_divide(train->model, train->comm, &train->reduction, parts);
    if (status == TUTTI_OK)
        status = tutti_update_init(&train->update, train->optimizer_name, &how, train->model, parts);
    free(parts);
    TUTTI_TRY(status);
    if (how.nesterov && !(train->update.row->has_momentum && train->update.options.momentum > 0))
        return tutti_fail(TUTTI_ERR_CONFIG, "--nesterov needs --optimizer momentum, or sgd with --momentum");
    return TUTTI_OK;
}

/* The rate if none is given. */
static double default_lr(const tutti_trainer *train) {
    const tutti_models_row *ready = train->given.layers == NULL ? tutti_models_find(train->model_name) : NULL;
    const bool own = ready != NULL && ready->lr > 0 && train->update.row->has_momentum;
    return own ? ready->lr : train->update.row->lr;
}

/* Called when the number of steps is known. */
static tutti_status make_schedule(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const bool falls_in_steps = strcmp(options->lr_schedule, "step") == 0;
    train->schedule = (tutti_schedule){
        .name = options->lr_schedule,
        .lr = options->lr == 0  ? default_lr(train)
              : options->lr < 0 ? 0
                                : options->lr,
        .factor = options->lr_factor == 0  ? DEFAULT_FACTOR
                  : options->lr_factor < 0 ? 0
                                           : options->lr_factor,
        .total = train->total_steps,
        .warmup = options->warmup_steps,
    };
    if (options->lr_milestones == NULL) return TUTTI_OK;
    if (!falls_in_steps)
        return tutti_fail(TUTTI_ERR_CONFIG, "--lr-milestones %s: expected with --lr-schedule step",
                          options->lr_milestones);
    return tutti_schedule_read_milestones(options->lr_milestones, train->input.batches, &train->schedule);
}

/* Warns of settings that change the losses from those of an uninterrupted run. */
static void warn_of_others(const tutti_trainer *train, const tutti_checkpoint_position *position) {
    const int64_t batch = position->ranks * position->batch_size;
    const int parts = tutti_parallel_norm_parts(train->model, train->nranks);
    if (batch != train->global_batch)
        fprintf(stderr,
                "tutti-train: warning: the checkpoint was written with batches of %" PRId64
                " samples of all ranks together, now %" PRId64
                ": losses will differ from those of an uninterrupted run\n",
                batch, train->global_batch);
    else if (position->norm_parts > 0 && position->norm_parts != parts)
        fprintf(stderr,
                "tutti-train: warning: the checkpoint was written by ranks whose batch norm had statistics of %" PRId64
                " parts of each batch, now %d: losses will differ from those of an uninterrupted run\n",
                position->norm_parts, parts);
}

/* Continues where the checkpoint was written; another division into batches may not reach exactly the same sample. */
static tutti_status resume(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    tutti_checkpoint_content content = {train->model_name, train->model, &train->update, train->comm,
                                        train->reduction.zero};
    tutti_checkpoint_position position;
    TUTTI_TRY(tutti_checkpoint_load(train->resumed.path, &content, &position));
    train->seed = position.seed;
    train->step = position.step;
    train->epoch = position.epoch;
    train->batch = position.samples / train->global_batch;
    if (train->rank == 0 && options->print) warn_of_others(train, &position);
    if (train->rank == 0 && options->print && options->seed != position.seed)
        fprintf(stderr, "tutti-train: the checkpoint's seed is used, %" PRIu64 "\n", position.seed);
    return TUTTI_OK;
}

/* Chooses a name: the checkpoint's when the run resumes, else the option's, else the default. */
static tutti_status choose_name(const tutti_trainer *train, const char *option, const char *given, const char *found,
                                const char *fallback, const char **name_out) {
    *name_out = given != NULL ? given : fallback;
    if (train->options.resume == NULL) return TUTTI_OK;
    *name_out = found;
    if (given == NULL || strcmp(given, found) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "--%s %s: the checkpoint %s was written with --%s %s; leave the option out, or "
                      "resume from another checkpoint",
                      option, given, train->resumed.path, option, found);
}

/* LeNet is for images of one channel: on CIFAR's images it diverges at the rate that suits the others. */
static const char *default_model(const tutti_trainer *train) {
    const char *dataset = train->input.given.dataset;
    return dataset != NULL && strncmp(dataset, "cifar", 5) == 0 ? "resnet20" : "lenet";
}

static tutti_status choose_names(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    tutti_checkpoint_found *found = &train->resumed;
    if (options->resume != NULL) {
        TUTTI_TRY(tutti_checkpoint_find(options->resume, found));
        const bool known = train->given.layers != NULL || tutti_models_find(found->model) != NULL;
        if (!known || tutti_update_find(found->optimizer) == NULL)
            return tutti_fail(TUTTI_ERR_DATA,
                              "%s: model %s with optimizer %s is unknown here; was it written by a newer "
                              "tutti-train?",
                              found->path, found->model, found->optimizer);
    }
    TUTTI_TRY(choose_name(train, "model", train->given.name, found->model, default_model(train), &train->model_name));
    return choose_name(train, "optimizer", options->optimizer, found->optimizer, "sgd", &train->optimizer_name);
}

/* The first of --steps and --epochs ends the run; with neither, one epoch does. */
static void plan_steps(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const int64_t batches = train->input.batches;
    const int64_t epochs = options->epochs == 0 && options->steps == 0 ? 1 : options->epochs;
    const int64_t by_epochs = epochs < 0 ? 0 : epochs > 0 ? epochs * batches : INT64_MAX;
    const int64_t by_steps = options->steps < 0 ? 0 : options->steps > 0 ? options->steps : INT64_MAX;
    train->total_steps = by_steps < by_epochs ? by_steps : by_epochs;
    train->first_step = train->looked_step = train->step;
    if (train->batch >= batches) { /* the run resumed with larger batches at the end of an epoch */
        train->epoch++;
        train->batch = 0;
    }
}

/* True on the first of the ranks that compute the same losses: only that rank counts them. */
static bool counts_losses(const tutti_trainer *train) {
    const tutti_part *part = tutti_model_output_part(train->model);
    for (int a = 0; a < train->strategy.naxes; a++)
        if (part->y[a].kind != TUTTI_SBP_SPLIT && tutti_placement_coordinate(train->placement, a) != 0) return false;
    return true;
}

static tutti_status open_step(tutti_trainer *train) {
    tutti_step_setup setup = {
        .compute = train->compute,
        .comm = train->comm,
        .model = train->model,
        .update = &train->update,
        .seed = train->seed,
        .batch = (int)train->rows,
        .first_sample = (uint64_t)train->first,
        .divisor = train->sums ? train->global_batch : train->rows,
        .loss_batch = (int)train->rows,
        .first_loss = (uint64_t)train->first,
        .counts = true,
        .eager = train->options.eager,
        .loss = &train->loss_of_batches,
    };
    if (train->cut) {
        const tutti_part *part = tutti_model_output_part(train->model);
        setup.loss_batch = part->batch;
        setup.first_loss = part->first_sample;
        setup.counts = counts_losses(train);
    }
    return tutti_step_open(&train->work, &setup);
}

static tutti_status open_outputs(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    const bool writes = train->rank == 0 && !train->silent;
    if (writes && options->save_strategy != NULL)
        TUTTI_TRY(tutti_strategy_write(options->save_strategy, train->list, &train->strategy));
    if (writes && options->checkpoint_dir != NULL)
        TUTTI_TRY(
            tutti_checkpoint_prepare(options->checkpoint_dir, options->overwrite, options->resume, &train->replaces));
    return tutti_callbacks_open(&train->callbacks, options, writes);
}

/* stand_alone with several ranks: each trains on its own communicator, and rank 0 writes and prints. */
static tutti_status choose_comm(tutti_trainer *train, tutti_comm *comm) {
    train->whole = train->comm = comm;
    if (train->mode == TUTTI_MODE_STAND_ALONE && tutti_comm_size(comm) > 1) {
        train->silent = tutti_comm_rank(comm) != 0;
        TUTTI_TRY(tutti_comm_split(comm, tutti_comm_rank(comm), 0, NULL, &train->own));
        train->comm = train->own;
    }
    if (train->silent) train->options.metrics = train->options.checkpoint_dir = NULL;
    train->rank = tutti_comm_rank(train->comm);
    train->nranks = tutti_comm_size(train->comm);
    return TUTTI_OK;
}

tutti_status tutti_trainer_begin(tutti_trainer *train, const tutti_train_model *model, const tutti_train_data *data,
                                 const tutti_train_options *options) {
    *train = (tutti_trainer){.loss = NAN};
    TUTTI_TRY(tutti_train_settings_take(model, data, options, &train->given, &train->input.given, &train->options));
    train->seed = train->options.seed;
    return choose_mode(train);
}

static tutti_status check_use(const tutti_trainer *train) {
    const tutti_settings_chosen chosen = {
        .model = train->model_name,
        .optimizer = train->optimizer_name,
        .stand_alone = train->mode == TUTTI_MODE_STAND_ALONE,
        .on_gpu = train->compute->kernels->memory != TUTTI_MEMORY_HOST,
        .is_first = tutti_comm_rank(train->whole) == 0,
    };
    return tutti_train_settings_check_use(&train->given, &train->input.given, &train->options, &chosen);
}

tutti_status tutti_trainer_prepare(tutti_trainer *train, tutti_comm *comm) {
    const tutti_train_data data = train->input.given;
    TUTTI_TRY(choose_comm(train, comm));
    TUTTI_TRY(tutti_strategy_read_mesh(train->options.mesh, train->options.strategy, train->nranks, train->mode,
                                       &train->strategy));
    TUTTI_TRY(choose_names(train));
    TUTTI_TRY(tutti_input_open(&train->input, &data));
    TUTTI_TRY(fill_list(train));
    TUTTI_TRY(choose_strategy(train));
    TUTTI_TRY(divide_batch(train));
    TUTTI_TRY(choose_reduction(train));
    TUTTI_TRY(start_input(train)); /* before memory is allocated for a batch that is too large */
    TUTTI_TRY(open_compute(train));
    return check_use(train);
}

/* Checks that all ranks search or none does, since a search waits for all ranks. */
static tutti_status agree_on_search(const tutti_trainer *train, bool searches) {
    int32_t both[2] = {searches, !searches};
    if (train->nranks == 1) return TUTTI_OK;
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT32, TUTTI_MAX, NULL));
    if (both[0] + both[1] == 1) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_MISMATCH,
                      "only some ranks were started with --parallel-mode auto_parallel; give all the same "
                      "options");
}

/* Replaces the strategy of data parallelism, which was used to find the data's shape. */
tutti_status tutti_trainer_search(tutti_trainer *train) {
    const bool searches = train->mode == TUTTI_MODE_AUTO_PARALLEL;
    TUTTI_TRY(agree_on_search(train, searches));
    if (!searches) return TUTTI_OK;
    TUTTI_TRY(tutti_trainer_open_auto(train, true));
    return tutti_auto_choose(train->automatic, &train->strategy);
}

tutti_status tutti_trainer_make(tutti_trainer *train) {
    if (train->automatic != NULL) {
        TUTTI_TRY(divide_batch(train));
        TUTTI_TRY(choose_reduction(train));
        TUTTI_TRY(start_input(train));
    }
    TUTTI_TRY(create_model(train));
    TUTTI_TRY(check_classes(train));
    TUTTI_TRY(create_update(train));
    if (train->options.resume != NULL) TUTTI_TRY(resume(train));
    else TUTTI_TRY(tutti_model_initialize(train->model, train->seed));
    if (train->cut || train->seed != train->options.seed) TUTTI_TRY(start_input(train));
    plan_steps(train);
    TUTTI_TRY(make_schedule(train));
    TUTTI_TRY(open_step(train));
    return open_outputs(train);
}

void tutti_trainer_fini(tutti_trainer *train) {
    if (train->stoppable) tutti_stop_forget();
    tutti_step_close(&train->work); /* first, since a recorded step uses the memory of buckets and of the loss */
    tutti_loss_close(&train->loss_of_batches);
    tutti_gradients_destroy(&train->gradients);
    tutti_callbacks_close(&train->callbacks);
    tutti_update_fini(&train->update);
    tutti_model_destroy(train->model);
    tutti_placement_destroy(train->placement);
    if (train->automatic != NULL) tutti_auto_close(train->automatic);
    free(train->automatic);
    free(train->list);
    if (train->compute != NULL) train->compute->kernels->close(train->compute);
    tutti_input_close(&train->input);
    tutti_comm_destroy(train->own);
    *train = (tutti_trainer){.comm = NULL};
}
