/*
 * The operations that a thread adds between startCoalescing and endCoalescing. They are issued together at the end,
 * so an abandoned batch (after an exception inside the manager's body) has done nothing.
 */
#pragma once

#include "backend.h"

namespace torch_tutti {

class Batch {
public:
    /* The open batch of this thread on `backend`, or null. */
    static Batch *open(const Backend *backend);
    /* Opens a batch; an abandoned one is discarded. */
    static Batch &begin(Backend *backend);
    /* Closes the batch and returns it. */
    static std::unique_ptr<Batch> take(const Backend *backend);

    explicit Batch(Backend *backend) : backend_(backend) {}
    /* Adds an operation; returns the work that stands for it until the batch begins. */
    Backend::WorkPtr add(const Call &call, Operands operands, Backend::Issue issue);
    /* Issues all operations as one. */
    Backend::WorkPtr run(const Call &call);

private:
    struct Part {
        Backend::Issue issue;
        double factor;
        std::chrono::milliseconds timeout;
    };
    Backend *backend_;
    std::vector<Part> parts_;
    std::vector<uint64_t> keys_; /* hooks know the parts by these */
    Operands operands_;
};

} // namespace torch_tutti
