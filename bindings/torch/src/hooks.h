/*
 * Hooks that PyTorch registers by number (from 2.14 on): some hear of operations that have ended well, others are called once
 * when the group breaks. PyTorch's flight recorder and its health check are such hooks.
 *
 * A hook runs without a lock of ours held: it may wait for others that want it, and hooks unregister themselves. Those of a
 * failure run on a thread of their own, since the flight recorder's may take seconds: an error waits for them a moment only, and
 * the end of the process until they are done.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "versions.h"

namespace torch_tutti {

/* A number that no other operation of the process has, nor will have. */
uint64_t new_completion_key();

class Hooks {
public:
    void add(int64_t id, AbortHook hook);
    void add(int64_t id, CompletionHook hook);
    void remove_abort(int64_t id);
    void remove_completion(int64_t id);

    /* Is there any? Operations that begin now are watched then. */
    bool any() const {
        return registered_.load(std::memory_order_relaxed) > 0;
    }
    /* That operation has ended well, after so long if that is known. What a hook raises comes out here. */
    void completed(uint64_t key, std::optional<float> ms);
    /* The group breaks. What a hook raises is a warning. Only the first call does anything. */
    void failed() noexcept;
    /* The user ends the group: errors from now on do not count as failures. */
    void expect_failures() {
        told_.store(true, std::memory_order_relaxed);
    }
    /* The process ends: no hook of a failure begins any more. Waits so long for those that run. */
    static void finish(std::chrono::milliseconds limit);

private:
    /* Shared, for to copy a hook of Python's, or to let go of one, takes Python's lock, for which a thread may wait that wants
     * ours. */
    template <typename Hook> using Table = std::map<int64_t, std::shared_ptr<const Hook>>;
    template <typename Hook> void put(Table<Hook> &table, int64_t id, std::shared_ptr<const Hook> hook);
    template <typename Hook> std::vector<std::shared_ptr<const Hook>> all_of(const Table<Hook> &table);

    std::mutex mutex_;
    Table<AbortHook> abort_;
    Table<CompletionHook> completion_;
    std::atomic<size_t> registered_{0};
    std::atomic<bool> told_{false};
};

} // namespace torch_tutti
