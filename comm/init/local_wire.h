/*
 * Messages between the ranks of a host, with file descriptors attached, over abstract UNIX sockets.
 */
#ifndef TUTTI_LOCAL_WIRE_H
#define TUTTI_LOCAL_WIRE_H

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"

/* Most descriptors attached to one message; the kernel allows 253. */
#define TUTTI_LOCAL_WIRE_FDS 64

/* Waits while too many descriptors are in flight. Fails with TUTTI_ERR_PEER_DIED if the other side has closed the
 * connection. */
tutti_status tutti_local_wire_send(int fd, const void *data, size_t bytes, const int *fds, int nfds,
                                   tutti_deadline *deadline);
/* Stores at most `capacity` descriptors and their number, and closes any others. */
tutti_status tutti_local_wire_receive(int fd, void *data, size_t bytes, int *fds_out, int capacity, int *nfds_out,
                                      tutti_deadline *deadline, const char *what);

/* Connects to the abstract socket `name`. Fails with TUTTI_ERR_PEER_DIED if no process listens on it. */
tutti_status tutti_local_wire_connect(const char *name, tutti_deadline *deadline, int *fd_out);
/* Creates an abstract socket and listens on it. */
tutti_status tutti_local_wire_listen(const char *name, int *fd_out);
/* Whether the other side is a process of this process's user. `pid_out`: its pid in the pid namespace of this
 * process; 0 if unknown. */
bool tutti_local_wire_is_same_user(int fd, int64_t *pid_out);

#endif
