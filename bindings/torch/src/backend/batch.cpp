/*
 * Several operations as one: the coalescing manager and batch_isend_irecv. See batch.h.
 */
#include "batch.h"

namespace torch_tutti {

namespace {
thread_local std::unique_ptr<Batch> open_batch;
}

Batch *Batch::open(const Backend *backend) {
    return open_batch && open_batch->backend_ == backend ? open_batch.get() : nullptr;
}

Batch &Batch::begin(Backend *backend) {
    open_batch = std::make_unique<Batch>(backend);
    return *open_batch;
}

std::unique_ptr<Batch> Batch::take(const Backend *backend) {
    return open(backend) != nullptr ? std::move(open_batch) : nullptr;
}

Backend::WorkPtr Batch::add(const Call &call, Operands operands, Backend::Issue issue) {
    auto stands_for = c10::make_intrusive<Work>(backend_->getRank(), call.type, nullptr, 0, Operands());
    stands_for->mark_unbegun();
    parts_.push_back({std::move(issue), call.factor, call.timeout});
    keys_.push_back(stands_for->getCompletionKey());
    backend_->record(call, operands, stands_for->getCompletionKey());
    operands_.absorb(std::move(operands));
    return stands_for;
}

Backend::WorkPtr Batch::run(const Call &call) {
    auto issue = [parts = std::move(parts_), backend = backend_](tutti_comm *comm, const tutti_options *options) {
        TUTTI_TRY(tutti_group_begin(comm));
        for (const Part &part : parts) {
            tutti_options own = {};
            own.struct_bytes = sizeof own;
            own.memory = options->memory;
            own.stream = options->stream;
            own.factor = part.factor;
            own.timeout_ms = backend->timeout_of(part.timeout).count();
            tutti_status status = part.issue(comm, &own);
            if (status == TUTTI_OK) continue;
            std::string text = tutti_last_error();
            tutti_group_cancel(comm);
            return tutti_fail(status, "%s", text.c_str());
        }
        return tutti_group_end(comm, options);
    };
    auto whole = backend_->start(call, std::move(operands_), std::move(issue));
    if (whole == nullptr) return whole;
    for (uint64_t key : keys_) backend_->watch_part(static_cast<Work &>(*whole), key);
    return whole;
}

bool Backend::in_batch() {
    return Batch::open(this) != nullptr;
}

Backend::WorkPtr Backend::add_to_batch(const Call &call, Operands operands, Issue issue) {
    return Batch::open(this)->add(call, std::move(operands), std::move(issue));
}

void Backend::startCoalescing() {
    Batch::begin(this);
}

Backend::WorkPtr Backend::endCoalescing() {
    std::unique_ptr<Batch> batch = Batch::take(this);
    TORCH_CHECK(batch != nullptr, "tutti: endCoalescing without startCoalescing on this thread");
    return batch->run({c10d::OpType::COALESCED, "tutti:coalesced", /* async */ true, c10d::kUnsetTimeout});
}

} // namespace torch_tutti
