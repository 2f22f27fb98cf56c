/*
 * Tensors as the engine sees them: an address, a type and a number of elements each.
 *
 * Contiguous tensors are used where they lie. Others are copied to contiguous ones first; such outputs are copied
 * back when the operation has ended without an error. An Operands keeps all of them alive until then.
 *
 * Tensors of one operation are all on the CPU or all on one GPU. On a GPU copies are made in streams: into
 * contiguous memory in the caller's stream, back in the operation's.
 */
#pragma once

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

#include "../base/errors.h"
#include "tutti/tutti.h"

namespace torch_tutti {

/* One item of a tensor is `per_item` elements of `type`. */
struct Elements {
    tutti_type type;
    size_t per_item;
};

/* For operations that only move data: accepts any dtype; dtypes that Tutti has no type for are moved as bytes. */
Elements moved_as(at::ScalarType dtype);

/* The type and reduction that are passed to the engine. */
struct Reduction {
    Elements elements;
    tutti_reduction op;
    double factor;
};

/* Throws when the dtype does not support the reduction. Sums, averages and scaled sums of complex numbers are
 * computed on their parts. */
Reduction reduced_as(at::ScalarType dtype, const c10d::ReduceOp &op);

class Operands {
public:
    /* Returns memory that holds the tensor's items in order. */
    const void *in(const at::Tensor &tensor);
    /* Returns memory whose content becomes the tensor's items at the end. */
    void *out(const at::Tensor &tensor);
    /* Both of the above. */
    void *in_out(const at::Tensor &tensor);

    /* The inputs as the caller passed them, for the profiler; empty: the results. */
    std::vector<at::Tensor> inputs;
    /* The outputs as the caller passed them, for Work::result and futures. */
    std::vector<at::Tensor> results;
    /* More than one list of outputs (coalesced all_gather): futures get them as they are. */
    std::vector<std::vector<at::Tensor>> result_lists;

    /* The device of the tensors; nullopt: there are no tensors. */
    std::optional<c10::Device> device() const {
        return device_;
    }
    /* On a GPU: the caller's current streams at the times when the tensors were added. */
    const std::vector<c10::Stream> &leaders() const {
        return leaders_;
    }

    /* True when that was the caller's stream for all of them. */
    bool leads_alone(const c10::Stream &stream) const {
        return leaders_.size() == 1 && leaders_[0] == stream;
    }

    bool has_copies() const {
        return !copies_.empty();
    }
    /* Called once, after the operation has ended without an error; on a GPU, in the current stream, behind the
     * operation. */
    void copy_back();
    /* Records that the tensors are used in that stream too, so that their memory outlasts that use. */
    void record_on(const c10::Stream &stream) const;
    /* Releases all tensors except inputs and results. */
    void let_go();
    /* Takes over the tensors of another Operands: for operations that end together. */
    void absorb(Operands &&other);

private:
    struct Copy {
        at::Tensor to, from;
    };
    void take(const at::Tensor &tensor);
    void lead(const c10::Stream &stream);

    std::optional<c10::Device> device_;
    std::vector<c10::Stream> leaders_;
    c10::SmallVector<at::Tensor, 2> held_; /* inline capacity for most operations */
    std::vector<Copy> copies_;
};

} // namespace torch_tutti
