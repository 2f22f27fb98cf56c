/*
 * Rank tables with cJSON: libtutti_json.so, opened by rank_table.c.
 *
 * This file checks the format: it converts both layouts to the same list of entries, and counts in the file must
 * match its contents. rank_table.c checks how the entries relate to each other.
 */
#include <cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/launcher/rank_table.h"

enum { MOST_ENTRIES = 1 << 20 };

static const tutti_module_host *host;

/* ---------------------------------------------------------------------------------------- single values */

/* Returns the text of a member; NULL when it is missing or not a string. */
static const char *text_of(const cJSON *object, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* Copies the text of an optional member. */
static tutti_status copy_text(const cJSON *object, const char *name, char *text, size_t capacity) {
    const char *found = text_of(object, name);
    if (found != NULL && strlen(found) >= capacity)
        return host->fail(TUTTI_ERR_CONFIG, "%s is longer than %zu characters", name, capacity - 1);
    snprintf(text, capacity, "%s", found != NULL ? found : "");
    return TUTTI_OK;
}

/* Reads a number: usually decimal text in these files, sometimes a JSON number. */
static tutti_status read_number(const cJSON *object, const char *name, int *number_out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    const char *text = cJSON_GetStringValue(item);
    char *end = NULL;
    long number = text != NULL ? strtol(text, &end, 10) : cJSON_IsNumber(item) ? (long)cJSON_GetNumberValue(item) : -1;
    if (item == NULL) return host->fail(TUTTI_ERR_CONFIG, "%s is missing", name);
    if ((text != NULL && (end == text || *end != '\0')) || number < 0 || number > MOST_ENTRIES)
        return host->fail(TUTTI_ERR_CONFIG, "%s is not a number from 0 to %d", name, MOST_ENTRIES);
    *number_out = (int)number;
    return TUTTI_OK;
}

/* Checks a count that the file gives beside the items themselves. */
static tutti_status check_count(const cJSON *object, const char *name, int really, const char *of_what) {
    int count = 0;
    if (read_number(object, name, &count) != TUTTI_OK)
        return host->fail(TUTTI_ERR_CONFIG, "%s is missing or not a number", name);
    if (count == 0) return host->fail(TUTTI_ERR_CONFIG, "%s is 0", name);
    if (count != really)
        return host->fail(TUTTI_ERR_CONFIG, "%s is %d, but there are %d %s", name, count, really, of_what);
    return TUTTI_OK;
}

static tutti_status get_array(const cJSON *object, const char *name, const cJSON **array_out) {
    *array_out = cJSON_GetObjectItemCaseSensitive(object, name);
    if (cJSON_IsArray(*array_out)) return TUTTI_OK;
    return host->fail(TUTTI_ERR_CONFIG, "%s is missing or not a list", name);
}

/* -------------------------------------------------------------------------------------------- the layouts */

/* Adds an entry with the members that all devices have. */
static tutti_status add_entry(tutti_rank_table *table, int capacity, const cJSON *device,
                              tutti_rank_entry **entry_out) {
    if (table->count == capacity) return host->fail(TUTTI_ERR_CONFIG, "it has more devices than its counts say");
    tutti_rank_entry *entry = &table->entries[table->count++];
    entry->rank = -1;
    TUTTI_TRY(read_number(device, "device_id", &entry->device));
    TUTTI_TRY(copy_text(device, "device_ip", entry->device_ip, sizeof entry->device_ip));
    *entry_out = entry;
    return TUTTI_OK;
}

static tutti_status read_instance(const cJSON *instance, int capacity, tutti_rank_table *table) {
    const cJSON *devices, *device;
    TUTTI_TRY(get_array(instance, "devices", &devices));
    cJSON_ArrayForEach(device, devices) {
        tutti_rank_entry *entry = NULL;
        TUTTI_TRY(add_entry(table, capacity, device, &entry));
        TUTTI_TRY(copy_text(instance, "server_id", entry->server, sizeof entry->server));
        TUTTI_TRY(copy_text(instance, "pod_name", entry->pod, sizeof entry->pod));
        if (table->cloud) continue;
        TUTTI_TRY(read_number(instance, "rank_id", &entry->rank));
        if (cJSON_GetArraySize(devices) != 1)
            return host->fail(TUTTI_ERR_CONFIG,
                              "the instance of rank %d has %d devices; with deploy_mode it must have one", entry->rank,
                              cJSON_GetArraySize(devices));
    }
    return TUTTI_OK;
}

/* Checks that the values of the member `name` differ in all items of the list. */
static tutti_status check_unique(const cJSON *list, const char *name, const char *of_what) {
    const cJSON *item, *other;
    cJSON_ArrayForEach(item, list) {
        const char *text = text_of(item, name);
        for (other = list->child; other != item && text != NULL; other = other->next)
            if (text_of(other, name) != NULL && strcmp(text, text_of(other, name)) == 0)
                return host->fail(TUTTI_ERR_CONFIG, "two %s have the %s '%.64s'", of_what, name, text);
    }
    return TUTTI_OK;
}

/* Number of servers of the entries from `first` on. */
static int count_servers(const tutti_rank_table *table, int first) {
    int nservers = 0;
    for (int i = first, j; i < table->count; i++) {
        for (j = first; strcmp(table->entries[j].server, table->entries[i].server) != 0;) j++;
        nservers += j == i;
    }
    return nservers;
}

static tutti_status read_group(const cJSON *group, tutti_rank_table *table) {
    const cJSON *instances, *instance;
    int capacity = 0, before = table->count;
    TUTTI_TRY(get_array(group, "instance_list", &instances));
    TUTTI_TRY(check_count(group, "instance_count", cJSON_GetArraySize(instances), "instances"));
    if (table->cloud) TUTTI_TRY(check_unique(instances, "pod_name", "instances"));
    cJSON_ArrayForEach(instance, instances) capacity +=
        cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(instance, "devices"));
    tutti_rank_entry *grown;
    TUTTI_TRY(host->calloc((size_t)(before + capacity), sizeof *grown, &grown));
    if (before > 0) memcpy(grown, table->entries, (size_t)before * sizeof *grown);
    free(table->entries);
    table->entries = grown;
    cJSON_ArrayForEach(instance, instances) TUTTI_TRY(read_instance(instance, before + capacity, table));
    TUTTI_TRY(check_count(group,
                          cJSON_HasObjectItem(group, "device_count") ? "device_count" : "device_num", /* cloud, lab */
                          table->count - before, "devices"));
    if (!cJSON_HasObjectItem(group, "server_num")) return TUTTI_OK;
    return check_count(group, "server_num", count_servers(table, before), "servers");
}

/* Joins the names of interfaces with commas; what is no text, or does not fit, is left out. */
static void read_nics(const cJSON *root, char *text, size_t capacity) {
    const cJSON *name;
    size_t used = 0;
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(root, "para_plane_nic_name")) {
        const char *one = cJSON_GetStringValue(name);
        if (one == NULL || used + strlen(one) + 2 > capacity) continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? "," : "", one);
    }
}

/* HCCL does not read para_plane_nic_num, and tables in use have wrong ones: a mismatch is only reported. */
static void doubt_nics(const cJSON *root, tutti_rank_table *table) {
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(root, "para_plane_nic_name");
    int nics = 0, nservers = count_servers(table, 0);
    if (read_number(root, "para_plane_nic_num", &nics) != TUTTI_OK) return;
    if (cJSON_IsArray(names) && cJSON_GetArraySize(names) != nics)
        snprintf(table->doubt, sizeof table->doubt, "para_plane_nic_num is %d, but para_plane_nic_name has %d names",
                 nics, cJSON_GetArraySize(names));
    else if (nics != table->count && (int64_t)nics * nservers != table->count)
        snprintf(table->doubt, sizeof table->doubt, "para_plane_nic_num is %d, but there are %d devices on %d servers",
                 nics, table->count, nservers);
}

/* The old layout, "standard": a group of instances. */
static tutti_status read_groups(const cJSON *root, tutti_rank_table *table) {
    const cJSON *groups, *group;
    const char *location = text_of(root, "para_plane_nic_location");
    table->cloud = text_of(root, "deploy_mode") == NULL;
    read_nics(root, table->nics, sizeof table->nics);
    if (location != NULL && strcmp(location, "device") != 0)
        return host->fail(TUTTI_ERR_CONFIG, "para_plane_nic_location is '%.20s'; only 'device' is supported", location);
    TUTTI_TRY(get_array(root, "group_list", &groups));
    TUTTI_TRY(check_count(root, "group_count", cJSON_GetArraySize(groups), "groups"));
    TUTTI_TRY(check_unique(groups, "group_name", "groups"));
    cJSON_ArrayForEach(group, groups) TUTTI_TRY(read_group(group, table));
    doubt_nics(root, table);
    return TUTTI_OK;
}

static tutti_status read_server(const cJSON *server, int capacity, tutti_rank_table *table) {
    const cJSON *devices, *device;
    TUTTI_TRY(get_array(server, "device", &devices));
    if (text_of(server, "server_id") == NULL) return host->fail(TUTTI_ERR_CONFIG, "server_id is missing");
    cJSON_ArrayForEach(device, devices) {
        tutti_rank_entry *entry = NULL;
        TUTTI_TRY(add_entry(table, capacity, device, &entry));
        TUTTI_TRY(read_number(device, "rank_id", &entry->rank));
        TUTTI_TRY(copy_text(server, "server_id", entry->server, sizeof entry->server));
        TUTTI_TRY(copy_text(server, "host_ip", entry->host_ip, sizeof entry->host_ip));
    }
    return TUTTI_OK;
}

/* Version 1.0 and later, "concise": a list of servers. */
static tutti_status read_servers(const cJSON *root, tutti_rank_table *table) {
    const cJSON *servers, *server;
    int capacity = 0;
    TUTTI_TRY(get_array(root, "server_list", &servers));
    if (cJSON_HasObjectItem(root, "server_count"))
        TUTTI_TRY(check_count(root, "server_count", cJSON_GetArraySize(servers), "servers"));
    TUTTI_TRY(check_unique(servers, "server_id", "servers"));
    cJSON_ArrayForEach(server, servers) capacity +=
        cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(server, "device"));
    TUTTI_TRY(host->calloc((size_t)capacity, sizeof *table->entries, &table->entries));
    cJSON_ArrayForEach(server, servers) TUTTI_TRY(read_server(server, capacity, table));
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ module */

static tutti_status read_root(const cJSON *root, tutti_rank_table *table) {
    static const char *const known[] = {"", "1.0", "1.1", "1.2"};
    const char *status = text_of(root, "status");
    size_t i = 0;
    TUTTI_TRY(copy_text(root, "version", table->version, sizeof table->version));
    while (i < sizeof known / sizeof *known && strcmp(table->version, known[i]) != 0) i++;
    if (i == sizeof known / sizeof *known)
        return host->fail(TUTTI_ERR_CONFIG,
                          "version '%s' is unknown; expected 1.0 to 1.2, or no version for the old layout",
                          table->version);
    table->completed = status != NULL && strcmp(status, "completed") == 0;
    if (!table->completed) return TUTTI_OK;
    return i == 0 ? read_groups(root, table) : read_servers(root, table);
}

static tutti_status read_rank_table(const char *text, tutti_rank_table *table_out) {
    const char *end = NULL;
    tutti_rank_table table = {0};
    cJSON *root = cJSON_ParseWithOpts(text, &end, 1);
    if (root == NULL) {
        int line = 1;
        for (const char *c = text; c < end; c++) line += *c == '\n';
        return host->fail(TUTTI_ERR_DATA, "line %d is not valid JSON, near '%.*s'", line,
                          end != NULL ? (int)strcspn(end, "\r\n") : 0, end);
    }
    tutti_status status =
        cJSON_IsObject(root) ? read_root(root, &table) : host->fail(TUTTI_ERR_CONFIG, "it is not a JSON object");
    cJSON_Delete(root);
    if (status != TUTTI_OK) free(table.entries);
    else *table_out = table;
    return status;
}

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_json_module calls = {.head.version = TUTTI_MODULE_VERSION, .read_rank_table = read_rank_table};
    if (caller->version == TUTTI_MODULE_VERSION)
        host = caller; /* otherwise the caller sees the version mismatch and calls nothing */
    *calls_out = &calls.head;
    return TUTTI_OK;
}
