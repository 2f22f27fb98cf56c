/*
 * Key-value rendezvous over TCP, wire-compatible with PyTorch's TCPStore (both directions).
 *
 * The server is one thread with epoll; everything that comes from outside is bounded. The client is blocking
 * and belongs to one thread at a time; while it waits it asks whether to go on (interrupt.h).
 */
#ifndef TUTTI_BOOTSTRAP_STORE_H
#define TUTTI_BOOTSTRAP_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_store_server tutti_store_server;
typedef struct tutti_store_client tutti_store_client;

/* Listens on `address` (NULL: all interfaces) and `port` (0: any free one) and serves until stopped. A port in use
 * is TUTTI_ERR_CONFIG; the text names the port, who holds it where the system tells, and what to do. `secret`: the job's, which
 * clients must prove before they change Tutti's own keys (store_proof.h); NULL or "": there is none. */
tutti_status tutti_store_server_start(const char *address, int port, const char *secret,
                                      tutti_store_server **server_out);
/* The same on a socket that is bound and listens already; the server closes it when it stops. After an error it
 * is still the caller's. */
tutti_status tutti_store_server_adopt(int listen_fd, const char *secret, tutti_store_server **server_out);
int tutti_store_server_port(const tutti_store_server *server);
void tutti_store_server_stop(tutti_store_server *server); /* NULL is allowed */

/* The listening socket alone (see tutti_store_server_start for address, port and errors). */
tutti_status tutti_store_listen(const char *address, int port, int *listen_fd_out);
/* Whether what listens on this host's port is of this user, or of root: another user's store is not to be joined. TUTTI_ERR_CONFIG
 * where it is not; TUTTI_OTHER_USERS=1 allows it. */
tutti_status tutti_store_check_holder(int port);

/* Connects to host:port, trying again until timeout_ms has passed. `host` may be several names or addresses of one host,
 * split by commas, best first. */
tutti_status tutti_store_client_connect(const char *host, int port, int64_t timeout_ms,
                                        tutti_store_client **client_out);
/* The same, with patience of one's own and the job's secret. Where the store knows a secret and the client another one or none, that
 * is TUTTI_ERR_REFUSED within 2 s. */
typedef struct tutti_store_patience {
    const char *secret; /* NULL or "": none; needed until the client is connected */
    int64_t connect_ms;
    int64_t answer_ms; /* for the answer to a request that does not wait for others; 0: TUTTI_CONNECT_TIMEOUT_MS */
    /* Called every 100 ms or so while the store is not reached: how long that has taken, and why it has failed so far. May
     * be NULL. */
    void (*late)(void *context, int64_t waited_ns, const char *reason);
    void *context;
} tutti_store_patience;
tutti_status tutti_store_client_reach(const char *host, int port, const tutti_store_patience *patience,
                                      tutti_store_client **client_out);
/* Whether a request has failed half-way, after which all fail: a timeout then was the store's, not that of a key. */
bool tutti_store_client_is_broken(const tutti_store_client *client);
void tutti_store_client_close(tutti_store_client *client); /* NULL is allowed */

/* The client as callbacks; valid as long as the client. */
tutti_store tutti_store_client_callbacks(tutti_store_client *client);

#endif
