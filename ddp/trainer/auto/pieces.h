/*
 * What layers take: a piece is a layer of a certain local shape, as one rank has it, and its times are measured, forwards and
 * backwards, by running its kernels on random numbers (calibrate.c).
 *
 * The list of pieces fills itself: code that prices a strategy asks for the times of each of its pieces. In a first run, before
 * anything is measured, all times are 0 and the list notes what is asked for; after tutti_calibrate the same questions get
 * answers. A piece whose step takes long is measured with fewer samples, and its times are scaled up.
 */
#ifndef TUTTI_TRAINER_PIECES_H
#define TUTTI_TRAINER_PIECES_H

#include <stdint.h>

#include "ddp/trainer/update.h"

/* Beside the kinds of layers. */
enum {
    TUTTI_PIECE_INPUT = TUTTI_LAYER_KIND_COUNT, /* a batch's way into the model */
    TUTTI_PIECE_LOSS,                           /* softmax and its gradient, of `channels` classes */
    TUTTI_PIECE_EXPANDED_LOSS,                  /* the same in steps (loss.h) */
    TUTTI_PIECE_UPDATE,                         /* the optimizer, of `channels` elements */
    TUTTI_PIECE_KIND_COUNT
};

/* Without padding, since it is hashed as bytes. */
typedef struct tutti_piece {
    int32_t kind;
    int32_t kernel, stride, padding, relu, bias, drops;
    int32_t backward;                /* 0: runs forwards only; 1: gives no gradient of its input; 2: gives it */
    int32_t height, width, channels; /* of what it reads */
    int32_t units;                   /* of a layer with weights; of an update: the optimizer's row */
    int32_t batch;
} tutti_piece;

typedef struct tutti_piece_times {
    double forward_us, backward_us;
} tutti_piece_times;

typedef struct tutti_piece_entry {
    tutti_piece piece;
    int measured;            /* the entry whose times count: itself, or the same with fewer samples */
    double factor;           /* by which they are multiplied */
    tutti_piece_times times; /* below 0: not known yet */
} tutti_piece_entry;

typedef struct tutti_auto_pieces {
    tutti_piece_entry *entries;
    int count, capacity;
    int *index; /* a hash table of entries; -1: free */
    int index_size;
    tutti_status failure; /* of the first piece that could not be noted */
    double crowding;      /* ranks of a core, where there are more than one: all times are multiplied by it */
    int measured;         /* by the last calibration, */
    double seconds;       /* which took so long */
} tutti_auto_pieces;

void tutti_auto_pieces_fini(tutti_auto_pieces *pieces);
/* The times of a piece; of one that is not known yet 0, and it is noted. */
tutti_piece_times tutti_auto_pieces_get(tutti_auto_pieces *pieces, const tutti_piece *piece);
/* By which times are multiplied: at least 1. */
double tutti_auto_pieces_crowding(const tutti_auto_pieces *pieces);
/* The entry of a piece, which is added if it is new; -1: no memory. */
int tutti_auto_pieces_find(tutti_auto_pieces *pieces, const tutti_piece *piece);
/* What the piece would be as a node of a model, without parameters and buffers. `layer` lives as long. */
tutti_status tutti_piece_place(const tutti_piece *piece, tutti_layer *layer, tutti_node *node_out);

/* What is the same for all pieces. */
typedef struct tutti_calibration {
    tutti_comm *comm;
    tutti_compute *compute;
    const char *optimizer;
    tutti_update_options update;
    const char *precision; /* of a GPU's products; NULL: fp32 */
    const char *path;      /* of a file that keeps times; "": none */
} tutti_calibration;

/* Collective; all ranks have noted the same pieces. Measures those whose times are not known, on as many ranks of each host at once
 * as it has cores, since these share its memory; the slowest rank's times become those of all. Rank 0 reads and writes the file. */
tutti_status tutti_calibrate(const tutti_calibration *calibration, tutti_auto_pieces *pieces);

/* Collective: the status of the lowest rank that failed, and its text, become those of all ranks. */
tutti_status tutti_calibrate_agree(tutti_comm *comm, tutti_status status);

/* ------------------------------------------------------------------------------------------ speed_file.c */

/* Times of pieces that the file has go to entries of the list; others of the file's are added to it. A file that does not exist is
 * empty; one that is damaged, or of another machine, is an error. */
tutti_status tutti_speed_file_read(const char *path, const char *machine, tutti_auto_pieces *pieces);
/* All pieces whose times are known, in place of what was there. */
tutti_status tutti_speed_file_write(const char *path, const char *machine, const tutti_auto_pieces *pieces);

/* Of a key without padding, of a multiple of 4 bytes: as FNV-1a, by words, whose high bits come down. */
size_t tutti_auto_pieces_hash(const void *key, size_t bytes);

#endif
