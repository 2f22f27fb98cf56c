/*
 * Collectives with one tensor per rank.
 */
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "../backend/backend.h"

namespace torch_tutti {

namespace {

const at::Tensor &only(const Backend::Tensors &tensors) {
    TUTTI_CHECK_VALUE(tensors.size() == 1, "tutti: one tensor expected, ", tensors.size(), " given");
    return tensors[0];
}

size_t count_of(const at::Tensor &tensor) {
    return static_cast<size_t>(tensor.numel());
}

} // namespace

Backend::WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
    const at::Tensor &tensor = only(tensors);
    Operands operands;
    auto *buffer = operands.in_out(tensor);
    operands.results = tensors;
    Elements as = moved_as(tensor.scalar_type());
    size_t count = count_of(tensor) * as.per_item;
    int root = static_cast<int>(opts.rootRank);
    return start(make_call(c10d::OpType::BROADCAST, "tutti:broadcast", opts), std::move(operands),
                 [=](tutti_comm *comm, const tutti_options *options) {
                     return tutti_broadcast(comm, buffer, count, as.type, root, options);
                 });
}

Backend::WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    const at::Tensor &tensor = only(tensors);
    if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, opts);
    Operands operands;
    auto *buffer = operands.in_out(tensor);
    operands.results = tensors;
    Reduction as = reduced_as(tensor.scalar_type(), opts.reduceOp);
    size_t count = count_of(tensor) * as.elements.per_item;
    Call call = make_call(c10d::OpType::ALLREDUCE, "tutti:all_reduce", opts);
    call.factor = as.factor;
    return start(call, std::move(operands), [=](tutti_comm *comm, const tutti_options *options) {
        return tutti_all_reduce(comm, buffer, buffer, count, as.elements.type, as.op, options);
    });
}

Backend::WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
    const at::Tensor &tensor = only(tensors);
    bool is_root = getRank() == opts.rootRank;
    Operands operands;
    const void *src = is_root ? operands.in_out(tensor) : operands.in(tensor);
    void *dst = is_root ? const_cast<void *>(src) : nullptr;
    operands.results = tensors;
    Reduction as = reduced_as(tensor.scalar_type(), opts.reduceOp);
    size_t count = count_of(tensor) * as.elements.per_item;
    int root = static_cast<int>(opts.rootRank);
    Call call = make_call(c10d::OpType::REDUCE, "tutti:reduce", opts);
    call.factor = as.factor;
    return start(call, std::move(operands), [=](tutti_comm *comm, const tutti_options *options) {
        return tutti_reduce(comm, src, dst, count, as.elements.type, as.op, root, options);
    });
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts) {
    TUTTI_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "tutti: all_gather of ", input.scalar_type(),
                      " into ", output.scalar_type());
    TUTTI_CHECK_VALUE(output.numel() == input.numel() * getSize(), "tutti: all_gather of ", input.numel(),
                      " elements from each of ", getSize(), " ranks does not fit an output of ", output.numel());
    Operands operands;
    const auto *src = operands.in(input);
    auto *dst = operands.out(output);
    operands.inputs = {input};
    operands.results = {output};
    Elements as = moved_as(input.scalar_type());
    size_t count = count_of(input) * as.per_item;
    return start(make_call(c10d::OpType::_ALLGATHER_BASE, "tutti:_all_gather_base", opts), std::move(operands),
                 [=](tutti_comm *comm, const tutti_options *options) {
                     return tutti_all_gather(comm, src, dst, count, as.type, options);
                 });
}

/* On ranks other than the root the output is ignored, and may be missing. */
Backend::WorkPtr Backend::gather_single(at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &opts) {
    bool is_root = getRank() == opts.rootRank;
    Operands operands;
    const auto *src = operands.in(input);
    operands.inputs = {input};
    void *dst = nullptr;
    if (is_root) {
        TUTTI_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "tutti: gather of ", input.scalar_type(),
                          " into ", output.scalar_type());
        TUTTI_CHECK_VALUE(output.numel() == input.numel() * getSize(), "tutti: gather of ", input.numel(),
                          " elements from each of ", getSize(), " ranks does not fit an output of ", output.numel());
        dst = operands.out(output);
        operands.results = {output};
    }
    Elements as = moved_as(input.scalar_type());
    size_t count = count_of(input) * as.per_item;
    int root = static_cast<int>(opts.rootRank);
    return start(make_call(c10d::OpType::GATHER, "tutti:gather", opts), std::move(operands),
                 [=](tutti_comm *comm, const tutti_options *options) {
                     return tutti_gather(comm, src, dst, count, as.type, root, options);
                 });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                               const c10d::ReduceScatterOptions &opts) {
    TUTTI_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "tutti: reduce_scatter of ", input.scalar_type(),
                      " into ", output.scalar_type());
    TUTTI_CHECK_VALUE(input.numel() == output.numel() * getSize(), "tutti: reduce_scatter of ", input.numel(),
                      " elements over ", getSize(), " ranks does not fit an output of ", output.numel());
    Operands operands;
    const auto *src = operands.in(input);
    auto *dst = operands.out(output);
    operands.inputs = {input};
    operands.results = {output};
    Reduction as = reduced_as(input.scalar_type(), opts.reduceOp);
    size_t count = count_of(output) * as.elements.per_item;
    Call call = make_call(c10d::OpType::_REDUCE_SCATTER_BASE, "tutti:_reduce_scatter_base", opts);
    call.factor = as.factor;
    return start(call, std::move(operands), [=](tutti_comm *comm, const tutti_options *options) {
        return tutti_reduce_scatter(comm, src, dst, count, as.elements.type, as.op, options);
    });
}

/* The address of each rank's part of a tensor that is split along its first dimension. */
template <typename Pointer>
static std::pair<std::vector<Pointer>, std::vector<size_t>>
parts_of(const at::Tensor &tensor, Pointer base, const std::vector<int64_t> &splits, int nranks, Elements as) {
    auto rows = tensor.dim() > 0 ? tensor.size(0) : 1;
    size_t row = rows > 0 ? count_of(tensor) / static_cast<size_t>(rows) : 0;
    std::vector<Pointer> parts(static_cast<size_t>(nranks));
    std::vector<size_t> counts(static_cast<size_t>(nranks));
    size_t item = tutti_type_bytes(as.type) * as.per_item, first = 0;
    for (size_t i = 0; i < parts.size(); i++) {
        size_t items = row * static_cast<size_t>(splits.empty() ? rows / nranks : splits[i]);
        parts[i] = reinterpret_cast<Pointer>(reinterpret_cast<uintptr_t>(base) + first * item);
        counts[i] = items * as.per_item;
        first += items;
    }
    return {std::move(parts), std::move(counts)};
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                                        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) {
    TUTTI_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "tutti: all_to_all of ", input.scalar_type(),
                      " into ", output.scalar_type());
    c10d::checkSplitSizes(input_splits, input, getSize());
    c10d::checkSplitSizes(output_splits, output, getSize());
    Operands operands;
    const auto *src = operands.in(input);
    auto *dst = operands.out(output);
    operands.inputs = {input};
    operands.results = {output};
    Elements as = moved_as(input.scalar_type());
    Call call = make_call(c10d::OpType::ALLTOALL_BASE, "tutti:all_to_all", opts);
    if (input_splits.empty() && output_splits.empty()) {
        TUTTI_CHECK_VALUE(output.numel() == input.numel(), "tutti: all_to_all of ", input.numel(), " elements into ",
                          output.numel());
        size_t count = count_of(input) / static_cast<size_t>(getSize()) * as.per_item;
        return start(call, std::move(operands), [=](tutti_comm *comm, const tutti_options *options) {
            return tutti_all_to_all(comm, src, dst, count, as.type, options);
        });
    }
    auto sent = parts_of(input, src, input_splits, getSize(), as);
    auto received = parts_of(output, dst, output_splits, getSize(), as);
    return start(
        call, std::move(operands),
        [sent = std::move(sent), received = std::move(received), as](tutti_comm *comm, const tutti_options *options) {
            return tutti_all_to_all_v(comm, sent.first.data(), sent.second.data(), received.first.data(),
                                      received.second.data(), as.type, options);
        });
}

/* In PyTorch a barrier also waits for earlier work in the GPU's streams. So the host waits for that work first, and
 * then meets the other ranks. */
Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &opts) {
    std::optional<c10::Device> said = getBoundDeviceId(); /* init_process_group(device_id=...) */
    if (!opts.device_ids.empty())
        said.emplace(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
    if (said && (!said->is_cuda() || !has_cuda())) said.reset();
    lanes_.drain(said);
    return start(make_call(c10d::OpType::BARRIER, "tutti:barrier", opts), Operands(),
                 [](tutti_comm *comm, const tutti_options *options) { return tutti_barrier(comm, options); });
}

} // namespace torch_tutti
