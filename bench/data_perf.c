/*
 * data_perf: images per second of data pipelines, each with the operations of a recipe, on one core, or with batches
 * prepared ahead.
 *
 *   data_perf [--cifar10 DIR] [--seconds S] [--batch N]
 *
 * Without --cifar10 the images are 10,000 of 32x32x3 random bytes in memory. A row shows the operations, images per
 * second and microseconds per image: the median of five runs. bench/data_compare compares with numpy and PyTorch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/data.h>

#define IMAGES      10000
#define IMAGE_BYTES 3072
#define ROUNDS      5
#define MOST_OPS    8

typedef struct recipe {
    const char *name;
    int ahead;
    tutti_data_op ops[MOST_OPS];
} recipe;

#define NORMALIZE                                                                                                      \
    {                                                                                                                  \
        "normalize", {                                                                                                 \
            0.4465, 0.4822, 0.4914, 0.2010, 0.1994, 0.2023                                                             \
        }                                                                                                              \
    }
#define AUGMENT                                                                                                        \
    {"random_crop", {32, 32, 4, 4, 4, 4}}, {"random_horizontal_flip", {0.5}}, {"rescale", {1.0 / 255}}, NORMALIZE

static const recipe recipes[] = {
    {"read", -1, {{NULL, {0}}}},
    {"rescale, normalize", -1, {{"rescale", {1.0 / 255}}, NORMALIZE}},
    {"crop, flip, rescale, normalize", -1, {AUGMENT}},
    {"crop, flip, rescale, normalize, hwc_to_chw", -1, {AUGMENT, {"hwc_to_chw", {0}}}},
    {"crop, flip, rescale, normalize; ahead", 2, {AUGMENT}},
    {"crop, flip, resize 224, rescale, normalize",
     -1,
     {{"random_crop", {32, 32, 4, 4, 4, 4}},
      {"random_horizontal_flip", {0.5}},
      {"resize", {224, 224}},
      {"rescale", {1.0 / 255}},
      NORMALIZE}},
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static tutti_status read_image(void *context, int64_t index, void *image, int32_t *label) {
    memcpy(image, (const uint8_t *)context + index * IMAGE_BYTES, IMAGE_BYTES);
    *label = (int32_t)(index % 10);
    return TUTTI_OK;
}

static tutti_status open_random(uint8_t **memory_out, tutti_data_source **source_out) {
    uint8_t *memory = malloc((size_t)IMAGES * IMAGE_BYTES);
    if (memory == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %d images", IMAGES);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < (size_t)IMAGES * IMAGE_BYTES; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memory[i] = (uint8_t)state;
    }
    *memory_out = memory;
    return tutti_data_open_user(&TUTTI_DATA_USER(.context = memory, .height = 32, .width = 32, .channels = 3,
                                                 .type = TUTTI_UINT8, .classes = 10, .count = IMAGES,
                                                 .read = read_image),
                                source_out);
}

/* Images per second, for about `seconds`. */
static tutti_status measure(tutti_data *data, double seconds, double *rate_out) {
    tutti_data_batch batch;
    int64_t images = 0;
    TUTTI_TRY(tutti_data_next(data, &batch)); /* allocates memory and the order of a pass */
    const double begin = now_s();
    double spent = 0;
    while (spent < seconds) {
        TUTTI_TRY(tutti_data_next(data, &batch));
        images += batch.count;
        spent = now_s() - begin;
    }
    *rate_out = (double)images / spent;
    return TUTTI_OK;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tutti_status run(tutti_data_source *source, const recipe *row, int batch, double seconds) {
    tutti_data_op ops[MOST_OPS + 2];
    double rates[ROUNDS];
    int count = 0;
    for (; count < MOST_OPS && row->ops[count].name != NULL; count++) ops[count] = row->ops[count];
    ops[count++] = (tutti_data_op){"batch", {batch, 1}};
    ops[count++] = (tutti_data_op){"repeat", {-1}};
    tutti_data *data;
    TUTTI_TRY(tutti_data_create(source, ops, count, &TUTTI_DATA_OPTIONS(.ahead = row->ahead), &data));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < ROUNDS && status == TUTTI_OK; i++) status = measure(data, seconds / ROUNDS, &rates[i]);
    tutti_data_destroy(data);
    TUTTI_TRY(status);
    qsort(rates, ROUNDS, sizeof *rates, ascending);
    printf("%-44s %12.0f %10.2f\n", row->name, rates[ROUNDS / 2], 1e6 / rates[ROUNDS / 2]);
    fflush(stdout);
    return TUTTI_OK;
}

static tutti_status run_all(const char *folder, int batch, double seconds) {
    tutti_data_source *source = NULL;
    uint8_t *memory = NULL;
    tutti_status status =
        folder != NULL ? tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source) : open_random(&memory, &source);
    printf("# batches of %d; %s\n%-44s %12s %10s\n", batch, folder != NULL ? folder : "random bytes in memory",
           "# operations", "images/s", "us/image");
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0] && status == TUTTI_OK; i++)
        status = run(source, &recipes[i], batch, seconds);
    tutti_data_source_destroy(source);
    free(memory);
    return status;
}

int main(int argc, char **argv) {
    const char *folder = NULL;
    double seconds = 1;
    int batch = 128;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--cifar10") == 0 && value[0] != '\0') folder = value;
        else if (strcmp(argv[i], "--seconds") == 0 && atof(value) > 0) seconds = atof(value);
        else if (strcmp(argv[i], "--batch") == 0 && atoi(value) > 0) batch = atoi(value);
        else {
            fprintf(stderr, "usage: data_perf [--cifar10 DIR] [--seconds S] [--batch N]\n");
            return 1;
        }
    }
    if (run_all(folder, batch, seconds) == TUTTI_OK) return 0;
    fprintf(stderr, "data_perf: %s\n", tutti_last_error());
    return 1;
}
