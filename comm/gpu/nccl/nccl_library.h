/*
 * The NCCL library, opened at first need. The choice: the file named by TUTTI_NCCL_LIBRARY, and then no other; else
 * the library that is already loaded in this process, such as PyTorch's; else the first one found in the usual
 * places: the loader's search path, CUDA's folders, the packages of the Python environment. Errors list each
 * rejected library with the reason.
 *
 * Invariant: the result, success or failure, is determined once per process and never changes.
 */
#ifndef TUTTI_NCCL_LIBRARY_H
#define TUTTI_NCCL_LIBRARY_H

#include <stdbool.h>

#include <tutti/tutti.h>

#include "comm/gpu/nccl/nccl_abi.h"

typedef struct tutti_nccl {
    int version;       /* as ncclGetVersion gives it: 22809 */
    char file[512];    /* path of the library */
    char lacking[256]; /* optional calls that it lacks, "" if none; they are NULL below */
#define TUTTI_NCCL_MEMBER(name, since, need, result, arguments) result(*name) arguments;
    TUTTI_NCCL_CALLS(TUTTI_NCCL_MEMBER)
#undef TUTTI_NCCL_MEMBER
} tutti_nccl;

/* Fails with TUTTI_ERR_UNSUPPORTED; the error lists the places searched and why each library was rejected. */
tutti_status tutti_nccl_open(const tutti_nccl **nccl_out);

/* "2.28.9". Returns `text`. */
const char *tutti_nccl_version_text(int version, char text[16]);

/* For tests: forgets the result; pointers returned before must not be used any more. */
void tutti_nccl_forget(void);

#endif
