/*
 * Operators on global tensors: one program for all ranks, as if for one device. The examples of OneFlow's page on
 * global tensors.
 *
 *   tuttirun -n 4 ./operators
 */
#include <stdio.h>

#include <tutti/ops.h>

/* Exits with the error text if a call has failed. */
static void check(tutti_status status) {
    if (status == TUTTI_OK) return;
    fprintf(stderr, "operators: %s\n", tutti_last_error());
    _Exit(1);
}

static tutti_layout layout_of(tutti_placement *placement, const tutti_sbp *sbp, const int64_t shape[2],
                              const char *name) {
    return TUTTI_LAYOUT(.placement = placement, .sbp = sbp, .type = TUTTI_FLOAT32, .ndims = 2, .shape = shape,
                        .name = name);
}

/* Prints an element of a tensor that all ranks of its placement hold; `rank` is the one that prints. */
static void show(const tutti_tensor *tensor, int rank, int me, int row, int column) {
    tutti_local local;
    check(tutti_tensor_local(tensor, &local));
    if (me == rank)
        printf("%s[%d,%d] on rank %d: %g\n", tutti_tensor_layout(tensor)->name, row, column, rank,
               (double)((const float *)local.data)[row * local.shape[1] + column]);
}

/* x = randn(4, 5) on ranks 0 and 1, split(0): each has two rows of it; the numbers do not depend on the split. */
static void make_random(tutti_placement *pair, int me) {
    const tutti_layout rows = layout_of(pair, &TUTTI_SPLIT(0), (int64_t[]){4, 5}, "x");
    const tutti_layout whole = layout_of(pair, &TUTTI_BROADCAST, (int64_t[]){4, 5}, "whole x");
    const tutti_random_options normal = {.distribution = TUTTI_NORMAL, .b = 1, .seed = 1};
    tutti_tensor *x, *same;
    tutti_local part, all;
    check(tutti_op_random(&rows, &normal, &x));
    check(tutti_op_random(&whole, &normal, &same));
    check(tutti_tensor_local(x, &part));
    check(tutti_tensor_local(same, &all));
    if (me == 1)
        printf("rank 1 has %lldx%lld of x, %s\n", (long long)part.shape[0], (long long)part.shape[1],
               ((float *)part.data)[0] == ((float *)all.data)[2 * 5] ? "the rows from 2 on" : "other numbers");
    tutti_tensor_destroy(x);
    tutti_tensor_destroy(same);
}

/* x + y of a tensor split by rows and one split by columns: one of the two is redistributed. */
static void add(tutti_placement *pair, int me) {
    const tutti_layout by_rows = layout_of(pair, &TUTTI_SPLIT(0), (int64_t[]){4, 4}, "x");
    const tutti_layout by_columns = layout_of(pair, &TUTTI_SPLIT(1), (int64_t[]){4, 4}, "y");
    tutti_tensor *x, *y, *z, *whole;
    check(tutti_op_arange(&by_rows, 0, 1, &x));
    check(tutti_op_arange(&by_columns, 0, 10, &y));
    check(tutti_op_add(x, y, &TUTTI_OP_OPTIONS(.name = "z"), &z));
    if (me == 0) printf("%s\n", tutti_op_explain());
    if (me < 2) check(tutti_tensor_to_global(z, NULL, &TUTTI_BROADCAST, NULL, &whole));
    if (me < 2) show(whole, 1, me, 3, 3);
    if (me < 2) tutti_tensor_destroy(whole);
    tutti_tensor_destroy(z);
    tutti_tensor_destroy(y);
    tutti_tensor_destroy(x);
}

/* A product on ranks 0 and 1 by rows; its result moves to ranks 2 and 3, where it is multiplied by columns. */
static void multiply(tutti_placement *pair, tutti_placement *other, int me) {
    const tutti_layout of_a = layout_of(pair, &TUTTI_SPLIT(0), (int64_t[]){4, 5}, "a");
    const tutti_layout of_b = layout_of(pair, &TUTTI_BROADCAST, (int64_t[]){5, 8}, "b");
    const tutti_layout of_c = layout_of(other, &TUTTI_SPLIT(1), (int64_t[]){8, 6}, "c");
    tutti_tensor *a, *b, *c, *ab, *moved, *abc, *whole;
    check(tutti_op_arange(&of_a, 0, 1, &a));
    check(tutti_op_fill(&of_b, 0.5, &b));
    check(tutti_op_arange(&of_c, 0, 1, &c));
    check(tutti_op_matmul(a, b, NULL, &TUTTI_OP_OPTIONS(.name = "ab"), &ab));       /* split(0) */
    check(tutti_tensor_to_global(ab, other, &TUTTI_BROADCAST, NULL, &moved));       /* all four ranks */
    check(tutti_op_matmul(moved, c, NULL, &TUTTI_OP_OPTIONS(.name = "abc"), &abc)); /* split(1) */
    if (me >= 2) check(tutti_tensor_to_global(abc, NULL, &TUTTI_BROADCAST, NULL, &whole));
    if (me >= 2) show(whole, 3, me, 3, 5);
    if (me >= 2) tutti_tensor_destroy(whole);
    tutti_tensor *made[] = {a, b, c, ab, moved, abc};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) tutti_tensor_destroy(made[i]);
}

int main(void) {
    tutti_comm *world;
    tutti_placement *pair, *other;
    check(tutti_comm_create_world(&world));
    int me = tutti_comm_rank(world);
    if (tutti_comm_size(world) != 4)
        check(tutti_fail(TUTTI_ERR_ARGUMENT, "start it with 4 ranks: tuttirun -n 4 ./operators"));
    check(tutti_placement_create(world, TUTTI_MEMORY_HOST, (int[]){0, 1}, (int[]){2}, 1, &pair));
    check(tutti_placement_create(world, TUTTI_MEMORY_HOST, (int[]){2, 3}, (int[]){2}, 1, &other));
    make_random(pair, me);
    add(pair, me);
    multiply(pair, other, me);
    tutti_placement_destroy(other);
    tutti_placement_destroy(pair);
    tutti_comm_destroy(world);
    return 0;
}
