/*
 * Writes a checkpoint; each rank writes its parts: see checkpoint.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/checkpoint.h"
#include "ddp/trainer/checkpoint/checkpoint_parts.h"
#include "ddp/trainer/layers/parallel.h"

#define PATH_BYTES TUTTI_CHECKPOINT_PATH_BYTES
#define TEXT_BYTES TUTTI_CHECKPOINT_TEXT_BYTES
#define FILE_NAME  "step-%08" PRId64 ".safetensors"
#define TEXTS      10

/* Broadcast by rank 0. */
typedef struct announcement {
    int64_t offset;             /* offset of the first tensor */
    char temporary[PATH_BYTES]; /* absolute */
    char failure[TEXT_BYTES];   /* "": no failure */
} announcement;

typedef enum outcome { NOTHING_TO_WRITE, WROTE, CANNOT_SEE, FAILED } outcome;

/* Gathered from each rank on all ranks. */
typedef struct report {
    int64_t outcome;
    char failure[TEXT_BYTES];
} report;

typedef struct saving {
    const tutti_checkpoint_content *content;
    int rank, nranks, fd;
    tutti_safetensors file;       /* the header */
    tutti_checkpoint_part *parts; /* by entry: the part that this rank writes, may be empty */
    announcement about;
    char path[PATH_BYTES]; /* rank 0 */
    bool made;             /* rank 0: the temporary file exists */
} saving;

static const tutti_options on_host = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST);

static void keep_failure(char text[TEXT_BYTES]) {
    snprintf(text, TEXT_BYTES, "%s", tutti_last_error());
}

/* -------------------------------------------------------------------------------------------- the content */

/* Returns whether this rank writes the parameter: of the ranks that hold the same elements, the first one does.
 * With `zero`, the ranks whose gradients are summed hold different elements. */
static bool writes(const saving *s, const tutti_parameter *parameter, bool zero) {
    const tutti_parallel *parallel = s->content->model->parallel;
    if (parallel == NULL) return zero || s->rank == 0;
    for (int a = 0; a < parallel->strategy->naxes; a++) {
        const bool copies = parameter->sbp[a].kind == TUTTI_SBP_BROADCAST && !(zero && (parameter->sums >> a & 1) != 0);
        if (copies && tutti_placement_coordinate(parallel->placement, a) != 0) return false;
    }
    return true;
}

static void add_entry(saving *s, const tutti_parameter *parameter, const char *state, tutti_ddp_part range, float *data,
                      bool zero) {
    const int index = s->file.nentries++;
    tutti_safetensors_entry *entry = &s->file.entries[index];
    tutti_checkpoint_name(parameter, state, entry->name);
    entry->ndims = parameter->ndims;
    memcpy(entry->dims, parameter->dims, sizeof parameter->dims);
    entry->count = tutti_parameter_whole_count(parameter);
    if (!writes(s, parameter, zero)) range.count = 0;
    s->parts[index] = tutti_checkpoint_part_of(parameter, range, data, 0);
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

static void fill_texts(saving *s, const tutti_checkpoint_position *position) {
    const tutti_model *model = s->content->model;
    tutti_safetensors *file = &s->file;
    add_text(file, "format", TUTTI_CHECKPOINT_FORMAT);
    add_text(file, "model", s->content->model_name);
    add_text(file, "optimizer", s->content->update->row->name);
    add_text(file, "random", "philox4x32-10 by seed, epoch and step");
    add_number(file, "seed", position->seed);
    add_number(file, "step", (uint64_t)position->step);
    add_number(file, "epoch", (uint64_t)position->epoch);
    add_number(file, "samples", (uint64_t)position->samples);
    add_number(file, "ranks", (uint64_t)position->ranks);
    add_number(file, "batch_size", (uint64_t)position->batch_size);
    add_number(file, "norm_parts", (uint64_t)position->norm_parts);
    for (int i = 0; i < model->nparameters; i++) {
        char key[TUTTI_SAFETENSORS_NAME_BYTES];
        if (!model->parameters[i].frozen) continue;
        tutti_checkpoint_name(&model->parameters[i], TUTTI_CHECKPOINT_FROZEN, key);
        add_text(file, key, "yes");
    }
}

static void fill_entries(saving *s) {
    const tutti_model *model = s->content->model;
    const tutti_update *update = s->content->update;
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        const bool zero = s->content->zero && !parameter->frozen;
        const tutti_ddp_part part = zero ? update->parts[i] : (tutti_ddp_part){0, parameter->count};
        float *states[TUTTI_UPDATE_STATES];
        add_entry(s, parameter, "", part, parameter->data + part.first, zero);
        if (parameter->frozen) continue;
        tutti_update_states(update, i, states);
        for (int k = 0; k < update->row->nstates; k++)
            add_entry(s, parameter, update->row->state_names[k], part, states[k], zero);
    }
    for (int i = 0; i < model->nstates; i++)
        add_entry(s, &model->states[i], "", (tutti_ddp_part){0, model->states[i].count}, model->states[i].data, false);
}

static tutti_status fill(saving *s, const tutti_checkpoint_position *position) {
    const tutti_model *model = s->content->model;
    const size_t arrays = 1 + (size_t)s->content->update->row->nstates; /* arrays for each parameter */
    const size_t most = (size_t)model->nparameters * arrays + (size_t)model->nstates;
    s->file.entries = calloc(most, sizeof *s->file.entries);
    s->file.texts = calloc(TEXTS + (size_t)model->nparameters, sizeof *s->file.texts);
    s->parts = calloc(most, sizeof *s->parts);
    if (s->file.entries == NULL || s->file.texts == NULL || s->parts == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a checkpoint");
    fill_texts(s, position);
    fill_entries(s);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ rank 0 */

/* Blocks SIGXFSZ, so that a file that exceeds the process's limit is an error and does not end the process. */
static void hold_back_signal(sigset_t *before) {
    sigset_t ours;
    sigemptyset(&ours), sigaddset(&ours, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &ours, before);
}

static void drop_signal(const sigset_t *before) {
    sigset_t ours;
    const int error = errno;
    sigemptyset(&ours), sigaddset(&ours, SIGXFSZ);
    if (!sigismember(before, SIGXFSZ))
        while (sigtimedwait(&ours, NULL, &(struct timespec){0, 0}) == SIGXFSZ) continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
    errno = error;
}

/* Makes a unique file name: a rank that finds a file with this name sees this folder. */
static tutti_status make_name(saving *s, const char *folder) {
    char whole[PATH_MAX];
    uint64_t mark;
    if (realpath(folder, whole) == NULL)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: %s", folder, strerror(errno));
    if (getrandom(&mark, sizeof mark, 0) != sizeof mark)
        return tutti_fail(TUTTI_ERR_SYSTEM, "getting a random number for a file's name failed: %s", strerror(errno));
    const char *name = strrchr(s->path, '/') + 1;
    if (snprintf(s->about.temporary, PATH_BYTES, "%s/%s.%016" PRIx64 ".tmp", whole, name, mark) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_CONFIG, "--checkpoint-dir %s: the path is too long", folder);
    return TUTTI_OK;
}

/* Allocates the file in its full size, so that a full disk is found before any part is sent, and writes its header. */
static tutti_status write_header(saving *s, const char *header, size_t bytes) {
    int64_t end = (int64_t)bytes;
    for (int i = 0; i < s->file.nentries; i++) end += (int64_t)(s->file.entries[i].count * sizeof(float));
    s->fd = open(s->about.temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd < 0) return tutti_fail(TUTTI_ERR_SYSTEM, "cannot be created: %s", strerror(errno));
    s->made = true;
    const bool full = fallocate(s->fd, 0, 0, end) != 0 && errno != EOPNOTSUPP && errno != ENOSYS;
    if (full || ftruncate(s->fd, end) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "no room for its %" PRId64 " bytes: %s", end, strerror(errno));
    for (size_t at = 0; at < bytes;) {
        const ssize_t done = pwrite(s->fd, header + at, bytes - at, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return tutti_fail(TUTTI_ERR_SYSTEM, "its header cannot be written: %s", strerror(errno));
        at += (size_t)done;
    }
    return TUTTI_OK;
}

static tutti_status begin(saving *s, const char *folder, const tutti_checkpoint_position *position) {
    char *header, text[TEXT_BYTES];
    size_t bytes;
    if (snprintf(s->path, PATH_BYTES, "%s/" FILE_NAME, folder, position->step) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_CONFIG, "--checkpoint-dir %s: the path is too long", folder);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return tutti_fail(TUTTI_ERR_SYSTEM, "--checkpoint-dir %s: cannot be created: %s", folder, strerror(errno));
    TUTTI_TRY(make_name(s, folder));
    TUTTI_TRY(tutti_safetensors_make_header(&s->file, &header, &bytes));
    const tutti_status status = write_header(s, header, bytes);
    free(header);
    s->about.offset = (int64_t)bytes;
    if (status == TUTTI_OK) return TUTTI_OK;
    keep_failure(text);
    return tutti_fail(status, "%s: writing failed: %s", s->path, text);
}

/* Removes the temporary file, if it exists. */
static void abandon(saving *s) {
    if (s->made) (void)unlink(s->about.temporary);
    s->made = false;
}

/* ------------------------------------------------------------------------------------------------ all */

/* `local`: the status of rank 0's preparation. */
static tutti_status announce(saving *s, tutti_status local) {
    if (local != TUTTI_OK) keep_failure(s->about.failure);
    if (s->nranks > 1)
        TUTTI_TRY(tutti_broadcast(s->content->comm, &s->about, sizeof s->about, TUTTI_UINT8, 0, &on_host));
    if (s->about.failure[0] != '\0') return tutti_fail(s->rank == 0 ? local : TUTTI_ERR_SYSTEM, "%s", s->about.failure);
    int64_t offset = s->about.offset;
    for (int i = 0; i < s->file.nentries; i++) {
        s->parts[i].offset = offset;
        offset += (int64_t)(s->file.entries[i].count * sizeof(float));
    }
    return TUTTI_OK;
}

static bool has_parts(const saving *s) {
    for (int i = 0; i < s->file.nentries; i++)
        if (s->parts[i].begin < s->parts[i].end) return true;
    return false;
}

static tutti_status sync_file(saving *s) {
    if (fsync(s->fd) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "%s: it cannot be synced: %s", s->about.temporary, strerror(errno));
}

static tutti_status write_parts(saving *s) {
    for (int i = 0; i < s->file.nentries; i++)
        TUTTI_TRY(tutti_checkpoint_part_write(&s->parts[i], s->content->model->compute, s->fd, s->about.temporary));
    return sync_file(s);
}

static void write_own(saving *s, report *own) {
    own->outcome = NOTHING_TO_WRITE;
    if (!has_parts(s)) return;
    own->outcome = CANNOT_SEE;
    if (s->fd < 0) s->fd = open(s->about.temporary, O_RDWR | O_CLOEXEC);
    if (s->fd < 0) return;
    own->outcome = write_parts(s) == TUTTI_OK ? WROTE : FAILED;
    if (own->outcome == FAILED) keep_failure(own->failure);
}

static tutti_status fail_by(const saving *s, int rank, const char *failure) {
    if (s->nranks == 1) return tutti_fail(TUTTI_ERR_SYSTEM, "%s", failure);
    return tutti_fail(TUTTI_ERR_SYSTEM, "rank %d: %s", rank, failure);
}

/* The failure of one rank becomes the error of all. */
static tutti_status judge(const saving *s, const report *reports) {
    for (int rank = 0; rank < s->nranks; rank++)
        if (reports[rank].outcome == FAILED) return fail_by(s, rank, reports[rank].failure);
    return TUTTI_OK;
}

/* Sends the parts of ranks that cannot see the file. `failure`: the parts that rank 0 could not write. */
static tutti_status pass_parts(saving *s, const report *reports, char failure[TEXT_BYTES]) {
    tutti_comm *comm = s->content->comm;
    for (int rank = 1; rank < s->nranks; rank++)
        for (int i = 0; reports[rank].outcome == CANNOT_SEE && i < s->file.nentries; i++) {
            if (s->rank == 0) TUTTI_TRY(tutti_checkpoint_part_take(comm, rank, s->fd, s->about.temporary, failure));
            if (s->rank == rank) TUTTI_TRY(tutti_checkpoint_part_give(&s->parts[i], s->content->model->compute, comm));
        }
    return TUTTI_OK;
}

/* Rank 0: finishes the file, which contains all parts. */
static tutti_status end(saving *s, const char *failure) {
    if (failure[0] != '\0') return tutti_fail(TUTTI_ERR_SYSTEM, "%s", failure);
    TUTTI_TRY(sync_file(s));
    const int closed = close(s->fd);
    s->fd = -1;
    if (closed != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s: it cannot be closed: %s", s->about.temporary, strerror(errno));
    TUTTI_TRY(tutti_safetensors_rename(s->about.temporary, s->path));
    s->made = false;
    return TUTTI_OK;
}

static tutti_status write_together(saving *s, report *reports) {
    report *own = &reports[s->rank];
    char failure[TEXT_BYTES] = "";
    write_own(s, own);
    if (s->nranks > 1) TUTTI_TRY(tutti_all_gather(s->content->comm, own, reports, sizeof *own, TUTTI_UINT8, &on_host));
    TUTTI_TRY(judge(s, reports));
    TUTTI_TRY(pass_parts(s, reports, failure));
    report ended = {.outcome = WROTE};
    if (s->rank == 0 && end(s, failure) != TUTTI_OK) {
        ended.outcome = FAILED;
        keep_failure(ended.failure);
    }
    if (s->nranks > 1) TUTTI_TRY(tutti_broadcast(s->content->comm, &ended, sizeof ended, TUTTI_UINT8, 0, &on_host));
    return ended.outcome == WROTE ? TUTTI_OK : fail_by(s, 0, ended.failure);
}

static tutti_status save(saving *s, const char *folder, const tutti_checkpoint_position *position, report *reports) {
    tutti_status status = s->rank == 0 ? begin(s, folder, position) : TUTTI_OK;
    TUTTI_TRY(announce(s, status));
    return write_together(s, reports);
}

tutti_status tutti_checkpoint_save(const char *folder, const tutti_checkpoint_content *content,
                                   const tutti_checkpoint_position *position, char path_out[PATH_BYTES]) {
    saving *s = calloc(1, sizeof *s);
    if (s == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a checkpoint");
    s->content = content;
    s->rank = content->comm != NULL ? tutti_comm_rank(content->comm) : 0;
    s->nranks = content->comm != NULL ? tutti_comm_size(content->comm) : 1;
    s->fd = -1;
    sigset_t before;
    report *reports = calloc((size_t)s->nranks, sizeof *reports);
    hold_back_signal(&before);
    tutti_status status =
        reports != NULL ? fill(s, position) : tutti_fail(TUTTI_ERR_MEMORY, "no memory for a checkpoint");
    if (status == TUTTI_OK) status = save(s, folder, position, reports);
    if (status == TUTTI_OK && s->rank == 0) memcpy(path_out, s->path, PATH_BYTES);
    if (s->fd >= 0) close(s->fd);
    abandon(s);
    drop_signal(&before);
    tutti_safetensors_close(&s->file);
    free(s->parts), free(reports), free(s);
    return status;
}
