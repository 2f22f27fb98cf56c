/*
 * Asking a waiting thread's program whether to go on (tutti_interrupt_set). Every wait that may last looks here; it costs
 * nothing where nobody asked for it, and reads a clock otherwise.
 */
#ifndef TUTTI_BASE_INTERRUPT_H
#define TUTTI_BASE_INTERRUPT_H

#include "tutti/tutti.h"

/* TUTTI_ERR_INTERRUPTED when the calling thread's function says so; asks at most every 50 ms. */
tutti_status tutti_interrupt_check(void);

#endif
