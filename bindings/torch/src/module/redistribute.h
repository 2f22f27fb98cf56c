/*
 * Conversion of tensors from one layout to another: one plan of Tutti for several tensors, over a group's
 * communicator.
 *
 * A plan keeps its backend, and so the communicator of its placements, alive. Plans use communicators of their own,
 * not the group's: only plans must be made and run in the same order on all ranks that take part.
 */
#pragma once

#include <ATen/ATen.h>
#include <tutti/tensor.h>

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "../backend/backend.h"

namespace torch_tutti {

/* The layout of a tensor on one side: ranks of the group, row-major over the axes, and an sbp such as
 * "S0,B,P(sum)". */
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
    /* Collective over the ranks of all sides; call it without the GIL. */
    Redistribution(c10::intrusive_ptr<Backend> backend, const std::vector<Journey> &journeys);
    ~Redistribution();
    Redistribution(const Redistribution &) = delete;
    Redistribution &operator=(const Redistribution &) = delete;

    /* Collective. `shards`: this rank's shard of each tensor; ignored where this rank has no part of the source.
     * Returns new shards, which are empty where this rank has no part of the target. */
    std::vector<at::Tensor> run(const std::vector<at::Tensor> &shards);
    std::string describe();

private:
    /* One side of one tensor. */
    struct End {
        tutti_placement *placement = nullptr;
        std::array<tutti_sbp, TUTTI_MOST_AXES> sbp = {};
        /* The shape of the whole tensor; with one more dimension where one dtype is several elements of the engine. */
        std::vector<int64_t> extents;
        tutti_layout layout = {};
        std::vector<int64_t> local; /* the shard's shape in PyTorch */
        bool here = false;          /* this rank has a shard */
    };
    struct Shards;

    void fill(End &end, const Journey &journey, const Side &side);
    void prepare(const std::vector<Journey> &journeys);
    void destroy();

    c10::intrusive_ptr<Backend> backend_;
    std::vector<at::ScalarType> dtypes_;
    std::vector<End> ends_; /* first the sources, then the targets */
    tutti_plan *plan_ = nullptr;
    std::mutex mutex_; /* a plan has one scratch memory */
};

} // namespace torch_tutti
