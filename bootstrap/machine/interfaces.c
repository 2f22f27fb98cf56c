/*
 * The addresses of this host: read from the system, filtered by name, sorted.
 *
 * Candidates are sorted by kind (rank_of), then by speed, then IPv4 before IPv6, then in the system's order. Only
 * the reading functions access the system, so the rest is tested with synthetic hosts.
 */
#include "bootstrap/machine/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"

/* ------------------------------------------------------------------------------------------- addresses */

static bool is_ipv4(const uint8_t address[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(address, mapped, sizeof mapped) == 0;
}

static bool is_link_local(const uint8_t address[16]) {
    if (is_ipv4(address)) return address[12] == 169 && address[13] == 254;
    return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}

bool tutti_address_is_loopback(const uint8_t address[16]) {
    static const uint8_t one[16] = {[15] = 1};
    return is_ipv4(address) ? address[12] == 127 : memcmp(address, one, sizeof one) == 0;
}

void tutti_address_text(const uint8_t address[16], uint32_t scope, char text[TUTTI_ADDRESS_TEXT_BYTES]) {
    char plain[INET6_ADDRSTRLEN] = "?";
    if (is_ipv4(address)) inet_ntop(AF_INET, address + 12, plain, sizeof plain);
    else inet_ntop(AF_INET6, address, plain, sizeof plain);
    if (scope == 0) snprintf(text, TUTTI_ADDRESS_TEXT_BYTES, "%s", plain);
    else snprintf(text, TUTTI_ADDRESS_TEXT_BYTES, "%s%%%u", plain, scope);
}

void tutti_address_of_peer(int fd, char text[TUTTI_ADDRESS_TEXT_BYTES]) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } peer;
    socklen_t bytes = sizeof peer;
    uint8_t address[16] = {[10] = 0xff, [11] = 0xff};
    snprintf(text, TUTTI_ADDRESS_TEXT_BYTES, "?");
    if (getpeername(fd, &peer.any, &bytes) != 0) return;
    if (peer.any.sa_family == AF_INET) memcpy(address + 12, &peer.four.sin_addr, 4);
    else memcpy(address, &peer.six.sin6_addr, sizeof address);
    tutti_address_text(address, peer.any.sa_family == AF_INET6 ? peer.six.sin6_scope_id : 0, text);
}

bool tutti_address_read(const char *text, uint8_t address_out[16]) {
    uint8_t address[16] = {[10] = 0xff, [11] = 0xff};
    if (inet_pton(AF_INET, text, address + 12) != 1 && inet_pton(AF_INET6, text, address) != 1) return false;
    memcpy(address_out, address, sizeof address);
    return true;
}

/* ----------------------------------------------------------------------------------------------- names */

typedef struct name_filter {
    bool except, exact;
    const char *names; /* separated by ',' */
} name_filter;

static name_filter parse_filter(const char *text) {
    name_filter filter = {0};
    filter.except = *text == '^';
    text += filter.except;
    filter.exact = *text == '=';
    filter.names = text + filter.exact;
    return filter;
}

static bool passes(const name_filter *filter, const char *name) {
    if (*filter->names == '\0') return true;
    bool named = false;
    for (const char *next = filter->names; *next != '\0'; next += *next == ',') {
        size_t length = strcspn(next, ",");
        if (length > 0 && strncmp(name, next, length) == 0) named |= !filter->exact || name[length] == '\0';
        next += length;
    }
    return named != filter->except;
}

/* ----------------------------------------------------------------------------------------------- order */

static int rank_of(const tutti_interface *item) {
    if (item->loopback) return 6;
    if (!item->running) return 5;
    if (is_link_local(item->address)) return 4;
    return item->inner ? 3 : item->on_loopback ? 2 : item->point_to_point ? 1 : 0;
}

static bool better(const tutti_interface *a, const tutti_interface *b) {
    int rank_a = rank_of(a), rank_b = rank_of(b);
    if (rank_a != rank_b) return rank_a < rank_b;
    if (a->speed_mbit != b->speed_mbit) return a->speed_mbit > b->speed_mbit;
    return is_ipv4(a->address) && !is_ipv4(b->address);
}

/* Insertion sort: it keeps the system's order of equal items, and there are few items. */
static void sort(tutti_interface *items, int count) {
    for (int i = 1; i < count; i++) {
        tutti_interface item = items[i];
        int at = i;
        for (; at > 0 && better(&item, &items[at - 1]); at--) items[at] = items[at - 1];
        items[at] = item;
    }
}

/* Writes "eth0 (10.0.0.1), lo (127.0.0.1)". */
static void list_all(const tutti_interface *all, int nall, char *text, size_t capacity) {
    size_t used = (size_t)snprintf(text, capacity, "%s", nall == 0 ? "none" : "");
    for (int i = 0; i < nall && used < capacity; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES];
        tutti_address_text(all[i].address, 0, address);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s (%s)", i > 0 ? ", " : "", all[i].name, address);
    }
}

tutti_status tutti_interfaces_choose(tutti_interface *all, int nall, const char *variable, const char *filter,
                                     tutti_interface *interfaces_out, int capacity, int *count_out) {
    name_filter names = parse_filter(filter);
    int npassed = 0, count = 0;
    sort(all, nall);
    for (int i = 0; i < nall; i++) {
        if (!passes(&names, all[i].name)) continue;
        /* A loopback address is kept only if no other kind precedes it; all loopback addresses sort last. */
        bool wanted = !all[i].loopback || npassed == 0 || interfaces_out[0].loopback;
        npassed++;
        if (wanted && count < capacity) interfaces_out[count++] = all[i];
    }
    if (npassed == 0) {
        char found[1024];
        list_all(all, nall, found, sizeof found);
        if (*filter == '\0')
            return tutti_fail(TUTTI_ERR_SYSTEM, "this host has no network interface that is up and has an address");
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%s=%s excludes all network interfaces; this host has %s; select some of these by prefix "
                          "(eth), by exact name (=eth0), or all but some (^docker,lo)",
                          variable, filter, found);
    }
    *count_out = count;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- reading */

/* Asks the driver; only adapters may answer. Not through /sys, which may show another network namespace. */
static bool ask_driver(int fd, const char *name, void *question) {
    struct ifreq request = {.ifr_data = question};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    return ioctl(fd, SIOCETHTOOL, &request) == 0;
}

static uint32_t read_speed(int fd, const char *name) {
    struct ethtool_cmd settings = {.cmd = ETHTOOL_GSET};
    if (!ask_driver(fd, name, &settings)) return 0;
    uint32_t speed =
        (uint32_t)settings.speed_hi << 16 | settings.speed; /* the header's own function overflows an int */
    return speed < INT32_MAX ? speed : 0;                   /* -1 means unknown */
}

/* A tun, unlike a tap, is a point-to-point link: a VPN that leads to other hosts. */
static bool is_inner(int fd, const char *name) {
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    if (!ask_driver(fd, name, &info)) return false;
    return strcmp(info.driver, "bridge") == 0 || (strcmp(info.driver, "tun") == 0 && strcmp(info.bus_info, "tap") == 0);
}

static bool is_address(const struct ifaddrs *item) {
    if (item->ifa_addr == NULL || (item->ifa_flags & IFF_UP) == 0) return false;
    return item->ifa_addr->sa_family == AF_INET || item->ifa_addr->sa_family == AF_INET6;
}

static tutti_interface describe(int fd, const struct ifaddrs *from) {
    tutti_interface item = {.running = (from->ifa_flags & IFF_RUNNING) != 0,
                            .point_to_point = (from->ifa_flags & IFF_POINTOPOINT) != 0};
    snprintf(item.name, sizeof item.name, "%.*s", (int)sizeof item.name - 1, from->ifa_name);
    item.name[strcspn(item.name, ":")] = '\0'; /* "eth0:1" is a label of eth0 */
    if (from->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *address = (const struct sockaddr_in *)(const void *)from->ifa_addr;
        item.address[10] = item.address[11] = 0xff;
        memcpy(item.address + 12, &address->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *address = (const struct sockaddr_in6 *)(const void *)from->ifa_addr;
        memcpy(item.address, &address->sin6_addr, 16);
        if (is_link_local(item.address)) item.scope = address->sin6_scope_id;
    }
    item.loopback = tutti_address_is_loopback(item.address);
    item.on_loopback = !item.loopback && (from->ifa_flags & IFF_LOOPBACK) != 0;
    item.inner = is_inner(fd, item.name);
    item.speed_mbit = read_speed(fd, item.name);
    return item;
}

/* The filter that tutti_interfaces_prefer has set. */
static struct {
    char filter[TUTTI_INTERFACES_PREFERRED_BYTES + 1];
    const char *member;
} preferred;

void tutti_interfaces_prefer(const char *names, const char *member) {
    tutti_lock(TUTTI_LOCK_INTERFACES);
    snprintf(preferred.filter, sizeof preferred.filter, "%s%s", *names != '\0' ? "=" : "", names);
    preferred.member = member;
    tutti_unlock(TUTTI_LOCK_INTERFACES);
}

/* Returns the value of TUTTI_SOCKET_IFNAME, or of the first other variable that is set, or what is preferred. */
static const char *find_filter(const char **variable_out) {
    static const char *const others[] = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"};
    const char *filter = tutti_setting_text(TUTTI_SETTING_SOCKET_IFNAME);
    *variable_out = tutti_setting_row_of(TUTTI_SETTING_SOCKET_IFNAME)->name;
    for (size_t i = 0; i < TUTTI_COUNT_OF(others) && *filter == '\0'; i++) {
        if (getenv(others[i]) == NULL) continue;
        *variable_out = others[i];
        filter = getenv(others[i]);
    }
    if (*filter != '\0') return filter;
    static _Thread_local char copy[sizeof preferred.filter];
    tutti_lock(TUTTI_LOCK_INTERFACES);
    snprintf(copy, sizeof copy, "%s", preferred.filter);
    if (*copy != '\0') *variable_out = preferred.member;
    tutti_unlock(TUTTI_LOCK_INTERFACES);
    return copy;
}

/* Reads the system's list; the caller frees it. */
static tutti_status read_all(tutti_interface **all_out, int *count_out) {
    struct ifaddrs *found = NULL;
    tutti_interface *all;
    int count = 0;
    if (getifaddrs(&found) != 0) return tutti_fail_errno(errno, "cannot list the network interfaces");
    for (const struct ifaddrs *item = found; item != NULL; item = item->ifa_next) count += is_address(item);
    tutti_status status = tutti_calloc((size_t)count, sizeof *all, &all);
    if (status == TUTTI_OK) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        count = 0;
        for (const struct ifaddrs *item = found; item != NULL; item = item->ifa_next)
            if (is_address(item)) all[count++] = describe(fd, item);
        if (fd >= 0) close(fd);
        *all_out = all;
        *count_out = count;
    }
    freeifaddrs(found);
    return status;
}

tutti_status tutti_interfaces_list(tutti_interface *interfaces_out, int capacity, int *count_out) {
    const char *variable, *filter = find_filter(&variable);
    tutti_interface *all;
    int nall;
    TUTTI_TRY(read_all(&all, &nall));
    tutti_status status = tutti_interfaces_choose(all, nall, variable, filter, interfaces_out, capacity, count_out);
    free(all);
    return status;
}

tutti_status tutti_interfaces_all(tutti_interface *interfaces_out, int capacity, int *count_out) {
    tutti_interface *all;
    int nall;
    TUTTI_TRY(read_all(&all, &nall));
    *count_out = (int)tutti_min_i64(nall, capacity);
    memcpy(interfaces_out, all, (size_t)*count_out * sizeof *all);
    free(all);
    return TUTTI_OK;
}

bool tutti_host_is_own(const char *text) {
    enum { MOST_OWN = 256 };
    char name[256] = "";
    uint8_t address[16];
    tutti_interface own[MOST_OWN];
    int count = 0;
    gethostname(name, sizeof name - 1);
    if (*text == '\0') return false;
    if (strcmp(text, name) == 0) return true;
    if (!tutti_address_read(text, address)) return strncmp(text, name, strlen(text)) == 0 && name[strlen(text)] == '.';
    if (tutti_interfaces_all(own, MOST_OWN, &count) != TUTTI_OK) return false;
    for (int i = 0; i < count; i++)
        if (memcmp(own[i].address, address, sizeof address) == 0) return true;
    return false;
}

bool tutti_host_is_loopback(const char *text) {
    uint8_t address[16];
    return strcmp(text, "localhost") == 0 || (tutti_address_read(text, address) && tutti_address_is_loopback(address));
}
