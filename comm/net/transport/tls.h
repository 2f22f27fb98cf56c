/*
 * What libtutti and its module libtutti_tls.so say to each other; see bootstrap/machine/module.h. The module knows TLS, by OpenSSL,
 * and nothing of pipes.
 */
#ifndef TUTTI_TLS_H
#define TUTTI_TLS_H

#include "bootstrap/machine/module.h"
#include "comm/net/transport/transport.h"

/* Most bytes that one record holds (RFC 8446, 5.1). */
#define TUTTI_TLS_RECORD_BYTES ((size_t)16 << 10)

/* One end; the module's own state follows. */
typedef struct tutti_tls_session {
    /* Errors of the socket, 0 without one. Who cannot send any more can still receive what the other side said last. */
    int send_error, receive_error;
    bool ended; /* the other side's last byte has been read */
} tutti_tls_session;

typedef struct tutti_tls_module {
    tutti_module_calls head;
    /* Is it OpenSSL as we need it? TUTTI_ERR_UNSUPPORTED with the reason. */
    tutti_status (*check)(void);
    /* Shakes hands until the deadline, over a blocking socket, which it does not take over. TUTTI_ERR_REFUSED: the other side
     * does not know the connection's key, or somebody changes what is sent. */
    tutti_status (*open)(const tutti_connection *connection, tutti_deadline *deadline, tutti_tls_session **session_out);
    /* Sends one record of these bytes, of which there are 1 to TUTTI_TLS_RECORD_BYTES. False: not yet; then nothing else but
     * the same bytes may be given next, from wherever. */
    bool (*write)(tutti_tls_session *session, const void *data, size_t bytes);
    /* Receives what there is, of at most one record; *got_out is 0 where there is nothing yet, or not any more (see above).
     * TUTTI_ERR_DATA: what came is not what was sent; none of it is given. */
    tutti_status (*read)(tutti_tls_session *session, void *dst, size_t bytes, size_t *got_out);
    /* Says that nothing more will be sent, if there is room for that. */
    void (*part)(tutti_tls_session *session);
    void (*close)(tutti_tls_session *session); /* NULL is allowed */
    const char *(*version)(void);
} tutti_tls_module;

#endif
