/*
 * Ctrl-C while a call waits inside the engine. See interrupt.h.
 */
#include "interrupt.h"

#include <torch/csrc/Exceptions.h>

#include <memory>

#include "tutti/tutti.h"

namespace torch_tutti {

namespace {

thread_local bool watched = false;
thread_local std::unique_ptr<python_error> pending;

int ask(void *) {
    return interrupted() ? 1 : 0;
}

} // namespace

void watch_interrupts() {
    watched = tutti_interrupt_set(ask, nullptr) == TUTTI_OK;
}

bool interrupted() {
    if (!watched) return false;
    if (pending) return true;
    if (!Py_IsInitialized()) return false;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return false;
    pending = std::make_unique<python_error>();
    pending->persist();
    return true;
}

void throw_pending_interrupt() {
    if (C10_LIKELY(!pending)) return;
    python_error error(std::move(*pending));
    pending.reset();
    throw error;
}

} // namespace torch_tutti
