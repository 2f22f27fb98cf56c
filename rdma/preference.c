/*
 * Chooses a GID by its type; reads distances from /sys.
 */
#include "rdma/preference.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_ipv4(const uint8_t raw[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(raw, mapped, sizeof mapped) == 0;
}

bool tutti_rdma_gid_is_ipv4(const tutti_rdma_gid *gid) {
    return is_ipv4(gid->raw);
}

static bool is_link_local(const uint8_t raw[16]) {
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

/* Higher is better; *words_out describes the address. */
static int rank_of(const tutti_rdma_gid *gid, const char **words_out) {
    static const char *const words[] = {"InfiniBand",          "RoCE v1, link-local", "RoCE v1, IPv6", "RoCE v1, IPv4",
                                        "RoCE v2, link-local", "RoCE v2, IPv6",       "RoCE v2, IPv4"};
    int family = is_ipv4(gid->raw) ? 2 : is_link_local(gid->raw) ? 0 : 1;
    int rank = gid->type == TUTTI_RDMA_GID_IB ? 0 : gid->type == TUTTI_RDMA_GID_ROCE_V1 ? 1 + family : 4 + family;
    *words_out = words[rank];
    return rank;
}

void tutti_rdma_gid_text(const tutti_rdma_gid *gid, char *text, size_t capacity) {
    char address[INET6_ADDRSTRLEN] = "?";
    const char *words;
    rank_of(gid, &words);
    if (is_ipv4(gid->raw)) inet_ntop(AF_INET, gid->raw + 12, address, sizeof address);
    else inet_ntop(AF_INET6, gid->raw, address, sizeof address);
    snprintf(text, capacity, "%s %s", words, address);
}

int tutti_rdma_gid_choose(const tutti_rdma_gid *gids, int ngids, int wanted_index, char *why, size_t capacity) {
    char text[96];
    int best = -1, best_rank = -1;
    for (int i = 0; i < ngids; i++) {
        const char *words;
        int rank = rank_of(&gids[i], &words);
        bool fits = wanted_index < 0 ? rank > best_rank : gids[i].index == wanted_index;
        if (!fits) continue;
        best = i;
        best_rank = rank;
    }
    if (best < 0 && wanted_index >= 0)
        snprintf(why, capacity, "TUTTI_RDMA_GID_INDEX=%d names none of the port's %d addresses", wanted_index, ngids);
    else if (best < 0) snprintf(why, capacity, "the port has no address (its interface is down or has no IP address?)");
    if (best < 0) return -1;
    tutti_rdma_gid_text(&gids[best], text, sizeof text);
    snprintf(why, capacity, "GID index %d, %s: %s", gids[best].index, text,
             wanted_index >= 0 ? "set by TUTTI_RDMA_GID_INDEX"
             : ngids == 1      ? "the only one"
                               : "the best by type");
    return best;
}

/* ---------------------------------------------------------------------------------------------------- distances
 * NUMA distances from /sys/class/infiniband/<adapter>/device/numa_node and /sys/devices/system/node/node<N>; PCI
 * switches from the targets of the devices' links: /sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/... names the
 * bridges above a device.
 */

/* The first number in a file. */
static bool read_int(const char *path, int *number_out) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return false;
    bool good = fscanf(file, "%d", number_out) == 1;
    fclose(file);
    return good;
}

/* A node's folder has a link cpu<N> for each of its CPUs. */
static int node_of_cpu(const char *root, int cpu, int nnodes) {
    char path[PATH_MAX];
    for (int node = 0; node < nnodes; node++) {
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpu%d", root, node, cpu);
        if (access(path, F_OK) == 0) return node;
    }
    return -1;
}

int tutti_rdma_near_distance(const char *root, const char *adapter, int cpu) {
    enum { MOST_NODES = 1024 };
    char path[PATH_MAX];
    int node = -1, distance;
    snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/device/numa_node", root, adapter);
    if (!read_int(path, &node) || node < 0)
        return TUTTI_RDMA_NEAR_UNKNOWN; /* -1: the machine has one node, or a poor BIOS */
    int mine = node_of_cpu(root, cpu, MOST_NODES);
    if (mine < 0) return TUTTI_RDMA_NEAR_UNKNOWN;
    if (mine == node) return TUTTI_RDMA_NEAR_SAME_NODE;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/distance", root, mine);
    FILE *file = fopen(path, "r");
    if (file == NULL) return TUTTI_RDMA_NEAR_UNKNOWN;
    int column = 0, found = TUTTI_RDMA_NEAR_UNKNOWN;
    for (; fscanf(file, "%d", &distance) == 1; column++)
        if (column == node) found = distance; /* one column per existing node, as a rule without gaps */
    fclose(file);
    return found;
}

/* The path below the host bridge: "0000:16:02.0/0000:17:00.0/...". NULL: the device was not found. */
static const char *below_host_bridge(const char *link, char path[PATH_MAX]) {
    const char *bridge = realpath(link, path) != NULL ? strstr(path, "/pci") : NULL;
    const char *below = bridge != NULL ? strchr(bridge + 1, '/') : NULL;
    return below != NULL ? below + 1 : NULL;
}

bool tutti_rdma_near_shares_switch(const char *root, const char *adapter, const char *gpu) {
    char link[PATH_MAX], path[2][PATH_MAX];
    snprintf(link, sizeof link, "%s/sys/class/infiniband/%s/device", root, adapter);
    const char *one = below_host_bridge(link, path[0]);
    snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, gpu);
    const char *other = below_host_bridge(link, path[1]);
    if (one == NULL || other == NULL || one - path[0] != other - path[1] ||
        memcmp(path[0], path[1], (size_t)(one - path[0])) != 0)
        return false; /* behind different host bridges */
    size_t first = strcspn(one, "/");
    return one[first] == '/' && other[first] == '/' && memcmp(one, other, first) == 0;
}
