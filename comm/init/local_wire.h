/*
 * Messages between the ranks of a host, with descriptors beside them, over abstract UNIX sockets.
 */
#ifndef TUTTI_LOCAL_WIRE_H
#define TUTTI_LOCAL_WIRE_H

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"

/* Descriptors beside one message; the system allows 253. */
#define TUTTI_LOCAL_WIRE_FDS 64

/* Waits until the socket is ready for `events` (poll(2)); `what` is waited for. */
tutti_status tutti_local_wire_wait(int fd, short events, tutti_deadline *deadline, const char *what);
/* Waits while too many descriptors are under way. TUTTI_ERR_PEER_DIED: nobody is there any more. */
tutti_status tutti_local_wire_send(int fd, const void *data, size_t bytes, const int *fds, int nfds,
                             tutti_deadline *deadline);
/* Takes at most `capacity` descriptors and tells how many came; 0: those that come are closed. */
tutti_status tutti_local_wire_receive(int fd, void *data, size_t bytes, int *fds_out, int capacity, int *nfds_out,
                                tutti_deadline *deadline, const char *what);

/* Connects to the abstract socket `name`. TUTTI_ERR_PEER_DIED: nobody listens there. */
tutti_status tutti_local_wire_connect(const char *name, tutti_deadline *deadline, int *fd_out);
/* Makes an abstract socket and listens on it. */
tutti_status tutti_local_wire_listen(const char *name, int *fd_out);
/* Is the other side a process of this process's user? `pid_out`: which one, in this process's space; 0: not known. */
bool tutti_local_wire_is_same_user(int fd, int64_t *pid_out);

#endif
