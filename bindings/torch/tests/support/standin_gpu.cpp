/*
 * libstandin_gpu.so: CUDA tensors for a PyTorch without CUDA, for tests. Memory, streams and events are those of
 * Tutti's own stand-in for CUDA (tests/support/standins/standin_cuda.c, which TUTTI_CUDA_MODULE names); this gives them to
 * PyTorch as its CUDA code would: a device guard, an allocator, kernels that copy and fill in streams. Everything
 * else is computed by the CPU's kernels on copies.
 *
 * The allocator is as unkind as PyTorch's may be: freed memory is reused at once in the stream that it came from
 * (its bytes are overwritten there), unless the allocator knows of other streams that use it (recordStream). Memory
 * that was allocated while its stream was captured belongs to the graph, as PyTorch's private pools do: only the graph
 * may use it again.
 *
 * Nothing is initialised before a tensor is made, so that a process can load this and fork. It is one file, which
 * gpu.py compiles with one command.
 */
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

extern "C" {
#include "kernels/device.h"
}

#define EXPORT __attribute__((visibility("default")))

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr int most_gpus = 16;
constexpr int64_t pool_streams = 32, last_stream = pool_streams + 1; /* 0: the default stream */

void check(tutti_status status) {
    TORCH_CHECK(status == TUTTI_OK, "stand-in: ", tutti_last_error());
}

const tutti_device &table() {
    static const tutti_device *opened = nullptr;
    if (opened == nullptr) check(tutti_device_open(&opened));
    return *opened;
}

/* Functions that the stand-in exports for stand-ins of other libraries. */
template <typename Function> Function of_standin(const char *name) {
    table();
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *found = module != nullptr ? dlsym(module, name) : nullptr;
    TORCH_CHECK(found != nullptr, "TUTTI_CUDA_MODULE is not the stand-in: it lacks ", name);
    return reinterpret_cast<Function>(found);
}

/* ------------------------------------------------------------------------------------------------ streams */

thread_local std::array<int64_t, most_gpus> current_streams{};

/* Makes a GPU the thread's current one, for as long as the object lives. */
struct On {
    explicit On(DeviceIndex index) {
        check(table().current(&before));
        check(table().use(index));
    }
    ~On() {
        table().use(before);
    }
    int before = 0;
};

std::mutex streams_lock;
tutti_stream streams[most_gpus][last_stream + 1];

tutti_stream handle(const Stream &stream) {
    std::lock_guard<std::mutex> lock(streams_lock);
    tutti_stream &own = streams[stream.device_index()][stream.id()];
    if (own == nullptr && stream.id() != 0) {
        On there(stream.device_index());
        check(table().stream_create(&own));
    }
    return own;
}

Stream stream_of(DeviceIndex index, int64_t id) {
    return Stream(Stream::UNSAFE, Device(c10::kCUDA, index), id);
}

Stream current(Device device) {
    DeviceIndex index = device.index();
    int own = 0;
    if (index < 0) check(table().current(&own));
    return stream_of(index < 0 ? static_cast<DeviceIndex>(own) : index, current_streams[index < 0 ? own : index]);
}

/* Runs in the stream, or with each replay of the graph into which the stream is being captured. */
void enqueue(const Stream &stream, std::function<void()> body) {
    using Run = void (*)(void *);
    static auto keep = of_standin<bool (*)(void *, Run, Run, void *)>("standin_record");
    static auto put = of_standin<void (*)(void *, Run, void *)>("standin_enqueue");
    On there(stream.device_index());
    Run run = [](void *context) { (*static_cast<std::function<void()> *>(context))(); };
    Run forget = [](void *context) { delete static_cast<std::function<void()> *>(context); };
    Run run_once = [](void *context) {
        std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()> *>(context));
        (*own)();
    };
    auto *own = new std::function<void()>(std::move(body));
    if (!keep(handle(stream), run, forget, own)) put(handle(stream), run_once, own);
}

std::atomic<int64_t> drawn; /* streams from the pool */

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override {
        return c10::kCUDA;
    }
    Device getDevice() const override {
        int index = 0;
        check(table().current(&index));
        return Device(c10::kCUDA, static_cast<DeviceIndex>(index));
    }
    void setDevice(Device device) const override {
        check(table().use(device.index()));
    }
    Device exchangeDevice(Device device) const override {
        Device before = getDevice();
        setDevice(device);
        return before;
    }
    void uncheckedSetDevice(Device device) const noexcept override {
        table().use(device.index());
    }
    Stream getStream(Device device) const noexcept override {
        return current(device);
    }
    Stream getDefaultStream(Device device) const override {
        return stream_of(device.index(), 0);
    }
    Stream getStreamFromGlobalPool(Device device, bool) const override {
        return stream_of(device.index(), 1 + drawn++ % pool_streams);
    }
    Stream exchangeStream(Stream stream) const noexcept override {
        Stream before = current(stream.device());
        current_streams[stream.device_index()] = stream.id();
        return before;
    }
    void *getStreamNativeHandle(const Stream stream) const { /* overrides if PyTorch has it */
        return handle(stream);
    }
    void record(void **event, const Stream &stream, const DeviceIndex, const c10::EventFlag) const override {
        On there(stream.device_index());
        auto *own = static_cast<tutti_event_handle>(*event);
        if (own == nullptr) check(table().event_create(&own));
        *event = own;
        check(table().event_record(own, handle(stream)));
    }
    void block(void *event, const Stream &stream) const override {
        On there(stream.device_index());
        if (event != nullptr) check(table().stream_wait_event(handle(stream), static_cast<tutti_event_handle>(event)));
    }
    bool queryEvent(void *event) const override {
        static auto ask = of_standin<tutti_status (*)(tutti_event_handle)>("standin_event_query_bare");
        tutti_status status = ask(static_cast<tutti_event_handle>(event));
        if (status != TUTTI_NOT_YET) check(status);
        return status == TUTTI_OK;
    }
    void destroyEvent(void *event, const DeviceIndex) const noexcept override {
        table().event_destroy(static_cast<tutti_event_handle>(event));
    }
    DeviceIndex deviceCount() const noexcept override {
        return most_gpus;
    }
    bool queryStream(const Stream &) const override {
        return false;
    }
    void synchronizeStream(const Stream &stream) const override {
        On there(stream.device_index());
        check(table().stream_sync(handle(stream)));
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const Stream &stream) const override;
};

/* ------------------------------------------------------------------------------------------------- memory */

struct Block {
    void *memory;
    size_t bytes;
    Stream stream;
    std::vector<Stream> users;
    bool of_graph; /* allocated while its stream was captured */
};

std::atomic<int64_t> recorded{0};

std::mutex captures_lock;
int captures;                  /* in progress */
std::vector<Block *> deferred; /* freed meanwhile, and used in other streams than their own */

void free_block(void *context) {
    std::unique_ptr<Block> block(static_cast<Block *>(context));
    Guard guard;
    if (block->memory == nullptr) return;
    if (block->of_graph) { /* only the graph may overwrite it; what runs outside of the graph may run beside a replay */
        bool captured = false;
        check(table().stream_captures(handle(block->stream), &captured));
        if (!captured || !block->users.empty()) return;
    }
    if (!block->users.empty()) {
        std::lock_guard<std::mutex> lock(captures_lock);
        if (captures > 0) return deferred.push_back(block.release()); /* like PyTorch's allocator: no events now */
    }
    DeviceIndex gpu = block->stream.device_index();
    Stream next = block->users.empty() ? block->stream : stream_of(gpu, last_stream); /* the next owner's */
    if (!block->users.empty()) block->users.push_back(block->stream);
    for (const Stream &user : block->users) {
        void *event = nullptr;
        guard.record(&event, user, gpu, c10::EventFlag::PYTORCH_DEFAULT);
        guard.block(event, next);
        guard.destroyEvent(event, gpu);
    }
    On there(gpu);
    table().fill(block->memory, 0xee, block->bytes, handle(next));
}

void Guard::recordDataPtrOnStream(const c10::DataPtr &data, const Stream &stream) const {
    auto *block = static_cast<Block *>(data.get_context());
    if (block == nullptr || stream == block->stream) return;
    block->users.push_back(stream);
    recorded++;
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        Device device = Guard().getDevice();
        auto block = std::make_unique<Block>(Block{nullptr, bytes, current(device), {}, false});
        check(table().stream_captures(handle(block->stream), &block->of_graph));
        if (bytes > 0) check(table().alloc(bytes, &block->memory));
        void *memory = block->memory;
        return {memory, block.release(), free_block, device};
    }
    c10::DataPtr allocate(size_t bytes) const { /* as PyTorch 2.4 requires it */
        return const_cast<Allocator *>(this)->allocate(bytes);
    }
    void copy_data(void *, const void *, size_t) const override {
        TORCH_CHECK(false, "stand-in: no copy_data");
    }
};

Allocator allocator;

/* ------------------------------------------------------------------------------------------------ kernels */

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<at::Device>;
using Format = std::optional<at::MemoryFormat>;

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout, Where where, std::optional<bool>, Format format) {
    c10::DeviceGuard guard(where.value_or(Device(c10::kCUDA)).has_index() ? *where : Guard().getDevice());
    return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                     dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout, Where where,
                         std::optional<bool>) {
    c10::DeviceGuard guard(where.value_or(Device(c10::kCUDA)).has_index() ? *where : Guard().getDevice());
    return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                             dtype.value_or(at::kFloat));
}

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

/* A copy of the elements for the CPU, after the stream has reached them. */
std::function<at::Tensor()> later(const at::Tensor &tensor) {
    static auto reach = of_standin<void *(*)(const void *)>("standin_host_pointer");
    void *at = tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
    bool gpu = tensor.is_cuda();
    return [at, gpu, sizes = tensor.sizes().vec(), strides = tensor.strides().vec(), dtype = tensor.scalar_type()] {
        return at::from_blob(gpu && at != nullptr ? reach(at) : at, sizes, strides, at::TensorOptions(dtype));
    };
}

at::Tensor &copy_(at::Tensor &self, const at::Tensor &from, bool) {
    Stream stream = current(self.is_cuda() ? self.device() : from.device());
    enqueue(stream, [to = later(self), what = later(from)] {
        at::AutoDispatchBelowADInplaceOrView guard;
        to().copy_(what());
    });
    if (self.is_cpu() || from.is_cpu()) Guard().synchronizeStream(stream); /* as with ordinary memory */
    return self;
}

at::Tensor &fill_(at::Tensor &self, const at::Scalar &value) {
    enqueue(current(self.device()), [to = later(self), value] {
        at::AutoDispatchBelowADInplaceOrView guard;
        to().fill_(value);
    });
    return self;
}

at::Tensor &zero_(at::Tensor &self) {
    return fill_(self, 0);
}

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef sizes, Format) {
    at::Tensor sized = empty(sizes, self.scalar_type(), {}, self.device(), {}, {});
    int64_t both = std::min(self.numel(), sized.numel());
    as_strided(sized, {both}, {1}, 0).copy_(as_strided(self, {both}, {1}, 0));
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(sized.storage());
    self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return self;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to) {
    if (to.sizes() != self.sizes()) resize_(to, self.sizes(), {});
    return to.copy_(self);
}

at::Scalar item(const at::Tensor &self) {
    return self.cpu().item();
}

/* ---------------------------------------------------------------------------------------- for the tests */

/* In place, in the current stream. */
void scale_(const at::Tensor &self, double factor) {
    enqueue(current(self.device()), [to = later(self), factor] {
        at::AutoDispatchBelowADInplaceOrView guard;
        to().mul_(factor);
    });
}

/* Sets the thread's current stream; returns the previous one. */
int64_t use_stream(int64_t device, int64_t id) {
    return Guard().exchangeStream(stream_of(static_cast<DeviceIndex>(device), id)).id();
}

int64_t current_stream_id(int64_t device) {
    return current_streams[device];
}

void use_gpu(int64_t device) {
    check(table().use(static_cast<int>(device)));
}

std::atomic<int64_t> held{0};

/* Blocks the thread's current stream until let_go. */
void hold(int64_t device) {
    held = 1;
    enqueue(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device))), [] {
        while (held != 0) usleep(50);
    });
}

void let_go() {
    held = 0;
}

void synchronize(int64_t device) {
    Guard().synchronizeStream(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device))));
}

/* Pretends that the thread's current stream is being captured into a graph. */
void capture(int64_t device, bool captures) {
    static auto set = of_standin<void (*)(void *, bool)>("standin_capture");
    set(handle(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device)))), captures);
}

int64_t times_recorded() {
    return recorded;
}

/* The number of streams that were taken from the pool. */
int64_t times_drawn() {
    return drawn;
}

/* A real graph of the stand-in, captured from the thread's current stream in one of CUDA's modes: 0 global, 1
 * thread-local, 2 relaxed. */
void graph_begin(int64_t device, int64_t mode) {
    static auto begin = of_standin<int (*)(void *, int)>("standin_graph_begin");
    std::lock_guard<std::mutex> lock(captures_lock);
    begin(handle(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device)))), static_cast<int>(mode));
    captures++;
}

/* The graph, as a number. It is never destroyed. */
int64_t graph_end(int64_t device) {
    static auto end = of_standin<int (*)(void *, void **)>("standin_graph_end");
    void *graph = nullptr;
    std::vector<Block *> freed;
    int result = end(handle(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device)))), &graph);
    {
        std::lock_guard<std::mutex> lock(captures_lock);
        if (--captures == 0) freed.swap(deferred);
    }
    for (Block *block : freed) free_block(block);
    TORCH_CHECK(result != 901, "stand-in: operation failed due to a previous error during capture "
                               "(cudaErrorStreamCaptureInvalidated)");
    TORCH_CHECK(result == 0, "stand-in: capturing stream has unjoined work");
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(graph));
}

/* In the thread's current stream. */
void graph_replay(int64_t device, int64_t graph) {
    static auto launch = of_standin<int (*)(void *, void *)>("standin_graph_launch");
    On there(static_cast<DeviceIndex>(device));
    void *stream = handle(current(Device(c10::kCUDA, static_cast<DeviceIndex>(device))));
    TORCH_CHECK(launch(reinterpret_cast<void *>(static_cast<intptr_t>(graph)), stream) == 0, "stand-in: no launch");
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", as_strided);
    m.impl("view", at::native::view);
    m.impl("_reshape_alias", at::native::_reshape_alias);
    m.impl("copy_", copy_);
    m.impl("fill_.Scalar", fill_);
    m.impl("zero_", zero_);
    m.impl("resize_", resize_);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", item);
}

/* All other operators. */
void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY(standin_gpu, m) {
    m.def("scale_(Tensor self, float factor) -> ()");
    m.impl("scale_", c10::DispatchKey::CUDA, TORCH_FN(scale_));
    m.def("use_stream(int device, int id) -> int", use_stream);
    m.def("current_stream(int device) -> int", current_stream_id);
    m.def("use_gpu(int device) -> ()", use_gpu);
    m.def("hold(int device) -> ()", hold);
    m.def("let_go() -> ()", let_go);
    m.def("synchronize(int device) -> ()", synchronize);
    m.def("capture(int device, bool captures) -> ()", capture);
    m.def("times_recorded() -> int", times_recorded);
    m.def("times_drawn() -> int", times_drawn);
    m.def("graph_begin(int device, int mode) -> ()", graph_begin);
    m.def("graph_end(int device) -> int", graph_end);
    m.def("graph_replay(int device, int graph) -> ()", graph_replay);
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

} // namespace

/* The call of libcuda.so.1 on a machine with a GPU. */
extern "C" {
EXPORT int cuStreamIsCapturing(void *stream, int *status_out);
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode);

int cuStreamIsCapturing(void *stream, int *status_out) {
    bool captures = false;
    if (table().stream_captures(stream, &captures) != TUTTI_OK) return 1;
    *status_out = captures ? 1 : 0;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    static auto exchange = of_standin<int (*)(int *)>("standin_exchange_mode");
    return exchange(mode);
}
}

/* The function of PyTorch's libc10_cuda.so; older versions have no other way to get a stream's handle. */
namespace c10::cuda {
class EXPORT CUDAStream {
public:
    EXPORT void *stream() const;

private:
    c10::Stream stream_;
};
void *CUDAStream::stream() const {
    return ::handle(stream_);
}
} // namespace c10::cuda
