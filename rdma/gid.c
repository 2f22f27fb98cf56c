/*
 * Choosing a GID by its type.
 */
#include "rdma/gid.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
