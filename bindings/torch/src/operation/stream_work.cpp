/*
 * The work of an operation on CUDA tensors. See stream_work.h.
 */
#include "stream_work.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>

#include "../base/interrupt.h"

namespace torch_tutti {

using c10::ivalue::Future;

StreamWork::StreamWork(int rank, c10d::OpType type, const char *title, uint64_t sequence, Operands operands,
                       Place place, std::shared_ptr<Sends> sends)
    : Work(rank, type, title, sequence, std::move(operands)), place_(std::move(place)), stream_(place_.stream),
      end_(stream_.device_type()), sends_(std::move(sends)) {}

/* Makes no query to CUDA (see the header). A failed work may have ended before its stream reached it. Memory that
 * is copied back was recorded when the copy was enqueued. At the end of a process PyTorch's allocator may be gone,
 * so errors are ignored. */
StreamWork::~StreamWork() {
    bool unused = handle_ != nullptr && tutti_work_done(handle_) && tutti_work_wait(handle_, 0) == TUTTI_OK;
    try {
        if (!unused) operands_.record_on(stream_);
    } catch (...) {}
    if (handle_ != nullptr && opType_ == c10d::OpType::SEND && !tutti_work_done(handle_)) sends_->keep(handle_);
    else tutti_work_free(handle_); /* the operation may continue */
    handle_ = nullptr;
}

void StreamWork::enqueued() {
    copies_back_ = operands_.has_copies();
    if (copies_back_) {
        c10::StreamGuard guard(stream_);
        operands_.record_on(stream_);
        operands_.copy_back();
    }
    end_.record(stream_);
    captured_ = handle_ == nullptr && is_capturing(stream_); /* the engine gives no handle for captured calls */
    if (operands_.leads_alone(stream_)) operands_.let_go();
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
}

/* The GPU has passed the operation, or never will. */
bool StreamWork::passed() {
    if (handle_ != nullptr) {
        if (!tutti_work_done(handle_)) return false;
        settle();
        if (exception() || !copies_back_) return true;
    }
    return captured_ || has_passed(end_);
}

void StreamWork::on_known(std::function<void(const End &)> call) {
    on_end([this, call = std::move(call)](Work &) { call(end()); });
}

bool StreamWork::isCompleted() {
    if (unbegun_ || !passed()) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    completed_ = true;
    return true;
}

void StreamWork::blockCurrentStream() {
    end_.block(current_stream(stream_.device()));
}

/* A captured operation has no handle: it runs later, if at all. */
bool StreamWork::blocks() const {
    return blocks_ && handle_ != nullptr;
}

void StreamWork::wait_on_host(std::chrono::milliseconds timeout) {
    auto until = std::chrono::steady_clock::time_point::max();
    if (timeout != kNoTimeout) until = std::chrono::steady_clock::now() + timeout;
    if (handle_ != nullptr) tutti_work_wait(handle_, timeout == kNoTimeout ? -1 : timeout.count());
    throw_pending_interrupt();
    if (!poll([this] { return isCompleted(); }, until)) throw_late(timeout);
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
    check_begun();
    c10::Stream current = current_stream(stream_.device());
    if (current != stream_) end_.block(current);
    /* The sender of a message from any source is known only at the end. */
    if (timeout != kNoTimeout || opType_ == c10d::OpType::RECVANYSOURCE || blocks()) wait_on_host(timeout);
    else if (handle_ != nullptr && tutti_work_done(handle_)) settle();
    std::lock_guard<std::mutex> lock(mutex_);
    if (exception_) std::rethrow_exception(exception_);
    if (operands_.leads_alone(current)) operands_.let_go();
    return true;
}

/* A future records the position of the current streams, and its waiters wait until the streams have reached it. So
 * the operation's own stream is made current, as ProcessGroupNCCL does. If the group has put another operation
 * behind this one, waiters would wait for that one as well, which may be a receive whose message depends on this
 * future: then a stream of PyTorch's pool, which waits only for the end of this operation, takes its place. */
void StreamWork::complete(Future &future) {
    if (auto failed = exception()) return future.setError(failed);
    bool own = captured_ || place_.is_last();
    c10::impl::VirtualGuardImpl device(stream_.device_type());
    c10::Stream behind = own ? stream_ : device.getStreamFromGlobalPool(stream_.device());
    c10::StreamGuard guard(behind);
    if (!own) end_.block(behind);
    future.markCompleted(future_value());
}

c10::intrusive_ptr<Future> StreamWork::getFuture() {
    check_begun();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (future_) return future_;
        future_ = c10::make_intrusive<Future>(future_type(), std::vector<c10::Device>{stream_.device()});
    }
    if (blocks()) {
        on_end([this](Work &) { complete(*future_); });
    } else {
        if (handle_ != nullptr && tutti_work_done(handle_)) settle();
        complete(*future_);
    }
    return future_;
}

} // namespace torch_tutti
