/*
 * Without Python's lock, if the calling thread has it: for what waits for other ranks and threads.
 *
 * Knows nothing of Python's headers, so that most files are compiled once for all versions of Python.
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
    void *state_; /* the thread's, to take the lock back with; null: it did not have it */
};

} // namespace torch_tutti
