/*
 * Tensors that go from one layout to another: a plan of Tutti's for some of them at once, over a group's communicator.
 *
 * A plan keeps its backend, and so the communicator that its placements stand on, for as long as it lives. The communicators that
 * plans use are apart from the group's: only plans need to be made and run in one order on all ranks that take part.
 */
#pragma once

#include <ATen/ATen.h>
#include <tutti/tensor.h>

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "backend.h"

namespace torch_tutti {

/* What a tensor's layout is on one side: ranks of the group, row-major over the axes, and an sbp such as "S0,B,P(sum)". */
struct Side {
    std::vector<int> ranks, axes;
    std::string sbp;
};

struct Journey {
    std::vector<int64_t> shape; /* of the whole tensor */
    at::ScalarType dtype;
    Side from, to;
};

class Redistribution {
public:
    /* Collective over the ranks of all sides; without the GIL. */
    Redistribution(c10::intrusive_ptr<Backend> backend, const std::vector<Journey> &journeys);
    ~Redistribution();
    Redistribution(const Redistribution &) = delete;
    Redistribution &operator=(const Redistribution &) = delete;

    /* Collective. This rank's shards, one for each tensor, of which those are not looked at that it has no part of; gives new ones,
     * without elements where this rank has no part of the target. */
    std::vector<at::Tensor> run(const std::vector<at::Tensor> &shards);
    std::string describe();

private:
    /* One tensor on one side. */
    struct End {
        tutti_placement *placement = nullptr;
        std::array<tutti_sbp, TUTTI_MOST_AXES> sbp = {};
        std::vector<int64_t>
            extents; /* of the whole; with one more dimension where a type is several of the engine's */
        tutti_layout layout = {};
        std::vector<int64_t> local; /* the shard's shape, as PyTorch has it */
        bool here = false;          /* this rank has a part */
    };
    struct Shards;

    void fill(End &end, const Journey &journey, const Side &side);
    void prepare(const std::vector<Journey> &journeys);
    void destroy();

    c10::intrusive_ptr<Backend> backend_;
    std::vector<at::ScalarType> dtypes_;
    std::vector<End> ends_; /* first the sources', then the targets' */
    tutti_plan *plan_ = nullptr;
    std::mutex mutex_; /* a plan has one scratch memory */
};

} // namespace torch_tutti
