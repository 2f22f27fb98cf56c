/*
 * The rendezvous of a communicator in the Store that PyTorch passes.
 *
 * A blocking get would hold the client's lock, and make other threads' sets wait, maybe for the very key that another
 * rank waits for: so the code polls for a key, with growing pauses, before it fetches the key.
 *
 * The store may hold keys of an earlier attempt (torchrun restarts ranks with the same store and the same keys). So
 * rank 0 gives each attempt a random name, in the key "attempt", and all other keys begin with that name. A rank
 * that read the name of an earlier attempt meets no peer there; while it waits it checks whether the name has
 * changed, and then starts over.
 *
 * Other processes may write to the store, too. Without the job's secret they can keep ranks from meeting, but only
 * until the deadline; docs/security.md describes what else they can do. After the attempt's name, keys contain the
 * prefix of the group's keys in PyTorch's store: the proofs of the ranks cover it, so that a rank cannot be led
 * into another group.
 */
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "../base/interrupt.h"
#include "backend.h"

namespace torch_tutti {

namespace {

using namespace std::chrono_literals;

constexpr const char *attempt_key = "attempt";

struct Board {
    c10d::Store &store;
    std::string attempt; /* the name of this rank's attempt */
    bool leads;          /* this is rank 0 */
    std::string place;   /* the prefix of the group's keys in the store */
    bool outdated = false;

    std::string prefix() const {
        return attempt + "/" + place;
    }
};

Board &board_of(void *context) {
    return *static_cast<Board *>(context);
}

/* True for a name in the format of random_name. */
bool is_name(const std::vector<uint8_t> &name) {
    constexpr size_t longest = 21; /* two 32-bit numbers */
    return !name.empty() && name.size() <= longest &&
           std::all_of(name.begin(), name.end(), [](uint8_t c) { return c == '-' || (c >= '0' && c <= '9'); });
}

/* Returns "" where the key is missing or its value is not a name. A get of a missing key would wait as long as PyTorch
 * allows. */
std::string read_attempt(c10d::Store &store) {
    if (!store.check({attempt_key})) return {};
    std::vector<uint8_t> name = store.get(attempt_key);
    return is_name(name) ? std::string(name.begin(), name.end()) : std::string();
}

/* True when rank 0 has named another attempt since. */
bool look_outdated(Board &board) {
    if (board.leads || board.outdated) return board.outdated;
    std::string now = read_attempt(board.store);
    board.outdated = !now.empty() && now != board.attempt;
    return board.outdated;
}

/* Turns an exception of the store into a status with its text. */
template <typename Body> tutti_status guarded(const char *verb, const char *key, Body body) {
    try {
        return body();
    } catch (const std::exception &error) {
        return tutti_fail(TUTTI_ERR_SYSTEM, "the store that PyTorch passed failed to %s \"%s\": %s", verb, key,
                          error.what());
    }
}

tutti_status set(void *context, const char *key, const void *value, size_t bytes) {
    return guarded("set", key, [&] {
        const auto *first = static_cast<const uint8_t *>(value);
        board_of(context).store.set(key, std::vector<uint8_t>(first, first + bytes));
        return TUTTI_OK;
    });
}

/* Waits with growing pauses until `come` returns true. */
template <typename Come>
tutti_status wait_until(Board &board, const char *what, std::chrono::steady_clock::time_point until, Come come) {
    auto pause = 20us;
    while (!come()) {
        if (interrupted()) return tutti_fail(TUTTI_ERR_INTERRUPTED, "interrupted while waiting for \"%s\"", what);
        if (std::chrono::steady_clock::now() >= until)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "\"%s\" did not appear in the store in time", what);
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(pause * 3 / 2, 5ms);
        if (pause == 5ms && !board.attempt.empty() && look_outdated(board))
            return tutti_fail(TUTTI_ERR_ABORTED, "rank 0 has begun another attempt to meet");
    }
    return TUTTI_OK;
}

tutti_status get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out, int64_t timeout_ms) {
    return guarded("get", key, [&] {
        Board &board = board_of(context);
        auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        TUTTI_TRY(wait_until(board, key, until, [&] { return board.store.check({key}); }));
        std::vector<uint8_t> got = board.store.get(key);
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
        *value_out = board_of(context).store.add(key, amount);
        return TUTTI_OK;
    });
}

tutti_status exists(void *context, const char *key, int *exists_out) {
    return guarded("look for", key, [&] {
        *exists_out = board_of(context).store.check({key}) ? 1 : 0;
        return TUTTI_OK;
    });
}

std::string random_name() {
    std::random_device random;
    return std::to_string(random()) + "-" + std::to_string(random());
}

/* The limit for which a rank that seems to exist twice waits for another attempt. */
std::chrono::steady_clock::time_point twin_limit() {
    return std::chrono::steady_clock::now() + 60s;
}

/* Reads the attempt's name, once it differs from `last`. */
tutti_status join_attempt(Board &board, const std::string &last, std::chrono::steady_clock::time_point until) {
    return guarded("get", attempt_key, [&] {
        board.attempt.clear();
        std::string now;
        auto named = [&] {
            now = read_attempt(board.store);
            return !now.empty() && now != last;
        };
        TUTTI_TRY(wait_until(board, attempt_key, until, named));
        board.attempt = now;
        board.outdated = false;
        return TUTTI_OK;
    });
}

/* *first_out: this process is the first with this rank in this attempt. If it is not, it belongs to a later
 * attempt, which rank 0 has not named yet, or another process has incremented the counter. */
tutti_status claim(Board &board, int rank, bool *first_out) {
    int64_t claims = 0;
    std::string key = board.attempt + "/rank/" + std::to_string(rank);
    TUTTI_TRY(add(&board, key.c_str(), 1, &claims));
    *first_out = claims == 1;
    return TUTTI_OK;
}

bool has_secret() {
    auto is_set = [](const char *name) {
        const char *text = std::getenv(name);
        return text != nullptr && *text != '\0';
    };
    return is_set("TUTTI_SECRET") || is_set("TUTTI_SECRET_FILE");
}

/* The prefixes of all keys of a store; a communicator's own prefix has room for 200 bytes of them. */
struct Prefixes : c10d::PrefixStore {
    static std::string of(c10::intrusive_ptr<c10d::Store> store) {
        std::string place;
        while (auto *outer = dynamic_cast<c10d::PrefixStore *>(store.get())) {
            place = outer->*(&Prefixes::prefix_) + "/" + place;
            store = outer->getUnderlyingStore();
        }
        return place.substr(0, 200);
    }
};

/* With a secret, a proved claim shows whether this rank exists twice: TUTTI_ERR_CONFIG then. */
tutti_status meet(Board &board, int rank, int size, tutti_comm_options options,
                  std::chrono::steady_clock::time_point until, tutti_comm **comm_out) {
    using std::chrono::duration_cast;
    auto left = duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    tutti_store shown = {sizeof shown, &board, set, get, add, exists};
    options.connect_timeout_ms = std::max<int64_t>(1, left.count());
    return tutti_comm_create(rank, size, &shown, board.prefix().c_str(), &options, comm_out);
}

} // namespace

tutti_status create_comm(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                         const tutti_comm_options &options, tutti_comm **comm_out) {
    if (size == 1) return tutti_comm_create(rank, size, nullptr, nullptr, &options, comm_out);
    auto limit =
        options.connect_timeout_ms > 0 ? std::chrono::milliseconds(options.connect_timeout_ms) : kBackendDefaultTimeout;
    auto until = std::chrono::steady_clock::now() + limit;
    Board board = {*store, "", rank == 0, Prefixes::of(store)};
    if (board.leads) {
        std::string name = random_name();
        TUTTI_TRY(set(&board, attempt_key, name.data(), name.size()));
    }
    for (std::string last;; last = board.attempt) {
        bool first = false;
        tutti_status status = join_attempt(board, last, last.empty() ? until : std::min(until, twin_limit()));
        if (status == TUTTI_ERR_TIMEOUT && !last.empty())
            return tutti_fail(TUTTI_ERR_CONFIG, "two processes have rank %d; each one needs a RANK of its own", rank);
        TUTTI_TRY(status);
        TUTTI_TRY(claim(board, rank, &first));
        if (!first && !has_secret()) continue;
        status = meet(board, rank, size, options, until, comm_out);
        bool late = std::chrono::steady_clock::now() >= until;
        if (late && status != TUTTI_OK && board.outdated)
            return tutti_fail(
                TUTTI_ERR_TIMEOUT,
                "rank %d has met no other rank before the deadline: the store's \"%s\" has changed while it waited; "
                "rank 0 has started over too late, or another process writes to the store",
                rank, attempt_key);
        bool again = board.outdated || (!first && status == TUTTI_ERR_CONFIG);
        if (status == TUTTI_OK || !again) return status;
    }
}

} // namespace torch_tutti
