/*
 * c10d's Work over tutti_work. See work.h.
 */
#include "work.h"

#include <ATen/record_function.h>

#include <atomic>
#include <thread>

#include "../base/interrupt.h"
#include "../base/versions.h"

namespace torch_tutti {

namespace {

std::atomic<bool> stopped{false};
std::atomic<bool> with_gloos_words{false};
std::atomic<int> callbacks_running{0};

using c10::ivalue::Future;

/* A running callback. When the process ends a callback must not touch tensors: releasing one may need the GIL, and
 * requesting the GIL then ends the thread. So the tensors of a callback that comes too late are leaked. */
class Callback {
public:
    Callback() {
        callbacks_running.fetch_add(1);
    }
    ~Callback() {
        callbacks_running.fetch_sub(1);
    }
    bool too_late() const {
        return stopped.load();
    }
};

/* Keeps the operands of a dropped work until the engine no longer uses them. */
struct Legacy {
    Operands operands;
    std::function<void()> end_event;
    std::vector<std::function<void(const Work::End &)>> known;
    tutti_work *handle;
    std::shared_ptr<tutti_comm> comm; /* last member: the operation's handle is destroyed first */
};

std::chrono::duration<float, std::milli> duration_of(tutti_work *handle) {
    tutti_work_details details;
    if (tutti_work_get(handle, &details) != TUTTI_OK) return {};
    return std::chrono::nanoseconds(details.end_ns - details.start_ns);
}

void legacy_ended(tutti_status status, void *context) {
    Callback callback;
    if (callback.too_late()) return;
    std::unique_ptr<Legacy> legacy(static_cast<Legacy *>(context));
    if (status == TUTTI_OK) legacy->operands.copy_back();
    if (legacy->end_event) legacy->end_event();
    for (auto &call : legacy->known) call({status == TUTTI_OK, duration_of(legacy->handle)});
    tutti_work_free(legacy->handle);
}

std::string gloos_words(tutti_status status, const std::string &when_late) {
    if (!with_gloos_words.load()) return "";
    switch (status) {
    case TUTTI_ERR_PEER_DIED:
    case TUTTI_ERR_BROKEN:
    case TUTTI_ERR_ABORTED: return " (Gloo: Connection closed by peer)";
    case TUTTI_ERR_TIMEOUT: return " (Gloo: " + when_late + ")";
    default: return "";
    }
}

} // namespace

void throw_status(tutti_status status, const std::string &text, const std::string &gloo_when_late) {
    throw_pending_interrupt();
    TUTTI_CHECK_VALUE(status != TUTTI_ERR_ARGUMENT, "tutti: ", text);
    TORCH_CHECK_WITH(DistBackendError, false, "tutti: ", tutti_status_name(status), " - ", text,
                     gloos_words(status, gloo_when_late));
}

void add_gloos_words() {
    with_gloos_words.store(true);
}

bool stop_callbacks(std::chrono::milliseconds limit) {
    stopped.store(true);
    for (auto left = limit; left.count() > 0 && callbacks_running.load() > 0; left--)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return callbacks_running.load() == 0;
}

Work::Work(int rank, c10d::OpType type, const char *title, uint64_t sequence, Operands operands)
    : c10d::Work(rank, type, at::hasCallbacks() ? title : nullptr,
                 operands.inputs.empty() ? operands.results : operands.inputs),
      operands_(std::move(operands)), sequence_(sequence), key_(new_completion_key()) {}

Work::~Work() {
    if (handle_ == nullptr) return;
    if (completed_ || tutti_work_done(handle_)) {
        settle();
        tutti_work_free(handle_);
        return;
    }
    auto legacy = std::make_unique<Legacy>(
        Legacy{std::move(operands_), std::move(recordFunctionEndCallback_), std::move(known_), handle_, comm_});
    if (tutti_work_on_done(handle_, legacy_ended, legacy.get()) == TUTTI_OK) legacy.release();
}

void Work::end_here() {
    operands_.copy_back();
    status_ = TUTTI_OK;
    completed_ = true;
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

/* The exception that a failed operation throws in its waiter. */
static std::exception_ptr failure(tutti_status status, const char *text) {
    try {
        throw_status(status, text);
    } catch (...) {
        return std::current_exception();
    }
}

void Work::settle() {
    std::vector<std::function<void(const End &)>> calls;
    std::unique_lock<std::mutex> lock(mutex_);
    if (completed_) return;
    status_ = tutti_work_wait(handle_, 0);
    if (status_ == TUTTI_OK) operands_.copy_back();
    else exception_ = failure(status_, tutti_work_error(handle_));
    completed_ = true;
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
    calls.swap(known_);
    auto comm = std::move(comm_); /* destroyed without the lock */
    lock.unlock();
    for (auto &call : calls) call(end());
}

Work::End Work::end() const {
    return {exception() == nullptr, handle_ == nullptr ? took_ : duration_of(handle_)};
}

void Work::on_known(std::function<void(const End &)> call) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (handle_ != nullptr && !completed_) return known_.push_back(std::move(call));
    }
    call(end());
}

bool Work::isCompleted() {
    if (handle_ == nullptr) return !unbegun_;
    if (!tutti_work_done(handle_)) return false;
    settle();
    return true;
}

bool Work::isSuccess() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return completed_ && exception_ == nullptr;
}

std::exception_ptr Work::exception() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return exception_;
}

int Work::sourceRank() const {
    tutti_work_details details;
    if (handle_ == nullptr || tutti_work_get(handle_, &details) != TUTTI_OK) return -1;
    return details.source;
}

std::vector<at::Tensor> Work::result() {
    return operands_.results;
}

void Work::synchronize() {
    wait(kNoTimeout);
}

void Work::check_begun() const {
    TORCH_CHECK(!unbegun_, "tutti: this operation belongs to a batch that has not begun: wait for the work that the "
                           "coalescing manager returns");
}

void Work::throw_late(std::chrono::milliseconds timeout) const {
    TORCH_CHECK_WITH(DistBackendError, false, "tutti: Operation timed out! ", c10d::opTypeToString(opType_),
                     " has not ended within ", timeout.count(), " ms; it goes on");
}

bool Work::wait(std::chrono::milliseconds timeout) {
    check_begun();
    if (handle_ == nullptr) return true;
    tutti_work_wait(handle_, timeout == kNoTimeout ? -1 : timeout.count());
    throw_pending_interrupt();
    if (!tutti_work_done(handle_)) throw_late(timeout);
    settle();
    if (exception_) std::rethrow_exception(exception_);
    return true;
}

void Work::abort() {
    TORCH_CHECK(false, "tutti: one operation cannot be aborted, only its group (group.abort())");
}

float Work::getDuration() const {
    TORCH_CHECK(timed_,
                "tutti: durations are known only for operations that began after group._enable_collectives_timing()");
    return (handle_ == nullptr ? took_ : duration_of(handle_)).count();
}

uint64_t Work::getSequencenumber() const {
    return sequence_;
}

/* -------------------------------------------------------------------------------------- after the end */

void Work::ended(tutti_status, void *self) {
    Callback callback;
    if (callback.too_late()) return;
    auto work = c10::intrusive_ptr<Work>::reclaim(static_cast<Work *>(self));
    work->settle();
    std::vector<std::function<void(Work &)>> calls;
    {
        std::lock_guard<std::mutex> lock(work->mutex_);
        work->told_ = true;
        calls.swap(work->calls_);
    }
    for (auto &call : calls) call(*work);
    calls.clear();
    work.reset();
}

void Work::on_end(std::function<void(Work &)> call) {
    check_begun();
    if (handle_ == nullptr) return call(*this);
    bool watch = false, now = false;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        now = told_ || (calls_.empty() && !watched_ && (completed_ || tutti_work_done(handle_)));
        if (!now) {
            calls_.push_back(std::move(call));
            watch = !watched_;
            watched_ = true;
        }
    }
    if (now) {
        settle();
        call(*this);
    } else if (watch) {
        /* The engine's reference keeps this work alive until `ended` takes it back. */
        auto self = c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this);
        check(tutti_work_on_done(handle_, ended, self.release()));
    }
}

c10::TypePtr Work::future_type() const {
    auto tensors = c10::ListType::create(c10::TensorType::get());
    return operands_.result_lists.size() > 1 ? c10::ListType::create(tensors) : tensors;
}

c10::IValue Work::future_value() const {
    return operands_.result_lists.size() > 1 ? c10::IValue(operands_.result_lists) : c10::IValue(operands_.results);
}

c10::intrusive_ptr<Future> Work::getFuture() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (future_) return future_;
        future_ = c10::make_intrusive<Future>(future_type());
    }
    on_end([future = future_](Work &work) {
        if (work.exception_) future->setError(work.exception_);
        else future->markCompleted(work.future_value());
    });
    return future_;
}

c10::intrusive_ptr<Future> Work::getFutureResult() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (future_result_) return future_result_;
        future_result_ = c10::make_intrusive<Future>(c10::AnyEnumType::get());
    }
    on_end([future = future_result_](Work &work) {
        WorkResult result = !work.exception_                    ? WorkResult::SUCCESS
                            : work.status_ == TUTTI_ERR_TIMEOUT ? WorkResult::TIMEOUT
                                                                : WorkResult::COMM_ERROR;
        future->markCompleted(c10::IValue(static_cast<uint8_t>(result)));
    });
    return future_result_;
}

} // namespace torch_tutti
