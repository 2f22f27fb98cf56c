/*
 * Releases the GIL, if the calling thread holds it, while code waits for other ranks and threads.
 *
 * Does not include Python's headers, so that most files are compiled once for all versions of Python.
 */
#pragma once

namespace torch_tutti {

class WithoutPythonLock {
public:
    WithoutPythonLock();
    ~WithoutPythonLock();
    WithoutPythonLock(const WithoutPythonLock &) = delete;
    WithoutPythonLock &operator=(const WithoutPythonLock &) = delete;

private:
    void *state_; /* the thread state, to take the GIL again; null: the thread did not hold it */
};

} // namespace torch_tutti
