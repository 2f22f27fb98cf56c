/*
 * The first fields of PyTorch's ProcessGroupGloo, at the same offsets.
 *
 * DistributedDataParallel logs the number of Gloo's threads: it casts any backend named gloo to a ProcessGroupGloo
 * and calls getNumThreads, an inline function that reads the object's fields. A backend in Gloo's place must have
 * these fields at the same offsets: after c10d::Backend, with the same sizes. Up to 2.13 getNumThreads counts the
 * threads, from 2.14 on it reads the number in the options. ProcessGroupGloo.hpp cannot be included here: PyTorch
 * does not install Gloo's headers.
 */
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "../base/versions.h"

namespace torch_tutti {

struct GlooShape : c10d::Backend {
    struct Options final : c10d::Backend::Options {
        Options() : c10d::Backend::Options("gloo") {}
        std::vector<std::shared_ptr<void>> devices;
        int threads = 2; /* Gloo's own default */
    };

protected:
    using c10d::Backend::Backend;

private:
    GlooStorePointer gloo_store_;
    const c10::intrusive_ptr<Options> gloo_options_ = c10::make_intrusive<Options>();
    std::vector<std::shared_ptr<void>> gloo_contexts_;
    std::vector<std::thread> gloo_threads_{2}; /* none of them is running */
};

} // namespace torch_tutti
