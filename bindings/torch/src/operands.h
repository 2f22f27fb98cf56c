/*
 * Tensors as the engine sees them: an address, a type and a number of elements.
 *
 * Contiguous tensors are used where they lie. Others are copied to contiguous ones first; what such an output got is
 * copied back when the operation has ended well. An Operands keeps all of them alive until then.
 *
 * Tensors of one operation are all on the CPU or all on one GPU. There copies are made in streams: into contiguous memory
 * in the caller's, back in the operation's.
 */
#pragma once

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

#include "errors.h"
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

    /* Where the tensors are; none: there are none. */
    std::optional<c10::Device> device() const {
        return device_;
    }
    /* On a GPU: the streams that were the caller's current one when the tensors were given. */
    const std::vector<c10::Stream> &leaders() const {
        return leaders_;
    }

    /* Was that the caller's stream for all of them? */
    bool leads_alone(const c10::Stream &stream) const {
        return leaders_.size() == 1 && leaders_[0] == stream;
    }

    bool has_copies() const {
        return !copies_.empty();
    }
    /* Once, after the operation has ended well; on a GPU, in the current stream, behind the operation. */
    void copy_back();
    /* What is held is used in that stream too, and its memory must outlast that. */
    void record_on(const c10::Stream &stream) const;
    /* Holds nothing any more. Inputs and results stay known. */
    void let_go();
    /* Takes over what another keeps: operations that end together. */
    void absorb(Operands &&other);

private:
    struct Copy {
        at::Tensor to, from;
    };
    void take(const at::Tensor &tensor);
    void lead(const c10::Stream &stream);

    std::optional<c10::Device> device_;
    std::vector<c10::Stream> leaders_;
    c10::SmallVector<at::Tensor, 2> held_; /* without memory of its own for what most operations have */
    std::vector<Copy> copies_;
};

} // namespace torch_tutti
