/*
 * Temporary extensions of the timeouts of a group's operations: each lasts from the call of addEphemeralTimeout
 * until the first operation that began after the call has ended. Operations that began before keep their timeout;
 * several extensions add up.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

namespace torch_tutti {

class Extensions {
public:
    /* The extensions that end with one operation. */
    using Claim = std::vector<uint64_t>;

    void add(std::chrono::milliseconds more) {
        std::lock_guard<std::mutex> lock(mutex_);
        list_.push_back({++last_, more, false});
        sum_ms_.fetch_add(more.count(), std::memory_order_relaxed);
    }
    /* The extension for an operation that begins now. */
    std::chrono::milliseconds sum() const {
        return std::chrono::milliseconds(sum_ms_.load(std::memory_order_relaxed));
    }
    /* Called when an operation begins; it returns the claim when it has ended. */
    Claim claim() {
        Claim own;
        if (sum().count() == 0) return own;
        std::lock_guard<std::mutex> lock(mutex_);
        for (One &one : list_) {
            if (!one.claimed) own.push_back(one.id);
            one.claimed = true;
        }
        return own;
    }
    void end(const Claim &claim) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto ends = [&](const One &one) { return std::find(claim.begin(), claim.end(), one.id) != claim.end(); };
        for (const One &one : list_)
            if (ends(one)) sum_ms_.fetch_sub(one.more.count(), std::memory_order_relaxed);
        list_.erase(std::remove_if(list_.begin(), list_.end(), ends), list_.end());
    }

private:
    struct One {
        uint64_t id;
        std::chrono::milliseconds more;
        bool claimed;
    };
    std::mutex mutex_;
    std::vector<One> list_;
    uint64_t last_ = 0;
    std::atomic<int64_t> sum_ms_{0};
};

} // namespace torch_tutti
