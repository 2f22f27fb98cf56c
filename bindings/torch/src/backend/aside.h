/*
 * Operations of several steps, where later steps depend on the results of earlier ones (sparse tensors: first the
 * sizes, then the data). They run one after another on a thread of their own, over a communicator of their own, so
 * that their steps do not come between other operations. The first such operation creates the thread and the
 * communicator.
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
    /* Operations that have not begun fail; the running one is aborted. */
    ~Aside();

    /* Runs the body after those added before it, then `ended`, if given, with the key by which hooks know the
     * operation. The work throws the error of a failure. */
    Backend::WorkPtr add(c10d::OpType type, const char *title, Backend::Tensors tensors, Body body, Ended ended);
    /* Makes the running operation fail now. Any thread may call it. */
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
