/*
 * Operations that change one sample: from the caller's list to steps that are ready to run.
 *
 * A step knows the shape and type of what comes in and goes out, and has its tables. Running it takes no memory.
 */
#ifndef TUTTI_DATA_STEPS_H
#define TUTTI_DATA_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/data.h>

#define TUTTI_DATA_STEPS 32

typedef struct tutti_data_image {
    int height, width, channels;
    bool chw;
    tutti_type type; /* uint8 or float32 */
} tutti_data_image;

size_t tutti_data_image_bytes(const tutti_data_image *image);

/* Whose random numbers a step draws. */
typedef struct tutti_data_draw {
    uint64_t seed;
    int64_t pass, sample;
} tutti_data_draw;

typedef struct tutti_data_step tutti_data_step;

typedef struct tutti_data_step_row {
    const char *name;
    bool wants_hwc;
    /* From step->values and step->in: checks, fills in out and takes tables. */
    tutti_status (*place)(tutti_data_step *step);
    /* x and y do not overlap. */
    void (*run)(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y);
} tutti_data_step_row;

struct tutti_data_step {
    const tutti_data_step_row *row;
    double values[TUTTI_DATA_OP_VALUES];
    int number; /* in the list: a random stream of its own */
    tutti_data_image in, out;
    void *table; /* the row's; freed by tutti_data_steps_close */
};

typedef struct tutti_data_steps {
    tutti_data_step steps[TUTTI_DATA_STEPS];
    int count;
    tutti_data_image out; /* of the last step, as float32 */
    void *buffers[2];     /* between steps */
} tutti_data_steps;

/* NULL: not the name of such an operation. */
const tutti_data_step_row *tutti_data_steps_find(const char *name);

/* Starts a list for images of the source. */
void tutti_data_steps_begin(tutti_data_steps *steps, const tutti_data_image *in);
tutti_status tutti_data_steps_add(tutti_data_steps *steps, const tutti_data_step_row *row, const tutti_data_op *op);
/* After the last step. */
tutti_status tutti_data_steps_end(tutti_data_steps *steps);
void tutti_data_steps_close(tutti_data_steps *steps);

/* One sample, from what the source gave to float32. */
void tutti_data_steps_run(tutti_data_steps *steps, const tutti_data_draw *draw, const void *x, float *y);

/* A value that has to be a whole number from `least` to `most`. */
tutti_status tutti_data_whole(const char *name, const char *what, double value, int64_t least, int64_t most,
                              int64_t *number_out);

extern const tutti_data_step_row tutti_data_row_crop, tutti_data_row_flip, tutti_data_row_resize;

#endif
