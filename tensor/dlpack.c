/*
 * Shards from and to other libraries. A struct of another library is untrusted: only checked fields are used.
 */
#include <tutti/dlpack.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "kernels/box.h"
#include "tensor/dlpack_abi.h"
#include "tensor/gpu.h"
#include "tensor/tensor.h"

static const dlpack_type types[TUTTI_TYPE_COUNT] = {
    [TUTTI_INT8] = {DLPACK_INT, 8, 1},
    [TUTTI_UINT8] = {DLPACK_UINT, 8, 1},
    [TUTTI_INT16] = {DLPACK_INT, 16, 1},
    [TUTTI_UINT16] = {DLPACK_UINT, 16, 1},
    [TUTTI_INT32] = {DLPACK_INT, 32, 1},
    [TUTTI_UINT32] = {DLPACK_UINT, 32, 1},
    [TUTTI_INT64] = {DLPACK_INT, 64, 1},
    [TUTTI_UINT64] = {DLPACK_UINT, 64, 1},
    [TUTTI_BOOL] = {DLPACK_BOOL, 8, 1},
    [TUTTI_FLOAT16] = {DLPACK_FLOAT, 16, 1},
    [TUTTI_BFLOAT16] = {DLPACK_BFLOAT, 16, 1},
    [TUTTI_FLOAT32] = {DLPACK_FLOAT, 32, 1},
    [TUTTI_FLOAT64] = {DLPACK_FLOAT, 64, 1},
    [TUTTI_FLOAT8_E4M3] = {DLPACK_FLOAT8_E4M3FN, 8, 1},
    [TUTTI_FLOAT8_E5M2] = {DLPACK_FLOAT8_E5M2, 8, 1},
};

/* -------------------------------------------------------------------------------------------------- checks */

#define REFUSE(status, ...) return refuse(tensor, status, __VA_ARGS__)

static tutti_status refuse(const tutti_tensor *tensor, tutti_status status, const char *format, ...) TUTTI_PRINTF(3, 4);
static tutti_status refuse(const tutti_tensor *tensor, tutti_status status, const char *format, ...) {
    char text[300], reason[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    tutti_layout_text(tensor->layout, text, sizeof text);
    return tutti_fail(status, "DLPack tensor for this rank's shard of %s: %s", text, reason);
}

static tutti_status check_type(const tutti_tensor *tensor, const dlpack_tensor *dl) {
    tutti_type type = tensor->layout->view.type;
    const dlpack_type *wanted = &types[type];
    if (dl->dtype.lanes != 1)
        REFUSE(TUTTI_ERR_UNSUPPORTED, "its elements are vectors of %u lanes; expected 1 lane", dl->dtype.lanes);
    if (dl->dtype.code != wanted->code || dl->dtype.bits != wanted->bits)
        REFUSE(TUTTI_ERR_ARGUMENT, "its elements have the type code %u of %u bits; those of %s have %u of %u",
               dl->dtype.code, dl->dtype.bits, tutti_type_name(type), wanted->code, wanted->bits);
    return TUTTI_OK;
}

/* Checks that the tensor is on the device of the placement's shards. Its device field is compared with the driver's
 * answer. */
static tutti_status check_device(const tutti_tensor *tensor, const dlpack_tensor *dl, const void *data) {
    int gpu = tensor->layout->view.placement->gpu;
    bool of_gpu = dl->device_type == DLPACK_CUDA || dl->device_type == DLPACK_CUDA_MANAGED, fits = true;
    bool of_host = dl->device_type == DLPACK_CPU || dl->device_type == DLPACK_CUDA_HOST;
    char words[60];
    if (!of_gpu && !of_host)
        REFUSE(TUTTI_ERR_UNSUPPORTED,
               "it is on a device of type %d; expected the CPU (%d, pinned %d) or CUDA (%d, managed %d)",
               (int)dl->device_type, DLPACK_CPU, DLPACK_CUDA_HOST, DLPACK_CUDA, DLPACK_CUDA_MANAGED);
    if (of_gpu != (gpu >= 0))
        REFUSE(TUTTI_ERR_ARGUMENT, "it is in %s memory (device type %d), and the placement's shards are in %s memory",
               of_gpu ? "CUDA" : "host", (int)dl->device_type, of_gpu ? "host" : "CUDA");
    if (dl->device_type == DLPACK_CUDA && dl->device_id != gpu)
        REFUSE(TUTTI_ERR_ARGUMENT, "it is on GPU %d; this rank's shards are on GPU %d", (int)dl->device_id, gpu);
    if (tensor->count == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_gpu_check_place(gpu, data, &fits, words, sizeof words));
    if (!fits) REFUSE(TUTTI_ERR_ARGUMENT, "its device type is %d, but its data is %s", (int)dl->device_type, words);
    return TUTTI_OK;
}

static tutti_status check_shape(const tutti_tensor *tensor, const dlpack_tensor *dl) {
    int ndims = tensor->region.ndims;
    if (dl->ndim != ndims) REFUSE(TUTTI_ERR_ARGUMENT, "it has %d dimensions, not %d", (int)dl->ndim, ndims);
    if (ndims > 0 && dl->shape == NULL) REFUSE(TUTTI_ERR_ARGUMENT, "its shape is NULL");
    for (int d = 0; d < ndims; d++) {
        int64_t extent = tensor->region.end[d] - tensor->region.first[d];
        if (dl->shape[d] != extent)
            REFUSE(TUTTI_ERR_ARGUMENT, "its dimension %d has the extent %lld; the shard's is %lld", d,
                   (long long)dl->shape[d], (long long)extent);
    }
    if (tensor->count > 0 && dl->data == NULL) REFUSE(TUTTI_ERR_ARGUMENT, "its data is NULL");
    return TUTTI_OK;
}

/* All offsets must be distances within the range of a pointer, in both directions. */
static tutti_status check_reach(const tutti_tensor *tensor, const dlpack_tensor *dl) {
    int64_t reach = (int64_t)tutti_type_bytes(tensor->layout->view.type), each = reach, span;
    uint64_t address = (uint64_t)(uintptr_t)dl->data;
    bool beyond = __builtin_add_overflow(address, dl->byte_offset, &address) || address > INT64_MAX;
    for (int d = 0; d < tensor->region.ndims && dl->strides != NULL && tensor->count > 0; d++) {
        if (dl->strides[d] == INT64_MIN) beyond = true;
        else
            beyond = beyond || __builtin_mul_overflow(llabs(dl->strides[d]), dl->shape[d] - 1, &span) ||
                     __builtin_mul_overflow(span, each, &span) || __builtin_add_overflow(reach, span, &reach);
    }
    if (beyond || reach > INT64_MAX / 2)
        REFUSE(TUTTI_ERR_ARGUMENT, "its offset and strides lead out of the address space");
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- imports */

/* Plans the copy from the strided tensor to a dense one, except for repeated dimensions, whose stride is 0: of
 * these, the first index. */
static void plan_copy(const tutti_tensor *tensor, const dlpack_tensor *dl, tutti_box_copy *copy_out) {
    tutti_box box = {.ndims = tensor->region.ndims, .element_bytes = tutti_type_bytes(tensor->layout->view.type)};
    int64_t dense = 1;
    for (int d = box.ndims - 1; d >= 0; d--) {
        box.dst_strides[d] = dense;
        box.src_strides[d] = dl->strides != NULL ? dl->strides[d] : dense;
        box.shape[d] = box.src_strides[d] == 0 ? (dl->shape[d] > 0) : dl->shape[d];
        dense *= dl->shape[d];
    }
    tutti_box_plan(&box, copy_out);
}

static bool is_dense(const tutti_tensor *tensor, const tutti_box_copy *copy) {
    return tensor->count * tutti_type_bytes(tensor->layout->view.type) == tutti_box_bytes(copy) &&
           tutti_box_is_contiguous(copy) && copy->src_first == 0 && copy->dst_first == 0;
}

/* Copies all indices of the repeated dimensions from `dim` on. `device`: NULL on the host. */
static tutti_status copy_all(const tutti_tensor *tensor, const dlpack_tensor *dl, const tutti_box_copy *copy, int dim,
                             char *dst, const char *src, const tutti_device *device) {
    if (dim == tensor->region.ndims) {
        if (device != NULL) return device->copy_box(copy, dst, src, /* the legacy default stream */ NULL);
        tutti_box_run(copy, dst, src);
        return TUTTI_OK;
    }
    size_t step = tutti_type_bytes(tensor->layout->view.type);
    bool repeats = dl->strides != NULL && dl->strides[dim] == 0;
    for (int d = dim + 1; d < tensor->region.ndims; d++) step *= (size_t)dl->shape[d];
    for (int64_t i = 0; i < (repeats ? dl->shape[dim] : 1); i++)
        TUTTI_TRY(copy_all(tensor, dl, copy, dim + 1, dst + (size_t)i * step, src, device));
    return TUTTI_OK;
}

/* Waits for the copy, because the source's memory is given back afterwards. */
static tutti_status copy_shard(const tutti_tensor *tensor, const dlpack_tensor *dl, const tutti_box_copy *copy,
                               const char *src) {
    int gpu = tensor->layout->view.placement->gpu;
    tutti_gpu_visit visit;
    if (tensor->count == 0) return TUTTI_OK;
    if (gpu < 0) return copy_all(tensor, dl, copy, 0, tensor->data, src, NULL);
    TUTTI_TRY(tutti_gpu_enter(gpu, &visit));
    tutti_status status = copy_all(tensor, dl, copy, 0, tensor->data, src, visit.device);
    if (status == TUTTI_OK) status = visit.device->stream_sync(NULL);
    tutti_gpu_leave(&visit);
    return status;
}

/* The owner of the struct: one of two deleters. */
typedef struct owner {
    struct DLManagedTensorVersioned *versioned;
    struct DLManagedTensor *unversioned;
} owner;

static void delete_managed(const owner *o) {
    if (o->versioned != NULL && o->versioned->deleter != NULL) o->versioned->deleter(o->versioned);
    if (o->unversioned != NULL && o->unversioned->deleter != NULL) o->unversioned->deleter(o->unversioned);
}

static void release_managed(void *context) {
    delete_managed(context);
    free(context);
}

static tutti_status share(tutti_tensor *tensor, const owner *o, void *data) {
    owner *kept;
    TUTTI_TRY(tutti_calloc(1, sizeof *kept, &kept));
    *kept = *o;
    tutti_status status = tutti_storage_create(release_managed, kept, &tensor->storage);
    if (status == TUTTI_OK) tensor->data = tensor->count > 0 ? data : NULL;
    else free(kept);
    return status;
}

static tutti_status take(tutti_tensor *tensor, const dlpack_tensor *dl, bool read_only, const owner *o) {
    tutti_box_copy copy;
    if (tensor->layout->view.placement->me < 0)
        return refuse(tensor, TUTTI_ERR_ARGUMENT, "this rank is not in the placement; pass NULL");
    TUTTI_TRY(check_type(tensor, dl));
    TUTTI_TRY(check_shape(tensor, dl));
    TUTTI_TRY(check_reach(tensor, dl));
    char *data = (char *)dl->data + (tensor->count > 0 ? dl->byte_offset : 0);
    TUTTI_TRY(check_device(tensor, dl, data));
    plan_copy(tensor, dl, &copy);
    bool dense = tensor->count == 0 || is_dense(tensor, &copy);
    if (dense && !read_only && (uintptr_t)data % tutti_type_bytes(tensor->layout->view.type) == 0)
        return share(tensor, o, data);
    TUTTI_TRY(tutti_tensor_allocate(tensor));
    TUTTI_TRY(copy_shard(tensor, dl, &copy, data));
    delete_managed(o);
    return TUTTI_OK;
}

static tutti_status import(const tutti_layout *layout, const dlpack_tensor *dl, bool read_only, const owner *o,
                           tutti_tensor **tensor_out) {
    tutti_tensor *tensor;
    if (tensor_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_from_dlpack: NULL argument");
    TUTTI_TRY(tutti_tensor_begin(layout, &tensor));
    tutti_status status = TUTTI_OK;
    if (dl != NULL) status = take(tensor, dl, read_only, o);
    else if (tensor->count > 0)
        status = refuse(tensor, TUTTI_ERR_ARGUMENT, "it is NULL, and this rank has %zu elements", tensor->count);
    if (status == TUTTI_OK) *tensor_out = tensor;
    else tutti_tensor_destroy(tensor);
    return status;
}

tutti_status tutti_tensor_from_dlpack(const tutti_layout *layout, struct DLManagedTensorVersioned *managed,
                                      tutti_tensor **tensor_out) {
    const owner o = {.versioned = managed};
    if (managed == NULL) return import(layout, NULL, false, &o, tensor_out);
    if (managed->version.major != DLPACK_MAJOR)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the DLPack tensor has version %u.%u; expected %d.x",
                          managed->version.major, managed->version.minor, DLPACK_MAJOR);
    return import(layout, &managed->dl_tensor, (managed->flags & DLPACK_READ_ONLY) != 0, &o, tensor_out);
}

tutti_status tutti_tensor_from_dlpack_unversioned(const tutti_layout *layout, struct DLManagedTensor *managed,
                                                  tutti_tensor **tensor_out) {
    const owner o = {.unversioned = managed};
    return import(layout, managed != NULL ? &managed->dl_tensor : NULL, false, &o, tensor_out);
}

/* ------------------------------------------------------------------------------------------------- exports */

typedef struct export {
    struct DLManagedTensorVersioned managed; /* first */
    tutti_storage *storage;
    int64_t shape[TUTTI_MOST_DIMS], strides[TUTTI_MOST_DIMS];
} export;

static void delete_export(struct DLManagedTensorVersioned *managed) {
    export *e = (export *)managed;
    tutti_storage_release(e->storage);
    free(e);
}

tutti_status tutti_tensor_to_dlpack(const tutti_tensor *tensor, struct DLManagedTensorVersioned **managed_out) {
    export *e;
    if (tensor == NULL || managed_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_tensor_to_dlpack: NULL argument");
    if (tensor->layout->view.placement->me < 0)
        return refuse(tensor, TUTTI_ERR_ARGUMENT, "this rank is not in the placement, and has no shard to give");
    TUTTI_TRY(tutti_calloc(1, sizeof *e, &e));
    e->storage = tutti_storage_keep(tensor->storage);
    int64_t dense = 1;
    int gpu = tensor->layout->view.placement->gpu;
    for (int d = tensor->region.ndims - 1; d >= 0; d--) {
        e->shape[d] = tensor->region.end[d] - tensor->region.first[d];
        e->strides[d] = dense;
        dense *= e->shape[d] > 0 ? e->shape[d] : 1;
    }
    e->managed = (struct DLManagedTensorVersioned){.version = {.major = DLPACK_MAJOR, .minor = DLPACK_MINOR},
                                                   .manager_ctx = e,
                                                   .deleter = delete_export,
                                                   .dl_tensor = {.data = tensor->data,
                                                                 .device_type = gpu >= 0 ? DLPACK_CUDA : DLPACK_CPU,
                                                                 .device_id = gpu >= 0 ? gpu : 0,
                                                                 .ndim = tensor->region.ndims,
                                                                 .dtype = types[tensor->layout->view.type],
                                                                 .shape = e->shape,
                                                                 .strides = e->strides}};
    *managed_out = &e->managed;
    return TUTTI_OK;
}
