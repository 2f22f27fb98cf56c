/*
 * Tensors as the engine sees them: an address, a type and a number of elements.
 *
 * Contiguous CPU tensors are used where they lie. Others are copied to contiguous ones first; what such an output got
 * is copied back when the operation has ended well. An Operands keeps all of them alive until then.
 */
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "tutti/tutti.h"

namespace torch_tutti {

/* One item of a tensor is `per_item` elements of `type`. */
struct Elements {
    tutti_type type;
    size_t per_item;
};

/* For operations that move: any dtype; those that Tutti has no type for go by their bytes. */
Elements moved_as(at::ScalarType dtype);

/* How a reduction goes to the engine. */
struct Reduction {
    Elements elements;
    tutti_reduction op;
    double factor;
};

/* Throws when the dtype cannot be reduced so. Complex numbers are sums, averages and scaled sums of their parts. */
Reduction reduced_as(at::ScalarType dtype, const c10d::ReduceOp &op);

/* Throws unless the tensor is a dense one on the CPU. */
void check_dense_cpu(const at::Tensor &tensor);

class Operands {
public:
    /* Memory that holds the tensor's items in order. */
    const void *in(const at::Tensor &tensor);
    /* Memory whose content becomes the tensor's items at the end. */
    void *out(const at::Tensor &tensor);
    /* Both. */
    void *in_out(const at::Tensor &tensor);

    /* The inputs as the caller knows them, for the profiler; none: the results. */
    std::vector<at::Tensor> inputs;
    /* The outputs as the caller knows them, for Work::result and futures. */
    std::vector<at::Tensor> results;
    /* More than one list of outputs (coalesced all_gather): given to futures as they are. */
    std::vector<std::vector<at::Tensor>> result_lists;

    /* Once, after the operation has ended well. */
    void copy_back();
    /* Takes over what another keeps: operations that end together. */
    void absorb(Operands &&other);

private:
    struct Copy {
        at::Tensor to, from;
    };
    std::vector<at::Tensor> held_;
    std::vector<Copy> copies_;
};

} // namespace torch_tutti
