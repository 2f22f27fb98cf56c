/*
 * Parts of tensors in a file: each rank writes its part directly to its offset and reads no more than it needs.
 *
 * A rank holds a box of a tensor, dense and row-major, and a range of elements of that box. In the file the range
 * consists of runs, one for each row of the box, or fewer if boxes are whole rows. Runs are copied through a buffer
 * of PIECE elements, so no rank ever holds a whole tensor on the host beside its own parts.
 */
#ifndef TUTTI_TRAINER_CHECKPOINT_PARTS_H
#define TUTTI_TRAINER_CHECKPOINT_PARTS_H

#include <stdbool.h>

#include <tutti/ddp.h>

#include "ddp/trainer/checkpoint/safetensors.h"
#include "ddp/trainer/layers/model.h"

typedef struct tutti_checkpoint_part {
    int64_t offset; /* offset of the tensor's first byte in the file */
    int ndims;
    int64_t dims[4], first[4], extent[4]; /* extents of the tensor; where the box begins; extents of the box */
    size_t begin, end;                    /* the range in the box */
    float *data;                          /* the range's elements, in the compute's memory */
} tutti_checkpoint_part;

#define TUTTI_CHECKPOINT_FORMAT "tutti-train 1"
#define TUTTI_CHECKPOINT_FROZEN                                                                                        \
    "frozen" /* key "frozen/conv1.weight" in a header: the parameter has no state in the file */

/* A tensor's name: "velocity/conv1.weight"; state "": the parameter itself. */
void tutti_checkpoint_name(const tutti_parameter *parameter, const char *state,
                           char name_out[TUTTI_SAFETENSORS_NAME_BYTES]);
/* Elements `range` of this rank's part of a parameter, or of an array with the same shape. */
tutti_checkpoint_part tutti_checkpoint_part_of(const tutti_parameter *parameter, tutti_ddp_part range, float *data,
                                               int64_t offset);

/* Writes the range. `path` is for errors, which give the offset. Numbers that are not finite are an error. */
tutti_status tutti_checkpoint_part_write(const tutti_checkpoint_part *part, tutti_compute *compute, int fd,
                                         const char *path);
/* Reads the range. Numbers that are not finite are an error that names tensor and index. */
tutti_status tutti_checkpoint_part_read(const tutti_checkpoint_part *part, tutti_compute *compute,
                                        const tutti_safetensors *file, const tutti_safetensors_entry *entry);

/* A rank that cannot see the file sends the range to rank 0 of `comm`, which writes it: the sender calls give, rank
 * 0 calls take with `from` = the sender. If rank 0 cannot write, it still receives everything, so that both stay in
 * step, and fills in `failure`. The returned status concerns the messages only. */
tutti_status tutti_checkpoint_part_give(const tutti_checkpoint_part *part, tutti_compute *compute, tutti_comm *comm);
#define TUTTI_CHECKPOINT_TEXT_BYTES 1024
tutti_status tutti_checkpoint_part_take(tutti_comm *comm, int from, int fd, const char *path,
                                        char failure[TUTTI_CHECKPOINT_TEXT_BYTES]);

#endif
