/*
 * The work of an operation on CUDA tensors. It is done in stream order, as ProcessGroupNCCL's works are:
 *
 *   wait()          the calling thread's current stream waits; the host does not, unless the caller passes a timeout
 *                   or asks for the sender of a message
 *   getFuture()     is complete at once; the current stream of a waiter or a callback waits
 *   isCompleted()   the GPU has passed the operation
 *
 * A failure is known to the host only later: it breaks the group, whose next operation reports it; a work reports it if
 * it is known when a caller asks, and always to a caller that waits on the host. In a group that blocks
 * (Options::blocking_wait) the host always waits: wait() returns, and a future is complete, when the GPU has passed
 * the operation, or it has failed.
 *
 * A work holds its tensors until the streams in which they were passed wait for the operation. If it is destroyed
 * before, it records for PyTorch's allocator in which stream they are in use.
 *
 * While a CUDA graph is being captured, CUDA forbids queries of events, usually to all threads. So the end of an
 * operation is read from its handle, which needs no query; where there is no handle, the event is queried in a way
 * that does not disturb captures (has_passed). A work that is captured itself counts as completed: none of it is
 * under way. Destroying a work makes no query to CUDA.
 */
#pragma once

#include <c10/core/Event.h>

#include "lanes.h"
#include "work.h"

namespace torch_tutti {

class StreamWork final : public Work {
public:
    StreamWork(int rank, c10d::OpType type, const char *title, uint64_t sequence, Operands operands, Place place,
               std::shared_ptr<Sends> sends);
    ~StreamWork() override;

    /* Makes wait() block the host as well. Must be called before the operation begins. */
    void block_host() {
        blocks_ = true;
    }
    /* The operation is in the stream. The thread that enqueued it calls this once. */
    void enqueued();

    /* The engine makes the call: no thread has to wait for the operation on the host. */
    void on_known(std::function<void(const End &)> call) override;
    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;
    void blockCurrentStream(); /* overrides where PyTorch has it */
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

private:
    bool passed();
    bool blocks() const;
    void wait_on_host(std::chrono::milliseconds timeout);
    void complete(c10::ivalue::Future &future);

    const Place place_;
    const c10::Stream stream_; /* stream of the place */
    c10::Event end_;
    std::shared_ptr<Sends> sends_;
    bool blocks_ = false;
    bool copies_back_ = false; /* outputs are copied back behind the operation and before `end_` */
    bool captured_ = false;    /* into a CUDA graph: it runs later, if at all */
};

} // namespace torch_tutti
