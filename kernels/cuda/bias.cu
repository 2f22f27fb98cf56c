/*
 * Bias with ReLU, forwards and backwards.
 *
 * The gradient of the bias is a sum over many rows. Blocks of 32 channels by 8 rows each add up a run of rows, and hand
 * their sums on; a second launch adds those. The order of a sum depends on the shape only, so it repeats bit for bit.
 */
#include "kernels/cuda/quad.h"

#define CHANNELS    32  /* of a block */
#define ROWS        8   /* of threads in a block */
#define LEAST_ROWS  128 /* of a run; fewer are not worth a second launch */
#define MOST_BLOCKS 512

/* --------------------------------------------------------------------------------------------- forward */

static __global__ void bias_forward(size_t count, divider by_channels, bool relu, const float *bias, float *y) {
    size_t at = thread_number();
    if (at >= count) return;
    uint32_t channel = (uint32_t)(at % by_channels.divisor);
    float value = y[at] + bias[channel];
    y[at] = relu && value < 0 ? 0 : value;
}

/* Channels come in fours; by_channels divides by the number of those. */
static __global__ void bias_forward_quads(uint32_t count, divider by_channels, bool relu, const float *bias, float *y) {
    size_t number = thread_number();
    if (number >= count) return;
    uint32_t channel = (uint32_t)number;
    split(&channel, by_channels);
    float4 a = load_quad(y + 4 * number), b = load_quad(bias + 4 * channel);
    float4 sum = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    if (relu)
        sum = make_float4(sum.x < 0 ? 0 : sum.x, sum.y < 0 ? 0 : sum.y, sum.z < 0 ? 0 : sum.z, sum.w < 0 ? 0 : sum.w);
    store_quad(y + 4 * number, sum);
}

void tutti_gpu_bias_forward(tutti_compute *compute, size_t rows, int channels, bool relu, const float *bias, float *y) {
    size_t count = rows * (size_t)channels;
    if (count == 0) return;
    if (channels % 4 == 0 && count / 4 < (UINT32_C(1) << 31))
        launch(compute, bias_forward_quads, blocks_for(count / 4), THREADS, (uint32_t)(count / 4),
               divider_by(channels / 4), relu, bias, y);
    else launch(compute, bias_forward, blocks_for(count), THREADS, count, divider_by(channels), relu, bias, y);
}

/* -------------------------------------------------------------------------------------------- backward */

/* The block's ROWS sums for each channel become one, which thread row 0 gets. */
static __device__ inline float add_rows(float sum) {
    __shared__ float sums[ROWS][CHANNELS];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0) return 0;
    float total = 0;
    for (int row = 0; row < ROWS; row++) total += sums[row][threadIdx.x];
    return total;
}

/* Block (tile, run): sums_out[run, channel] = the sum over the run's rows of dy, which is masked first. */
static __global__ void sum_rows(tutti_bias_backward_args args, size_t rows_of_run, float *sums_out) {
    int channel = (int)(blockIdx.x * CHANNELS + threadIdx.x);
    size_t row = blockIdx.y * rows_of_run + threadIdx.y, end = (blockIdx.y + 1) * rows_of_run;
    if (end > args.rows) end = args.rows;
    float sum = 0;
    if (channel < args.channels)
        for (; row < end; row += ROWS) {
            size_t at = row * args.channels + channel;
            float value = args.dy[at];
            if (args.relu) {
                value = args.y[at] == 0 ? 0 : value;
                args.dy[at] = value;
            }
            sum += value;
        }
    sum = add_rows(sum);
    if (threadIdx.y == 0 && channel < args.channels) sums_out[(size_t)blockIdx.y * args.channels + channel] = sum;
}

/* Adds what the runs' blocks have handed on. */
static __global__ void sum_runs(unsigned runs, int channels, const float *sums, float *dbias) {
    int channel = (int)(blockIdx.x * CHANNELS + threadIdx.x);
    float sum = 0;
    if (channel < channels)
        for (unsigned run = threadIdx.y; run < runs; run += ROWS) sum += sums[(size_t)run * channels + channel];
    sum = add_rows(sum);
    if (threadIdx.y == 0 && channel < channels) dbias[channel] = sum;
}

void tutti_gpu_bias_backward(tutti_compute *compute, const tutti_bias_backward_args *args) {
    if (args->channels == 0) return;
    unsigned tiles = ((unsigned)args->channels + CHANNELS - 1) / CHANNELS;
    size_t runs = (args->rows + LEAST_ROWS - 1) / LEAST_ROWS, most = MOST_BLOCKS / tiles;
    if (runs > most) runs = most;
    if (runs < 1) runs = 1;
    size_t rows_of_run = (args->rows + runs - 1) / runs;
    static_assert(MOST_BLOCKS * CHANNELS <= TUTTI_COMPUTE_PARTIALS, "sums of all runs have their place");
    float *sums = runs > 1 ? tutti_cuda_compute_of(compute)->partials : args->dbias;
    dim3 threads(CHANNELS, ROWS);
    launch(compute, sum_rows, dim3(tiles, (unsigned)runs), threads, *args, rows_of_run, sums);
    if (runs > 1)
        launch(compute, sum_runs, tiles, threads, (unsigned)runs, args->channels, (const float *)sums, args->dbias);
}
