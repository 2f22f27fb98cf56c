/*
 * c10d's Work over tutti_work.
 *
 * The engine ends an operation; `settle` then does the rest, once: it copies outputs back, stores the error, and
 * ends the profiler's event. The first thread that sees the end does it: a waiter, a poller, or the callback that a
 * future asked for. A Work that is dropped while its operation runs leaves its operands to such a callback.
 *
 * Operations on CUDA tensors have a class of their own: stream_work.h.
 */
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "../base/hooks.h"
#include "operands.h"

namespace torch_tutti {

/* Throws the Python error for a failed call: ArgumentError for a wrong argument, else DistBackendError. */
[[noreturn]] void throw_status(tutti_status status, const std::string &text,
                               const std::string &gloo_when_late = "Timed out waiting");
/* From now on such errors end with Gloo's text for the same case: programs look for that text to tell lost ranks
 * from bugs. */
void add_gloos_words();
inline void check(tutti_status status) {
    if (C10_UNLIKELY(status != TUTTI_OK)) throw_status(status, tutti_last_error());
}

class Work : public c10d::Work {
public:
    /* `title` ("tutti:all_reduce") names the event in the profiler. */
    Work(int rank, c10d::OpType type, const char *title, uint64_t sequence, Operands operands);
    ~Work() override;

    /* Where the engine stores the handle of an asynchronous operation. */
    tutti_work **handle() {
        return &handle_;
    }
    /* Keeps the communicator until the operation has ended: the group may be dropped earlier. */
    void keep(std::shared_ptr<tutti_comm> comm) {
        comm_ = std::move(comm);
    }
    const Operands &operands() const {
        return operands_;
    }
    /* The operation has ended without an error on the calling thread. */
    void end_here();
    /* Part of a batch that has not begun: it cannot be waited for. */
    void mark_unbegun() {
        unbegun_ = true;
    }

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout) override;
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override;
    std::chrono::milliseconds getTimeout() const { /* overrides where PyTorch has it */
        return timeout_;
    }
    /* Unique among the operations of the process: a hook may be called for the end after the work is destroyed. */
    uint64_t getCompletionKey() const { /* overrides where PyTorch has it (2.15) */
        return key_;
    }
    void set_timeout(std::chrono::milliseconds timeout) {
        timeout_ = timeout;
    }
    void set_timed(bool timed) {
        timed_ = timed;
    }
    /* The duration of an operation that ended before the call returned. */
    void set_duration(std::chrono::duration<float, std::milli> took) {
        took_ = took;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult(); /* overrides where PyTorch has it (2.6) */

    struct End {
        bool well;
        std::chrono::duration<float, std::milli> took;
    };
    /* Calls once it is known that the operation has ended: on the thread that waits, asks or drops the work. No thread
     * of the engine's is woken up for it, unless the last owner has dropped the work. */
    virtual void on_known(std::function<void(const End &)> call);

    /* Calls once the operation has ended, on the engine's pool of threads, or at once if it has ended already. */
    void on_end(std::function<void(Work &)> call);

protected:
    void settle();
    End end() const;
    void check_begun() const;
    /* The type of the future's value, and the value. */
    c10::TypePtr future_type() const;
    c10::IValue future_value() const;
    [[noreturn]] void throw_late(std::chrono::milliseconds timeout) const;

    tutti_work *handle_ = nullptr; /* null: it ended before the call returned, or has not begun */
    Operands operands_;
    bool unbegun_ = false;
    /* Guarded by mutex_ of the base. */
    tutti_status status_ = TUTTI_NOT_YET;
    std::shared_ptr<tutti_comm> comm_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;

private:
    static void ended(tutti_status status, void *self);

    uint64_t sequence_;
    const uint64_t key_;
    std::chrono::milliseconds timeout_{0};
    std::chrono::duration<float, std::milli> took_{0};
    bool timed_ = false;
    /* The rest is guarded by the base's mutex_. watched_: the engine will call `ended`; told_: it has. */
    bool watched_ = false, told_ = false;
    std::vector<std::function<void(Work &)>> calls_;
    std::vector<std::function<void(const End &)>> known_;
    c10::intrusive_ptr<c10::ivalue::Future> future_result_;
};

/* The process ends: callbacks do nothing from now on. Waits up to `limit` for the running ones; true when none is
 * left. */
bool stop_callbacks(std::chrono::milliseconds limit);

} // namespace torch_tutti
