/*
 * safetensors files and checkpoints: round trips, damaged files, refusals.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ddp/trainer/checkpoint/checkpoint.h"
#include "ddp/trainer/checkpoint/safetensors.h"
#include "ddp/trainer/models/models.h"
#include "tests/support/training/training.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(safetensors, .init = make_folder, .fini = remove_folder);
TestSuite(checkpoint, .init = make_folder, .fini = remove_folder);

/* ----------------------------------------------------------------------------------------- safetensors */

static void write_sample(char path_out[FILES_PATH_BYTES]) {
    float a[] = {1, -2, 3.5f, 4, 5, 6}, b[] = {0.25f};
    tutti_safetensors_entry entries[] = {{.name = "a.weight", .ndims = 2, .dims = {2, 3}, .data = a, .count = 6},
                                         {.name = "b", .ndims = 0, .data = b, .count = 1}};
    tutti_safetensors_text texts[] = {{"step", "12"}, {"model", "lenet"}};
    tutti_safetensors content = {.entries = entries, .nentries = 2, .texts = texts, .ntexts = 2};
    files_join(folder, "sample.safetensors", path_out);
    cr_assert_eq(tutti_safetensors_write(path_out, &content), TUTTI_OK, "%s", tutti_last_error());
}

Test(safetensors, a_file_has_the_bytes_of_the_format) {
    static const char header[] = "{\"__metadata__\":{\"step\":\"12\",\"model\":\"lenet\"},"
                                 "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}";
    char path[FILES_PATH_BYTES];
    size_t bytes, padded = (strlen(header) + 7) / 8 * 8;
    write_sample(path);
    uint8_t *file = files_read(path, &bytes);
    cr_assert_eq(bytes, 8 + padded + 28);
    cr_assert(file[0] == (padded & 255) && file[1] == padded >> 8 && file[2] == 0 && file[7] == 0);
    cr_assert_eq(memcmp(file + 8, header, strlen(header)), 0);
    for (size_t i = strlen(header); i < padded; i++) cr_assert_eq(file[8 + i], ' ');
    float last;
    memcpy(&last, file + bytes - 4, 4);
    cr_assert_eq(last, 0.25f);
    free(file);
}

Test(safetensors, written_files_are_read_and_no_temporary_file_remains) {
    char path[FILES_PATH_BYTES];
    tutti_safetensors content;
    write_sample(path);
    write_sample(path); /* replaces */
    cr_assert_eq(tutti_safetensors_read(path, &content), TUTTI_OK, "%s", tutti_last_error());
    const tutti_safetensors_entry *a = tutti_safetensors_find(&content, "a.weight");
    cr_assert(a != NULL && a->ndims == 2 && a->dims[0] == 2 && a->dims[1] == 3 && a->count == 6);
    cr_assert_arr_eq(a->data, ((float[]){1, -2, 3.5f, 4, 5, 6}), 24);
    cr_assert_eq(tutti_safetensors_find(&content, "b")->data[0], 0.25f);
    cr_assert_null(tutti_safetensors_find(&content, "c"));
    cr_assert_str_eq(tutti_safetensors_text_of(&content, "step"), "12");
    cr_assert_null(tutti_safetensors_text_of(&content, "seed"));
    tutti_safetensors_close(&content);
    int files = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) files += entry->d_name[0] != '.';
    closedir(listing);
    cr_assert_eq(files, 1);
}

Test(safetensors, a_file_cut_anywhere_is_an_error) {
    char path[FILES_PATH_BYTES];
    size_t bytes;
    tutti_safetensors content;
    write_sample(path);
    uint8_t *file = files_read(path, &bytes);
    for (size_t kept = 0; kept < bytes; kept++) {
        files_write(folder, "cut", false, file, kept);
        files_join(folder, "cut", path);
        cr_assert_eq(tutti_safetensors_read(path, &content), TUTTI_ERR_DATA, "kept %zu: %s", kept, tutti_last_error());
        cr_assert(strstr(tutti_last_error(), "offset") != NULL && strstr(tutti_last_error(), "expected") != NULL);
    }
    free(file);
}

Test(safetensors, a_changed_byte_is_an_error_or_stays_within_the_file) {
    char path[FILES_PATH_BYTES];
    size_t bytes;
    write_sample(path);
    uint8_t *file = files_read(path, &bytes);
    files_join(folder, "changed", path);
    for (size_t at = 0; at < bytes - 28; at++)
        for (int change = 1; change < 256; change <<= 1) {
            tutti_safetensors content;
            file[at] ^= (uint8_t)change;
            files_write(folder, "changed", false, file, bytes);
            if (tutti_safetensors_read(path, &content) == TUTTI_OK) {
                float sum = 0; /* under the address sanitizer this reads all accepted data */
                for (int i = 0; i < content.nentries; i++)
                    for (size_t e = 0; e < content.entries[i].count; e++) sum += content.entries[i].data[e];
                cr_assert(sum < 1e30f);
                tutti_safetensors_close(&content);
            }
            file[at] ^= (uint8_t)change;
        }
    free(file);
}

/* Checks that a file with this header and that number of data bytes is refused with a text that contains `why`. */
static void expect_refused(const char *header, size_t data_bytes, const char *why) {
    uint8_t file[512] = {(uint8_t)strlen(header)};
    char path[FILES_PATH_BYTES];
    tutti_safetensors content;
    memcpy(file + 8, header, strlen(header));
    files_write(folder, "odd", false, file, 8 + strlen(header) + data_bytes);
    files_join(folder, "odd", path);
    cr_assert_eq(tutti_safetensors_read(path, &content), TUTTI_ERR_DATA, "%s is taken", header);
    cr_assert(strstr(tutti_last_error(), why) != NULL, "%s", tutti_last_error());
}

#define TENSOR(name, from, to) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" from "," to "]}"

Test(safetensors, duplicates_and_bytes_between_or_after_the_tensors_are_errors) {
    expect_refused("{" TENSOR("a", "0", "8") "," TENSOR("a", "8", "16") "}", 16, "tensor a occurs twice");
    expect_refused("{" TENSOR("a", "0", "8") "}", 12, "4 bytes follow the last tensor");
    expect_refused("{" TENSOR("a", "0", "8") "," TENSOR("b", "12", "20") "}", 20, "tensor b begins at byte 12");
    expect_refused("{" TENSOR("b", "4", "12") "," TENSOR("a", "0", "8") "}", 12, "tensor b begins at byte 4");
    expect_refused("{" TENSOR("a", "0", "8") "}{}", 8, "the end of the header");
    expect_refused("{}", 4, "4 bytes follow the last tensor");
}

/* ------------------------------------------------------------------------------------------ checkpoints */

typedef struct fixture {
    tutti_model *model;
    tutti_update update;
    tutti_checkpoint_content content;
} fixture;

static float *zero_gradient(void *context, int parameter) {
    (void)parameter;
    return context;
}

/* Makes a model with an optimizer that has made `steps` steps. */
static fixture make_fixture(const char *model_name, const char *optimizer, uint64_t seed, int steps) {
    fixture made;
    tutti_model_layers list = {.count = 0};
    tutti_models_options options = {.classes = 10, .dropout = -1};
    tutti_models_find(model_name)->fill(&options, &list);
    cr_assert_eq(tutti_model_create(&list, (tutti_shape){6, 5, 1}, 2, training_compute(), &made.model), TUTTI_OK, "%s",
                 tutti_last_error());
    tutti_model_initialize(made.model, seed);
    tutti_update_options update_options = {.momentum = 0.5, .weight_decay = 0.25};
    cr_assert_eq(tutti_update_init(&made.update, optimizer, &update_options, made.model, NULL), TUTTI_OK);
    float *gradient = calloc(tutti_model_parameter_count(made.model), sizeof *gradient);
    tutti_gradient_sink sink = {.context = gradient, .where = zero_gradient};
    tutti_step_values values;
    for (int i = 0; i < steps; i++) {
        tutti_update_begin(&made.update, 0.1, &values);
        tutti_update_step(&made.update, made.model, &values, &sink);
    }
    free(gradient);
    made.content = (tutti_checkpoint_content){.model_name = model_name, .model = made.model};
    return made;
}

static void drop_fixture(fixture *made) {
    tutti_update_fini(&made->update);
    tutti_model_destroy(made->model);
}

static const tutti_checkpoint_position somewhere = {
    .seed = 42, .step = 7, .epoch = 1, .samples = 300, .ranks = 3, .batch_size = 50};

static void save_fixture(fixture *made) {
    made->content.update = &made->update;
    char path[TUTTI_CHECKPOINT_PATH_BYTES], expected[FILES_PATH_BYTES];
    cr_assert_eq(tutti_checkpoint_save(folder, &made->content, &somewhere, path), TUTTI_OK, "%s", tutti_last_error());
    files_join(folder, "step-00000007.safetensors", expected);
    cr_assert_str_eq(path, expected);
}

static tutti_status load_fixture(fixture *made, tutti_checkpoint_position *position) {
    made->content.update = &made->update;
    return tutti_checkpoint_load(folder, &made->content, position);
}

static void check_round_trip(const char *model_name, const char *optimizer) {
    fixture saved = make_fixture(model_name, optimizer, 1, 3), loaded = make_fixture(model_name, optimizer, 2, 0);
    tutti_checkpoint_position position;
    save_fixture(&saved);
    cr_assert_eq(load_fixture(&loaded, &position), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(memcmp(&position, &somewhere, sizeof position), 0);
    cr_assert_eq(loaded.update.steps, 7);
    for (int i = 0; i < saved.model->nparameters; i++)
        cr_assert_arr_eq(saved.model->parameters[i].data, loaded.model->parameters[i].data,
                         saved.model->parameters[i].count * sizeof(float));
    size_t states = (size_t)saved.update.row->nstates * saved.update.count;
    cr_assert_arr_eq(saved.update.states, loaded.update.states, states * sizeof(float));
    drop_fixture(&saved), drop_fixture(&loaded);
}

Test(checkpoint, parameters_optimizer_and_position_are_restored) {
    check_round_trip("lenet", "momentum");
    check_round_trip("lenet", "adam");
    check_round_trip("mlp", "adamw");
}

/* Replaces a number in the file, which contains it once, by another one. */
static void damage_file(float from, float to) {
    char path[FILES_PATH_BYTES];
    size_t bytes, found = 0;
    files_join(folder, "step-00000007.safetensors", path);
    uint8_t *content = files_read(path, &bytes);
    cr_assert_not_null(content);
    for (size_t at = bytes % sizeof from; at + sizeof from <= bytes; at += sizeof from)
        if (memcmp(content + at, &from, sizeof from) == 0) memcpy(content + at, &to, sizeof to), found++;
    cr_assert_eq(found, 1);
    files_write(folder, "step-00000007.safetensors", false, content, bytes);
    free(content);
}

Test(checkpoint, numbers_that_are_not_finite_are_neither_written_nor_read) {
    static const float wrong[] = {NAN, INFINITY, -INFINITY}, mark = 12345.678f;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fixture saved = make_fixture("mlp", "adam", 1, 0), loaded = make_fixture("mlp", "adam", 2, 0);
        const tutti_parameter *last = &saved.model->parameters[saved.model->nparameters - 1];
        tutti_checkpoint_position position;
        char path[TUTTI_CHECKPOINT_PATH_BYTES];
        float *place = i < 2 ? &last->data[last->count - 1] : &saved.update.states[0]; /* the optimizer's */
        *place = mark;
        save_fixture(&saved);
        *place = wrong[i];
        cr_assert_eq(tutti_checkpoint_save(folder, &saved.content, &somewhere, path), TUTTI_ERR_SYSTEM);
        cr_assert(strstr(tutti_last_error(), "training diverged, and nothing is written") != NULL, "%s",
                  tutti_last_error());
        cr_assert_eq(load_fixture(&loaded, &position), TUTTI_OK, "the one before is whole: %s", tutti_last_error());
        damage_file(mark, wrong[i]);
        cr_assert_eq(load_fixture(&loaded, &position), TUTTI_ERR_DATA);
        cr_assert(strstr(tutti_last_error(), "expected finite numbers") != NULL, "%s", tutti_last_error());
        cr_assert(i == 2 || strstr(tutti_last_error(), last->name) != NULL, "%s", tutti_last_error());
        drop_fixture(&saved), drop_fixture(&loaded);
    }
}

Test(checkpoint, another_model_or_optimizer_is_an_error_that_names_both) {
    fixture saved = make_fixture("mlp", "adam", 1, 0), other = make_fixture("mlp", "sgd", 1, 0);
    fixture lenet = make_fixture("lenet", "adam", 1, 0);
    tutti_checkpoint_position position;
    save_fixture(&saved);
    cr_assert_eq(load_fixture(&other, &position), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "\"adam\"") != NULL && strstr(tutti_last_error(), "\"sgd\"") != NULL);
    cr_assert_eq(load_fixture(&lenet, &position), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "\"mlp\"") != NULL && strstr(tutti_last_error(), "\"lenet\"") != NULL);
    drop_fixture(&saved), drop_fixture(&other), drop_fixture(&lenet);
}

Test(checkpoint, a_checkpoint_contains_its_model_and_its_optimizer) {
    fixture saved = make_fixture("mlp", "adam", 1, 0);
    tutti_checkpoint_found found;
    save_fixture(&saved);
    cr_assert_eq(tutti_checkpoint_find(folder, &found), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_str_eq(found.model, "mlp");
    cr_assert_str_eq(found.optimizer, "adam");
    char path[FILES_PATH_BYTES];
    files_join(folder, "step-00000007.safetensors", path);
    cr_assert_str_eq(found.path, path);
    cr_assert_eq(tutti_checkpoint_find(path, &found), TUTTI_OK, "%s", tutti_last_error());
    files_write(folder, "step-00000009.safetensors", false, "x", 1);
    cr_assert_eq(tutti_checkpoint_find(folder, &found), TUTTI_ERR_DATA, "the latest file is not a valid checkpoint");
    drop_fixture(&saved);
}

Test(checkpoint, an_empty_or_missing_folder_cannot_be_resumed) {
    fixture made = make_fixture("mlp", "sgd", 1, 0);
    tutti_checkpoint_position position;
    tutti_checkpoint_found found;
    cr_assert_eq(tutti_checkpoint_find(folder, &found), TUTTI_ERR_CONFIG);
    cr_assert_not_null(strstr(tutti_last_error(), "no file step-"));
    cr_assert_eq(load_fixture(&made, &position), TUTTI_ERR_CONFIG);
    cr_assert_not_null(strstr(tutti_last_error(), "no file step-"));
    cr_assert_eq(tutti_checkpoint_load("/no/such/folder", &made.content, &position), TUTTI_ERR_CONFIG);
    drop_fixture(&made);
}

Test(checkpoint, a_folder_with_checkpoints_is_refused_unless_overwritten_or_resumed) {
    char path[FILES_PATH_BYTES], other[FILES_PATH_BYTES], newest[FILES_PATH_BYTES];
    struct stat about;
    bool replaces = true;
    files_join(folder, "new", path);
    cr_assert_eq(tutti_checkpoint_prepare(path, false, NULL, &replaces), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_neq(stat(path, &about), 0, "it is made with the first checkpoint");
    cr_assert_eq(mkdir(path, 0777), 0);
    files_write(path, "notes.txt", false, "x", 1);
    cr_assert_eq(tutti_checkpoint_prepare(path, false, NULL, &replaces), TUTTI_OK, "%s", tutti_last_error());
    files_write(path, "step-00000012.safetensors", false, "x", 1);
    cr_assert_eq(tutti_checkpoint_prepare(path, false, NULL, &replaces), TUTTI_ERR_CONFIG);
    cr_assert_not_null(strstr(tutti_last_error(), "--overwrite"));
    files_join(path, "step-00000012.safetensors", other);
    cr_assert_eq(tutti_checkpoint_prepare(path, false, path, &replaces), TUTTI_OK);
    cr_assert_eq(tutti_checkpoint_prepare(path, true, other, &replaces), TUTTI_OK);
    cr_assert(!replaces, "resuming keeps the checkpoints");
    cr_assert_eq(tutti_checkpoint_prepare(path, true, NULL, &replaces), TUTTI_OK);
    cr_assert(replaces && stat(other, &about) == 0, "they stay until there is a new one");
    files_write(path, "step-00000007.safetensors", false, "x", 1);
    files_join(path, "step-00000007.safetensors", newest);
    cr_assert_eq(tutti_checkpoint_remove_others(path, newest), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(stat(newest, &about) == 0 && stat(other, &about) != 0, "the new one takes their place");
    files_join(path, "notes.txt", other);
    cr_assert_eq(stat(other, &about), 0, "and nothing else");
    cr_assert_eq(tutti_checkpoint_prepare(other, false, NULL, &replaces), TUTTI_ERR_CONFIG, "a file");
    cr_assert_eq(tutti_checkpoint_prepare("/no/such/folder/new", false, NULL, &replaces), TUTTI_ERR_SYSTEM);
}
