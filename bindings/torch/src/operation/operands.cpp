/*
 * Tensors as the engine sees them. See operands.h.
 */
#include "operands.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "lanes.h"

namespace torch_tutti {

namespace {

/* The engine's type of a real dtype; TUTTI_TYPE_COUNT where it has none. */
tutti_type type_of(at::ScalarType dtype) {
    switch (dtype) {
    case at::kByte: return TUTTI_UINT8;
    case at::kChar: return TUTTI_INT8;
    case at::kShort: return TUTTI_INT16;
    case at::kInt: return TUTTI_INT32;
    case at::kLong: return TUTTI_INT64;
    case at::ScalarType::UInt16: return TUTTI_UINT16;
    case at::ScalarType::UInt32: return TUTTI_UINT32;
    case at::ScalarType::UInt64: return TUTTI_UINT64;
    case at::kBool: return TUTTI_BOOL;
    case at::kHalf: return TUTTI_FLOAT16;
    case at::kBFloat16: return TUTTI_BFLOAT16;
    case at::kFloat: return TUTTI_FLOAT32;
    case at::kDouble: return TUTTI_FLOAT64;
    case at::ScalarType::Float8_e4m3fn: return TUTTI_FLOAT8_E4M3;
    case at::ScalarType::Float8_e5m2: return TUTTI_FLOAT8_E5M2;
    default: return TUTTI_TYPE_COUNT;
    }
}

Elements elements_of(at::ScalarType dtype) {
    if (at::isComplexType(dtype)) return {type_of(c10::toRealValueType(dtype)), 2};
    return {type_of(dtype), 1};
}

tutti_reduction reduction_of(const c10d::ReduceOp &op) {
    switch (op.op_) {
    case c10d::ReduceOp::SUM: return TUTTI_SUM;
    case c10d::ReduceOp::AVG: return TUTTI_AVG;
    case c10d::ReduceOp::PRODUCT: return TUTTI_PROD;
    case c10d::ReduceOp::MIN: return TUTTI_MIN;
    case c10d::ReduceOp::MAX: return TUTTI_MAX;
    case c10d::ReduceOp::BAND: return TUTTI_BAND;
    case c10d::ReduceOp::BOR: return TUTTI_BOR;
    case c10d::ReduceOp::BXOR: return TUTTI_BXOR;
    case c10d::ReduceOp::PREMUL_SUM: return TUTTI_PREMUL_SUM;
    default: TUTTI_CHECK_VALUE(false, "tutti: unknown ReduceOp ", static_cast<int>(op.op_));
    }
}

double factor_of(const c10d::ReduceOp &op) {
    auto *supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    TUTTI_CHECK_VALUE(supplement != nullptr, "tutti: PREMUL_SUM without a factor; make it with "
                                             "torch.distributed._make_nccl_premul_sum(factor)");
    return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

bool lies_in_order(const at::Tensor &tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor in_order(const at::Tensor &tensor) {
    return tensor.resolve_conj().resolve_neg().contiguous();
}

} // namespace

Elements moved_as(at::ScalarType dtype) {
    Elements elements = elements_of(dtype);
    if (elements.type != TUTTI_TYPE_COUNT) return elements;
    return {TUTTI_UINT8, c10::elementSize(dtype)};
}

Reduction reduced_as(at::ScalarType dtype, const c10d::ReduceOp &op) {
    Reduction reduction = {elements_of(dtype), reduction_of(op), 0.0};
    TORCH_CHECK_TYPE(reduction.elements.type != TUTTI_TYPE_COUNT, "tutti: tensors of dtype ", c10::toString(dtype),
                     " can be moved, but not reduced");
    bool linear = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM;
    TUTTI_CHECK_VALUE(linear || !at::isComplexType(dtype), "tutti: complex tensors have no ",
                      tutti_reduction_name(reduction.op), "; sum, avg and premul_sum work on them");
    if (reduction.op == TUTTI_PREMUL_SUM) reduction.factor = factor_of(op);
    return reduction;
}

static void check_device(c10::Device other, c10::Device device) {
    TUTTI_CHECK_VALUE(other == device, "tutti: one tensor is on ", other, " and one on ", device,
                      "; all tensors of one operation, or of one batch, must be on one device");
}

/* Called for every tensor. */
void Operands::take(const at::Tensor &tensor) {
    c10::Device device = tensor.device();
    TUTTI_CHECK_VALUE(device.is_cpu() || device.is_cuda(), "tutti: a tensor is on ", device,
                      "; only CPU and CUDA tensors are supported, use .cpu()");
    TUTTI_CHECK_VALUE(tensor.layout() == at::kStrided, "tutti: this operation takes dense tensors, and this one is ",
                      tensor.layout());
    if (device_) check_device(*device_, device);
    device_ = device;
    if (device.is_cuda()) lead(current_stream(device));
}

void Operands::lead(const c10::Stream &stream) {
    if (std::find(leaders_.begin(), leaders_.end(), stream) == leaders_.end()) leaders_.push_back(stream);
}

const void *Operands::in(const at::Tensor &tensor) {
    take(tensor);
    held_.push_back(lies_in_order(tensor) ? tensor : in_order(tensor));
    return held_.back().const_data_ptr();
}

void *Operands::out(const at::Tensor &tensor) {
    take(tensor);
    if (lies_in_order(tensor)) {
        held_.push_back(tensor);
    } else {
        held_.push_back(at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous)));
        copies_.push_back({tensor, held_.back()});
    }
    return held_.back().data_ptr();
}

void *Operands::in_out(const at::Tensor &tensor) {
    take(tensor);
    if (lies_in_order(tensor)) {
        held_.push_back(tensor);
    } else {
        held_.push_back(in_order(tensor));
        copies_.push_back({tensor, held_.back()});
    }
    return held_.back().data_ptr();
}

void Operands::copy_back() {
    if (copies_.empty()) return;
    at::AutoDispatchBelowADInplaceOrView guard; /* results are not part of a graph */
    for (Copy &copy : copies_) copy.to.copy_(copy.from);
    copies_.clear();
}

void Operands::record_on(const c10::Stream &stream) const {
    c10::impl::VirtualGuardImpl device(stream.device_type());
    for (const at::Tensor &tensor : held_) device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    for (const Copy &copy : copies_) device.recordDataPtrOnStream(copy.to.storage().data_ptr(), stream);
}

void Operands::let_go() {
    held_.clear();
    copies_.clear();
}

void Operands::absorb(Operands &&other) {
    if (device_ && other.device_) check_device(*device_, *other.device_);
    if (other.device_) device_ = other.device_;
    for (const c10::Stream &stream : other.leaders_) lead(stream);
    auto append = [](auto &to, auto &from) {
        to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    };
    append(held_, other.held_);
    append(copies_, other.copies_);
    append(inputs, other.inputs);
    append(results, other.results);
    append(result_lists, other.result_lists);
}

} // namespace torch_tutti
