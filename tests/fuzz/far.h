/*
 * A communicator of two ranks whose other rank is a process of another host that is played by a pipe (canned.h): for
 * tests of what this process does with the frames that come from there.
 */
#ifndef TUTTI_TESTS_FAR_H
#define TUTTI_TESTS_FAR_H

#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/remote_state.h"
#include "tests/fuzz/canned.h"

enum { FAR_COMM_ID = 77 };

/* It is never destroyed, since works refer to it. */
typedef struct far_scene {
    tutti_page page, elsewhere;
    tutti_hosts hosts;
    tutti_member members[2];
    tutti_comm comm;
    tutti_peer remote;
    tutti_listener_info listener;
    canned_pipe pipe;
    int nworks;
    tutti_work *works[8];
} far_scene;

void far_check(int holds);
/* Opens a scene in which this process is rank `me`. Returns the channel to the other one. */
tutti_channels *far_set_up(far_scene *s, int me, const canned_pipe *pipe);
/* All works must have ended after it. */
void far_take_down(far_scene *s);
tutti_work *far_add_work(far_scene *s);
/* Makes progress so many times. */
void far_go_on(int turns);

#endif
