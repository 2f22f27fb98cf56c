/*
 * Barriers in all threads, and waking. See page.h.
 */
#include "comm/base/page.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool registered;
static pthread_once_t register_once = PTHREAD_ONCE_INIT;

static void register_barriers(void) {
    registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

bool tutti_can_membarrier(void) {
    pthread_once(&register_once, register_barriers);
    return registered;
}

bool tutti_membarrier(void) {
    return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void tutti_page_prepare(tutti_page *page) {
    atomic_store_explicit(&page->fenced, tutti_can_membarrier() ? 0 : 1, memory_order_release);
}

bool tutti_page_order(tutti_page *page) {
    atomic_fetch_add_explicit(&page->sleepers, 0, memory_order_seq_cst); /* pairs with a publisher's exchange */
    return atomic_load_explicit(&page->fenced, memory_order_relaxed) != 0 || tutti_membarrier();
}

void tutti_page_wake_flag(_Atomic uint64_t *flag) {
    syscall(SYS_futex, tutti_flag_word(flag), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tutti_page_wake(tutti_page *page) {
    for (int i = 0; i < TUTTI_POSTS; i++) {
        tutti_page_wake_flag(&page->posts[i].sequence);
        tutti_page_wake_flag(&page->arrivals[i].count);
        tutti_page_wake_flag(&page->arrivals[i].done);
    }
    tutti_page_wake_flag(&page->step);
}
