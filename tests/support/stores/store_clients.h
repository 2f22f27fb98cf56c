/*
 * A store in the test's process, and other processes that come to it, of this host or of another one (netns.h). Calls that fail
 * fail the test, in its own process.
 */
#ifndef TUTTI_TESTS_STORE_CLIENTS_H
#define TUTTI_TESTS_STORE_CLIENTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "bootstrap/store/store.h"
#include "tests/support/hosts/netns.h"

/* Memory and times are not those of the product where a sanitizer keeps freed memory, and is slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLIENTS_MEASURES false
#else
#define CLIENTS_MEASURES true
#endif

extern netns *clients_network; /* NULL: there is this host only */
extern tutti_store_server *clients_server;
extern int clients_port; /* the store's */

void clients_serve(void);
/* On host 0 of nhosts hosts; skips the test where such hosts cannot be made. */
void clients_serve_on_hosts(int nhosts);

/* Starts a process on that host that plays; what it returns it exits with. Waits until it has said that it is ready. */
typedef int (*clients_play)(void);
pid_t clients_begin(int host, clients_play play);
void clients_say_ready(void);
/* Waits for its end: what it has exited with, or -1. */
int clients_end(pid_t child);
void clients_stop(pid_t child);

/* A connection, or -1. */
int clients_call(const char *address, int port);
/* To the store from another host; it has shown the magic number. */
int clients_join(void);
/* All that was sent is carried out now. */
bool clients_ping(int fd);
/* Does on that connection what a rank does, and closes it; 0: it was served, and soon. */
int clients_mean_well(int fd);

#endif
