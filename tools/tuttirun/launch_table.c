/*
 * Rank tables: --rank-table starts the ranks that a table gives to this server, --write-rank-table writes a table of
 * version 1.0 (rank_table.h).
 *
 * The servers of a table are the nodes of the job, numbered by their lowest rank, so that node 0 has rank 0 and hosts
 * the store, where ranks without tuttirun look for it, too. The devices of a server are its local ranks, in the
 * order of their numbers. What the table says is put into the options as if the user had given it; only which rank
 * and device a local rank is does not follow from the options.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/launcher/rank_table.h"
#include "tools/tuttirun/launch.h"

enum { HOST_BYTES = 256, SERVER_BYTES = sizeof((tutti_rank_entry *)0)->server, MOST_SHOWN = 8 };
enum { MOST_DEVICES = 16 }; /* of one server */

/* ---------------------------------------------------------------------------------------------- reading */

/* Stores the node of each rank, and the lowest rank of each node. */
static int number_nodes(const tutti_rank_table *table, int *nodes, int *firsts) {
    int nnodes = 0;
    for (int i = 0; i < table->count; i++) {
        int node = 0;
        while (node < nnodes && strcmp(table->entries[firsts[node]].server, table->entries[i].server) != 0) node++;
        if (node == nnodes) firsts[nnodes++] = i;
        nodes[i] = node;
    }
    return nnodes;
}

/* The node that is this host. A table of one server is for the host where it is used, as for ranks without tuttirun. */
static tutti_status find_node(const tutti_rank_table *table, const int *firsts, int nnodes, int *node_out) {
    char names[MOST_SHOWN * (SERVER_BYTES + 2) + 8] = "", own[1024];
    size_t used = 0;
    int found = nnodes == 1 ? 0 : -1;
    for (int node = 0; node < nnodes && nnodes > 1; node++) {
        const tutti_rank_entry *entry = &table->entries[firsts[node]];
        if (node <= MOST_SHOWN)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", node > 0 ? ", " : "",
                                     node < MOST_SHOWN ? entry->server : "...");
        if (!tutti_rank_table_is_here(entry)) continue;
        if (found >= 0)
            return tutti_fail(TUTTI_ERR_CONFIG, "its servers %s and %s are both this host; give --node-rank %d or %d",
                              table->entries[firsts[found]].server, entry->server, found, node);
        found = node;
    }
    if (found < 0) {
        tutti_launch_list_own(own, sizeof own);
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "none of its servers (%s) is this host, which has the addresses %s; correct server_id or "
                          "host_ip, or give --node-rank, from 0 in the order of the servers' lowest ranks",
                          names, own);
    }
    *node_out = found;
    return TUTTI_OK;
}

static int compare_devices(const void *a, const void *b) {
    const tutti_launch_entry *one = a, *two = b;
    return (one->device > two->device) - (one->device < two->device);
}

/* The ranks and devices of this node, in the order of the devices. */
static tutti_status take_entries(const tutti_rank_table *table, const int *nodes, tutti_launch_options *options) {
    static tutti_launch_entry *entries; /* as long as the options */
    TUTTI_TRY(tutti_calloc((size_t)table->count, sizeof *entries, &entries));
    for (int i = 0; i < table->count; i++)
        if (nodes[i] == options->node_rank)
            entries[options->nproc++] = (tutti_launch_entry){.rank = i, .device = table->entries[i].device};
    qsort(entries, (size_t)options->nproc, sizeof *entries, compare_devices);
    options->entries = entries;
    options->size = table->count;
    return TUTTI_OK;
}

/* The servers as a list of nodes, for messages; none if a server's name could not be read back from it. */
static tutti_status list_nodes(const tutti_rank_table *table, const int *firsts, int nnodes, const char **list_out) {
    static char *list;
    const size_t capacity = (size_t)nnodes * SERVER_BYTES;
    size_t used = 0;
    TUTTI_TRY(tutti_calloc(capacity, 1, &list));
    *list_out = list;
    for (int node = 0; node < nnodes; node++) {
        const char *server = table->entries[firsts[node]].server;
        if (*server == '\0' || strpbrk(server, ",[] ") != NULL) *list_out = NULL;
        used += (size_t)snprintf(list + used, capacity - used, "%s%s", node > 0 ? "," : "", server);
    }
    return TUTTI_OK;
}

static tutti_status take_table(const tutti_rank_table *table, tutti_launch_options *options) {
    static char host[HOST_BYTES]; /* as long as the options, which point to it */
    int *nodes = NULL, *firsts = NULL;
    tutti_status status = tutti_calloc((size_t)table->count, sizeof *nodes, &nodes);
    if (status == TUTTI_OK) status = tutti_calloc((size_t)table->count, sizeof *firsts, &firsts);
    if (status == TUTTI_OK) {
        options->nnodes = number_nodes(table, nodes, firsts);
        if (options->node_rank < 0) status = find_node(table, firsts, options->nnodes, &options->node_rank);
        else if (options->node_rank >= options->nnodes)
            status = tutti_fail(TUTTI_ERR_CONFIG, "--node-rank %d must be less than its %d servers", options->node_rank,
                                options->nnodes);
    }
    if (status == TUTTI_OK) status = take_entries(table, nodes, options);
    if (status == TUTTI_OK) status = list_nodes(table, firsts, options->nnodes, &options->nodes);
    free(nodes);
    free(firsts);
    TUTTI_TRY(status);
    const char *first = tutti_rank_table_host(table);
    snprintf(host, sizeof host, "%.*s", (int)strcspn(first, ","), first); /* a device may have several addresses */
    if (options->master_addr == NULL) options->master_addr = host;
    options->table_hash = (int)(tutti_rank_table_hash(table) & INT_MAX);
    return TUTTI_OK;
}

tutti_status tutti_launch_read_table(tutti_launch_options *options) {
    static char path[PATH_MAX];
    tutti_rank_table table;
    if (options->nodes != NULL || options->nnodes_text != NULL || options->nproc_text != NULL ||
        options->count_text != NULL || options->standalone)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "--rank-table %s says which nodes and ranks there are; leave out --nodes, --nnodes, "
                          "--nproc-per-node, -n and --standalone",
                          options->rank_table);
    TUTTI_TRY(tutti_rank_table_load(options->rank_table, &table));
    tutti_status status = take_table(&table, options);
    tutti_rank_table_free(&table);
    if (status != TUTTI_OK) return tutti_fail_context(status, "rank table %s", options->rank_table);
    if (realpath(options->rank_table, path) == NULL) /* ranks may run in other folders */
        return tutti_fail(TUTTI_ERR_CONFIG, "rank table %s: its absolute path is unknown: %s", options->rank_table,
                          strerror(errno));
    options->rank_table = path;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- writing */

/* Whether the text can stand in quotes in JSON as it is. */
static bool is_plain(const char *text) {
    while (*text != '\0' && *text != '"' && *text != '\\' && (unsigned char)*text >= ' ') text++;
    return *text == '\0';
}

/* What is written must be readable: rank_table.c and the format bound names and numbers of devices. */
static tutti_status check_servers(const tutti_launch_options *options, char (*servers)[HOST_BYTES]) {
    for (int node = 0; node < options->nnodes; node++) {
        const char *server = servers[node];
        if (options->nodes == NULL) gethostname(servers[node], HOST_BYTES - 1);
        else if (!tutti_hostlist_get(options->nodes, node, servers[node], HOST_BYTES)) servers[node][0] = '\0';
        if (*server == '\0' || strlen(server) >= SERVER_BYTES || !is_plain(server))
            return tutti_fail(
                TUTTI_ERR_ARGUMENT,
                "--write-rank-table: '%s' cannot be a server_id: expected a name or an address of 1 to %d "
                "characters, without quotes and backslashes",
                server, (int)SERVER_BYTES - 1);
        for (int other = 0; other < node; other++)
            if (strcmp(server, servers[other]) == 0)
                return tutti_fail(TUTTI_ERR_ARGUMENT, "--write-rank-table: --nodes names %s twice", server);
    }
    return TUTTI_OK;
}

static void print_table(FILE *file, const tutti_launch_options *options, char (*servers)[HOST_BYTES]) {
    fprintf(file, "{\"version\": \"1.0\", \"status\": \"completed\", \"server_count\": \"%d\", \"server_list\": [\n",
            options->nnodes);
    for (int node = 0; node < options->nnodes; node++) {
        fprintf(file, "  {\"server_id\": \"%s\", \"device\": [\n", servers[node]);
        for (int i = 0; i < options->nproc; i++)
            fprintf(file, "    {\"device_id\": \"%d\", \"rank_id\": \"%d\"}%s", i, node * options->nproc + i,
                    i + 1 < options->nproc ? ",\n" : "]}");
        fprintf(file, node + 1 < options->nnodes ? ",\n" : "]}\n");
    }
}

tutti_status tutti_launch_write_table(const tutti_launch_options *options) {
    const char *path = options->write_rank_table;
    char (*servers)[HOST_BYTES];
    if (options->nnodes > 1 && options->nodes == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "--write-rank-table with --nnodes %d needs the addresses of the nodes: give --nodes",
                          options->nnodes);
    if (options->nproc > MOST_DEVICES)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "--write-rank-table: a server of a rank table has at most %d devices, not %d", MOST_DEVICES,
                          options->nproc);
    TUTTI_TRY(tutti_calloc((size_t)options->nnodes, sizeof *servers, &servers));
    tutti_status status = check_servers(options, servers);
    FILE *file = status == TUTTI_OK ? fopen(path, "we") : NULL;
    bool failed = file == NULL;
    if (file != NULL) {
        print_table(file, options, servers);
        failed = ferror(file) != 0;
        failed = fclose(file) != 0 || failed;
    }
    if (status == TUTTI_OK && failed) status = tutti_fail_errno(errno, "cannot write %s", path);
    free(servers);
    return status;
}
