/*
 * Shards from and to other libraries without a copy, by DLPack 1 (numpy, PyTorch, JAX, CuPy). All calls are local.
 *
 * The structs are those of DLPack's <dlpack/dlpack.h>, which is not required: include it before or after this header.
 */
#ifndef TUTTI_DLPACK_H
#define TUTTI_DLPACK_H

#include <tutti/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor; /* before DLPack 1 */
struct DLManagedTensorVersioned;

/* Creates a tensor whose shard is the memory of `managed`. Its type and shape must be those of this rank's box;
 * `managed` is NULL where the shard is empty or this rank is outside the placement. The tensor then owns `managed`:
 * it calls the deleter when the tensor, and all that tutti_tensor_to_dlpack has given of it, are gone. Memory that
 * is not dense and row-major, or is read-only, or not aligned to its elements, is copied, and then the deleter is
 * called at once. Its device must be that of the placement's shards: the CPU (pinned memory, too), or the GPU of
 * the placement (managed memory, too). The struct has no stream: a copy in a GPU's memory is made in its legacy
 * default stream, and waited for (in Python, ask for it by __dlpack__(stream=1)); shared memory is used in the
 * streams of later calls, which must be in order with the producer's. Other devices are TUTTI_ERR_UNSUPPORTED, as
 * are structs of another major version than 1, and elements that are vectors. TUTTI_ERR_ARGUMENT: a wrong layout, or
 * `managed` does not fit it. TUTTI_ERR_MEMORY, TUTTI_ERR_SYSTEM: for the copy. After an error the caller still owns
 * `managed`, and there is no tensor. */
TUTTI_API tutti_status tutti_tensor_from_dlpack(const tutti_layout *layout, struct DLManagedTensorVersioned *managed,
                                                tutti_tensor **tensor_out);
/* The same for the struct of DLPack before 1. */
TUTTI_API tutti_status tutti_tensor_from_dlpack_unversioned(const tutti_layout *layout, struct DLManagedTensor *managed,
                                                            tutti_tensor **tensor_out);

/* Gives this rank's shard without a copy; call its deleter when done with it. The memory stays until then, also
 * when the tensor is destroyed before; but memory of the caller (tutti_tensor_wrap) must itself stay as long.
 * Writing to it writes to the tensor. Work that was enqueued for CUDA memory is done before work that is in order
 * with that stream. Where this rank is outside the placement there is no shard: TUTTI_ERR_ARGUMENT.
 * TUTTI_ERR_MEMORY. */
TUTTI_API tutti_status tutti_tensor_to_dlpack(const tutti_tensor *tensor,
                                              struct DLManagedTensorVersioned **managed_out);

#ifdef __cplusplus
}
#endif

#endif
