/*
 * PyTorch's streams for CUDA tensors, through c10's layer for devices of all kinds: no header of CUDA is needed to build
 * this, no library of CUDA to load it. Where PyTorch has CUDA, its own code does the work.
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

/* Has the PyTorch that runs CUDA, and a GPU? */
bool has_cuda();
/* The calling thread's current stream of that GPU. */
c10::Stream current_stream(c10::Device device);
/* What comes into `stream` from now on waits for what is in `leader` now. */
void follow(const c10::Stream &stream, const c10::Stream &leader);
/* Its cudaStream_t. */
void *native_handle(const c10::Stream &stream);
/* Is the stream being captured into a CUDA graph? What is put into it then runs later, if at all, and CUDA forbids all queries of
 * an event that was recorded in it. */
bool is_capturing(const c10::Stream &stream);
/* Has the GPU passed the event, which was recorded in a stream that was not being captured? The query harms no capture, whether
 * of this thread or of another one. */
bool has_passed(const c10::Event &event);

/* Where an operation is in its stream. */
struct Place {
    c10::Stream stream;
    /* How many operations the group has put into the stream; null: the stream is the caller's. */
    std::shared_ptr<const std::atomic<uint64_t>> operations;
    uint64_t number; /* of this operation among them */
    /* Has the group put no other operation behind this one? */
    bool is_last() const {
        return operations == nullptr || operations->load(std::memory_order_relaxed) == number;
    }
};

/* Sends whose work the caller has dropped: streams do not wait for them, the end of their group does. */
class Sends {
public:
    ~Sends();
    /* Takes the work over. */
    void keep(tutti_work *work);
    /* Have all of them ended? */
    bool ended();

private:
    std::mutex mutex_;
    std::vector<tutti_work *> works_;
};

/*
 * A group's GPU, and the streams in which its asynchronous operations run: drawn from PyTorch's pool when first needed.
 * A receive holds its stream until the message has come, so messages have a lane for each peer and direction. Streams
 * may share a hardware queue, where one that waits stops the others; priorities do not change that.
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

    /* The place of an operation on that GPU, from now on the group's: throws if it has another one. */
    Place take(c10::Device device, bool async, int64_t lane);
    /* The host waits until the collectives, and all that is in the calling thread's current stream, are done. A group that has
     * no GPU yet takes the one that is said, or does nothing. Throws if the current stream is being captured. */
    void drain(std::optional<c10::Device> said);
    /* The host waits until all operations of the group are done, or until the time is over. Before the group ends: what is left
     * then fails. */
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
    std::vector<c10::Stream> taken_; /* all that have had operations since `finish` */
};

} // namespace torch_tutti
