/*
 * Links between threads that keep nothing: a byte leaves its sender when its receiver takes it. What works over these waits
 * for no buffer of a network. For programs that compile algorithms anew, with the verbs of comm/net/link.h renamed (see
 * STRICT_LINKS in tests/net/CMakeLists.txt); the ranks are threads of one process, and one set of links is in use at a
 * time.
 *
 * A wait of 20 s is a deadlock, and an error that names which rank waits for which; transfers must be of equal
 * size on both sides, as on real links.
 */
#ifndef TUTTI_TESTS_STRICT_LINKS_H
#define TUTTI_TESTS_STRICT_LINKS_H

#include "comm/net/link.h"

tutti_status strict_links_create(int nranks);
void strict_links_destroy(void);
/* No call waits any more: a rank has failed. */
void strict_links_give_up(void);
/* Bytes that a rank has sent since the last look; by the rank itself. */
uint64_t strict_links_sent(int rank);

#endif
