/*
 * The rendezvous of a communicator in the Store that PyTorch hands over.
 *
 * A blocking get would hold the client's lock, and make other threads' sets wait, maybe for the very key that somebody
 * else waits for: so a key is looked for, with growing pauses, before it is fetched.
 */
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstring>
#include <thread>

#include "backend.h"
#include "interrupt.h"

namespace torch_tutti {

namespace {

using namespace std::chrono_literals;

c10d::Store &store_of(void *context) {
    return *static_cast<c10d::Store *>(context);
}

/* What the store throws becomes a status with its text. */
template <typename Body> tutti_status guarded(const char *verb, const char *key, Body body) {
    try {
        return body();
    } catch (const std::exception &error) {
        return tutti_fail(TUTTI_ERR_SYSTEM, "the store that PyTorch handed over failed to %s \"%s\": %s", verb, key,
                          error.what());
    }
}

tutti_status set(void *context, const char *key, const void *value, size_t bytes) {
    return guarded("set", key, [&] {
        const auto *first = static_cast<const uint8_t *>(value);
        store_of(context).set(key, std::vector<uint8_t>(first, first + bytes));
        return TUTTI_OK;
    });
}

tutti_status wait_for(c10d::Store &store, const char *key, int64_t timeout_ms) {
    auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    auto pause = 20us;
    while (!store.check({key})) {
        if (interrupted()) return tutti_fail(TUTTI_ERR_INTERRUPTED, "interrupted while waiting for \"%s\"", key);
        if (std::chrono::steady_clock::now() >= until)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "\"%s\" did not appear in the store within %lld ms", key,
                              static_cast<long long>(timeout_ms));
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(pause * 3 / 2, 5ms);
    }
    return TUTTI_OK;
}

tutti_status get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out, int64_t timeout_ms) {
    return guarded("get", key, [&] {
        c10d::Store &store = store_of(context);
        TUTTI_TRY(wait_for(store, key, timeout_ms));
        std::vector<uint8_t> got = store.get(key);
        if (got.size() > capacity)
            return tutti_fail(TUTTI_ERR_DATA, "\"%s\" in the store has %zu bytes, at most %zu expected", key,
                              got.size(), capacity);
        std::memcpy(value, got.data(), got.size());
        *bytes_out = got.size();
        return TUTTI_OK;
    });
}

tutti_status add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    return guarded("add to", key, [&] {
        *value_out = store_of(context).add(key, amount);
        return TUTTI_OK;
    });
}

tutti_status exists(void *context, const char *key, int *exists_out) {
    return guarded("look for", key, [&] {
        *exists_out = store_of(context).check({key}) ? 1 : 0;
        return TUTTI_OK;
    });
}

} // namespace

tutti_status create_comm(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                         const tutti_comm_options &options, tutti_comm **comm_out) {
    tutti_store board = {sizeof board, store.get(), set, get, add, exists};
    return tutti_comm_create(rank, size, &board, "tutti", &options, comm_out);
}

} // namespace torch_tutti
