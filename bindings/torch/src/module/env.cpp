/*
 * See env.h. The users' documentation is in torch_tutti/env.py.
 */
#include "env.h"

#include <pybind11/stl.h>

#include <map>
#include <string>

#include "../backend/backend.h"

namespace py = pybind11;

namespace torch_tutti {

void Backend::init_rdma() {
    check_issued(tutti_comm_init_rdma(comm()));
    rdma_.store(true, std::memory_order_release);
}

namespace {

/* Named get_... in Python. */
using Numbers = std::map<std::string, int>;

Numbers launched() {
    tutti_world world = {};
    check(tutti_world_get(&world));
    return {
        {"world_size", world.size}, {"rank", world.rank}, {"local_rank", world.local_rank}, {"node_size", world.nodes}};
}

Numbers found(Backend &backend) {
    tutti_comm_details details = {};
    check(tutti_comm_get(backend.comm(), &details));
    return {{"local_rank", details.local_rank}, {"node_size", details.hosts}};
}

} // namespace

void bind_env(py::module_ &module) {
    auto unlocked = py::call_guard<py::gil_scoped_release>();
    module.def("launched", launched, unlocked);
    module.def("found", found, py::arg("backend"), unlocked);
    module.def(
        "init_rdma", [](Backend &backend) { backend.init_rdma(); }, py::arg("backend"), unlocked);
    module.def(
        "has_rdma", [](const Backend &backend) { return backend.has_rdma(); }, py::arg("backend"));
}

} // namespace torch_tutti
