/*
 * Interrupting waits. See interrupt.h.
 */
#include "bootstrap/base/interrupt.h"

#include <stddef.h>

#include "bootstrap/base/deadline.h"

#define ASK_EVERY_NS INT64_C(50000000)

static _Thread_local struct {
    int (*asked)(void *);
    void *context;
    int64_t last_ns;
} own;

tutti_status tutti_interrupt_set(int (*asked)(void *context), void *context) {
    own.asked = asked;
    own.context = context;
    return TUTTI_OK;
}

tutti_status tutti_interrupt_check(void) {
    if (own.asked == NULL) return TUTTI_OK;
    int64_t now_ns = tutti_now_ns();
    if (now_ns - own.last_ns < ASK_EVERY_NS) return TUTTI_OK;
    own.last_ns = now_ns;
    if (own.asked(own.context) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_INTERRUPTED,
                      "interrupted while waiting (Ctrl-C, or another signal whose handler asked to stop)");
}
