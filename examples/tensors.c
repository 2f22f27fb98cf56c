/*
 * Global tensors: parts of one tensor on several ranks, from one layout to another.
 *
 *   tuttirun -n 4 ./tensors
 */
#include <stdio.h>

#include <tutti/tensor.h>

/* Rows on ranks 0 and 1 become whole copies on ranks 2 and 3. */
static tutti_status hand_over(tutti_comm *world) {
    tutti_placement *pair, *other;
    tutti_tensor *x, *copy;
    tutti_local local;
    TUTTI_TRY(tutti_placement_create(world, TUTTI_MEMORY_HOST, (int[]){0, 1}, (int[]){2}, 1, &pair));
    TUTTI_TRY(tutti_placement_create(world, TUTTI_MEMORY_HOST, (int[]){2, 3}, (int[]){2}, 1, &other));
    TUTTI_TRY(tutti_tensor_create(&TUTTI_LAYOUT(.placement = pair, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_FLOAT32,
                                                .ndims = 2, .shape = (int64_t[]){4, 6}, .name = "x"),
                                  &x));
    TUTTI_TRY(tutti_tensor_local(x, &local)); /* ranks 2 and 3 have no part of it */
    for (size_t i = 0; i < local.count; i++)
        ((float *)local.data)[i] = (float)(10 * (local.first[0] + (int64_t)i / 6) + (int64_t)i % 6);
    TUTTI_TRY(tutti_tensor_to_global(x, other, &TUTTI_BROADCAST, NULL, &copy));
    TUTTI_TRY(tutti_tensor_local(copy, &local));
    if (tutti_comm_rank(world) == 3) printf("x[3,5] on rank 3: %g\n", ((float *)local.data)[3 * 6 + 5]);
    tutti_tensor_destroy(copy);
    tutti_tensor_destroy(x);
    tutti_placement_destroy(other);
    tutti_placement_destroy(pair);
    return TUTTI_OK;
}

/* Each rank has rank + 1 rows of ones; together they are one tensor, of which each rank then gets the sums of two
 * columns. */
static tutti_status join(tutti_comm *world) {
    tutti_placement *all;
    tutti_tensor *rows, *sums, *share;
    tutti_local local;
    int ranks = tutti_comm_size(world), rank = tutti_comm_rank(world);
    float ones[16 * 8], columns[8] = {0};
    int64_t shape[] = {rank + 1, 8};
    for (int i = 0; i < (rank + 1) * 8; i++) ones[i] = 1;
    for (int i = 0; i < (rank + 1) * 8; i++) columns[i % 8] += ones[i];
    TUTTI_TRY(tutti_placement_create(world, TUTTI_MEMORY_HOST, NULL, &ranks, 1, &all));
    TUTTI_TRY(tutti_tensor_from_local(
        &TUTTI_LAYOUT(.placement = all, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_FLOAT32, .ndims = 2, .name = "rows"),
        shape, ones, &rows));
    if (rank == 0) printf("rows of all ranks: %lld\n", (long long)tutti_tensor_layout(rows)->shape[0]);
    /* Each rank has a term of the sums: the layout is partial. */
    TUTTI_TRY(tutti_tensor_wrap(&TUTTI_LAYOUT(.placement = all, .sbp = &TUTTI_PARTIAL(TUTTI_SUM), .type = TUTTI_FLOAT32,
                                              .ndims = 1, .shape = (int64_t[]){8}, .name = "sums"),
                                columns, &sums));
    TUTTI_TRY(tutti_tensor_to_global(sums, NULL, &TUTTI_SPLIT(0), NULL, &share));
    TUTTI_TRY(tutti_tensor_local(share, &local));
    if (rank == ranks - 1)
        printf("sums on rank %d: %zu, from column %lld on, each %g\n", rank, local.count, (long long)local.first[0],
               ((float *)local.data)[0]);
    tutti_tensor_destroy(share);
    tutti_tensor_destroy(sums);
    tutti_tensor_destroy(rows);
    tutti_placement_destroy(all);
    return TUTTI_OK;
}

static tutti_status run(void) {
    tutti_comm *world;
    TUTTI_TRY(tutti_comm_create_world(&world));
    if (tutti_comm_size(world) != 4)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "start it with 4 ranks: tuttirun -n 4 ./tensors");
    tutti_status status = hand_over(world);
    if (status == TUTTI_OK) status = join(world);
    tutti_comm_destroy(world);
    return status;
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "tensors: %s\n", tutti_last_error());
    return 1;
}
