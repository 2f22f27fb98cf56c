/*
 * Bias with ReLU, forward and backward, and sums of rows.
 *
 * The gradient of the bias is a sum over many rows. Blocks of 32 channels each add up a run of rows and store their
 * partial sums; a second launch adds those. If the number of channels is a multiple of four, a thread takes four
 * channels, so that enough loads are under way at once. The order of a sum depends on the shape only, so it repeats
 * bit for bit.
 */
#include "kernels/cuda/layers/quad.h"

#define CHANNELS    32  /* per block */
#define LEAST_ROWS  128 /* per run; fewer are not worth a second launch */
#define MOST_BLOCKS 512

/* --------------------------------------------------------------------------------------------- forward */

static __global__ void bias_forward(size_t count, divider by_channels, bool relu, const float *bias, float *y) {
    size_t at = thread_number();
    if (at >= count) return;
    uint32_t channel = (uint32_t)(at % by_channels.divisor);
    float value = y[at] + bias[channel];
    y[at] = relu && value < 0 ? 0 : value;
}

/* The number of channels is a multiple of four; by_channels divides by a quarter of it. */
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

/* Rows that a block reads at once: its threads form this many rows of CHANNELS / WIDTH threads. */
template <int WIDTH> constexpr int rows_at_once = THREADS *WIDTH / CHANNELS;

/* Adds the block's sums, one row for each row of threads: thread i returns the total of channel i. */
template <int WIDTH> static __device__ inline float add_rows(const group<WIDTH> &sum, int thread) {
    alignas(16) __shared__ float sums[rows_at_once<WIDTH>][CHANNELS];
    store_group<WIDTH>(&sums[threadIdx.y][threadIdx.x * WIDTH], sum);
    __syncthreads();
    if (thread >= CHANNELS) return 0;
    float total = 0;
    for (int row = 0; row < rows_at_once<WIDTH>; row++) total += sums[row][thread];
    return total;
}

/* Block (tile, run): sums_out[run, channel] = the sum over the run's rows of dy, which is masked first. */
template <int WIDTH>
static __global__ void sum_rows(tutti_bias_backward_args args, size_t rows_of_run, float *sums_out) {
    int first = (int)(blockIdx.x * CHANNELS), channel = first + (int)threadIdx.x * WIDTH;
    size_t row = blockIdx.y * rows_of_run + threadIdx.y, end = (blockIdx.y + 1) * rows_of_run;
    if (end > args.rows) end = args.rows;
    group<WIDTH> sum = {};
    if (channel < args.channels)
        for (; row < end; row += rows_at_once<WIDTH>) {
            size_t at = row * args.channels + channel;
            group<WIDTH> values = load_group<WIDTH>((const float *)args.dy + at);
            if (args.relu) {
                group<WIDTH> y = load_group<WIDTH>(args.y + at);
                for (int i = 0; i < WIDTH; i++) values.at[i] = y.at[i] == 0 ? 0 : values.at[i];
                store_group<WIDTH>(args.dy + at, values);
            }
            for (int i = 0; i < WIDTH; i++) sum.at[i] += values.at[i];
        }
    int thread = (int)(threadIdx.y * (CHANNELS / WIDTH) + threadIdx.x);
    float total = add_rows<WIDTH>(sum, thread);
    if (thread < CHANNELS && first + thread < args.channels)
        sums_out[(size_t)blockIdx.y * args.channels + first + thread] = total;
}

static unsigned tiles_of(int channels) {
    return ((unsigned)channels + CHANNELS - 1) / CHANNELS;
}

static void launch_sums(tutti_compute *compute, const tutti_bias_backward_args *args, size_t runs, float *sums) {
    size_t rows_of_run = (args->rows + runs - 1) / runs;
    dim3 grid(tiles_of(args->channels), (unsigned)runs);
    if (args->channels % 4 == 0)
        launch(compute, sum_rows<4>, grid, dim3(CHANNELS / 4, rows_at_once<4>), *args, rows_of_run, sums);
    else launch(compute, sum_rows<1>, grid, dim3(CHANNELS, rows_at_once<1>), *args, rows_of_run, sums);
}

void tutti_gpu_add_rows(tutti_compute *compute, size_t rows, int columns, float *src, float *dst) {
    tutti_bias_backward_args args = {rows, columns, false,
                                     NULL, src,     NULL}; /* without a mask dy is not written */
    if (columns > 0) launch_sums(compute, &args, 1, dst);
}

void tutti_gpu_bias_backward(tutti_compute *compute, const tutti_bias_backward_args *args) {
    if (args->channels == 0) return;
    size_t runs = (args->rows + LEAST_ROWS - 1) / LEAST_ROWS, most = MOST_BLOCKS / tiles_of(args->channels);
    if (runs > most) runs = most;
    if (runs < 1) runs = 1;
    static_assert(MOST_BLOCKS * CHANNELS <= TUTTI_COMPUTE_PARTIALS, "the sums of all runs must fit");
    float *sums = runs > 1 ? tutti_cuda_compute_of(compute)->partials : args->dbias;
    launch_sums(compute, args, runs, sums);
    if (runs > 1) tutti_gpu_add_rows(compute, runs, args->channels, sums, args->dbias);
}
