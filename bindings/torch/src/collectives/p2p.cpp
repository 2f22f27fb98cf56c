/*
 * Point to point, and the barrier that names the missing ranks.
 */
#include "../backend/backend.h"
#include "../base/interrupt.h"

#include <algorithm>

namespace torch_tutti {

/* Tags of PyTorch are ints; larger ones are internal. Messages of CUDA tensors have internal tags: they start when
 * a stream reaches them, and a later message that did not wait must not match instead. */
static constexpr int64_t monitored_tags = INT64_C(1) << 40;
static constexpr int64_t cuda_tags = INT64_C(1) << 41;

Backend::WorkPtr Backend::message(const char *title, c10d::OpType type, Tensors &tensors, int peer, int64_t tag) {
    TUTTI_CHECK_VALUE(tensors.size() == 1, "tutti: send and recv take one tensor, ", tensors.size(), " given");
    TUTTI_CHECK_VALUE(tag >= 0, "tutti: tags must not be negative, and this one is ", tag);
    bool sends = type == c10d::OpType::SEND;
    const at::Tensor &tensor = tensors[0];
    Operands operands;
    const void *src = sends ? operands.in(tensor) : nullptr;
    void *dst = sends ? nullptr : operands.out(tensor);
    operands.results = tensors;
    if (tensor.is_cuda()) tag += cuda_tags;
    Elements as = moved_as(tensor.scalar_type());
    size_t count = static_cast<size_t>(tensor.numel()) * as.per_item;
    Call call = {type, title, /* async */ true, c10d::kUnsetTimeout};
    call.lane = Lanes::of_peer(peer, sends);
    return start(call, std::move(operands), [=](tutti_comm *comm, const tutti_options *options) {
        return sends ? tutti_send(comm, src, count, as.type, peer, tag, options)
                     : tutti_recv(comm, dst, count, as.type, peer, tag, options);
    });
}

Backend::WorkPtr Backend::send(Tensors &tensors, int peer, int tag) {
    return message("tutti:send", c10d::OpType::SEND, tensors, peer, tag);
}

Backend::WorkPtr Backend::recv(Tensors &tensors, int peer, int tag) {
    return message("tutti:recv", c10d::OpType::RECV, tensors, peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors &tensors, int tag) {
    return message("tutti:recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, TUTTI_ANY_SOURCE, tag);
}

/* -------------------------------------------------------------------------------------- monitored barrier */

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds left(Clock::time_point until) {
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    return std::max(ms, std::chrono::milliseconds(1));
}

/* Waits without breaking the group; false when the time is up. */
bool came(const Backend::WorkPtr &work, Clock::time_point until) {
    try {
        return work->wait(left(until));
    } catch (const c10::DistBackendError &) {
        if (work->isCompleted()) throw;
        return false;
    }
}

std::string join(const std::vector<int> &ranks) {
    std::string text;
    for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
}

} // namespace

/* Rank 0 receives from every rank, then sends to every rank; so rank 0 knows which ranks are missing. */
void Backend::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) {
    std::chrono::milliseconds timeout = opts.timeout.count() >= 0 ? opts.timeout : timeout_of(opts.timeout);
    TORCH_CHECK_WITH(DistBackendError, timeout.count() > 0, "Rank ", getRank(),
                     " timed out in monitoredBarrier after 0 ms.");
    Clock::time_point until = Clock::now() + timeout;
    int64_t tag = monitored_tags + 2 * static_cast<int64_t>(monitored_.fetch_add(1));
    auto exchange = [&](bool sends, int peer, int64_t own_tag) {
        Tensors byte = {at::zeros({1}, at::kByte)};
        return message(sends ? "tutti:send" : "tutti:recv", sends ? c10d::OpType::SEND : c10d::OpType::RECV, byte, peer,
                       own_tag);
    };
    if (getRank() != 0) {
        exchange(/* sends */ true, 0, tag);
        TORCH_CHECK_WITH(DistBackendError, came(exchange(/* sends */ false, 0, tag + 1), until), "Rank ", getRank(),
                         " successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                         "rank 0. Please check rank 0 logs for faulty rank.");
        return;
    }
    std::vector<WorkPtr> hellos;
    for (int rank = 1; rank < getSize(); rank++) hellos.push_back(exchange(/* sends */ false, rank, tag));
    std::vector<int> missing;
    for (int rank = 1; rank < getSize(); rank++) {
        if (came(hellos[static_cast<size_t>(rank - 1)], until)) continue;
        missing.push_back(rank);
        if (!wait_all_ranks) break;
    }
    TORCH_CHECK_WITH(DistBackendError, missing.empty(), "[Rank 0]: ", missing.size() == 1 ? "Rank " : "Ranks ",
                     join(missing), " failed to pass monitoredBarrier in ", timeout.count(), " ms");
    for (int rank = 1; rank < getSize(); rank++) exchange(/* sends */ true, rank, tag + 1);
}

} // namespace torch_tutti
