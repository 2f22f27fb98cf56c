/*
 * What torch_tutti.env asks of the library: what the launcher says, how a group lies on its hosts, RDMA.
 */
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tutti {

/* Adds their functions to the module. */
void bind_env(pybind11::module_ &module);

} // namespace torch_tutti
