/*
 * Linear regression by two ranks: each has half of the data, together they find w = [2, 3].
 *
 *   tuttirun --nproc_per_node 2 ./linear_ddp
 *
 * The same as torch_linear_ddp.py: tutti/ddp.h averages the gradients over the ranks, the rest is plain C.
 */
#include <stdio.h>

#include <tutti/ddp.h>

enum { RANKS = 2, SAMPLES = 2, WEIGHTS = 2, STEPS = 500 };

static const float x[RANKS][SAMPLES][WEIGHTS] = {{{1, 2}, {2, 3}}, {{4, 6}, {3, 1}}};
static const float y[RANKS][SAMPLES] = {{8, 13}, {26, 9}}; /* x times [2, 3] */

/* The gradient of the sum of squared errors. */
static void backward(int rank, const float *w, float *gradient) {
    for (int k = 0; k < WEIGHTS; k++) gradient[k] = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const float *sample = x[rank][i];
        float error = sample[0] * w[0] + sample[1] * w[1] - y[rank][i];
        for (int k = 0; k < WEIGHTS; k++) gradient[k] += 2 * error * sample[k];
    }
}

static tutti_status train(tutti_ddp *ddp, int rank, float *w) {
    for (int step = 0; step < STEPS; step++) {
        backward(rank, w, tutti_ddp_gradient(ddp, 0));
        TUTTI_TRY(tutti_ddp_ready(ddp, 0));
        TUTTI_TRY(tutti_ddp_finish(ddp)); /* the gradient is now the mean over the ranks */
        const float *gradient = tutti_ddp_gradient(ddp, 0);
        for (int k = 0; k < WEIGHTS; k++) w[k] -= 0.01f * gradient[k];
    }
    return TUTTI_OK;
}

static tutti_status run(void) {
    tutti_comm *comm;
    tutti_ddp *ddp = NULL;
    float w[WEIGHTS] = {0, 0};
    const tutti_ddp_parameter parameters[] = {{.name = "w", .data = w, .count = WEIGHTS, .type = TUTTI_FLOAT32}};

    TUTTI_TRY(tutti_comm_create_world(&comm));
    int rank = tutti_comm_rank(comm), nranks = tutti_comm_size(comm);
    tutti_status status = TUTTI_OK;
    if (nranks != RANKS)
        TUTTI_TRY_GOTO(status, tutti_fail(TUTTI_ERR_ARGUMENT, "there is data for %d ranks, not %d", RANKS, nranks),
                       end);
    TUTTI_TRY_GOTO(status, tutti_ddp_create(comm, parameters, 1, NULL, &ddp), end);
    TUTTI_TRY_GOTO(status, train(ddp, rank, w), end);
    if (rank == 0) printf("w = [%.4f, %.4f]\n", w[0], w[1]);
end:
    tutti_ddp_destroy(ddp);
    tutti_comm_destroy(comm);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "linear_ddp: %s\n", tutti_last_error());
    return 1;
}
