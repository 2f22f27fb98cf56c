/*
 * Links between threads without buffers: a byte leaves its sender when its receiver takes it. An algorithm that works
 * over these does not depend on a network's buffers. For programs that compile algorithms again, with the calls of
 * comm/net/link.h renamed (see STRICT_LINKS in tests/net/CMakeLists.txt); the ranks are threads of one process, and
 * one set of links is in use at a time.
 *
 * A wait of 20 s counts as a deadlock, and fails with an error that names which rank waits for which; transfers must
 * have equal sizes on both sides, as on real links.
 */
#ifndef TUTTI_TESTS_STRICT_LINKS_H
#define TUTTI_TESTS_STRICT_LINKS_H

#include "comm/net/link.h"

tutti_status strict_links_create(int nranks);
void strict_links_destroy(void);
/* Ends all waits, because a rank has failed. */
void strict_links_give_up(void);
/* Bytes that a rank has sent since the last call; called by the rank itself. */
uint64_t strict_links_sent(int rank);

#endif
