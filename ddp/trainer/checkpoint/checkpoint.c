/*
 * Folders with checkpoints, and reading checkpoints. checkpoint_save.c writes them.
 */
#include "ddp/trainer/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/checkpoint_parts.h"

#define PATH_BYTES TUTTI_CHECKPOINT_PATH_BYTES

/* The step in a checkpoint's file name, or -1. */
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

/* Returns whether `resume` is the folder or a file in it. */
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
    bool has = listing == NULL; /* a folder that cannot be read may contain some */
    for (struct dirent *entry; !has && (entry = readdir(listing)) != NULL;) has = step_of_name(entry->d_name) >= 0;
    if (listing != NULL) closedir(listing);
    return has;
}

/* Returns whether the name is that of an unfinished file. */
static bool is_unfinished(const char *name) {
    int64_t step;
    uint64_t mark;
    int end = 0;
    return sscanf(name, "step-%" SCNd64 ".safetensors.%" SCNx64 ".tmp%n", &step, &mark, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

/* Removes the files that a run left unfinished when it ended during a write. */
static void remove_unfinished(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        if (is_unfinished(entry->d_name)) (void)unlinkat(dirfd(listing), entry->d_name, 0);
    closedir(listing);
}

tutti_status tutti_checkpoint_remove_others(const char *folder, const char *path) {
    const char *slash = strrchr(path, '/'), *kept = slash != NULL ? slash + 1 : path;
    DIR *listing = opendir(folder);
    if (listing == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: %s", folder, strerror(errno));
    tutti_status status = TUTTI_OK;
    for (struct dirent *entry; status == TUTTI_OK && (entry = readdir(listing)) != NULL;)
        if (step_of_name(entry->d_name) >= 0 && strcmp(entry->d_name, kept) != 0 &&
            unlinkat(dirfd(listing), entry->d_name, 0) != 0)
            status = tutti_fail(TUTTI_ERR_SYSTEM, "--overwrite: %s/%s cannot be removed: %s", folder, entry->d_name,
                                strerror(errno));
    closedir(listing);
    return status;
}

tutti_status tutti_checkpoint_prepare(const char *folder, bool overwrite, const char *resume, bool *replaces_out) {
    struct stat about;
    *replaces_out = false;
    if (mkdir(folder, 0777) == 0) { /* the folder can be created */
        rmdir(folder);
        return TUTTI_OK;
    }
    if (errno != EEXIST)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be created: %s", folder, strerror(errno));
    if (stat(folder, &about) == 0 && !S_ISDIR(about.st_mode))
        return tutti_fail(TUTTI_ERR_CONFIG, "--checkpoint-dir %s is a file; give a folder", folder);
    if (access(folder, W_OK | X_OK) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be written to: %s", folder, strerror(errno));
    if (resumes_from(folder, resume) || !has_checkpoints(folder)) {
        remove_unfinished(folder);
        return TUTTI_OK;
    }
    if (!overwrite)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "--checkpoint-dir %s has checkpoints; give another folder, --resume %s to go on from it, or "
                          "--overwrite to remove them",
                          folder, folder);
    remove_unfinished(folder);
    *replaces_out = true;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- reading */

/* If `path` is a file, returns it; if it is a folder, returns the file with the most steps in it. */
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

/* Reads elements [first, first + count) of this rank's box to `data`. `is_optional`: the tensor may be missing. */
static tutti_status read_part(tutti_compute *compute, const tutti_safetensors *file, const tutti_parameter *parameter,
                              const char *state, tutti_ddp_part range, float *data, bool is_optional) {
    char name[TUTTI_SAFETENSORS_NAME_BYTES];
    tutti_checkpoint_name(parameter, state, name);
    const tutti_safetensors_entry *entry = tutti_safetensors_find(file, name);
    if (entry == NULL && is_optional) return TUTTI_OK;
    if (entry == NULL) return tutti_fail(TUTTI_ERR_DATA, "%s: tensor %s is missing", file->path, name);
    if (entry->ndims != parameter->ndims ||
        memcmp(entry->dims, parameter->dims, (size_t)parameter->ndims * sizeof parameter->dims[0]) != 0)
        return tutti_fail(TUTTI_ERR_DATA, "%s: tensor %s has %zu elements in %d dimensions, expected %zu in %d",
                          file->path, name, entry->count, entry->ndims, tutti_parameter_whole_count(parameter),
                          parameter->ndims);
    const tutti_checkpoint_part part = tutti_checkpoint_part_of(parameter, range, data, entry->offset);
    return tutti_checkpoint_part_read(&part, compute, file, entry);
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
    TUTTI_TRY(tutti_safetensors_open(found.path, &file));
    tutti_status status = match_text(found.path, &file, "format", TUTTI_CHECKPOINT_FORMAT);
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

/* Returns whether the parameter was frozen when the file was written. Then the file has no optimizer state for it. */
static bool was_frozen(const tutti_safetensors *file, const tutti_parameter *parameter) {
    char key[TUTTI_SAFETENSORS_NAME_BYTES];
    tutti_checkpoint_name(parameter, TUTTI_CHECKPOINT_FROZEN, key);
    return tutti_safetensors_text_of(file, key) != NULL;
}

static tutti_status read_tensors(const tutti_safetensors *file, const tutti_checkpoint_content *content,
                                 int64_t steps) {
    const tutti_model *model = content->model;
    tutti_compute *compute = model->compute;
    const tutti_update_row *row = content->update->row;
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        const tutti_ddp_part whole = {0, parameter->count};
        float *states[TUTTI_UPDATE_STATES];
        TUTTI_TRY(read_part(compute, file, parameter, "", whole, parameter->data, false));
        if (parameter->frozen) continue;
        tutti_update_states(content->update, i, states);
        for (int s = 0; s < row->nstates; s++)
            TUTTI_TRY(read_part(compute, file, parameter, row->state_names[s], content->update->parts[i], states[s],
                                was_frozen(file, parameter)));
    }
    for (int i = 0; i < model->nstates; i++) {
        const tutti_ddp_part whole = {0, model->states[i].count};
        TUTTI_TRY(read_part(compute, file, &model->states[i], "", whole, model->states[i].data, false));
    }
    content->update->steps = steps;
    return compute->kernels->check(compute);
}

static tutti_status read_content(const char *path, const tutti_safetensors *file,
                                 const tutti_checkpoint_content *content, tutti_checkpoint_position *position) {
    TUTTI_TRY(match_text(path, file, "format", TUTTI_CHECKPOINT_FORMAT));
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
    if (tutti_safetensors_text_of(file, "norm_parts") != NULL)
        TUTTI_TRY(read_number(path, file, "norm_parts", 0, &position->norm_parts));

    return read_tensors(file, content, position->step);
}

tutti_status tutti_checkpoint_load(const char *path, const tutti_checkpoint_content *content,
                                   tutti_checkpoint_position *position_out) {
    char file_path[PATH_BYTES];
    tutti_safetensors file;
    TUTTI_TRY(find_file(path, file_path));
    TUTTI_TRY(tutti_safetensors_open(file_path, &file));
    tutti_checkpoint_position position = {.seed = 0};
    tutti_status status = read_content(file_path, &file, content, &position);
    tutti_safetensors_close(&file);
    if (status == TUTTI_OK) *position_out = position;
    return status;
}
