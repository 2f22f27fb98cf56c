/*
 * The store's bytes for tests: literals for lengths and counts, and sockets with a time limit on everything.
 */
#ifndef TUTTI_TESTS_WIRE_H
#define TUTTI_TESTS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The two arguments "bytes, how many" of a literal. */
#define BYTES(literal) literal, sizeof(literal) - 1
/* A uint64 below 256, given as its octal or hex escape: U64("\3"). */
#define U64(low) low "\0\0\0\0\0\0\0"
#define VALIDATE "\0\xCE\xF7\x85\x3C"

/* A connection to 127.0.0.1:port, or -1. */
int wire_connect(int port);
bool wire_send(int fd, const void *data, size_t bytes);
/* Receives exactly that many bytes within 20 s. */
bool wire_receive(int fd, void *data, size_t bytes);
/* Whether the peer closes (or resets) the connection within 20 s, whatever it sends before. */
bool wire_closes(int fd);
/* Whether there is nothing to read for that long. */
bool wire_silent(int fd, int ms);
/* Sends and compares the reply. */
bool wire_talk(int fd, const void *request, size_t bytes, const void *reply, size_t reply_bytes);
/* Listens on 127.0.0.1; the port is stored. */
int wire_listen(int *port_out);
/* A free port of 127.0.0.1, for another process to listen at later: not one that the system assigns to a socket that
 * connects meanwhile (or to one that tries to connect there before a process listens, and then is connected to
 * itself). -1: no port is free. */
int wire_free_port(void);

/* A store server of Tutti on 127.0.0.1, for a whole test; stop may be called twice. */
extern int wire_port;
void wire_server_start(void);
void wire_server_stop(void);
/* A connection to it that has sent VALIDATE, or -1. */
int wire_join(void);

#endif
