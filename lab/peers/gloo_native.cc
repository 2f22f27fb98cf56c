// Gloo for the comparison, through its own C++ interface: without Python and PyTorch around it. The algorithms are
// those that PyTorch uses: the newest interface of each operation with its default; reduce_scatter exists only as a
// class of the older interface.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

extern "C" {
#include "core.h"
}

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;

template <typename Options>
Options in_out(const float *src, float *dst, size_t in, size_t out) {
    Options options(context);
    options.setInput(const_cast<float *>(src), in);
    options.setOutput(dst, out);
    return options;
}

void all_reduce(const float *src, float *dst, size_t count) {
    gloo::AllreduceOptions options(context);
    if (src != dst) options.setInput(const_cast<float *>(src), count);
    options.setOutput(dst, count);
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

// The algorithm works in place, and is constructed for one memory block.
void reduce_scatter(const float *src, float *dst, size_t count) {
    const size_t all = count * static_cast<size_t>(context->size);
    static std::vector<float> room;
    static std::map<std::tuple<float *, size_t>, std::unique_ptr<gloo::Algorithm>> made;
    float *work = dst;
    if (src != dst) {
        room.resize(std::max(room.size(), all));
        work = room.data();
        std::memcpy(work, src, all * sizeof(float));
    }
    auto &algorithm = made[{work, all}];
    if (algorithm == nullptr) {
        const std::vector<int> counts(static_cast<size_t>(context->size), static_cast<int>(count));
        algorithm = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
            context, std::vector<float *>{work}, static_cast<int>(all), counts, gloo::ReductionFunction<float>::sum);
    }
    algorithm->run();
    if (src != dst) std::memcpy(dst, work, count * sizeof(float));
}

void broadcast(float *dst, size_t count, int root) {
    gloo::BroadcastOptions options(context);
    options.setOutput(dst, count);
    options.setRoot(root);
    gloo::broadcast(options);
}

void ping_pong(const float *src, float *dst, size_t count) {
    const int other = context->rank ^ 1;
    auto out = context->createUnboundBuffer(const_cast<float *>(src), count * sizeof(float));
    auto in = context->createUnboundBuffer(dst, count * sizeof(float));
    const auto send = [&] { out->send(other, 1), out->waitSend(); };
    const auto recv = [&] { in->recv(other, 1), in->waitRecv(); };
    if (context->rank % 2 == 0) send(), recv();
    else recv(), send();
}

void gather(const float *src, float *dst, size_t count, int root) {
    gloo::GatherOptions options(context);
    options.setInput(const_cast<float *>(src), count);
    if (context->rank == root) options.setOutput(dst, count * static_cast<size_t>(context->size));
    options.setRoot(root);
    gloo::gather(options);
}

void scatter(const float *src, float *dst, size_t count, int root) {
    gloo::ScatterOptions options(context);
    std::vector<float *> parts;
    for (int rank = 0; rank < context->size; rank++)
        parts.push_back(const_cast<float *>(src) + static_cast<size_t>(rank) * count);
    if (context->rank == root) options.setInputs(parts, count);
    options.setOutput(dst, count);
    options.setRoot(root);
    gloo::scatter(options);
}

void start(int collective, const float *src, float *dst, size_t count, int root) {
    const size_t all = count * static_cast<size_t>(context->size);
    switch (collective) {
    case CORE_ALL_REDUCE: return all_reduce(src, dst, count);
    case CORE_ALL_GATHER: {
        auto options = in_out<gloo::AllgatherOptions>(src, dst, count, all);
        return gloo::allgather(options);
    }
    case CORE_REDUCE_SCATTER: return reduce_scatter(src, dst, count);
    case CORE_BROADCAST: return broadcast(dst, count, root);
    case CORE_ALL_TO_ALL: {
        auto options = in_out<gloo::AlltoallOptions>(src, dst, all, all);
        return gloo::alltoall(options);
    }
    case CORE_BARRIER: {
        gloo::BarrierOptions options(context);
        return gloo::barrier(options);
    }
    case CORE_PING_PONG: return ping_pong(src, dst, count);
    case CORE_GATHER: return gather(src, dst, count, root);
    case CORE_SCATTER: return scatter(src, dst, count, root);
    default: throw std::runtime_error("Gloo has no such operation");
    }
}

int run(int collective, const float *src, float *dst, size_t count, int root) {
    try {
        start(collective, src, dst, count, root);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "gloo: %s\n", error.what());
        return 1;
    }
}

} // namespace

int main(int argc, char **argv) {
    core_start(argc, argv);
    const int rank = std::atoi(std::getenv("RANK")), size = std::atoi(std::getenv("WORLD_SIZE"));
    const char *interface = std::getenv("GLOO_SOCKET_IFNAME");
    gloo::transport::tcp::attr attributes;
    if (interface != nullptr) attributes.iface = interface;
    else attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto store = std::make_shared<gloo::rendezvous::FileStore>(std::getenv("GLOO_STORE"));
    context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    core_peer peer = {};
    peer.rank = rank, peer.size = size, peer.run = run;
    const int status = core_run(&peer, argc, argv);
    std::fflush(nullptr);
    _exit(status); // ranks that are done no longer answer
}
