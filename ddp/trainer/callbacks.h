/*
 * The callbacks of a run: a list of tutti_train_callback that holds the trainer's own callbacks and the caller's.
 *
 *   wipe       first: clears the progress line before other output
 *   losses     stdout, "{:12} {:>12.10f}" (step, loss) below a heading, tests and checkpoints
 *   monitor    stdout, "epoch: 1 step: 156, loss is 1.9", in place of these losses
 *   metrics    a file of JSON lines, one per loss, test and checkpoint, and one at the start and the end
 *   ...        the caller's
 *   progress   last: stderr, one line that is redrawn, if stderr is a terminal
 *
 * Only rank 0 has the trainer's own callbacks.
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
    int count, first;         /* first: index of the caller's first callback */
    int64_t monitor_every;    /* below 1: the monitor prints no lines */
    FILE *metrics;            /* NULL: none */
    const char *metrics_path; /* for errors */
    bool drawn, heading_printed;
    int64_t start_ns, drawn_ns;
} tutti_callbacks;

/* The struct must not move until it is closed. `speaks`: the list includes the trainer's own callbacks. The metrics
 * file is overwritten, or appended to when the run resumes. */
tutti_status tutti_callbacks_open(tutti_callbacks *callbacks, const tutti_train_options *options, bool speaks);
/* Runs the callbacks in the order of the list, up to the first that fails. */
tutti_status tutti_callbacks_run(const tutti_callbacks *callbacks, tutti_event event, const tutti_train_moment *now);
void tutti_callbacks_close(tutti_callbacks *callbacks);

/* These surround a call of a function of the caller's. Before it, forget clears the thread's earlier errors, so
 * that their text is not taken for the function's. After a failure, fail reports the function's name with the text
 * that it passed to tutti_fail, or else its status. */
void tutti_callbacks_forget_errors(void);
tutti_status tutti_callbacks_fail(tutti_status status, const char *function);

/* Reads CLOCK_MONOTONIC. */
int64_t tutti_callbacks_now_ns(void);

#endif
