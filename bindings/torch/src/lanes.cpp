/*
 * PyTorch's streams for CUDA tensors. See lanes.h.
 */
#include "lanes.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "interrupt.h"
#include "versions.h"

namespace torch_tutti {

static const c10::impl::VirtualGuardImpl cuda() {
    return {c10::DeviceType::CUDA};
}

bool has_cuda() {
    return c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) && cuda().deviceCount() > 0;
}

c10::Stream current_stream(c10::Device device) {
    return cuda().getStream(device);
}

void follow(const c10::Stream &stream, const c10::Stream &leader) {
    if (stream == leader) return;
    c10::Event event(leader.device_type());
    event.record(leader);
    event.block(stream);
}

/* Where streams cannot tell: PyTorch's class for those of CUDA is a c10::Stream with methods, in a library that is in the
 * process if PyTorch has CUDA. */
static void *ask_cuda_stream(const c10::Stream &stream) {
    using Method = void *(*)(const c10::Stream *);
    static const auto method = [] {
        void *library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        void *found = library != nullptr ? dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv") : nullptr;
        return reinterpret_cast<Method>(found);
    }();
    TORCH_CHECK(method != nullptr, "tutti: this PyTorch does not tell what its CUDA streams are: libc10_cuda.so ",
                "is not loaded, or has no c10::cuda::CUDAStream::stream()");
    return method(&stream);
}

void *native_handle(const c10::Stream &stream) {
    return handle_of(stream, ask_cuda_stream);
}

/* -------------------------------------------------------------------------------------------------- sends */

Sends::~Sends() {
    for (tutti_work *work : works_) tutti_work_free(work);
}

void Sends::keep(tutti_work *work) {
    ended();
    std::lock_guard<std::mutex> lock(mutex_);
    works_.push_back(work);
}

bool Sends::ended() {
    std::lock_guard<std::mutex> lock(mutex_);
    auto under_way =
        std::partition(works_.begin(), works_.end(), [](tutti_work *work) { return tutti_work_done(work); });
    std::for_each(works_.begin(), under_way, tutti_work_free);
    works_.erase(works_.begin(), under_way);
    return works_.empty();
}

/* -------------------------------------------------------------------------------------------------- lanes */

c10::Stream Lanes::take(c10::Device device, bool async, int64_t lane) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!device_) device_ = device;
    TUTTI_CHECK_VALUE(*device_ == device, "tutti: this group has worked with tensors on ", *device_,
                      " so far, and one is on ", device, "; a group uses one GPU on each rank");
    if (async && streams_.count(lane) == 0) streams_.emplace(lane, cuda().getStreamFromGlobalPool(device));
    c10::Stream stream = async ? streams_.at(lane) : current_stream(device);
    if (std::find(taken_.begin(), taken_.end(), stream) == taken_.end()) taken_.push_back(stream);
    return stream;
}

/* At the end of a process CUDA may have ended already: then it throws. */
void Lanes::finish(std::chrono::milliseconds limit) noexcept {
    auto until = std::chrono::steady_clock::now() + limit;
    try {
        std::vector<c10::Stream> streams;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            streams.swap(taken_);
        }
        for (const c10::Stream &stream : streams) {
            c10::Event event(stream.device_type());
            event.record(stream);
            poll([&event] { return event.query(); }, until);
        }
        poll([this] { return sends_->ended(); }, until);
    } catch (...) {}
}

void Lanes::drain(std::optional<c10::Device> said) {
    std::vector<c10::Event> events;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto device = device_ ? device_ : said;
        if (!device) return;
        auto collective = streams_.find(collectives);
        events.emplace_back(c10::DeviceType::CUDA).record(current_stream(*device));
        if (collective != streams_.end()) events.emplace_back(c10::DeviceType::CUDA).record(collective->second);
    }
    for (const c10::Event &event : events) poll([&event] { return event.query(); });
}

} // namespace torch_tutti
