/*
 * all_reduce of sparse (COO) tensors: the ranks exchange their numbers of entries, then each rank gathers the
 * indices and values of all ranks and adds them up in rank order.
 */
#include <ATen/core/LegacyTypeDispatch.h>

#include "../backend/aside.h"

namespace torch_tutti {

namespace {

/* Number of entries and shape of one rank's tensor, in the format of the exchange. */
constexpr int64_t max_dims = 16;
constexpr int64_t header_items = 3 + max_dims;

at::Tensor header_of(const at::Tensor &tensor) {
    at::Tensor header = at::zeros({header_items}, at::kLong);
    auto *items = header.mutable_data_ptr<int64_t>();
    TUTTI_CHECK_VALUE(tensor.dim() <= max_dims, "tutti: sparse all_reduce takes at most ", max_dims, " dimensions");
    items[0] = tensor._nnz();
    items[1] = tensor.sparse_dim();
    items[2] = tensor.dim();
    for (int64_t i = 0; i < tensor.dim(); i++) items[3 + i] = tensor.size(i);
    return header;
}

/* Gathers `own` of each rank; that of rank i has shape shapes[i]. */
std::vector<at::Tensor> gather_all(tutti_comm *comm, const at::Tensor &own,
                                   const std::vector<std::vector<int64_t>> &shapes) {
    Elements as = moved_as(own.scalar_type());
    std::vector<at::Tensor> all;
    std::vector<void *> dsts;
    std::vector<size_t> counts;
    for (const auto &shape : shapes) {
        all.push_back(at::empty(shape, own.options()));
        dsts.push_back(all.back().mutable_data_ptr());
        counts.push_back(static_cast<size_t>(all.back().numel()) * as.per_item);
    }
    check(tutti_all_gather_v(comm, own.const_data_ptr(), static_cast<size_t>(own.numel()) * as.per_item, dsts.data(),
                             counts.data(), as.type, nullptr));
    return all;
}

std::vector<std::vector<int64_t>> repeat(const std::vector<int64_t> &shape, int times) {
    return std::vector<std::vector<int64_t>>(static_cast<size_t>(times), shape);
}

at::Tensor sum_of_all(tutti_comm *comm, const at::Tensor &own) {
    int nranks = tutti_comm_size(comm);
    at::Tensor header = header_of(own);
    std::vector<at::Tensor> headers = gather_all(comm, header, repeat({header_items}, nranks));
    std::vector<std::vector<int64_t>> index_shapes, value_shapes;
    for (int rank = 0; rank < nranks; rank++) {
        const auto *items = headers[static_cast<size_t>(rank)].const_data_ptr<int64_t>();
        const auto *mine = header.const_data_ptr<int64_t>();
        TUTTI_CHECK_VALUE(std::equal(items + 1, items + header_items, mine + 1),
                          "tutti: sparse all_reduce of tensors of different shapes (rank ", rank, " and rank ",
                          tutti_comm_rank(comm), ")");
        std::vector<int64_t> values = own.values().sizes().vec();
        values[0] = items[0];
        index_shapes.push_back({items[1], items[0]});
        value_shapes.push_back(values);
    }
    std::vector<at::Tensor> indices = gather_all(comm, own.indices().contiguous(), index_shapes);
    std::vector<at::Tensor> values = gather_all(comm, own.values().contiguous(), value_shapes);
    at::Tensor sum;
    for (size_t rank = 0; rank < indices.size(); rank++) {
        at::Tensor part = at::sparse_coo_tensor(indices[rank], values[rank], own.sizes(), own.options());
        sum = sum.defined() ? sum + part : part;
    }
    return sum.coalesce();
}

} // namespace

Backend::WorkPtr Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    TUTTI_CHECK_VALUE(tensors.size() == 1, "tutti: all_reduce takes one tensor, ", tensors.size(), " given");
    at::Tensor tensor = tensors[0];
    TUTTI_CHECK_VALUE(tensor.layout() == at::kSparse, "tutti: sparse all_reduce takes COO tensors, and this one is ",
                      tensor.layout());
    TUTTI_CHECK_VALUE(tensor.device().is_cpu(), "tutti: sparse all_reduce takes CPU tensors, and this one is on ",
                      tensor.device());
    TUTTI_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM, "tutti: sparse all_reduce supports only ReduceOp.SUM");
    uint64_t sequence = next_sequence();
    Aside::Ended ended;
    if (is_watched()) {
        bool has_hook = onCompletionHook_ != nullptr;
        if (has_hook) hooked_.fetch_add(1);
        /* The thread that calls this ends before the backend is destroyed. */
        ended = [this, has_hook, sequence, started = HookClock::now()](c10d::Work &work, uint64_t key) {
            tell_of_part({work.exception() == nullptr, HookClock::now() - started}, key);
            if (has_hook) tell_hook(c10d::OpType::_ALLREDUCE_SPARSE, sequence, started);
        };
    }
    {
        std::lock_guard<std::mutex> lock(aside_mutex_);
        if (!aside_) aside_ = std::make_unique<Aside>(*this);
    }
    return aside_->add(
        c10d::OpType::_ALLREDUCE_SPARSE, titled("tutti:sparse_all_reduce"), tensors,
        [tensor](tutti_comm *comm) mutable {
            at::AutoDispatchBelowADInplaceOrView guard;
            tensor.copy_(sum_of_all(comm, tensor.coalesce()));
        },
        std::move(ended));
}

} // namespace torch_tutti
