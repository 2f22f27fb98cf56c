/*
 * Copies ranges of boxes between memory, a file and rank 0.
 */
#include "ddp/trainer/checkpoint/checkpoint_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 18)
#define TAG   7301 /* tag of messages with parts; while a checkpoint is written there are no other messages */

void tutti_checkpoint_name(const tutti_parameter *parameter, const char *state,
                           char name_out[TUTTI_SAFETENSORS_NAME_BYTES]) {
    snprintf(name_out, TUTTI_SAFETENSORS_NAME_BYTES, "%s%s%s", state, state[0] != '\0' ? "/" : "", parameter->name);
}

tutti_checkpoint_part tutti_checkpoint_part_of(const tutti_parameter *parameter, tutti_ddp_part range, float *data,
                                               int64_t offset) {
    tutti_checkpoint_part part = {.offset = offset,
                                  .ndims = parameter->ndims,
                                  .begin = range.first,
                                  .end = range.first + range.count,
                                  .data = data};
    memcpy(part.dims, parameter->dims, sizeof part.dims);
    memcpy(part.first, parameter->first, sizeof part.first);
    memcpy(part.extent, parameter->part, sizeof part.extent);
    return part;
}

/* ------------------------------------------------------------------------------------------------ runs */

/* Finds the run of elements from `at` of the box on that are adjacent in the file: returns their number, and sets
 * their position in the tensor. */
static size_t find_run(const tutti_checkpoint_part *part, size_t at, int64_t *element_out) {
    size_t row = 1; /* elements of the box that are adjacent in the file */
    int64_t stride = 1, element = 0;
    int d = part->ndims - 1;
    for (; d >= 0; d--) {
        row *= (size_t)part->extent[d];
        element += part->first[d] * stride;
        stride *= part->dims[d];
        if (part->extent[d] != part->dims[d]) break;
    }
    size_t rest = at / row;
    for (d--; d >= 0; d--) {
        element += (part->first[d] + (int64_t)(rest % (size_t)part->extent[d])) * stride;
        rest /= (size_t)part->extent[d];
        stride *= part->dims[d];
    }
    *element_out = element + (int64_t)(at % row);
    return row - at % row;
}

static tutti_status write_bytes(int fd, const char *path, const void *data, size_t bytes, int64_t offset) {
    for (const char *next = data; bytes > 0;) {
        const ssize_t done = pwrite(fd, next, bytes, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %zu bytes at offset %" PRId64 " cannot be written: %s", path,
                              bytes, offset, done < 0 ? strerror(errno) : "the file cannot grow");
        next += done, bytes -= (size_t)done, offset += done;
    }
    return TUTTI_OK;
}

static tutti_status read_bytes(int fd, const char *path, void *data, size_t bytes, int64_t offset) {
    for (char *next = data; bytes > 0;) {
        const ssize_t done = pread(fd, next, bytes, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return tutti_fail(done < 0 ? TUTTI_ERR_SYSTEM : TUTTI_ERR_DATA,
                              "%s: at offset %" PRId64 " expected %zu bytes more: %s", path, offset, bytes,
                              done < 0 ? strerror(errno) : "the file ends there; it was cut while it was read");
        next += done, bytes -= (size_t)done, offset += done;
    }
    return TUTTI_OK;
}

/* Ensures that the file can be read again: read_piece refuses such numbers. */
static tutti_status check_finite(const char *path, size_t count, const float *piece) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(piece[i]))
            return tutti_fail(TUTTI_ERR_DATA,
                              "%s: the model or the optimizer's state contains %f: training diverged, and "
                              "nothing is written; lower --lr, and resume from an earlier checkpoint",
                              path, (double)piece[i]);
    return TUTTI_OK;
}

static tutti_status write_piece(const tutti_checkpoint_part *part, int fd, const char *path, size_t at, size_t count,
                                const float *piece) {
    TUTTI_TRY(check_finite(path, count, piece));
    for (size_t done = 0; done < count;) {
        int64_t element;
        size_t run = find_run(part, at + done, &element);
        if (run > count - done) run = count - done;
        TUTTI_TRY(
            write_bytes(fd, path, piece + done, run * sizeof *piece, part->offset + element * (int64_t)sizeof *piece));
        done += run;
    }
    return TUTTI_OK;
}

static tutti_status read_piece(const tutti_checkpoint_part *part, const tutti_safetensors *file,
                               const tutti_safetensors_entry *entry, size_t at, size_t count, float *piece) {
    for (size_t done = 0; done < count;) {
        int64_t element;
        size_t run = find_run(part, at + done, &element);
        if (run > count - done) run = count - done;
        TUTTI_TRY(read_bytes(file->fd, file->path, piece + done, run * sizeof *piece,
                             part->offset + element * (int64_t)sizeof *piece));
        for (size_t i = 0; i < run; i++)
            if (!isfinite(piece[done + i]))
                return tutti_fail(TUTTI_ERR_DATA,
                                  "%s: tensor %s has %f at index %" PRId64 " (offset %" PRId64
                                  " of the file), expected finite numbers: the training that wrote it had diverged, "
                                  "or the file is damaged; resume from an earlier one",
                                  file->path, entry->name, (double)piece[done + i], element + (int64_t)i,
                                  part->offset + (element + (int64_t)i) * (int64_t)sizeof *piece);
        done += run;
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ by one rank */

static size_t piece_count(const tutti_checkpoint_part *part, size_t at) {
    return part->end - at < PIECE ? part->end - at : PIECE;
}

static tutti_status take_buffer(const tutti_checkpoint_part *part, float **buffer_out) {
    const size_t count = piece_count(part, part->begin);
    *buffer_out = malloc((count + 1) * sizeof **buffer_out);
    if (*buffer_out != NULL) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a piece of a checkpoint, %zu elements", count);
}

tutti_status tutti_checkpoint_part_write(const tutti_checkpoint_part *part, tutti_compute *compute, int fd,
                                         const char *path) {
    float *buffer;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(take_buffer(part, &buffer));
    for (size_t at = part->begin; at < part->end && status == TUTTI_OK; at += PIECE) {
        const size_t count = piece_count(part, at);
        status = compute->kernels->download(compute, buffer, part->data + (at - part->begin), count * sizeof *buffer);
        if (status == TUTTI_OK) status = write_piece(part, fd, path, at, count, buffer);
    }
    free(buffer);
    return status;
}

tutti_status tutti_checkpoint_part_read(const tutti_checkpoint_part *part, tutti_compute *compute,
                                        const tutti_safetensors *file, const tutti_safetensors_entry *entry) {
    float *buffer;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(take_buffer(part, &buffer));
    for (size_t at = part->begin; at < part->end && status == TUTTI_OK; at += PIECE) {
        const size_t count = piece_count(part, at);
        status = read_piece(part, file, entry, at, count, buffer);
        if (status == TUTTI_OK)
            compute->kernels->upload(compute, part->data + (at - part->begin), buffer, count * sizeof *buffer);
    }
    free(buffer);
    return status;
}

/* ---------------------------------------------------------------------------------------- by way of rank 0 */

static const tutti_options on_host = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST);

tutti_status tutti_checkpoint_part_give(const tutti_checkpoint_part *part, tutti_compute *compute, tutti_comm *comm) {
    float *buffer;
    TUTTI_TRY(take_buffer(part, &buffer));
    tutti_status status = tutti_send(comm, part, sizeof *part, TUTTI_UINT8, 0, TAG, &on_host);
    for (size_t at = part->begin; at < part->end && status == TUTTI_OK; at += PIECE) {
        const size_t count = piece_count(part, at);
        status = compute->kernels->download(compute, buffer, part->data + (at - part->begin), count * sizeof *buffer);
        if (status == TUTTI_OK) status = tutti_send(comm, buffer, count, TUTTI_FLOAT32, 0, TAG, &on_host);
    }
    free(buffer);
    return status;
}

tutti_status tutti_checkpoint_part_take(tutti_comm *comm, int from, int fd, const char *path,
                                        char failure[TUTTI_CHECKPOINT_TEXT_BYTES]) {
    tutti_checkpoint_part part;
    float *buffer;
    TUTTI_TRY(tutti_recv(comm, &part, sizeof part, TUTTI_UINT8, from, TAG, &on_host));
    TUTTI_TRY(take_buffer(&part, &buffer));
    tutti_status status = TUTTI_OK;
    for (size_t at = part.begin; at < part.end && status == TUTTI_OK; at += PIECE) {
        const size_t count = piece_count(&part, at);
        status = tutti_recv(comm, buffer, count, TUTTI_FLOAT32, from, TAG, &on_host);
        if (status == TUTTI_OK && failure[0] == '\0' && write_piece(&part, fd, path, at, count, buffer) != TUTTI_OK)
            snprintf(failure, TUTTI_CHECKPOINT_TEXT_BYTES, "%s", tutti_last_error());
    }
    free(buffer);
    return status;
}
