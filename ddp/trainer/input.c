/*
 * Where the data comes from, and what is done to it.
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
#define MOST_OPS        16
#define PATH_BYTES      4096

/* ---------------------------------------------------------------------------------------------- sources */

static bool is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static bool is_dataset(const tutti_input *input, const char *name) {
    const char *dataset = input->arguments->dataset;
    return strcmp(dataset != NULL ? dataset : "mnist", name) == 0;
}

static tutti_status open_digits(tutti_input *input) {
    input->drawn = true;
    TUTTI_TRY(tutti_data_open_digits(DIGITS_SEED, TUTTI_DATA_TRAIN, DIGITS_TRAIN, &input->train_source));
    return tutti_data_open_digits(DIGITS_SEED, TUTTI_DATA_TEST, DIGITS_TEST, &input->test_source);
}

static tutti_status fail_blob(const char *text) {
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "--blob %s: expected NAME:SHAPE:TYPE, such as img_raw:28,28,1:float32 or label:1,1:int32; types are uint8, "
        "int8, int32, int64, float32 and float64",
        text);
}

/* "img_raw:28,28,1:float32" in a copy, which the blob's name then points into. */
static tutti_status read_blob(const char *text, char *copy, size_t capacity, tutti_ofrecord_blob *blob) {
    static const tutti_type types[] = {TUTTI_UINT8, TUTTI_INT8, TUTTI_INT32, TUTTI_INT64, TUTTI_FLOAT32, TUTTI_FLOAT64};
    if (snprintf(copy, capacity, "%s", text) >= (int)capacity) return fail_blob(text);
    char *type = strrchr(copy, ':'), *shape = NULL, *end;
    if (type != NULL) *type++ = '\0', shape = strrchr(copy, ':');
    if (shape == NULL || shape == copy) return fail_blob(text);
    *shape++ = '\0';
    *blob = (tutti_ofrecord_blob){.name = copy};
    for (; *shape != '\0'; shape = *end == ',' ? end + 1 : end) {
        long extent = strtol(shape, &end, 10);
        if (end == shape || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0') || extent < 1 ||
            blob->ndims == TUTTI_OFRECORD_DIMS)
            return fail_blob(text);
        blob->shape[blob->ndims++] = extent;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(tutti_type_name(types[i]), type) == 0) {
            blob->type = types[i];
            return TUTTI_OK;
        }
    return fail_blob(text);
}

static tutti_status open_ofrecord(const tutti_input *input, const char *folder, const char *part, int64_t part_num,
                                  tutti_data_source **source_out) {
    const tutti_arguments *arguments = input->arguments;
    tutti_ofrecord_blob blobs[TUTTI_ARGUMENTS_BLOBS];
    char copies[TUTTI_ARGUMENTS_BLOBS][256], path[PATH_BYTES];
    if (arguments->blobs.count != 2)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "--dataset ofrecord: give --blob twice, for image and label, such as --blob img_raw:28,28,1:float32 "
            "--blob label:1,1:int32");
    for (int i = 0; i < arguments->blobs.count; i++)
        TUTTI_TRY(read_blob(arguments->blobs.texts[i], copies[i], sizeof copies[i], &blobs[i]));
    const tutti_ofrecord_options options =
        TUTTI_OFRECORD_OPTIONS(.data_part_num = (int)part_num, .part_name_prefix = arguments->part_prefix,
                               .part_name_suffix_length = (int)arguments->part_suffix_length,
                               .classes = arguments->classes > 0 ? (int)arguments->classes : DEFAULT_CLASSES);
    if (snprintf(path, sizeof path, "%s/%s", folder, part) >= PATH_BYTES || !is_folder(path))
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "--data %s: there is no folder %s in it; --dataset ofrecord reads the files in its folders train and test",
            folder, part);
    return tutti_ofrecord_open(path, blobs, arguments->blobs.count, &options, source_out);
}

static tutti_status open_parts(tutti_input *input, const char *folder) {
    const tutti_arguments *arguments = input->arguments;
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
        const int64_t test_parts = arguments->test_part_num > 0 ? arguments->test_part_num : arguments->data_part_num;
        TUTTI_TRY(open_ofrecord(input, folder, "train", arguments->data_part_num, train));
        return open_ofrecord(input, folder, "test", test_parts, test);
    }
    TUTTI_TRY(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, train));
    return tutti_data_open_mnist(folder, TUTTI_DATA_TEST, test);
}

/* A folder that the user named: it must be there. */
static tutti_status open_named(tutti_input *input, const char *folder, const char *named_by) {
    if (is_folder(folder)) return open_parts(input, folder);
    if (!is_dataset(input, "mnist"))
        return tutti_fail(TUTTI_ERR_CONFIG, "%s=%s is no folder; give the folder that holds the files of %s", named_by,
                          folder, input->arguments->dataset);
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "%s=%s is no folder; give the folder that holds train-images-idx3-ubyte.gz and the other "
                      "three files of MNIST, or leave it out to train on drawn digits",
                      named_by, folder);
}

static tutti_status open_sources(tutti_input *input) {
    static const char *const usual_folders[] = {"../shared/data/mnist", "data/mnist"};
    const tutti_arguments *arguments = input->arguments;
    if (is_dataset(input, "digits") && arguments->data != NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "--dataset digits draws its images; leave out --data %s", arguments->data);
    if (is_dataset(input, "digits")) return open_digits(input);
    if (arguments->data != NULL) return open_named(input, arguments->data, "--data");
    const char *variable = getenv("TUTTI_DATA");
    if (variable != NULL && variable[0] != '\0') return open_named(input, variable, "TUTTI_DATA");
    if (is_dataset(input, "mnist"))
        for (size_t i = 0; i < sizeof usual_folders / sizeof usual_folders[0]; i++)
            if (is_folder(usual_folders[i])) return open_parts(input, usual_folders[i]);
    if (arguments->dataset == NULL) return open_digits(input);
    return tutti_fail(TUTTI_ERR_CONFIG, "--dataset %s: no folder is named; give it as --data DIR", arguments->dataset);
}

/* -------------------------------------------------------------------------------------------- pipelines */

typedef struct op_list {
    tutti_data_op ops[MOST_OPS];
    int count;
} op_list;

static void add(op_list *list, tutti_data_op op) {
    list->ops[list->count++] = op;
}

/* What both training and tests do to an image. CIFAR-10's numbers are those of the document that its recipe comes from, which
 * takes them by the channel's position; CIFAR-100's are its means and deviations. */
static void add_common(const tutti_input *input, const tutti_data_source_details *about, op_list *list) {
    const double side = (double)input->arguments->resize;
    if (side > 0) add(list, (tutti_data_op){"resize", {side, side}});
    if (about->type == TUTTI_UINT8) add(list, (tutti_data_op){"rescale", {1.0 / 255, 0}});
    if (is_dataset(input, "cifar10"))
        add(list, (tutti_data_op){"normalize", {0.4465, 0.4822, 0.4914, 0.2010, 0.1994, 0.2023}});
    if (is_dataset(input, "cifar100"))
        add(list, (tutti_data_op){"normalize", {0.5071, 0.4865, 0.4409, 0.2673, 0.2564, 0.2762}});
}

/* Of batches that are the same on all ranks this rank's rows; else of all shards its own. */
static tutti_data_options divide(const tutti_input_division *division, bool together) {
    if (!together) return TUTTI_DATA_OPTIONS(.num_shards = division->nranks, .shard_id = division->rank);
    return TUTTI_DATA_OPTIONS(.num_shards = 1, .part_first = division->first, .part_count = division->rows,
                              .all_labels = division->all_labels);
}

tutti_status tutti_input_create_train(const tutti_input *input, const tutti_input_division *division, uint64_t seed,
                                      tutti_data **data_out) {
    const tutti_arguments *arguments = input->arguments;
    const double drops = 1, without_end = -1, padding = CIFAR_PADDING;
    tutti_data_source_details about;
    op_list list = {.count = 0};
    TUTTI_TRY(tutti_data_source_get(input->train_source, &about));
    if ((is_dataset(input, "cifar10") || is_dataset(input, "cifar100")) && !arguments->no_augment) {
        add(&list, (tutti_data_op){"random_crop", {about.height, about.width, padding, padding, padding, padding}});
        add(&list, (tutti_data_op){"random_horizontal_flip", {0.5}});
    }
    add_common(input, &about, &list);
    if (arguments->shuffle_buffer > 0) add(&list, (tutti_data_op){"shuffle", {(double)arguments->shuffle_buffer}});
    add(&list, (tutti_data_op){"batch", {(double)division->batch, drops}});
    add(&list, (tutti_data_op){"repeat", {without_end}});
    tutti_data_options options = divide(division, division->together);
    options.seed = seed;
    options.in_order = arguments->no_shuffle;
    options.division = TUTTI_DATA_CUT;
    return tutti_data_create(input->train_source, list.ops, list.count, &options, data_out);
}

static tutti_status create_test(tutti_input *input) {
    tutti_data_source_details about;
    op_list list = {.count = 0};
    TUTTI_TRY(tutti_data_source_get(input->test_source, &about));
    add_common(input, &about, &list);
    const tutti_input_division *division = &input->division;
    add(&list, (tutti_data_op){"batch", {(double)(division->cut ? division->batch : division->rows)}});
    tutti_data_options options = divide(division, division->cut);
    options.in_order = 1;
    options.division = TUTTI_DATA_RANGES;
    return tutti_data_create(input->test_source, list.ops, list.count, &options, &input->test);
}

/* Before memory is taken for a batch that is too large. */
static tutti_status check_counts(tutti_input *input) {
    const tutti_input_division *division = &input->division;
    const long long count = (long long)input->train_count;
    tutti_data_details tests;
    TUTTI_TRY(tutti_data_get(input->train, &input->details));
    TUTTI_TRY(tutti_data_get(input->test, &tests));
    input->batches = input->details.batches * input->arguments->repeat;
    if (input->details.batches < 1 && division->together)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%lld training samples are fewer than the batch of all ranks, %d; lower --batch-size", count,
                          division->batch);
    if (input->details.batches < 1)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%lld training samples are fewer than one batch of %d ranks times %d; lower --batch-size",
                          count, division->nranks, division->batch);
    if (tests.height == input->details.height && tests.width == input->details.width &&
        tests.channels == input->details.channels)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "%s: training images are %dx%dx%d, test images %dx%dx%d; expected one size (--resize makes it)",
                      input->name, input->details.height, input->details.width, input->details.channels, tests.height,
                      tests.width, tests.channels);
}

tutti_status tutti_input_start(tutti_input *input, const tutti_input_division *division, uint64_t seed) {
    tutti_data_destroy(input->train);
    tutti_data_destroy(input->test);
    input->train = input->test = NULL;
    input->division = *division;
    TUTTI_TRY(tutti_input_create_train(input, division, seed, &input->train));
    TUTTI_TRY(create_test(input));
    return check_counts(input);
}

tutti_status tutti_input_open(tutti_input *input, const tutti_arguments *arguments) {
    tutti_data_source_details train, test;
    *input = (tutti_input){.arguments = arguments};
    TUTTI_TRY(open_sources(input));
    TUTTI_TRY(tutti_data_source_get(input->train_source, &train));
    TUTTI_TRY(tutti_data_source_get(input->test_source, &test));
    input->train_count = train.count;
    input->test_count = test.count;
    input->classes = train.classes;
    input->name = train.name;
    return TUTTI_OK;
}

void tutti_input_close(tutti_input *input) {
    tutti_data_destroy(input->train);
    tutti_data_destroy(input->test);
    tutti_data_source_destroy(input->train_source);
    tutti_data_source_destroy(input->test_source);
    *input = (tutti_input){.train = NULL};
}

tutti_status tutti_input_seek(const tutti_input *input, tutti_data *train, int64_t epoch, int64_t batch) {
    const int64_t of_pass = input->details.batches;
    return tutti_data_seek(train, epoch * input->arguments->repeat + batch / of_pass, batch % of_pass);
}

tutti_status tutti_input_next(const tutti_input *input, tutti_data_batch *batch_out) {
    TUTTI_TRY(tutti_data_next(input->train, batch_out));
    if (batch_out->whole == input->division.batch) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "the training data gave %d samples of a batch of %d: are its files being changed?",
                      batch_out->whole, input->division.batch);
}
