/*
 * Where processes can be reached from other hosts: told from host to host, by their leaders, through the store.
 *
 *   leader of host h > 0   doors/<h>   the doors of the hosts that hand on through h (board.h), packed
 *   leader of host 0       doors       those of all
 *
 * The processes of a host mostly differ in their number and port only, so a door that equals the one before it takes
 * 18 bytes.
 */
#ifndef TUTTI_DOORS_H
#define TUTTI_DOORS_H

#include "bootstrap/base/deadline.h"
#include "comm/door.h"
#include "comm/roll.h"

/* doors[nranks], by rank: those of the own host are filled in, this fills in the others. Leaders only. */
tutti_status tutti_doors_exchange(const tutti_store *store, const char *prefix, const tutti_roll *roll, int host,
                                  tutti_deadline *deadline, tutti_door_card *doors);

/* Bytes that a packed door takes at most. */
#define TUTTI_DOOR_PACKED_BYTES (sizeof(tutti_door_card) + 2)
/* Packs a door behind another (NULL: none); gives the number of bytes. */
size_t tutti_door_pack(const tutti_door_card *door, const tutti_door_card *before, uint8_t *bytes_out);
/* The other way; gives the number of bytes that it took, 0: they make no sense. */
size_t tutti_door_unpack(const uint8_t *bytes, size_t available, const tutti_door_card *before,
                         tutti_door_card *door_out);

#endif
