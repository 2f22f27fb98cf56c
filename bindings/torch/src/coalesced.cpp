/*
 * Several operations as one: the coalesced collectives, the coalescing manager and batch_isend_irecv.
 */
#include "batch.h"

namespace torch_tutti {

namespace {
thread_local std::unique_ptr<Batch> open_batch;
}

Batch *Batch::open(const Backend *backend) {
    return open_batch && open_batch->backend_ == backend ? open_batch.get() : nullptr;
}

Batch &Batch::begin(Backend *backend) {
    open_batch = std::make_unique<Batch>(backend);
    return *open_batch;
}

std::unique_ptr<Batch> Batch::take(const Backend *backend) {
    return open(backend) != nullptr ? std::move(open_batch) : nullptr;
}

Backend::WorkPtr Batch::add(const Call &call, Operands operands, Backend::Issue issue) {
    auto stands_for = c10::make_intrusive<Work>(backend_->getRank(), call.type, nullptr, 0, Operands());
    stands_for->mark_unbegun();
    parts_.push_back({std::move(issue), call.factor, call.timeout});
    keys_.push_back(stands_for->getCompletionKey());
    backend_->record(call, operands, stands_for->getCompletionKey());
    operands_.absorb(std::move(operands));
    return stands_for;
}

Backend::WorkPtr Batch::run(const Call &call) {
    auto issue = [parts = std::move(parts_), backend = backend_](tutti_comm *comm, const tutti_options *options) {
        TUTTI_TRY(tutti_group_begin(comm));
        for (const Part &part : parts) {
            tutti_options own = {};
            own.struct_bytes = sizeof own;
            own.memory = options->memory;
            own.stream = options->stream;
            own.factor = part.factor;
            own.timeout_ms = backend->timeout_of(part.timeout).count();
            tutti_status status = part.issue(comm, &own);
            if (status == TUTTI_OK) continue;
            std::string text = tutti_last_error();
            tutti_group_cancel(comm);
            return tutti_fail(status, "%s", text.c_str());
        }
        return tutti_group_end(comm, options);
    };
    auto whole = backend_->start(call, std::move(operands_), std::move(issue));
    for (uint64_t key : keys_) backend_->watch_part(static_cast<Work &>(*whole), key);
    return whole;
}

/* Collects the operations that `body` starts on this thread, and starts them as one; inside an open batch they just
 * join it. */
template <typename Body> static Backend::WorkPtr together(Backend &backend, const Call &call, Body body) {
    if (Batch::open(&backend) != nullptr) return body();
    Batch::begin(&backend);
    try {
        body();
    } catch (...) {
        Batch::take(&backend);
        throw;
    }
    return Batch::take(&backend)->run(call);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) {
    TUTTI_CHECK_VALUE(!tensors.empty(), "tutti: all_reduce_coalesced needs at least one tensor");
    return together(*this, make_call(c10d::OpType::ALLREDUCE_COALESCED, "tutti:all_reduce", opts), [&] {
        WorkPtr last;
        for (at::Tensor &tensor : tensors) {
            Tensors one = {tensor};
            last = allreduce(one, opts);
        }
        return last;
    });
}

/* outputs[rank][i] gets inputs[i] of that rank. */
Backend::WorkPtr Backend::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                              const c10d::AllgatherOptions &opts) {
    TUTTI_CHECK_VALUE(!inputs.empty(), "tutti: all_gather_coalesced needs at least one tensor");
    TUTTI_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), "tutti: all_gather_coalesced needs ", getSize(),
                      " lists of outputs, ", outputs.size(), " given");
    for (const Tensors &list : outputs)
        TUTTI_CHECK_VALUE(list.size() == inputs.size(), "tutti: all_gather_coalesced of ", inputs.size(),
                          " tensors into a list of ", list.size());
    return together(*this, make_call(c10d::OpType::ALLGATHER_COALESCED, "tutti:all_gather", opts), [&] {
        WorkPtr last;
        for (size_t i = 0; i < inputs.size(); i++) {
            TensorLists list(1);
            for (const Tensors &rank : outputs) list[0].push_back(rank[i]);
            Tensors one = {inputs[i]};
            last = allgather(list, one, opts);
        }
        return last;
    });
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::AllgatherOptions &opts) {
    TUTTI_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                      "tutti: the numbers of outputs and inputs must be equal, and not 0");
    return together(*this, make_call(c10d::OpType::COALESCED, "tutti:all_gather_into_tensor_coalesced", opts), [&] {
        WorkPtr last;
        for (size_t i = 0; i < inputs.size(); i++) last = _allgather_base(outputs[i], inputs[i], opts);
        return last;
    });
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::ReduceScatterOptions &opts) {
    TUTTI_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                      "tutti: the numbers of outputs and inputs must be equal, and not 0");
    return together(*this, make_call(c10d::OpType::COALESCED, "tutti:reduce_scatter_tensor_coalesced", opts), [&] {
        WorkPtr last;
        for (size_t i = 0; i < inputs.size(); i++) last = _reduce_scatter_base(outputs[i], inputs[i], opts);
        return last;
    });
}

void Backend::startCoalescing() {
    Batch::begin(this);
}

Backend::WorkPtr Backend::endCoalescing() {
    std::unique_ptr<Batch> batch = Batch::take(this);
    TORCH_CHECK(batch != nullptr, "tutti: endCoalescing without startCoalescing on this thread");
    return batch->run({c10d::OpType::COALESCED, "tutti:coalesced", /* async */ true, c10d::kUnsetTimeout});
}

} // namespace torch_tutti
