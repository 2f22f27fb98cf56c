/*
 * Marks: words of pinned memory, allocated a page at a time, or CUDA events. See event.h.
 *
 * The numbers that streams write to a word only grow, also across successive users of the word. A word that a
 * stream may still write to is not reused: the old number would arrive after the new one.
 */
#include "comm/gpu/event.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"

#define PAGE_BYTES ((size_t)4096)
#define PAGE_MARKS (PAGE_BYTES / sizeof(uint64_t))

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
    TUTTI_TRY(tutti_error_poll_open(fault));
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

tutti_status tutti_stream_event_ask(const tutti_stream_event *mark) {
    if (mark->event != NULL) return mark->device->event_query(mark->event);
    if (has_passed(mark)) return TUTTI_OK;
    tutti_status status = tutti_error_poll_status(mark->fault);
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
