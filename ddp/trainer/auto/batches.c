/*
 * Times batches from a separate pipeline, so that the training pipeline keeps its position.
 */
#include "ddp/trainer/auto/batches.h"

#include <stdlib.h>
#include <time.h>

/* The first FIRST batches are not timed: the thread makes some of them while it starts. */
enum { FIRST = 3, MOST_TIMED = 9 };

#define MOST_SECONDS 0.5

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A caller that only waits receives each batch after the time that making it takes. */
static double time_samples(tutti_data *data) {
    double us[FIRST + MOST_TIMED];
    int count = 0;
    const double begun = now_us();
    while (count < FIRST + MOST_TIMED && (count == 0 || now_us() - begun < MOST_SECONDS * 1e6)) {
        tutti_data_batch batch;
        const double start = now_us();
        if (tutti_data_next(data, &batch) != TUTTI_OK || batch.count == 0) return 0;
        us[count++] = (now_us() - start) / batch.count;
    }
    const int first = count > FIRST ? FIRST : 0; /* no slow batch was made ahead */
    qsort(us + first, (size_t)(count - first), sizeof *us, compare);
    return us[first + (count - first) / 2];
}

tutti_status tutti_measure_batches(const tutti_input *input, tutti_comm *comm, double *sample_us_out) {
    tutti_comm_details details;
    tutti_data *data;
    *sample_us_out = 0;
    TUTTI_TRY(tutti_comm_get(comm, &details));
    if (!input->own && details.local_rank == 0 &&
        tutti_input_create_train(input, &input->division, 0, &data) == TUTTI_OK) {
        *sample_us_out = time_samples(data);
        tutti_data_destroy(data);
    }
    return tutti_all_reduce(comm, sample_us_out, sample_us_out, 1, TUTTI_FLOAT64, TUTTI_MAX, NULL);
}
