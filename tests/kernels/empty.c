/*
 * Arrays without elements: their addresses may be NULL, and a reduction over nothing is the identity. Without the
 * sanitizers this tests only crashes and results.
 */
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/operators.h"
#include "tests/kernels/arrays.h"

static const tutti_type reals[] = {TUTTI_FLOAT32, TUTTI_FLOAT64};

Test(empty, elementwise_and_by_index) {
    const int64_t shape[] = {4, 0}, global[] = {4, 9}, first[] = {0, 3}, strides[] = {0, 1};
    const tutti_kernel_shard shard = {2, global, first, shape};
    const tutti_kernel_random random = {1, 2};
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        tutti_kernel_binary(TUTTI_KERNEL_ADD,
                            &(tutti_kernel_binary_args){type, 2, shape, NULL, strides, NULL, strides, NULL});
        for (int to = 0; to < TUTTI_TYPE_COUNT; to++) tutti_kernel_cast(type, to, 0, NULL, NULL);
        tutti_kernel_fill(type, 1, 0, NULL);
        if (type == TUTTI_BOOL) continue;
        tutti_kernel_unary(TUTTI_KERNEL_RELU, type, 0, NULL, NULL);
        tutti_kernel_scale(type, 0.5, 0, NULL, NULL);
        tutti_kernel_add_number(type, 2, 0, NULL, NULL);
        tutti_kernel_arange(type, &shard, 0, 1, NULL);
        if (type < TUTTI_FLOAT16) continue;
        tutti_kernel_dropout(type, &shard, &random, 0.5, NULL, NULL);
        tutti_kernel_dropout(type, &shard, &random, 1, NULL, NULL);
        tutti_kernel_random_uniform(type, &shard, &random, 0, 1, NULL);
        tutti_kernel_random_normal(type, &shard, &random, 0, 1, NULL);
    }
}

Test(empty, reductions) {
    const int64_t shape[] = {3, 0};
    float y[3];
    tutti_kernel_reduce(TUTTI_SUM, &(tutti_kernel_reduce_args){TUTTI_FLOAT32, 2, shape, 1, NULL, NULL});
    tutti_kernel_reduce(TUTTI_MAX, &(tutti_kernel_reduce_args){TUTTI_FLOAT32, 2, shape, 2, NULL, y});
    for (int i = 0; i < 3; i++) cr_assert(y[i] == -INFINITY);
    tutti_kernel_reduce(TUTTI_SUM, &(tutti_kernel_reduce_args){TUTTI_FLOAT32, 2, shape, 2, NULL, y});
    for (int i = 0; i < 3; i++) cr_assert(y[i] == 0);
}

Test(empty, products_and_windows) {
    for (int t = 0; t < 2; t++) {
        const tutti_type type = reals[t];
        double bias[3] = {0}, y[6], ones[8] = {0};
        tutti_kernel_matmul(&(tutti_kernel_matmul_args){.type = type, .m = 0, .n = 3, .k = 2, .b = ones, .bias = bias});
        tutti_kernel_matmul(&(tutti_kernel_matmul_args){.type = type, .m = 3, .n = 0, .k = 2, .a = ones});
        tutti_kernel_matmul(&(tutti_kernel_matmul_args){.type = type, .m = 2, .n = 3, .k = 0, .bias = bias, .y = y});
        array_check_near("products of nothing", type, y, (double[6]){0}, 6, 0);
        /* No images, no channels, no filters. */
        for (int none = 0; none < 3; none++) {
            const int64_t filters = none == 2 ? 0 : 1;
            const tutti_kernel_window w = {none == 0 ? 0 : 1, 2, 2, none == 1 ? 0 : 1, 3, 3, 1, 1, 1, 1, 2, 2};
            void *x = none < 2 ? NULL : ones, *weight = none > 0 ? NULL : array_random(type, 1, 9),
                 *out = none == 1 ? y : NULL;
            void *scratch = array_new(tutti_kernel_conv_scratch_bytes(type, &w)),
                 *dweight = none > 0 ? NULL : array_new(72);
            double dbias[1];
            tutti_kernel_conv_forward(type, &w, filters, x, weight, none < 2 ? bias : NULL, scratch, out);
            if (none == 1) array_check_near("convolution of nothing", type, y, (double[4]){0}, 4, 0);
            const tutti_kernel_conv_backward_args args = {
                type, filters, x, weight, out, scratch, none < 2 ? NULL : y, dweight, none < 2 ? dbias : NULL};
            tutti_kernel_conv_backward(&w, &args);
            if (none == 0) array_check_near("dweight", type, dweight, (double[9]){0}, 9, 0);
            if (none == 2) array_check_near("dx", type, y, (double[4]){0}, 4, 0);
            if (none < 2) {
                tutti_kernel_max_pool_forward(type, &w, NULL, NULL);
                tutti_kernel_max_pool_backward(type, &w, NULL, NULL, NULL);
                tutti_kernel_average_pool_forward(type, &w, true, NULL, NULL);
                tutti_kernel_average_pool_backward(type, &w, true, NULL, NULL);
            }
            void *all[] = {scratch, dweight, weight};
            for (int i = 0; i < 3; i++) array_free(all[i]);
        }
    }
}

Test(empty, normalisation_loss_and_embedding) {
    for (int t = 0; t < 2; t++) {
        const tutti_type type = reals[t];
        double sums[2000], moments[1000] = {0}, y[6], max[3] = {0}, results[3];
        const int32_t labels_of_rows[3] = {0, 5, 1};
        const tutti_kernel_batch_norm_args args = {type, 0, 1000, NULL, moments, moments, NULL, NULL, false};
        tutti_kernel_batch_norm_statistics(type, 0, 1000, NULL, sums);
        for (int i = 0; i < 2000; i++) cr_assert(sums[i] == 0);
        tutti_kernel_batch_norm_normalise(&args, NULL);
        tutti_kernel_batch_norm_backward_sums(&args, NULL, sums);
        tutti_kernel_batch_norm_backward(&args, NULL, sums, 1, NULL);
        tutti_kernel_softmax(type, 0, 5, NULL, NULL);
        tutti_kernel_softmax(type, 5, 0, NULL, NULL);
        tutti_kernel_softmax_backward(type, 5, 0, NULL, NULL, NULL);
        /* A rank without classes. */
        const tutti_kernel_labels labels = {TUTTI_INT32, labels_of_rows, 6, 6};
        tutti_kernel_exp_sums(type, 3, 0, NULL, max, results);
        array_check_near("sums", type, results, (double[3]){0}, 3, 0);
        tutti_kernel_label_logits(type, 3, 0, NULL, &labels, results);
        array_check_near("logits", type, results, (double[3]){0}, 3, 0);
        tutti_kernel_cross_entropy_backward(type, 3, 0, NULL, &labels, max, max, max, NULL);
        tutti_kernel_cross_entropy(type, 0, 6, NULL, &(tutti_kernel_labels){TUTTI_INT64, NULL, 6, 0}, NULL, NULL, NULL);
        const tutti_kernel_embedding_args rows = {type, TUTTI_INT32, 3, 2, 10, 0, labels_of_rows};
        tutti_kernel_embedding(&rows, NULL, y);
        array_check_near("rows", type, y, (double[6]){0}, 6, 0);
        tutti_kernel_embedding_backward(&rows, y, NULL);
    }
}
