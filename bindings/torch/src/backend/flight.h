/*
 * Entries in PyTorch's flight recorder, for groups in Gloo's place. Gloo writes its own entries, and PyTorch's
 * hook, which writes those of other backends, ignores groups with Gloo's name. So this file writes them into Gloo's
 * recorder, where PyTorch's functions and its analyser look for them.
 *
 * An entry is written before its operation begins, and updated when the operation has ended without an error. It
 * has no duration, like Gloo's entries. Operations are identified by the keys of their works. Requires PyTorch 2.15
 * or newer; with older versions there are no entries.
 */
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace torch_tutti {

class Flight {
public:
    /* null: this PyTorch has no recorder that this code can reach, or it is switched off (TORCH_FR_BUFFER_SIZE=0). */
    static std::shared_ptr<Flight> of_gloo();
    virtual ~Flight() = default;

    /* The name and the members of the group, which a backend learns after its creation: `ranks` are ranks of the
     * world, in order. */
    struct Group {
        std::string name, description;
        std::vector<uint64_t> ranks;
        int rank;
    };
    struct Operation {
        std::string title; /* "gloo:all_reduce", "gloo:send 0->1" */
        bool is_message;
        std::vector<at::Tensor> inputs, outputs;
        std::chrono::milliseconds timeout;
    };
    /* PyTorch's analyser needs the members of each group that has entries. */
    virtual void introduce(const Group &group) = 0;
    virtual void begins(uint64_t key, const Group &group, const Operation &operation) = 0;
    virtual void ended(uint64_t key) = 0;
};

} // namespace torch_tutti
