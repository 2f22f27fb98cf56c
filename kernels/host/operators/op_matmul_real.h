/* Matrix products of one real type; a template (op_both_reals.h). */

void OF(tutti_kernel_product)(bool transpose_a, bool transpose_b, int m, int n, int k, const REAL *a, const REAL *b,
                              bool adds, REAL *c) {
    if (m == 0 || n == 0) return;
    if (k == 0) {
        if (!adds) memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
        return;
    }
    const int step = rows_at_once(transpose_b, m, n, k);
    for (int row = 0; row < m; row += step) {
        const int rows = m - row < step ? m - row : step;
        OF(gemm)
        (CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, rows, n, k, 1,
         a + (ptrdiff_t)row * (transpose_a ? 1 : k), transpose_a ? m : k, b, transpose_b ? k : n, adds ? 1 : 0,
         c + (ptrdiff_t)row * n, n);
    }
}

/* c[rows, columns]: sets each row to the bias. Products are then added, which costs no more than writing them:
 * CBLAS begins with a pass over c in any case. */
static void OF(begin_with)(size_t rows, size_t columns, const REAL *bias, REAL *c) {
    for (size_t row = 0; row < rows; row++, c += columns) memcpy(c, bias, columns * sizeof *c);
}

static void OF(matmul)(const tutti_kernel_matmul_args *args, const batches *batch, const REAL *a, const REAL *b,
                       REAL *y) {
    const size_t results = (size_t)batch->m * (size_t)args->n;
    int64_t index[TUTTI_KERNEL_MOST_DIMS] = {0};
    for (int d = 0; d >= 0; y += results) {
        int64_t at_a = 0, at_b = 0;
        for (int i = 0; i < batch->ndims; i++) {
            at_a += index[i] * args->a_strides[i];
            at_b += index[i] * args->b_strides[i];
        }
        if (args->bias != NULL) OF(begin_with)((size_t)batch->m, (size_t)args->n, args->bias, y);
        OF(tutti_kernel_product)
        (args->transpose_a, args->transpose_b, (int)batch->m, (int)args->n, (int)args->k, a + at_a, b + at_b,
         args->bias != NULL, y);
        for (d = batch->ndims - 1; d >= 0 && ++index[d] == args->batch_shape[d]; d--) index[d] = 0;
    }
}
