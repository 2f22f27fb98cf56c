/*
 * Operations that a thread gathers between startCoalescing and endCoalescing. They are issued together at the end, so
 * that one that is left behind (an exception inside the manager's body) has done nothing.
 */
#pragma once

#include "backend.h"

namespace torch_tutti {

class Batch {
public:
    /* This thread's open batch on `backend`, else null. */
    static Batch *open(const Backend *backend);
    /* Opens one; one that was left behind is forgotten. */
    static Batch &begin(Backend *backend);
    /* Closes it, and hands it over. */
    static std::unique_ptr<Batch> take(const Backend *backend);

    explicit Batch(Backend *backend) : backend_(backend) {}
    /* Adds an operation; the work that stands for it until the batch begins. */
    Backend::WorkPtr add(const Call &call, Operands operands, Backend::Issue issue);
    /* Issues all as one operation. */
    Backend::WorkPtr run(const Call &call);

private:
    struct Part {
        Backend::Issue issue;
        double factor;
        std::chrono::milliseconds timeout;
    };
    Backend *backend_;
    std::vector<Part> parts_;
    std::vector<uint64_t> keys_; /* by which hooks know the parts */
    Operands operands_;
};

} // namespace torch_tutti
