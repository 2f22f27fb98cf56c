/*
 * Links between threads without buffers. See strict_links.h.
 *
 * One lock; a condition for each rank. The rank that posts the second half of a transfer copies the data, and wakes
 * the other rank.
 */
#include "tests/support/links/strict_links.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/reduce.h"

#define PATIENCE_S 20

/* One direction between two ranks. */
typedef struct lane {
    const void *src;
    void *dst;
    size_t send_bytes, receive_bytes;
    uint64_t sent_in, received_in; /* operations */
    bool sending, receiving;
} lane;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t *moved; /* indexed by rank */
    int n;
    bool given_up;
    lane *lanes; /* [from][to] */
    uint64_t *sent;
} links = {.lock = PTHREAD_MUTEX_INITIALIZER};

tutti_status strict_links_create(int nranks) {
    links.n = nranks;
    links.given_up = false;
    TUTTI_TRY(tutti_calloc((size_t)nranks, sizeof *links.moved, &links.moved));
    for (int rank = 0; rank < nranks; rank++) pthread_cond_init(&links.moved[rank], NULL);
    TUTTI_TRY(tutti_calloc((size_t)nranks * (size_t)nranks, sizeof *links.lanes, &links.lanes));
    return tutti_calloc((size_t)nranks, sizeof *links.sent, &links.sent);
}

void strict_links_destroy(void) {
    for (int rank = 0; rank < links.n; rank++) pthread_cond_destroy(&links.moved[rank]);
    free(links.moved);
    free(links.lanes);
    free(links.sent);
    links.lanes = NULL;
    links.sent = NULL;
}

void strict_links_give_up(void) {
    pthread_mutex_lock(&links.lock);
    links.given_up = true;
    for (int rank = 0; rank < links.n; rank++) pthread_cond_signal(&links.moved[rank]);
    pthread_mutex_unlock(&links.lock);
}

uint64_t strict_links_sent(int rank) {
    pthread_mutex_lock(&links.lock);
    uint64_t sent = links.sent[rank];
    links.sent[rank] = 0;
    pthread_mutex_unlock(&links.lock);
    return sent;
}

static lane *lane_of(int from, int to) {
    return &links.lanes[from * links.n + to];
}

/* Lock held. Transfers what both sides have posted. */
static tutti_status pass(int from, int to, lane *l) {
    if (!l->sending || !l->receiving) return TUTTI_OK;
    if (l->send_bytes != l->receive_bytes || l->sent_in != l->received_in)
        return tutti_fail(TUTTI_ERR_MISMATCH, "rank %d sends %zu bytes in call %llu, rank %d expects %zu in call %llu",
                          from, l->send_bytes, (unsigned long long)l->sent_in, to, l->receive_bytes,
                          (unsigned long long)l->received_in);
    if (l->send_bytes > 0) memcpy(l->dst, l->src, l->send_bytes);
    links.sent[from] += l->send_bytes;
    l->sending = l->receiving = false;
    return TUTTI_OK;
}

static tutti_status post(const tutti_rail *rail, const tutti_link_part *part) {
    int from = part->sends ? rail->me : part->rank, to = part->sends ? part->rank : rail->me;
    lane *l = lane_of(from, to);
    if (from == to) return tutti_fail(TUTTI_ERR_ARGUMENT, "rank %d has no link to itself", from);
    if (part->sends ? l->sending : l->receiving)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "rank %d: two transfers at once %s rank %d", rail->me,
                          part->sends ? "to" : "from", part->rank);
    if (part->sends) {
        l->src = part->data;
        l->send_bytes = part->bytes;
        l->sent_in = rail->op->sequence;
        l->sending = true;
    } else {
        l->dst = part->data;
        l->receive_bytes = part->bytes;
        l->received_in = rail->op->sequence;
        l->receiving = true;
    }
    TUTTI_TRY(pass(from, to, l));
    if (!l->sending && !l->receiving) pthread_cond_signal(&links.moved[part->rank]);
    return TUTTI_OK;
}

static const tutti_link_part *unfinished(const tutti_rail *rail, const tutti_link_part *parts, int nparts) {
    for (int i = 0; i < nparts; i++) {
        const lane *l = parts[i].sends ? lane_of(rail->me, parts[i].rank) : lane_of(parts[i].rank, rail->me);
        if (parts[i].sends ? l->sending : l->receiving) return &parts[i];
    }
    return NULL;
}

static tutti_status move_locked(const tutti_rail *rail, const tutti_link_part *parts, int nparts) {
    struct timespec end;
    const tutti_link_part *waits_for;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    for (int i = 0; i < nparts; i++) TUTTI_TRY(post(rail, &parts[i]));
    while ((waits_for = unfinished(rail, parts, nparts)) != NULL) {
        if (links.given_up) return tutti_fail(TUTTI_ERR_ABORTED, "another rank has failed");
        if (pthread_cond_timedwait(&links.moved[rail->me], &links.lock, &end) != 0)
            return tutti_fail(TUTTI_ERR_TIMEOUT, "rank %d waits to %s rank %d for ever", rail->me,
                              waits_for->sends ? "send to" : "receive from", waits_for->rank);
    }
    return TUTTI_OK;
}

tutti_status tutti_link_move(const tutti_rail *rail, const tutti_link_part *parts, int nparts) {
    pthread_mutex_lock(&links.lock);
    tutti_status status = move_locked(rail, parts, nparts);
    pthread_mutex_unlock(&links.lock);
    return status;
}

tutti_status tutti_link_move_meanwhile(const tutti_rail *rail, const tutti_link_part *parts, int nparts,
                                       const tutti_link_work *work) {
    while (work->some(work->context)) continue;
    return tutti_link_move(rail, parts, nparts);
}

tutti_status tutti_link_send(const tutti_rail *rail, int to, const void *src, size_t bytes) {
    return tutti_link_move(rail, &(tutti_link_part){.rank = to, .sends = true, .data = (void *)src, .bytes = bytes}, 1);
}

tutti_status tutti_link_recv(const tutti_rail *rail, int from, void *dst, size_t bytes) {
    return tutti_link_move(rail, &(tutti_link_part){.rank = from, .data = dst, .bytes = bytes}, 1);
}

tutti_status tutti_link_exchange(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                 void *dst, size_t receive_bytes) {
    const tutti_link_part parts[2] = {{.rank = to, .sends = true, .data = (void *)src, .bytes = send_bytes},
                                      {.rank = from, .data = dst, .bytes = receive_bytes}};
    return tutti_link_move(rail, parts, 2);
}

/* `to` < 0: sends nothing. */
static tutti_status move_and_fold(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                  void *acc, size_t count, tutti_fold fold) {
    char *received;
    size_t bytes = count * tutti_type_bytes(fold.type);
    TUTTI_TRY(tutti_calloc(bytes, 1, &received));
    tutti_status status = to < 0 ? tutti_link_recv(rail, from, received, bytes)
                                 : tutti_link_exchange(rail, to, src, send_bytes, from, received, bytes);
    const void *srcs[2] = {acc, received};
    tutti_reduce_args args = {
        .dst = acc, .srcs = srcs, .nsrcs = 2, .count = count, .type = fold.type, .reduction = fold.reduction};
    if (status == TUTTI_OK && count > 0) tutti_reduce_host(&args);
    free(received);
    return status;
}

tutti_status tutti_link_recv_reduce(const tutti_rail *rail, int from, void *acc, size_t count, tutti_fold fold) {
    return move_and_fold(rail, -1, NULL, 0, from, acc, count, fold);
}

tutti_status tutti_link_exchange_reduce(const tutti_rail *rail, int to, const void *src, size_t send_bytes, int from,
                                        void *acc, size_t count, tutti_fold fold) {
    return move_and_fold(rail, to, src, send_bytes, from, acc, count, fold);
}
