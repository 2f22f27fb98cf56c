/*
 * The exchange of doors. See doors.h.
 */
#include "comm/doors.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/notice.h"
#include "bootstrap/base/status.h"
#include "comm/board.h"

#define LOOK_MS     500                  /* how often those look that say for which host they wait */
#define DOORS_MAGIC UINT32_C(0x32727464) /* "dtr2" */

/* What a value begins with. */
typedef struct doors_head {
    uint32_t magic;
    int32_t first, nhosts; /* the hosts whose doors follow, each host's ranks in their order */
    uint32_t unused;
} doors_head;

enum { DOOR_NEW = 1, DOOR_LIKE_BEFORE = 2 };

/* ---------------------------------------------------------------------------------------------- packing */

static size_t put(uint8_t *bytes, size_t used, const void *data, size_t count) {
    memcpy(bytes + used, data, count);
    return used + count;
}

static bool is_like(const tutti_door_card *door, const tutti_door_card *before) {
    return before != NULL && door->naddresses == before->naddresses && door->transports == before->transports &&
           strcmp(door->why, before->why) == 0 &&
           memcmp(door->addresses, before->addresses, door->naddresses * sizeof door->addresses[0]) == 0;
}

size_t tutti_door_pack(const tutti_door_card *door, const tutti_door_card *before, uint8_t *bytes_out) {
    size_t used = 0;
    uint8_t kind = is_like(door, before) ? DOOR_LIKE_BEFORE : DOOR_NEW;
    bytes_out[used++] = kind;
    used = put(bytes_out, used, door->process, sizeof door->process);
    used = put(bytes_out, used, &door->port, sizeof door->port);
    if (kind == DOOR_LIKE_BEFORE) return used;
    uint8_t why_bytes = (uint8_t)strlen(door->why);
    used = put(bytes_out, used, &door->transports, sizeof door->transports);
    bytes_out[used++] = (uint8_t)door->naddresses;
    bytes_out[used++] = why_bytes;
    used = put(bytes_out, used, door->addresses, door->naddresses * sizeof door->addresses[0]);
    return put(bytes_out, used, door->why, why_bytes);
}

/* Takes the next `count` bytes; false: there are no more. */
static bool take(const uint8_t *bytes, size_t available, size_t *used, void *data, size_t count) {
    if (count > available - *used) return false;
    memcpy(data, bytes + *used, count);
    *used += count;
    return true;
}

size_t tutti_door_unpack(const uint8_t *bytes, size_t available, const tutti_door_card *before,
                         tutti_door_card *door_out) {
    size_t used = 0;
    uint8_t kind = 0, naddresses = 0, why_bytes = 0;
    tutti_door_card door = {.port = 0};
    if (!take(bytes, available, &used, &kind, 1) || (kind != DOOR_NEW && kind != DOOR_LIKE_BEFORE)) return 0;
    if (kind == DOOR_LIKE_BEFORE) {
        if (before == NULL) return 0;
        door = *before;
    }
    if (!take(bytes, available, &used, door.process, sizeof door.process)) return 0;
    if (!take(bytes, available, &used, &door.port, sizeof door.port)) return 0;
    if (kind == DOOR_NEW) {
        if (!take(bytes, available, &used, &door.transports, sizeof door.transports) ||
            !take(bytes, available, &used, &naddresses, 1) || !take(bytes, available, &used, &why_bytes, 1) ||
            naddresses > TUTTI_DOOR_ADDRESSES || why_bytes >= sizeof door.why)
            return 0;
        door.naddresses = naddresses;
        if (!take(bytes, available, &used, door.addresses, naddresses * sizeof door.addresses[0]) ||
            !take(bytes, available, &used, door.why, why_bytes))
            return 0;
        for (int i = 0; i < naddresses; i++) door.addresses[i].interface[sizeof door.addresses[i].interface - 1] = '\0';
    }
    *door_out = door;
    return used;
}

/* ------------------------------------------------------------------------------------------------ hosts */

typedef struct passing {
    tutti_board board;
    const tutti_roll *roll;
    int host;
    int *ranks;     /* of all hosts, one host behind the other */
    int *first_of;  /* by host: index into ranks; one more at the end */
    uint8_t *value; /* a head and packed doors */
    size_t used, capacity;
    int64_t begin_ns;    /* what the deadline had charged when it began */
    tutti_notice notice; /* of the host that this one waits for */
} passing;

static tutti_status lay_out(passing *p) {
    int nhosts = p->roll->nhosts, nranks = p->roll->nranks;
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *p->ranks, &p->ranks));
    TUTTI_TRY(tutti_calloc((size_t)nhosts + 1, sizeof *p->first_of, &p->first_of));
    p->capacity = sizeof(doors_head) + (size_t)nranks * TUTTI_DOOR_PACKED_BYTES;
    TUTTI_TRY(tutti_calloc(1, p->capacity, &p->value));
    const tutti_roll_rank *ranks = tutti_roll_ranks(p->roll);
    for (int rank = 0; rank < nranks; rank++) p->first_of[ranks[rank].host + 1]++;
    for (int host = 0; host < nhosts; host++) p->first_of[host + 1] += p->first_of[host];
    int *next;
    TUTTI_TRY(tutti_calloc((size_t)nhosts, sizeof *next, &next));
    for (int rank = 0; rank < nranks; rank++) {
        int host = ranks[rank].host;
        p->ranks[p->first_of[host] + next[host]++] = rank;
    }
    free(next);
    return TUTTI_OK;
}

static tutti_status fail_doors(int host) {
    return tutti_fail(TUTTI_ERR_DATA,
                      "what the first rank of host %d left in the store does not say where it can be reached", host);
}

/* Packs the doors of hosts [first, first + nhosts). */
static void pack_hosts(passing *p, const tutti_door_card *doors, int first, int nhosts) {
    doors_head head = {.magic = DOORS_MAGIC, .first = first, .nhosts = nhosts};
    p->used = put(p->value, 0, &head, sizeof head);
    for (int i = p->first_of[first]; i < p->first_of[first + nhosts]; i++) {
        const tutti_door_card *before = i > p->first_of[first] ? &doors[p->ranks[i - 1]] : NULL;
        p->used += tutti_door_pack(&doors[p->ranks[i]], before, p->value + p->used);
    }
}

/* Unpacks them, but for the own host's. */
static tutti_status unpack_hosts(const passing *p, size_t bytes, int first, int nhosts, tutti_door_card *doors) {
    doors_head head;
    size_t used = sizeof head;
    if (bytes < sizeof head) return fail_doors(first);
    memcpy(&head, p->value, sizeof head);
    if (head.magic != DOORS_MAGIC || head.first != first || head.nhosts != nhosts) return fail_doors(first);
    tutti_door_card before;
    for (int i = p->first_of[first]; i < p->first_of[first + nhosts]; i++) {
        tutti_door_card door;
        size_t took = tutti_door_unpack(p->value + used, bytes - used, i > p->first_of[first] ? &before : NULL, &door);
        if (took == 0) return fail_doors(tutti_roll_ranks(p->roll)[p->ranks[i]].host);
        used += took;
        before = door;
        if (tutti_roll_ranks(p->roll)[p->ranks[i]].host != p->host) doors[p->ranks[i]] = door;
    }
    return used == bytes ? TUTTI_OK : fail_doors(first);
}

/* Waits for what another host's first rank leaves in the store. Of those that wait for host 0, few say so. */
static tutti_status await_doors(passing *p, int host, const char *key, size_t *bytes_out) {
    const tutti_roll_host *there = &tutti_roll_hosts(p->roll)[host];
    bool speaks = host > 0 || (p->host & (p->host - 1)) == 0;
    for (;;) {
        tutti_status status =
            tutti_board_get(&p->board, key, p->value, p->capacity, speaks ? LOOK_MS : INT64_MAX, bytes_out);
        if (status != TUTTI_ERR_TIMEOUT) return status;
        if (tutti_deadline_left_ms(p->board.deadline) == 0)
            return tutti_fail(
                status,
                "rank %d, the first of host %s, has not said where its host's ranks can be reached before "
                "the deadline (TUTTI_CONNECT_TIMEOUT_MS): it does not go on, or has ended",
                there->first, there->name);
        if (speaks && tutti_notice_due(&p->notice, p->board.deadline->spent_ns - p->begin_ns))
            tutti_log(
                TUTTI_LOG_WARN,
                "the start has waited %lld s for rank %d, the first of host %s, to say where its host's ranks can "
                "be reached; waits until TUTTI_CONNECT_TIMEOUT_MS",
                (long long)(p->board.deadline->spent_ns - p->begin_ns) / TUTTI_NS_PER_S, there->first, there->name);
    }
}

static tutti_status pass(passing *p, tutti_door_card *doors) {
    char key[TUTTI_BOARD_KEY_BYTES];
    size_t bytes = 0;
    int nhosts = p->roll->nhosts;
    TUTTI_BOARD_EACH_CHILD(step, p->host, nhosts) {
        int child = p->host + step;
        tutti_board_key(&p->board, "doors", child, key);
        TUTTI_TRY(await_doors(p, child, key, &bytes));
        TUTTI_TRY(unpack_hosts(p, bytes, child, tutti_board_span(child, nhosts), doors));
    }
    pack_hosts(p, doors, p->host, tutti_board_span(p->host, nhosts));
    tutti_board_key(&p->board, "doors", p->host > 0 ? p->host : -1, key);
    TUTTI_TRY(tutti_board_set(&p->board, key, p->value, p->used));
    if (p->host == 0) return TUTTI_OK;
    tutti_board_key(&p->board, "doors", -1, key);
    TUTTI_TRY(await_doors(p, 0, key, &bytes));
    return unpack_hosts(p, bytes, 0, nhosts, doors);
}

tutti_status tutti_doors_exchange(const tutti_store *store, const char *prefix, const tutti_roll *roll, int host,
                                  tutti_deadline *deadline, tutti_door_card *doors) {
    passing p = {.roll = roll, .host = host, .begin_ns = deadline->spent_ns};
    tutti_status status = tutti_board_open(store, prefix, deadline, &p.board);
    if (status == TUTTI_OK) status = lay_out(&p);
    if (status == TUTTI_OK) status = pass(&p, doors);
    free(p.ranks);
    free(p.first_of);
    free(p.value);
    tutti_board_close(&p.board);
    return status;
}
