/*
 * See far.h.
 */
#include "tests/fuzz/far.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"

void far_check(int holds) {
    if (!holds) abort();
}

/* One transport, since there is no peer to negotiate with. */
static void choose_transport(void) {
    static bool chosen;
    if (chosen) return;
    chosen = true;
    setenv("TUTTI_TRANSPORT", "tcp", 1);
}

tutti_channels *far_set_up(far_scene *s, int me, const canned_pipe *pipe) {
    tutti_peer *self;
    choose_transport();
    far_check(tutti_peer_self(&self) == TUTTI_OK);
    memset(s, 0, sizeof *s);
    s->listener.transports = UINT32_MAX;
    s->remote =
        (tutti_peer){.id = {1}, .pid = 4711, .host = "far", .remote = true, .listener = &s->listener, .references = 1};
    s->hosts = (tutti_hosts){.elsewhere = &s->elsewhere};
    s->members[me] = (tutti_member){.process = self, .page = &s->page};
    s->members[1 - me] = (tutti_member){.process = &s->remote, .page = &s->elsewhere};
    s->comm = (tutti_comm){.rank = me,
                           .nranks = 2,
                           .id = FAR_COMM_ID,
                           .name = "fuzz",
                           .timeout_ms = 100000,
                           .members = s->members,
                           .net.hosts = &s->hosts,
                           .page = &s->page};
    atomic_init(&s->comm.references, 1);
    atomic_init(&s->page.comm_id, FAR_COMM_ID);
    atomic_init(&s->elsewhere.comm_id, FAR_COMM_ID);
    s->pipe = *pipe;
    tutti_p2p.last_id = 0; /* the same numbers in every run */
    far_check(tutti_p2p_open(&s->comm) == TUTTI_OK);
    tutti_channels *channel = s->remote.channels;
    struct tutti_remote_channel *remote = channel->remote;
    far_check(tutti_remote_equip(channel) == TUTTI_OK);
    remote->made[TUTTI_REMOTE_OURS] = &s->pipe.pipe; /* as connect_if_needed() does */
    s->pipe.pipe.transport->recv(&s->pipe.pipe, &remote->in_frames[TUTTI_REMOTE_OURS].frame,
                                 sizeof(tutti_remote_frame));
    return channel;
}

tutti_work *far_add_work(far_scene *s) {
    tutti_work *work = NULL;
    far_check(tutti_work_create(&s->comm, &work) == TUTTI_OK);
    s->works[s->nworks++] = work;
    return work;
}

void far_go_on(int turns) {
    for (int i = 0; i < turns; i++) {
        tutti_lock(TUTTI_LOCK_P2P);
        tutti_incoming_progress();
        tutti_p2p_unlock();
    }
}

void far_take_down(far_scene *s) {
    tutti_p2p_close(&s->comm);
    tutti_p2p_forget(&s->remote);
    for (int i = 0; i < s->nworks; i++) {
        far_check(tutti_work_done(s->works[i]));
        tutti_work_free(s->works[i]);
    }
}
