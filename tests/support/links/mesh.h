/*
 * Connections among ranks of one host, so that links work without hosts: every pair has a socket, made before the ranks
 * are, and each rank puts its ends under its communicator's links.
 */
#ifndef TUTTI_TESTS_MESH_H
#define TUTTI_TESTS_MESH_H

#include <stdbool.h>

#include "comm/net/link.h"

typedef struct mesh mesh;

typedef enum mesh_kind { MESH_UNIX, MESH_TCP } mesh_kind; /* socketpair, or TCP over the loopback interface */

/* NULL if the system refuses. */
mesh *mesh_create(int nranks, mesh_kind kind);
/* Makes this rank's ends the sockets of comm's links; comm has all ranks of the mesh. A process closes all other
 * ends, so that peers see the end of a dead process. Close with tutti_link_close_all. */
tutti_status mesh_adopt(mesh *m, tutti_comm *comm, bool process);
void mesh_destroy(mesh *m);

/* A connected pair of sockets. */
tutti_status mesh_pair(mesh_kind kind, int sockets_out[2]);

#endif
