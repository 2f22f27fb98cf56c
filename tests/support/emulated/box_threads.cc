/*
 * The GPU's kernels for copies of boxes, compiled for the host and run by emulated/grid.cc: threads of a block take
 * turns where they wait for each other.
 */
#include "kernels/cuda/grid.h"

#define __forceinline__
#define __grid_constant__
#define __launch_bounds__(threads)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* Byte i of the result is the byte that digit i of `which` selects from x's four bytes followed by y's. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

#include "kernels/cuda/reduce/box_kernels.h"
#include "tests/support/emulated/box_threads.h"

/* Addresses are the host's. */
void *emulated_reach(const void *address) {
    return (void *)address;
}

static void run_thread(void *context) {
    const tutti_cuda_box *box = (const tutti_cuda_box *)context;
    kernel_for (*box)(*box);
}

extern "C" void copy_box_by_threads(const tutti_cuda_box *box, unsigned blocks) {
    emulated_run(dim3(blocks), dim3(box_threads), run_thread, (void *)box);
}
