/*
 * Checkpoints as safetensors files.
 */
#include "ddp/trainer/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/trainer/parallel.h"

#define PATH_BYTES TUTTI_CHECKPOINT_PATH_BYTES
#define FILE_NAME  "step-%08" PRId64 ".safetensors"
#define FORMAT     "tutti-train 1"

/* The step of a checkpoint's file name, or -1. */
static int64_t step_of_name(const char *name) {
    int64_t step;
    int end = 0;
    if (sscanf(name, "step-%" SCNd64 ".safetensors%n", &step, &end) != 1 || end == 0 || name[end] != '\0') return -1;
    return step;
}

/* ----------------------------------------------------------------------------------------- the folder */

static bool is_same_file(const char *a, const char *b) {
    struct stat about_a, about_b;
    return stat(a, &about_a) == 0 && stat(b, &about_b) == 0 && about_a.st_dev == about_b.st_dev &&
           about_a.st_ino == about_b.st_ino;
}

/* Is `resume` the folder, or a file in it? */
static bool resumes_from(const char *folder, const char *resume) {
    if (resume == NULL) return false;
    if (is_same_file(folder, resume)) return true;
    char parent[PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", resume);
    char *slash = strrchr(parent, '/');
    if (slash != NULL) *slash = '\0';
    return is_same_file(folder, slash != NULL ? parent : ".");
}

static bool has_checkpoints(const char *folder) {
    DIR *listing = opendir(folder);
    bool has = listing == NULL; /* what cannot be read may have some */
    for (struct dirent *entry; !has && (entry = readdir(listing)) != NULL;) has = step_of_name(entry->d_name) >= 0;
    if (listing != NULL) closedir(listing);
    return has;
}

static tutti_status remove_checkpoints(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: %s", folder, strerror(errno));
    tutti_status status = TUTTI_OK;
    for (struct dirent *entry; status == TUTTI_OK && (entry = readdir(listing)) != NULL;)
        if (step_of_name(entry->d_name) >= 0 && unlinkat(dirfd(listing), entry->d_name, 0) != 0)
            status =
                tutti_fail(TUTTI_ERR_SYSTEM, "%s/%s: cannot be removed: %s", folder, entry->d_name, strerror(errno));
    closedir(listing);
    return status;
}

tutti_status tutti_checkpoint_prepare(const char *folder, bool overwrite, const char *resume) {
    struct stat about;
    if (mkdir(folder, 0777) == 0) { /* it can be made */
        rmdir(folder);
        return TUTTI_OK;
    }
    if (errno != EEXIST)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be made: %s", folder, strerror(errno));
    if (stat(folder, &about) == 0 && !S_ISDIR(about.st_mode))
        return tutti_fail(TUTTI_ERR_CONFIG, "--checkpoint-dir %s is a file; give a folder", folder);
    if (access(folder, W_OK | X_OK) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be written to: %s", folder, strerror(errno));
    if (resumes_from(folder, resume) || !has_checkpoints(folder)) return TUTTI_OK;
    if (!overwrite)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "--checkpoint-dir %s has checkpoints; give another folder, --resume %s to go on from it, or "
                          "--overwrite to remove them",
                          folder, folder);
    return remove_checkpoints(folder);
}

/* -------------------------------------------------------------------------------------------- writing */

/* `data`, memory of the compute, perhaps one rank's part, becomes the whole at *place, which moves on. file NULL: this rank only
 * gives its part to rank 0. */
static tutti_status add_entry(tutti_safetensors *file, const tutti_model *model, const tutti_parameter *parameter,
                              const char *state, const float *data, float **place) {
    const tutti_compute *compute = model->compute;
    const size_t count = tutti_parameter_whole_count(parameter);
    if (file == NULL) return tutti_parallel_gather(model->parallel, compute, parameter, data, NULL);
    tutti_safetensors_entry *entry = &file->entries[file->nentries++];
    snprintf(entry->name, sizeof entry->name, "%s%s%s", state, state[0] != '\0' ? "/" : "", parameter->name);
    entry->ndims = parameter->ndims;
    memcpy(entry->dims, parameter->dims, sizeof parameter->dims);
    entry->data = *place;
    entry->count = count;
    *place += count;
    if (model->parallel != NULL) return tutti_parallel_gather(model->parallel, compute, parameter, data, entry->data);
    return compute->kernels->download(model->compute, entry->data, data, count * sizeof *data);
}

static void add_text(tutti_safetensors *file, const char *key, const char *value) {
    tutti_safetensors_text *text = &file->texts[file->ntexts++];
    snprintf(text->key, sizeof text->key, "%s", key);
    snprintf(text->value, sizeof text->value, "%s", value);
}

static void add_number(tutti_safetensors *file, const char *key, uint64_t number) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, number);
    add_text(file, key, text);
}

static void fill_texts(tutti_safetensors *file, const tutti_checkpoint_content *content,
                       const tutti_checkpoint_position *position) {
    add_text(file, "format", FORMAT);
    add_text(file, "model", content->model_name);
    add_text(file, "optimizer", content->update->row->name);
    add_text(file, "random", "philox4x32-10 by seed, epoch and step");
    add_number(file, "seed", position->seed);
    add_number(file, "step", (uint64_t)position->step);
    add_number(file, "epoch", (uint64_t)position->epoch);
    add_number(file, "samples", (uint64_t)position->samples);
    add_number(file, "ranks", (uint64_t)position->ranks);
    add_number(file, "batch_size", (uint64_t)position->batch_size);
}

#define TEXTS 10

static tutti_status fill_entries(tutti_safetensors *file, const tutti_checkpoint_content *content) {
    const tutti_model *model = content->model;
    const tutti_update_row *row = content->update->row;
    float *place = file != NULL ? file->memory : NULL;
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        float *states[TUTTI_UPDATE_STATES];
        TUTTI_TRY(add_entry(file, model, parameter, "", parameter->data, &place));
        tutti_update_states(content->update, model, i, states);
        for (int s = 0; s < row->nstates; s++)
            TUTTI_TRY(add_entry(file, model, parameter, row->state_names[s], states[s], &place));
    }
    for (int i = 0; i < model->nstates; i++)
        TUTTI_TRY(add_entry(file, model, &model->states[i], "", model->states[i].data, &place));
    return TUTTI_OK;
}

tutti_status tutti_checkpoint_save(const char *folder, const tutti_checkpoint_content *content,
                                   const tutti_checkpoint_position *position, char path_out[PATH_BYTES]) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/" FILE_NAME, folder, position->step) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_CONFIG, "--checkpoint-dir %s: the path is too long", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be made: %s", folder, strerror(errno));
    const tutti_model *model = content->model;
    const tutti_update_row *row = content->update->row;
    tutti_safetensors file = {.nentries = 0};
    const size_t arrays = 1 + (size_t)row->nstates; /* for each parameter */
    file.entries = calloc((size_t)model->nparameters * arrays + (size_t)model->nstates, sizeof *file.entries);
    file.texts = calloc(TEXTS, sizeof *file.texts);
    tutti_status status = TUTTI_OK;
    file.memory =
        malloc((tutti_model_parameter_count(model) * arrays + tutti_model_state_count(model)) * sizeof(float));
    if (file.entries == NULL || file.texts == NULL || file.memory == NULL) {
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a checkpoint");
    } else {
        fill_texts(&file, content, position);
        status = fill_entries(&file, content);
        if (status == TUTTI_OK) status = tutti_safetensors_write(path, &file);
    }
    tutti_safetensors_close(&file);
    if (status == TUTTI_OK) memcpy(path_out, path, sizeof path);
    return status;
}

tutti_status tutti_checkpoint_give(const tutti_checkpoint_content *content) {
    return fill_entries(NULL, content);
}

/* -------------------------------------------------------------------------------------------- reading */

/* Of the whole on the host this rank's part becomes `data`. */
static tutti_status upload_part(tutti_compute *compute, const tutti_parameter *parameter, const float *whole,
                                float *data) {
    if (tutti_parameter_whole_count(parameter) == parameter->count) {
        compute->kernels->upload(compute, data, whole, parameter->count * sizeof *data);
        return TUTTI_OK;
    }
    float *part = malloc(parameter->count * sizeof *part);
    if (part == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a part of %s", parameter->name);
    tutti_parameter_copy_box(parameter, part, whole);
    compute->kernels->upload(compute, data, part, parameter->count * sizeof *data);
    free(part);
    return TUTTI_OK;
}

/* A file is taken as it is; of a folder the file with the most steps. */
static tutti_status find_file(const char *path, char *file_out) {
    struct stat about;
    if (stat(path, &about) != 0) return tutti_fail(TUTTI_ERR_CONFIG, "--resume %s: %s", path, strerror(errno));
    if (!S_ISDIR(about.st_mode)) {
        snprintf(file_out, PATH_BYTES, "%s", path);
        return TUTTI_OK;
    }
    DIR *listing = opendir(path);
    if (listing == NULL) return tutti_fail(TUTTI_ERR_CONFIG, "--resume %s: %s", path, strerror(errno));
    int64_t best = -1;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        int64_t step = step_of_name(entry->d_name);
        if (step > best && snprintf(file_out, PATH_BYTES, "%s/%s", path, entry->d_name) < PATH_BYTES) best = step;
    }
    closedir(listing);
    if (best < 0) return tutti_fail(TUTTI_ERR_CONFIG, "--resume %s: no file step-<step>.safetensors in it", path);
    return TUTTI_OK;
}

/* `data` is memory of the compute. */
static tutti_status copy_entry(tutti_compute *compute, const char *path, const tutti_safetensors *file,
                               const tutti_parameter *parameter, const char *state, float *data) {
    char name[TUTTI_SAFETENSORS_NAME_BYTES];
    snprintf(name, sizeof name, "%s%s%s", state, state[0] != '\0' ? "/" : "", parameter->name);
    const tutti_safetensors_entry *entry = tutti_safetensors_find(file, name);
    if (entry == NULL) return tutti_fail(TUTTI_ERR_DATA, "%s: expected a tensor %s, there is none", path, name);
    if (entry->ndims != parameter->ndims ||
        memcmp(entry->dims, parameter->dims, (size_t)parameter->ndims * sizeof parameter->dims[0]) != 0)
        return tutti_fail(TUTTI_ERR_DATA, "%s: tensor %s has %zu elements in %d dimensions, expected %zu in %d", path,
                          name, entry->count, entry->ndims, tutti_parameter_whole_count(parameter), parameter->ndims);
    for (size_t i = 0; i < entry->count; i++)
        if (!isfinite(entry->data[i]))
            return tutti_fail(
                TUTTI_ERR_DATA,
                "%s: tensor %s has %f at index %zu, expected finite numbers: the training that wrote it had diverged, "
                "or the file is damaged; resume from an earlier one",
                path, name, (double)entry->data[i], i);
    return upload_part(compute, parameter, entry->data, data);
}

static tutti_status match_text(const char *path, const tutti_safetensors *file, const char *key, const char *expected) {
    const char *found = tutti_safetensors_text_of(file, key);
    if (found == NULL || strcmp(found, expected) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s: its %s is \"%s\", expected \"%s\"", path, key,
                          found != NULL ? found : "missing", expected);
    return TUTTI_OK;
}

static tutti_status copy_text(const char *path, const tutti_safetensors *file, const char *key,
                              char text_out[TUTTI_SAFETENSORS_NAME_BYTES]) {
    const char *found = tutti_safetensors_text_of(file, key);
    if (found == NULL)
        return tutti_fail(TUTTI_ERR_DATA, "%s: its header has no %s; is it a checkpoint of tutti-train?", path, key);
    snprintf(text_out, TUTTI_SAFETENSORS_NAME_BYTES, "%s", found);
    return TUTTI_OK;
}

tutti_status tutti_checkpoint_find(const char *path, tutti_checkpoint_found *found_out) {
    tutti_checkpoint_found found;
    tutti_safetensors file;
    TUTTI_TRY(find_file(path, found.path));
    TUTTI_TRY(tutti_safetensors_read(found.path, &file));
    tutti_status status = match_text(found.path, &file, "format", FORMAT);
    if (status == TUTTI_OK) status = copy_text(found.path, &file, "model", found.model);
    if (status == TUTTI_OK) status = copy_text(found.path, &file, "optimizer", found.optimizer);
    tutti_safetensors_close(&file);
    if (status == TUTTI_OK) *found_out = found;
    return status;
}

static tutti_status read_number(const char *path, const tutti_safetensors *file, const char *key, int64_t least,
                                int64_t *number_out) {
    const char *text = tutti_safetensors_text_of(file, key);
    char *end = NULL;
    errno = 0;
    int64_t number = text != NULL ? strtoll(text, &end, 10) : -1;
    if (text == NULL || end == text || *end != '\0' || errno != 0 || number < least)
        return tutti_fail(TUTTI_ERR_DATA, "%s: its %s is \"%s\", expected a number from %" PRId64 " on", path, key,
                          text != NULL ? text : "missing", least);
    *number_out = number;
    return TUTTI_OK;
}

static tutti_status read_content(const char *path, const tutti_safetensors *file,
                                 const tutti_checkpoint_content *content, tutti_checkpoint_position *position) {
    TUTTI_TRY(match_text(path, file, "format", FORMAT));
    TUTTI_TRY(match_text(path, file, "model", content->model_name));
    TUTTI_TRY(match_text(path, file, "optimizer", content->update->row->name));
    int64_t seed = 0;
    TUTTI_TRY(read_number(path, file, "seed", 0, &seed));
    position->seed = (uint64_t)seed;
    TUTTI_TRY(read_number(path, file, "step", 0, &position->step));
    TUTTI_TRY(read_number(path, file, "epoch", 0, &position->epoch));
    TUTTI_TRY(read_number(path, file, "samples", 0, &position->samples));
    TUTTI_TRY(read_number(path, file, "ranks", 1, &position->ranks));
    TUTTI_TRY(read_number(path, file, "batch_size", 1, &position->batch_size));

    const tutti_model *model = content->model;
    tutti_compute *compute = model->compute;
    const tutti_update_row *row = content->update->row;
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        float *states[TUTTI_UPDATE_STATES];
        TUTTI_TRY(copy_entry(compute, path, file, parameter, "", parameter->data));
        tutti_update_states(content->update, model, i, states);
        for (int s = 0; s < row->nstates; s++)
            TUTTI_TRY(copy_entry(compute, path, file, parameter, row->state_names[s], states[s]));
    }
    for (int i = 0; i < model->nstates; i++)
        TUTTI_TRY(copy_entry(compute, path, file, &model->states[i], "", model->states[i].data));
    content->update->steps = position->step;
    return compute->kernels->check(compute);
}

tutti_status tutti_checkpoint_load(const char *path, const tutti_checkpoint_content *content,
                                   tutti_checkpoint_position *position_out) {
    char file_path[PATH_BYTES];
    tutti_safetensors file;
    TUTTI_TRY(find_file(path, file_path));
    TUTTI_TRY(tutti_safetensors_read(file_path, &file));
    tutti_checkpoint_position position = {.seed = 0};
    tutti_status status = read_content(file_path, &file, content, &position);
    tutti_safetensors_close(&file);
    if (status == TUTTI_OK) *position_out = position;
    return status;
}
