/*
 * Rank tables: a JSON file that says which device of which server is which rank, as MindSpore and HCCL use them.
 *
 * RANK_TABLE_FILE (or MINDSPORE_HCCL_CONFIG_PATH) names the file, RANK_ID this process's rank; without RANK_ID, DEVICE_ID and
 * the server's address tell it. Both layouts are read: the old one without a version ("group_list"), and 1.0 to 1.2
 * ("server_list"). A table whose status is not "completed" is still being written: it is read again until it is.
 */
#ifndef TUTTI_BOOTSTRAP_RANK_TABLE_H
#define TUTTI_BOOTSTRAP_RANK_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/module.h"

/* One device, as the file has it; "" for what it does not say. */
typedef struct tutti_rank_entry {
    int rank, device;    /* rank -1: cloud mode, where the order decides */
    char server[65];     /* server_id: an address, a name, or anything */
    char host_ip[128];   /* the server's address, where it is told */
    char device_ip[512]; /* one address, or some split by commas */
    char pod[129];
} tutti_rank_entry;

typedef struct tutti_rank_table {
    char version[16]; /* "": the old layout */
    bool completed;
    bool cloud; /* the old layout without ranks */
    int count;
    tutti_rank_entry *entries; /* checked: by rank */
} tutti_rank_table;

/* The table of the module `json` (modules/json.c), which knows the JSON library. */
typedef struct tutti_json_module {
    tutti_module_calls head;
    /* Reads the text of a rank table, in either layout, with the checks that concern its form; a table that is not completed
     * may have no entries. `entries` are the caller's. */
    tutti_status (*read_rank_table)(const char *text, tutti_rank_table *table_out);
} tutti_json_module;

/* TUTTI_ERR_UNSUPPORTED with the reason when this build, or this machine, cannot read rank tables. */
tutti_status tutti_rank_table_check(void);
/* Whether a rank table says who this process is. `other`: another launcher's variables do, so that a table without RANK_ID
 * and DEVICE_ID is not meant. */
bool tutti_rank_table_present(bool other);
/* The world by the table. */
tutti_status tutti_rank_table_world(tutti_world *world_out);
/* Where rank 0 is: an address or a name; and a name for the job that follows from the table. */
tutti_status tutti_rank_table_meeting(char *host_out, size_t host_capacity, char *run_out, size_t run_capacity);

/* For rank_table.c and tests. */
tutti_status tutti_rank_table_load(const char *path, tutti_rank_table *table_out);
void tutti_rank_table_free(tutti_rank_table *table);
/* Blanks the commas before ']' and '}', which are not JSON and yet in MindSpore's own examples. */
void tutti_rank_table_strip_commas(char *text);

#endif
