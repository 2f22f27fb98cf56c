/*
 * Shards from and to other libraries without a copy, by DLPack 1 (numpy, PyTorch, JAX, CuPy). All calls are local.
 *
 * The structs are those of DLPack's <dlpack/dlpack.h>, which need not be there: include it before or after this header.
 */
#ifndef TUTTI_DLPACK_H
#define TUTTI_DLPACK_H

#include <tutti/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor; /* before DLPack 1 */
struct DLManagedTensorVersioned;

/* A tensor whose shard is what `managed` has. Its type and shape must be those of this rank's box; NULL where the shard is empty
 * or this rank is outside the placement. The tensor owns `managed` from then on: its deleter is called when the tensor, and all
 * that tutti_tensor_to_dlpack has given of it, are gone. What is not dense and row-major, or read-only, or not aligned to its
 * elements, is copied, and then the deleter is called at once. Its device must be that of the placement's shards: the CPU
 * (pinned memory, too), or the GPU that the placement is for (managed memory, too). The struct has no stream: what is copied in
 * a GPU's memory is copied in its legacy default stream, and waited for (in Python, ask for it by __dlpack__(stream=1)); what is
 * shared is used in the streams of later calls, which must be in order with the producer's. Other devices are
 * TUTTI_ERR_UNSUPPORTED, as are structs of another major version than 1. After an error `managed` is still the caller's. */
TUTTI_API tutti_status tutti_tensor_from_dlpack(const tutti_layout *layout, struct DLManagedTensorVersioned *managed,
                                                tutti_tensor **tensor_out);
TUTTI_API tutti_status tutti_tensor_from_dlpack_unversioned(const tutti_layout *layout, struct DLManagedTensor *managed,
                                                            tutti_tensor **tensor_out);

/* This rank's shard, without a copy; call its deleter when done with it. The memory stays until then, also when the tensor is
 * destroyed before; but memory of the caller's (tutti_tensor_wrap) must itself stay as long. Writing to it writes to the
 * tensor. What was enqueued for CUDA memory is done for those who are in order with that stream. Where this rank is outside the
 * placement there is nothing to give: TUTTI_ERR_ARGUMENT. */
TUTTI_API tutti_status tutti_tensor_to_dlpack(const tutti_tensor *tensor,
                                              struct DLManagedTensorVersioned **managed_out);

#ifdef __cplusplus
}
#endif

#endif
