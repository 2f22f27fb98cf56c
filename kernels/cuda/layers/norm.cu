/*
 * Batch norm as a layer: the operators' kernels (op_norm.cu), and the moving averages.
 *
 * As on the host, `kept` holds mean and inverse deviation in float64, and `scratch` the sums. Before they are joined,
 * the sums of groups of rows lie in the compute's partials.
 */
#include "kernels/cuda/layers/quad.h"
#include "kernels/cuda/operators/op_kernels.h"

static __global__ void move(size_t channels, double share, double unbias, const double *mean, const double *variance,
                            float *moving_mean, float *moving_variance) {
    const size_t c = thread_number();
    if (c >= channels) return;
    moving_mean[c] = (float)((1 - share) * (double)moving_mean[c] + share * mean[c]);
    moving_variance[c] = (float)((1 - share) * (double)moving_variance[c] + share * unbias * variance[c]);
}

static __global__ void take_moving(size_t channels, double epsilon, const float *moving_mean,
                                   const float *moving_variance, double *mean, double *inverse_deviation) {
    const size_t c = thread_number();
    if (c >= channels) return;
    mean[c] = (double)moving_mean[c];
    inverse_deviation[c] = 1 / sqrt((double)moving_variance[c] + epsilon);
}

static __global__ void put_gradients(size_t channels, const double *sums, float *dgamma, float *dbeta) {
    const size_t c = thread_number();
    if (c >= channels) return;
    dbeta[c] = (float)sums[c];
    dgamma[c] = (float)sums[channels + c];
}

/* If there are too many channels for the partials, there is one group of rows, and its sums are the final ones. */
static void *room_for_groups(tutti_compute *compute, size_t rows, size_t channels, double *sums) {
    const bool fits = tutti_gpu_op_batch_norm_scratch(rows, channels) <= TUTTI_COMPUTE_PARTIALS * sizeof(float);
    return fits ? (void *)tutti_cuda_compute_of(compute)->partials : sums;
}

static tutti_status find_moments(tutti_compute *compute, const tutti_batch_norm *norm,
                                 const tutti_batch_norm_forward_args *args, double *mean, double *inverse_deviation) {
    const tutti_stream stream = tutti_cuda_compute_of(compute)->stream;
    const size_t channels = (size_t)norm->channels;
    double *sums = (double *)(void *)args->scratch, *variance = sums + channels; /* overwrites the sums of squares */
    const double rows = (double)args->rows, unbias = args->rows > 1 ? rows / (rows - 1) : 1;
    TUTTI_TRY(tutti_gpu_op_batch_norm_statistics(stream, TUTTI_FLOAT32, args->rows, channels, args->x,
                                                 room_for_groups(compute, args->rows, channels, sums), sums));
    TUTTI_TRY(tutti_gpu_op_batch_norm_moments(stream, channels, rows, norm->epsilon, sums, mean, variance,
                                              inverse_deviation));
    return enqueue(stream, move, blocks_for(channels), THREADS, channels, norm->momentum, unbias, mean, variance,
                   args->moving_mean, args->moving_variance);
}

static tutti_status forward(tutti_compute *compute, const tutti_batch_norm *norm,
                            const tutti_batch_norm_forward_args *args) {
    const tutti_stream stream = tutti_cuda_compute_of(compute)->stream;
    const size_t channels = (size_t)norm->channels;
    double *mean = (double *)(void *)args->kept, *inverse_deviation = mean + channels;
    if (args->training) TUTTI_TRY(find_moments(compute, norm, args, mean, inverse_deviation));
    else
        TUTTI_TRY(enqueue(stream, take_moving, blocks_for(channels), THREADS, channels, norm->epsilon,
                          args->moving_mean, args->moving_variance, mean, inverse_deviation));
    const tutti_kernel_batch_norm_args of = {TUTTI_FLOAT32,     args->rows,  channels,   args->x,   mean,
                                             inverse_deviation, args->gamma, args->beta, norm->relu};
    return tutti_gpu_op_batch_norm_normalise(stream, &of, args->y);
}

static tutti_status backward(tutti_compute *compute, const tutti_batch_norm *norm,
                             const tutti_batch_norm_backward_args *args) {
    const tutti_stream stream = tutti_cuda_compute_of(compute)->stream;
    const size_t channels = (size_t)norm->channels;
    double *sums = (double *)(void *)args->scratch;
    const double *mean = (const double *)(const void *)args->kept;
    const tutti_kernel_batch_norm_args of = {TUTTI_FLOAT32,   args->rows,  channels,   args->x,   mean,
                                             mean + channels, args->gamma, args->beta, norm->relu};
    TUTTI_TRY(tutti_gpu_op_batch_norm_backward_sums(stream, &of, args->dy,
                                                    room_for_groups(compute, args->rows, channels, sums), sums));
    TUTTI_TRY(enqueue(stream, put_gradients, blocks_for(channels), THREADS, channels, (const double *)sums,
                      args->dgamma, args->dbeta));
    if (args->dx == NULL) return TUTTI_OK;
    return tutti_gpu_op_batch_norm_backward(stream, &of, args->dy, sums, (double)args->rows, args->dx);
}

void tutti_gpu_batch_norm_forward(tutti_compute *compute, const tutti_batch_norm *norm,
                                  const tutti_batch_norm_forward_args *args) {
    if (norm->channels > 0) tutti_compute_note(compute, forward(compute, norm, args));
}

void tutti_gpu_batch_norm_backward(tutti_compute *compute, const tutti_batch_norm *norm,
                                   const tutti_batch_norm_backward_args *args) {
    if (norm->channels > 0) tutti_compute_note(compute, backward(compute, norm, args));
}
