/*
 * Training as a library: uses only <tutti/train.h> of the trainer. Losses are equal bit for bit however the data are
 * given, and whichever program runs the loop.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/trainer/train_library.h"

TestSuite(train_library, .init = make_folder, .fini = remove_folder);

/* --------------------------------------------------------------------------------------------- losses */

/* A callback that keeps losses. */
typedef struct record {
    double losses[STEPS];
    int count;
} record;

static tutti_status keep_loss(void *context, const tutti_train_moment *now) {
    record *kept = context;
    RANKS_CHECK(now->has_loss && kept->count < STEPS, "step %lld has no loss, or is beyond the last one",
                (long long)now->step);
    kept->losses[kept->count++] = now->loss;
    return TUTTI_OK;
}

static tutti_status losses_of(tutti_comm *comm, const tutti_train_model *model, const tutti_train_data *data,
                              record *record_out) {
    const tutti_train_callback callback = {.name = "record", .context = record_out, .step_end = keep_loss};
    tutti_train_options options = plain;
    tutti_train_result result;
    options.callbacks = &callback;
    options.ncallbacks = 1;
    record_out->count = 0;
    TUTTI_TRY(tutti_train(comm, model, data, &options, &result));
    RANKS_CHECK(record_out->count == STEPS && result.steps == STEPS && result.stopped_by == 0, "%d losses, %lld steps",
                record_out->count, (long long)result.steps);
    RANKS_CHECK(result.loss == record_out->losses[STEPS - 1], "the last loss is %.10f", result.loss);
    return TUTTI_OK;
}

static tutti_status expect_same(const record *expected, const record *found, const char *what) {
    for (int i = 0; i < STEPS; i++)
        RANKS_CHECK(expected->losses[i] == found->losses[i], "%s: loss %d is %.17g, not %.17g", what, i + 1,
                    found->losses[i], expected->losses[i]);
    return TUTTI_OK;
}

static tutti_status use_all_ways(ranks_context *context) {
    record by_name, by_layers, by_sources, by_pipelines;
    tutti_data_source *train, *test;
    tutti_data *batches, *tests;
    const tutti_train_model list = TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2);
    const tutti_train_data named = TUTTI_TRAIN_DATA(.dataset = "mnist", .folder = folder);
    const tutti_data_op rescale = {"rescale", {1.0 / 255, 0}};
    const tutti_data_op ops[] = {rescale, {"batch", {BATCH, 1}}, {"repeat", {-1}}};
    TUTTI_TRY(losses_of(context->comm, &TUTTI_TRAIN_MODEL(.name = "mlp"), &named, &by_name));
    RANKS_CHECK(by_name.losses[0] > 1 && by_name.losses[1] != by_name.losses[0], "these are not losses");
    TUTTI_TRY(losses_of(context->comm, &list, &named, &by_layers));
    TUTTI_TRY(expect_same(&by_name, &by_layers, "a list of layers"));
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &train));
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TEST, &test));
    const tutti_train_data sources = TUTTI_TRAIN_DATA(.train_source = train, .test_source = test, .train_ops = &rescale,
                                                      .ntrain_ops = 1, .test_ops = &rescale, .ntest_ops = 1);
    TUTTI_TRY(losses_of(context->comm, &list, &sources, &by_sources));
    TUTTI_TRY(expect_same(&by_name, &by_sources, "sources"));
    TUTTI_TRY(tutti_data_create(train, ops, 3, &TUTTI_DATA_OPTIONS(.comm = context->comm, .division = TUTTI_DATA_CUT),
                                &batches));
    TUTTI_TRY(tutti_data_create(
        test, ops, 2, &TUTTI_DATA_OPTIONS(.comm = context->comm, .division = TUTTI_DATA_RANGES, .in_order = 1),
        &tests));
    TUTTI_TRY(losses_of(context->comm, &list, &TUTTI_TRAIN_DATA(.train = batches, .test = tests), &by_pipelines));
    TUTTI_TRY(expect_same(&by_name, &by_pipelines, "pipelines"));
    tutti_data_destroy(batches), tutti_data_destroy(tests);
    tutti_data_source_destroy(train), tutti_data_source_destroy(test);
    return TUTTI_OK;
}

Test(train_library, losses_are_the_same_however_model_and_data_are_given, .timeout = 60) {
    for (int nranks = 1; nranks <= 2; nranks++) expect_ranks(nranks, use_all_ways, NULL);
}

/* Layers that name no initializer begin as if their usual one had been named. */
static tutti_status leave_weights_open(ranks_context *context) {
    const tutti_train_data data = TUTTI_TRAIN_DATA(.folder = folder);
    record open, named, zeros;
    tutti_layer list[] = {
        {.name = "conv", .kind = TUTTI_LAYER_CONV, .units = 4, .kernel = 3, .stride = 1, .no_bias = true},
        {.name = "norm", .kind = TUTTI_LAYER_BATCH_NORM, .epsilon = 1e-5, .momentum = 0.1, .relu = true},
        {.name = "dense1", .kind = TUTTI_LAYER_DENSE, .units = 32, .relu = true},
        {.name = "dense2", .kind = TUTTI_LAYER_DENSE, .units = 10}};
    TUTTI_TRY(losses_of(context->comm, &TUTTI_TRAIN_MODEL(.layers = list, .nlayers = 4), &data, &open));
    list[0].initializer = list[3].initializer = TUTTI_INITIALIZER_XAVIER_UNIFORM;
    list[1].initializer = TUTTI_INITIALIZER_CONSTANT, list[1].constant = 1;
    list[2].initializer = TUTTI_INITIALIZER_HE_NORMAL;
    TUTTI_TRY(losses_of(context->comm, &TUTTI_TRAIN_MODEL(.layers = list, .nlayers = 4), &data, &named));
    TUTTI_TRY(expect_same(&named, &open, "layers without initializers"));
    RANKS_CHECK(open.losses[STEPS - 1] != open.losses[0] && fabs(open.losses[0] - log(10)) > 1e-3, "weights of 0: %g",
                open.losses[0]);
    list[3].initializer = TUTTI_INITIALIZER_CONSTANT;
    TUTTI_TRY(losses_of(context->comm, &TUTTI_TRAIN_MODEL(.layers = list, .nlayers = 4), &data, &zeros));
    RANKS_CHECK(fabs(zeros.losses[0] - log(10)) < 1e-6, "weights are not 0: %g", zeros.losses[0]);
    return TUTTI_OK;
}

Test(train_library, layers_that_name_no_initializer_do_not_begin_with_zeros, .timeout = 60) {
    expect_ranks(1, leave_weights_open, NULL);
}

/* ------------------------------------------------------------------------------------------ expanded loss */

/* 0.9 for the label, and the rest in equal parts for all classes. */
static tutti_status smooth_labels(void *context, const int32_t *labels, const int64_t *indices, int count, int classes,
                                  float *distributions_out) {
    const float rest = *(const float *)context;
    (void)indices;
    for (int i = 0; i < count * classes; i++)
        distributions_out[i] = rest / (float)classes + (labels[i / classes] == i % classes ? 1 - rest : 0);
    return TUTTI_OK;
}

/* Losses after each step, then loss and accuracy of the test. */
typedef struct outcome {
    double losses[STEPS];
    tutti_train_evaluation test;
} outcome;

static tutti_status train_with(tutti_comm *comm, const tutti_train_options *options, outcome *outcome_out) {
    record kept = {.count = 0};
    const tutti_train_callback callback = {.name = "record", .context = &kept, .step_end = keep_loss};
    tutti_train_options with = *options;
    tutti_train_result result;
    with.callbacks = &callback, with.ncallbacks = 1;
    TUTTI_TRY(
        tutti_train(comm, &TUTTI_TRAIN_MODEL(.name = "mlp"), &TUTTI_TRAIN_DATA(.folder = folder), &with, &result));
    memcpy(outcome_out->losses, kept.losses, sizeof kept.losses);
    outcome_out->test = result.test;
    return TUTTI_OK;
}

static tutti_status expect_near(const outcome *expected, const outcome *found, const char *what) {
    for (int i = 0; i < STEPS; i++)
        RANKS_CHECK(fabs(expected->losses[i] - found->losses[i]) <= 1e-6 * expected->losses[i],
                    "%s: loss %d is %.10f, not %.10f", what, i + 1, found->losses[i], expected->losses[i]);
    RANKS_CHECK(fabs(expected->test.loss - found->test.loss) <= 1e-6 * expected->test.loss &&
                    expected->test.accuracy == found->test.accuracy && found->test.samples == 23,
                "%s: test loss %.10f, not %.10f, accuracy %g, not %g of %lld", what, found->test.loss,
                expected->test.loss, found->test.accuracy, expected->test.accuracy, (long long)found->test.samples);
    return TUTTI_OK;
}

/* On three ranks 10 classes are divided as 4, 3 and 3; on four, classes and samples by two. */
static tutti_status expand(ranks_context *context) {
    outcome fused, expanded, divided, smooth;
    float none = 0, some = 0.1f;
    tutti_train_options options = plain;
    options.batch_size = 12;
    options.view = "consistent";
    TUTTI_TRY(train_with(context->comm, &options, &fused));
    options.loss = "softmax_cross_entropy_expand";
    TUTTI_TRY(train_with(context->comm, &options, &expanded));
    TUTTI_TRY(expect_near(&fused, &expanded, "expanded"));
    options.parallel_mode = "hybrid_parallel";
    TUTTI_TRY(train_with(context->comm, &options, &divided));
    TUTTI_TRY(expect_near(&fused, &divided, "divided"));
    options.distribute = smooth_labels;
    options.distribute_context = &none;
    TUTTI_TRY(train_with(context->comm, &options, &divided));
    TUTTI_TRY(expect_near(&fused, &divided, "one hot"));
    options.distribute_context = &some;
    TUTTI_TRY(train_with(context->comm, &options, &divided));
    options.parallel_mode = NULL;
    TUTTI_TRY(train_with(context->comm, &options, &smooth));
    TUTTI_TRY(expect_near(&smooth, &divided, "smooth labels, divided"));
    RANKS_CHECK(fabs(smooth.losses[0] - fused.losses[0]) > 1e-3, "labels were not made smooth");
    return TUTTI_OK;
}

Test(train_library, the_expanded_loss_is_the_fused_one_also_with_divided_classes, .timeout = 60) {
    for (int nranks = 1; nranks <= 4; nranks++) expect_ranks(nranks, expand, NULL);
}

static tutti_status wrong_labels(void *context, const int32_t *labels, const int64_t *indices, int count, int classes,
                                 float *distributions_out) {
    TUTTI_TRY(smooth_labels(&(float){0}, labels, indices, count, classes, distributions_out));
    distributions_out[2 * classes + 3] = *(const float *)context;
    return TUTTI_OK;
}

static tutti_status refuse_distributions(ranks_context *context) {
    static const struct {
        float number;
        const char *said;
    } wrong[] = {{-0.5f, "gave -0.5 for sample 2 of a batch and class 3"},
                 {NAN, "nan for sample 2"},
                 {INFINITY, "gave inf for sample 2"}};
    const int which = *(const int *)context->argument;
    float number = wrong[which].number;
    tutti_train_options options = plain;
    tutti_train_result result;
    options.loss = "softmax_cross_entropy_expand";
    options.distribute = wrong_labels;
    options.distribute_context = &number;
    const tutti_status status = tutti_train(context->comm, &TUTTI_TRAIN_MODEL(.name = "mlp"),
                                            &TUTTI_TRAIN_DATA(.folder = folder), &options, &result);
    RANKS_CHECK(status == TUTTI_ERR_DATA && strstr(tutti_last_error(), wrong[which].said) != NULL, "%s",
                tutti_last_error());
    return TUTTI_OK;
}

Test(train_library, labels_as_distributions_are_numbers_from_0_on, .timeout = 60) {
    for (int which = 0; which < 3; which++) expect_ranks(1, refuse_distributions, &which);
}

/* Logits that stay where they are need no redistribution after the last layer. */
static tutti_status explain(ranks_context *context) {
    static const char *const losses[] = {"softmax_cross_entropy", "softmax_cross_entropy_expand"};
    char text[2][8192] = {"", ""};
    tutti_train_options options = plain;
    options.parallel_mode = "layerwise_parallel";
    for (int i = 0; i < 2; i++) {
        tutti_trainer *trainer;
        options.loss = losses[i];
        TUTTI_TRY(tutti_train_open(context->comm, &TUTTI_TRAIN_MODEL(.name = "mlp"),
                                   &TUTTI_TRAIN_DATA(.folder = folder), &options, &trainer));
        FILE *file = fmemopen(text[i], sizeof text[i], "w");
        RANKS_CHECK(file != NULL, "no memory");
        TUTTI_TRY(tutti_train_explain(trainer, file));
        fclose(file);
        tutti_train_close(trainer);
        const char *last = strstr(text[i], "\ndense2 ");
        RANKS_CHECK(context->rank > 0 || (last != NULL && (strstr(last, "becomes") == NULL) == (i == 1)), "%s: %s",
                    losses[i], text[i]);
    }
    return TUTTI_OK;
}

Test(train_library, the_expanded_loss_leaves_divided_logits_where_they_are, .timeout = 60) {
    expect_ranks(2, explain, NULL);
}

/* ------------------------------------------------------------------------------------ loops of the caller's */

static tutti_status loop(ranks_context *context) {
    record expected;
    char path[FILES_PATH_BYTES], saved[FILES_PATH_BYTES];
    tutti_trainer *trainer;
    tutti_train_details details;
    tutti_train_evaluation tested;
    double loss;
    const tutti_train_model model = TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2, .name = "mine");
    const tutti_train_data data = TUTTI_TRAIN_DATA(.folder = folder);
    tutti_train_options options = plain;
    TUTTI_TRY(losses_of(context->comm, &model, &data, &expected));
    files_join(folder, "own", path);
    options.checkpoint_dir = path;
    options.overwrite = true;
    TUTTI_TRY(tutti_train_open(context->comm, &model, &data, &options, &trainer));
    TUTTI_TRY(tutti_train_get(trainer, &details));
    RANKS_CHECK(details.step == 0 && details.total_steps == STEPS && details.batch_size == BATCH * context->nranks &&
                    details.parameters == 784 * 512 + 512 + 512 * 10 + 10 && details.classes == 10 &&
                    details.steps_per_epoch == SAMPLES / BATCH / context->nranks && strcmp(details.model, "mine") == 0,
                "wrong details");
    for (int i = 0; i < 4; i++) {
        TUTTI_TRY(tutti_train_step(trainer, &loss));
        RANKS_CHECK(loss == expected.losses[i], "loss %d is %.17g, not %.17g", i, loss, expected.losses[i]);
    }
    TUTTI_TRY(tutti_train_evaluate(trainer, &tested));
    RANKS_CHECK(tested.samples == 23 && tested.loss > 0 && tested.accuracy <= 1, "a test of %lld samples",
                (long long)tested.samples);
    TUTTI_TRY(tutti_train_save(trainer, saved, sizeof saved));
    RANKS_CHECK((context->rank == 0) == (strstr(saved, "own/step-00000004.safetensors") != NULL), "saved as %s", saved);
    tutti_train_close(trainer);
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    options.resume = path;
    TUTTI_TRY(tutti_train_open(context->comm, &model, &data, &options, &trainer));
    for (int i = 4; i < STEPS; i++) {
        TUTTI_TRY(tutti_train_step(trainer, &loss));
        RANKS_CHECK(loss == expected.losses[i], "resumed: loss %d is %.17g, not %.17g", i, loss, expected.losses[i]);
    }
    tutti_train_close(trainer);
    return TUTTI_OK;
}

Test(train_library, a_loop_of_the_caller_steps_tests_saves_and_resumes, .timeout = 60) {
    for (int nranks = 1; nranks <= 2; nranks++) expect_ranks(nranks, loop, NULL);
}

/* ------------------------------------------------------------------------------------------- callbacks */

typedef struct story {
    char text[512];
    int64_t stop_at; /* this rank asks to stop after that step; 0: it does not */
    int64_t fail_at;
    tutti_train_moment at_end;
} story;

static void tell(story *all, const char *format, const tutti_train_moment *now) {
    const size_t used = strlen(all->text);
    snprintf(all->text + used, sizeof all->text - used, format, (long long)now->epoch, (long long)now->epoch_step);
}

static tutti_status hear_begin(void *context, const tutti_train_moment *now) {
    RANKS_CHECK(now->step == 0 && now->epoch == 0 && isnan(now->loss), "begin: step %lld", (long long)now->step);
    tell(context, "b ", now);
    return TUTTI_OK;
}

static tutti_status hear_epoch_begin(void *context, const tutti_train_moment *now) {
    tell(context, "e%lld:%lld ", now);
    return TUTTI_OK;
}

static tutti_status hear_step_begin(void *context, const tutti_train_moment *now) {
    tell(context, "<%lld:%lld", now);
    return TUTTI_OK;
}

static tutti_status hear_step_end(void *context, const tutti_train_moment *now) {
    story *all = context;
    tell(all, "-%lld:%lld> ", now);
    if (now->step == all->fail_at) return tutti_fail(TUTTI_ERR_DATA, "enough of it");
    return now->step == all->stop_at ? tutti_train_stop(now->trainer) : TUTTI_OK;
}

static tutti_status hear_epoch_end(void *context, const tutti_train_moment *now) {
    tell(context, "E%lld:%lld ", now);
    return TUTTI_OK;
}

static tutti_status hear_evaluated(void *context, const tutti_train_moment *now) {
    RANKS_CHECK(now->test != NULL && now->test->samples == 23, "the callback gets no test event");
    tell(context, "t ", now);
    return TUTTI_OK;
}

static tutti_status hear_end(void *context, const tutti_train_moment *now) {
    story *all = context;
    all->at_end = *now;
    tell(all, "z", now);
    return TUTTI_OK;
}

static tutti_train_callback hearing(story *all) {
    return (tutti_train_callback){
        "story",        all,  hear_begin, hear_epoch_begin, hear_step_begin, hear_step_end, hear_epoch_end,
        hear_evaluated, NULL, hear_end};
}

/* Two steps of 30 samples are an epoch. */
static tutti_status run_heard(ranks_context *context, int nranks_that_hear, story *all,
                              tutti_train_result *result_out) {
    const tutti_train_callback callback = hearing(all);
    tutti_train_options options = plain;
    options.batch_size = SAMPLES / 2 / context->nranks;
    options.steps = 3;
    if (context->rank >= context->nranks - nranks_that_hear) options.callbacks = &callback, options.ncallbacks = 1;
    return tutti_train(context->comm, &TUTTI_TRAIN_MODEL(.name = "mlp"), &TUTTI_TRAIN_DATA(.folder = folder), &options,
                       result_out);
}

static tutti_status hear_all(ranks_context *context) {
    story all = {.text = ""};
    tutti_train_result result;
    TUTTI_TRY(run_heard(context, context->nranks, &all, &result));
    RANKS_CHECK(strcmp(all.text, "b e1:1 <1:1-1:1> <1:2-1:2> E1:2 e2:1 <2:1-2:1> t z") == 0, "rank %d heard %s",
                context->rank, all.text);
    RANKS_CHECK(all.at_end.rank == context->rank && all.at_end.nranks == context->nranks && all.at_end.stopped_by == 0,
                "the last event has wrong values");
    return TUTTI_OK;
}

Test(train_library, callbacks_get_all_events_in_order_on_all_ranks, .timeout = 60) {
    for (int nranks = 1; nranks <= 3; nranks++) expect_ranks(nranks, hear_all, NULL);
}

/* Only the last of three ranks has a callback. */
static tutti_status stop_early(ranks_context *context) {
    story all = {.stop_at = 2};
    tutti_train_result result;
    TUTTI_TRY(run_heard(context, 1, &all, &result));
    RANKS_CHECK(result.steps == 2 && result.stopped_by == TUTTI_TRAIN_STOPPED_BY_CALLBACK && result.test.samples == 23,
                "rank %d ended after step %lld, by %d, tested %lld", context->rank, (long long)result.steps,
                result.stopped_by, (long long)result.test.samples);
    return TUTTI_OK;
}

Test(train_library, one_ranks_callback_stops_all_after_the_same_step, .timeout = 60) {
    for (int nranks = 1; nranks <= 3; nranks += 2) expect_ranks(nranks, stop_early, NULL);
}

static tutti_status fail_early(ranks_context *context) {
    story all = {.fail_at = 2};
    tutti_train_result result;
    const tutti_status status = run_heard(context, 1, &all, &result);
    const bool own = context->rank == context->nranks - 1;
    RANKS_CHECK(status != TUTTI_OK, "rank %d has no error", context->rank);
    RANKS_CHECK(!own || strcmp(tutti_last_error(), "callback story: enough of it") == 0, "%s", tutti_last_error());
    RANKS_CHECK(tutti_comm_error(context->comm) != TUTTI_OK, "rank %d has a whole communicator", context->rank);
    return TUTTI_OK;
}

Test(train_library, a_callback_that_fails_ends_all_ranks, .timeout = 60) {
    for (int nranks = 1; nranks <= 2; nranks++) expect_ranks(nranks, fail_early, NULL);
}

/* These calls would recurse without end. */
static tutti_status call_all(void *context, const tutti_train_moment *now) {
    int *refused = context;
    tutti_train_evaluation tested;
    tutti_train_result result;
    char text[64];
    FILE *file = fmemopen(text, sizeof text, "w");
    RANKS_CHECK(file != NULL, "no memory");
    *refused = tutti_train_step(now->trainer, NULL) == TUTTI_ERR_ARGUMENT;
    *refused += strstr(tutti_last_error(), "tutti_train_step must not be called by a callback") != NULL;
    *refused += tutti_train_run(now->trainer, &result) == TUTTI_ERR_ARGUMENT;
    *refused += tutti_train_explain(now->trainer, file) == TUTTI_ERR_ARGUMENT;
    *refused += tutti_train_evaluate(now->trainer, &tested) == TUTTI_ERR_ARGUMENT;
    tutti_train_close(now->trainer);
    fclose(file);
    return TUTTI_OK;
}

static tutti_status call_from_callbacks(ranks_context *context) {
    int refused = 0;
    const tutti_train_callback callback = {.context = &refused, .evaluated = call_all};
    tutti_train_options options = plain;
    tutti_train_result result;
    options.callbacks = &callback, options.ncallbacks = 1;
    TUTTI_TRY(tutti_train(context->comm, &TUTTI_TRAIN_MODEL(.name = "mlp"), &TUTTI_TRAIN_DATA(.folder = folder),
                          &options, &result));
    RANKS_CHECK(refused == 5 && result.steps == STEPS && result.test.samples == 23, "%d were refused, %lld steps",
                refused, (long long)result.steps);
    return TUTTI_OK;
}

Test(train_library, callbacks_cannot_begin_steps_and_training_continues, .timeout = 60) {
    for (int nranks = 1; nranks <= 2; nranks++) expect_ranks(nranks, call_from_callbacks, NULL);
}
