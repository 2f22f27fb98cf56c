/*
 * The structs of DLPack 1 as they lie in memory (https://dmlc.github.io/dlpack): an interface between libraries that
 * each of them declares.
 */
#ifndef TUTTI_TENSOR_DLPACK_ABI_H
#define TUTTI_TENSOR_DLPACK_ABI_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 1 }; /* 1.1 added the codes of 8-bit floats */

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3, DLPACK_CUDA_MANAGED = 13 };
enum { DLPACK_READ_ONLY = 1 }; /* bit of flags */

enum {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_BOOL = 6,
    DLPACK_FLOAT8_E4M3FN = 10,
    DLPACK_FLOAT8_E5M2 = 12
};

typedef struct dlpack_type {
    uint8_t code, bits;
    uint16_t lanes;
} dlpack_type;

typedef struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    dlpack_type dtype;
    int64_t *shape, *strides; /* in elements; strides NULL: dense, row-major */
    uint64_t byte_offset;
} dlpack_tensor;

struct DLManagedTensor {
    dlpack_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
};

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* may be NULL */
    uint64_t flags;
    dlpack_tensor dl_tensor;
};

#endif
