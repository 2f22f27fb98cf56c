/*
 * PyTorch's streams for CUDA tensors, through c10's device-independent layer: the build needs no CUDA headers, and
 * loading needs no CUDA libraries. Where PyTorch has CUDA, its own code does the work.
 */
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <tutti/tutti.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace torch_tutti {

/* True when the PyTorch in use has CUDA support and there is a GPU. */
bool has_cuda();
/* The calling thread's current stream of that GPU. */
c10::Stream current_stream(c10::Device device);
/* Later work in `stream` waits for the present work in `leader`. */
void follow(const c10::Stream &stream, const c10::Stream &leader);
/* The stream's cudaStream_t. */
void *native_handle(const c10::Stream &stream);
/* True when the stream is being captured into a CUDA graph. Work that is enqueued in it then runs later, if at all,
 * and CUDA forbids queries of an event that was recorded in it. */
bool is_capturing(const c10::Stream &stream);
/* True when the GPU has passed the event, which must have been recorded in a stream that was not being captured.
 * The query does not disturb a capture by this or another thread. */
bool has_passed(const c10::Event &event);

/* The position of an operation in its stream. */
struct Place {
    c10::Stream stream;
    /* Number of operations that the group has put into the stream; null: the stream is the caller's. */
    std::shared_ptr<const std::atomic<uint64_t>> operations;
    uint64_t number; /* of this operation among them */
    /* True when the group has put no other operation behind this one. */
    bool is_last() const {
        return operations == nullptr || operations->load(std::memory_order_relaxed) == number;
    }
};

/* Sends whose work the caller has dropped: streams do not wait for them, but the end of their group does. */
class Sends {
public:
    ~Sends();
    /* Takes ownership of the work. */
    void keep(tutti_work *work);
    /* True when all of them have ended. */
    bool ended();

private:
    std::mutex mutex_;
    std::vector<tutti_work *> works_;
};

/*
 * A group's GPU, and the streams in which its asynchronous operations run: taken from PyTorch's pool when first
 * needed. A receive blocks its stream until the message arrives, so there is one lane for each peer and direction.
 * Streams may share a hardware queue, in which a waiting stream blocks the others; priorities do not change that.
 */
class Lanes {
public:
    static constexpr int64_t collectives = 0;
    static int64_t of_peer(int peer, bool sends) {
        return 2 * (int64_t{peer} + 2) + (sends ? 0 : 1);
    }
    static int peer_of(int64_t lane) {
        return static_cast<int>(lane / 2 - 2);
    }
    static bool is_of_receives(int64_t lane) {
        return lane % 2 != 0;
    }

    /* The place of an operation on that GPU, which becomes the group's GPU; throws if the group has another one. */
    Place take(c10::Device device, bool async, int64_t lane);
    /* The host waits until the collectives, and all work in the calling thread's current stream, are done. A group
     * that has no GPU yet uses `said`, or does nothing. Throws if the current stream is being captured. */
    void drain(std::optional<c10::Device> said);
    /* The host waits until all operations of the group are done, or until the time is over. Called before the group
     * ends; operations that are left fail then. */
    void finish(std::chrono::milliseconds limit) noexcept;
    const std::shared_ptr<Sends> &sends() const {
        return sends_;
    }

private:
    struct Lane {
        c10::Stream stream;
        std::shared_ptr<std::atomic<uint64_t>> operations; /* changes under the lock */
    };
    Place take_locked(c10::Device device, bool async, int64_t lane);

    std::mutex mutex_;
    std::shared_ptr<Sends> sends_ = std::make_shared<Sends>();
    std::optional<c10::Device> device_;
    std::map<int64_t, Lane> lanes_;
    std::vector<c10::Stream> taken_; /* all that were used since the last `finish` */
};

} // namespace torch_tutti
