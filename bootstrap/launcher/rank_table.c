/*
 * Rank tables: reads the file, checks its contents, finds this process in it.
 *
 * Invariant: after tutti_rank_table_load a completed table is sorted by rank, entry i has rank i, and no device
 * occurs twice.
 */
#include "bootstrap/launcher/rank_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/hash.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/machine/interfaces.h"

enum { MOST_FILE_BYTES = 16 << 20, LOOK_MS = 100, MOST_DEVICE = 15, MOST_OLD_DEVICE = 7 };

static const char *path_variable(void) {
    return tutti_launcher_variable("RANK_TABLE_FILE") != NULL ? "RANK_TABLE_FILE" : "MINDSPORE_HCCL_CONFIG_PATH";
}

/* ------------------------------------------------------------------------------------------------- file */

void tutti_rank_table_strip_commas(char *text) {
    char *comma = NULL;
    bool quoted = false;
    for (char *c = text; *c != '\0'; c++) {
        if (quoted) {
            if (*c == '\\' && c[1] != '\0') c++;
            else if (*c == '"') quoted = false;
            continue;
        }
        if ((*c == ']' || *c == '}') && comma != NULL) *comma = ' ';
        if (strchr(" \t\r\n", *c) != NULL) continue;
        comma = *c == ',' ? c : NULL;
        quoted = *c == '"';
    }
}

/* Reads the whole file and appends a NUL. */
static tutti_status read_all(int fd, char **text_out) {
    size_t bytes = 0, capacity = 64 << 10;
    char *text = malloc(capacity + 1);
    for (ssize_t got = 1; text != NULL && got > 0; bytes += (size_t)got) {
        if (bytes == capacity) {
            char *grown = capacity < MOST_FILE_BYTES ? realloc(text, 2 * capacity + 1) : NULL;
            if (grown == NULL) break;
            text = grown;
            capacity *= 2;
        }
        got = read(fd, text + bytes, capacity - bytes);
        if (got >= 0) continue;
        free(text);
        return tutti_fail(TUTTI_ERR_CONFIG, "%s", strerror(errno));
    }
    if (text == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "out of memory while reading it");
    if (bytes == capacity) {
        free(text);
        return tutti_fail(TUTTI_ERR_CONFIG, "it is longer than %zu bytes", bytes);
    }
    text[bytes] = '\0';
    *text_out = text;
    return TUTTI_OK;
}

static tutti_status read_file(const char *path, char **text_out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return tutti_fail(TUTTI_ERR_CONFIG, "%s", strerror(errno));
    tutti_status status = read_all(fd, text_out);
    close(fd);
    return status;
}

/* ---------------------------------------------------------------------------------------------- checking */

static int compare_places(const void *a, const void *b) {
    const tutti_rank_entry *one = a, *two = b;
    int order = strcmp(one->server, two->server);
    return order != 0 ? order : (one->device > two->device) - (one->device < two->device);
}

static int compare_ranks(const void *a, const void *b) {
    const tutti_rank_entry *one = a, *two = b;
    return (one->rank > two->rank) - (one->rank < two->rank);
}

/* Checks that `list` is one address, or several separated by commas; stores their number in *count_out. */
static bool are_addresses(const char *list, int *count_out) {
    *count_out = 0;
    for (const char *next = list; *next != '\0'; next += *next == ',') {
        char text[TUTTI_ADDRESS_TEXT_BYTES];
        uint8_t address[16];
        size_t length = strcspn(next, ",");
        if (length >= sizeof text) return false;
        snprintf(text, sizeof text, "%.*s", (int)length, next);
        if (!tutti_address_read(text, address)) return false;
        next += length;
        ++*count_out;
    }
    return true;
}

static tutti_status check_entry(const tutti_rank_table *table, const tutti_rank_entry *entry) {
    int naddresses, nfirst, most = table->version[0] == '\0' ? MOST_OLD_DEVICE : MOST_DEVICE;
    if (entry->device > most)
        return tutti_fail(TUTTI_ERR_CONFIG, "device_id %d of rank %d is more than %d", entry->device, entry->rank,
                          most);
    if (!are_addresses(entry->device_ip, &naddresses))
        return tutti_fail(TUTTI_ERR_CONFIG, "device_ip '%.60s' of rank %d is not an address", entry->device_ip,
                          entry->rank);
    (void)are_addresses(table->entries[0].device_ip, &nfirst);
    if (naddresses != nfirst)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d has %d device_ip, rank 0 has %d; all devices must have the same number", entry->rank,
                          naddresses, nfirst);
    if ((entry->host_ip[0] == '\0') != (table->entries[0].host_ip[0] == '\0'))
        return tutti_fail(TUTTI_ERR_CONFIG, "some servers have a host_ip, others do not; give all or none of them one");
    return TUTTI_OK;
}

/* Checks that no two devices have the same place or address. The entries are sorted by place. The old layout always has
 * a device_ip; later ones may do without, since their server_id or host_ip says where the ranks meet. */
static tutti_status check_places(const tutti_rank_table *table) {
    const tutti_rank_entry *entries = table->entries;
    bool several = strcmp(entries[0].server, entries[table->count - 1].server) != 0;
    for (int i = 0; i < table->count; i++) {
        if (several && table->version[0] == '\0' && entries[i].device_ip[0] == '\0')
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "device %d of server %s has no device_ip, which tables of several servers need in the "
                              "old layout",
                              entries[i].device, entries[i].server);
        if (i > 0 && compare_places(&entries[i - 1], &entries[i]) == 0)
            return tutti_fail(TUTTI_ERR_CONFIG, "device_id %d of server %s occurs twice", entries[i].device,
                              entries[i].server);
        for (int j = 0; j < i && entries[i].device_ip[0] != '\0'; j++)
            if (strcmp(entries[i].device_ip, entries[j].device_ip) == 0)
                return tutti_fail(TUTTI_ERR_CONFIG, "device_ip %.60s occurs twice", entries[i].device_ip);
    }
    return TUTTI_OK;
}

static tutti_status check_ranks(tutti_rank_table *table) {
    qsort(table->entries, (size_t)table->count, sizeof *table->entries, compare_ranks);
    for (int i = 0; i < table->count; i++) {
        if (table->entries[i].rank != i)
            return tutti_fail(TUTTI_ERR_CONFIG, "its %d devices must have the rank_id 0 to %d, but %s %d", table->count,
                              table->count - 1, table->entries[i].rank < i ? "two have" : "none has",
                              table->entries[i].rank < i ? table->entries[i].rank : i);
        TUTTI_TRY(check_entry(table, &table->entries[i]));
    }
    return TUTTI_OK;
}

/* Sorts by rank; in cloud mode the order of servers and devices gives the ranks. */
static tutti_status check(tutti_rank_table *table) {
    if (table->count == 0) return tutti_fail(TUTTI_ERR_CONFIG, "it has no devices");
    qsort(table->entries, (size_t)table->count, sizeof *table->entries, compare_places);
    TUTTI_TRY(check_places(table));
    for (int i = 0; i < table->count && table->cloud; i++) table->entries[i].rank = i;
    return check_ranks(table);
}

/* ---------------------------------------------------------------------------------------------- loading */

static tutti_status open_module(const tutti_module_calls **calls_out) {
    tutti_status status = tutti_module_open("json", TUTTI_JSON_LEFT_OUT, calls_out);
    return status == TUTTI_OK ? TUTTI_OK : tutti_fail_context(status, "rank tables need the module json");
}

tutti_status tutti_rank_table_check(void) {
    const tutti_module_calls *calls;
    return open_module(&calls);
}

static tutti_status load_once(const char *path, tutti_rank_table *table_out) {
    const tutti_module_calls *calls = NULL;
    tutti_rank_table table = {0};
    char *text = NULL;
    TUTTI_TRY(open_module(&calls));
    TUTTI_TRY(read_file(path, &text));
    tutti_rank_table_strip_commas(text);
    tutti_status status = ((const tutti_json_module *)(const void *)calls)->read_rank_table(text, &table);
    free(text);
    TUTTI_TRY(status);
    if (table.completed) status = check(&table);
    if (status == TUTTI_OK) *table_out = table;
    else tutti_rank_table_free(&table);
    return status;
}

/* Among the ranks that wait for the table, only rank 0 logs it or, without RANK_ID, the first device of each server. */
static bool is_first(void) {
    const char *rank = tutti_launcher_variable("RANK_ID"), *device = tutti_launcher_variable("DEVICE_ID");
    const char *number = rank != NULL ? rank : device;
    return number == NULL || strcmp(number, "0") == 0;
}

static void say_doubt(const char *path, const tutti_rank_table *table) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    if (table->doubt[0] != '\0' && is_first() && !atomic_flag_test_and_set(&logged))
        tutti_log(TUTTI_LOG_WARN, "rank table %s: %s", path, table->doubt);
}

/* The file may be in the middle of an update: once it has been seen unfinished, invalid JSON means "not yet". */
tutti_status tutti_rank_table_load(const char *path, tutti_rank_table *table_out) {
    int64_t timeout_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    tutti_deadline deadline = tutti_deadline_after_ms(timeout_ms);
    tutti_notice notice = {0};
    for (bool unfinished = false;; tutti_nap(LOOK_MS * TUTTI_NS_PER_MS)) {
        tutti_rank_table table = {0};
        tutti_status status = load_once(path, &table);
        if (status != TUTTI_OK && !(status == TUTTI_ERR_DATA && unfinished && !tutti_deadline_passed(&deadline)))
            return tutti_fail_context(status, "rank table %s", path);
        if (status == TUTTI_OK && table.completed) {
            say_doubt(path, &table);
            *table_out = table;
            return TUTTI_OK;
        }
        unfinished = true;
        if (is_first() && tutti_notice_due(&notice, deadline.spent_ns))
            tutti_log(TUTTI_LOG_WARN,
                      "the start has waited %lld s for rank table %s, whose status is not 'completed'; waits "
                      "until TUTTI_CONNECT_TIMEOUT_MS",
                      (long long)(deadline.spent_ns / TUTTI_NS_PER_S), path);
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(
                TUTTI_ERR_TIMEOUT,
                "rank table %s: its status is not 'completed' after %lld ms (TUTTI_CONNECT_TIMEOUT_MS); the "
                "process that writes it has probably failed",
                path, (long long)timeout_ms);
    }
}

void tutti_rank_table_free(tutti_rank_table *table) {
    free(table->entries);
    *table = (tutti_rank_table){0};
}

/* ---------------------------------------------------------------------------------------- this process */

static tutti_status read_variable(const char *name, int *number_out) {
    const char *text = tutti_launcher_variable(name);
    char *end = NULL;
    *number_out = TUTTI_NOT_GIVEN;
    if (text == NULL) return TUTTI_OK;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 0 || number > TUTTI_MOST_RANKS)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s=%.40s is not a whole number from 0 to %d", name, text,
                          TUTTI_MOST_RANKS);
    *number_out = (int)number;
    return TUTTI_OK;
}

bool tutti_rank_table_is_here(const tutti_rank_entry *entry) {
    const char *advertised = tutti_setting_text(TUTTI_SETTING_ADVERTISE);
    if (*advertised != '\0' && (strcmp(entry->server, advertised) == 0 || strcmp(entry->host_ip, advertised) == 0))
        return true;
    return tutti_host_is_own(entry->server) || tutti_host_is_own(entry->host_ip) || tutti_host_is_own(entry->pod);
}

/* Without RANK_ID: finds the device of that number on this server. */
static tutti_status find_by_device(const tutti_rank_table *table, int device, int *rank_out) {
    const tutti_rank_entry *entries = table->entries;
    int nfound = 0;
    bool several = false;
    for (int i = 1; i < table->count; i++) several |= strcmp(entries[i].server, entries[0].server) != 0;
    for (int i = 0; i < table->count; i++) {
        const tutti_rank_entry *entry = &entries[i];
        if (entry->device != device) continue;
        if (several && !tutti_rank_table_is_here(entry)) continue;
        *rank_out = i;
        nfound++;
    }
    if (nfound == 1) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "RANK_ID is not set, and %s device %d (DEVICE_ID) on a server that has this host's name or one of its "
        "addresses; set RANK_ID",
        nfound == 0 ? "there is no" : "there is more than one", device);
}

static tutti_status find_self(const tutti_rank_table *table, int *rank_out) {
    int rank, nranks, device;
    TUTTI_TRY(read_variable("RANK_ID", &rank));
    TUTTI_TRY(read_variable("RANK_SIZE", &nranks));
    TUTTI_TRY(read_variable("DEVICE_ID", &device));
    if (rank == TUTTI_NOT_GIVEN && device == TUTTI_NOT_GIVEN)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "neither RANK_ID nor DEVICE_ID is set, so this process's rank is unknown; set RANK_ID");
    if (rank == TUTTI_NOT_GIVEN) TUTTI_TRY(find_by_device(table, device, &rank));
    if (rank >= table->count)
        return tutti_fail(TUTTI_ERR_CONFIG, "RANK_ID=%d, but it has %d ranks", rank, table->count);
    if (nranks != TUTTI_NOT_GIVEN && nranks != table->count)
        return tutti_fail(TUTTI_ERR_CONFIG, "RANK_SIZE=%d, but it has %d ranks", nranks, table->count);
    if (device != TUTTI_NOT_GIVEN && device != table->entries[rank].device)
        return tutti_fail(TUTTI_ERR_CONFIG, "DEVICE_ID=%d, but rank %d has device_id %d", device, rank,
                          table->entries[rank].device);
    *rank_out = rank;
    return TUTTI_OK;
}

/* Nodes are numbered in the order of their lowest rank, ranks of a node in the order of their devices. */
static void fill_world(const tutti_rank_table *table, int rank, tutti_world *world_out) {
    const tutti_rank_entry *entries = table->entries, *own = &entries[rank];
    *world_out = (tutti_world){.rank = rank, .size = table->count, .device = own->device};
    for (int i = 0; i < table->count; i++) {
        bool first = true, same = strcmp(entries[i].server, own->server) == 0;
        for (int j = 0; j < i && first; j++) first = strcmp(entries[j].server, entries[i].server) != 0;
        if (first && same) world_out->node = world_out->nodes;
        world_out->nodes += first;
        world_out->local_size += same;
        world_out->local_rank += same && entries[i].device < own->device;
    }
}

/* ------------------------------------------------------------------------------------------- interfaces */

/* Adds a name to a list separated by commas, unless it is there already. */
static void add_name(char *list, size_t capacity, const char *name) {
    const size_t used = strlen(list), bytes = strlen(name);
    for (const char *next = list; *next != '\0'; next += *next == ',') {
        const size_t length = strcspn(next, ",");
        if (length == bytes && memcmp(next, name, bytes) == 0) return;
        next += length;
    }
    if (used + bytes + 2 <= capacity) snprintf(list + used, capacity - used, "%s%s", used > 0 ? "," : "", name);
}

/* Lists the names of the interfaces that have one of the texts, separated by commas, as their name or address. */
static void find_interfaces(const char *texts, const tutti_interface *own, int count, bool by_name, char *list,
                            size_t capacity) {
    list[0] = '\0';
    for (const char *next = texts; *next != '\0'; next += *next == ',') {
        char text[TUTTI_ADDRESS_TEXT_BYTES];
        uint8_t address[16];
        const size_t length = strcspn(next, ",");
        snprintf(text, sizeof text, "%.*s", (int)tutti_min_size(length, sizeof text - 1), next);
        next += length;
        const bool is_address = !by_name && tutti_address_read(text, address);
        for (int i = 0; i < count; i++)
            if (!own[i].loopback && (by_name      ? strcmp(own[i].name, text) == 0
                                     : is_address ? memcmp(own[i].address, address, sizeof address) == 0
                                                  : false))
                add_name(list, capacity, own[i].name);
    }
}

/* A table of several servers says over which network their devices reach each other. */
static void choose_interfaces(const tutti_rank_table *table, const tutti_rank_entry *own_entry) {
    enum { MOST_OWN = 256 };
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    tutti_interface own[MOST_OWN];
    char names[TUTTI_INTERFACES_PREFERRED_BYTES];
    int count = 0;
    bool several = false;
    for (int i = 0; i < table->count; i++) several |= strcmp(table->entries[i].server, own_entry->server) != 0;
    if (!several || tutti_interfaces_all(own, MOST_OWN, &count) != TUTTI_OK) return;
    find_interfaces(own_entry->device_ip, own, count, /* by_name */ false, names, sizeof names);
    const char *member = "device_ip";
    if (names[0] == '\0' && table->nics[0] != '\0') {
        member = "para_plane_nic_name";
        find_interfaces(table->nics, own, count, /* by_name */ true, names, sizeof names);
    }
    tutti_interfaces_prefer(names, member);
    if (atomic_flag_test_and_set(&logged)) return;
    if (names[0] != '\0')
        tutti_log(TUTTI_LOG_INFO, "rank table: %s chooses %s between hosts, unless TUTTI_SOCKET_IFNAME is set", member,
                  names);
    else if (own_entry->device_ip[0] == '\0')
        tutti_log(
            TUTTI_LOG_INFO,
            "rank table: devices have no device_ip, so this host uses all its networks (TUTTI_SOCKET_IFNAME chooses)");
    else
        tutti_log(TUTTI_LOG_INFO,
                  "rank table: device_ip %s of rank %d is not an address of this host, which uses all its networks "
                  "(TUTTI_SOCKET_IFNAME chooses)",
                  own_entry->device_ip, own_entry->rank);
}

bool tutti_rank_table_present(bool other) {
    if (tutti_launcher_variable(path_variable()) == NULL) return false;
    return !other || tutti_launcher_variable("RANK_ID") != NULL || tutti_launcher_variable("DEVICE_ID") != NULL;
}

tutti_status tutti_rank_table_world(tutti_world *world_out) {
    const char *path = tutti_launcher_variable(path_variable());
    tutti_rank_table table = {0};
    int rank = 0;
    TUTTI_TRY(tutti_rank_table_load(path, &table));
    tutti_status status = find_self(&table, &rank);
    if (status == TUTTI_OK) {
        fill_world(&table, rank, world_out);
        choose_interfaces(&table, &table.entries[rank]);
    }
    tutti_rank_table_free(&table);
    return status == TUTTI_OK ? status : tutti_fail_context(status, "rank table %s", path);
}

int tutti_rank_table_device(const tutti_world *world) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    const char *path = tutti_launcher_variable(path_variable());
    tutti_rank_table table = {0};
    int rank, nranks, device = TUTTI_NOT_GIVEN;
    if (path == NULL || read_variable("RANK_ID", &rank) != TUTTI_OK || rank != world->rank ||
        read_variable("RANK_SIZE", &nranks) != TUTTI_OK || nranks != world->size)
        return TUTTI_NOT_GIVEN;
    tutti_status status = load_once(path, &table);
    if (status == TUTTI_OK && !table.completed) status = tutti_fail(TUTTI_ERR_DATA, "its status is not 'completed'");
    if (status == TUTTI_OK) status = find_self(&table, &rank);
    if (status == TUTTI_OK) {
        device = table.entries[rank].device;
        choose_interfaces(&table, &table.entries[rank]);
    } else if (!atomic_flag_test_and_set(&logged)) {
        tutti_log(TUTTI_LOG_INFO, "rank table %s is not used: %s", path, tutti_last_error());
    }
    tutti_rank_table_free(&table);
    return device;
}

/* ---------------------------------------------------------------------------------------------- meeting */

/* FNV-1a */
uint64_t tutti_rank_table_hash(const tutti_rank_table *table) {
    uint64_t value = TUTTI_FNV_BASIS;
    for (int i = 0; i < table->count; i++) {
        char line[128];
        snprintf(line, sizeof line, "%s/%d;", table->entries[i].server, table->entries[i].device);
        value = tutti_fnv_bytes(value, line, strlen(line));
    }
    return value;
}

const char *tutti_rank_table_host(const tutti_rank_table *table) {
    const tutti_rank_entry *first = &table->entries[0];
    uint8_t address[16];
    bool one_server = true;
    for (int i = 1; i < table->count; i++) one_server &= strcmp(table->entries[i].server, first->server) == 0;
    if (one_server) return "127.0.0.1";
    if (first->host_ip[0] != '\0') return first->host_ip;
    const bool server = first->device_ip[0] == '\0' || tutti_address_read(first->server, address);
    return server ? first->server : first->device_ip;
}

tutti_status tutti_rank_table_meeting(char *host_out, size_t host_capacity, char *run_out, size_t run_capacity) {
    tutti_rank_table table = {0};
    TUTTI_TRY(tutti_rank_table_load(tutti_launcher_variable(path_variable()), &table));
    snprintf(host_out, host_capacity, "%s", tutti_rank_table_host(&table));
    snprintf(run_out, run_capacity, "table-%016llx", (unsigned long long)tutti_rank_table_hash(&table));
    tutti_rank_table_free(&table);
    return TUTTI_OK;
}
