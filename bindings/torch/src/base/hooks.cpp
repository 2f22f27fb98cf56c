/*
 * Hooks that PyTorch registers by number. See hooks.h.
 */
#include "hooks.h"

#include <condition_variable>
#include <cstdio>
#include <thread>

namespace torch_tutti {

uint64_t new_completion_key() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/* Sets the hook, or removes the present one if `hook` is null. The old hook is destroyed after the lock is
 * released. */
template <typename Hook> void Hooks::put(Table<Hook> &table, int64_t id, std::shared_ptr<const Hook> hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(table[id], hook);
    if (!table[id]) table.erase(id);
    for_completion_.store(completion_.size(), std::memory_order_relaxed);
    registered_.store(abort_.size() + completion_.size(), std::memory_order_relaxed);
}

void Hooks::add(int64_t id, AbortHook hook) {
    put(abort_, id, std::make_shared<const AbortHook>(std::move(hook)));
}

void Hooks::add(int64_t id, CompletionHook hook) {
    put(completion_, id, std::make_shared<const CompletionHook>(std::move(hook)));
}

void Hooks::remove_abort(int64_t id) {
    put<AbortHook>(abort_, id, nullptr);
}

void Hooks::remove_completion(int64_t id) {
    put<CompletionHook>(completion_, id, nullptr);
}

template <typename Hook> std::vector<std::shared_ptr<const Hook>> Hooks::all_of(const Table<Hook> &table) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<const Hook>> found;
    for (const auto &hook : table) found.push_back(hook.second);
    return found;
}

void Hooks::completed(uint64_t key, std::optional<float> ms) {
    CompletionHookArgs told;
    told.completionKey = key;
    told.duration_ms = ms;
    for (const auto &hook : all_of(completion_)) (*hook)(told);
}

namespace {

/* The longest time that an error waits for the abort hooks: long enough for hooks that only record something. */
constexpr std::chrono::milliseconds moment{100};

/* Threads that run abort hooks. */
struct Callers {
    std::mutex mutex;
    std::condition_variable ended;
    int running = 0;
    bool closed = false;
};

Callers &callers() {
    static auto *made = new Callers; /* threads outlive statics */
    return *made;
}

void call_all(const std::vector<std::shared_ptr<const AbortHook>> &hooks) noexcept {
    for (const auto &hook : hooks) {
        try {
            (*hook)();
        } catch (const std::exception &error) {
            std::fprintf(stderr, "tutti: an abort hook raised %s\n", error.what());
        } catch (...) {
            std::fprintf(stderr, "tutti: an abort hook threw something other than a std::exception\n");
        }
    }
}

} // namespace

void Hooks::failed() noexcept {
    if (told_.exchange(true, std::memory_order_relaxed)) return;
    try {
        auto hooks = all_of(abort_);
        if (hooks.empty()) return;
        std::unique_lock<std::mutex> lock(callers().mutex);
        if (callers().closed) return;
        auto done = std::make_shared<bool>(false); /* guarded by the lock */
        std::thread([hooks = std::move(hooks), done]() mutable {
            call_all(hooks);
            hooks.clear(); /* hooks of Python must be destroyed before Python ends */
            std::lock_guard<std::mutex> ends(callers().mutex);
            callers().running--;
            *done = true;
            callers().ended.notify_all();
        }).detach();
        callers().running++;
        callers().ended.wait_for(lock, moment, [&] { return *done; });
    } catch (const std::exception &error) { /* no memory or no thread: the error under way is more informative */
        std::fprintf(stderr, "tutti: abort hooks were not called: %s\n", error.what());
    }
}

void Hooks::finish(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(callers().mutex);
    callers().closed = true;
    callers().ended.wait_for(lock, limit, [] { return callers().running == 0; });
}

} // namespace torch_tutti
