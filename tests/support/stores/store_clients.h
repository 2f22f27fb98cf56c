/*
 * A store in the test's process, and other processes, of this host or of another one (netns.h), that connect to it. A
 * call that fails makes the test fail, in the test's own process.
 */
#ifndef TUTTI_TESTS_STORE_CLIENTS_H
#define TUTTI_TESTS_STORE_CLIENTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "bootstrap/store/store.h"
#include "tests/support/hosts/netns.h"

/* Memory and times differ from those of the product under a sanitizer, which keeps freed memory and is slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLIENTS_MEASURES false
#else
#define CLIENTS_MEASURES true
#endif

extern netns *clients_network; /* NULL: there is this host only */
extern tutti_store_server *clients_server;
extern int clients_port; /* address of the store */

void clients_serve(void);
/* Starts the store on host 0 of nhosts hosts; skips the test if such hosts cannot be made. */
void clients_serve_on_hosts(int nhosts);

/* Starts a process on that host that runs `play` and exits with its result. Waits until it has reported that it is
 * ready. */
typedef int (*clients_play)(void);
pid_t clients_begin(int host, clients_play play);
void clients_say_ready(void);
/* Waits for its end. Returns its exit code, or -1. */
int clients_end(pid_t child);
void clients_stop(pid_t child);

/* A connection, or -1. */
int clients_call(const char *address, int port);
/* A connection to the store from another host, which has sent the magic number. */
int clients_join(void);
/* Waits until the server has processed everything that was sent. */
bool clients_ping(int fd);
/* Makes a rank's requests on that connection, and closes it. Returns 0 if it was served in time. */
int clients_mean_well(int fd);

#endif
