/*
 * Which user has connected to the store: a question to the kernel, for connections from this host.
 *
 * A TCP connection carries no credentials, but where both its ends are on one host and in one network namespace, the kernel
 * has the other end's socket as well, and says whose it is: by NETLINK_SOCK_DIAG, or in /proc/net/tcp where that does not
 * answer (gVisor). Only a socket that is connected tells its user: one that its process has closed is said to be root's.
 * Any other process of this host is somewhere else as far as this file can say: in a container, say, with an address of its own.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_PEER_H
#define TUTTI_BOOTSTRAP_STORE_PEER_H

#include <sys/socket.h>
#include <sys/types.h>

#include <tutti/tutti.h>

typedef struct tutti_store_peers tutti_store_peers;

typedef enum tutti_store_peer {
    TUTTI_STORE_PEER_REMOTE,  /* its address is not one of this host's */
    TUTTI_STORE_PEER_OWN,     /* a process of this user, or of root */
    TUTTI_STORE_PEER_OTHER,   /* a process of another user */
    TUTTI_STORE_PEER_GONE,    /* of this host, and has closed the connection already */
    TUTTI_STORE_PEER_HIDDEN,  /* of this host, but its end is not where it seems to be: address translation */
    TUTTI_STORE_PEER_UNKNOWN, /* this system tells nothing */
} tutti_store_peer;

/* Finds out how this system tells, with that socket, which listens. Says so once where it does not. */
tutti_status tutti_store_peers_open(int listen_fd, tutti_store_peers **peers_out);
void tutti_store_peers_close(tutti_store_peers *peers); /* NULL is allowed */

/* Of a connection that was just accepted from `address`. OTHER: its user is stored. */
tutti_store_peer tutti_store_peers_look(tutti_store_peers *peers, int fd, const struct sockaddr_storage *address,
                                        uid_t *user_out);

#endif
