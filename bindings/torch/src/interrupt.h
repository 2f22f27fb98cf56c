/*
 * Ctrl-C while a call waits inside the engine.
 *
 * Python runs signal handlers on its main thread only, between bytecodes; a thread inside the engine reaches none. So
 * the engine asks every now and then (tutti_interrupt_set), and we let Python look. What a handler raises is kept until
 * the call has come back, and thrown there.
 */
#pragma once

namespace torch_tutti {

/* On Python's main thread, once. */
void watch_interrupts();

/* Throws what a signal handler has raised on this thread while the engine waited; returns if there is nothing. */
void throw_pending_interrupt();

/* Lets Python run its signal handlers; true when one has raised. For our own wait loops. */
bool interrupted();

} // namespace torch_tutti
