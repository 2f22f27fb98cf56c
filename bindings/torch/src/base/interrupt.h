/*
 * Ctrl-C while a call waits inside the engine.
 *
 * Python runs signal handlers on its main thread only, between bytecodes; a thread inside the engine executes none.
 * So the engine regularly calls a function (tutti_interrupt_set) that lets Python run its handlers. An exception of
 * a handler is kept until the call has returned, and is thrown there.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace torch_tutti {

/* Must be called on Python's main thread, once. */
void watch_interrupts();

/* Throws the exception that a signal handler raised on this thread while the engine waited, if any. */
void throw_pending_interrupt();

/* Lets Python run its signal handlers; true when one has raised. For wait loops of the bindings. */
bool interrupted();

/* Polls until `done` returns true, or the time is over: false. Throws the exception of a signal handler. */
template <typename Done>
bool poll(Done done, std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max()) {
    auto pause = std::chrono::microseconds(10);
    while (!done()) {
        if (interrupted()) throw_pending_interrupt();
        if (std::chrono::steady_clock::now() >= until) return false;
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::microseconds(1000));
    }
    return true;
}

} // namespace torch_tutti
