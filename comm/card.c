/*
 * The store phase of a communicator's creation. See card.h.
 *
 *   every rank:  add 1 to <prefix>/count/<rank> (a second one there is an error), set <prefix>/card/<rank>
 *   rank 0:      get all cards, check them, set <prefix>/roll to all of them, or to the error
 *   the others:  get <prefix>/roll
 */
#include "comm/card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"

#define CARD_MAGIC  UINT64_C(0x3130647261637474) /* "ttcard01" */
#define ROLL_FAILED UINT64_C(0)                  /* comm_id of a roll that holds an error text instead of cards */
#define KEY_BYTES   512

static void read_host_id(char *text, size_t capacity) {
    const char *told = tutti_setting_text(TUTTI_SETTING_HOST_ID);
    snprintf(text, capacity, "%s", told);
    if (told[0] != '\0') return;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(text, (int)capacity, file) == NULL) gethostname(text, capacity - 1);
    if (file != NULL) fclose(file);
    text[strcspn(text, "\n")] = '\0';
    /* The sockets over which memory is passed reach as far as a network namespace. */
    struct stat namespace;
    size_t used = strlen(text);
    if (stat("/proc/self/ns/net", &namespace) == 0)
        snprintf(text + used, capacity - used, "/%llx", (unsigned long long)namespace.st_ino);
}

tutti_status tutti_card_fill(int rank, int nranks, tutti_card *card_out) {
    tutti_peer *self;
    TUTTI_TRY(tutti_peer_self(&self));
    tutti_card card = {.magic = CARD_MAGIC, .rank = rank, .nranks = nranks, .pid = getpid()};
    snprintf(card.version, sizeof card.version, "%s", tutti_version());
    tutti_settings_agreed(card.settings, sizeof card.settings);
    read_host_id(card.host_id, sizeof card.host_id);
    memcpy(card.host, self->host, sizeof card.host);
    tutti_cores_allowed(&card.cores);
    card.most_cores = tutti_cores_most();
    *card_out = card;
    return TUTTI_OK;
}

static const char *key(char *text, const char *prefix, const char *what, int rank) {
    if (rank < 0) snprintf(text, KEY_BYTES, "%s/%s", prefix, what);
    else snprintf(text, KEY_BYTES, "%s/%s/%d", prefix, what, rank);
    return text;
}

/* Ends all texts, so that what came from outside can be printed. */
static void bound_texts(tutti_card *card) {
    card->version[sizeof card->version - 1] = '\0';
    card->settings[sizeof card->settings - 1] = '\0';
    card->host_id[sizeof card->host_id - 1] = '\0';
    card->host[sizeof card->host - 1] = '\0';
    card->socket_name[sizeof card->socket_name - 1] = '\0';
}

static tutti_status check_card(const tutti_card *own, const tutti_card *card, int rank) {
    if (card->magic != CARD_MAGIC || card->rank != rank)
        return tutti_fail(TUTTI_ERR_DATA,
                          "what rank %d left in the store is no card of a Tutti rank; is another program "
                          "using the same store and prefix?",
                          rank);
    if (card->nranks != own->nranks)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d (host %s, pid %lld) says %d ranks, rank %d says %d: WORLD_SIZE must be "
                          "equal everywhere",
                          rank, card->host, (long long)card->pid, card->nranks, own->rank, own->nranks);
    if (strcmp(card->version, own->version) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d runs Tutti %s, rank %d runs %s: all ranks must load the same version", rank,
                          card->version, own->rank, own->version);
    if (strcmp(card->settings, own->settings) != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "settings differ: rank %d has \"%s\", rank %d has \"%s\"; set them alike",
                          rank, card->settings, own->rank, own->settings);
    return TUTTI_OK;
}

/* "2, 5 and 3 more": ranks that have no card in the store. */
static void list_absent(const tutti_store *store, const char *prefix, int nranks, char *text, size_t capacity) {
    char name[KEY_BYTES];
    size_t used = 0;
    int absent = 0;
    text[0] = '\0';
    for (int rank = 0; rank < nranks; rank++) {
        int exists = 0;
        if (store->check(store->context, key(name, prefix, "card", rank), &exists) != TUTTI_OK || exists) continue;
        if (++absent <= 16 && used < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s%d", absent > 1 ? ", " : "", rank);
    }
    if (absent > 16 && used < capacity) snprintf(text + used, capacity - used, " and %d more", absent - 16);
}

static tutti_status get_exactly(const tutti_store *store, const char *name, void *value, size_t bytes,
                                tutti_deadline *deadline) {
    size_t got = 0;
    tutti_deadline_passed(deadline);
    TUTTI_TRY(store->get(store->context, name, value, bytes, &got, tutti_deadline_left_ms(deadline)));
    if (got != bytes)
        return tutti_fail(TUTTI_ERR_DATA, "the store's key \"%s\" holds %zu bytes, %zu expected", name, got, bytes);
    tutti_deadline_passed(deadline);
    return TUTTI_OK;
}

static tutti_status collect(const tutti_store *store, const char *prefix, const tutti_card *own,
                            tutti_deadline *deadline, tutti_roll *roll) {
    char name[KEY_BYTES], absent[128];
    for (int rank = 0; rank < own->nranks; rank++) {
        tutti_status status =
            get_exactly(store, key(name, prefix, "card", rank), &roll->cards[rank], sizeof roll->cards[rank], deadline);
        if (status == TUTTI_ERR_TIMEOUT) {
            list_absent(store, prefix, own->nranks, absent, sizeof absent);
            return tutti_fail(status,
                              "%d ranks should meet, but these have not come before the deadline "
                              "(TUTTI_CONNECT_TIMEOUT_MS): %s",
                              own->nranks, absent);
        }
        TUTTI_TRY(status);
        bound_texts(&roll->cards[rank]);
        TUTTI_TRY(check_card(own, &roll->cards[rank], rank));
    }
    TUTTI_TRY(tutti_random_bytes(&roll->comm_id, sizeof roll->comm_id));
    roll->comm_id |= 1; /* never ROLL_FAILED */
    return tutti_random_bytes(roll->nonce, sizeof roll->nonce);
}

/* Rank 0's error goes to all: the cards' place holds its text. */
static void publish_failure(const tutti_store *store, const char *prefix, tutti_status status, tutti_roll *roll,
                            size_t roll_bytes) {
    char name[KEY_BYTES], text[sizeof(tutti_card)];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    memset(roll, 0, roll_bytes);
    roll->comm_id = ROLL_FAILED;
    roll->nonce[0] = (uint8_t)-status;
    memcpy(roll->cards, text, sizeof text);
    store->set(store->context, key(name, prefix, "roll", -1), roll, roll_bytes);
    tutti_fail(status, "%s", text);
}

static tutti_status adopt_failure(tutti_roll *roll) {
    char text[sizeof(tutti_card)];
    memcpy(text, roll->cards, sizeof text);
    text[sizeof text - 1] = '\0';
    int code = -(int)roll->nonce[0];
    return tutti_fail(code < 0 && code >= TUTTI_ERR_DATA ? (tutti_status)code : TUTTI_ERR_CONFIG, "%s (told by rank 0)",
                      text);
}

static tutti_status exchange(const tutti_store *store, const char *prefix, const tutti_card *own,
                             tutti_deadline *deadline, tutti_roll *roll, size_t roll_bytes) {
    char name[KEY_BYTES];
    int64_t claims = 0;
    TUTTI_TRY(store->add(store->context, key(name, prefix, "count", own->rank), 1, &claims));
    if (claims != 1)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "rank %d is there twice (or the store still holds \"%s\" of an earlier job): each "
                          "process needs a RANK of its own",
                          own->rank, prefix);
    TUTTI_TRY(store->set(store->context, key(name, prefix, "card", own->rank), own, sizeof *own));
    if (own->rank != 0) {
        TUTTI_TRY(get_exactly(store, key(name, prefix, "roll", -1), roll, roll_bytes, deadline));
        if (roll->comm_id == ROLL_FAILED) return adopt_failure(roll);
        for (int rank = 0; rank < own->nranks; rank++) {
            bound_texts(&roll->cards[rank]);
            TUTTI_TRY(check_card(own, &roll->cards[rank], rank));
        }
        return TUTTI_OK;
    }
    tutti_status status = collect(store, prefix, own, deadline, roll);
    if (status == TUTTI_OK) return store->set(store->context, key(name, prefix, "roll", -1), roll, roll_bytes);
    publish_failure(store, prefix, status, roll, roll_bytes);
    return status;
}

tutti_status tutti_card_exchange(const tutti_store *store, const char *prefix, const tutti_card *own,
                                 tutti_deadline *deadline, tutti_roll **roll_out) {
    tutti_roll *roll;
    size_t bytes = sizeof *roll + (size_t)own->nranks * sizeof roll->cards[0];
    TUTTI_TRY(tutti_calloc(1, bytes, &roll));
    tutti_status status = exchange(store, prefix, own, deadline, roll, bytes);
    if (status != TUTTI_OK) {
        free(roll);
        return status;
    }
    *roll_out = roll;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- far cards */

#define FAR_MAGIC UINT64_C(0x3130726166747474) /* "tttfar01" */

static tutti_status check_far(tutti_far_card *card, int rank) {
    card->socket_name[sizeof card->socket_name - 1] = '\0';
    card->door.why[sizeof card->door.why - 1] = '\0';
    if (card->magic == FAR_MAGIC && card->rank == rank && card->door.naddresses <= TUTTI_DOOR_ADDRESSES)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "what rank %d left in the store does not say where it can be reached", rank);
}

static tutti_status collect_far(const tutti_store *store, const char *prefix, int nranks, tutti_deadline *deadline,
                                tutti_far_card *far) {
    char name[KEY_BYTES];
    for (int rank = 0; rank < nranks; rank++) {
        TUTTI_TRY(get_exactly(store, key(name, prefix, "door", rank), &far[rank], sizeof far[rank], deadline));
        TUTTI_TRY(check_far(&far[rank], rank));
    }
    return TUTTI_OK;
}

tutti_status tutti_far_card_exchange(const tutti_store *store, const char *prefix, int nranks, tutti_far_card *own,
                                     tutti_deadline *deadline, tutti_far_card *far_out) {
    char name[KEY_BYTES];
    size_t bytes = (size_t)nranks * sizeof *far_out;
    own->magic = FAR_MAGIC;
    TUTTI_TRY(store->set(store->context, key(name, prefix, "door", own->rank), own, sizeof *own));
    if (own->rank == 0) {
        TUTTI_TRY(collect_far(store, prefix, nranks, deadline, far_out));
        return store->set(store->context, key(name, prefix, "doors", -1), far_out, bytes);
    }
    TUTTI_TRY(get_exactly(store, key(name, prefix, "doors", -1), far_out, bytes, deadline));
    for (int rank = 0; rank < nranks; rank++) TUTTI_TRY(check_far(&far_out[rank], rank));
    return TUTTI_OK;
}
