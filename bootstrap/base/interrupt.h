/*
 * Interrupting a waiting thread: a wait asks the program whether to continue (tutti_interrupt_set). Every wait that
 * may last calls this check. It costs nothing when no function is set; otherwise it reads a clock.
 */
#ifndef TUTTI_BASE_INTERRUPT_H
#define TUTTI_BASE_INTERRUPT_H

#include "tutti/tutti.h"

/* Fails with TUTTI_ERR_INTERRUPTED when the calling thread's function returns nonzero; calls it at most every 50
 * ms. */
tutti_status tutti_interrupt_check(void);

#endif
