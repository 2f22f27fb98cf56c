/*
 * Marks: words of pinned memory, allocated a page at a time, or CUDA events; and the thread that asks CUDA for failed
 * GPUs. See event.h.
 *
 * The numbers that streams write to a word only grow, also across successive users of the word. A word that a
 * stream may still write to is not reused: the old number would arrive after the new one.
 */
#include "comm/gpu/event.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"

#define PAGE_BYTES ((size_t)4096)
#define PAGE_MARKS (PAGE_BYTES / sizeof(uint64_t))

#define EVERY_NS (50 * TUTTI_NS_PER_MS)

/* ----------------------------------------------------------------------------------------- failed GPUs
 * Nothing in the streams of a failed GPU runs any more, so no mark shows the failure; only CUDA calls return it. A
 * separate thread makes such a call, because it may block, and the watcher must not. The thread starts when calls are
 * in flight, polls every 50 ms the GPUs that have calls in flight, and ends after one second without any.
 *
 * Invariant: a failed GPU stays failed until the process ends, as in CUDA. The text is written before the status.
 */

struct tutti_error_poll {
    tutti_error_poll *next;
    const tutti_device *device;
    int index;
    _Atomic int64_t expected_ns;       /* when calls were last in flight */
    _Atomic(tutti_event_handle) event; /* never recorded: the query reports on the GPU alone; NULL: not open */
    atomic_int status;                 /* written by the thread, release; pairs with the acquire in failure_of */
    tutti_error error;
};

static tutti_error_poll *faults;

tutti_error_poll *tutti_error_poll_of(const tutti_device *device, int index) {
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    tutti_error_poll *fault = faults;
    while (fault != NULL && fault->index != index) fault = fault->next;
    if (fault == NULL && (fault = calloc(1, sizeof *fault)) != NULL) {
        fault->device = device;
        fault->index = index;
        fault->next = faults;
        faults = fault;
    }
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
    return fault;
}

/* Must be called before failure_of; the GPU must be current. May be called repeatedly. The event is created here
 * because the thread may poll while the process ends, when CUDA creates no events any more. */
static tutti_status open_poll(tutti_error_poll *fault) {
    tutti_event_handle event, none = NULL;
    if (atomic_load_explicit(&fault->event, memory_order_relaxed) != NULL) return TUTTI_OK;
    TUTTI_TRY(fault->device->event_create(&event));
    if (!atomic_compare_exchange_strong(&fault->event, &none, event)) fault->device->event_destroy(event);
    return TUTTI_OK;
}

/* TUTTI_OK, or the failure that CUDA has reported, as this thread's error. */
static tutti_status failure_of(const tutti_error_poll *fault) {
    tutti_status status = (tutti_status)atomic_load_explicit(&fault->status, memory_order_acquire);
    return status == TUTTI_OK ? TUTTI_OK : tutti_fail_again(status, &fault->error);
}

static tutti_status ask_cuda(const tutti_error_poll *fault) {
    tutti_event_handle event = atomic_load_explicit(&fault->event, memory_order_acquire);
    if (event == NULL) return TUTTI_OK;
    TUTTI_TRY(fault->device->use(fault->index));
    return fault->device->event_query(event);
}

static void look(tutti_error_poll *fault) {
    if (atomic_load_explicit(&fault->status, memory_order_relaxed) != TUTTI_OK) return;
    tutti_status status = ask_cuda(fault);
    if (status == TUTTI_OK || status == TUTTI_NOT_YET) return;
    fault->error = tutti_fail_save();
    atomic_store_explicit(&fault->status, (int)status, memory_order_release);
}

/* The list only grows, at its head. */
static bool look_at_all(int64_t *nap_ns_out) {
    bool expected = false;
    tutti_error_poll *fault = faults;
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
    for (; fault != NULL; fault = fault->next) {
        if (tutti_now_ns() - atomic_load_explicit(&fault->expected_ns, memory_order_relaxed) >= 2 * EVERY_NS) continue;
        look(fault);
        expected = true;
    }
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    *nap_ns_out = EVERY_NS;
    return expected;
}

static tutti_service poller = {
    .thread = TUTTI_THREAD_CUDA_POLL, .lock = TUTTI_LOCK_ERROR_POLL, .round = look_at_all, .most_threads = 1};

void tutti_error_poll_expect(tutti_error_poll *fault) {
    atomic_store_explicit(&fault->expected_ns, tutti_now_ns(), memory_order_relaxed);
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    if (poller.threads == 0) tutti_service_wake(&poller);
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
}

/* -------------------------------------------------------------------------------------------------- marks */

struct tutti_stream_event {
    const tutti_device *device;
    const tutti_error_poll *fault;
    tutti_event_handle event; /* NULL: the mark is a word */
    _Atomic uint64_t *word;   /* written in streams */
    void *word_on_device;
    uint64_t number; /* last number put; used by the holder that puts it */
    int holders;     /* under the lock, like next */
    tutti_stream_event *next;
};

static struct {
    tutti_stream_event *free; /* free word marks; streams may not have passed all of them */
    struct page *pages;
} pool;

/* Kept until the process ends, like all pinned memory. */
typedef struct page {
    struct page *next;
    tutti_stream_event marks[PAGE_MARKS];
} page;

/* Acquire: pairs with the stream's write, so that everything that it wrote before is visible. */
static bool has_passed(const tutti_stream_event *mark) {
    return atomic_load_explicit(mark->word, memory_order_acquire) >= mark->number;
}

/* Takes the first free mark that no stream writes to any more. */
static tutti_stream_event *take_free(void) {
    tutti_lock(TUTTI_LOCK_EVENTS);
    tutti_stream_event **link = &pool.free, *mark;
    while ((mark = *link) != NULL && !has_passed(mark)) link = &mark->next;
    if (mark != NULL) *link = mark->next;
    tutti_unlock(TUTTI_LOCK_EVENTS);
    return mark;
}

static tutti_status add_page(const tutti_device *device) {
    void *memory, *on_device;
    page *p;
    TUTTI_TRY(tutti_calloc(1, sizeof *p, &p));
    tutti_status status = device->alloc_pinned(PAGE_BYTES, &memory, &on_device);
    if (status != TUTTI_OK) {
        free(p);
        return status;
    }
    memset(memory, 0, PAGE_BYTES);
    tutti_lock(TUTTI_LOCK_EVENTS);
    for (size_t i = 0; i < PAGE_MARKS; i++) {
        size_t at = i * sizeof(uint64_t);
        p->marks[i] = (tutti_stream_event){.word = (_Atomic uint64_t *)(void *)((char *)memory + at),
                                           .word_on_device = (char *)on_device + at,
                                           .next = pool.free};
        pool.free = &p->marks[i];
    }
    p->next = pool.pages;
    pool.pages = p;
    tutti_unlock(TUTTI_LOCK_EVENTS);
    return TUTTI_OK;
}

static tutti_status take_event(const tutti_device *device, tutti_stream_event **mark_out) {
    tutti_stream_event *mark;
    TUTTI_TRY(tutti_calloc(1, sizeof *mark, &mark));
    tutti_status status = device->event_create(&mark->event);
    if (status != TUTTI_OK) {
        free(mark);
        return status;
    }
    mark->device = device;
    mark->holders = 1;
    *mark_out = mark;
    return TUTTI_OK;
}

tutti_status tutti_stream_event_take(const tutti_device *device, tutti_error_poll *fault,
                                     tutti_stream_event **mark_out) {
    tutti_stream_event *mark;
    if (fault == NULL) return take_event(device, mark_out);
    TUTTI_TRY(open_poll(fault));
    while ((mark = take_free()) == NULL) TUTTI_TRY(add_page(device));
    mark->device = device;
    mark->fault = fault;
    mark->holders = 1;
    *mark_out = mark;
    return TUTTI_OK;
}

tutti_stream_event *tutti_stream_event_share(tutti_stream_event *mark) {
    tutti_lock(TUTTI_LOCK_EVENTS);
    mark->holders++;
    tutti_unlock(TUTTI_LOCK_EVENTS);
    return mark;
}

void tutti_stream_event_free(tutti_stream_event *mark) {
    if (mark == NULL) return;
    tutti_lock(TUTTI_LOCK_EVENTS);
    bool last = --mark->holders == 0;
    if (last && mark->event == NULL) {
        mark->next = pool.free;
        pool.free = mark;
    }
    tutti_unlock(TUTTI_LOCK_EVENTS);
    if (!last || mark->event == NULL) return;
    mark->device->event_destroy(mark->event);
    free(mark);
}

tutti_status tutti_stream_event_put(tutti_stream_event *mark, tutti_stream stream) {
    if (mark->event != NULL) return mark->device->event_record(mark->event, stream);
    TUTTI_TRY(mark->device->write_value(stream, mark->word_on_device, mark->number + 1));
    mark->number++;
    return TUTTI_OK;
}

bool tutti_stream_event_value(tutti_stream_event *mark, tutti_device_value *value_out) {
    if (mark->event != NULL) return false;
    *value_out = (tutti_device_value){.at = mark->word_on_device, .value = ++mark->number};
    return true;
}

tutti_status tutti_stream_event_ask(const tutti_stream_event *mark) {
    if (mark->event != NULL) return mark->device->event_query(mark->event);
    if (has_passed(mark)) return TUTTI_OK;
    tutti_status status = failure_of(mark->fault);
    return status == TUTTI_OK ? TUTTI_NOT_YET : status;
}

tutti_status tutti_stream_chain_follow(const tutti_stream_chain *chain, const tutti_device *device,
                                       tutti_stream stream) {
    bool waits = chain->used && !tutti_stream_is_same(chain->last, stream);
    return waits ? device->stream_wait_event(stream, chain->tail) : TUTTI_OK;
}

tutti_status tutti_stream_chain_extend(tutti_stream_chain *chain, const tutti_device *device, tutti_stream stream) {
    chain->used = true;
    chain->last = stream;
    return device->event_record(chain->tail, stream);
}
