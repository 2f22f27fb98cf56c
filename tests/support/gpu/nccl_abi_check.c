/*
 * The compiler compares the values, layouts and prototypes of nccl_abi.h with nccl.h. Built only where that header
 * and CUDA's are found. Only the magic number remains for the test, since it is not available as a constant
 * expression.
 */
#include <nccl.h>

#include "comm/gpu/nccl/nccl_abi.h"

int nccl_abi_magic_is_same(void);

int nccl_abi_magic_is_same(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    return config.magic == TUTTI_NCCL_CONFIG_MAGIC;
}

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
SAME(TUTTI_NCCL_SUCCESS, ncclSuccess);
SAME(TUTTI_NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(TUTTI_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(TUTTI_NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(TUTTI_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(TUTTI_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(TUTTI_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(TUTTI_NCCL_IN_PROGRESS, ncclInProgress);
SAME(TUTTI_NCCL_INT8, ncclInt8);
SAME(TUTTI_NCCL_UINT8, ncclUint8);
SAME(TUTTI_NCCL_INT32, ncclInt32);
SAME(TUTTI_NCCL_UINT32, ncclUint32);
SAME(TUTTI_NCCL_INT64, ncclInt64);
SAME(TUTTI_NCCL_UINT64, ncclUint64);
SAME(TUTTI_NCCL_FLOAT16, ncclFloat16);
SAME(TUTTI_NCCL_FLOAT32, ncclFloat32);
SAME(TUTTI_NCCL_FLOAT64, ncclFloat64);
#if defined(__CUDA_BF16_TYPES_EXIST__) || NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
SAME(TUTTI_NCCL_BFLOAT16, ncclBfloat16);
#endif
SAME(TUTTI_NCCL_SUM, ncclSum);
SAME(TUTTI_NCCL_PROD, ncclProd);
SAME(TUTTI_NCCL_MAX, ncclMax);
SAME(TUTTI_NCCL_MIN, ncclMin);
SAME(TUTTI_NCCL_AVG, ncclAvg);
SAME(TUTTI_NCCL_SCALAR_HOST, ncclScalarHostImmediate);
SAME(TUTTI_NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(TUTTI_NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR);
SAME(sizeof(tutti_nccl_op), sizeof(ncclRedOp_t));
SAME(sizeof(tutti_nccl_type), sizeof(ncclDataType_t));
SAME(sizeof(tutti_nccl_result), sizeof(ncclResult_t));
SAME(sizeof(tutti_nccl_id), sizeof(ncclUniqueId));

#define AT(ours, theirs) SAME(offsetof(tutti_nccl_config, ours), offsetof(ncclConfig_t, theirs))
AT(bytes, size);
AT(magic, magic);
AT(version, version);
AT(blocking, blocking);
AT(cga_cluster, cgaClusterSize);
AT(least_ctas, minCTAs);
AT(most_ctas, maxCTAs);
AT(network, netName);
AT(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 25, 0)
AT(unused, trafficClass);
#endif
_Static_assert(sizeof(tutti_nccl_config) <= sizeof(ncclConfig_t), "NCCL reads at most its own structure's size");

#define tutti_nccl_comm      ncclComm_t
#define tutti_nccl_stream    cudaStream_t
#define tutti_nccl_id        ncclUniqueId
#define tutti_nccl_result    ncclResult_t
#define tutti_nccl_type      ncclDataType_t
#define tutti_nccl_op        ncclRedOp_t
#define tutti_nccl_residence ncclScalarResidence_t
#define tutti_nccl_config    ncclConfig_t

#define CHECK(name, since, need, result, arguments)                                                                    \
    typedef result prototype_##name arguments;                                                                         \
    _Static_assert(NCCL_VERSION_CODE < 20000 + (since) ||                                                              \
                       __builtin_types_compatible_p(prototype_##name, __typeof__(name)),                               \
                   #name " has another prototype");
TUTTI_NCCL_CALLS(CHECK)
