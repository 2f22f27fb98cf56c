/*
 * The first failure of a compute, which all kernels report here. See compute.h.
 */
#include <stdio.h>

#include "kernels/cuda/compute.h"

void tutti_compute_note(tutti_compute *compute, tutti_status status) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    if (status == TUTTI_OK || cuda->failed != TUTTI_OK) return;
    cuda->failed = status;
    snprintf(cuda->words, sizeof cuda->words, "%s", tutti_cuda_host->last_error());
}
