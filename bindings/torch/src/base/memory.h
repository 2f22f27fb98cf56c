/*
 * Tensors in memory that the ranks of a host share (tutti_mem_alloc).
 */
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

namespace torch_tutti {

/* Allocates with tutti_mem_alloc. Lives as long as the process. */
c10::Allocator *shared_allocator();

/* A tensor of that shape in shared memory; its storage can be resized. */
at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype);

/* True when the tensor lies in memory of shared_allocator. */
bool is_shared(const at::Tensor &tensor);

/* From now on CPU tensors of at least min_bytes are allocated in shared memory; 0: as before. */
void use_allocator(size_t min_bytes);

} // namespace torch_tutti
