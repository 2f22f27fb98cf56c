/*
 * The measured kernels: reductions, and the trainer's table. Bytes are those that a kernel cannot avoid: each source
 * read once, each result written once.
 *
 * A convolution consists of unfolding windows to columns, a matrix product, and a bias. The time of unfolding is that
 * of the convolution less that of the dense layer with the same product and bias; folding is measured the same way in
 * backward. The host's convolutions work in pieces that fit into caches, so there only the whole convolution is
 * measured.
 */
#include <stdio.h>
#include <string.h>

#include "bench/kernels/bench.h"

/* ------------------------------------------------------------------------------------ memory, elements */

static void run_copy(bench_lab *lab, const bench_shape *s) {
    lab->kernels->copy(lab->compute, lab->regions[1], lab->regions[0], s->count * sizeof(tutti_real));
}

static void run_fill(bench_lab *lab, const bench_shape *s) {
    lab->kernels->fill(lab->compute, s->count, (tutti_real)0.5, lab->regions[0]);
}

static void run_add(bench_lab *lab, const bench_shape *s) {
    lab->kernels->add(lab->compute, s->count, lab->regions[0], lab->regions[1], lab->regions[2]);
}

static void run_relu_forward(bench_lab *lab, const bench_shape *s) {
    lab->kernels->relu_forward(lab->compute, s->count, lab->regions[0], lab->regions[1]);
}

static void run_relu_backward(bench_lab *lab, const bench_shape *s) {
    lab->kernels->relu_backward(lab->compute, s->count, lab->regions[0], lab->regions[1], lab->regions[2]);
}

static void run_dropout(bench_lab *lab, const bench_shape *s) {
    static const tutti_dropout dropout = {.rate = 0.5, .seed = 1};
    lab->kernels->dropout(lab->compute, &dropout, lab->values, s->count, lab->regions[0], lab->regions[1]);
}

static void run_truncated_normal(bench_lab *lab, const bench_shape *s) {
    static const tutti_normal normal = {.seed = 1, .stddev = 0.1};
    lab->kernels->truncated_normal(lab->compute, &normal, s->count, lab->regions[0]);
}

static void run_reduce(bench_lab *lab, const bench_shape *s) {
    static const double factors[BENCH_REGIONS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const void *srcs[BENCH_REGIONS];
    void *dst = lab->regions[BENCH_REGIONS - 1];
    for (int i = 0; i < s->sources; i++) srcs[i] = lab->regions[i];
    tutti_reduce_args args = {.dst = dst,
                              .srcs = srcs,
                              .factors = s->reduction == TUTTI_PREMUL_SUM ? factors : NULL,
                              .nsrcs = s->sources,
                              .count = s->count,
                              .type = s->type,
                              .reduction = s->reduction,
                              .divisor = s->sources};
    if (lab->device == NULL) {
        tutti_reduce_host(&args);
        return;
    }
    tutti_status status = lab->device->reduce(&args, &dst, 1, lab->kernels->stream(lab->compute));
    if (lab->failed == TUTTI_OK) lab->failed = status;
}

/* --------------------------------------------------------------------------------------------- the trainer's */

static void run_max_pool_forward(bench_lab *lab, const bench_shape *s) {
    lab->kernels->max_pool_forward(lab->compute, &s->conv.window, s->batch, lab->regions[0], lab->regions[1],
                                   lab->where);
}

static void run_max_pool_backward(bench_lab *lab, const bench_shape *s) {
    lab->kernels->max_pool_backward(lab->compute, &s->conv.window, s->batch, lab->regions[1], lab->where,
                                    lab->regions[0]);
}

static void run_softmax_loss(bench_lab *lab, const bench_shape *s) {
    tutti_softmax_loss_args args = {.batch = s->batch,
                                    .classes = 10,
                                    .logits = lab->regions[0],
                                    .labels = lab->labels,
                                    .scale = 1,
                                    .dlogits = lab->regions[1]};
    lab->kernels->softmax_loss(lab->compute, &args, false, lab->sums);
}

static void run_conv_forward(bench_lab *lab, const bench_shape *s) {
    tutti_conv_forward_args args = {.batch = s->batch,
                                    .x = lab->regions[0],
                                    .weight = lab->regions[2],
                                    .bias = lab->regions[3],
                                    .scratch = lab->regions[4],
                                    .y = lab->regions[1],
                                    .kept = lab->regions[5],
                                    .scratch_count = lab->bytes / sizeof(tutti_real)};
    lab->kernels->conv_forward(lab->compute, &s->conv, &args);
}

static void run_conv_backward(bench_lab *lab, const bench_shape *s) {
    tutti_conv_backward_args args = {.batch = s->batch,
                                     .x = lab->regions[0],
                                     .weight = lab->regions[2],
                                     .y = lab->regions[1],
                                     .dy = lab->regions[6],
                                     .scratch = lab->regions[4],
                                     .kept = lab->regions[5],
                                     .dweight = lab->regions[7],
                                     .dbias = lab->regions[3],
                                     .dx = lab->regions[8],
                                     .scratch_count = lab->bytes / sizeof(tutti_real)};
    lab->kernels->conv_backward(lab->compute, &s->conv, &args);
}

static void run_dense_forward(bench_lab *lab, const bench_shape *s) {
    tutti_dense_forward_args args = {.batch = (int)s->count,
                                     .x = lab->regions[5],
                                     .weight = lab->regions[2],
                                     .bias = lab->regions[3],
                                     .y = lab->regions[1]};
    lab->kernels->dense_forward(lab->compute, &s->dense, &args);
}

static void run_dense_backward(bench_lab *lab, const bench_shape *s) {
    tutti_dense_backward_args args = {.batch = (int)s->count,
                                      .x = lab->regions[5],
                                      .weight = lab->regions[2],
                                      .y = lab->regions[1],
                                      .dy = lab->regions[6],
                                      .dweight = lab->regions[7],
                                      .dbias = lab->regions[3],
                                      .dx = lab->regions[4]};
    lab->kernels->dense_backward(lab->compute, &s->dense, &args);
}

/* ------------------------------------------------------------------------------------------ optimizers */

/* A bucket like LeNet's: equal pieces that begin at multiples of 64 bytes. */
static int cut(bench_lab *lab, const bench_shape *s, tutti_optimizer_piece pieces[8]) {
    size_t each = s->count / (size_t)s->pieces / 16 * 16;
    for (int i = 0; i < s->pieces; i++) {
        size_t at = (size_t)i * each;
        pieces[i] = (tutti_optimizer_piece){.count = each,
                                            .gradient = lab->regions[0] + at,
                                            .states = {lab->regions[7] + at, lab->regions[8] + at},
                                            .parameter = lab->regions[4] + at};
    }
    return s->pieces;
}

static void step_sgd(bench_lab *lab, const bench_shape *s, double momentum) {
    tutti_optimizer_piece pieces[8];
    tutti_sgd rule = {.lr = 0.1, .momentum = momentum};
    int npieces = cut(lab, s, pieces);
    lab->kernels->sgd(lab->compute, &rule, lab->values, pieces, npieces);
}

static void run_sgd(bench_lab *lab, const bench_shape *s) {
    step_sgd(lab, s, 0);
}

static void run_momentum(bench_lab *lab, const bench_shape *s) {
    step_sgd(lab, s, 0.9);
}

static void run_adam(bench_lab *lab, const bench_shape *s) {
    tutti_optimizer_piece pieces[8];
    tutti_adam rule = {.lr = 0.001, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-8, .step = 1};
    int npieces = cut(lab, s, pieces);
    lab->kernels->adam(lab->compute, &rule, lab->values, pieces, npieces);
}

/* ------------------------------------------------------------------------------------------------ the list */

typedef struct list {
    const bench_lab *lab;
    bench_kernel *rows;
    int count;
} list;

static bench_kernel *append(list *l, bench_kernel row) {
    if (row.bound == NULL) row.bound = row.flops > 0 ? "arithmetic" : "memory";
    l->rows[l->count] = row;
    return &l->rows[l->count++];
}

/* `passes`: the number of times that each element of a region is read or written. */
static void list_elements(list *l) {
    static const struct {
        const char *name;
        double passes;
        int pieces;
        void (*run)(bench_lab *, const bench_shape *);
        const char *bound;
    } kinds[] = {{"copy", 2, 0, run_copy, NULL},
                 {"fill", 1, 0, run_fill, NULL},
                 {"add", 3, 0, run_add, NULL},
                 {"relu_forward", 2, 0, run_relu_forward, NULL},
                 {"relu_backward", 3, 0, run_relu_backward, NULL},
                 {"dropout", 2, 0, run_dropout, "arithmetic"}, /* each random number takes some 100 instructions */
                 {"truncated_normal", 1, 0, run_truncated_normal, "arithmetic"},
                 {"sgd", 3, 8, run_sgd, NULL},
                 {"sgd_momentum", 5, 8, run_momentum, NULL},
                 {"adam", 7, 8, run_adam, NULL}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bench_kernel *row =
            append(l, (bench_kernel){.name = kinds[i].name,
                                     .shape = {.count = l->lab->bytes / sizeof(tutti_real), .pieces = kinds[i].pieces},
                                     .bytes = kinds[i].passes * (double)l->lab->bytes,
                                     .bound = kinds[i].bound,
                                     .run = kinds[i].run});
        snprintf(row->text, sizeof row->text, "%zu floats%s", row->shape.count, kinds[i].pieces > 0 ? " in 8" : "");
    }
}

static void list_reduction(list *l, tutti_type type, tutti_reduction reduction, const char *name, int sources) {
    bench_kernel *row = append(l, (bench_kernel){.name = name,
                                                 .shape = {.count = l->lab->bytes / tutti_type_bytes(type),
                                                           .sources = sources,
                                                           .type = type,
                                                           .reduction = reduction},
                                                 .bytes = (sources + 1.0) * (double)l->lab->bytes,
                                                 .run = run_reduce});
    snprintf(row->text, sizeof row->text, "%d x %s", sources, tutti_type_name(type));
}

static void list_reductions(list *l) {
    static const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_FLOAT16,     TUTTI_BFLOAT16,
                                       TUTTI_FLOAT64, TUTTI_FLOAT8_E4M3, TUTTI_FLOAT8_E5M2,
                                       TUTTI_INT8,    TUTTI_INT32,       TUTTI_INT64};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (int sources = 2; sources <= 8; sources *= 2) list_reduction(l, types[i], TUTTI_SUM, "reduce_sum", sources);
    list_reduction(l, TUTTI_FLOAT32, TUTTI_PROD, "reduce_prod", 2);
    list_reduction(l, TUTTI_FLOAT32, TUTTI_MAX, "reduce_max", 2);
    list_reduction(l, TUTTI_FLOAT32, TUTTI_AVG, "reduce_avg", 2);
    list_reduction(l, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, "reduce_premul_sum", 2);
}

/* The number of images that fit into a region if each takes `each` elements. */
static int images_that_fit(const list *l, size_t each) {
    return (int)(l->lab->bytes / sizeof(tutti_real) / each);
}

static void list_pools(list *l) {
    tutti_window window = {.in_height = 28, .in_width = 28, .channels = 32, .kernel = 2, .stride = 2};
    if (!tutti_window_place(&window, TUTTI_PADDING_SAME)) return;
    const size_t in = 28 * 28 * 32;
    bench_kernel row = {.name = "max_pool_forward", .run = run_max_pool_forward};
    row.shape = (bench_shape){.batch = images_that_fit(l, in), .conv.window = window};
    row.bytes = 1.5 * (double)in * row.shape.batch * sizeof(tutti_real);
    snprintf(row.text, sizeof row.text, "%d x 28x28x32, 2x2", row.shape.batch);
    if (row.shape.batch == 0) return;
    append(l, row);
    row.name = "max_pool_backward";
    row.run = run_max_pool_backward;
    append(l, row);
}

static void list_samples(list *l) {
    for (int batch = 100; batch <= BENCH_LABELS; batch *= 100) {
        bench_kernel loss = {.name = "softmax_loss", .run = run_softmax_loss, .shape.batch = batch, .bound = "latency"};
        loss.bytes = (20.0 * sizeof(tutti_real) + 1) * batch;
        snprintf(loss.text, sizeof loss.text, "%d x 10", batch);
        if ((size_t)batch * 10 * sizeof(tutti_real) <= l->lab->bytes) append(l, loss);
    }
}

static bench_shape conv_shape(int side, int channels, int filters, int batch) {
    tutti_window window = {.in_height = side, .in_width = side, .channels = channels, .kernel = 5, .stride = 1};
    (void)tutti_window_place(&window, TUTTI_PADDING_SAME); /* a window of 5 fits */
    return (bench_shape){.batch = batch,
                         .count = (size_t)batch * (size_t)side * (size_t)side,
                         .dense = {.inputs = 25 * channels, .outputs = filters},
                         .conv = {.window = window, .filters = filters}};
}

/* Does a row's largest array fit into a region: its columns, its output, the kernels' scratch memory? */
static bool fits(const list *l, const bench_shape *s) {
    const tutti_kernels *kernels = l->lab->kernels;
    size_t widest = (size_t)(s->dense.inputs > s->dense.outputs ? s->dense.inputs : s->dense.outputs);
    size_t weights = (size_t)s->dense.inputs * (size_t)s->dense.outputs;
    size_t most = s->count * widest > weights ? s->count * widest : weights;
    if (s->conv.filters > 0) {
        size_t scratch = kernels->conv_scratch_count(&s->conv, s->batch);
        size_t kept = kernels->conv_kept_count(&s->conv, s->batch);
        if (scratch > most) most = scratch;
        if (kept > most) most = kept;
    }
    return most * sizeof(tutti_real) <= l->lab->bytes;
}

/* LeNet's convolutions on large batches: the time of their windows without the products. */
static void list_windows(list *l) {
    static const struct {
        const char *name;
        int side, channels, filters;
    } convs[] = {{"conv1", 28, 1, 32}, {"conv2", 14, 32, 64}};
    /* With bfloat16 the dense layer rounds, whereas the convolution unfolds rounded values: not comparable. */
    if (l->lab->device == NULL || l->lab->precision == TUTTI_PRECISION_BF16) return;
    for (int i = 0; i < 2; i++) {
        int side = convs[i].side, channels = convs[i].channels, filters = convs[i].filters;
        int width = 25 * channels > filters ? 25 * channels : filters;
        int batch = images_that_fit(l, (size_t)side * (size_t)side * (size_t)width);
        bench_kernel row = {.name = "unfold (im2col)", .run = run_conv_forward, .without = run_dense_forward};
        row.shape = conv_shape(side, channels, filters, batch);
        row.bytes = (double)row.shape.count * channels * (1 + 25) * sizeof(tutti_real);
        if (batch == 0 || !fits(l, &row.shape)) continue;
        snprintf(row.text, sizeof row.text, "%s, %d images", convs[i].name, batch);
        append(l, row);
        row.name = "fold (col2im)";
        row.run = run_conv_backward;
        row.without = run_dense_backward;
        append(l, row);
    }
}

static void list_product(list *l, const char *name, const char *of, bench_shape shape, bool backward) {
    bench_kernel row = {.name = name, .shape = shape};
    double inputs = shape.dense.inputs, outputs = shape.dense.outputs, rows = (double)shape.count;
    bool is_conv = shape.conv.filters > 0;
    row.flops = (backward ? 4 : 2) * rows * inputs * outputs;
    row.bytes = (rows * (inputs + outputs) + inputs * outputs) * sizeof(tutti_real) * (backward ? 2 : 1);
    if (is_conv) row.run = backward ? run_conv_backward : run_conv_forward;
    else row.run = backward ? run_dense_backward : run_dense_forward;
    snprintf(row.text, sizeof row.text, "%s %zu x %d x %d", of, shape.count, shape.dense.outputs, shape.dense.inputs);
    if (fits(l, &row.shape)) append(l, row);
}

static bench_shape dense_shape(size_t batch, int inputs, int outputs) {
    return (bench_shape){.count = batch, .dense = {.inputs = inputs, .outputs = outputs}};
}

/* Products at batch 100, the batch in training; then the peak. */
static void list_products(list *l) {
    const bench_shape conv1 = conv_shape(28, 1, 32, 100), conv2 = conv_shape(14, 32, 64, 100);
    const bench_shape dense1 = dense_shape(100, 3136, 512), dense2 = dense_shape(100, 512, 10);
    const bench_shape mlp = dense_shape(100, 784, 512);
    const bench_shape columns1 = dense_shape(conv1.count, 25, 32), columns2 = dense_shape(conv2.count, 800, 64);
    const int side = l->lab->device != NULL ? 4096 : 1024;
    for (int backward = 0; backward <= 1; backward++) {
        const char *product = backward ? "dense_backward" : "dense_forward";
        const char *conv = backward ? "conv_backward" : "conv_forward";
        list_product(l, conv, "lenet conv1", conv1, backward);
        list_product(l, product, "its product", columns1, backward);
        list_product(l, conv, "lenet conv2", conv2, backward);
        list_product(l, product, "its product", columns2, backward);
        list_product(l, product, "lenet dense1", dense1, backward);
        list_product(l, product, "lenet dense2", dense2, backward);
        list_product(l, product, "mlp dense1", mlp, backward);
    }
    list_product(l, "dense_forward", "peak", dense_shape((size_t)side, side, side), false);
}

int bench_kernels_list(const bench_lab *lab, bench_kernel rows[BENCH_ROWS_MOST]) {
    list l = {.lab = lab, .rows = rows};
    list_elements(&l);
    list_reductions(&l);
    l.count += bench_kernels_list_boxes(lab, rows + l.count);
#ifdef BENCH_HOST_KERNELS
    l.count += bench_kernels_list_operators(lab, rows + l.count);
#endif
    list_samples(&l);
    list_pools(&l);
    list_windows(&l);
    list_products(&l);
    return l.count;
}
