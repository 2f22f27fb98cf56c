/*
 * See store_crowd.h. A new descriptor gets the lowest free number, so all numbers below it are in use: a high
 * number shows how many descriptors the process has left, whatever else it has opened. This is assumed to hold for
 * a while, because low numbers, which show nothing, become free when other connections are closed.
 */
#include "bootstrap/store/store_crowd.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bootstrap/base/common.h"
#include "bootstrap/store/store_connection.h"

tutti_status tutti_store_crowd_open(tutti_store_crowd *crowd) {
    struct rlimit limit;
    int most = 1 << 20;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)most) most = (int)limit.rlim_cur;
    crowd->limit = most;
    return tutti_getrandom(&crowd->seed, sizeof crowd->seed);
}

/* ------------------------------------------------------------------------------------------- addresses */

static void key_of(const struct sockaddr_storage *address, uint8_t key[16]) {
    memset(key, 0, 16);
    if (address->ss_family == AF_INET6) {
        memcpy(key, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
        return;
    }
    key[10] = key[11] = 0xFF; /* IPv4-mapped IPv6 address */
    memcpy(key + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
}

static tutti_store_address **bucket_of(tutti_store_crowd *crowd, const uint8_t key[16]) {
    uint64_t words[2];
    memcpy(words, key, sizeof words);
    unsigned __int128 product = (unsigned __int128)(words[0] ^ crowd->seed) * ((words[1] ^ (crowd->seed >> 7)) | 1);
    uint64_t hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    return &crowd->addresses[(hash ^ (hash >> 32)) % TUTTI_STORE_ADDRESS_BUCKETS];
}

static tutti_status find_address(tutti_store_crowd *crowd, const uint8_t key[16], tutti_store_address **address_out) {
    tutti_store_address **bucket = bucket_of(crowd, key), *address = *bucket;
    while (address != NULL && memcmp(address->key, key, sizeof address->key) != 0) address = address->chain;
    if (address == NULL) {
        TUTTI_TRY(tutti_calloc(1, sizeof *address, &address));
        memcpy(address->key, key, sizeof address->key);
        address->number = ++crowd->naddresses;
        address->chain = *bucket;
        *bucket = address;
    }
    *address_out = address;
    return TUTTI_OK;
}

static void leave_address(tutti_store_crowd *crowd, tutti_store_address *address) {
    if (--address->nconnections > 0) return;
    tutti_store_address **link = bucket_of(crowd, address->key);
    while (*link != address) link = &(*link)->chain;
    *link = address->chain;
    free(address);
}

/* ----------------------------------------------------------------------------------------- coming and going */

static void end_strangeness(tutti_store_crowd *crowd, tutti_store_connection *c) {
    if (!c->unverified) return;
    c->unverified = false;
    crowd->nunverified--;
    if (c->previous_unverified != NULL) c->previous_unverified->next_unverified = c->next_unverified;
    else crowd->first_unverified = c->next_unverified;
    if (c->next_unverified != NULL) c->next_unverified->previous_unverified = c->previous_unverified;
    else crowd->last_unverified = c->previous_unverified;
}

tutti_status tutti_store_crowd_join(tutti_store_crowd *crowd, tutti_store_connection *c,
                                    const struct sockaddr_storage *address) {
    uint8_t key[16];
    if (tutti_store_is_own(c)) return TUTTI_OK;
    key_of(address, key);
    TUTTI_TRY(find_address(crowd, key, &c->address));
    c->address->nconnections++;
    c->foreign = c->unverified = true;
    crowd->nforeign++;
    crowd->nunverified++;
    c->previous_unverified = crowd->last_unverified;
    if (c->previous_unverified != NULL) c->previous_unverified->next_unverified = c;
    else crowd->first_unverified = c;
    crowd->last_unverified = c;
    return TUTTI_OK;
}

void tutti_store_crowd_leave(tutti_store_crowd *crowd, tutti_store_connection *c) {
    if (!c->foreign) return;
    end_strangeness(crowd, c);
    leave_address(crowd, c->address);
    c->address = NULL;
    c->foreign = false;
    crowd->nforeign--;
}

bool tutti_store_crowd_update(tutti_store_crowd *crowd, tutti_store_budget *budget, tutti_store_connection *c) {
    if (c->validated) end_strangeness(crowd, c);
    if (!c->foreign || !tutti_store_is_own(c)) return false;
    tutti_store_budget_leave(budget, c);
    tutti_store_crowd_leave(crowd, c);
    tutti_store_budget_settle(budget, c);
    return true;
}

/* ----------------------------------------------------------------------------------------------- eviction */

static int most_unverified(const tutti_store_crowd *crowd) {
    return crowd->limit / 8 < TUTTI_STORE_MOST_UNVERIFIED ? crowd->limit / 8 : TUTTI_STORE_MOST_UNVERIFIED;
}

static int descriptors_to_leave(const tutti_store_crowd *crowd) {
    return crowd->limit / 4 < TUTTI_STORE_FREE_DESCRIPTORS ? crowd->limit / 4 : TUTTI_STORE_FREE_DESCRIPTORS;
}

static int most_foreign(const tutti_store_crowd *crowd) {
    int most = crowd->limit - crowd->limit / 4;
    if (most > TUTTI_STORE_MOST_FOREIGN) most = TUTTI_STORE_MOST_FOREIGN;
    return crowd->learned_ns != 0 && crowd->most_now < most ? crowd->most_now : most;
}

void tutti_store_crowd_learn(tutti_store_crowd *crowd, const tutti_store_connection *newcomer) {
    int too_many = newcomer->fd + 1 - (crowd->limit - descriptors_to_leave(crowd));
    if (too_many > 0) {
        crowd->most_now = crowd->nforeign > too_many ? crowd->nforeign - too_many : 0;
        crowd->learned_ns = newcomer->opened_ns;
    } else if (newcomer->opened_ns - crowd->learned_ns > TUTTI_STORE_LEARNED_MS * TUTTI_NS_PER_MS) {
        crowd->learned_ns = 0;
    }
}

static tutti_store_connection *oldest_unverified(const tutti_store_crowd *crowd, const tutti_store_connection *but) {
    tutti_store_connection *c = crowd->first_unverified;
    return c != NULL && c == but ? c->next_unverified : c;
}

/* Returns the connection that has been idle longest of the address with the most connections; among addresses with
 * equally many, the one idle longest. */
static tutti_store_connection *idlest(tutti_store_connection *connections, const tutti_store_connection *but) {
    tutti_store_connection *chosen = NULL;
    for (tutti_store_connection *c = connections; c != NULL; c = c->next) {
        if (!c->foreign || c == but) continue;
        int more = chosen == NULL ? 1 : c->address->nconnections - chosen->address->nconnections;
        if (more > 0 || (more == 0 && c->active_ns < chosen->active_ns)) chosen = c;
    }
    return chosen;
}

tutti_store_connection *tutti_store_crowd_victim(const tutti_store_crowd *crowd, tutti_store_connection *connections,
                                                 const tutti_store_connection *newcomer) {
    if (crowd->nforeign == 0) return NULL;
    if (newcomer != NULL && crowd->nunverified > most_unverified(crowd) &&
        newcomer->opened_ns - crowd->first_unverified->opened_ns > TUTTI_STORE_GREETING_MS * TUTTI_NS_PER_MS)
        return crowd->first_unverified;
    if (newcomer != NULL && crowd->nforeign <= most_foreign(crowd)) return NULL;
    tutti_store_connection *victim = oldest_unverified(crowd, newcomer);
    if (victim == NULL) victim = idlest(connections, newcomer);
    return victim != NULL ? victim : crowd->first_unverified;
}
