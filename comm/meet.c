/*
 * Ranks that meet in a store: the members of a new communicator, from the cards that all have left there.
 *
 *   all          cards, one by each rank; the roll of all cards (card.h)
 *   one host     first contact: everyone maps everyone's memory (contact.c)
 *   several      each rank leaves a second card: where processes of other hosts can reach it, and (the first rank of a
 *                host) where those of its own can; then first contact on each host by itself
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/secret.h"
#include "comm/card.h"
#include "comm/create.h"
#include "comm/door.h"
#include "comm/hosts.h"
#include "comm/peer.h"

typedef struct meeting {
    tutti_comm *comm;
    const tutti_store *store;
    const char *prefix;
    tutti_deadline deadline;
    tutti_card own;
    tutti_roll *roll;
    int listen_fd;
} meeting;

/* What this host's ranks may use of it. */
static void count_cores(const meeting *m, const int *ranks, int nranks) {
    tutti_core_mask cores = m->own.cores;
    int most = m->own.most_cores;
    for (int i = 0; i < nranks; i++) {
        const tutti_card *card = &m->roll->cards[ranks != NULL ? ranks[i] : i];
        tutti_cores_join(&cores, &card->cores);
        if (card->most_cores < most) most = card->most_cores;
    }
    m->comm->host_ranks = nranks;
    m->comm->host_cores = tutti_cores_count(&cores, most);
}

static tutti_status meet_on_host(meeting *m) {
    TUTTI_TRY(tutti_contact_exchange(m->comm, m->roll, m->listen_fd, &m->deadline));
    count_cores(m, NULL, m->comm->nranks);
    return tutti_create_end(m->comm);
}

/* ---------------------------------------------------------------------------------------- several hosts */

/* The key that processes of other hosts must know. */
static tutti_status add_key(const meeting *m) {
    char secret[TUTTI_SECRET_BYTES];
    bool set;
    TUTTI_TRY(tutti_secret_get(secret, sizeof secret, &set));
    if (!set && tutti_setting_int(TUTTI_SETTING_SECRET_REQUIRED) != 0)
        return tutti_fail(TUTTI_ERR_REFUSED,
                          "TUTTI_SECRET_REQUIRED is set, but neither TUTTI_SECRET nor TUTTI_SECRET_FILE");
    if (!set && tutti_setting_int(TUTTI_SETTING_ENCRYPT) != 0)
        return tutti_fail(
            TUTTI_ERR_REFUSED,
            "TUTTI_ENCRYPT=1 needs TUTTI_SECRET or TUTTI_SECRET_FILE, equal on all hosts: without one, the "
            "key would go through the store, where others can read it");
    tutti_status status =
        set ? tutti_door_add_key(secret, strlen(secret)) : tutti_door_add_key(m->roll->nonce, sizeof m->roll->nonce);
    memset(secret, 0, sizeof secret);
    return status;
}

/* First contact of this host's ranks: a roll of them alone. */
static tutti_status meet_neighbours(meeting *m, const tutti_far_card *far) {
    const tutti_host *own = &m->comm->hosts->all[m->comm->hosts->host];
    tutti_roll *roll;
    TUTTI_TRY(tutti_calloc(1, sizeof *roll + (size_t)own->nranks * sizeof roll->cards[0], &roll));
    roll->comm_id = m->roll->comm_id;
    memcpy(roll->nonce, m->roll->nonce, sizeof roll->nonce);
    for (int i = 0; i < own->nranks; i++) roll->cards[i] = m->roll->cards[own->ranks[i]];
    memcpy(roll->cards[0].socket_name, far[own->ranks[0]].socket_name, sizeof roll->cards[0].socket_name);
    tutti_status status = tutti_contact_exchange(m->comm->hosts->local, roll, m->listen_fd, &m->deadline);
    free(roll);
    if (status == TUTTI_OK) tutti_hosts_adopt_local(m->comm);
    return status;
}

static tutti_status enter_far(const meeting *m, int rank, const tutti_far_card *far) {
    const tutti_card *card = &m->roll->cards[rank];
    tutti_peer_card peer_card = {.pid = card->pid};
    tutti_peer *process;
    memcpy(peer_card.id, far->door.process, sizeof peer_card.id);
    memcpy(peer_card.host, card->host, sizeof peer_card.host);
    TUTTI_TRY(tutti_peer_admit_far(&peer_card, &far->door, &process));
    tutti_hosts_enter_far(m->comm, rank, process);
    return TUTTI_OK;
}

static tutti_status meet_across(meeting *m, tutti_far_card *far) {
    tutti_comm *comm = m->comm;
    tutti_far_card own = {.rank = comm->rank};
    bool first = comm->hosts->local_of[comm->rank] == 0;
    TUTTI_TRY(add_key(m));
    TUTTI_TRY(tutti_door_open(&own.door));
    if (first && m->listen_fd < 0) TUTTI_TRY(tutti_contact_listen(own.socket_name, &m->listen_fd));
    else if (first) memcpy(own.socket_name, m->own.socket_name, sizeof own.socket_name);
    TUTTI_TRY(tutti_far_card_exchange(m->store, m->prefix, comm->nranks, &own, &m->deadline, far));
    for (int rank = 0; rank < comm->nranks; rank++) comm->hosts->doors[rank] = far[rank].door;
    TUTTI_TRY(meet_neighbours(m, far));
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->hosts->host_of[rank] != comm->hosts->host) TUTTI_TRY(enter_far(m, rank, &far[rank]));
    const tutti_host *host = &comm->hosts->all[comm->hosts->host];
    count_cores(m, host->ranks, host->nranks);
    return tutti_create_end(comm);
}

/* One number for each host, by rank; gives how many there are. */
static int key_hosts(const tutti_roll *roll, int nranks, int *keys) {
    int nhosts = 0;
    for (int rank = 0; rank < nranks; rank++) {
        int first = 0;
        while (strcmp(roll->cards[first].host_id, roll->cards[rank].host_id) != 0) first++;
        keys[rank] = first;
        nhosts += first == rank;
    }
    return nhosts;
}

static tutti_status meet(meeting *m) {
    int nranks = m->comm->nranks, *keys;
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *keys, &keys));
    tutti_far_card *far = NULL;
    tutti_status status = TUTTI_OK;
    tutti_create_identify(m->comm, m->roll->comm_id);
    if (key_hosts(m->roll, nranks, keys) == 1) {
        status = meet_on_host(m);
    } else {
        TUTTI_TRY_GOTO(status, tutti_hosts_create(m->comm, keys), done);
        TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *far, &far), done);
        status = meet_across(m, far);
    }
done:
    free(far);
    free(keys);
    return status;
}

tutti_status tutti_meet_in_store(tutti_comm *comm, const tutti_store *store, const char *prefix) {
    meeting m = {.comm = comm, .store = store, .prefix = prefix, .listen_fd = -1};
    m.deadline = tutti_deadline_after_ms(comm->connect_timeout_ms);
    TUTTI_TRY(tutti_card_fill(comm->rank, comm->nranks, &m.own));
    if (comm->rank == 0) TUTTI_TRY(tutti_contact_listen(m.own.socket_name, &m.listen_fd));
    tutti_status status = tutti_card_exchange(store, prefix, &m.own, &m.deadline, &m.roll);
    if (status == TUTTI_OK) status = meet(&m);
    if (m.listen_fd >= 0) close(m.listen_fd);
    free(m.roll);
    return status;
}
