/*
 * Keys and waits on the notice board. See board.h.
 */
#include "comm/board.h"

#include <stdio.h>

const char *tutti_board_key(const tutti_board *board, const char *what, int index, char text[TUTTI_BOARD_KEY_BYTES]) {
    if (index < 0) snprintf(text, TUTTI_BOARD_KEY_BYTES, "%s/%s", board->prefix, what);
    else snprintf(text, TUTTI_BOARD_KEY_BYTES, "%s/%s/%d", board->prefix, what, index);
    return text;
}

tutti_status tutti_board_set(const tutti_board *board, const char *key, const void *value, size_t bytes) {
    return board->store->set(board->store->context, key, value, bytes);
}

tutti_status tutti_board_get(const tutti_board *board, const char *key, void *value, size_t capacity, int64_t most_ms,
                             size_t *bytes_out) {
    tutti_deadline_passed(board->deadline);
    int64_t timeout_ms = tutti_min_i64(tutti_deadline_left_ms(board->deadline), most_ms);
    tutti_status status = board->store->get(board->store->context, key, value, capacity, bytes_out, timeout_ms);
    tutti_deadline_passed(board->deadline);
    return status;
}
