/*
 * Times of layers. A piece is a layer with a local shape, as one rank has it. Its forward and backward times are
 * measured by running its kernels on random numbers (calibrate.c).
 *
 * The list of pieces fills itself: code that prices a strategy queries the times of each of its pieces. In a first
 * run, before anything is measured, all times are 0, and the list notes the queries; after tutti_calibrate the same
 * queries return the times. A piece that takes long is measured with fewer samples, and its times are scaled up.
 */
#ifndef TUTTI_TRAINER_PIECES_H
#define TUTTI_TRAINER_PIECES_H

#include <stdint.h>

#include "ddp/trainer/update.h"

/* Kinds of pieces that are not layers. */
enum {
    TUTTI_PIECE_INPUT = TUTTI_LAYER_KIND_COUNT, /* the copy of a batch into the model */
    TUTTI_PIECE_LOSS,                           /* softmax and its gradient, for `channels` classes */
    TUTTI_PIECE_EXPANDED_LOSS,                  /* the same in separate steps (loss.h) */
    TUTTI_PIECE_UPDATE,                         /* the optimizer, for `channels` elements */
    TUTTI_PIECE_KIND_COUNT
};

/* Has no padding, since it is hashed as bytes. */
typedef struct tutti_piece {
    int32_t kind;
    int32_t kernel, stride, padding, relu, bias, drops;
    int32_t backward;                /* 0: forward only; 1: backward without the gradient of its input; 2: with it */
    int32_t height, width, channels; /* of its input */
    int32_t units;                   /* for a layer with weights; for an update: the optimizer's row */
    int32_t batch;
} tutti_piece;

typedef struct tutti_piece_times {
    double forward_us, backward_us;
} tutti_piece_times;

typedef struct tutti_piece_entry {
    tutti_piece piece;
    /* index of the entry that is measured for it: itself, or the same piece with fewer samples */
    int measured;
    double factor;           /* factor for the measured times */
    tutti_piece_times times; /* below 0: not known yet */
} tutti_piece_entry;

typedef struct tutti_auto_pieces {
    tutti_piece_entry *entries;
    int count, capacity;
    int *index; /* a hash table of entries; -1: free */
    int index_size;
    tutti_status failure; /* status of the first piece that could not be noted */
    double crowding;      /* ranks per core if oversubscribed: all times are multiplied by it */
    int measured;         /* pieces measured in the last calibration, */
    double seconds;       /* and its duration */
} tutti_auto_pieces;

void tutti_auto_pieces_fini(tutti_auto_pieces *pieces);
/* The times of a piece. If they are not known yet, returns 0 and notes the piece. */
tutti_piece_times tutti_auto_pieces_get(tutti_auto_pieces *pieces, const tutti_piece *piece);
/* The factor by which times are multiplied: at least 1. */
double tutti_auto_pieces_crowding(const tutti_auto_pieces *pieces);
/* The entry of a piece, which is added if it is new; -1: no memory. */
int tutti_auto_pieces_find(tutti_auto_pieces *pieces, const tutti_piece *piece);
/* Makes the piece a node of a model, without parameters and buffers. `layer` must live as long as the node. */
tutti_status tutti_piece_place(const tutti_piece *piece, tutti_layer *layer, tutti_node *node_out);

/* Settings that are the same for all pieces. */
typedef struct tutti_calibration {
    tutti_comm *comm;
    tutti_compute *compute;
    const char *optimizer;
    tutti_update_options update;
    const char *precision; /* of matrix products on a GPU; NULL: fp32 */
    const char *path;      /* path of a file that stores times; "": none */
} tutti_calibration;

/* Collective; all ranks must have noted the same pieces. Measures those whose times are not known, on as many ranks
 * of each host at once as it has cores, since these share its memory; the slowest rank's times are used on all
 * ranks. Rank 0 reads and writes the file. */
tutti_status tutti_calibrate(const tutti_calibration *calibration, tutti_auto_pieces *pieces);

/* Collective: all ranks return the status and the error text of the lowest rank that failed. */
tutti_status tutti_calibrate_agree(tutti_comm *comm, tutti_status status);

/* ------------------------------------------------------------------------------------------ speed_file.c */

/* Sets the times of entries that the file contains, and adds the file's other pieces to the list. A file that does
 * not exist counts as empty; a damaged file, or one of another machine, is an error. */
tutti_status tutti_speed_file_read(const char *path, const char *machine, tutti_auto_pieces *pieces);
/* Replaces the file's content by all pieces whose times are known. */
tutti_status tutti_speed_file_write(const char *path, const char *machine, const tutti_auto_pieces *pieces);

/* The hash of a key without padding whose size is a multiple of 4 bytes. */
size_t tutti_auto_pieces_hash(const void *key, size_t bytes);

#endif
