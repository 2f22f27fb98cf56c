/*
 * How a model's layers are cut over ranks: a mesh of all ranks, and what is divided for each layer along each axis
 * of the mesh.
 *
 *   samples   the batch                      outputs   channels that the layer computes; without weights: channels
 *   inputs    channels that the layer reads; none      nothing: the ranks along the axis compute the same
 *             layers with weights only
 *
 * A file has lines "dense1 outputs,none": a layer, and one word for each axis; a # starts a comment. A line "mesh
 * 2x2" sets the mesh. Layers with weights that the file does not name are divided by samples, other layers like
 * their input.
 */
#ifndef TUTTI_TRAINER_STRATEGY_H
#define TUTTI_TRAINER_STRATEGY_H

#include <tutti/tensor.h>

#include "ddp/trainer/layers/model.h"

typedef enum tutti_parallel_mode {
    TUTTI_MODE_STAND_ALONE, /* each rank trains alone */
    TUTTI_MODE_DATA_PARALLEL,
    TUTTI_MODE_LAYERWISE_PARALLEL, /* along the last axis all layers are divided by outputs */
    /* along the last axis, dense layers and the layers behind them are divided by outputs */
    TUTTI_MODE_HYBRID_PARALLEL,
    TUTTI_MODE_AUTO_PARALLEL /* the strategy that is predicted to be the fastest: auto/auto.h */
} tutti_parallel_mode;

#define TUTTI_MODE_NAMES "stand_alone|data_parallel|layerwise_parallel|hybrid_parallel|auto_parallel"

typedef struct tutti_strategy {
    int naxes, sizes[TUTTI_MOST_AXES];                   /* the mesh */
    int nlayers;                                         /* layers of the list */
    uint8_t layers[TUTTI_MODEL_LAYERS][TUTTI_MOST_AXES]; /* tutti_split_axis; 0: none */
} tutti_strategy;

/* Ignores case. */
tutti_status tutti_strategy_find_mode(const char *text, tutti_parallel_mode *mode_out);

/* Reads a mesh, "2x2", whose product must be the number of ranks. NULL: the mesh in the strategy file at `path`. If
 * that is NULL or names no mesh: one axis, or for hybrid_parallel d x m, where m is the largest divisor up to the
 * square root, or 1 x n if that divisor is 1. */
tutti_status tutti_strategy_read_mesh(const char *text, const char *path, int nranks, tutti_parallel_mode mode,
                                      tutti_strategy *strategy);

/* Fills in the mode's own strategy (for auto_parallel that of data_parallel); along all axes but the last, layers
 * are divided by samples. */
void tutti_strategy_fill(tutti_parallel_mode mode, const tutti_model_layers *list, tutti_strategy *strategy);

/* Reads the strategy from a file instead. Errors name file and line. */
tutti_status tutti_strategy_read(const char *path, const tutti_model_layers *list, tutti_strategy *strategy);
tutti_status tutti_strategy_write(const char *path, const tutti_model_layers *list, const tutti_strategy *strategy);

/* Formats the words of one layer: "outputs,none". */
void tutti_strategy_format(const tutti_strategy *strategy, int layer, char *text, size_t bytes);

/* Returns whether all layers are divided by samples along all axes. */
bool tutti_strategy_is_data_parallel(const tutti_strategy *strategy);

#endif
