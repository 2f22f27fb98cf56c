/*
 * The Python module torch_tutti._C.
 */
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "../backend/backend.h"
#include "../base/errors.h"
#include "../base/interrupt.h"
#include "../base/memory.h"
#include "../base/python_lock.h"
#include "as_gloo.h"
#include "env.h"
#include "redistribute.h"
#include "tutti/device.h"

namespace py = pybind11;
using namespace torch_tutti;

namespace {

using OptionsPtr = c10::intrusive_ptr<Options>;
using BackendPtr = c10::intrusive_ptr<Backend>;

OptionsPtr copy_of(const Options &options) {
    return c10::make_intrusive<Options>(options);
}

BackendPtr create_backend(const c10d::DistributedBackendOptions &group, const OptionsPtr &given) {
    TUTTI_CHECK_VALUE(!wants_reconfigure(group),
                      "tutti: the members of a group cannot change, so enable_reconfigure is not supported; ",
                      "shrink, split and merge create other groups");
    OptionsPtr options = given ? copy_of(*given) : c10::make_intrusive<Options>();
    options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(group.timeout);
    options->group_name = group.group_id;
    options->global_ranks_in_group.assign(group.global_ranks_in_group.begin(), group.global_ranks_in_group.end());
    return c10::make_intrusive<Backend>(group.store, group.group_rank, group.group_size, options);
}

BackendPtr create_backend_plain(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                std::chrono::milliseconds timeout) {
    return c10::make_intrusive<Backend>(store, rank, size, c10::make_intrusive<Options>(timeout));
}

BackendPtr create_backend_as_gloo(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                  std::chrono::milliseconds timeout) {
    return c10::make_intrusive<GlooBackend>(store, rank, size, c10::make_intrusive<Options>(timeout, "gloo"));
}

template <typename... Base> py::class_<Options, OptionsPtr, Base...> options_class(py::module_ &module) {
    return {module, "Options",
            "Settings of one group: name (of the communicator, in errors), zero_copy (DDP's and FSDP's buffers in "
            "memory that the ranks of a host share), blocking_wait (a wait for an operation on CUDA tensors blocks "
            "the host, and raises its error; default: TUTTI_BLOCKING_WAIT)."};
}

template <typename Class> void bind_settings(Class options) {
    options.def(py::init([] { return c10::make_intrusive<Options>(); }))
        .def_readwrite("name", &Options::name)
        .def_readwrite("zero_copy", &Options::zero_copy)
        .def_readwrite("blocking_wait", &Options::blocking_wait)
        .def("__copy__", copy_of)
        .def("__deepcopy__", [](const Options &from, const py::dict &) { return copy_of(from); });
}

/* Old versions of PyTorch (for example 2.4) have no Backend.Options in Python as a base class. */
void bind_options(py::module_ &module) {
    if (py::detail::get_type_info(typeid(c10d::Backend::Options)) != nullptr)
        return bind_settings(options_class<c10d::Backend::Options>(module));
    auto options = options_class<>(module);
    options.def_readwrite("_timeout", &Options::timeout);
    bind_settings(options);
}

void bind_backend(py::module_ &module) {
    auto unlocked = py::call_guard<py::gil_scoped_release>();
    py::class_<Backend, BackendPtr, c10d::Backend> bound(module, "Backend");
    bound
        .def(
            "abort", [](Backend &backend) { backend.abort(); }, unlocked)
        .def(
            "abort",
            [](Backend &backend, const std::string &reason) {
                backend.hooks()->expect_failures();
                backend.abort_because(reason);
            },
            py::arg("reason"), unlocked)
        .def("error_text", &Backend::error_text);
    /* With init_process_group(device_id=...) PyTorch calls this on ranks outside a new group, for NCCL. */
    bound.def(
        "perform_nocolor_split", [](Backend &, const py::object &) {}, py::arg("device"));
    if (py::detail::get_type_info(typeid(ErrorType)) != nullptr) bound.def("get_error", &Backend::getError, unlocked);
    if (!py::hasattr(bound, "options")) bound.def_property_readonly("options", &Backend::options);
    module.def("create_backend", create_backend, py::arg("dist_backend_opts"), py::arg("options").none(true), unlocked);
    module.def("create_backend_plain", create_backend_plain, py::arg("store"), py::arg("rank"), py::arg("size"),
               py::arg("timeout") = kBackendDefaultTimeout, unlocked);
}

/* make(store, rank, size, timeout) creates a real Gloo; note(call, why, rank) is called for each call that goes to
 * it. */
void set_real_gloo_of_python(py::object make_with, py::object note_with) {
    auto *make = new py::object(std::move(make_with)), *note = new py::object(std::move(note_with));
    auto *real = new RealGloo;
    real->make = [make](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                        std::chrono::milliseconds timeout) {
        py::gil_scoped_acquire locked;
        return py::cast<c10::intrusive_ptr<c10d::Backend>>((*make)(store, rank, size, timeout));
    };
    real->note = [note](const char *call, const char *why, int rank) {
        py::gil_scoped_acquire locked;
        (*note)(call, why, rank);
    };
    set_real_gloo(real);
}

void bind_as_gloo(py::module_ &module) {
    py::class_<GlooBackend, c10::intrusive_ptr<GlooBackend>, Backend>(module, "GlooBackend");
    module.def("create_backend_as_gloo", create_backend_as_gloo, py::arg("store"), py::arg("rank"), py::arg("size"),
               py::arg("timeout") = kBackendDefaultTimeout, py::call_guard<py::gil_scoped_release>());
    module.def("set_real_gloo", set_real_gloo_of_python, py::arg("make"), py::arg("note"));
}

void bind_memory(py::module_ &module) {
    module.def(
        "empty", [](int64_t bytes) { return empty_shared({bytes}, at::kByte); }, py::arg("nbytes"));
    module.def("use_allocator", use_allocator, py::arg("min_bytes"));
    module.def("shareable", is_shared, py::arg("tensor"));
}

/* A tensor on one side: (ranks, axes, sbp); and its conversion: (shape, a tensor of the dtype, from, to). */
using SideTuple = std::tuple<std::vector<int>, std::vector<int>, std::string>;
using JourneyTuple = std::tuple<std::vector<int64_t>, at::Tensor, SideTuple, SideTuple>;

Side side_of(const SideTuple &side) {
    return {std::get<0>(side), std::get<1>(side), std::get<2>(side)};
}

std::shared_ptr<Redistribution> plan_redistribution(const BackendPtr &backend,
                                                    const std::vector<JourneyTuple> &journeys) {
    std::vector<Journey> all;
    for (const auto &[shape, like, from, to] : journeys)
        all.push_back({shape, like.scalar_type(), side_of(from), side_of(to)});
    /* The destructor communicates with other ranks, so it runs without the GIL. */
    return {new Redistribution(backend, all), [](Redistribution *plan) {
                WithoutPythonLock unlocked;
                delete plan;
            }};
}

void bind_redistribution(py::module_ &module) {
    auto unlocked = py::call_guard<py::gil_scoped_release>();
    py::class_<Redistribution, std::shared_ptr<Redistribution>>(module, "Redistribution")
        .def("run", &Redistribution::run, py::arg("shards"), unlocked)
        .def("describe", &Redistribution::describe);
    module.def("plan_redistribution", plan_redistribution, py::arg("backend"), py::arg("journeys"), unlocked);
}

/* The number of GPUs that Tutti can use, and if it is 0, the reason. Initializes the CUDA driver. */
std::pair<int, std::string> gpus() {
    int count = 0;
    tutti_status status = tutti_device_count(&count);
    return {count, status == TUTTI_OK ? "" : tutti_last_error()};
}

/* The type lives as long as the process, which may end while a thread raises an error. */
PyObject *argument_error = nullptr;

void bind_errors(py::module_ &module) {
    py::tuple bases = py::make_tuple(py::handle(PyExc_ValueError), py::handle(PyExc_RuntimeError));
    argument_error = PyErr_NewExceptionWithDoc("torch_tutti.ArgumentError", "A wrong argument in a call to a group.",
                                               bases.ptr(), nullptr);
    if (argument_error == nullptr) throw py::error_already_set();
    module.attr("ArgumentError") = py::handle(argument_error);
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const ArgumentError &error) {
            PyErr_SetString(argument_error, error.what_without_backtrace());
        }
    });
}

} // namespace

PYBIND11_MODULE(_C, module) {
    module.attr("torch_version") = TORCH_VERSION;
    module.attr("tutti_version") = tutti_version();
    bind_errors(module);
    bind_options(module);
    bind_backend(module);
    bind_as_gloo(module);
    bind_memory(module);
    bind_env(module);
    bind_redistribution(module);
    module.def("gpus", gpus, py::call_guard<py::gil_scoped_release>());
    module.def("shutdown_all", shutdown_all, py::call_guard<py::gil_scoped_release>());
    module.def("watch_interrupts", watch_interrupts);
    watch_interrupts();
}
