/*
 * Libraries that call themselves NCCL and cannot be used, or not all of them, for tests of how one is found: compiled once
 * for each case, by -DBAD_VERSION=n and -DBAD_LACKS_... Their calls do nothing, so that nothing but being found is tested.
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

/* The loader looks names up only, so one body does for all. */
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
