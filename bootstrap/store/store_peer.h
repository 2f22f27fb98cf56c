/*
 * Which user has connected to the store, as reported by the kernel for connections from this host.
 *
 * A TCP connection carries no credentials, but when both its ends are on one host and in one network namespace, the
 * kernel also has the other end's socket and reports its user: by NETLINK_SOCK_DIAG, or in /proc/net/tcp where that
 * does not answer (gVisor). Only a connected socket has its user reported; a socket that its process has closed is
 * reported as root's. This file treats any other process of this host as remote: for example one in a container
 * with an address of its own.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_PEER_H
#define TUTTI_BOOTSTRAP_STORE_PEER_H

#include <sys/socket.h>
#include <sys/types.h>

#include <tutti/tutti.h>

typedef struct tutti_store_peers tutti_store_peers;

typedef enum tutti_store_peer {
    TUTTI_STORE_PEER_REMOTE,  /* its address is not an address of this host */
    TUTTI_STORE_PEER_OWN,     /* a process of this user or of root */
    TUTTI_STORE_PEER_OTHER,   /* a process of another user */
    TUTTI_STORE_PEER_GONE,    /* of this host; it has already closed the connection */
    TUTTI_STORE_PEER_HIDDEN,  /* of this host, but its socket was not found at its address: address translation */
    TUTTI_STORE_PEER_UNKNOWN, /* this system does not report users */
} tutti_store_peer;

/* Determines how this system reports users, using the given listening socket. Logs once if it does not. */
tutti_status tutti_store_peers_open(int listen_fd, tutti_store_peers **peers_out);
void tutti_store_peers_close(tutti_store_peers *peers); /* NULL is allowed */

/* Classifies a connection just accepted from `address`. For OTHER, its user is stored in *user_out. */
tutti_store_peer tutti_store_peers_look(tutti_store_peers *peers, int fd, const struct sockaddr_storage *address,
                                        uid_t *user_out);

#endif
