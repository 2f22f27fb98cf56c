/*
 * Shards from and to other libraries by DLPack: sharing, copies, calls of the deleter, errors.
 */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/dlpack.h>

#include "tensor/dlpack_abi.h"
#include "tests/support/ranks.h"

TestSuite(tensor_dlpack, .timeout = 60);

enum { ROWS = 5, COLUMNS = 6 };

static _Thread_local int deletions;

static void run(const int *sizes, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 30}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static void count_deletion(struct DLManagedTensorVersioned *self) {
    deletions += self->manager_ctx == &deletions;
}

static void count_old_deletion(struct DLManagedTensor *self) {
    deletions += self->manager_ctx == &deletions;
}

/* Layout of the structs for other libraries, on 64-bit machines. */
Test(tensor_dlpack, structs_have_the_layout_of_dlpack) {
    typedef struct DLManagedTensorVersioned versioned;
    cr_assert_eq(sizeof(dlpack_tensor), 48);
    cr_assert_eq(offsetof(dlpack_tensor, data), 0);
    cr_assert_eq(offsetof(dlpack_tensor, device_type), 8);
    cr_assert_eq(offsetof(dlpack_tensor, device_id), 12);
    cr_assert_eq(offsetof(dlpack_tensor, ndim), 16);
    cr_assert_eq(offsetof(dlpack_tensor, dtype), 20);
    cr_assert_eq(offsetof(dlpack_tensor, shape), 24);
    cr_assert_eq(offsetof(dlpack_tensor, strides), 32);
    cr_assert_eq(offsetof(dlpack_tensor, byte_offset), 40);
    cr_assert_eq(offsetof(dlpack_type, bits), 1);
    cr_assert_eq(offsetof(dlpack_type, lanes), 2);
    cr_assert_eq(offsetof(versioned, version), 0);
    cr_assert_eq(offsetof(versioned, manager_ctx), 8);
    cr_assert_eq(offsetof(versioned, deleter), 16);
    cr_assert_eq(offsetof(versioned, flags), 24);
    cr_assert_eq(offsetof(versioned, dl_tensor), 32);
    cr_assert_eq(sizeof(versioned), 80);
    cr_assert_eq(offsetof(struct DLManagedTensor, manager_ctx), 48);
    cr_assert_eq(offsetof(struct DLManagedTensor, deleter), 56);
}

/* ---------------------------------------------------------------------------------------------- both ways */

static tutti_status all_types(ranks_context *context) {
    tutti_placement *line;
    int n = context->nranks;
    int64_t shape[] = {ROWS, COLUMNS};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &line));
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++) {
        struct DLManagedTensorVersioned *managed, *again;
        tutti_tensor *first, *second;
        tutti_local one, other;
        tutti_layout layout = TUTTI_LAYOUT(.placement = line, .sbp = &TUTTI_SPLIT(0), .type = (tutti_type)type,
                                           .ndims = 2, .shape = shape);
        TUTTI_TRY(tutti_tensor_create(&layout, &first));
        TUTTI_TRY(tutti_tensor_local(first, &one));
        TUTTI_TRY(tutti_tensor_to_dlpack(first, &managed));
        const dlpack_tensor *dl = &managed->dl_tensor;
        RANKS_CHECK(managed->version.major == 1 && managed->flags == 0 && dl->byte_offset == 0 && dl->device_type == 1,
                    "type %d: the head", type);
        RANKS_CHECK(dl->data == one.data && dl->ndim == 2 && dl->shape[0] == one.shape[0] && dl->shape[1] == COLUMNS &&
                        dl->strides[0] == COLUMNS && dl->strides[1] == 1,
                    "type %d: the shard", type);
        RANKS_CHECK(dl->dtype.bits == 8 * tutti_type_bytes((tutti_type)type) && dl->dtype.lanes == 1, "type %d", type);
        memset(one.data, 7, one.count * tutti_type_bytes((tutti_type)type));
        tutti_tensor_destroy(first);
        TUTTI_TRY(tutti_tensor_from_dlpack(&layout, managed, &second)); /* keeps the memory of the destroyed tensor */
        TUTTI_TRY(tutti_tensor_local(second, &other));
        RANKS_CHECK(other.data == one.data, "type %d: copied", type);
        TUTTI_TRY(tutti_tensor_to_dlpack(second, &again));
        tutti_tensor_destroy(second);
        RANKS_CHECK(((const char *)again->dl_tensor.data)[0] == 7, "type %d: the memory was freed", type);
        again->deleter(again);
    }
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_dlpack, all_types_are_exported_and_imported_without_a_copy) {
    run((const int[]){1, 3, 0}, all_types);
}

/* ---------------------------------------------------------------------------------------------------- imports */

/* A tensor of int32 as another library would export it, on one rank. */
typedef struct given {
    struct DLManagedTensorVersioned managed;
    struct DLManagedTensor old;
    int64_t shape[8], strides[8];
    int32_t numbers[4 * ROWS * COLUMNS];
} given;

static void give(given *g) {
    *g = (given){.shape = {ROWS, COLUMNS}, .strides = {COLUMNS, 1}};
    for (int i = 0; i < 4 * ROWS * COLUMNS; i++) g->numbers[i] = i;
    g->managed = (struct DLManagedTensorVersioned){.version = {1, 0},
                                                   .manager_ctx = &deletions,
                                                   .deleter = count_deletion,
                                                   .dl_tensor = {.data = g->numbers,
                                                                 .device_type = 1,
                                                                 .ndim = 2,
                                                                 .dtype = {0, 32, 1},
                                                                 .shape = g->shape,
                                                                 .strides = g->strides}};
    deletions = 0;
}

/* Element [row, column] lies at first + row * strides[0] + column * strides[1]. */
static tutti_status check_import(const tutti_layout *layout, given *g, int first, bool copied, const char *what) {
    tutti_tensor *tensor;
    tutti_local local;
    RANKS_EXPECT(TUTTI_OK, tutti_tensor_from_dlpack(layout, &g->managed, &tensor));
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    bool inside = (char *)local.data >= (char *)g->numbers && (char *)local.data < (char *)(g + 1);
    RANKS_CHECK(inside != copied, "%s: %s", what, copied ? "shared" : "copied");
    RANKS_CHECK(deletions == copied, "%s: %d deletions before the end", what, deletions);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int64_t expected = first + i / COLUMNS * g->strides[0] + i % COLUMNS * g->strides[1];
        int32_t got;
        memcpy(&got, (char *)local.data + 4 * (size_t)i, 4);
        RANKS_CHECK(got == expected, "%s: element %d is %d, not %lld", what, i, got, (long long)expected);
    }
    tutti_tensor_destroy(tensor);
    RANKS_CHECK(deletions == 1, "%s: %d deletions", what, deletions);
    return TUTTI_OK;
}

static tutti_status import_all_kinds(ranks_context *context) {
    static _Thread_local given g;
    tutti_placement *line;
    tutti_tensor *tensor;
    int one = 1;
    int64_t shape[] = {ROWS, COLUMNS};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &one, 1, &line));
    tutti_layout layout = TUTTI_LAYOUT(.placement = line, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    dlpack_tensor *dl = &g.managed.dl_tensor;

    give(&g);
    TUTTI_TRY(check_import(&layout, &g, 0, false, "dense"));
    give(&g);
    dl->strides = NULL;
    TUTTI_TRY(check_import(&layout, &g, 0, false, "without strides"));
    give(&g);
    dl->byte_offset = 4 * 11;
    TUTTI_TRY(check_import(&layout, &g, 11, false, "with an offset"));
    give(&g);
    g.managed.flags = 1;
    TUTTI_TRY(check_import(&layout, &g, 0, true, "read-only"));
    give(&g);
    g.strides[0] = 1;
    g.strides[1] = ROWS;
    TUTTI_TRY(check_import(&layout, &g, 0, true, "column-major"));
    give(&g);
    g.strides[0] = 2 * COLUMNS;
    g.strides[1] = 2;
    TUTTI_TRY(check_import(&layout, &g, 0, true, "every other element"));
    give(&g);
    g.strides[0] = -COLUMNS;
    dl->data = g.numbers + (ROWS - 1) * COLUMNS;
    TUTTI_TRY(check_import(&layout, &g, (ROWS - 1) * COLUMNS, true, "rows backwards"));
    give(&g);
    g.strides[0] = 0;
    TUTTI_TRY(check_import(&layout, &g, 0, true, "one row for all"));
    give(&g);
    memmove((char *)g.numbers + 1, g.numbers, sizeof g.numbers - 1);
    dl->byte_offset = 1;
    TUTTI_TRY(check_import(&layout, &g, 0, true, "not aligned"));

    give(&g); /* without a deleter */
    g.managed.deleter = NULL;
    RANKS_EXPECT(TUTTI_OK, tutti_tensor_from_dlpack(&layout, &g.managed, &tensor));
    tutti_tensor_destroy(tensor);
    give(&g);
    g.old = (struct DLManagedTensor){*dl, &deletions, count_old_deletion};
    RANKS_EXPECT(TUTTI_OK, tutti_tensor_from_dlpack_unversioned(&layout, &g.old, &tensor));
    RANKS_CHECK(deletions == 0, "the old kind: deleted at once");
    tutti_tensor_destroy(tensor);
    RANKS_CHECK(deletions == 1, "the old kind: %d deletions", deletions);
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_dlpack, dense_tensors_are_shared_and_others_copied) {
    run((const int[]){1, 0}, import_all_kinds);
}

#define REFUSED(status, words, ...)                                                                                    \
    do {                                                                                                               \
        give(&g);                                                                                                      \
        __VA_ARGS__;                                                                                                   \
        RANKS_EXPECT(status, tutti_tensor_from_dlpack(&layout, &g.managed, &tensor));                                  \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "'%s', not '%s'", tutti_last_error(), words);           \
        RANKS_CHECK(deletions == 0, "'%s': deleted although refused", words);                                          \
    } while (0)

static tutti_status refuse_damaged(ranks_context *context) {
    static _Thread_local given g;
    tutti_placement *line;
    tutti_tensor *tensor = NULL;
    int one = 1;
    int64_t shape[] = {ROWS, COLUMNS};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &one, 1, &line));
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = line, .type = TUTTI_INT32, .ndims = 2, .shape = shape, .name = "given");
    dlpack_tensor *dl = &g.managed.dl_tensor;
    REFUSED(TUTTI_ERR_UNSUPPORTED, "version 2.0", g.managed.version.major = 2);
    REFUSED(TUTTI_ERR_UNSUPPORTED, "version 0.8", g.managed.version.major = 0; g.managed.version.minor = 8);
    REFUSED(TUTTI_ERR_UNSUPPORTED, "on a device of type 10", dl->device_type = 10);
    REFUSED(TUTTI_ERR_ARGUMENT, "it is in CUDA memory (device type 2), and the placement's shards are in host memory",
            dl->device_type = 2);
    REFUSED(TUTTI_ERR_UNSUPPORTED, "4 lanes", dl->dtype.lanes = 4);
    REFUSED(TUTTI_ERR_UNSUPPORTED, "0 lanes", dl->dtype.lanes = 0);
    REFUSED(TUTTI_ERR_ARGUMENT, "type code 2 of 32 bits; those of int32 have 0 of 32", dl->dtype.code = 2);
    REFUSED(TUTTI_ERR_ARGUMENT, "type code 0 of 16 bits", dl->dtype.bits = 16);
    REFUSED(TUTTI_ERR_ARGUMENT, "has 3 dimensions, not 2", dl->ndim = 3);
    REFUSED(TUTTI_ERR_ARGUMENT, "has -1 dimensions", dl->ndim = -1);
    REFUSED(TUTTI_ERR_ARGUMENT, "its shape is NULL", dl->shape = NULL);
    REFUSED(TUTTI_ERR_ARGUMENT, "dimension 1 has the extent 7; the shard's is 6", g.shape[1] = 7);
    REFUSED(TUTTI_ERR_ARGUMENT, "extent -5", g.shape[0] = -5);
    REFUSED(TUTTI_ERR_ARGUMENT, "its data is NULL", dl->data = NULL);
    REFUSED(TUTTI_ERR_ARGUMENT, "out of the address space", g.strides[0] = INT64_MAX / 2);
    REFUSED(TUTTI_ERR_ARGUMENT, "out of the address space", g.strides[0] = INT64_MIN);
    REFUSED(TUTTI_ERR_ARGUMENT, "out of the address space", g.strides[1] = -(INT64_MAX / 8));
    REFUSED(TUTTI_ERR_ARGUMENT, "out of the address space", dl->byte_offset = UINT64_MAX - 8);
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_tensor_from_dlpack(&layout, NULL, &tensor));
    RANKS_CHECK(strstr(tutti_last_error(), "'given' int32[5,6]") != NULL, "%s", tutti_last_error());
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_dlpack, damaged_structs_are_refused_and_stay_the_callers) {
    run((const int[]){1, 0}, refuse_damaged);
}

/* Rank 0 has all, rank 1 an empty shard, rank 2 none. */
static tutti_status empty_and_outside(ranks_context *context) {
    static _Thread_local given g;
    struct DLManagedTensorVersioned *managed;
    tutti_placement *two;
    tutti_tensor *tensor;
    int64_t shape[] = {1, COLUMNS};
    int size = 2, ranks[] = {0, 1};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, ranks, &size, 1, &two));
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = two, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    give(&g);
    g.shape[0] = context->rank == 0;
    if (context->rank == 2) {
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_tensor_from_dlpack(&layout, &g.managed, &tensor));
        TUTTI_TRY(tutti_tensor_from_dlpack(&layout, NULL, &tensor));
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_tensor_to_dlpack(tensor, &managed));
    } else {
        if (context->rank == 1) g.managed.dl_tensor.data = NULL;
        TUTTI_TRY(tutti_tensor_from_dlpack(&layout, &g.managed, &tensor));
        TUTTI_TRY(tutti_tensor_to_dlpack(tensor, &managed));
        RANKS_CHECK(managed->dl_tensor.shape[0] == g.shape[0], "the shape");
        managed->deleter(managed);
        RANKS_CHECK(deletions == 0, "deleted while a tensor exists");
    }
    tutti_tensor_destroy(tensor);
    RANKS_CHECK(deletions == (context->rank < 2), "%d deletions", deletions);
    tutti_placement_destroy(two);
    return TUTTI_OK;
}

Test(tensor_dlpack, empty_shards_and_ranks_without_one) {
    run((const int[]){3, 0}, empty_and_outside);
}
