/*
 * The part of NCCL's binary interface that Tutti uses, declared here so that the build needs nothing of NCCL: the
 * library is opened at run time (nccl_library.h). nccl_abi_check.c compares every value, size and prototype with
 * nccl.h where that is found.
 *
 * TUTTI_NCCL_CALLS is the only list of calls: X(name, since, need, result, arguments), where `since` is 100 * minor
 * of the version 2.minor that introduced the call, and `need` is REQUIRED or OPTIONAL.
 */
#ifndef TUTTI_NCCL_ABI_H
#define TUTTI_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

typedef struct tutti_nccl_comm_ *tutti_nccl_comm;
typedef void *tutti_nccl_stream; /* cudaStream_t */

typedef struct tutti_nccl_id {
    char bytes[128];
} tutti_nccl_id;

typedef enum tutti_nccl_result {
    TUTTI_NCCL_SUCCESS = 0,
    TUTTI_NCCL_CUDA_ERROR = 1,
    TUTTI_NCCL_SYSTEM_ERROR = 2,
    TUTTI_NCCL_INTERNAL_ERROR = 3,
    TUTTI_NCCL_INVALID_ARGUMENT = 4,
    TUTTI_NCCL_INVALID_USAGE = 5,
    TUTTI_NCCL_REMOTE_ERROR = 6,
    TUTTI_NCCL_IN_PROGRESS = 7,
} tutti_nccl_result;

typedef enum tutti_nccl_type {
    TUTTI_NCCL_INT8 = 0,
    TUTTI_NCCL_UINT8 = 1,
    TUTTI_NCCL_INT32 = 2,
    TUTTI_NCCL_UINT32 = 3,
    TUTTI_NCCL_INT64 = 4,
    TUTTI_NCCL_UINT64 = 5,
    TUTTI_NCCL_FLOAT16 = 6,
    TUTTI_NCCL_FLOAT32 = 7,
    TUTTI_NCCL_FLOAT64 = 8,
    TUTTI_NCCL_BFLOAT16 = 9,
} tutti_nccl_type;

typedef enum tutti_nccl_op {
    TUTTI_NCCL_SUM = 0,
    TUTTI_NCCL_PROD = 1,
    TUTTI_NCCL_MAX = 2,
    TUTTI_NCCL_MIN = 3,
    TUTTI_NCCL_AVG = 4,
} tutti_nccl_op;

typedef enum tutti_nccl_residence { TUTTI_NCCL_SCALAR_HOST = 1 } tutti_nccl_residence;

#define TUTTI_NCCL_UNDEFINED      INT_MIN
#define TUTTI_NCCL_NO_COLOR       (-1)
#define TUTTI_NCCL_CONFIG_MAGIC   0xcafebeefU
#define TUTTI_NCCL_OLDEST         21800 /* 2.18.0, as ncclGetVersion gives it */
#define TUTTI_NCCL_VERSION(minor) (20000 + (minor))

/* ncclConfig_t of NCCL 2.18. Newer libraries read `bytes` bytes; fields that `version` did not have get defaults. */
typedef struct tutti_nccl_config {
    size_t bytes;
    unsigned magic, version;
    int blocking, cga_cluster, least_ctas, most_ctas;
    const char *network;
    int split_share;
    int unused; /* padding in 2.18, traffic class later: TUTTI_NCCL_UNDEFINED means "not set" in both */
} tutti_nccl_config;

#define TUTTI_NCCL_CALLS(X)                                                                                            \
    X(ncclGetVersion, 100, REQUIRED, tutti_nccl_result, (int *version))                                                \
    X(ncclGetUniqueId, 0, REQUIRED, tutti_nccl_result, (tutti_nccl_id * id))                                           \
    X(ncclGetErrorString, 0, REQUIRED, const char *, (tutti_nccl_result result))                                       \
    X(ncclGetLastError, 1300, OPTIONAL, const char *, (tutti_nccl_comm comm))                                          \
    X(ncclCommInitRankConfig, 1400, REQUIRED, tutti_nccl_result,                                                       \
      (tutti_nccl_comm * comm, int nranks, tutti_nccl_id id, int rank, tutti_nccl_config *config))                     \
    X(ncclCommSplit, 1800, OPTIONAL, tutti_nccl_result,                                                                \
      (tutti_nccl_comm comm, int color, int key, tutti_nccl_comm *made, tutti_nccl_config *config))                    \
    X(ncclCommFinalize, 1400, REQUIRED, tutti_nccl_result, (tutti_nccl_comm comm))                                     \
    X(ncclCommDestroy, 0, REQUIRED, tutti_nccl_result, (tutti_nccl_comm comm))                                         \
    X(ncclCommAbort, 400, REQUIRED, tutti_nccl_result, (tutti_nccl_comm comm))                                         \
    X(ncclCommGetAsyncError, 400, REQUIRED, tutti_nccl_result, (tutti_nccl_comm comm, tutti_nccl_result * error))      \
    X(ncclGroupStart, 0, REQUIRED, tutti_nccl_result, (void))                                                          \
    X(ncclGroupEnd, 0, REQUIRED, tutti_nccl_result, (void))                                                            \
    X(ncclAllReduce, 0, REQUIRED, tutti_nccl_result,                                                                   \
      (const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op, tutti_nccl_comm comm,         \
       tutti_nccl_stream stream))                                                                                      \
    X(ncclReduce, 0, REQUIRED, tutti_nccl_result,                                                                      \
      (const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op, int root,                     \
       tutti_nccl_comm comm, tutti_nccl_stream stream))                                                                \
    X(ncclBroadcast, 200, REQUIRED, tutti_nccl_result,                                                                 \
      (const void *src, void *dst, size_t count, tutti_nccl_type type, int root, tutti_nccl_comm comm,                 \
       tutti_nccl_stream stream))                                                                                      \
    X(ncclAllGather, 0, REQUIRED, tutti_nccl_result,                                                                   \
      (const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_comm comm,                           \
       tutti_nccl_stream stream))                                                                                      \
    X(ncclReduceScatter, 0, REQUIRED, tutti_nccl_result,                                                               \
      (const void *src, void *dst, size_t count, tutti_nccl_type type, tutti_nccl_op op, tutti_nccl_comm comm,         \
       tutti_nccl_stream stream))                                                                                      \
    X(ncclSend, 700, REQUIRED, tutti_nccl_result,                                                                      \
      (const void *src, size_t count, tutti_nccl_type type, int peer, tutti_nccl_comm comm, tutti_nccl_stream stream)) \
    X(ncclRecv, 700, REQUIRED, tutti_nccl_result,                                                                      \
      (void *dst, size_t count, tutti_nccl_type type, int peer, tutti_nccl_comm comm, tutti_nccl_stream stream))       \
    X(ncclRedOpCreatePreMulSum, 1100, REQUIRED, tutti_nccl_result,                                                     \
      (tutti_nccl_op * op, void *scalar, tutti_nccl_type type, tutti_nccl_residence residence, tutti_nccl_comm comm))  \
    X(ncclRedOpDestroy, 1100, REQUIRED, tutti_nccl_result, (tutti_nccl_op op, tutti_nccl_comm comm))                   \
    X(ncclCommRegister, 1900, OPTIONAL, tutti_nccl_result,                                                             \
      (const tutti_nccl_comm comm, void *memory, size_t bytes, void **handle))                                         \
    X(ncclCommDeregister, 1900, OPTIONAL, tutti_nccl_result, (const tutti_nccl_comm comm, void *handle))               \
    X(ncclMemAlloc, 1900, OPTIONAL, tutti_nccl_result, (void **memory, size_t bytes))                                  \
    X(ncclMemFree, 1900, OPTIONAL, tutti_nccl_result, (void *memory))

#endif
