/*
 * Key-value rendezvous over TCP, wire-compatible with PyTorch's TCPStore (both directions).
 *
 * The server is one thread with epoll; all input from outside is bounded. The client is blocking and belongs to one
 * thread at a time; its waits can be interrupted (deadline.h).
 */
#ifndef TUTTI_BOOTSTRAP_STORE_H
#define TUTTI_BOOTSTRAP_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_store_server tutti_store_server;
typedef struct tutti_store_client tutti_store_client;

/* Listens on `address` (NULL: all interfaces) and `port` (0: any free one) and serves until stopped. Fails with
 * TUTTI_ERR_CONFIG when the port is in use; the error names the port, the process that holds it if known, and what
 * to do. `secret` is the job's secret, which clients must prove before they change Tutti's own keys
 * (store_proof.h); NULL or "": no secret. */
tutti_status tutti_store_server_start(const char *address, int port, const char *secret,
                                      tutti_store_server **server_out);
/* Like tutti_store_server_start, on a socket that is already bound and listening; the server closes it when it
 * stops. After an error it still belongs to the caller. */
tutti_status tutti_store_server_adopt(int listen_fd, const char *secret, tutti_store_server **server_out);
int tutti_store_server_port(const tutti_store_server *server);
void tutti_store_server_stop(tutti_store_server *server); /* NULL is allowed */

/* Creates only the listening socket (see tutti_store_server_start for address, port and errors). */
tutti_status tutti_store_listen(const char *address, int port, int *listen_fd_out);
/* Checks that the process listening on this host's port belongs to this user or to root: another user's store must
 * not be joined. Fails with TUTTI_ERR_CONFIG otherwise; TUTTI_OTHER_USERS=1 allows it. */
tutti_status tutti_store_check_holder(int port);

typedef struct tutti_store_client_options {
    const char *secret; /* NULL or "": none; must stay valid until the client is connected */
    int64_t connect_ms;
    int64_t answer_ms; /* for the reply to a request that does not wait for other ranks; 0: TUTTI_CONNECT_TIMEOUT_MS */
    /* Called about every 100 ms until the store is reached, with the time waited and the last failure. May be NULL. */
    void (*late)(void *context, int64_t waited_ns, const char *reason);
    void *context;
} tutti_store_client_options;
/* Connects to host:port and retries until connect_ms has passed. `host` is one or more names or addresses of one host,
 * separated by commas, best first. Fails with TUTTI_ERR_REFUSED within 2 s when the store has a secret and the client
 * has another one or none. */
tutti_status tutti_store_client_reach(const char *host, int port, const tutti_store_client_options *wanted,
                                      tutti_store_client **client_out);
/* True: a request failed half-way, and so will all later ones. A timeout then means that the store did not answer. */
bool tutti_store_client_is_broken(const tutti_store_client *client);
void tutti_store_client_close(tutti_store_client *client); /* NULL is allowed */

/* Returns the client as callbacks; valid as long as the client. */
tutti_store tutti_store_client_callbacks(tutti_store_client *client);

#endif
