/*
 * PyTorch's streams for CUDA tensors, through c10's layer for devices of all kinds: no header of CUDA is needed to build
 * this, no library of CUDA to load it. Where PyTorch has CUDA, its own code does the work.
 */
#pragma once

#include <c10/core/Stream.h>

#include <tutti/tutti.h>

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
 * A receive holds its stream until the message has come, so messages have a lane for each peer and direction.
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

    /* The stream for an operation on that GPU, from now on the group's: throws if it has another one. */
    c10::Stream take(c10::Device device, bool async, int64_t lane);
    /* The host waits until the collectives, and all that is in the calling thread's current stream, are done. A group that has
     * no GPU yet takes the one that is said, or does nothing. */
    void drain(std::optional<c10::Device> said);
    /* The host waits until all operations of the group are done, or until the time is over. Before the group ends: what is left
     * then fails. */
    void finish(std::chrono::milliseconds limit) noexcept;
    const std::shared_ptr<Sends> &sends() const {
        return sends_;
    }

private:
    std::mutex mutex_;
    std::shared_ptr<Sends> sends_ = std::make_shared<Sends>();
    std::optional<c10::Device> device_;
    std::map<int64_t, c10::Stream> streams_;
    std::vector<c10::Stream> taken_; /* all that have had operations since `finish` */
};

} // namespace torch_tutti
