/*
 * When a wait is logged: after 2 s, 10 s, 30 s, then every minute. The time waited is the time charged to a
 * deadline (deadline.h), so a pause of this process is not logged as waiting.
 */
#ifndef TUTTI_BASE_NOTICE_H
#define TUTTI_BASE_NOTICE_H

#include <stdbool.h>
#include <stdint.h>

#include "bootstrap/base/common.h"

#define TUTTI_NOTICE_MS 2000

typedef struct tutti_notice {
    int said; /* lines logged so far */
} tutti_notice;

/* Returns true when the next line is due, and counts it as logged. */
static inline bool tutti_notice_due(tutti_notice *notice, int64_t waited_ns) {
    static const int first_ms[] = {TUTTI_NOTICE_MS, 10000, 30000};
    int64_t at_ms = notice->said < 3 ? first_ms[notice->said] : INT64_C(60000) * (notice->said - 2);
    if (waited_ns < at_ms * TUTTI_NS_PER_MS) return false;
    notice->said++;
    return true;
}

#endif
