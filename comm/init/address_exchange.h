/*
 * Where processes can be reached from other hosts: told from host to host, by their leaders, through the store.
 *
 *   leader of host h > 0   listeners/<h>   the listeners of the hosts that hand on through h (kv_tree.h), packed
 *   leader of host 0       listeners       those of all
 *
 * The processes of a host mostly differ in their number and port only, so a listener that equals the one before it takes
 * 18 bytes.
 */
#ifndef TUTTI_ADDRESS_EXCHANGE_H
#define TUTTI_ADDRESS_EXCHANGE_H

#include "bootstrap/base/deadline.h"
#include "comm/net/listener.h"
#include "comm/init/peer_table.h"

/* listeners[nranks], by rank: those of the own host are filled in, this fills in the others. Leaders only. */
tutti_status tutti_address_exchange(const tutti_store *store, const char *prefix, const tutti_peer_table *table, int host,
                                  tutti_deadline *deadline, tutti_listener_info *listeners);

/* Bytes that a packed listener takes at most. */
#define TUTTI_LISTENER_PACKED_BYTES (sizeof(tutti_listener_info) + 2)
/* Packs a listener behind another (NULL: none); gives the number of bytes. */
size_t tutti_listener_pack(const tutti_listener_info *listener, const tutti_listener_info *before, uint8_t *bytes_out);
/* The other way; gives the number of bytes that it took, 0: they make no sense. */
size_t tutti_listener_unpack(const uint8_t *bytes, size_t available, const tutti_listener_info *before,
                         tutti_listener_info *door_out);

#endif
