/*
 * See mesh.h.
 */
#include "tests/support/links/mesh.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/transport/transport.h"

struct mesh {
    int nranks;
    int sockets[]; /* [rank * nranks + peer]: the end of `rank`; -1: none */
};

static tutti_status tcp_pair(int sockets[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockets[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done = listener >= 0 && sockets[0] >= 0 && bind(listener, (struct sockaddr *)&address, bytes) == 0 &&
                listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &bytes) == 0 &&
                connect(sockets[0], (struct sockaddr *)&address, bytes) == 0;
    sockets[1] = done ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    int error = errno;
    if (listener >= 0) close(listener);
    if (sockets[1] >= 0) return TUTTI_OK;
    if (sockets[0] >= 0) close(sockets[0]);
    return tutti_fail_errno(error, "cannot connect over the loopback interface");
}

tutti_status mesh_pair(mesh_kind kind, int sockets_out[2]) {
    if (kind == MESH_TCP) return tcp_pair(sockets_out);
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets_out) == 0
               ? TUTTI_OK
               : tutti_fail_errno(errno, "cannot make a pair of sockets");
}

mesh *mesh_create(int nranks, mesh_kind kind) {
    mesh *m = malloc(sizeof *m + (size_t)(nranks * nranks) * sizeof m->sockets[0]);
    if (m == NULL) return NULL;
    m->nranks = nranks;
    for (int i = 0; i < nranks * nranks; i++) m->sockets[i] = -1;
    for (int a = 0; a < nranks; a++)
        for (int b = a + 1; b < nranks; b++) {
            int pair[2];
            if (mesh_pair(kind, pair) != TUTTI_OK) {
                mesh_destroy(m);
                return NULL;
            }
            m->sockets[a * nranks + b] = pair[0];
            m->sockets[b * nranks + a] = pair[1];
        }
    return m;
}

tutti_status mesh_adopt(mesh *m, tutti_comm *comm, bool process) {
    for (int rank = 0; process && rank < m->nranks; rank++)
        for (int peer = 0; rank != comm->rank && peer < m->nranks; peer++)
            if (rank != peer) close(m->sockets[rank * m->nranks + peer]);
    for (int peer = 0; peer < m->nranks; peer++) {
        tutti_pipe *pipe;
        tutti_deadline deadline = tutti_deadline_after_ms(10000);
        int *socket = &m->sockets[comm->rank * m->nranks + peer], taken = *socket;
        if (peer == comm->rank) continue;
        *socket = -1;
        TUTTI_TRY(tutti_tcp_transport.open(&(tutti_connection){.socket = taken}, &deadline, &pipe));
        TUTTI_TRY(tutti_link_adopt(comm, peer, pipe));
    }
    return TUTTI_OK;
}

void mesh_destroy(mesh *m) {
    for (int i = 0; m != NULL && i < m->nranks * m->nranks; i++)
        if (m->sockets[i] >= 0) close(m->sockets[i]);
    free(m);
}
