/*
 * NCCL's library, opened when first needed. Which one: the file that TUTTI_NCCL_LIBRARY names, and then no other; else the
 * one that is in this process already, as PyTorch's is; else the first of the usual places that has one: where the loader
 * looks, CUDA's folders, the packages of the Python environment. What was passed over is told with its reason.
 *
 * Invariant: the answer, good or bad, is found once for a process and never changes.
 */
#ifndef TUTTI_NCCL_LIBRARY_H
#define TUTTI_NCCL_LIBRARY_H

#include <stdbool.h>

#include <tutti/tutti.h>

#include "comm/gpu/nccl/nccl_abi.h"

typedef struct tutti_nccl {
    int version;       /* as ncclGetVersion gives it: 22809 */
    char file[512];    /* which library it is */
    char lacking[256]; /* optional calls that it does not have, "" none; they are NULL below */
#define TUTTI_NCCL_MEMBER(name, since, need, result, arguments) result(*name) arguments;
    TUTTI_NCCL_CALLS(TUTTI_NCCL_MEMBER)
#undef TUTTI_NCCL_MEMBER
} tutti_nccl;

/* TUTTI_ERR_UNSUPPORTED, with where was looked and why nothing there was taken. Any thread. */
tutti_status tutti_nccl_open(const tutti_nccl **nccl_out);

/* "2.28.9". Gives `text` back. */
const char *tutti_nccl_version_text(int version, char text[16]);

/* For tests: forgets the answer; who has it may not use it any more. */
void tutti_nccl_forget(void);

#endif
