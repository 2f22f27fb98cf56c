/*
 * Parts of tensors in a file: each rank writes what it has straight to its place, and reads no more than it needs.
 *
 * A rank has a box of a tensor, dense and row-major, and of that box a range of elements. In the file the range is made of runs, one
 * for each row of the box, or a few where boxes are whole rows; runs are moved by way of a buffer of PIECE elements, so no rank ever
 * has a tensor on the host beside its own parts.
 */
#ifndef TUTTI_TRAINER_CHECKPOINT_PARTS_H
#define TUTTI_TRAINER_CHECKPOINT_PARTS_H

#include <stdbool.h>

#include <tutti/ddp.h>

#include "ddp/trainer/model.h"
#include "ddp/trainer/safetensors.h"

typedef struct tutti_checkpoint_part {
    int64_t offset; /* of the tensor's first byte in the file */
    int ndims;
    int64_t dims[4], first[4], extent[4]; /* of the tensor; where the box begins; of the box */
    size_t begin, end;                    /* the range in the box */
    float *data;                          /* the range's elements, in the compute's memory */
} tutti_checkpoint_part;

#define TUTTI_CHECKPOINT_FORMAT "tutti-train 1"
#define TUTTI_CHECKPOINT_FROZEN                                                                                        \
    "frozen" /* key "frozen/conv1.weight" in a header: the parameter has no state in the file */

/* A tensor's name: "velocity/conv1.weight"; state "": the parameter itself. */
void tutti_checkpoint_name(const tutti_parameter *parameter, const char *state,
                           char name_out[TUTTI_SAFETENSORS_NAME_BYTES]);
/* Elements `range` of what this rank has of a parameter, or of what has its shape. */
tutti_checkpoint_part tutti_checkpoint_part_of(const tutti_parameter *parameter, tutti_ddp_part range, float *data,
                                               int64_t offset);

/* Writes the range. `path`: for errors, which tell the offset. Numbers that are not finite are one. */
tutti_status tutti_checkpoint_part_write(const tutti_checkpoint_part *part, tutti_compute *compute, int fd,
                                         const char *path);
/* Reads it. Numbers that are not finite are an error with tensor and index. */
tutti_status tutti_checkpoint_part_read(const tutti_checkpoint_part *part, tutti_compute *compute,
                                        const tutti_safetensors *file, const tutti_safetensors_entry *entry);

/* A rank that cannot see the file gives the range to rank 0 of `comm`, which writes it: both call this, `from` being the rank that
 * gives. What cannot be written is received all the same, so that the two stay in step; `failure` is then filled in. What both return is
 * of the messages. */
tutti_status tutti_checkpoint_part_give(const tutti_checkpoint_part *part, tutti_compute *compute, tutti_comm *comm);
#define TUTTI_CHECKPOINT_TEXT_BYTES 1024
tutti_status tutti_checkpoint_part_take(tutti_comm *comm, int from, int fd, const char *path,
                                        char failure[TUTTI_CHECKPOINT_TEXT_BYTES]);

#endif
