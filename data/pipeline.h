/*
 * The inside of a pipeline: what it makes batches of (make.c), and how they come to the caller (pipeline.c).
 */
#ifndef TUTTI_DATA_PIPELINE_H
#define TUTTI_DATA_PIPELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/order.h"
#include "data/source.h"
#include "data/steps.h"

#define TUTTI_DATA_ERROR_BYTES 1024

/* A sample as the source gave it. */
typedef struct tutti_data_raw {
    void *image;
    int32_t label;
    int64_t index;
} tutti_data_raw;

/* Samples of a streaming source, through the shuffle buffer. */
typedef struct tutti_data_flow {
    void *stream; /* NULL: none is open */
    int64_t taken, given;
    bool ended;           /* the source gives no more in this pass */
    tutti_data_raw *held; /* the buffer */
    void *images;         /* theirs */
    int64_t nheld;
} tutti_data_flow;

/* Makes one batch after the other; used by one thread at a time. */
typedef struct tutti_data_maker {
    tutti_data_source *source;
    tutti_data_steps steps;
    tutti_data_order order; /* sources that are read by number */
    tutti_data_share share;
    tutti_data_flow flow; /* streams */
    tutti_data_raw raw;   /* by number: one sample */
    uint64_t seed;
    int64_t buffer;  /* of shuffle; 0: none */
    int64_t passes;  /* -1: without end */
    int64_t samples; /* of the shard in a pass; -1: until the source ends */
    int batch;
    int part_first, part_end; /* rows of each batch that are made */
    bool all_labels;
    bool drops;               /* an incomplete last batch */
    int64_t pass, number, at; /* of the next batch, and samples of the pass before it */
    atomic_bool *stopping;    /* set: what is made is not wanted any more */
} tutti_data_maker;

/* A batch in memory of its own. */
typedef struct tutti_data_slot {
    float *images;   /* of the part */
    int32_t *labels; /* of the whole batch, as are indices */
    int64_t *indices;
    tutti_data_batch batch;
    tutti_status status;
    char words[TUTTI_DATA_ERROR_BYTES]; /* of the failure */
} tutti_data_slot;

/* The next batch; whole is 0 at the end. The slot's memory is there. */
tutti_status tutti_data_make(tutti_data_maker *maker, tutti_data_slot *slot);
/* Goes to the start of a batch. */
tutti_status tutti_data_make_from(tutti_data_maker *maker, int64_t pass, int64_t number);
/* Ends a stream that is open. */
void tutti_data_make_stop(tutti_data_maker *maker);
/* Batches in a pass; -1: unknown. */
int64_t tutti_data_make_batches(const tutti_data_maker *maker);

struct tutti_data {
    tutti_data_maker maker;
    tutti_data_details details;
    tutti_data_slot *slots; /* a ring; [given] is the caller's, the others are filled ahead */
    int nslots;
    bool ahead, running, ended; /* running: there is a thread; ended: the caller has seen the end */
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    int first, nfilled; /* slots[first] is the next one for the caller */
    bool holds;         /* the caller has slots[first - 1] */
    atomic_bool stopping;
    tutti_status failed; /* the last call's, until a seek */
    char words[TUTTI_DATA_ERROR_BYTES];
};

#endif
