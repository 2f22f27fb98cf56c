/*
 * A c10d backend over one tutti communicator.
 *
 * All operations take the same path: the method checks its tensors and turns them into Operands, and `start` hands
 * a closure that calls the engine either to the engine at once, or, between startCoalescing and endCoalescing, to
 * this thread's batch. An operation that the caller waits for anyway (asyncOp false) runs on the caller's thread.
 *
 * With CUDA tensors the engine enqueues operations in streams: in the caller's current one if the caller waits for it,
 * else in one of the group's (lanes.h), which waits for the caller's first.
 *
 * PyTorch has renamed some methods over time; this class has both spellings, and the one that is virtual in the
 * PyTorch of the build overrides. Therefore no method is marked `override`.
 */
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <unistd.h>

#include <atomic>
#include <functional>

#include "../base/hooks.h"
#include "../base/versions.h"
#include "../operation/lanes.h"
#include "../operation/work.h"
#include "extensions.h"
#include "flight.h"
#include "gloo_shape.h"
#include "tutti/tensor.h"

namespace torch_tutti {

class Aside;

struct Options final : c10d::Backend::Options, GroupOf<c10d::Backend::Options> {
    /* `shown_as`: the name of the backend in PyTorch and in the profiler's titles. */
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout, std::string shown_as = "tutti")
        : c10d::Backend::Options(std::move(shown_as), limit) {}
    std::string name;      /* of the communicator, in errors and reports; "": the group's name */
    bool zero_copy = true; /* allocateTensor returns memory that the ranks of a host share */
    /* A wait for an operation on CUDA tensors blocks the host. Default: the environment's. */
    bool blocking_wait = blocks_by_default();
    static bool blocks_by_default();
    /* PyTorch copies options before it passes them on; the clone() of the base class would slice these. */
    c10::intrusive_ptr<c10d::Backend::Options> clone() const {
        return c10::make_intrusive<Options>(*this);
    }
};

/* The common properties of all operations: name, timeout and lane. */
struct Call {
    c10d::OpType type;
    const char *title;
    bool async;
    std::chrono::milliseconds timeout;
    double factor = 0.0;
    int64_t lane = Lanes::collectives; /* for asynchronous operations on CUDA tensors */
};

template <typename Opts> Call make_call(c10d::OpType type, const char *title, const Opts &opts) {
    return {type, title, is_async(opts), opts.timeout};
}

class Backend : public GlooShape {
public:
    using Options = torch_tutti::Options;
    using Tensors = std::vector<at::Tensor>;
    using TensorLists = std::vector<Tensors>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;
    using Issue = std::function<tutti_status(tutti_comm *, const tutti_options *)>;

    /* Meets the other ranks in the store, on the calling thread, which must not hold the GIL. */
    Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options);
    /* A group of some of the ranks of `parent`, over its links. */
    Backend(Backend &parent, const std::vector<int> &ranks, int rank, c10::intrusive_ptr<Options> options);
    ~Backend();

    /* backend.cpp: life */
    const std::string getBackendName() const {
        return options_->backend;
    }
    /* The title of an operation, "tutti:all_reduce", with the backend's name in front of the colon. It lives as
     * long as the process. */
    const char *titled(const char *title) const;
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() {
        return options_;
    }
    c10::intrusive_ptr<Options> options() {
        return options_;
    }
    bool supportsSplitting() const {
        return true;
    }
    bool supportsCoalescing() const {
        return true;
    }
    bool supportsTimeEstimation() const {
        return false;
    }
    bool supportsReconfigure() const {
        return false;
    }
    bool supportsWindow() const {
        return false;
    }
    bool supportsAbortHooks() const {
        return true;
    }
    bool supportsCompletionHooks() const {
        return true;
    }
    bool supportsShrinking() const {
        return true;
    }
    bool supportsTensorAlloc(c10::DeviceIndex device);
    at::Tensor allocateTensor(long count, at::TensorOptions options = {});
    std::shared_ptr<c10::Allocator> getMemAllocator();
    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options);
    c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> &ranks_to_exclude, int flags = 0,
                                             const c10::intrusive_ptr<c10d::Backend::Options> &options = nullptr);
    /* Creates another group over that store, in which each member has the rank that it passes. */
    c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank,
                                            const int &size);
    void setTimeout(std::chrono::milliseconds timeout);
    void addEphemeralTimeout(const std::chrono::milliseconds &timeout);
    void setSequenceNumberForGroup() {}
    uint64_t getSequenceNumberForGroup() {
        return sequence_.load(std::memory_order_relaxed);
    }
    /* The engine always notes the time; as PyTorch's own backends do, getDuration gives it for operations that begin
     * after this. */
    void enableCollectivesTiming() {
        timed_.store(true, std::memory_order_relaxed);
    }
    /* The hook is called for each operation that has ended, with or without an error, on the thread that detected
     * the end. */
    void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook);
    /* Hooks by number: hooks.h. */
    void registerAbortHook(int64_t id, AbortHook hook) {
        hooks_->add(id, std::move(hook));
    }
    void unregisterAbortHook(int64_t id) {
        hooks_->remove_abort(id);
    }
    void registerCompletionHook(int64_t id, CompletionHook hook) {
        hooks_->add(id, std::move(hook));
    }
    void unregisterCompletionHook(int64_t id) {
        hooks_->remove_completion(id);
    }
    /* Returns after the hook was called for all operations that were started; destroy_process_group calls it. */
    void waitForPendingWorks();
    /* redistribute.cpp: keeps what placements on the communicator share until the group ends. */
    void anchor_placements();
    /* env.cpp: sets up RDMA between all hosts of the group, or fails; collective. */
    void init_rdma();
    /* True when init_rdma has succeeded in this process. */
    bool has_rdma() const {
        return rdma_.load(std::memory_order_acquire) && process_ == getpid();
    }
    ErrorType getError();
    std::string error_text();
    void abort();
    void abort_because(const std::string &reason);
    void shutdown();
    /* At the end of the process: ends the threads of this backend; with `breaks`, aborts running operations first. */
    virtual void end_threads(bool breaks);

    /* collectives.cpp: one tensor per rank */
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts = c10d::BroadcastOptions());
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts = c10d::AllreduceOptions());
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts = c10d::ReduceOptions());
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input,
                            const c10d::AllgatherOptions &opts = c10d::AllgatherOptions());
    WorkPtr all_gather_single(at::Tensor &output, at::Tensor &input,
                              const c10d::AllgatherOptions &opts = c10d::AllgatherOptions()) {
        return _allgather_base(output, input, opts);
    }
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts = c10d::ReduceScatterOptions());
    WorkPtr reduce_scatter_single(at::Tensor &output, at::Tensor &input,
                                  const c10d::ReduceScatterOptions &opts = c10d::ReduceScatterOptions()) {
        return _reduce_scatter_base(output, input, opts);
    }
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits,
                          const c10d::AllToAllOptions &opts = c10d::AllToAllOptions());
    WorkPtr all_to_all_single(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                              std::vector<int64_t> &input_splits,
                              const c10d::AllToAllOptions &opts = c10d::AllToAllOptions()) {
        return alltoall_base(output, input, output_splits, input_splits, opts);
    }
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input,
                          const c10d::GatherOptions &opts = c10d::GatherOptions());
    WorkPtr gather_into_tensor(at::Tensor &output, at::Tensor &input,
                               const c10d::GatherOptions &opts = c10d::GatherOptions()) {
        return gather_single(output, input, opts);
    }
    WorkPtr barrier(const c10d::BarrierOptions &opts = c10d::BarrierOptions());

    /* lists.cpp: lists of tensors */
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs,
                      const c10d::AllgatherOptions &opts = c10d::AllgatherOptions());
    WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts = c10d::GatherOptions());
    WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts = c10d::ScatterOptions());
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs,
                           const c10d::ReduceScatterOptions &opts = c10d::ReduceScatterOptions());
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts = c10d::AllToAllOptions());

    /* coalesced.cpp: several operations as one */
    WorkPtr allreduce_coalesced(Tensors &tensors,
                                const c10d::AllreduceCoalescedOptions &opts = c10d::AllreduceCoalescedOptions());
    WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                const c10d::AllgatherOptions &opts = c10d::AllgatherOptions());
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts = c10d::AllgatherOptions());
    WorkPtr all_gather_single_coalesced(Tensors &outputs, Tensors &inputs,
                                        const c10d::AllgatherOptions &opts = c10d::AllgatherOptions()) {
        return allgather_into_tensor_coalesced(outputs, inputs, opts);
    }
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts = c10d::ReduceScatterOptions());
    WorkPtr reduce_scatter_single_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts = c10d::ReduceScatterOptions()) {
        return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
    }
    void startCoalescing();
    WorkPtr endCoalescing();

    /* p2p.cpp */
    WorkPtr send(Tensors &tensors, int peer, int tag);
    WorkPtr recv(Tensors &tensors, int peer, int tag);
    WorkPtr recvAnysource(Tensors &tensors, int tag);
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks = false);

    /* sparse.cpp */
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts = c10d::AllreduceOptions());

    /* Used by the other source files of the backend. */
    /* Issues the operation, or adds it to the open batch of this thread. The function object is moved to the heap
     * only for a batch. Returns null after an operation that the caller waited for, if nothing needs its work. */
    template <typename Function> WorkPtr start(const Call &call, Operands operands, Function issue) {
        if (in_batch()) return add_to_batch(call, std::move(operands), Issue(std::move(issue)));
        return start_now(call, std::move(operands), Issue(std::ref(issue)));
    }
    bool in_batch();
    WorkPtr add_to_batch(const Call &call, Operands operands, Issue issue);
    WorkPtr start_now(const Call &call, Operands operands, const Issue &issue);
    tutti_comm *comm() {
        return comm_.get();
    }
    std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
    /* Adds an entry to the flight recorder, in groups that write their own entries. Called before the operation
     * begins. */
    void record(const Call &call, const Operands &operands, uint64_t key);
    /* Hooks are called for a part of an operation, which has that key, when the whole operation has ended. */
    void watch_part(Work &whole, uint64_t key);
    const std::shared_ptr<Hooks> &hooks() {
        return hooks_;
    }
    uint64_t next_sequence() {
        return sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
    }

protected:
    /* True in a forked child of the process that made the group: the child has none of the group's threads. */
    bool is_forked() const {
        return process_ != getpid();
    }
    /* Create groups of the same kind as this one: of some of its ranks, and of ranks that meet in a store. */
    virtual c10::intrusive_ptr<Backend> part(const std::vector<int> &ranks, int rank,
                                             c10::intrusive_ptr<Options> options);
    virtual c10::intrusive_ptr<Backend> anew(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                             c10::intrusive_ptr<Options> options);

    /* Operations have entries in that recorder from now on. */
    void record_in(std::shared_ptr<Flight> flight);
    /* The group as the flight recorder knows it, or another group of the same ranks. */
    Flight::Group flight_group(const std::string &suffix = "") const;
    const std::shared_ptr<Flight> &flight() const {
        return flight_;
    }
    /* Calls that wait return works as well from now on, as Gloo's do. */
    void give_all_works() {
        gives_all_works_ = true;
    }

private:
    WorkPtr message(const char *title, c10d::OpType type, Tensors &tensors, int peer, int64_t tag);
    void begin();
    WorkPtr run_here(const Call &call, Operands operands, const Issue &issue);
    WorkPtr start_in_stream(const Call &call, Operands operands, const Issue &issue);
    tutti_status issue_in_stream(const Issue &issue, tutti_options options, tutti_work **handle);
    std::function<void()> hook_call(c10d::OpType type, uint64_t sequence, HookClock::time_point started);
    void tell_hook(c10d::OpType type, uint64_t sequence, HookClock::time_point started);
    bool is_watched() const {
        return onCompletionHook_ != nullptr || hooks_->any();
    }
    /* Not only hooks that are called when the group breaks. */
    bool observes_ends() const {
        return onCompletionHook_ != nullptr || hooks_->any_for_completion();
    }
    void watch(const Call &call, Work &work, HookClock::time_point started);
    void remember(const c10::intrusive_ptr<Work> &work);
    void look_at_watched();
    void tell_of_part(const Work::End &end, uint64_t key);
    void check_issued(tutti_status status);
    tutti_options options_of(const Call &call, tutti_memory memory) const;
    tutti_options begin_work(const Call &call, tutti_memory memory, Work &work) const;

    c10::intrusive_ptr<c10d::Store> store_;
    c10::intrusive_ptr<Options> options_;
    /* Shared with operations on the CPU that are under way: the group may be dropped before they have ended. */
    std::shared_ptr<tutti_comm> comm_;
    std::mutex anchor_mutex_;
    tutti_placement *anchor_ = nullptr;
    Lanes lanes_;
    std::atomic<int64_t> timeout_ms_;
    const std::shared_ptr<Extensions> extensions_ = std::make_shared<Extensions>();
    const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
    std::atomic<bool> timed_{false}; /* works report durations */
    std::atomic<bool> rdma_{false};  /* init_rdma has succeeded */
    std::shared_ptr<Flight> flight_; /* null: PyTorch's recorder uses hooks, or there is no recorder */
    bool gives_all_works_ = false;   /* also those of calls that wait; set by groups in Gloo's place */
    std::atomic<uint64_t> sequence_{0};
    std::atomic<int64_t> shrinks_{0};    /* calls on this group so far */
    std::atomic<uint64_t> monitored_{0}; /* monitored barriers so far */
    std::mutex aside_mutex_;
    std::unique_ptr<Aside> aside_;   /* created when first needed */
    const pid_t process_ = getpid(); /* forked processes have neither the threads nor the links */
    std::mutex watched_mutex_;
    std::vector<c10::weak_intrusive_ptr<Work>> watched_; /* begun after the last check, or under way then */
    std::atomic<int> hooked_{0};                         /* operations for which the completion hook will be called */
};

/* At the end of the process: afterwards no thread of this library uses Python. The caller must not hold the GIL. */
void shutdown_all();

/* Creates a communicator whose ranks meet in that store. */
tutti_status create_comm(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                         const tutti_comm_options &options, tutti_comm **comm_out);

} // namespace torch_tutti
