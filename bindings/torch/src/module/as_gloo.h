/*
 * A backend in Gloo's place: Tutti's, under Gloo's name.
 *
 * Calls that Tutti refuses and Gloo supports go to a real Gloo of the same ranks. Which calls these are is decided
 * before a call does anything, from facts that are the same on all ranks: the number of tensors of the call, their
 * kind of device, and whether this build of Tutti supports GPUs. All ranks create the real Gloo at the first such
 * call.
 */
#pragma once

#include <functional>

#include "../backend/backend.h"

namespace torch_tutti {

class GlooBackend final : public Backend {
public:
    GlooBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
    GlooBackend(GlooBackend &parent, const std::vector<int> &ranks, int rank, c10::intrusive_ptr<Options> options);
    ~GlooBackend();

    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options);
    void setTimeout(std::chrono::milliseconds timeout);
    void end_threads(bool breaks) override;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts);
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts);
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts);
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts);
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts);
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts);
    WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts);
    WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts);
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &opts);
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &opts);
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts);

protected:
    c10::intrusive_ptr<Backend> part(const std::vector<int> &ranks, int rank, c10::intrusive_ptr<Options> options);
    c10::intrusive_ptr<Backend> anew(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     c10::intrusive_ptr<Options> options);

private:
    void take_the_place();
    c10d::Backend &real(const char *call, const char *why);
    /* Returns why Tutti does not take this call; null: Tutti takes it. */
    const char *refuses(const Tensors &tensors, bool takes_several = false) const;
    const char *refuses(const at::Tensor &tensor) const;

    std::mutex real_mutex_;
    c10::intrusive_ptr<c10d::Store> real_store_;
    c10::intrusive_ptr<c10d::Backend> real_; /* null: not created yet */
};

/* Implemented in Python. Never destroyed: at the end of the process Python may have ended already. */
struct RealGloo {
    /* Creates a real Gloo of these ranks. */
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                                    std::chrono::milliseconds timeout)>
        make;
    /* Called before each call that goes to the real Gloo. */
    std::function<void(const char *call, const char *why, int rank)> note;
};
void set_real_gloo(const RealGloo *real);

} // namespace torch_tutti
