/*
 * Hooks that PyTorch registers by number (from 2.14 on): completion hooks are called for operations that have ended
 * without an error, abort hooks are called once when the group breaks. PyTorch's flight recorder and its health
 * check are such hooks.
 *
 * A hook runs while no lock of this file is held: it may wait for threads that need the lock, and hooks unregister
 * themselves. Abort hooks run on a thread of their own, since the flight recorder's may take seconds: an error
 * waits for them only briefly, the end of the process waits until they are done.
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

/* Returns a number that is unique among all operations of the process. */
uint64_t new_completion_key();

class Hooks {
public:
    void add(int64_t id, AbortHook hook);
    void add(int64_t id, CompletionHook hook);
    void remove_abort(int64_t id);
    void remove_completion(int64_t id);

    /* True when there are hooks. Operations that begin then are watched. */
    bool any() const {
        return registered_.load(std::memory_order_relaxed) > 0;
    }
    /* True when there are completion hooks: each operation needs a work then, which they identify by its key. From
     * 2.15 on, each group has an abort hook (PyTorch's health check), which needs no works. */
    bool any_for_completion() const {
        return for_completion_.load(std::memory_order_relaxed) > 0;
    }
    /* The operation has ended without an error; ms: its duration, if known. Exceptions of hooks propagate. */
    void completed(uint64_t key, std::optional<float> ms);
    /* The group breaks. Exceptions of hooks become warnings. Only the first call has an effect. */
    void failed() noexcept;
    /* The user ends the group: errors from now on do not count as failures. */
    void expect_failures() {
        told_.store(true, std::memory_order_relaxed);
    }
    /* The process ends: no abort hook begins after this. Waits up to `limit` for the running ones. */
    static void finish(std::chrono::milliseconds limit);

private:
    /* Shared, since copying or releasing a hook of Python takes the GIL, and a thread may hold the GIL while it
     * waits for this lock. */
    template <typename Hook> using Table = std::map<int64_t, std::shared_ptr<const Hook>>;
    template <typename Hook> void put(Table<Hook> &table, int64_t id, std::shared_ptr<const Hook> hook);
    template <typename Hook> std::vector<std::shared_ptr<const Hook>> all_of(const Table<Hook> &table);

    std::mutex mutex_;
    Table<AbortHook> abort_;
    Table<CompletionHook> completion_;
    std::atomic<size_t> registered_{0}, for_completion_{0};
    std::atomic<bool> told_{false};
};

} // namespace torch_tutti
