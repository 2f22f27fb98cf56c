/*
 * Shards in CUDA memory from and to other libraries by DLPack: sharing, copies on the GPU, errors.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>
#include <tutti/dlpack.h>

#include "tensor/dlpack_abi.h"
#include "tests/support/gpu/cuda_call.h"

TestSuite(tensor_dlpack_cuda, .timeout = 60);

enum { ROWS = 5, COLUMNS = 6, NUMBERS = 4 * ROWS * COLUMNS };

static _Thread_local int deletions;

static void run(const int *sizes, ranks_body body) {
    setenv("STANDIN_GPUS", "2", 1);
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 30}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* A tensor of int32 as another library would export it, one on each rank. */
typedef struct scene {
    cuda_rank rank;
    tutti_placement *line;
    tutti_layout layout;
    void *numbers; /* on the GPU: 0, 1, 2, ... */
    struct DLManagedTensorVersioned managed;
    int64_t shape[2], strides[2];
} scene;

static void count_deletion(struct DLManagedTensorVersioned *self) {
    deletions += self->manager_ctx == &deletions;
}

static void give(scene *s) {
    s->shape[0] = ROWS;
    s->shape[1] = COLUMNS;
    s->strides[0] = COLUMNS;
    s->strides[1] = 1;
    s->managed = (struct DLManagedTensorVersioned){.version = {1, 0},
                                                   .manager_ctx = &deletions,
                                                   .deleter = count_deletion,
                                                   .dl_tensor = {.data = s->numbers,
                                                                 .device_type = DLPACK_CUDA,
                                                                 .device_id = s->rank.index,
                                                                 .ndim = 2,
                                                                 .dtype = {DLPACK_INT, 32, 1},
                                                                 .shape = s->shape,
                                                                 .strides = s->strides}};
    deletions = 0;
}

static tutti_status open_scene(const ranks_context *context, scene *s) {
    static const int64_t shape[] = {ROWS, COLUMNS};
    int32_t numbers[NUMBERS];
    int n = context->nranks;
    memset(s, 0, sizeof *s);
    TUTTI_TRY(cuda_rank_open(context, 1 << 16, &s->rank));
    TUTTI_TRY(cuda_alloc(&s->rank, sizeof numbers + 64, &s->numbers));
    for (int i = 0; i < NUMBERS; i++) numbers[i] = i;
    TUTTI_TRY(s->rank.device->copy(s->numbers, numbers, sizeof numbers, NULL));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &s->line));
    s->layout = TUTTI_LAYOUT(.placement = s->line, .type = TUTTI_INT32, .ndims = 2, .shape = shape, .name = "given");
    return TUTTI_OK;
}

static tutti_status close_scene(const ranks_context *context, scene *s) {
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_placement_destroy(s->line);
    return cuda_rank_close(&s->rank, context->comm);
}

/* Element [row, column] lies at first + row * strides[0] + column * strides[1]. */
static tutti_status check_import(scene *s, int first, bool copied, const char *what) {
    tutti_tensor *tensor;
    tutti_local local;
    int32_t got[ROWS * COLUMNS];
    RANKS_EXPECT(TUTTI_OK, tutti_tensor_from_dlpack(&s->layout, &s->managed, &tensor));
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    size_t at = (size_t)((char *)local.data - (char *)s->numbers);
    RANKS_CHECK((at < NUMBERS * 4) != copied, "%s: %s", what, copied ? "shared" : "copied");
    RANKS_CHECK(deletions == copied, "%s: %d deletions before the end", what, deletions);
    TUTTI_TRY(s->rank.device->copy(got, local.data, sizeof got, s->rank.streams[0])); /* a copy must be done */
    TUTTI_TRY(s->rank.device->stream_sync(s->rank.streams[0]));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int64_t expected = first + i / COLUMNS * s->strides[0] + i % COLUMNS * s->strides[1];
        RANKS_CHECK(got[i] == expected, "%s: element %d is %d, not %lld", what, i, got[i], (long long)expected);
    }
    tutti_tensor_destroy(tensor);
    RANKS_CHECK(deletions == 1, "%s: %d deletions", what, deletions);
    return TUTTI_OK;
}

static tutti_status import_all_kinds(ranks_context *context) {
    scene s;
    TUTTI_TRY(open_scene(context, &s));
    dlpack_tensor *dl = &s.managed.dl_tensor;
    give(&s);
    TUTTI_TRY(check_import(&s, 0, false, "dense"));
    give(&s);
    dl->byte_offset = 4 * 11;
    TUTTI_TRY(check_import(&s, 11, false, "with an offset"));
    give(&s);
    s.managed.flags = DLPACK_READ_ONLY;
    TUTTI_TRY(check_import(&s, 0, true, "read-only"));
    give(&s);
    s.strides[0] = 1;
    s.strides[1] = ROWS;
    TUTTI_TRY(check_import(&s, 0, true, "column-major"));
    give(&s);
    s.strides[0] = -COLUMNS;
    dl->data = (char *)s.numbers + 4 * (ROWS - 1) * COLUMNS;
    TUTTI_TRY(check_import(&s, (ROWS - 1) * COLUMNS, true, "rows backwards"));
    give(&s);
    s.strides[0] = 0;
    TUTTI_TRY(check_import(&s, 0, true, "one row for all"));
    return close_scene(context, &s);
}

Test(tensor_dlpack_cuda, dense_tensors_are_shared_and_others_copied) {
    run((const int[]){1, 2, 0}, import_all_kinds);
}

/* An exported shard keeps its memory after the tensor is destroyed, and can be imported again without a copy. */
static tutti_status out_and_in(ranks_context *context) {
    scene s;
    struct DLManagedTensorVersioned *managed;
    tutti_tensor *first, *second;
    tutti_local one, other;
    char got = 0;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(tutti_tensor_create(&s.layout, &first));
    TUTTI_TRY(tutti_tensor_local(first, &one));
    TUTTI_TRY(s.rank.device->fill(one.data, 7, one.count * 4, NULL));
    TUTTI_TRY(tutti_tensor_to_dlpack(first, &managed));
    const dlpack_tensor *dl = &managed->dl_tensor;
    RANKS_CHECK(dl->device_type == DLPACK_CUDA && dl->device_id == s.rank.index && dl->data == one.data,
                "its device is %d of type %d", (int)dl->device_id, (int)dl->device_type);
    tutti_tensor_destroy(first);
    TUTTI_TRY(tutti_tensor_from_dlpack(&s.layout, managed, &second));
    TUTTI_TRY(tutti_tensor_local(second, &other));
    RANKS_CHECK(other.data == one.data, "it was copied");
    TUTTI_TRY(s.rank.device->copy(&got, (char *)other.data + 4 * ROWS * COLUMNS - 1, 1, NULL));
    RANKS_CHECK(got == 7, "the memory was freed");
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_tensor_destroy(second);
    return close_scene(context, &s);
}

Test(tensor_dlpack_cuda, shards_are_exported_and_imported_without_a_copy) {
    run((const int[]){1, 2, 0}, out_and_in);
}

#define REFUSED(words, ...)                                                                                            \
    do {                                                                                                               \
        give(&s);                                                                                                      \
        __VA_ARGS__;                                                                                                   \
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_tensor_from_dlpack(&s.layout, &s.managed, &tensor));                    \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "'%s', not '%s'", tutti_last_error(), words);           \
        RANKS_CHECK(deletions == 0, "'%s': deleted although refused", words);                                          \
    } while (0)

static tutti_status refuse(ranks_context *context) {
    static _Thread_local int32_t here[NUMBERS];
    scene s;
    tutti_tensor *tensor;
    TUTTI_TRY(open_scene(context, &s));
    dlpack_tensor *dl = &s.managed.dl_tensor;
    REFUSED("it is in host memory (device type 1), and the placement's shards are in CUDA memory",
            dl->device_type = DLPACK_CPU;
            dl->data = here);
    REFUSED("it is on GPU 9; this rank's shards are on GPU", dl->device_id = 9);
    REFUSED("its device type is 2, but its data is memory of the host", dl->data = here);
    give(&s); /* the device of managed memory does not count */
    dl->device_type = DLPACK_CUDA_MANAGED;
    dl->device_id = 0;
    RANKS_EXPECT(TUTTI_OK, tutti_tensor_from_dlpack(&s.layout, &s.managed, &tensor));
    tutti_tensor_destroy(tensor);
    return close_scene(context, &s);
}

Test(tensor_dlpack_cuda, tensors_on_other_devices_are_refused_and_stay_the_callers) {
    run((const int[]){2, 0}, refuse);
}
