/*
 * Operations of several steps, of which a later one depends on what an earlier one brought (sparse tensors: first the
 * sizes, then the data). They run one after another on a thread of their own, over a communicator of their own, so that
 * their steps do not come between other operations. Thread and communicator are made by the first such operation.
 */
#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include "backend.h"

namespace torch_tutti {

class Aside {
public:
    using Body = std::function<void(tutti_comm *)>;
    using Ended = std::function<void(c10d::Work &, uint64_t key)>;

    explicit Aside(Backend &backend);
    /* What has not begun fails; what runs is aborted. */
    ~Aside();

    /* Runs the body after those before it, then `ended`, if any, with the key that hooks know it by; a failure is thrown by
     * the work. */
    Backend::WorkPtr add(c10d::OpType type, const char *title, Backend::Tensors tensors, Body body, Ended ended);
    /* What runs fails now; from any thread. */
    void abort(const char *reason);

private:
    class Task;
    void run();
    tutti_comm *comm();

    Backend &backend_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<c10::intrusive_ptr<Task>> tasks_;
    bool closed_ = false, busy_ = false;
    tutti_comm *comm_ = nullptr; /* set under the lock, by the thread */
    std::thread thread_;
};

} // namespace torch_tutti
