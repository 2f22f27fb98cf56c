/*
 * Training as a library: what is refused, and the texts of the errors.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/trainer/train_library.h"

TestSuite(train_refusals, .init = make_folder, .fini = remove_folder);

/* --------------------------------------------------------------------------------------------- errors */

static tutti_status expect_refusal(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                                   const tutti_train_options *options, const char *said) {
    tutti_trainer *trainer = NULL;
    RANKS_CHECK(tutti_train_open(comm, model, data, options, &trainer) != TUTTI_OK, "taken, without \"%s\"", said);
    RANKS_CHECK(strstr(tutti_last_error(), said) != NULL, "\"%s\" lacks \"%s\"", tutti_last_error(), said);
    RANKS_CHECK(trainer == NULL && tutti_comm_error(comm) == TUTTI_OK, "a refusal has broken the communicator");
    return TUTTI_OK;
}

static tutti_status refuse_models(ranks_context *context) {
    const tutti_train_data data = TUTTI_TRAIN_DATA(.folder = folder);
    const struct {
        tutti_layer list[2];
        int count;
        const char *said;
    } wrong[] = {
        {{{.name = "a", .kind = (tutti_layer_kind)9, .units = 10}}, 1, "its kind, 9"},
        {{{.name = NULL, .kind = TUTTI_LAYER_DENSE, .units = 10}}, 1, "its name is NULL"},
        {{{.name = "a b", .kind = TUTTI_LAYER_DENSE, .units = 10}}, 1, "its name is a b"},
        {{{.name = "input", .kind = TUTTI_LAYER_DENSE, .units = 10}}, 1, "its name is input"},
        {{layers[0], layers[0]}, 2, "layer dense1 occurs twice"},
        {{{.name = "a", .kind = TUTTI_LAYER_DENSE}}, 1, "units is 0; expected at least 1"},
        {{{.name = "a", .kind = TUTTI_LAYER_CONV, .units = 10, .kernel = 3}}, 1, "stride is 0"},
        {{{.name = "a", .kind = TUTTI_LAYER_DENSE, .units = 10, .stddev = INFINITY}}, 1, "expected a finite one"},
        {{{.name = "a", .kind = TUTTI_LAYER_DROPOUT, .rate = 1}}, 1, "rate is 1"},
        {{{.name = "a", .kind = TUTTI_LAYER_DENSE, .units = 9}}, 1, "gives 9 logits"},
        {{{.name = "a", .kind = TUTTI_LAYER_DENSE, .units = 10, .kernel = 3}},
         1,
         "layer a (dense): kernel is 3; expected 0"},
        {{{.name = "a", .kind = TUTTI_LAYER_DROPOUT, .rate = 0.5, .bias = 0.1}}, 1, "bias is 0.1; expected 0"},
        {{{.name = "a", .kind = TUTTI_LAYER_DENSE, .units = 10, .inputs = {"b"}}},
         1,
         "its input b is not an earlier layer"},
        {{layers[0], {.name = "sum", .kind = TUTTI_LAYER_ADD, .inputs = {"dense1"}}},
         2,
         "layer sum (add): the second input is missing"},
        {{layers[0]}, 0, "a list of 0 layers"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        TUTTI_TRY(expect_refusal(context->comm, &TUTTI_TRAIN_MODEL(.layers = wrong[i].list, .nlayers = wrong[i].count),
                                 &data, &plain, wrong[i].said));
    TUTTI_TRY(expect_refusal(context->comm, &TUTTI_TRAIN_MODEL(.name = "lenet5"), &data, &plain, "--model lenet5"));
    TUTTI_TRY(expect_refusal(context->comm, &TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2, .hidden = 64), &data,
                             &plain, "--hidden: it is for --model mlp"));
    return expect_refusal(context->comm, &(tutti_train_model){.name = "mlp"}, &data, &plain, "TUTTI_TRAIN_MODEL");
}

static tutti_status refuse_options(ranks_context *context) {
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "mlp");
    const tutti_train_data data = TUTTI_TRAIN_DATA(.folder = folder);
    const struct {
        tutti_train_options options;
        const char *said;
    } wrong[] = {
        {{.steps = 1}, "TUTTI_TRAIN_OPTIONS"},
        {TUTTI_TRAIN_OPTIONS(.optimizer = "sg"), "--optimizer sg: expected one of sgd|"},
        {TUTTI_TRAIN_OPTIONS(.view = ""), "--view : expected"},
        {TUTTI_TRAIN_OPTIONS(.view = "mirrored|consistent"), "--view mirrored|consistent: expected one of mirrored|"},
        {TUTTI_TRAIN_OPTIONS(.precision = "fp32|tf32"), "--precision fp32|tf32: expected one of fp32|tf32|bf16"},
        {TUTTI_TRAIN_OPTIONS(.lr = NAN), "--lr nan"},
        {TUTTI_TRAIN_OPTIONS(.batch_size = -1), "--batch-size -1"},
        {TUTTI_TRAIN_OPTIONS(.batch_size = SAMPLES + 1), "lower --batch-size"},
        {TUTTI_TRAIN_OPTIONS(.steps = -2), "--steps -2"},
        {TUTTI_TRAIN_OPTIONS(.ncallbacks = 1), "1 callbacks"},
        {TUTTI_TRAIN_OPTIONS(.resume = "/no/such"), "/no/such"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        TUTTI_TRY(expect_refusal(context->comm, &model, &data, &wrong[i].options, wrong[i].said));
    TUTTI_TRY(expect_refusal(context->comm, &model, &TUTTI_TRAIN_DATA(.dataset = "mnis"), &plain, "--dataset mnis"));
    TUTTI_TRY(expect_refusal(context->comm, &model, &TUTTI_TRAIN_DATA(.folder = folder, .ntest_ops = 1), &plain,
                             "with sources only"));
    return expect_refusal(context->comm, &model, NULL, &plain, "data must not be NULL");
}

Test(train_refusals, mismatched_arguments_are_refused_with_a_text, .timeout = 60) {
    expect_ranks(1, refuse_models, NULL);
    expect_ranks(1, refuse_options, NULL);
}

/* A folder that only rank 1 lacks, then different options, then a run: the communicator still works. */
static tutti_status differ(ranks_context *context) {
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "mlp");
    tutti_train_options options = plain;
    tutti_train_result result;
    TUTTI_TRY(expect_refusal(context->comm, &model,
                             &TUTTI_TRAIN_DATA(.folder = context->rank == 1 ? "/no/such" : folder), &plain,
                             "rank 1: --data=/no/such is not a folder"));
    if (context->rank == 1) options.lr = 0.02;
    TUTTI_TRY(expect_refusal(context->comm, &model, &TUTTI_TRAIN_DATA(.folder = folder), &options,
                             "different options, layers or data"));
    tutti_layer list[2] = {layers[0], layers[1]};
    if (context->rank == 1) list[0].relu = false;
    TUTTI_TRY(expect_refusal(context->comm, &TUTTI_TRAIN_MODEL(.layers = list, .nlayers = 2),
                             &TUTTI_TRAIN_DATA(.folder = folder), &plain, "different options, layers or data"));
    return tutti_train(context->comm, &model, &TUTTI_TRAIN_DATA(.folder = folder), &plain, &result);
}

Test(train_refusals, a_rank_that_differs_is_named_and_breaks_nothing, .timeout = 60) {
    expect_ranks(2, differ, NULL);
}

static tutti_status refuse_without_use(ranks_context *context) {
    tutti_data_source *source;
    tutti_data *batches;
    const tutti_data_op ops[] = {{"rescale", {1.0 / 255, 0}}, {"batch", {BATCH, 1}}, {"repeat", {-1}}};
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "mlp");
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &source));
    TUTTI_TRY(tutti_data_create(source, ops, 3, &TUTTI_DATA_OPTIONS(.comm = context->comm), &batches));
    TUTTI_TRY(expect_refusal(context->comm, &model,
                             &TUTTI_TRAIN_DATA(.train_source = source, .train_ops = ops, .ntrain_ops = 1, .resize = 32),
                             &plain, "--resize: it is for sets by name"));
    TUTTI_TRY(expect_refusal(context->comm, &model, &TUTTI_TRAIN_DATA(.train = batches, .no_shuffle = true), &plain,
                             "--no-shuffle: it is for sets by name and sources"));
    TUTTI_TRY(expect_refusal(context->comm, &model, &TUTTI_TRAIN_DATA(.train = batches, .shuffle_buffer = 9), &plain,
                             "--shuffle-buffer: it is for sets by name and sources"));
    tutti_data_destroy(batches);
    tutti_data_source_destroy(source);
    return TUTTI_OK;
}

Test(train_refusals, members_that_would_be_ignored_are_refused, .timeout = 60) {
    expect_ranks(2, refuse_without_use, NULL);
}

static tutti_status read_wrong_label(void *context, int64_t index, void *image, int32_t *label) {
    (void)context;
    memset(image, 0, 28 * 28);
    *label = index == 3 ? 10 : 0;
    return TUTTI_OK;
}

static tutti_status train_on_wrong_labels(ranks_context *context) {
    tutti_data_source *source;
    tutti_train_result result;
    const tutti_data_user user = TUTTI_DATA_USER(.height = 28, .width = 28, .channels = 1, .type = TUTTI_UINT8,
                                                 .count = SAMPLES, .read = read_wrong_label);
    TUTTI_TRY(tutti_data_open_user(&user, &source));
    const tutti_status status =
        tutti_train(context->comm, &TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2),
                    &TUTTI_TRAIN_DATA(.train_source = source, .no_shuffle = true), &plain, &result);
    RANKS_CHECK(status == TUTTI_ERR_DATA && strstr(tutti_last_error(), "sample 3 of a batch has the label 10") != NULL,
                "%s", tutti_last_error());
    tutti_data_source_destroy(source);
    return TUTTI_OK;
}

/* Samples from a number on, which is the context, are not numbers. */
static tutti_status read_no_numbers(void *context, int64_t index, void *image, int32_t *label) {
    for (int i = 0; i < 28 * 28; i++) ((float *)image)[i] = index < *(const int64_t *)context ? 0.5f : NAN;
    *label = 0;
    return TUTTI_OK;
}

static tutti_status expect_no_loss(tutti_comm *comm, int64_t train_from, int64_t test_from, const char *said) {
    tutti_data_source *train, *test;
    tutti_train_result result;
    tutti_data_user user = TUTTI_DATA_USER(.height = 28, .width = 28, .channels = 1, .type = TUTTI_FLOAT32,
                                           .count = SAMPLES, .read = read_no_numbers, .context = &train_from);
    TUTTI_TRY(tutti_data_open_user(&user, &train));
    user.context = &test_from;
    TUTTI_TRY(tutti_data_open_user(&user, &test));
    const tutti_status status =
        tutti_train(comm, &TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2),
                    &TUTTI_TRAIN_DATA(.train_source = train, .test_source = test, .no_shuffle = true), &plain, &result);
    RANKS_CHECK(status == TUTTI_ERR_DATA && strstr(tutti_last_error(), said) != NULL, "\"%s\" lacks \"%s\"",
                tutti_last_error(), said);
    tutti_data_source_destroy(train), tutti_data_source_destroy(test);
    return TUTTI_OK;
}

static tutti_status train_on_no_numbers(ranks_context *context) {
    const bool first = context->argument == NULL;
    return expect_no_loss(context->comm, first ? 0 : SAMPLES, first ? SAMPLES : 8,
                          first ? "images have numbers that are not finite"
                                : "the test loss after step 9 is not a number");
}

Test(train_refusals, a_first_loss_that_is_nan_is_not_blamed_on_the_rate, .timeout = 60) {
    expect_ranks(1, train_on_no_numbers, NULL);
}

Test(train_refusals, a_test_loss_that_is_nan_is_an_error, .timeout = 60) {
    int later = 1;
    expect_ranks(1, train_on_no_numbers, &later);
}

Test(train_refusals, a_label_without_a_logit_is_an_error, .timeout = 60) {
    expect_ranks(1, train_on_wrong_labels, NULL);
}

/* --------------------------------------------------------------------------------- pipelines of the caller's */

static tutti_status refuse_pipelines(ranks_context *context) {
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.name = "mlp");
    const tutti_data_op rescale = {"rescale", {1.0 / 255, 0}}, whole = {"batch", {BATCH, 1}}, rest = {"batch", {7}},
                        all = {"batch", {6}}, endless = {"repeat", {-1}};
    const struct {
        tutti_data_op ops[3];
        const char *view, *mode, *said; /* said NULL: training succeeds */
        int nops, shards;
    } given[] = {
        {{rescale, whole}, NULL, NULL, "ends after 1 passes, its operation repeat; ", 2, 0},
        {{rescale, whole, {"repeat", {4}}}, NULL, NULL, "ends after 4 passes, ", 3, 0},
        {{rescale, rest, endless}, NULL, NULL, "last batch of a pass has 2 samples, the others 7; ", 3, 0},
        {{rescale, whole, endless}, "consistent", NULL, "view consistent divides each batch over the ranks", 3, 0},
        {{rescale, whole, endless},
         NULL,
         "layerwise_parallel",
         "parallel_mode layerwise_parallel divides layers",
         3,
         0},
        {{rescale, whole, endless}, NULL, NULL, "the training pipeline gives shard 0 of 1 to rank ", 3, 1},
        {{rescale, all, endless}, NULL, NULL, NULL, 3, 0},
    };
    tutti_data_source *source;
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &source));
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        tutti_train_options options = plain;
        tutti_train_result result;
        tutti_data *batches;
        options.view = given[i].view;
        options.parallel_mode = given[i].mode;
        TUTTI_TRY(tutti_data_create(source, given[i].ops, given[i].nops,
                                    &TUTTI_DATA_OPTIONS(.comm = context->comm, .num_shards = given[i].shards),
                                    &batches));
        const tutti_train_data data = TUTTI_TRAIN_DATA(.train = batches);
        if (given[i].said != NULL) TUTTI_TRY(expect_refusal(context->comm, &model, &data, &options, given[i].said));
        else TUTTI_TRY(tutti_train(context->comm, &model, &data, &options, &result));
        tutti_data_destroy(batches);
    }
    tutti_data_source_destroy(source);
    return TUTTI_OK;
}

Test(train_refusals, a_pipeline_unsuitable_for_training_is_refused_before_it, .timeout = 60) {
    expect_ranks(2, refuse_pipelines, NULL);
}

/* ------------------------------------------------------------------------------- functions that give no reason */

static tutti_status fail_without_reason(void *context, const tutti_train_moment *now) {
    (void)context, (void)now;
    return TUTTI_ERR_DATA;
}

static tutti_status distribute_nothing(void *context, const int32_t *labels, const int64_t *indices, int count,
                                       int classes, float *distributions_out) {
    (void)labels, (void)indices, (void)count, (void)classes, (void)distributions_out;
    return context == NULL ? TUTTI_ERR_REFUSED : tutti_fail(TUTTI_ERR_REFUSED, "%s", (const char *)context);
}

static tutti_status expect_failure(ranks_context *context, const tutti_train_options *options, const char *said) {
    tutti_train_result result;
    tutti_fail(TUTTI_ERR_SYSTEM, "an older failure of this thread");
    const tutti_status status = tutti_train(context->comm, &TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2),
                                            &TUTTI_TRAIN_DATA(.folder = folder), options, &result);
    RANKS_CHECK(status != TUTTI_OK && strcmp(tutti_last_error(), said) == 0, "\"%s\", expected \"%s\"",
                tutti_last_error(), said);
    return TUTTI_OK;
}

static tutti_status give_no_reason(ranks_context *context) {
    static char reason[] = "no such classes";
    const struct {
        tutti_train_callback callback;
        tutti_train_distribute distribute;
        void *context;
        const char *said;
    } all[] = {
        {{.name = "silent", .step_end = fail_without_reason},
         NULL,
         NULL,
         "callback silent returned status %d (%s) and gave no reason; tutti_fail sets one"},
        {{.begin = fail_without_reason},
         NULL,
         NULL,
         "callback 0 of the list returned status %d (%s) and gave no reason; tutti_fail sets one"},
        {{.name = "none"},
         distribute_nothing,
         NULL,
         "distribute returned status %d (%s) and gave no reason; tutti_fail sets one"},
        {{.name = "none"}, distribute_nothing, reason, "distribute: no such classes"},
    };
    const int which = *(const int *)context->argument;
    tutti_train_options options = plain;
    char said[256];
    const tutti_status status = all[which].distribute != NULL ? TUTTI_ERR_REFUSED : TUTTI_ERR_DATA;
    options.callbacks = &all[which].callback;
    options.ncallbacks = 1;
    options.distribute = all[which].distribute;
    options.distribute_context = all[which].context;
    if (options.distribute != NULL) options.loss = "softmax_cross_entropy_expand";
    snprintf(said, sizeof said, all[which].said, (int)status, tutti_status_name(status));
    return expect_failure(context, &options, said);
}

Test(train_refusals, a_callers_function_without_a_reason_is_named_with_its_status, .timeout = 60) {
    for (int which = 0; which < 4; which++) expect_ranks(1, give_no_reason, &which);
}
