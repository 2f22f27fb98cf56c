/*
 * The work of an operation on CUDA tensors. It is done in stream order, as ProcessGroupNCCL's works are:
 *
 *   wait()          the calling thread's current stream waits; the host does not, unless a timeout is given or the message's
 *                   sender is asked for
 *   getFuture()     is complete at once; the current stream of a waiter or a callback waits
 *   isCompleted()   the GPU is behind it
 *
 * A failure is known to the host only later: it breaks the group, whose next operation reports it; a work reports it if
 * it is known when a caller asks, and always to a caller that waits on the host. In a group that blocks
 * (Options::blocking_wait) the host always waits: wait() returns, and a future is complete, when the GPU is behind the
 * operation, or it has failed.
 *
 * Tensors are kept until the streams in which they were given wait for the operation. A work that goes before tells
 * PyTorch's allocator in which stream they are in use.
 */
#pragma once

#include <c10/core/Event.h>

#include "lanes.h"
#include "work.h"

namespace torch_tutti {

class StreamWork final : public Work {
public:
    StreamWork(int rank, c10d::OpType type, const char *title, uint64_t sequence, Operands operands, c10::Stream stream,
               std::shared_ptr<Sends> sends);
    ~StreamWork() override;

    /* The host waits as well. Before the operation begins. */
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

    c10::Stream stream_;
    c10::Event end_;
    std::shared_ptr<Sends> sends_;
    bool blocks_ = false;
};

} // namespace torch_tutti
