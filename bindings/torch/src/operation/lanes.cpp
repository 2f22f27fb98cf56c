/*
 * PyTorch's streams for CUDA tensors. See lanes.h.
 */
#include "lanes.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "../base/errors.h"
#include "../base/interrupt.h"
#include "../base/versions.h"

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

/* For versions whose streams have no native_handle: PyTorch's class for CUDA streams is a c10::Stream with methods,
 * in a library that is loaded if PyTorch has CUDA. */
static void *ask_cuda_stream(const c10::Stream &stream) {
    using Method = void *(*)(const c10::Stream *);
    static const auto method = [] {
        void *library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        void *found = library != nullptr ? dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv") : nullptr;
        return reinterpret_cast<Method>(found);
    }();
    TORCH_CHECK(method != nullptr, "tutti: this PyTorch does not provide the handles of its CUDA streams: ",
                "libc10_cuda.so is not loaded, or has no c10::cuda::CUDAStream::stream()");
    return method(&stream);
}

void *native_handle(const c10::Stream &stream) {
    return handle_of(stream, ask_cuda_stream);
}

/* ----------------------------------------------------------------------------------------------- captures */

/* c10 has no calls for captures, so these are the driver's. Unlike the runtime's, they leave no error that
 * PyTorch's next kernel launch would report. The tests' stand-in for PyTorch's CUDA has both calls as well. */
template <typename Call> static Call driver_call(const char *name) {
    for (const char *library : {"libcuda.so.1", "libc10_cuda.so"}) {
        void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
        void *found = loaded != nullptr ? dlsym(loaded, name) : nullptr;
        if (found != nullptr) return reinterpret_cast<Call>(found);
    }
    return nullptr;
}

/* The default stream cannot be captured, and CUDA forbids the query for it while another stream is captured. */
bool is_capturing(const c10::Stream &stream) {
    static const auto ask = driver_call<int (*)(void *, int *)>("cuStreamIsCapturing");
    void *native = native_handle(stream);
    int status = 0; /* none */
    return native != nullptr && ask != nullptr && ask(native, &status) == 0 && status != 0;
}

/* Sets the calling thread to CUDA's relaxed mode. While a thread captures in the global mode, which is PyTorch's
 * default, a query by a thread that is not in the relaxed mode invalidates the capture. */
class Relaxed {
public:
    Relaxed() : changed_(exchange() != nullptr && exchange()(&mode_) == 0) {}
    ~Relaxed() {
        if (changed_) exchange()(&mode_);
    }

private:
    using Exchange = int (*)(int *);
    static Exchange exchange() {
        static const auto found = driver_call<Exchange>("cuThreadExchangeStreamCaptureMode");
        return found;
    }
    int mode_ = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's previous mode */
    bool changed_;
};

bool has_passed(const c10::Event &event) {
    Relaxed relaxed;
    return event.query();
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

/* With fewer queues than CUDA's default, a stream that waits for a message almost certainly shares its queue with
 * others. */
static void warn_of_few_queues() {
    const char *said = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int queues = said != nullptr ? std::atoi(said) : 0;
    if (queues < 1 || queues >= 8) return;
    TORCH_WARN_ONCE(
        "tutti: CUDA_DEVICE_MAX_CONNECTIONS is ", said,
        ", and this process receives CUDA tensors. A stream that waits ",
        "for a message stops the streams that share its hardware queue; ranks that wait for each other in this way ",
        "hang. Set the variable to 32, or at least to 8");
}

Place Lanes::take(c10::Device device, bool async, int64_t lane) {
    if (async && is_of_receives(lane)) warn_of_few_queues();
    std::lock_guard<std::mutex> lock(mutex_);
    Place place = take_locked(device, async, lane);
    if (std::find(taken_.begin(), taken_.end(), place.stream) == taken_.end()) taken_.push_back(place.stream);
    return place;
}

Place Lanes::take_locked(c10::Device device, bool async, int64_t lane) {
    if (!device_) device_ = device;
    TUTTI_CHECK_VALUE(*device_ == device, "tutti: this group has used tensors on ", *device_,
                      " so far, and one is on ", device, "; a group uses one GPU on each rank");
    if (!async) return {current_stream(device), nullptr, 0};
    auto found = lanes_.find(lane);
    if (found == lanes_.end()) {
        c10::Stream drawn = cuda().getStreamFromGlobalPool(device);
        found = lanes_.emplace(lane, Lane{drawn, std::make_shared<std::atomic<uint64_t>>(0)}).first;
    }
    const Lane &own = found->second;
    uint64_t number = own.operations->fetch_add(1, std::memory_order_relaxed) + 1;
    return {own.stream, own.operations, number};
}

/* At the end of a process CUDA may have ended already; its calls throw then. */
void Lanes::finish(std::chrono::milliseconds limit) noexcept {
    auto until = std::chrono::steady_clock::now() + limit;
    try {
        std::vector<c10::Stream> streams;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            streams.swap(taken_);
        }
        for (const c10::Stream &stream : streams) {
            if (is_capturing(stream)) continue;
            c10::Event event(stream.device_type());
            event.record(stream);
            poll([&event] { return has_passed(event); }, until);
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
        c10::Stream current = current_stream(*device);
        TORCH_CHECK_WITH(DistBackendError, !is_capturing(current),
                         "tutti: a barrier makes the host wait for the GPU, so it ",
                         "cannot be captured into a CUDA graph; leave it out of the capture");
        auto collective = lanes_.find(collectives);
        events.emplace_back(c10::DeviceType::CUDA).record(current);
        if (collective != lanes_.end() && !is_capturing(collective->second.stream))
            events.emplace_back(c10::DeviceType::CUDA).record(collective->second.stream);
    }
    for (const c10::Event &event : events) poll([&event] { return has_passed(event); });
}

} // namespace torch_tutti
