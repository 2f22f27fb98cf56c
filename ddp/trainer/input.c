/*
 * Sources of data, and the pipelines that process them.
 */
#include "ddp/trainer/input.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIGITS_SEED     UINT64_C(20240229)
#define DIGITS_TRAIN    20000
#define DIGITS_TEST     4000
#define DEFAULT_CLASSES 10
#define CIFAR_PADDING   4
#define MOST_GIVEN_OPS  12
#define MOST_OPS        (MOST_GIVEN_OPS + 4)
#define PATH_BYTES      4096

/* Returns whether the caller gave pipelines. */
static bool has_pipelines(const tutti_input *input) {
    return input->given.train != NULL;
}

/* ---------------------------------------------------------------------------------------------- sources */

static bool is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static bool is_dataset(const tutti_input *input, const char *name) {
    const char *dataset = input->given.dataset;
    return !input->own && strcmp(dataset != NULL ? dataset : "mnist", name) == 0;
}

static tutti_status open_digits(tutti_input *input) {
    input->drawn = true;
    TUTTI_TRY(tutti_data_open_digits(DIGITS_SEED, TUTTI_DATA_TRAIN, DIGITS_TRAIN, &input->train_source));
    return tutti_data_open_digits(DIGITS_SEED, TUTTI_DATA_TEST, DIGITS_TEST, &input->test_source);
}

static tutti_status open_ofrecord(const tutti_input *input, const char *folder, const char *part, int part_num,
                                  tutti_data_source **source_out) {
    const tutti_train_data *given = &input->given;
    char path[PATH_BYTES];
    tutti_ofrecord_options options = TUTTI_OFRECORD_OPTIONS(.classes = 0);
    if (given->nblobs != 2 || given->blobs == NULL)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "--dataset ofrecord: give --blob twice, for image and label, such as --blob img_raw:28,28,1:float32 "
            "--blob label:1,1:int32");
    if (given->ofrecord != NULL) options = *given->ofrecord;
    if (options.classes == 0) options.classes = DEFAULT_CLASSES;
    if (part_num > 0) options.data_part_num = part_num;
    /* tests are sums, in any order; without a shuffle the number of samples is known */
    if (strcmp(part, "test") == 0) options.shuffle_after_epoch = 0;
    if (snprintf(path, sizeof path, "%s/%s", folder, part) >= PATH_BYTES || !is_folder(path))
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "--data %s: there is no folder %s in it; --dataset ofrecord reads the files in its folders train and test",
            folder, part);
    return tutti_ofrecord_open(path, given->blobs, given->nblobs, &options, source_out);
}

static tutti_status open_parts(tutti_input *input, const char *folder) {
    tutti_data_source **train = &input->train_source, **test = &input->test_source;
    if (is_dataset(input, "cifar10")) {
        TUTTI_TRY(tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, train));
        return tutti_data_open_cifar10(folder, TUTTI_DATA_TEST, test);
    }
    if (is_dataset(input, "cifar100")) {
        TUTTI_TRY(tutti_data_open_cifar100(folder, TUTTI_DATA_TRAIN, TUTTI_DATA_FINE, train));
        return tutti_data_open_cifar100(folder, TUTTI_DATA_TEST, TUTTI_DATA_FINE, test);
    }
    if (is_dataset(input, "ofrecord")) {
        TUTTI_TRY(open_ofrecord(input, folder, "train", 0, train));
        return open_ofrecord(input, folder, "test", input->given.test_part_num, test);
    }
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, train));
    return tutti_data_open_mnist(folder, TUTTI_DATA_TEST, test);
}

/* Opens a folder that the user named, which must exist. */
static tutti_status open_named(tutti_input *input, const char *folder, const char *named_by) {
    if (is_folder(folder)) return open_parts(input, folder);
    if (!is_dataset(input, "mnist"))
        return tutti_fail(TUTTI_ERR_CONFIG, "%s=%s is not a folder; give the folder that holds the files of %s",
                          named_by, folder, input->given.dataset);
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "%s=%s is not a folder; give the folder that holds train-images-idx3-ubyte.gz and the other "
                      "three files of MNIST, or leave it out to train on drawn digits",
                      named_by, folder);
}

static tutti_status check_dataset(const char *name) {
    static const char *const names[] = {"mnist", "digits", "cifar10", "cifar100", "ofrecord"};
    bool known = name == NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !known; i++) known = strcmp(names[i], name) == 0;
    if (known) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "--dataset %s: expected mnist, digits, cifar10, cifar100 or ofrecord", name);
}

static tutti_status open_sources(tutti_input *input) {
    static const char *const usual_folders[] = {"../shared/data/mnist", "data/mnist"};
    const tutti_train_data *given = &input->given;
    TUTTI_TRY(check_dataset(given->dataset));
    if (is_dataset(input, "digits") && given->folder != NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "--dataset digits draws its images; leave out --data %s", given->folder);
    if (is_dataset(input, "digits")) return open_digits(input);
    if (given->folder != NULL) return open_named(input, given->folder, "--data");
    const char *variable = getenv("TUTTI_DATA");
    if (variable != NULL && variable[0] != '\0') return open_named(input, variable, "TUTTI_DATA");
    if (is_dataset(input, "mnist"))
        for (size_t i = 0; i < sizeof usual_folders / sizeof usual_folders[0]; i++)
            if (is_folder(usual_folders[i])) return open_parts(input, usual_folders[i]);
    if (given->dataset == NULL) return open_digits(input);
    return tutti_fail(TUTTI_ERR_CONFIG, "--dataset %s: no folder is named; give it as --data DIR", given->dataset);
}

/* -------------------------------------------------------------------------------------------- pipelines */

typedef struct op_list {
    tutti_data_op ops[MOST_OPS];
    int count;
} op_list;

static void add(op_list *list, tutti_data_op op) {
    list->ops[list->count++] = op;
}

static void add_given(op_list *list, const tutti_data_op *ops, int nops) {
    for (int i = 0; i < nops; i++) add(list, ops[i]);
}

/* Adds the operations that training and tests have in common. CIFAR-10's numbers are those of the document that its
 * recipe comes from, which lists them by channel position; CIFAR-100's are its means and deviations. */
static void add_common(const tutti_input *input, const tutti_data_source_details *about, op_list *list) {
    const double side = (double)input->given.resize;
    if (side > 0 && !input->own) add(list, (tutti_data_op){"resize", {side, side}});
    if (about->type == TUTTI_UINT8 && !input->own) add(list, (tutti_data_op){"rescale", {1.0 / 255, 0}});
    if (is_dataset(input, "cifar10"))
        add(list, (tutti_data_op){"normalize", {0.4465, 0.4822, 0.4914, 0.2010, 0.1994, 0.2023}});
    if (is_dataset(input, "cifar100"))
        add(list, (tutti_data_op){"normalize", {0.5071, 0.4865, 0.4409, 0.2673, 0.2564, 0.2762}});
}

/* If batches are the same on all ranks, selects this rank's rows; else its own shard. */
static tutti_data_options divide(const tutti_input_division *division, bool together) {
    if (!together) return TUTTI_DATA_OPTIONS(.num_shards = division->nranks, .shard_id = division->rank);
    return TUTTI_DATA_OPTIONS(.num_shards = 1, .part_first = division->first, .part_count = division->rows,
                              .all_labels = division->all_labels);
}

tutti_status tutti_input_create_train(const tutti_input *input, const tutti_input_division *division, uint64_t seed,
                                      tutti_data **data_out) {
    const tutti_train_data *given = &input->given;
    const double drops = 1, without_end = -1, padding = CIFAR_PADDING;
    tutti_data_source_details about;
    op_list list = {.count = 0};
    TUTTI_TRY(tutti_data_source_get(input->train_source, &about));
    if ((is_dataset(input, "cifar10") || is_dataset(input, "cifar100")) && !given->no_augment) {
        add(&list, (tutti_data_op){"random_crop", {about.height, about.width, padding, padding, padding, padding}});
        add(&list, (tutti_data_op){"random_horizontal_flip", {0.5}});
    }
    add_given(&list, given->train_ops, given->ntrain_ops);
    add_common(input, &about, &list);
    if (given->shuffle_buffer > 0) add(&list, (tutti_data_op){"shuffle", {(double)given->shuffle_buffer}});
    add(&list, (tutti_data_op){"batch", {(double)division->batch, drops}});
    add(&list, (tutti_data_op){"repeat", {without_end}});
    tutti_data_options options = divide(division, division->together);
    options.seed = seed;
    options.in_order = given->no_shuffle;
    options.division = TUTTI_DATA_CUT;
    return tutti_data_create(input->train_source, list.ops, list.count, &options, data_out);
}

static tutti_status create_test(tutti_input *input) {
    tutti_data_source_details about;
    op_list list = {.count = 0};
    if (input->test_source == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_data_source_get(input->test_source, &about));
    add_given(&list, input->given.test_ops, input->given.ntest_ops);
    add_common(input, &about, &list);
    tutti_input_division division = input->division;
    if (division.bounded && !division.cut) division.batch = division.whole, division.first = division.row;
    const bool together = division.cut || division.bounded;
    add(&list, (tutti_data_op){"batch", {(double)(together ? division.batch : division.rows)}});
    tutti_data_options options = divide(&division, together);
    options.in_order = 1;
    options.division = TUTTI_DATA_RANGES;
    return tutti_data_create(input->test_source, list.ops, list.count, &options, &input->test);
}

/* Training uses any number of batches, all of one size. */
static tutti_status check_pipeline(const tutti_input *input) {
    const tutti_data_details *about = &input->details;
    if (about->repeat >= 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "the training pipeline ends after %lld passes, its operation repeat; a pipeline of the "
                          "caller's must not end: add {\"repeat\", {-1}} behind batch, and set the number of passes by "
                          "options.epochs",
                          (long long)about->repeat);
    if (about->drop_remainder || about->samples < 0 || about->samples % about->batch_size == 0) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "the training pipeline's last batch of a pass has %lld samples, the others %d; batches must be of "
        "one size: set drop_remainder, {\"batch\", {%d, 1}}",
        (long long)(about->samples % about->batch_size), about->batch_size, about->batch_size);
}

/* Checked before memory is allocated for a batch that is too large. */
static tutti_status check_counts(tutti_input *input) {
    const tutti_input_division *division = &input->division;
    const long long count = (long long)input->train_count;
    tutti_data_details tests;
    TUTTI_TRY(tutti_data_get(input->train, &input->details));
    if (has_pipelines(input)) TUTTI_TRY(check_pipeline(input));
    if (input->details.chw)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "%s: images come as [channels, height, width]; layers take [height, width, channels], so leave "
            "out hwc_to_chw",
            input->name);
    if (input->details.batches < 0)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "%s: the number of training samples is unknown, so there are no epochs; let the source report it",
            input->name);
    input->batches = input->details.batches * input->given.repeat;
    if (input->details.batches < 1 && division->together)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%lld training samples are fewer than the batch of all ranks, %d; lower --batch-size", count,
                          division->batch);
    if (input->details.batches < 1)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%lld training samples are fewer than one batch of %d ranks times %d; lower --batch-size",
                          count, division->nranks, division->batch);
    if (input->test == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_data_get(input->test, &tests));
    if (tests.batch_size > division->rows && !division->cut && (has_pipelines(input) || !division->bounded))
        return tutti_fail(TUTTI_ERR_CONFIG, "%s: test batches have %d samples, training batches %d; expected no more",
                          input->name, tests.batch_size, division->rows);
    if (tests.height == input->details.height && tests.width == input->details.width &&
        tests.channels == input->details.channels)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "%s: training images are %dx%dx%d, test images %dx%dx%d; expected one size (--resize makes it)",
                      input->name, input->details.height, input->details.width, input->details.channels, tests.height,
                      tests.width, tests.channels);
}

tutti_status tutti_input_start(tutti_input *input, const tutti_input_division *division, uint64_t seed) {
    input->division = *division;
    if (has_pipelines(input)) return check_counts(input);
    tutti_data_destroy(input->train);
    tutti_data_destroy(input->test);
    input->train = input->test = NULL;
    TUTTI_TRY(tutti_input_create_train(input, division, seed, &input->train));
    TUTTI_TRY(create_test(input));
    return check_counts(input);
}

/* Uses the caller's pipelines. */
static tutti_status take_pipelines(tutti_input *input) {
    tutti_data_details tests;
    input->train = input->given.train;
    input->test = input->given.test;
    input->name = "the caller's batches";
    TUTTI_TRY(tutti_data_get(input->train, &input->details));
    input->train_count = input->details.samples < 0 ? -1 : input->details.samples * input->details.num_shards;
    input->classes = input->details.classes;
    if (input->test == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_data_get(input->test, &tests));
    input->test_count = -1; /* parts may differ in size; tests count the samples */
    return TUTTI_OK;
}

static tutti_status take_sources(tutti_input *input) {
    tutti_data_source_details train, test;
    if (!input->own) TUTTI_TRY(open_sources(input));
    TUTTI_TRY(tutti_data_source_get(input->train_source, &train));
    input->train_count = train.count;
    input->classes = train.classes;
    input->name = train.name;
    if (input->test_source == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_data_source_get(input->test_source, &test));
    input->test_count = test.count;
    return TUTTI_OK;
}

static tutti_status check_given(const tutti_train_data *given) {
    const bool sources = given->train_source != NULL || given->test_source != NULL;
    const bool pipelines = given->train != NULL || given->test != NULL;
    const bool named = given->dataset != NULL || given->folder != NULL;
    if ((int)sources + (int)pipelines + (int)named > 1 || (sources && given->train_source == NULL) ||
        (pipelines && given->train == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_train_data: give one of dataset and folder, train_source (with or without "
                          "test_source), and train (with or without test)");
    if (given->ntrain_ops < 0 || given->ntrain_ops > MOST_GIVEN_OPS || given->ntest_ops < 0 ||
        given->ntest_ops > MOST_GIVEN_OPS || ((given->ntrain_ops > 0 || given->ntest_ops > 0) && !sources) ||
        (given->ntrain_ops > 0 && given->train_ops == NULL) || (given->ntest_ops > 0 && given->test_ops == NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_train_data: %d train_ops and %d test_ops; expected 0 to %d of each, with sources only",
                          given->ntrain_ops, given->ntest_ops, MOST_GIVEN_OPS);
    if (given->resize < 0 || given->shuffle_buffer < 0 || given->repeat < 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_train_data: resize, shuffle_buffer and repeat must not be below 0");
    return TUTTI_OK;
}

tutti_status tutti_input_open(tutti_input *input, const tutti_train_data *data) {
    *input = (tutti_input){.given = *data};
    TUTTI_TRY(check_given(data));
    if (input->given.repeat == 0) input->given.repeat = 1;
    input->own = data->train_source != NULL || data->train != NULL;
    if (data->train != NULL) return take_pipelines(input);
    input->train_source = data->train_source;
    input->test_source = data->test_source;
    return take_sources(input);
}

void tutti_input_close(tutti_input *input) {
    if (!has_pipelines(input)) {
        tutti_data_destroy(input->train);
        tutti_data_destroy(input->test);
    }
    if (!input->own) {
        tutti_data_source_destroy(input->train_source);
        tutti_data_source_destroy(input->test_source);
    }
    *input = (tutti_input){.train = NULL};
}

tutti_status tutti_input_seek(const tutti_input *input, tutti_data *train, int64_t epoch, int64_t batch) {
    const int64_t of_pass = input->details.batches;
    return tutti_data_seek(train, epoch * input->given.repeat + batch / of_pass, batch % of_pass);
}

tutti_status tutti_input_next(const tutti_input *input, tutti_data_batch *batch_out) {
    TUTTI_TRY(tutti_data_next(input->train, batch_out));
    if (batch_out->whole == input->division.batch) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "the training data gave %d samples of a batch of %d: are its files being changed?",
                      batch_out->whole, input->division.batch);
}
