/*
 * The reason for which a page is broken: reading it, and breaking the own communicator for it. See comm.h.
 *
 * A reason is written once, in the page of the rank that found the failure; the other ranks copy it and add the rank
 * that found it.
 */
#include "comm/base/comm.h"

#include <stdio.h>
#include <string.h>

tutti_status tutti_broken_peer_status(int32_t broken_status) {
    if (broken_status == TUTTI_ERR_INTERRUPTED) return TUTTI_ERR_ABORTED; /* the interrupted rank was another one */
    return broken_status < TUTTI_OK && broken_status >= TUTTI_ERR_DATA ? (tutti_status)broken_status : TUTTI_ERR_BROKEN;
}

/* True if the reason ends with " (reported by rank 5)". */
static bool names_teller(const char *reason) {
    static const char mark[] = " (reported by rank ";
    const char *last = NULL;
    for (const char *at = reason; (at = strstr(at, mark)) != NULL; at++) last = at;
    if (last == NULL) return false;
    const char *digits = last + sizeof mark - 1;
    size_t count = strspn(digits, "0123456789");
    return count > 0 && strcmp(digits + count, ")") == 0;
}

const char *tutti_broken_quote(const char *reason, int rank, char *text, size_t capacity) {
    if (names_teller(reason)) snprintf(text, capacity, "%s", reason);
    else snprintf(text, capacity, "%s (reported by rank %d)", reason, rank);
    return text;
}

tutti_status tutti_broken_adopt(tutti_comm *comm, int rank, int32_t broken_status, const char *reason) {
    char text[TUTTI_BROKEN_TEXT_BYTES + 32];
    tutti_status status = tutti_broken_peer_status(broken_status);
    tutti_fail(status, "%s", tutti_broken_quote(reason, tutti_comm_shown(comm, rank), text, sizeof text));
    return tutti_comm_break(comm, status);
}

bool tutti_broken_read(const tutti_comm *comm, int rank, tutti_broken *broken_out) {
    const tutti_page *page = comm->members[rank].page;
    if (page == NULL || atomic_load_explicit(&page->state, memory_order_acquire) != TUTTI_PAGE_BROKEN) return false;
    broken_out->status = page->broken_status;
    memcpy(broken_out->text, page->broken_text, sizeof broken_out->text);
    broken_out->text[sizeof broken_out->text - 1] = '\0'; /* the page's owner may have written no terminator */
    /* The id must be read after the text. (gcc's thread sanitizer does not support C11 fences, and warns.) */
    __sync_synchronize();
    uint64_t page_id = atomic_load_explicit(&page->comm_id, memory_order_relaxed);
    return page_id == comm->id || tutti_page_is_unborn(comm, page_id);
}
