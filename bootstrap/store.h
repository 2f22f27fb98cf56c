/*
 * Key-value rendezvous over TCP, wire-compatible with PyTorch's TCPStore (both directions).
 *
 * The server is one thread with epoll; everything that comes from outside is bounded. The client is blocking
 * and belongs to one thread at a time.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_H
#define TUTTI_BOOTSTRAP_STORE_H

#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_store_server tutti_store_server;
typedef struct tutti_store_client tutti_store_client;

/* Listens on `address` (NULL: all interfaces) and `port` (0: any free one) and serves until stopped. A port in use
 * is TUTTI_ERR_CONFIG; the text names the port, who holds it where the system tells, and what to do. */
tutti_status tutti_store_server_start(const char *address, int port, tutti_store_server **server_out);
/* The same on a socket that is bound and listens already; the server closes it when it stops. After an error it
 * is still the caller's. */
tutti_status tutti_store_server_adopt(int listen_fd, tutti_store_server **server_out);
int tutti_store_server_port(const tutti_store_server *server);
void tutti_store_server_stop(tutti_store_server *server); /* NULL is allowed */

/* The listening socket alone (see tutti_store_server_start for address, port and errors). */
tutti_status tutti_store_listen(const char *address, int port, int *listen_fd_out);

/* Connects to host:port, trying again until timeout_ms has passed. `host` may be several names or addresses of one host,
 * split by commas, best first. */
tutti_status tutti_store_client_connect(const char *host, int port, int64_t timeout_ms,
                                        tutti_store_client **client_out);
void tutti_store_client_close(tutti_store_client *client); /* NULL is allowed */

/* The client as callbacks; valid as long as the client. */
tutti_store tutti_store_client_callbacks(tutti_store_client *client);

#endif
