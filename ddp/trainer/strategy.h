/*
 * How a model's layers are cut over ranks: a mesh of all ranks, and for each layer along each axis of the mesh what is divided.
 *
 *   samples   the batch                    outputs   channels that the layer computes; layers without weights: channels
 *   inputs    channels that it reads, of   none      nothing: the ranks along the axis compute the same
 *             layers with weights
 *
 * A file has lines "dense1 outputs,none": a layer, and one word for each axis; what follows a # is a comment. A line "mesh 2x2" names
 * the mesh. Layers with weights that it does not name are divided by samples; others as what they read.
 */
#ifndef TUTTI_TRAINER_STRATEGY_H
#define TUTTI_TRAINER_STRATEGY_H

#include <tutti/tensor.h>

#include "ddp/trainer/model.h"

typedef enum tutti_parallel_mode {
    TUTTI_MODE_STAND_ALONE, /* each rank trains by itself */
    TUTTI_MODE_DATA_PARALLEL,
    TUTTI_MODE_LAYERWISE_PARALLEL, /* along the last axis all layers are divided by outputs */
    TUTTI_MODE_HYBRID_PARALLEL,    /* along the last axis dense layers, and what follows them, are */
    TUTTI_MODE_AUTO_PARALLEL       /* what is predicted to be the quickest: auto/auto.h */
} tutti_parallel_mode;

#define TUTTI_MODE_NAMES "stand_alone|data_parallel|layerwise_parallel|hybrid_parallel|auto_parallel"

typedef struct tutti_strategy {
    int naxes, sizes[TUTTI_MOST_AXES];                   /* the mesh */
    int nlayers;                                         /* of the list */
    uint8_t layers[TUTTI_MODEL_LAYERS][TUTTI_MOST_AXES]; /* tutti_split_axis; 0: none */
} tutti_strategy;

/* In capitals or not. */
tutti_status tutti_strategy_find_mode(const char *text, tutti_parallel_mode *mode_out);

/* Reads "2x2", which must be all ranks. NULL: that of the strategy's file at `path`; where that is NULL or names none, one axis; for
 * hybrid_parallel d x m, m the largest divisor up to the square root, or where that is 1, 1 x n. */
tutti_status tutti_strategy_read_mesh(const char *text, const char *path, int nranks, tutti_parallel_mode mode,
                                      tutti_strategy *strategy);

/* The mode's own strategy, of auto_parallel that of data_parallel; along axes before the last one layers are divided by samples. */
void tutti_strategy_fill(tutti_parallel_mode mode, const tutti_model_layers *list, tutti_strategy *strategy);

/* Instead of that, a file's. Errors name file and line. */
tutti_status tutti_strategy_read(const char *path, const tutti_model_layers *list, tutti_strategy *strategy);
tutti_status tutti_strategy_write(const char *path, const tutti_model_layers *list, const tutti_strategy *strategy);

/* "outputs,none", of one layer. */
void tutti_strategy_format(const tutti_strategy *strategy, int layer, char *text, size_t bytes);

/* Are all layers divided by samples along all axes? */
bool tutti_strategy_is_data_parallel(const tutti_strategy *strategy);

#endif
