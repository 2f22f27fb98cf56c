/*
 * Operations that change one sample: from the caller's list to steps that are ready to run.
 *
 * A step has the shape and type of its input and output, and its tables. Running it allocates no memory.
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

/* Identifies the random numbers that a step draws. */
typedef struct tutti_data_draw {
    uint64_t seed;
    int64_t pass, sample;
} tutti_data_draw;

typedef struct tutti_data_step tutti_data_step;

typedef struct tutti_data_step_row {
    const char *name;
    bool wants_hwc;
    /* From step->values and step->in: checks them, fills in out and allocates tables. */
    tutti_status (*place)(tutti_data_step *step);
    /* x and y must not overlap. */
    void (*run)(const tutti_data_step *step, const tutti_data_draw *draw, const void *x, void *y);
} tutti_data_step_row;

struct tutti_data_step {
    const tutti_data_step_row *row;
    double values[TUTTI_DATA_OP_VALUES];
    int number; /* position in the list: each has its own random stream */
    tutti_data_image in, out;
    void *table; /* meaning depends on the row; freed by tutti_data_steps_close */
};

typedef struct tutti_data_steps {
    tutti_data_step steps[TUTTI_DATA_STEPS];
    int count;
    tutti_data_image out; /* output of the last step, as float32 */
    void *buffers[2];     /* for results between steps */
} tutti_data_steps;

/* Returns NULL if there is no operation of that name. */
const tutti_data_step_row *tutti_data_steps_find(const char *name);

/* Starts a list for images of the source. */
void tutti_data_steps_begin(tutti_data_steps *steps, const tutti_data_image *in);
tutti_status tutti_data_steps_add(tutti_data_steps *steps, const tutti_data_step_row *row, const tutti_data_op *op);
/* Called after the last step was added. */
tutti_status tutti_data_steps_end(tutti_data_steps *steps);
void tutti_data_steps_close(tutti_data_steps *steps);

/* Converts one sample, from the source's format to float32. */
void tutti_data_steps_run(tutti_data_steps *steps, const tutti_data_draw *draw, const void *x, float *y);

/* Checks that a value is a whole number from `least` to `most`. */
tutti_status tutti_data_whole(const char *name, const char *what, double value, int64_t least, int64_t most,
                              int64_t *number_out);

#endif
