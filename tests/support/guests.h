/*
 * A store in the test's process, and other processes that come to it, of this host or of another one (netns.h). Calls that fail
 * fail the test, in its own process.
 */
#ifndef TUTTI_TESTS_GUESTS_H
#define TUTTI_TESTS_GUESTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "bootstrap/store/store.h"
#include "tests/support/netns.h"

/* Memory and times are not those of the product where a sanitizer keeps freed memory, and is slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GUESTS_MEASURES false
#else
#define GUESTS_MEASURES true
#endif

extern netns *guests_network; /* NULL: there is this host only */
extern tutti_store_server *guests_server;
extern int guests_port; /* the store's */

void guests_serve(void);
/* On host 0 of nhosts hosts; skips the test where such hosts cannot be made. */
void guests_serve_on_hosts(int nhosts);

/* Starts a process on that host that plays; what it returns it exits with. Waits until it has said that it is ready. */
typedef int (*guests_play)(void);
pid_t guests_begin(int host, guests_play play);
void guests_say_ready(void);
/* Waits for its end: what it has exited with, or -1. */
int guests_end(pid_t child);
void guests_stop(pid_t child);

/* A connection, or -1. */
int guests_call(const char *address, int port);
/* To the store from another host; it has shown the magic number. */
int guests_join(void);
/* All that was sent is carried out now. */
bool guests_ping(int fd);
/* Does on that connection what a rank does, and closes it; 0: it was served, and soon. */
int guests_mean_well(int fd);

#endif
