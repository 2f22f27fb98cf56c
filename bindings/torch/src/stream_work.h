/*
 * The work of an operation on CUDA tensors. It is done in stream order, as ProcessGroupNCCL's works are:
 *
 *   wait()          the calling thread's current stream waits; the host does not, unless a timeout is given or the message's
 *                   sender is asked for
 *   getFuture()     is complete at once; whoever waits for it, or has a callback, has a current stream that waits
 *   isCompleted()   the GPU is behind it
 *
 * A failure is known to the host only later: it breaks the group, whose next operation tells it; a work tells it if it is
 * known when it is asked, and always to who waits on the host. In a group that blocks (Options::blocking_wait) the host always
 * waits: wait() returns, and a future is complete, when the GPU is behind the operation, or it has failed.
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
    /* The operation is in the stream. Once, by who put it there. */
    void enqueued();

    /* Nobody need wait for it on the host: so the engine tells. */
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
