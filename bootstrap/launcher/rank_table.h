/*
 * Rank tables: JSON files that assign ranks to the devices of servers, as used by MindSpore and HCCL.
 *
 * RANK_TABLE_FILE (or MINDSPORE_HCCL_CONFIG_PATH) names the file, RANK_ID this process's rank; without RANK_ID, the
 * rank follows from DEVICE_ID and the server's address. Both layouts are read: the old one without a version
 * ("group_list"), and 1.0 to 1.2 ("server_list"). A table whose status is not "completed" is still being written;
 * it is read again until its status is "completed".
 */
#ifndef TUTTI_BOOTSTRAP_RANK_TABLE_H
#define TUTTI_BOOTSTRAP_RANK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"

/* One device as given in the file; "" for missing values. */
typedef struct tutti_rank_entry {
    int rank, device;    /* rank -1: cloud mode, where the order determines the rank */
    char server[65];     /* server_id: an address, a name, or any other text */
    char host_ip[128];   /* the server's address, if given */
    char device_ip[512]; /* one address, or several separated by commas */
    char pod[129];
} tutti_rank_entry;

typedef struct tutti_rank_table {
    char version[16]; /* "": the old layout */
    bool completed;
    bool cloud; /* the old layout without ranks */
    int count;
    tutti_rank_entry *entries; /* after the checks: sorted by rank */
    char nics[128];            /* the old layout's para_plane_nic_name, separated by commas */
    char doubt[128];           /* what contradicts the rest of the table, but harms nothing; "": nothing does */
} tutti_rank_table;

/* The function table of the module `json` (modules/json.c), which uses the JSON library. */
typedef struct tutti_json_module {
    tutti_module_calls head;
    /* Parses a rank table in either layout and checks its format; a table that is not completed may have no
     * entries. The caller owns `entries`. */
    tutti_status (*read_rank_table)(const char *text, tutti_rank_table *table_out);
} tutti_json_module;

/* Fails with TUTTI_ERR_UNSUPPORTED and the reason when this build, or this machine, cannot read rank tables. */
tutti_status tutti_rank_table_check(void);
/* Returns true when a rank table determines this process's rank. `other`: another launcher's variables are present,
 * so a table without RANK_ID and DEVICE_ID is ignored. */
bool tutti_rank_table_present(bool other);
/* Reads the world from the table. Restricts the interfaces between hosts (interfaces.h) to
 * those of its device_ip, or of the table's para_plane_nic_name, if this host has them. */
tutti_status tutti_rank_table_world(tutti_world *world_out);
/* For a world that another launcher's variables describe, as under tuttirun --rank-table: returns the device_id of this
 * rank, and restricts the interfaces, where RANK_ID, RANK_SIZE, DEVICE_ID and the table agree with it; else -1. */
int tutti_rank_table_device(const tutti_world *world);
/* The host of rank 0, as an address or a name, and a name for the job that is derived from the table. */
tutti_status tutti_rank_table_meeting(char *host_out, size_t host_capacity, char *run_out, size_t run_capacity);

/* Reads the table, checks it, and waits until it is completed. */
tutti_status tutti_rank_table_load(const char *path, tutti_rank_table *table_out);
void tutti_rank_table_free(tutti_rank_table *table);
/* Whether the entry's server is this host: by its name, one of its addresses, its pod or TUTTI_ADVERTISE. */
bool tutti_rank_table_is_here(const tutti_rank_entry *entry);
/* Rank 0's host, as an address (or several, separated by commas) or a name. */
const char *tutti_rank_table_host(const tutti_rank_table *table);
/* Equal for the same ranks on the same devices, whatever the file's format. */
uint64_t tutti_rank_table_hash(const tutti_rank_table *table);
/* Replaces commas before ']' and '}' by blanks: they are not valid JSON, but occur in MindSpore's own examples. */
void tutti_rank_table_strip_commas(char *text);

#endif
