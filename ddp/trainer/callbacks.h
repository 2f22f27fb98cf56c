/*
 * Callbacks that a run reports to: a list of tutti_train_callback, in which the trainer's own stand beside the caller's.
 *
 *   wipe       first, takes the progress line away where something else is printed
 *   losses     stdout, "{:12} {:>12.10f}" (step, loss) below a heading, tests and checkpoints
 *   monitor    stdout, "epoch: 1 step: 156, loss is 1.9", in place of these losses
 *   metrics    a file of JSON lines, one per loss, test and checkpoint, and one at the begin and the end
 *   ...        the caller's
 *   progress   last, stderr, one line that is drawn anew, where that is a terminal
 *
 * The trainer's own are on rank 0 only.
 */
#ifndef TUTTI_TRAINER_CALLBACKS_H
#define TUTTI_TRAINER_CALLBACKS_H

#include <tutti/train.h>

typedef enum tutti_event {
    TUTTI_EVENT_BEGIN,
    TUTTI_EVENT_EPOCH_BEGIN,
    TUTTI_EVENT_STEP_BEGIN,
    TUTTI_EVENT_STEP_END,
    TUTTI_EVENT_EPOCH_END,
    TUTTI_EVENT_EVALUATED,
    TUTTI_EVENT_SAVED,
    TUTTI_EVENT_END
} tutti_event;

typedef struct tutti_callbacks {
    tutti_train_callback *rows;
    int count, first;         /* first: of the caller's */
    int64_t monitor_every;    /* below 1: the monitor prints no lines */
    FILE *metrics;            /* NULL: none */
    const char *metrics_path; /* for errors */
    bool drawn, heading_printed;
    int64_t start_ns, drawn_ns;
} tutti_callbacks;

/* Stays where it is until closed. `speaks`: with the trainer's own. Metrics are written anew, or, with resume, continued. */
tutti_status tutti_callbacks_open(tutti_callbacks *callbacks, const tutti_train_options *options, bool speaks);
/* In the order of the list, up to the first that fails. */
tutti_status tutti_callbacks_run(const tutti_callbacks *callbacks, tutti_event event, const tutti_train_moment *now);
void tutti_callbacks_close(tutti_callbacks *callbacks);

/* Around a call of a function of the caller's: the thread's older failures are forgotten before it, lest their text pass for the
 * function's; a failure afterwards names the function, and what it said with tutti_fail, or its status. */
void tutti_callbacks_forget_errors(void);
tutti_status tutti_callbacks_fail(tutti_status status, const char *function);

/* CLOCK_MONOTONIC. */
int64_t tutti_callbacks_now_ns(void);

#endif
