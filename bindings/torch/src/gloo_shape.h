/*
 * The first fields of PyTorch's ProcessGroupGloo.
 *
 * DistributedDataParallel logs how many threads Gloo has: it takes any backend that is named gloo for a ProcessGroupGloo and
 * calls getNumThreads, an inline function that reads the object's fields. A backend in Gloo's place has to have them at the
 * same places: after c10d::Backend, with fields of the same sizes. Up to 2.13 the threads themselves are counted, from 2.14 on
 * the number in the options counts. ProcessGroupGloo.hpp itself cannot be included: PyTorch does not install Gloo's headers.
 */
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "versions.h"

namespace torch_tutti {

struct GlooShape : c10d::Backend {
    struct Options final : c10d::Backend::Options {
        Options() : c10d::Backend::Options("gloo") {}
        std::vector<std::shared_ptr<void>> devices;
        int threads = 2; /* what Gloo itself has */
    };

protected:
    using c10d::Backend::Backend;

private:
    GlooStorePointer gloo_store_;
    const c10::intrusive_ptr<Options> gloo_options_ = c10::make_intrusive<Options>();
    std::vector<std::shared_ptr<void>> gloo_contexts_;
    std::vector<std::thread> gloo_threads_{2}; /* none of them runs */
};

} // namespace torch_tutti
