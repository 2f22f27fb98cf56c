/*
 * Checkpoints: one safetensors file per checkpoint, <folder>/step-<step>.safetensors, written by rank 0.
 *
 * Tensors: each parameter by its name, and the optimizer's state as "<state>/<parameter>". The header's metadata holds
 * the position. Random numbers come by counter, so seed, epoch and step are the whole random state.
 */
#ifndef TUTTI_TRAINER_CHECKPOINT_H
#define TUTTI_TRAINER_CHECKPOINT_H

#include <stdbool.h>

#include "ddp/trainer/model.h"
#include "ddp/trainer/update.h"

/* Where a run is. */
typedef struct tutti_checkpoint_position {
    uint64_t seed;
    int64_t step;    /* done */
    int64_t epoch;   /* under way, from 0 */
    int64_t samples; /* of it that all ranks together have trained on */
    int64_t ranks, batch_size;
} tutti_checkpoint_position;

/* What a checkpoint holds besides. */
typedef struct tutti_checkpoint_content {
    const char *model_name;
    tutti_model *model;
    tutti_update *update;
} tutti_checkpoint_content;

/* Makes the folder. One that exists is an error unless `overwrite` (then checkpoints in it are removed) or unless the
 * run resumes from it (`resume`, may be NULL: then they stay). */
tutti_status tutti_checkpoint_prepare(const char *folder, bool overwrite, const char *resume);

tutti_status tutti_checkpoint_save(const char *folder, const tutti_checkpoint_content *content,
                                   const tutti_checkpoint_position *position);

/* Reads a checkpoint file, or the one with the most steps in a folder, into model and optimizer. Another model or
 * optimizer than the checkpoint's is an error that names both. */
tutti_status tutti_checkpoint_load(const char *path, const tutti_checkpoint_content *content,
                                   tutti_checkpoint_position *position_out);

#endif
