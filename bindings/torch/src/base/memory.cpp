/*
 * Tensors in memory that the ranks of a host share. See memory.h.
 */
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>

#include "tutti/tutti.h"

namespace torch_tutti {

namespace {

void free_shared(void *memory) {
    tutti_mem_free(memory);
}

c10::DataPtr allocate_shared(size_t bytes) {
    void *memory = nullptr;
    if (bytes > 0 && tutti_mem_alloc(bytes, &memory) != TUTTI_OK)
        TORCH_CHECK_WITH(OutOfMemoryError, false, "tutti: no shared memory for a tensor of ", bytes,
                         " bytes: ", tutti_last_error());
    return {memory, memory, free_shared, c10::Device(c10::kCPU)};
}

class SharedAllocator final : public c10::Allocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        return allocate_shared(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return free_shared;
    }
    void copy_data(void *dest, const void *src, std::size_t count) const override {
        std::memcpy(dest, src, count);
    }
};

/* Allocates large tensors in shared memory, small ones with the previous allocator; and all with the previous one
 * where shared memory is not available: in a forked process (DataLoader workers), or when it is used up. */
class LargeSharedAllocator final : public c10::Allocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        size_t least = min_bytes.load(std::memory_order_relaxed);
        void *memory = nullptr;
        if (least == 0 || bytes < least || tutti_mem_alloc(bytes, &memory) != TUTTI_OK) return before->allocate(bytes);
        return {memory, memory, free_shared, c10::Device(c10::kCPU)};
    }
    /* The two kinds of memory have different deleters. */
    c10::DeleterFnPtr raw_deleter() const override {
        return nullptr;
    }
    void copy_data(void *dest, const void *src, std::size_t count) const override {
        std::memcpy(dest, src, count);
    }
    c10::Allocator *before = nullptr;
    std::atomic<size_t> min_bytes{0};
};

} // namespace

c10::Allocator *shared_allocator() {
    static auto *allocator = new SharedAllocator; /* outlives every tensor */
    return allocator;
}

at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::Tensor(at::detail::empty_generic(sizes, shared_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                dtype, std::nullopt));
}

bool is_shared(const at::Tensor &tensor) {
    return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == free_shared;
}

void use_allocator(size_t min_bytes) {
    static auto *allocator = new LargeSharedAllocator;
    if (allocator->before == nullptr) {
        if (min_bytes == 0) return;
        allocator->before = c10::GetCPUAllocator();
        c10::SetCPUAllocator(allocator, /* priority */ 100);
    }
    allocator->min_bytes.store(min_bytes, std::memory_order_relaxed);
}

} // namespace torch_tutti
