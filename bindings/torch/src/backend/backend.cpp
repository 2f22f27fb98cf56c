/*
 * The life of a backend, and the common path of all operations. See backend.h.
 */
#include "backend.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "../base/interrupt.h"
#include "../base/memory.h"
#include "../base/python_lock.h"
#include "../operation/stream_work.h"
#include "aside.h"

namespace torch_tutti {

namespace {

/* The longest time that the end of a group waits for work in streams: operations that have returned are done in
 * time, and one that waits for a rank that never comes does not keep the process from ending. */
constexpr std::chrono::milliseconds finish_limit = std::chrono::seconds(10);
/* The longest time that the end of the process waits for abort hooks: PyTorch's recorder, which writes a file, has
 * the same limit. */
constexpr std::chrono::milliseconds hooks_limit = std::chrono::seconds(30);

tutti_comm_options comm_options(const Options &options, const std::string &name) {
    tutti_comm_options own = {};
    own.struct_bytes = sizeof own;
    own.timeout_ms = std::max<int64_t>(0, options.timeout.count()); /* PyTorch's "not set" is negative */
    own.connect_timeout_ms = own.timeout_ms;
    own.name = name.c_str();
    return own;
}

std::string name_of(const Options &options) {
    return !options.name.empty() ? options.name : !options.group_name.empty() ? options.group_name : "torch";
}

/* All backends and communicators, for the end of the process. */
struct Register {
    std::mutex mutex;
    std::set<Backend *> backends;
    std::set<tutti_comm *> comms;
    std::atomic<bool> closed{false}; /* set when the process ends */
};

Register &all() {
    static auto *made = new Register; /* outlives every backend */
    return *made;
}

/* Releases the GIL: threads that this thread waits for may need it to end. When Python ends, these threads have
 * ended. */
class Unlocked {
public:
    Unlocked() {
        if (!all().closed) unlocked_.emplace();
    }

private:
    std::optional<WithoutPythonLock> unlocked_;
};

/* The communicator is destroyed with the last reference: the group's, or that of an operation that was under way
 * when the group was dropped. */
std::shared_ptr<tutti_comm> share(tutti_comm *made) {
    {
        std::lock_guard<std::mutex> lock(all().mutex);
        all().comms.insert(made);
    }
    return {made, [](tutti_comm *comm) {
                Unlocked unlocked;
                {
                    std::lock_guard<std::mutex> lock(all().mutex);
                    all().comms.erase(comm);
                }
                tutti_comm_destroy(comm);
            }};
}

/* Distinguishes groups of one parent that are made at the same time. All members compute the same value. A counter
 * would not work: a rank does not know the groups that it is not in. (FNV-1a, 39 bits of it.) */
int64_t tag_of(const std::vector<int> &ranks) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * UINT64_C(0x100000001b3);
    return static_cast<int64_t>(hash >> 25);
}

/* The timeout extensions that apply to an operation that begins: they end with it, or here if it does not begin. */
class Extended {
public:
    explicit Extended(const std::shared_ptr<Extensions> &extensions)
        : extensions_(extensions), claim_(extensions->claim()) {}
    ~Extended() {
        if (!claim_.empty()) extensions_->end(claim_);
    }
    bool any() const {
        return !claim_.empty();
    }
    void until_end_of(Work &work) {
        if (claim_.empty()) return;
        work.on_end([extensions = extensions_, claim = std::move(claim_)](Work &) { extensions->end(claim); });
        claim_.clear();
    }

private:
    const std::shared_ptr<Extensions> &extensions_;
    Extensions::Claim claim_;
};

} // namespace

/* TUTTI_BLOCKING_WAIT decides, or where it is not set the variable of PyTorch's NCCL backend; the engine checks the
 * value of TUTTI_BLOCKING_WAIT. */
bool Options::blocks_by_default() {
    const char *own = std::getenv("TUTTI_BLOCKING_WAIT");
    if (own != nullptr && *own != '\0') return std::strcmp(own, "1") == 0;
    return c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT"}, false);
}

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
    : GlooShape(rank, size), store_(std::move(store)), options_(std::move(options)),
      timeout_ms_(options_->timeout.count()) {
    std::string name = name_of(*options_);
    tutti_comm *made = nullptr;
    tutti_status status = create_comm(store_, rank, size, comm_options(*options_, name), &made);
    if (status != TUTTI_OK)
        throw_status(status, tutti_last_error(), "wait timeout after " + std::to_string(timeout_ms_) + "ms");
    comm_ = share(made);
    begin();
}

Backend::Backend(Backend &parent, const std::vector<int> &ranks, int rank, c10::intrusive_ptr<Options> options)
    : GlooShape(rank, static_cast<int>(ranks.size())), store_(parent.store_), options_(std::move(options)),
      timeout_ms_(options_->timeout.count()) {
    std::string name = name_of(*options_);
    tutti_comm_options own = comm_options(*options_, name);
    tutti_comm *made = nullptr;
    check(tutti_comm_create_group(parent.comm(), ranks.data(), getSize(), tag_of(ranks), &own, &made));
    comm_ = share(made);
    begin();
}

void Backend::begin() {
    init();
    std::lock_guard<std::mutex> lock(all().mutex);
    all().backends.insert(this);
}

Backend::~Backend() {
    Unlocked unlocked;
    hooks_->expect_failures();
    {
        std::lock_guard<std::mutex> lock(all().mutex);
        all().backends.erase(this);
    }
    end_threads(/* breaks */ false);
    tutti_placement_destroy(anchor_);
    comm_.reset();
    /* A hook belongs to Python: once Python has ended, the hook is leaked. */
    if (all().closed) {
        (void)new auto(std::move(onCompletionHook_));
        (void)new auto(hooks_);
    }
}

void Backend::end_threads(bool breaks) {
    if (process_ != getpid()) {
        (void)aside_.release(); /* its thread is in the process that forked this one */
        return;
    }
    if (breaks) abort_because("the process ends");
    lanes_.finish(finish_limit);
    std::unique_ptr<Aside> aside; /* destroyed without the lock, which its thread may need before it ends */
    std::lock_guard<std::mutex> lock(aside_mutex_);
    aside = std::move(aside_);
}

/* A thread that requests the GIL while the interpreter ends is terminated at once, which C++ does not survive. So
 * running callbacks may finish; after a time limit, what they wait for is aborted. */
void shutdown_all() {
    Hooks::finish(hooks_limit);
    bool ended = stop_callbacks(std::chrono::seconds(1));
    std::lock_guard<std::mutex> lock(all().mutex);
    for (Backend *backend : all().backends) backend->end_threads(!ended);
    for (tutti_comm *comm : all().comms) /* also those of dropped groups */
        if (!ended) tutti_comm_abort(comm, "the process ends");
    if (!ended) stop_callbacks(std::chrono::seconds(5));
    all().closed = true;
}

std::chrono::milliseconds Backend::timeout_of(std::chrono::milliseconds asked) const {
    auto own = asked.count() > 0 ? asked : std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
    return own + extensions_->sum();
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
    timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
    options_->timeout = timeout;
}

void Backend::addEphemeralTimeout(const std::chrono::milliseconds &timeout) {
    extensions_->add(timeout);
}

/* The options that the engine gets for an operation. */
tutti_options Backend::options_of(const Call &call, tutti_memory memory) const {
    tutti_options options = {};
    options.struct_bytes = sizeof options;
    options.memory = memory;
    options.timeout_ms = timeout_of(call.timeout).count();
    options.factor = call.factor;
    return options;
}

/* The same for an operation that has a work. */
tutti_options Backend::begin_work(const Call &call, tutti_memory memory, Work &work) const {
    tutti_options options = options_of(call, memory);
    work.set_timeout(std::chrono::milliseconds(options.timeout_ms));
    work.set_timed(timed_.load(std::memory_order_relaxed));
    return options;
}

const char *Backend::titled(const char *title) const {
    if (options_->backend == "tutti" || !at::hasCallbacks()) return title;
    static std::mutex mutex;
    static auto *titles = new std::set<std::string>; /* elements of a set do not move */
    std::lock_guard<std::mutex> lock(mutex);
    return titles->insert(options_->backend + std::strchr(title, ':')).first->c_str();
}

/* The caller waits for the operation, and neither completion hooks nor the profiler observe it. Then PyTorch needs no
 * work, as with ProcessGroupNCCL. To create one, to wait for it in Python and to release it would take 0.5 us. */
Backend::WorkPtr Backend::run_here(const Call &call, Operands operands, const Issue &issue) {
    next_sequence();
    tutti_options options = options_of(call, TUTTI_MEMORY_HOST);
    Extended extended(extensions_);
    check_issued(issue(comm(), &options));
    operands.copy_back();
    return nullptr;
}

Backend::WorkPtr Backend::start_now(const Call &given, Operands operands, const Issue &issue) {
    Call call = given;
    call.title = titled(given.title);
    if (operands.device() && operands.device()->is_cuda()) return start_in_stream(call, std::move(operands), issue);
    bool watched = is_watched();
    if (watched) look_at_watched();
    if (waiters_need_no_work && !call.async && !gives_all_works_ && !observes_ends() && !at::hasCallbacks())
        return run_here(call, std::move(operands), issue);
    auto started = watched ? HookClock::now() : HookClock::time_point();
    auto work = c10::make_intrusive<Work>(getRank(), call.type, call.title, next_sequence(), std::move(operands));
    if (C10_UNLIKELY(flight_ != nullptr)) record(call, work->operands(), work->getCompletionKey());
    tutti_options options = begin_work(call, TUTTI_MEMORY_HOST, *work);
    if (call.async) options.work = work->handle();
    Extended extended(extensions_);
    check_issued(issue(comm(), &options));
    if (!call.async) work->end_here();
    else work->keep(comm_);
    extended.until_end_of(*work);
    if (C10_UNLIKELY(watched)) {
        watch(call, *work, started);
        if (call.async) remember(work);
    }
    return work;
}

/* A stream that is being captured into a CUDA graph takes no works: what is captured runs later, or never. The
 * engine rejects the call before it has done anything. */
tutti_status Backend::issue_in_stream(const Issue &issue, tutti_options options, tutti_work **handle) {
    options.work = handle;
    tutti_status status = issue(comm(), &options);
    if (status != TUTTI_ERR_UNSUPPORTED || handle == nullptr) return status;
    options.work = nullptr;
    return issue(comm(), &options);
}

Backend::WorkPtr Backend::start_in_stream(const Call &call, Operands operands, const Issue &issue) {
    c10::Device device = *operands.device();
    bool watched = is_watched();
    auto started = watched ? HookClock::now() : HookClock::time_point();
    Place place = lanes_.take(device, call.async, call.lane);
    c10::Stream stream = place.stream;
    for (const c10::Stream &leader : operands.leaders()) follow(stream, leader);
    auto work = c10::make_intrusive<StreamWork>(getRank(), call.type, call.title, next_sequence(), std::move(operands),
                                                std::move(place), lanes_.sends());
    if (C10_UNLIKELY(flight_ != nullptr)) record(call, work->operands(), work->getCompletionKey());
    tutti_options options = begin_work(call, TUTTI_MEMORY_CUDA, *work);
    options.stream = native_handle(stream);
    if (options_->blocking_wait) work->block_host();
    Extended extended(extensions_);
    bool tracked = call.async || options_->blocking_wait || watched || extended.any();
    check_issued(issue_in_stream(issue, options, tracked ? work->handle() : nullptr));
    work->enqueued();
    extended.until_end_of(*work);
    if (C10_UNLIKELY(watched)) watch(call, *work, started);
    return work;
}

/* ---------------------------------------------------------------------------------------------------- hooks */

void Backend::record_in(std::shared_ptr<Flight> flight) {
    flight_ = std::move(flight);
    std::weak_ptr<Flight> weak = flight_;
    constexpr int64_t own_hook = INT64_C(-1); /* numbers of users and of PyTorch are not negative */
    registerCompletionHook(own_hook, [weak](const CompletionHookArgs &told) {
        if (auto kept = weak.lock()) kept->ended(told.completionKey);
    });
}

Flight::Group Backend::flight_group(const std::string &suffix) const {
    Flight::Group group = {uid_of<c10d::Backend>(*this) + suffix, getGroupDesc(), options_->global_ranks_in_group,
                           getRank()};
    for (int rank = static_cast<int>(group.ranks.size()); rank < getSize(); rank++)
        group.ranks.push_back(static_cast<uint64_t>(rank)); /* PyTorch passes no ranks for the group of all ranks */
    return group;
}

/* The parts of a batch have entries, the batch has none. An operation without inputs of its own works in place. */
void Backend::record(const Call &call, const Operands &operands, uint64_t key) {
    using c10d::OpType;
    if (flight_ == nullptr || call.type == OpType::COALESCED || call.type == OpType::ALLREDUCE_COALESCED ||
        call.type == OpType::ALLGATHER_COALESCED)
        return;
    Flight::Operation operation;
    operation.is_message = c10d::isP2POp(call.type);
    operation.title = options_->backend + std::strchr(call.title, ':');
    if (operation.is_message) {
        int peer = Lanes::peer_of(call.lane);
        bool sends = call.type == OpType::SEND;
        operation.title = options_->backend + (sends ? ":send " : ":recv ") + std::to_string(getRank()) +
                          (sends ? "->" : "<-") + (peer < 0 ? "?" : std::to_string(peer));
    }
    operation.outputs = operands.results;
    operation.inputs = operands.inputs.empty() ? operands.results : operands.inputs;
    operation.timeout = timeout_of(call.timeout);
    flight_->begins(key, flight_group(), operation);
}

/* For a call that waits, or has not begun: if it has broken the group, abort hooks are called. */
void Backend::check_issued(tutti_status status) {
    if (C10_LIKELY(status == TUTTI_OK)) return;
    std::string text = tutti_last_error();
    if (hooks_->any() && tutti_comm_error(comm()) != TUTTI_OK) {
        look_at_watched();
        hooks_->failed();
    }
    throw_status(status, text);
}

/* An exception of the hook breaks the group, as it does for the hook without a number. */
void Backend::tell_of_part(const Work::End &end, uint64_t key) {
    if (!end.well) return hooks_->failed();
    try {
        bool timed = timed_.load(std::memory_order_relaxed);
        hooks_->completed(key, timed ? std::optional<float>(end.took.count()) : std::nullopt);
    } catch (const std::exception &error) {
        abort_because(std::string("a completion hook raised ") + error.what());
    }
}

void Backend::watch_part(Work &whole, uint64_t key) {
    if (!hooks_->any()) return;
    c10::weak_intrusive_ptr<Backend> weak(c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this));
    whole.on_known([weak, key](const Work::End &end) {
        if (auto self = weak.lock()) self->tell_of_part(end, key);
    });
}

void Backend::watch(const Call &call, Work &work, HookClock::time_point started) {
    if (!call.async) work.set_duration(HookClock::now() - started);
    if (onCompletionHook_)
        work.on_end([tell = hook_call(call.type, work.getSequencenumber(), started)](Work &) { tell(); });
    watch_part(work, work.getCompletionKey());
}

void Backend::remember(const c10::intrusive_ptr<Work> &work) {
    std::lock_guard<std::mutex> lock(watched_mutex_);
    watched_.emplace_back(work);
}

/* Checks works on the CPU that no thread has waited for so far, and reports the ended ones to hooks. */
void Backend::look_at_watched() {
    std::vector<c10::weak_intrusive_ptr<Work>> works, left;
    {
        std::lock_guard<std::mutex> lock(watched_mutex_);
        if (watched_.empty()) return;
        works.swap(watched_);
    }
    for (auto &weak : works) {
        auto work = weak.lock();
        if (work && !work->isCompleted()) left.push_back(weak);
    }
    std::lock_guard<std::mutex> lock(watched_mutex_);
    watched_.insert(watched_.end(), left.begin(), left.end());
}

void Backend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook) {
    TORCH_CHECK(onCompletionHook_ == nullptr, "tutti: this group already has a completion hook");
    onCompletionHook_ = std::move(hook);
}

/* Returns a function to call once the operation has ended. It does not keep this group alive: a dropped group ends
 * its operations, and then has no hook any more. */
std::function<void()> Backend::hook_call(c10d::OpType type, uint64_t sequence, HookClock::time_point started) {
    c10::weak_intrusive_ptr<Backend> weak(c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this));
    hooked_.fetch_add(1);
    return [weak, type, sequence, started] {
        if (auto self = weak.lock()) self->tell_hook(type, sequence, started);
    };
}

/* No caller can catch an exception of the hook: it breaks the group, and the next operation of the group reports
 * it. */
void Backend::tell_hook(c10d::OpType type, uint64_t sequence, HookClock::time_point started) {
    auto now = HookClock::now();
    try {
        onCompletionHook_(std::make_shared<c10d::WorkInfo>(type, sequence, started, now, now - started));
    } catch (const std::exception &error) {
        abort_because(std::string("its completion hook raised ") + error.what());
    }
    hooked_.fetch_sub(1);
}

void Backend::waitForPendingWorks() {
    while (process_ == getpid() && hooked_.load() > 0) {
        if (interrupted()) throw_pending_interrupt();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

/* -------------------------------------------------------------------------------------------------- groups */

static c10::intrusive_ptr<Options> child_options(const c10::intrusive_ptr<c10d::Backend::Options> &given,
                                                 const Options &parent) {
    auto own = c10::make_intrusive<Options>(parent);
    own->name.clear();
    own->group_name.clear();
    if (!given) return own;
    if (auto *ours = dynamic_cast<Options *>(given.get())) own = c10::make_intrusive<Options>(*ours);
    own->timeout = given->timeout;
    take_group(*own, *given);
    return own;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store> &, const std::vector<int> &ranks,
                                                 const c10::intrusive_ptr<c10d::Backend::Options> &options) {
    auto own = std::find(ranks.begin(), ranks.end(), getRank());
    if (own == ranks.end()) return nullptr;
    return part(ranks, static_cast<int>(own - ranks.begin()), child_options(options, *options_));
}

c10::intrusive_ptr<Backend> Backend::part(const std::vector<int> &ranks, int rank,
                                          c10::intrusive_ptr<Options> options) {
    return c10::make_intrusive<Backend>(*this, ranks, rank, std::move(options));
}

c10::intrusive_ptr<Backend> Backend::anew(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                          c10::intrusive_ptr<Options> options) {
    return c10::make_intrusive<Backend>(std::move(store), rank, size, std::move(options));
}

/* The members come from groups that do not know each other, so they meet in the store. */
c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const c10::intrusive_ptr<c10d::Backend::Options> &options,
                                                 const int &rank, const int &size) {
    return anew(store, rank, size, child_options(options, *options_));
}

c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t> &ranks_to_exclude, int,
                                                  const c10::intrusive_ptr<c10d::Backend::Options> &options) {
    int rank = 0, size = 0;
    for (int old = 0; old < getSize(); old++) {
        if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), old) != ranks_to_exclude.end()) continue;
        if (old == getRank()) rank = size;
        size++;
    }
    TUTTI_CHECK_VALUE(std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), getRank()) == ranks_to_exclude.end(),
                      "tutti: only ranks that remain may call shrink, and rank ", getRank(), " is excluded");
    /* This group may be broken: shrink is for that case. So the remaining ranks meet in the store again. */
    std::string prefix = "shrink/" + std::to_string(shrinks_.fetch_add(1));
    for (int64_t gone : ranks_to_exclude) prefix += "-" + std::to_string(gone);
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
    return anew(store, rank, size, child_options(options, *options_));
}

/* -------------------------------------------------------------------------------------------------- memory */

bool Backend::supportsTensorAlloc(c10::DeviceIndex device) {
    return options_->zero_copy && device < 0; /* -1: the CPU */
}

at::Tensor Backend::allocateTensor(long count, at::TensorOptions options) {
    TUTTI_CHECK_VALUE(options.device().is_cpu(), "tutti: allocate_tensor supports only CPU tensors, but ",
                      options.device(), " was requested");
    return empty_shared({count}, c10::typeMetaToScalarType(options.dtype()));
}

std::shared_ptr<c10::Allocator> Backend::getMemAllocator() {
    return {shared_allocator(), [](c10::Allocator *) {}};
}

/* -------------------------------------------------------------------------------------------------- errors */

std::string Backend::error_text() {
    return tutti_comm_error(comm()) == TUTTI_OK ? "" : tutti_last_error();
}

ErrorType Backend::getError() {
    switch (tutti_comm_error(comm())) {
    case TUTTI_OK: return ErrorType::SUCCESS;
    case TUTTI_ERR_TIMEOUT: return ErrorType::TIMEOUT;
    case TUTTI_ERR_PEER_DIED:
    case TUTTI_ERR_ABORTED: return ErrorType::REMOTE_ERROR;
    default: return ErrorType::COMM_ERROR;
    }
}

void Backend::abort_because(const std::string &reason) {
    {
        std::lock_guard<std::mutex> lock(aside_mutex_);
        if (aside_) aside_->abort(reason.c_str());
    }
    tutti_comm_abort(comm(), reason.c_str());
    std::lock_guard<std::mutex> lock(anchor_mutex_);
    if (anchor_ != nullptr) tutti_placement_abort(anchor_, reason.c_str());
}

void Backend::abort() {
    hooks_->expect_failures();
    abort_because("abort() was called");
}

/* The communicator is destroyed with the last reference to this backend: other threads may be inside calls. */
void Backend::shutdown() {
    if (process_ == getpid()) lanes_.finish(finish_limit);
}

} // namespace torch_tutti
