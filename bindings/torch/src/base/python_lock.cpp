/*
 * Releasing the GIL. See python_lock.h.
 */
#include <Python.h>

#include "python_lock.h"

namespace torch_tutti {

WithoutPythonLock::WithoutPythonLock()
    : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}

WithoutPythonLock::~WithoutPythonLock() {
    if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState *>(state_));
}

} // namespace torch_tutti
