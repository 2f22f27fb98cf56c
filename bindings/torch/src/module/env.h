/*
 * The part of torch_tutti.env in C++: what the launcher has set, the hosts of a group, RDMA.
 */
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tutti {

/* Adds these functions to the module. */
void bind_env(pybind11::module_ &module);

} // namespace torch_tutti
