/*
 * Exchange of the listener addresses between hosts: the leaders pass them on through the store.
 *
 *   leader of host h > 0   addresses/<h>  packed listeners of the hosts in the subtree of h (kv_tree.h)
 *   leader of host 0       addresses      packed listeners of all hosts
 *
 * The listeners of one host usually differ only in process id and port, so a listener that is otherwise equal to
 * the one before it takes 18 bytes.
 */
#ifndef TUTTI_ADDRESS_EXCHANGE_H
#define TUTTI_ADDRESS_EXCHANGE_H

#include "bootstrap/base/deadline.h"
#include "comm/init/peer_table.h"
#include "comm/net/listener.h"

/* Leaders only. listeners[nranks], by rank: the caller has filled in its own host's, this fills in all others. */
tutti_status tutti_address_exchange(const tutti_store *store, const char *prefix, const tutti_peer_table *table,
                                    int host, tutti_deadline *deadline, tutti_listener_info *listeners);

/* Largest size of a packed listener. */
#define TUTTI_ADDRESS_EXCHANGE_PACKED_BYTES (sizeof(tutti_listener_info) + 2)
/* Packs a listener after `before` (NULL: it is the first). Returns the number of bytes written. */
size_t tutti_address_exchange_pack(const tutti_listener_info *listener, const tutti_listener_info *before,
                                   uint8_t *bytes_out);
/* Unpacks a listener. Returns the number of bytes read, or 0 if they are malformed. */
size_t tutti_address_exchange_unpack(const uint8_t *bytes, size_t available, const tutti_listener_info *before,
                                     tutti_listener_info *listener_out);

#endif
