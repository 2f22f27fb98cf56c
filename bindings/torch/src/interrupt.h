/*
 * Ctrl-C while a call waits inside the engine.
 *
 * Python runs signal handlers on its main thread only, between bytecodes; a thread inside the engine reaches none. So
 * the engine asks every now and then (tutti_interrupt_set), and we let Python look. What a handler raises is kept until
 * the call has come back, and thrown there.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace torch_tutti {

/* On Python's main thread, once. */
void watch_interrupts();

/* Throws what a signal handler has raised on this thread while the engine waited; returns if there is nothing. */
void throw_pending_interrupt();

/* Lets Python run its signal handlers; true when one has raised. For our own wait loops. */
bool interrupted();

/* Looks again and again until `done` says yes, or the time is over: false. Throws what a signal handler raises. */
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
