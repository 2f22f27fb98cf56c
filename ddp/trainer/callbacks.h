/*
 * Who is told how training goes: the loop reports events, a list of callbacks hears them. On rank 0 only.
 *
 *   losses     stdout, "{:12} {:>12.10f}" (step, loss) below a heading, evaluations and checkpoints
 *   metrics    a file of JSON lines, one per loss, evaluation and checkpoint, and one at start and end
 *   progress   stderr, one line that is drawn anew, where that is a terminal
 */
#ifndef TUTTI_TRAINER_CALLBACKS_H
#define TUTTI_TRAINER_CALLBACKS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tutti/ddp.h>
#include <tutti/tutti.h>

typedef enum tutti_event_kind {
    TUTTI_EVENT_START,
    TUTTI_EVENT_STEP,       /* after each step */
    TUTTI_EVENT_EVALUATION, /* on the test data */
    TUTTI_EVENT_CHECKPOINT,
    TUTTI_EVENT_END
} tutti_event_kind;

typedef struct tutti_event {
    tutti_event_kind kind;
    int64_t step, total_steps;
    int64_t epoch; /* of the last step, from 1; 0: there is none yet */
    bool has_loss; /* STEP: only some steps look at the loss; EVALUATION: always */
    double loss;   /* mean over samples and ranks */
    double lr;     /* STEP */
    double
        images_per_second; /* STEP: of all ranks, lately; with a loss: since the last one, without tests, checkpoints */
    double accuracy;       /* EVALUATION: 0 to 1 */
    double flops_per_image;   /* START: forwards and backwards */
    int ranks, batch_size;    /* START; batch_size is per rank */
    uint64_t parameters;      /* START */
    uint64_t states;          /* START: values that are not trained */
    uint64_t memory_bytes;    /* START: of the model, on each rank */
    const char *model, *data; /* START */
    const char *path;         /* CHECKPOINT */
    tutti_ddp_statistics ddp; /* END */
} tutti_event;

typedef struct tutti_callbacks {
    FILE *metrics;            /* NULL: none */
    const char *metrics_path; /* for errors */
    bool prints;
    bool progress; /* stderr is a terminal */
    bool progress_drawn, heading_printed;
    int64_t start_ns, drawn_ns;
} tutti_callbacks;

/* prints: losses and progress. metrics_path NULL: no metrics. The file is written anew, or, when `append`, continued. */
tutti_status tutti_callbacks_open(tutti_callbacks *callbacks, bool prints, const char *metrics_path, bool append);
/* An error only when the metrics could not be written. */
tutti_status tutti_callbacks_tell(tutti_callbacks *callbacks, const tutti_event *event);
void tutti_callbacks_close(tutti_callbacks *callbacks);

/* CLOCK_MONOTONIC. */
int64_t tutti_callbacks_now_ns(void);

#endif
