/*
 * Checkpoints: one safetensors file per checkpoint, <folder>/step-<step>.safetensors. It holds whole tensors,
 * however they are divided over the ranks.
 *
 *   rank 0                                       others
 *   creates a file with a temporary name and its header
 *                        ---- its path ---->
 *   each rank writes its parts to their offsets and syncs the file; a rank that cannot see it sends them to rank 0
 *                       <---- success, or an error ----
 *   renames it
 *                        ---- success, or an error ---->
 *
 * If several ranks hold the same data, the first of them writes it. The file gets its final name only when it is
 * complete, so an earlier checkpoint is never damaged. If a rank fails, all ranks return its error.
 *
 * Tensors: each parameter by its name, the optimizer's state as "<state>/<parameter>", and the layers' states
 * (batch norm's moving values, from rank 0) by their names. The header's metadata holds the position. Random
 * numbers are counter-based, so seed, epoch and step are the whole random state.
 */
#ifndef TUTTI_TRAINER_CHECKPOINT_H
#define TUTTI_TRAINER_CHECKPOINT_H

#include <stdbool.h>

#include "ddp/trainer/checkpoint/safetensors.h"
#include "ddp/trainer/layers/model.h"
#include "ddp/trainer/update.h"

/* The position of a run. */
typedef struct tutti_checkpoint_position {
    uint64_t seed;
    int64_t step;              /* completed */
    int64_t epoch;             /* current, from 0 */
    int64_t samples;           /* of this epoch, used by all ranks together */
    int64_t ranks, batch_size; /* their product: the samples of one step */
    int64_t norm_parts; /* batch norm computes statistics for each of these parts of a batch; 0: none, or unknown */
} tutti_checkpoint_position;

/* The other contents of a checkpoint. */
typedef struct tutti_checkpoint_content {
    const char *model_name;
    tutti_model *model;
    tutti_update *update;
    tutti_comm *comm; /* the ranks that train the model; NULL: one rank */
    bool zero;        /* the ranks whose gradients are summed hold different parts of the optimizer's state */
} tutti_checkpoint_content;

#define TUTTI_CHECKPOINT_PATH_BYTES 4096

/* An existing checkpoint. */
typedef struct tutti_checkpoint_found {
    char path[TUTTI_CHECKPOINT_PATH_BYTES];
    char model[TUTTI_SAFETENSORS_NAME_BYTES], optimizer[TUTTI_SAFETENSORS_NAME_BYTES];
} tutti_checkpoint_found;

/* Checks that the folder can be created or written to. A folder with checkpoints is an error, with two exceptions:
 * with `overwrite`, replaces_out becomes true, and the caller removes them after the run's first checkpoint; if the
 * run resumes from the folder (`resume`, may be NULL), they stay. The folder is created with the first checkpoint,
 * so a run that ends earlier leaves nothing behind. */
tutti_status tutti_checkpoint_prepare(const char *folder, bool overwrite, const char *resume, bool *replaces_out);
/* Removes all checkpoints of a folder except the one at `path`. */
tutti_status tutti_checkpoint_remove_others(const char *folder, const char *path);

/* Writes the checkpoint, or nothing, and returns its path. Collective; only rank 0 uses `folder`. */
tutti_status tutti_checkpoint_save(const char *folder, const tutti_checkpoint_content *content,
                                   const tutti_checkpoint_position *position,
                                   char path_out[TUTTI_CHECKPOINT_PATH_BYTES]);

/* Finds a checkpoint: the file `path`, or the one with the most steps in the folder `path`. */
tutti_status tutti_checkpoint_find(const char *path, tutti_checkpoint_found *found_out);
/* Reads this rank's part into model and optimizer. If the model or optimizer differs from the checkpoint's, the
 * error names both. Local. A parameter that was frozen and is now trained starts with a state of zeros. */
tutti_status tutti_checkpoint_load(const char *path, const tutti_checkpoint_content *content,
                                   tutti_checkpoint_position *position_out);

#endif
