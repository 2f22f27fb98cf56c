/*
 * The interface between libtutti and its module libtutti_tls.so; see bootstrap/machine/module.h. The module
 * implements TLS with OpenSSL, and does not depend on pipes.
 */
#ifndef TUTTI_TLS_H
#define TUTTI_TLS_H

#include "bootstrap/machine/module.h"
#include "comm/net/transport/transport.h"

/* Most bytes of one record (RFC 8446, 5.1). */
#define TUTTI_TLS_RECORD_BYTES ((size_t)16 << 10)

/* One end of a connection; the module's own state follows. */
typedef struct tutti_tls_session {
    /* Errors of the socket, 0: none. After a send error, bytes that the other side sent last can still be received. */
    int send_error, receive_error;
    bool ended; /* the other side's last byte has been read */
} tutti_tls_session;

typedef struct tutti_tls_module {
    tutti_module_calls head;
    /* TUTTI_ERR_UNSUPPORTED with the reason: OpenSSL cannot be used. */
    tutti_status (*check)(void);
    /* Runs the handshake until the deadline, over a blocking socket, which it does not take over.
     * TUTTI_ERR_REFUSED: the other side does not know the connection's key, or the bytes were changed on the way. */
    tutti_status (*open)(const tutti_connection *connection, tutti_deadline *deadline, tutti_tls_session **session_out);
    /* Sends one record of these bytes, 1 to TUTTI_TLS_RECORD_BYTES. False: not yet; pass the same bytes again. */
    bool (*write)(tutti_tls_session *session, const void *data, size_t bytes);
    /* Receives available bytes of at most one record; *got_out is 0 where there are none yet, or none any more (see
     * above). TUTTI_ERR_DATA: the received bytes are not those that were sent; it returns none of them. */
    tutti_status (*read)(tutti_tls_session *session, void *dst, size_t bytes, size_t *got_out);
    /* Announces that nothing more will be sent, if the socket has room for that. */
    void (*part)(tutti_tls_session *session);
    void (*close)(tutti_tls_session *session); /* NULL is allowed */
    const char *(*version)(void);
} tutti_tls_module;

#endif
