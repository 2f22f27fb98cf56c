/*
 * Conversion of tensors from one layout to another. See redistribute.h.
 */
#include "redistribute.h"

#include <ATen/record_function.h>

#include <algorithm>

#include "../backend/batch.h"
#include "../base/python_lock.h"
#include "../operation/operands.h"
#include "../operation/work.h"

namespace torch_tutti {

/* A placement that is kept until the group ends. What placements share, including communicators, is destroyed with
 * the last of them, and that would not happen at the same time on all ranks. */
void Backend::anchor_placements() {
    std::lock_guard<std::mutex> lock(anchor_mutex_);
    if (anchor_ != nullptr) return;
    int own = getRank(), one = 1;
    check(tutti_placement_create(comm(), TUTTI_MEMORY_HOST, &own, &one, 1, &anchor_));
}

namespace {

bool is_complex_reduced(const tutti_sbp &sbp) {
    return sbp.kind == TUTTI_SBP_PARTIAL && sbp.reduction != TUTTI_SUM && sbp.reduction != TUTTI_AVG;
}

/* The engine's elements for a dtype; if some values are partial, their reduction must be supported for it. */
Elements elements_of(at::ScalarType dtype, const tutti_sbp *sbp, int naxes) {
    bool partial = std::any_of(sbp, sbp + naxes, [](const tutti_sbp &one) { return one.kind == TUTTI_SBP_PARTIAL; });
    if (!partial) return moved_as(dtype);
    TUTTI_CHECK_VALUE(!at::isComplexType(dtype) || std::none_of(sbp, sbp + naxes, is_complex_reduced),
                      "torch_tutti.redistribute: complex tensors can be partial only as sum and avg");
    return reduced_as(dtype, c10d::ReduceOp::SUM).elements;
}

} // namespace

void Redistribution::fill(End &end, const Journey &journey, const Side &side) {
    int naxes = 0;
    check(tutti_placement_create(backend_->comm(), TUTTI_MEMORY_HOST, side.ranks.data(), side.axes.data(),
                                 static_cast<int>(side.axes.size()), &end.placement));
    check(tutti_sbp_parse(side.sbp.c_str(), end.sbp.data(), TUTTI_MOST_AXES, &naxes));
    TUTTI_CHECK_VALUE(naxes == tutti_placement_axes(end.placement), "torch_tutti.redistribute: ", naxes,
                      " placements for a mesh of ", tutti_placement_axes(end.placement), " dimensions");
    end.extents = journey.shape;
    end.layout.struct_bytes = sizeof end.layout;
    end.layout.placement = end.placement;
    end.layout.sbp = end.sbp.data();
    end.layout.rule = TUTTI_SPLIT_CHUNK;
}

/* Both sides of a tensor use the same elements. */
void Redistribution::prepare(const std::vector<Journey> &journeys) {
    size_t count = journeys.size();
    ends_.resize(2 * count);
    for (size_t i = 0; i < count; i++) {
        End &from = ends_[i], &to = ends_[count + i];
        fill(from, journeys[i], journeys[i].from);
        fill(to, journeys[i], journeys[i].to);
        Elements as_source = elements_of(journeys[i].dtype, from.sbp.data(), tutti_placement_axes(from.placement));
        Elements as_target = elements_of(journeys[i].dtype, to.sbp.data(), tutti_placement_axes(to.placement));
        Elements elements = as_target.type == as_source.type ? as_source : moved_as(journeys[i].dtype);
        dtypes_.push_back(journeys[i].dtype);
        for (End *end : {&from, &to}) {
            if (elements.per_item != 1) end->extents.push_back(static_cast<int64_t>(elements.per_item));
            TUTTI_CHECK_VALUE(end->extents.size() <= TUTTI_MOST_DIMS, "torch_tutti.redistribute: a tensor of ",
                              journeys[i].shape.size(), " dimensions; Tutti has at most ", TUTTI_MOST_DIMS,
                              ", of which complex numbers take one");
            end->layout.type = elements.type;
            end->layout.ndims = static_cast<int>(end->extents.size());
            end->layout.shape = end->extents.data();
            int index = tutti_placement_coordinate(end->placement, -1);
            end->here = index >= 0;
            int64_t first[TUTTI_MOST_DIMS], last[TUTTI_MOST_DIMS];
            check(tutti_layout_box(&end->layout, std::max(index, 0), first, last));
            for (size_t d = 0; d < journeys[i].shape.size(); d++) end->local.push_back(last[d] - first[d]);
        }
    }
}

Redistribution::Redistribution(c10::intrusive_ptr<Backend> backend, const std::vector<Journey> &journeys)
    : backend_(std::move(backend)) {
    try {
        backend_->anchor_placements();
        prepare(journeys);
        std::vector<tutti_layout> layouts;
        for (const End &end : ends_) layouts.push_back(end.layout);
        check(tutti_plan_create(layouts.data(), layouts.data() + journeys.size(), journeys.size(), &plan_));
    } catch (...) {
        destroy();
        throw;
    }
}

void Redistribution::destroy() {
    tutti_plan_destroy(plan_);
    for (End &end : ends_) tutti_placement_destroy(end.placement);
}

Redistribution::~Redistribution() {
    destroy();
}

std::string Redistribution::describe() {
    char text[1000];
    check(tutti_plan_describe(plan_, text, sizeof text));
    return text;
}

/* The engine's tensors for one run, over PyTorch's memory. */
struct Redistribution::Shards {
    explicit Shards(size_t count) : tensors(count, nullptr) {}
    ~Shards() {
        for (tutti_tensor *tensor : tensors) tutti_tensor_destroy(tensor);
    }
    std::vector<tutti_tensor *> tensors;
    std::vector<at::Tensor> memory; /* in order */
};

static void check_shard(const at::Tensor &shard, at::ScalarType dtype, at::IntArrayRef local) {
    TUTTI_CHECK_VALUE(shard.defined() && shard.device().is_cpu() && shard.layout() == at::kStrided,
                      "torch_tutti.redistribute supports only dense CPU tensors");
    TUTTI_CHECK_VALUE(shard.scalar_type() == dtype, "torch_tutti.redistribute: this rank's shard is of ",
                      shard.scalar_type(), ", and the tensor is of ", dtype);
    bool empty = shard.numel() == 0 && c10::multiply_integers(local) == 0; /* of any shape */
    TUTTI_CHECK_VALUE(empty || shard.sizes() == local, "torch_tutti.redistribute: this rank's shard has the shape ",
                      shard.sizes(), "; by the tensor's shape and placements it must be ", local,
                      " (parts of ceil(n / ranks), as torch.chunk cuts)");
}

std::vector<at::Tensor> Redistribution::run(const std::vector<at::Tensor> &shards) {
    size_t count = dtypes_.size();
    RECORD_FUNCTION(backend_->titled("tutti:redistribute"), std::vector<c10::IValue>());
    TUTTI_CHECK_VALUE(shards.size() == count, "torch_tutti.redistribute: ", shards.size(), " shards for ", count,
                      " tensors");
    TUTTI_CHECK_VALUE(Batch::open(backend_.get()) == nullptr,
                      "torch_tutti.redistribute cannot be part of coalesced operations; call it after them");
    std::vector<at::Tensor> results;
    Shards own(2 * count);
    for (size_t i = 0; i < 2 * count; i++) {
        const End &end = ends_[i];
        at::Tensor memory;
        if (i >= count) {
            memory = at::empty(end.here ? at::IntArrayRef(end.local) : at::IntArrayRef({0}), dtypes_[i - count]);
            results.push_back(memory);
        } else if (end.here) {
            check_shard(shards[i], dtypes_[i], end.local);
            memory = shards[i].resolve_conj().resolve_neg().contiguous();
        }
        void *address = memory.defined() && memory.numel() > 0 ? memory.data_ptr() : nullptr;
        check(tutti_tensor_wrap(&end.layout, address, &own.tensors[i]));
        own.memory.push_back(memory);
    }
    tutti_options options = {};
    options.struct_bytes = sizeof options;
    options.timeout_ms = backend_->timeout_of(std::chrono::milliseconds(0)).count();
    std::lock_guard<std::mutex> lock(mutex_);
    check(tutti_plan_run(plan_, own.tensors.data(), own.tensors.data() + count, &options));
    return results;
}

} // namespace torch_tutti
