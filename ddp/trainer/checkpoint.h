/*
 * Checkpoints: one safetensors file per checkpoint, <folder>/step-<step>.safetensors, with whole tensors whatever the ranks have.
 *
 *   rank 0                                       others
 *   makes a file with another name, its header
 *                        ---- its path ---->
 *   each writes its parts to their places, and syncs the file; a rank that does not see it gives them to rank 0
 *                       <---- done, or why not ----
 *   renames it
 *                        ---- done, or why not ---->
 *
 * What several ranks have alike the first of them writes. The file has its name only when all is in it, so an earlier one stays
 * whatever happens, and where a rank fails all of them get its error.
 *
 * Tensors: each parameter by its name, the optimizer's state as "<state>/<parameter>", and the layers' states (batch norm's
 * moving values, of rank 0) by their names. The header's metadata holds the position. Random numbers come by counter, so seed, epoch and step are the whole random state.
 */
#ifndef TUTTI_TRAINER_CHECKPOINT_H
#define TUTTI_TRAINER_CHECKPOINT_H

#include <stdbool.h>

#include "ddp/trainer/model.h"
#include "ddp/trainer/safetensors.h"
#include "ddp/trainer/update.h"

/* Where a run is. */
typedef struct tutti_checkpoint_position {
    uint64_t seed;
    int64_t step;              /* done */
    int64_t epoch;             /* under way, from 0 */
    int64_t samples;           /* of it that all ranks together have trained on */
    int64_t ranks, batch_size; /* whose product is the number of samples of a step */
    int64_t
        norm_parts; /* parts of a batch, each of which batch norm takes statistics of; 0: there is none, or it is unknown */
} tutti_checkpoint_position;

/* What a checkpoint holds besides. */
typedef struct tutti_checkpoint_content {
    const char *model_name;
    tutti_model *model;
    tutti_update *update;
    tutti_comm *comm; /* of the ranks that the model is trained on; NULL: of one */
    bool zero;        /* parts of the optimizer differ among ranks whose gradients are summed */
} tutti_checkpoint_content;

#define TUTTI_CHECKPOINT_PATH_BYTES 4096

/* A checkpoint that is there. */
typedef struct tutti_checkpoint_found {
    char path[TUTTI_CHECKPOINT_PATH_BYTES];
    char model[TUTTI_SAFETENSORS_NAME_BYTES], optimizer[TUTTI_SAFETENSORS_NAME_BYTES];
} tutti_checkpoint_found;

/* Looks whether the folder can be made, or written to. One with checkpoints is an error unless `overwrite` (then `replaces_out` is
 * true: they are to be removed behind the run's first checkpoint) or unless the run resumes from it (`resume`, may be NULL: then
 * they stay). It is made when the first checkpoint is written, so that a run that ends before leaves nothing behind. */
tutti_status tutti_checkpoint_prepare(const char *folder, bool overwrite, const char *resume, bool *replaces_out);
/* Removes the checkpoints of a folder, but for the one at `path`. */
tutti_status tutti_checkpoint_remove_others(const char *folder, const char *path);

/* Writes the checkpoint, or nothing; gives its path. Collective; the folder is rank 0's. */
tutti_status tutti_checkpoint_save(const char *folder, const tutti_checkpoint_content *content,
                                   const tutti_checkpoint_position *position,
                                   char path_out[TUTTI_CHECKPOINT_PATH_BYTES]);

/* Finds a checkpoint: that file, or the one with the most steps in that folder. */
tutti_status tutti_checkpoint_find(const char *path, tutti_checkpoint_found *found_out);
/* Reads what this rank has of it into model and optimizer. Another model or optimizer than the checkpoint's is an error that names
 * both. Local. A parameter that was frozen, and is not any more, begins with a state of zeros. */
tutti_status tutti_checkpoint_load(const char *path, const tutti_checkpoint_content *content,
                                   tutti_checkpoint_position *position_out);

#endif
