/*
 * A backend in Gloo's place. See as_gloo.h.
 */
#include "as_gloo.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>

#include "../backend/batch.h"
#include "../base/python_lock.h"
#include "tutti/device.h"

namespace torch_tutti {

namespace {

constexpr const char *several = "several tensors in one call";
constexpr const char *without_gpus = "CUDA tensors, which this build of Tutti does not support";
constexpr const char *sparse_on_gpu = "sparse CUDA tensors";

std::atomic<const RealGloo *> real_gloo{nullptr};

bool serves_gpus() {
    static const bool serves = [] {
        int count = 0;
        return tutti_device_count(&count) == TUTTI_OK && count > 0;
    }();
    return serves;
}

} // namespace

void set_real_gloo(const RealGloo *real) {
    real_gloo = real;
    add_gloos_words();
}

GlooBackend::GlooBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(store, rank, size, std::move(options)), real_store_(std::move(store)) {
    take_the_place();
}

GlooBackend::GlooBackend(GlooBackend &parent, const std::vector<int> &ranks, int rank,
                         c10::intrusive_ptr<Options> options)
    : Backend(parent, ranks, rank, std::move(options)), real_store_(parent.real_store_) {
    take_the_place();
}

void GlooBackend::take_the_place() {
    give_all_works();
    if (auto flight = Flight::of_gloo()) record_in(std::move(flight));
}

GlooBackend::~GlooBackend() {
    WithoutPythonLock unlocked; /* for real_, whose threads may need the GIL to end */
    real_.reset();
}

c10::intrusive_ptr<Backend> GlooBackend::part(const std::vector<int> &ranks, int rank,
                                              c10::intrusive_ptr<Options> options) {
    return c10::make_intrusive<GlooBackend>(*this, ranks, rank, std::move(options));
}

c10::intrusive_ptr<Backend> GlooBackend::anew(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                              c10::intrusive_ptr<Options> options) {
    return c10::make_intrusive<GlooBackend>(std::move(store), rank, size, std::move(options));
}

c10::intrusive_ptr<c10d::Backend> GlooBackend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                     const std::vector<int> &ranks,
                                                     const c10::intrusive_ptr<c10d::Backend::Options> &options) {
    auto child = Backend::split(store, ranks, options);
    /* Groups of the same ranks share Tutti's links, but each has a store of its own. */
    if (child && store) static_cast<GlooBackend &>(*child).real_store_ = store;
    return child;
}

void GlooBackend::setTimeout(std::chrono::milliseconds timeout) {
    Backend::setTimeout(timeout);
    WithoutPythonLock unlocked;
    std::lock_guard<std::mutex> lock(real_mutex_);
    if (real_)
        where_valid([timeout](auto &backend) -> decltype(backend.setTimeout(timeout)) { backend.setTimeout(timeout); },
                    *real_);
}

/* Gloo's threads release tensors, for which they need the GIL. While Python ends that aborts the process, as it
 * does to programs that use Gloo alone; so the real Gloo is destroyed earlier. */
void GlooBackend::end_threads(bool breaks) {
    Backend::end_threads(breaks);
    if (is_forked()) return (void)real_.release(); /* the lock may be held by a thread that the fork does not have */
    std::unique_lock<std::mutex> lock(real_mutex_);
    auto real = std::move(real_);
    lock.unlock(); /* before the real Gloo is destroyed, which waits for its threads */
}

c10d::Backend &GlooBackend::real(const char *call, const char *why) {
    WithoutPythonLock unlocked;
    std::lock_guard<std::mutex> lock(real_mutex_);
    const RealGloo *python = real_gloo;
    TORCH_CHECK(python != nullptr, "tutti: Gloo has not been replaced (call torch_tutti.replace_gloo())");
    if (!real_) {
        auto store = c10::make_intrusive<c10d::PrefixStore>("tutti-real-gloo", real_store_);
        real_ = python->make(store, getRank(), getSize(), timeout_of(c10d::kUnsetTimeout));
        /* It writes its own entries with its own numbers: so they belong to another group. */
        if (flight()) {
            auto group = flight_group("/gloo");
            where_valid(
                [&](auto &backend) -> decltype(backend.setGroupUid(group.name)) { backend.setGroupUid(group.name); },
                *real_);
            real_->setGroupDesc(group.description);
            flight()->introduce(group);
        }
    }
    python->note(call, why, getRank());
    return *real_;
}

/* An open batch belongs to Tutti; Gloo has no batches. */
const char *GlooBackend::refuses(const Tensors &tensors, bool takes_several) const {
    if (tensors.empty() || Batch::open(this) != nullptr) return nullptr;
    if (tensors.size() > 1 && !takes_several) return several;
    return refuses(tensors.front());
}

const char *GlooBackend::refuses(const at::Tensor &tensor) const {
    if (!tensor.is_cuda() || Batch::open(this) != nullptr) return nullptr;
    return !serves_gpus() ? without_gpus : tensor.is_sparse() ? sparse_on_gpu : nullptr;
}

Backend::WorkPtr GlooBackend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
    const char *why = refuses(tensors);
    return why ? real("broadcast", why).broadcast(tensors, opts) : Backend::broadcast(tensors, opts);
}

Backend::WorkPtr GlooBackend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    const char *why = refuses(tensors);
    return why ? real("all_reduce", why).allreduce(tensors, opts) : Backend::allreduce(tensors, opts);
}

Backend::WorkPtr GlooBackend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    const char *why = refuses(tensors);
    return why ? real("all_reduce", why).allreduce_sparse(tensors, opts) : Backend::allreduce_sparse(tensors, opts);
}

Backend::WorkPtr GlooBackend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
    const char *why = refuses(tensors, /* takes_several */ true);
    return why ? real("reduce", why).reduce(tensors, opts) : Backend::reduce(tensors, opts);
}

Backend::WorkPtr GlooBackend::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
    const char *why = refuses(inputs);
    return why ? real("all_gather", why).allgather(outputs, inputs, opts) : Backend::allgather(outputs, inputs, opts);
}

Backend::WorkPtr GlooBackend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                              const c10d::AllgatherOptions &opts) {
    const char *why = refuses(input);
    return why ? real("_all_gather_base", why)._allgather_base(output, input, opts)
               : Backend::_allgather_base(output, input, opts);
}

Backend::WorkPtr GlooBackend::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) {
    const char *why = refuses(inputs, /* takes_several */ true);
    return why ? real("gather", why).gather(outputs, inputs, opts) : Backend::gather(outputs, inputs, opts);
}

Backend::WorkPtr GlooBackend::scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts) {
    const char *why = refuses(outputs, /* takes_several */ true);
    return why ? real("scatter", why).scatter(outputs, inputs, opts) : Backend::scatter(outputs, inputs, opts);
}

Backend::WorkPtr GlooBackend::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                             const c10d::ReduceScatterOptions &opts) {
    const char *why = refuses(outputs, /* takes_several */ true);
    return why ? real("reduce_scatter", why).reduce_scatter(outputs, inputs, opts)
               : Backend::reduce_scatter(outputs, inputs, opts);
}

Backend::WorkPtr GlooBackend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                   const c10d::ReduceScatterOptions &opts) {
    const char *why = refuses(input);
    return why ? real("_reduce_scatter_base", why)._reduce_scatter_base(output, input, opts)
               : Backend::_reduce_scatter_base(output, input, opts);
}

Backend::WorkPtr GlooBackend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                                            std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) {
    const char *why = refuses(input);
    return why ? real("all_to_all", why).alltoall_base(output, input, output_splits, input_splits, opts)
               : Backend::alltoall_base(output, input, output_splits, input_splits, opts);
}

} // namespace torch_tutti
