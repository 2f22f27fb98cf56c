/*
 * Operations of several steps. See aside.h.
 */
#include "aside.h"

#include <numeric>

#include "../base/interrupt.h"

namespace torch_tutti {

/* A tag that no other group made from the same ranks has. */
static constexpr int64_t aside_tag = INT64_C(1) << 40;

class Aside::Task final : public c10d::Work {
public:
    Task(int rank, c10d::OpType type, const char *title, Backend::Tensors tensors, Body body, Ended ended)
        : c10d::Work(rank, type, title, tensors), tensors_(std::move(tensors)), body_(std::move(body)),
          ended_(std::move(ended)),
          future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}
    std::vector<at::Tensor> result() override {
        return tensors_;
    }
    void synchronize() override {
        wait(kNoTimeout);
    }
    bool wait(std::chrono::milliseconds timeout) override {
        auto until = std::chrono::steady_clock::now() + timeout;
        std::unique_lock<std::mutex> lock(mutex_);
        while (!cv_.wait_for(lock, std::chrono::milliseconds(100), [this] { return completed_; })) {
            if (interrupted()) throw_pending_interrupt();
            TORCH_CHECK_WITH(DistBackendError, timeout == kNoTimeout || std::chrono::steady_clock::now() < until,
                             "tutti: Operation timed out! It has not ended within ", timeout.count(),
                             " ms; it goes on");
        }
        if (exception_) std::rethrow_exception(exception_);
        return true;
    }
    uint64_t getCompletionKey() const { /* overrides where PyTorch has it (2.15) */
        return key_;
    }
    void abort() override {
        TORCH_CHECK(false, "tutti: one operation cannot be aborted, only its group (group.abort())");
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        return future_;
    }
    void run(tutti_comm *comm) {
        try {
            body_(comm);
        } catch (...) {
            return fail(std::current_exception());
        }
        finish();
        future_->markCompleted(c10::IValue(tensors_));
        if (ended_) ended_(*this, key_);
    }
    void fail(std::exception_ptr error) {
        finish(error);
        future_->setError(error);
        if (ended_) ended_(*this, key_);
    }

private:
    Backend::Tensors tensors_;
    Body body_;
    Ended ended_;
    const uint64_t key_ = new_completion_key();
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Aside::Aside(Backend &backend) : backend_(backend), thread_([this] { run(); }) {}

Backend::WorkPtr Aside::add(c10d::OpType type, const char *title, Backend::Tensors tensors, Body body, Ended ended) {
    auto task = c10::make_intrusive<Task>(backend_.getRank(), type, title, std::move(tensors), std::move(body),
                                          std::move(ended));
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(task);
    wake_.notify_one();
    return task;
}

tutti_comm *Aside::comm() {
    if (comm_ != nullptr) return comm_;
    std::vector<int> all(static_cast<size_t>(backend_.getSize()));
    std::iota(all.begin(), all.end(), 0);
    tutti_comm *made = nullptr;
    check(tutti_comm_create_group(backend_.comm(), all.data(), backend_.getSize(), aside_tag, nullptr, &made));
    std::lock_guard<std::mutex> lock(mutex_);
    return comm_ = made;
}

void Aside::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        bool closed = closed_;
        busy_ = true;
        lock.unlock();
        try {
            TORCH_CHECK(!closed, "tutti: the group was destroyed before the operation ran");
            task->run(comm());
        } catch (...) {
            task->fail(std::current_exception());
        }
        task.reset();
        lock.lock();
        busy_ = false;
    }
}

void Aside::abort(const char *reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ != nullptr) tutti_comm_abort(comm_, reason);
}

Aside::~Aside() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
        if (busy_) tutti_comm_abort(comm_ != nullptr ? comm_ : backend_.comm(), "the group was destroyed");
        wake_.notify_one();
    }
    thread_.join();
    tutti_comm_destroy(comm_);
}

} // namespace torch_tutti
