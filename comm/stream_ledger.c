/*
 * Calls on CUDA memory of all ranks, compared. See stream_ledger.h.
 *
 * Of a host, its first rank is compared with all others, and they with it. It tells those of other hosts what they do not know
 * yet: one message each millisecond, however many hosts there are. What does not fit is left out, since a hash tells of all
 * calls before it. Whoever comes last to a call finds the difference, so nobody looks when he has nothing under way.
 *
 * Invariant: who holds the ledger's lock waits for nothing, and takes no other.
 */
#include "comm/stream_ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/status.h"
#include "comm/hosts.h"
#include "comm/monitor.h"
#include "comm/p2p.h"
#include "comm/peer.h"
#include "comm/stream.h"

#define TELL_NS TUTTI_NS_PER_MS /* between two messages */

/* Another host: its first rank. */
typedef struct ledger_host {
    uint64_t told;                                    /* the newest of our calls of which it has been told */
    uint64_t newest;                                  /* of its calls, as it has told */
    uint64_t compared;                                /* up to here ours and its are equal */
    tutti_stream_entry entries[TUTTI_STREAM_RECORDS]; /* number k is in [k % TUTTI_STREAM_RECORDS] */
} ledger_host;

struct tutti_stream_ledger {
    pthread_mutex_t lock; /* of all that follows */
    int64_t told_ns;      /* when the last one was told */
    int turn;             /* the host that it was */
    int nhosts;
    ledger_host hosts[];
};

/* Whose calls are read: a page's owner, or another host's first rank. */
typedef struct side {
    const tutti_page *page; /* NULL: the other */
    const ledger_host *host;
} side;

/* ------------------------------------------------------------------------------------------------- life */

static bool leads(const tutti_comm *comm) {
    return comm->hosts != NULL && comm->hosts->local->rank == 0;
}

tutti_status tutti_stream_ledger_create(tutti_stream_comm *gpu) {
    const tutti_comm *comm = gpu->comm;
    struct tutti_stream_ledger *ledger;
    if (!leads(comm) || comm->outer != NULL) return TUTTI_OK; /* a part's calls are the whole's */
    size_t nhosts = (size_t)comm->hosts->nhosts;
    TUTTI_TRY(tutti_calloc(1, sizeof *ledger + nhosts * sizeof *ledger->hosts, &ledger));
    pthread_mutex_init(&ledger->lock, NULL);
    ledger->nhosts = comm->hosts->nhosts;
    ledger->turn = comm->hosts->host; /* the one behind it comes first: not all begin with the same one */
    gpu->ledger = ledger;
    return TUTTI_OK;
}

void tutti_stream_ledger_destroy(struct tutti_stream_ledger *ledger) {
    if (ledger == NULL) return;
    pthread_mutex_destroy(&ledger->lock);
    free(ledger);
}

/* -------------------------------------------------------------------------------------------- comparing */

static uint64_t newest_of(const side *s) {
    return s->page != NULL ? tutti_stream_record_newest(s->page) : s->host->newest;
}

static bool read_entry(const side *s, uint64_t number, tutti_stream_entry *entry_out) {
    if (s->page != NULL) return tutti_stream_record_read(s->page, number, entry_out);
    *entry_out = s->host->entries[number % TUTTI_STREAM_RECORDS];
    return entry_out->number == number;
}

/* Two sides' calls of one number. */
typedef struct pair {
    tutti_stream_entry own, other;
} pair;

static bool read_pair(const side *own, const side *other, uint64_t number, pair *pair_out) {
    return read_entry(own, number, &pair_out->own) && read_entry(other, number, &pair_out->other);
}

/* The newest number that both have made, and whether a call up to it differs: then the first of them that both still keep. */
static bool differ(const side *own, const side *other, uint64_t *number_out, pair *pair_out) {
    uint64_t newest = newest_of(own), theirs = newest_of(other);
    if (theirs < newest) newest = theirs;
    *number_out = newest;
    if (newest == 0 || !read_pair(own, other, newest, pair_out)) return false;
    if (TUTTI_LIKELY(pair_out->own.signature == pair_out->other.signature)) return false;
    uint64_t first = newest > TUTTI_STREAM_RECORDS ? newest - TUTTI_STREAM_RECORDS + 1 : 1;
    for (uint64_t at = first; at <= newest; at++)
        if (read_pair(own, other, at, pair_out) && pair_out->own.signature != pair_out->other.signature) return true;
    return false; /* they have gone on meanwhile: the next look finds it */
}

static tutti_status tell_difference(tutti_comm *comm, int rank, const pair *found) {
    tutti_call own = tutti_stream_entry_call(&found->own), other = tutti_stream_entry_call(&found->other);
    tutti_status status = tutti_monitor_calls_differ(comm, &own, rank, &other,
                                                     " (their counts per rank differ, or calls before this one did)");
    return tutti_comm_give_up(comm, status);
}

static tutti_status compare_with_rank(tutti_comm *comm, int rank) {
    const side own = {.page = comm->page}, other = {.page = comm->members[rank].page};
    uint64_t number;
    pair found;
    return differ(&own, &other, &number, &found) ? tell_difference(comm, rank, &found) : TUTTI_OK;
}

/* The first one with all others of its host, they with it. */
static tutti_status compare_on_host(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->hosts;
    const tutti_host *own = hosts != NULL ? &hosts->all[hosts->host] : NULL;
    int count = own != NULL ? own->nranks : comm->nranks, first = own != NULL ? own->ranks[0] : 0;
    if (comm->rank != first) return compare_with_rank(comm, first);
    for (int i = 1; i < count; i++) TUTTI_TRY(compare_with_rank(comm, own != NULL ? own->ranks[i] : i));
    return TUTTI_OK;
}

static bool differs_from_host(tutti_stream_comm *gpu, int host, pair *pair_out) {
    ledger_host *known = &gpu->ledger->hosts[host];
    const side own = {.page = gpu->comm->page}, other = {.host = known};
    uint64_t number;
    pthread_mutex_lock(&gpu->ledger->lock);
    bool news = known->newest > known->compared, found = false;
    if (news) {
        found = differ(&own, &other, &number, pair_out);
        known->compared = number;
    }
    pthread_mutex_unlock(&gpu->ledger->lock);
    return found;
}

static tutti_status compare_with_hosts(tutti_stream_comm *gpu) {
    const tutti_hosts *hosts = gpu->comm->hosts;
    pair found;
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host && differs_from_host(gpu, host, &found))
            return tell_difference(gpu->comm, hosts->all[host].ranks[0], &found);
    return TUTTI_OK;
}

static bool is_alike(const tutti_call *a, const tutti_call *b) {
    return a->kind == b->kind && a->type == b->type && a->reduction == b->reduction && a->root == b->root &&
           a->count == b->count;
}

tutti_status tutti_stream_ledger_cross(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    const tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    tutti_call own = tutti_call_of(op);
    if (gpu == NULL || gpu->ledger == NULL || own.cuda != 0) return TUTTI_OK;
    uint64_t next = tutti_stream_record_newest(comm->page) + 1;
    for (int host = 0; host < hosts->nhosts; host++) {
        pthread_mutex_lock(&gpu->ledger->lock);
        tutti_stream_entry entry = gpu->ledger->hosts[host].entries[next % TUTTI_STREAM_RECORDS];
        pthread_mutex_unlock(&gpu->ledger->lock);
        tutti_call other = tutti_stream_entry_call(&entry);
        if (entry.number != next || !is_alike(&own, &other)) continue;
        return tutti_monitor_calls_differ(comm, &own, hosts->all[host].ranks[0], &other, "");
    }
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- telling */

/* The next host in turn that does not know all calls; -1: there is none. Under the lock. */
static int next_in_turn(const tutti_comm *comm, const struct tutti_stream_ledger *ledger, uint64_t newest) {
    for (int i = 1; i <= ledger->nhosts; i++) {
        int host = (ledger->turn + i) % ledger->nhosts;
        if (host != comm->hosts->host && ledger->hosts[host].told < newest) return host;
    }
    return -1;
}

/* What that host does not know yet, the oldest first. */
static size_t list_news(const tutti_page *page, uint64_t told, uint64_t newest, tutti_stream_entry *entries) {
    size_t count = 0;
    if (newest - told > TUTTI_STREAM_RECORDS) told = newest - TUTTI_STREAM_RECORDS;
    if (newest - told > TUTTI_STREAM_ENTRIES_TOLD) newest = told + TUTTI_STREAM_ENTRIES_TOLD;
    for (uint64_t number = told + 1; number <= newest; number++)
        if (tutti_stream_record_read(page, number, &entries[count])) count++;
    return count;
}

/* True: it was due, whether there was something to tell or not. */
static bool tell_next(tutti_stream_comm *gpu) {
    struct tutti_stream_ledger *ledger = gpu->ledger;
    tutti_stream_entry news[TUTTI_STREAM_ENTRIES_TOLD];
    uint64_t newest = tutti_stream_record_newest(gpu->comm->page);
    size_t count = 0;
    int64_t now_ns = tutti_now_ns();
    pthread_mutex_lock(&ledger->lock);
    bool due = now_ns - ledger->told_ns >= TELL_NS;
    int host = due ? next_in_turn(gpu->comm, ledger, newest) : -1;
    if (due) ledger->told_ns = now_ns;
    if (host >= 0) {
        ledger->turn = host;
        count = list_news(gpu->comm->page, ledger->hosts[host].told, newest, news);
        /* Whether or not it gets through: what comes later tells of it as well. */
        ledger->hosts[host].told = count > 0 ? news[count - 1].number : newest;
    }
    pthread_mutex_unlock(&ledger->lock);
    if (count > 0) tutti_p2p_tell_calls(gpu->comm, gpu->comm->hosts->all[host].ranks[0], news, count * sizeof *news);
    return due;
}

bool tutti_stream_ledger_is_behind(const tutti_stream_comm *gpu) {
    struct tutti_stream_ledger *ledger = gpu->ledger;
    if (ledger == NULL || gpu->engine == NULL || gpu->engine->minds_deaths) return false;
    uint64_t newest = tutti_stream_record_newest(gpu->comm->page);
    pthread_mutex_lock(&ledger->lock);
    bool behind = next_in_turn(gpu->comm, ledger, newest) >= 0;
    pthread_mutex_unlock(&ledger->lock);
    return behind;
}

void tutti_stream_ledger_hear(const tutti_comm *comm, int source, const tutti_stream_entry *entries, size_t count) {
    const tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    if (gpu == NULL || gpu->ledger == NULL) return;
    int host = comm->hosts->host_of[source];
    ledger_host *known = &gpu->ledger->hosts[host];
    if (host == comm->hosts->host || comm->hosts->all[host].ranks[0] != source) return;
    pthread_mutex_lock(&gpu->ledger->lock);
    for (size_t i = 0; i < count; i++) {
        if (entries[i].number <= known->newest) continue;
        known->entries[entries[i].number % TUTTI_STREAM_RECORDS] = entries[i];
        known->newest = entries[i].number;
    }
    pthread_mutex_unlock(&gpu->ledger->lock);
}

tutti_status tutti_stream_ledger_look(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    /* An engine that minds deaths by itself works by calls on host memory, which are compared there. */
    if (gpu == NULL || gpu->engine == NULL || gpu->engine->minds_deaths) return TUTTI_OK;
    TUTTI_TRY(compare_on_host(comm));
    if (gpu->ledger == NULL) return TUTTI_OK;
    if (tell_next(gpu)) tutti_p2p_progress(); /* for what they have told */
    return compare_with_hosts(gpu);
}

/* ------------------------------------------------------------------------------------------- who is missing */

/* What this rank knows of another's calls. */
typedef struct knowledge {
    bool none, hearsay;      /* nothing can be known; it is what the first rank of another host has told */
    tutti_stream_entry last; /* number 0: it has made no call */
} knowledge;

static knowledge ask_of(const tutti_comm *comm, int rank) {
    const tutti_hosts *hosts = comm->hosts;
    struct tutti_stream_ledger *ledger = atomic_load_explicit(&comm->gpu, memory_order_acquire)->ledger;
    knowledge k = {.none = false};
    int host = hosts != NULL ? hosts->host_of[rank] : -1;
    if (hosts == NULL || host == hosts->host) {
        const tutti_page *page = comm->members[rank].page;
        uint64_t newest = tutti_stream_record_newest(page);
        if (newest == 0 || !tutti_stream_record_read(page, newest, &k.last)) k.last.number = newest;
        return k;
    }
    k.hearsay = true;
    k.none = ledger == NULL || hosts->all[host].ranks[0] != rank;
    if (k.none) return k;
    pthread_mutex_lock(&ledger->lock);
    k.last = ledger->hosts[host].entries[ledger->hosts[host].newest % TUTTI_STREAM_RECORDS];
    pthread_mutex_unlock(&ledger->lock);
    return k;
}

static void describe_missing(const tutti_comm *comm, int rank, const knowledge *k, char *text, size_t capacity) {
    const tutti_peer *peer = comm->members[rank].process;
    tutti_call call = tutti_stream_entry_call(&k->last);
    char last[160] = "";
    if (k->last.number > 0) tutti_call_describe(&call, last, sizeof last);
    snprintf(text, capacity, "rank %d (host %s, pid %d, %s; %s%s)", rank, peer->host, (int)peer->pid,
             k->hearsay ? "the first of its host" : tutti_monitor_process_state(comm, rank),
             k->last.number > 0 ? "last it made " : "it has made no call yet", last);
}

const char *tutti_stream_ledger_missing(const tutti_comm *comm, uint64_t number, char *text, size_t capacity) {
    int known = 0, made = 0;
    char missing[600] = "";
    size_t used = 0;
    for (int rank = 0; number > 0 && rank < comm->nranks; rank++) {
        knowledge k = ask_of(comm, rank);
        bool has_made = k.last.number >= number;
        known += !k.none;
        made += !k.none && has_made;
        if (k.none || has_made || used + 1 >= sizeof missing) continue;
        char one[320];
        describe_missing(comm, rank, &k, one, sizeof one);
        used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "", one);
    }
    text[0] = '\0';
    if (number > 0)
        snprintf(text, capacity, "; made by %d of the %d ranks whose calls rank %d knows; missing: %s", made, known,
                 comm->rank, made < known ? missing : "nobody");
    return text;
}

static bool knows_missing(const tutti_comm *comm, uint64_t number) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        knowledge k = ask_of(comm, rank);
        if (!k.none && k.last.number < number) return true;
    }
    return false;
}

bool tutti_stream_ledger_defers(const tutti_comm *comm, uint64_t number) {
    if (number == 0 || comm->hosts == NULL) return false;
    if (leads(comm)) return !knows_missing(comm, number); /* another host may miss one of its own */
    return tutti_stream_record_newest(comm->hosts->local->members[0].page) >= number;
}
