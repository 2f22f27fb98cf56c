/*
 * Libraries that look like NCCL and are completely or partly unusable, for tests of the search for NCCL: compiled
 * once for each case, with -DBAD_VERSION=n and -DBAD_LACKS_... Their calls do nothing, so that only the search is
 * tested.
 */
#include <stddef.h>

#include "comm/gpu/nccl/nccl_abi.h"

#define EXPORT __attribute__((visibility("default")))

#ifdef BAD_VERSION
EXPORT tutti_nccl_result ncclGetVersion(int *version);
EXPORT tutti_nccl_result ncclGetVersion(int *version) {
    *version = BAD_VERSION;
    return TUTTI_NCCL_SUCCESS;
}
#endif

/* The loader only looks names up, so one body is enough for all. */
#define CALL(name)                                                                                                     \
    EXPORT int name(void);                                                                                             \
    EXPORT int name(void) {                                                                                            \
        return TUTTI_NCCL_INTERNAL_ERROR;                                                                              \
    }

#ifdef BAD_VERSION
CALL(ncclGetUniqueId)
CALL(ncclGetErrorString)
CALL(ncclCommInitRankConfig)
CALL(ncclCommFinalize)
CALL(ncclCommDestroy)
CALL(ncclCommGetAsyncError)
CALL(ncclGroupStart)
CALL(ncclGroupEnd)
CALL(ncclAllReduce)
CALL(ncclReduce)
CALL(ncclBroadcast)
CALL(ncclAllGather)
CALL(ncclReduceScatter)
CALL(ncclSend)
CALL(ncclRecv)
CALL(ncclRedOpCreatePreMulSum)
CALL(ncclRedOpDestroy)
#ifndef BAD_LACKS_REQUIRED
CALL(ncclCommAbort)
#endif
#ifndef BAD_LACKS_OPTIONAL
CALL(ncclGetLastError)
CALL(ncclCommSplit)
CALL(ncclCommRegister)
CALL(ncclCommDeregister)
CALL(ncclMemAlloc)
CALL(ncclMemFree)
#endif
#else
CALL(nothing_of_nccl)
#endif
