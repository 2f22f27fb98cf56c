/*
 * Keys and waits on the notice board. See board.h.
 */
#include "comm/board.h"

#include <stdio.h>

#include "bootstrap/base/status.h"

const char *tutti_board_key(const tutti_board *board, const char *what, int index, char text[TUTTI_BOARD_KEY_BYTES]) {
    if (index < 0) snprintf(text, TUTTI_BOARD_KEY_BYTES, "%s/%s", board->prefix, what);
    else snprintf(text, TUTTI_BOARD_KEY_BYTES, "%s/%s/%d", board->prefix, what, index);
    return text;
}

/* The store is the caller's, or an adapter to a framework's: what it answers need not be a status. */
static tutti_status checked(tutti_status status, const char *call) {
    if (status <= TUTTI_OK && status >= TUTTI_ERR_INTERRUPTED) return status;
    return tutti_fail(TUTTI_ERR_SYSTEM,
                      "the store's %s answered %d, which is no tutti_status (TUTTI_OK is 0, errors are negative)", call,
                      (int)status);
}

tutti_status tutti_board_set(const tutti_board *board, const char *key, const void *value, size_t bytes) {
    return checked(board->store->set(board->store->context, key, value, bytes), "set");
}

tutti_status tutti_board_add(const tutti_board *board, const char *key, int64_t amount, int64_t *value_out) {
    return checked(board->store->add(board->store->context, key, amount, value_out), "add");
}

tutti_status tutti_board_check(const tutti_board *board, const char *key, int *exists_out) {
    return checked(board->store->check(board->store->context, key, exists_out), "check");
}

tutti_status tutti_board_get(const tutti_board *board, const char *key, void *value, size_t capacity, int64_t most_ms,
                             size_t *bytes_out) {
    tutti_deadline_passed(board->deadline);
    int64_t timeout_ms = tutti_min_i64(tutti_deadline_left_ms(board->deadline), most_ms);
    tutti_status status = board->store->get(board->store->context, key, value, capacity, bytes_out, timeout_ms);
    tutti_deadline_passed(board->deadline);
    TUTTI_TRY(checked(status, "get"));
    return *bytes_out <= capacity
               ? TUTTI_OK
               : tutti_fail(TUTTI_ERR_DATA, "the store's get gave %zu bytes of \"%s\", at most %zu were asked for",
                            *bytes_out, key, capacity);
}
