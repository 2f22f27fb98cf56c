/*
 * A data pipeline: each rank gets its part of the same batches, whatever the number of ranks. Prints the number of
 * samples of each class, over all ranks.
 *
 *   tuttirun -n 4 ./data           synthetic digits
 *   tuttirun -n 4 ./data FOLDER    the training images of CIFAR-10, binary version
 */
#include <stdio.h>

#include <tutti/data.h>

enum { GLOBAL_BATCH = 120, PASSES = 2, CLASSES = 10 };

/* Exits with the error text if a call has failed. */
static void check(tutti_status status) {
    if (status == TUTTI_OK) return;
    fprintf(stderr, "data: %s\n", tutti_last_error());
    _Exit(1);
}

/* Random crops and flips are drawn anew in each pass. */
static tutti_data *open_pipeline(tutti_data_source *source, const tutti_comm *comm) {
    tutti_data_source_details about;
    tutti_data *data;
    check(tutti_data_source_get(source, &about));
    const double side = about.height, drops = 1;
    const tutti_data_op ops[] = {{"random_crop", {side, side, 4, 4, 4, 4}},
                                 {"random_horizontal_flip", {0.5}},
                                 {"rescale", {1.0 / 255, 0}},
                                 {"batch", {GLOBAL_BATCH / tutti_comm_size(comm), drops}},
                                 {"repeat", {PASSES}}};
    check(tutti_data_create(source, ops, 5, &TUTTI_DATA_OPTIONS(.comm = comm, .seed = 1), &data));
    return data;
}

int main(int argc, char **argv) {
    tutti_comm *comm;
    tutti_data_source *source;
    tutti_data_batch batch;
    int64_t seen[CLASSES] = {0}, batches = 0;
    check(tutti_comm_create_world(&comm));
    if (argc > 1) check(tutti_data_open_cifar10(argv[1], TUTTI_DATA_TRAIN, &source));
    else check(tutti_data_open_digits(1, TUTTI_DATA_TRAIN, 1200, &source));
    tutti_data *data = open_pipeline(source, comm);
    for (;; batches++) {
        check(tutti_data_next(data, &batch));
        if (batch.count == 0) break;
        for (int i = 0; i < batch.count; i++) seen[batch.labels[i]]++;
    }
    check(tutti_all_reduce(comm, seen, seen, CLASSES, TUTTI_INT64, TUTTI_SUM, NULL));
    if (tutti_comm_rank(comm) == 0) {
        printf("%lld batches; samples of each class:", (long long)batches);
        for (int c = 0; c < CLASSES; c++) printf(" %lld", (long long)seen[c]);
        printf("\n");
    }
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
    tutti_comm_destroy(comm);
    return 0;
}
