/*
 * Internals of a pipeline: how batches are made (make.c), and how they reach the caller (pipeline.c).
 */
#ifndef TUTTI_DATA_PIPELINE_H
#define TUTTI_DATA_PIPELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/order.h"
#include "data/source.h"
#include "data/steps.h"

#define TUTTI_DATA_ERROR_BYTES 1024

/* A sample as the source returns it. */
typedef struct tutti_data_raw {
    void *image;
    int32_t label;
    int64_t index;
} tutti_data_raw;

/* Samples of a streaming source, through the shuffle buffer. */
typedef struct tutti_data_flow {
    void *stream; /* NULL: none is open */
    int64_t taken, given;
    bool ended;           /* the source has no more samples in this pass */
    tutti_data_raw *held; /* the shuffle buffer */
    void *images;         /* memory of the images in `held` */
    int64_t nheld;
} tutti_data_flow;

/* Makes batches one after the other; used by one thread at a time. */
typedef struct tutti_data_maker {
    tutti_data_source *source;
    tutti_data_steps steps;
    tutti_data_order order; /* for sources that are read by number */
    tutti_data_share share;
    tutti_data_flow flow; /* for streams */
    tutti_data_raw raw;   /* for sources read by number: one sample */
    uint64_t seed;
    int64_t buffer;  /* size of the shuffle buffer; 0: none */
    int64_t passes;  /* -1: endless */
    int64_t samples; /* samples of the shard in a pass; -1: until the source ends */
    int batch;
    int part_first, part_end; /* range of rows that are made of each batch */
    bool all_labels;
    bool drops;               /* drops an incomplete last batch */
    int64_t pass, number, at; /* of the next batch; at: samples of the pass before it */
    atomic_bool *stopping;    /* set: the results are no longer needed */
} tutti_data_maker;

/* A batch with its own memory. */
typedef struct tutti_data_slot {
    float *images;   /* of this pipeline's part of the batch */
    int32_t *labels; /* of the whole batch; so are indices */
    int64_t *indices;
    tutti_data_batch batch;
    tutti_status status;
    char words[TUTTI_DATA_ERROR_BYTES]; /* text of the failure */
} tutti_data_slot;

/* Makes the next batch; whole is 0 at the end. The slot's memory must be allocated. */
tutti_status tutti_data_make(tutti_data_maker *maker, tutti_data_slot *slot);
/* Moves to the start of a batch. */
tutti_status tutti_data_make_from(tutti_data_maker *maker, int64_t pass, int64_t number);
/* Closes the open stream, if any. */
void tutti_data_make_stop(tutti_data_maker *maker);
/* Number of batches in a pass; -1: unknown. */
int64_t tutti_data_make_batches(const tutti_data_maker *maker);

struct tutti_data {
    tutti_data_maker maker;
    tutti_data_details details;
    tutti_data_slot *slots; /* a ring; slots[given] belongs to the caller, the others are filled ahead */
    int nslots;
    bool ahead, running, ended; /* running: the thread exists; ended: the caller has reached the end */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t changed;
    int first, nfilled; /* slots[first] is the caller's next one */
    bool holds;         /* the caller holds slots[first - 1] */
    atomic_bool stopping;
    tutti_status failed; /* status of the last call, until a seek */
    char words[TUTTI_DATA_ERROR_BYTES];
};

#endif
