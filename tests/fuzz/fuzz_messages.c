/*
 * Messages of a process of another host for sends and receives: frames with records of the ring, and parts of
 * streams. The first byte selects the size of the pieces. Pending are a short receive, one from any source, and a
 * send that has been announced. For any input only the requested bytes are written.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/remote_state.h"
#include "tests/fuzz/canned.h"
#include "tests/fuzz/fuzz.h"

enum { SHORT_BYTES = 40, LONG_BYTES = 20000, TURNS = 40, TAG = 5, COMM_ID = 77 };

/* Rank `me` of two; the other one is remote. It is never destroyed, since works refer to it. */
typedef struct scene {
    tutti_page page, elsewhere;
    tutti_hosts hosts;
    tutti_member members[2];
    tutti_comm comm;
    tutti_peer remote;
    tutti_listener_info listener;
    canned_pipe pipe;
    int nworks;
    tutti_work *works[8];
} scene;

static void check(int holds) {
    if (!holds) abort();
}

/* One transport, since there is no peer to negotiate with; and a limit for long messages that examples can reach. */
static void choose_settings(void) {
    static bool chosen;
    if (chosen) return;
    chosen = true;
    setenv("TUTTI_TRANSPORT", "tcp", 1);
    setenv("TUTTI_EAGER_BYTES", "4096", 1);
}

static tutti_channels *set_up(scene *s, int me, const canned_pipe *pipe) {
    tutti_peer *self;
    choose_settings();
    check(tutti_peer_self(&self) == TUTTI_OK);
    memset(s, 0, sizeof *s);
    s->listener.transports = UINT32_MAX;
    s->remote =
        (tutti_peer){.id = {1}, .pid = 4711, .host = "far", .remote = true, .listener = &s->listener, .references = 1};
    s->hosts = (tutti_hosts){.elsewhere = &s->elsewhere};
    s->members[me] = (tutti_member){.process = self, .page = &s->page};
    s->members[1 - me] = (tutti_member){.process = &s->remote, .page = &s->elsewhere};
    s->comm = (tutti_comm){.rank = me,
                           .nranks = 2,
                           .id = COMM_ID,
                           .name = "fuzz",
                           .timeout_ms = 100000,
                           .members = s->members,
                           .net.hosts = &s->hosts,
                           .page = &s->page};
    atomic_init(&s->comm.references, 1);
    atomic_init(&s->page.comm_id, COMM_ID);
    atomic_init(&s->elsewhere.comm_id, COMM_ID);
    s->pipe = *pipe;
    tutti_p2p.last_id = 0; /* the same numbers in every run */
    check(tutti_p2p_open(&s->comm) == TUTTI_OK);
    tutti_channels *channel = s->remote.channels;
    struct tutti_remote_channel *remote = channel->remote;
    check(tutti_remote_equip(channel) == TUTTI_OK);
    remote->made[TUTTI_REMOTE_OURS] = &s->pipe.pipe; /* as connect_if_needed() does */
    s->pipe.pipe.transport->recv(&s->pipe.pipe, &remote->in_frames[TUTTI_REMOTE_OURS], sizeof remote->in_frames[0]);
    return channel;
}

static tutti_work *add_work(scene *s) {
    tutti_work *work = NULL;
    check(tutti_work_create(&s->comm, &work) == TUTTI_OK);
    s->works[s->nworks++] = work;
    return work;
}

static void go_on(int turns) {
    for (int i = 0; i < turns; i++) {
        tutti_lock(TUTTI_LOCK_P2P);
        tutti_incoming_progress();
        tutti_p2p_unlock();
    }
}

static void take_down(scene *s) {
    tutti_p2p_close(&s->comm);
    tutti_p2p_forget(&s->remote);
    for (int i = 0; i < s->nworks; i++) {
        check(tutti_work_done(s->works[i]));
        tutti_work_free(s->works[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static scene s;
    static char out[LONG_BYTES];
    if (bytes < 1) return 0;
    canned_pipe pipe = canned_of(data + 1, bytes - 1, 1 + (size_t)data[0] * data[0]);
    const tutti_channels *channel = set_up(&s, 0, &pipe);
    char *few = malloc(SHORT_BYTES), *many = malloc(LONG_BYTES); /* exact: a write beyond is detected */
    check(few != NULL && many != NULL);
    check(tutti_p2p_recv(&s.comm, few, SHORT_BYTES, 1, 1, TAG, add_work(&s)) == TUTTI_OK);
    check(tutti_p2p_recv(&s.comm, many, LONG_BYTES, 1, TUTTI_ANY_SOURCE, TUTTI_ANY_TAG, add_work(&s)) == TUTTI_OK);
    check(tutti_p2p_send(&s.comm, out, LONG_BYTES, 1, TAG, add_work(&s)) == TUTTI_OK);
    go_on(TURNS);
    check(channel->tail <= channel->remote->came); /* nothing is read before it has arrived */
    take_down(&s);
    free(few);
    free(many);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- examples
 * The other side's messages, which this code sends, too.
 */

/* As if the other side had requested the announced messages: its send is number 1, its receives are 2 and 3. */
static void clear_announced(tutti_channels *channel) {
    tutti_request *request;
    for (uint64_t answer = 2; (request = TAILQ_FIRST(&channel->announced)) != NULL; answer++) {
        request->wanted = answer == 2 ? SHORT_BYTES : LONG_BYTES;
        request->answer = answer;
        tutti_request_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    }
}

size_t fuzz_example(int index, uint8_t *data, size_t capacity) {
    static const size_t sizes[] = {0, 8, SHORT_BYTES, 1000, 7000, LONG_BYTES};
    static const int64_t tags[] = {TAG, 6};
    static scene s;
    static char message[LONG_BYTES];
    enum { SIZES = sizeof sizes / sizeof *sizes, TAGS = 2 };
    if (index >= SIZES * TAGS) return 0;
    canned_pipe pipe = canned_of(NULL, 0, 1);
    pipe.kept = data + 1;
    pipe.kept_most = capacity - 1;
    tutti_channels *channel = set_up(&s, 1, &pipe);
    for (int i = 0; i < 2; i++)
        check(tutti_p2p_send(&s.comm, message, sizes[index % SIZES], 0, tags[index / SIZES] + i, add_work(&s)) ==
              TUTTI_OK);
    clear_announced(channel);
    go_on(4);
    s.pipe.pipe.status = TUTTI_OK; /* there is no reply, but the pipe has not ended */
    size_t bytes = 1 + s.pipe.kept_bytes;
    data[0] = (uint8_t)(20 * index);
    take_down(&s);
    return bytes;
}
