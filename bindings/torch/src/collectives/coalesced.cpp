/*
 * Collectives of several tensors as one operation.
 */
#include "../backend/batch.h"

namespace torch_tutti {

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

} // namespace torch_tutti
