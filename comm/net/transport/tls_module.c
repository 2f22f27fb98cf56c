/*
 * The module libtutti_tls.so: TLS 1.3 by OpenSSL 3, with a pre-shared key for each connection. See tls.h.
 *
 * OpenSSL reads and writes through functions of this file: they never block, never raise SIGPIPE, and hide errors
 * of the socket from OpenSSL, as if nothing could move yet, so that it goes on with the other direction. A read
 * takes many records; after RECORDS_PER_KEY written ones the key is changed, long before AES-GCM's limit (RFC 8446,
 * 5.5).
 *
 * Invariant: the other side of a session returned by open() knows the connection's key; certificates are not
 * accepted.
 */
#include "comm/net/transport/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CIPHER            "TLS_AES_128_GCM_SHA256"
#define GROUPS            "X25519:P-256"
#define IDENTITY          "tutti" /* each connection has its own key: there is nothing to choose */
#define READ_BUFFER_BYTES (8 * TUTTI_TLS_RECORD_BYTES)
#define RECORDS_PER_KEY   (UINT64_C(1) << 23)
#define LOOK_MS           100 /* interval of the checks of the deadline */

typedef struct session {
    tutti_tls_session shared; /* first */
    int socket;
    SSL *ssl;
    uint64_t records, records_per_key; /* records written with this key, and their limit */
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES];
} session;

static const tutti_module_host *host;
static struct {
    pthread_mutex_t lock;
    SSL_CTX *context; /* shared by all sessions; lives as long as the process */
    BIO_METHOD *method;
} tls = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The reason of OpenSSL's first error; the caller knows that there is one. */
static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_error());
    return text != NULL ? text : "no reason given";
}

/* --------------------------------------------------------------------------------------------- the socket */

static bool is_passing(int error) {
    return error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

static int write_socket(BIO *bio, const char *data, int bytes) {
    session *s = BIO_get_data(bio);
    ssize_t sent = send(s->socket, data, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (sent >= 0) return (int)sent;
    if (!is_passing(errno)) s->shared.send_error = errno;
    BIO_set_retry_write(bio);
    return -1;
}

static int read_socket(BIO *bio, char *data, int bytes) {
    session *s = BIO_get_data(bio);
    ssize_t got = recv(s->socket, data, (size_t)bytes, MSG_DONTWAIT);
    BIO_clear_retry_flags(bio);
    if (got > 0) return (int)got;
    if (got == 0) s->shared.ended = true;
    else if (!is_passing(errno)) s->shared.receive_error = errno;
    BIO_set_retry_read(bio);
    return -1;
}

static long control_socket(BIO *bio, int command, long number, void *data) {
    (void)bio, (void)number, (void)data;
    return command == BIO_CTRL_FLUSH; /* it buffers nothing */
}

/* ------------------------------------------------------------------------------------------------ the key */

static SSL_SESSION *make_key(SSL *ssl) {
    static const unsigned char cipher[] = {0x13, 0x01}; /* CIPHER */
    const session *s = SSL_get_app_data(ssl);
    SSL_SESSION *key = SSL_SESSION_new();
    if (key != NULL && SSL_SESSION_set1_master_key(key, s->key, sizeof s->key) == 1 &&
        SSL_SESSION_set_cipher(key, SSL_CIPHER_find(ssl, cipher)) == 1 &&
        SSL_SESSION_set_protocol_version(key, TLS1_3_VERSION) == 1)
        return key;
    SSL_SESSION_free(key);
    return NULL;
}

/* Called on the connecting side: offers the key. */
static int show_key(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *identity_bytes,
                    SSL_SESSION **key_out) {
    (void)hash;
    *identity = (const unsigned char *)IDENTITY;
    *identity_bytes = strlen(IDENTITY);
    *key_out = make_key(ssl);
    return *key_out != NULL;
}

static int find_key(SSL *ssl, const unsigned char *identity, size_t identity_bytes, SSL_SESSION **key_out) {
    bool ours = identity_bytes == strlen(IDENTITY) && memcmp(identity, IDENTITY, identity_bytes) == 0;
    *key_out = ours ? make_key(ssl) : NULL;
    return *key_out != NULL || !ours;
}

/* Called only where the other side does not use the key. */
static int refuse_certificate(int good, X509_STORE_CTX *context) {
    (void)good, (void)context;
    return 0;
}

/* ----------------------------------------------------------------------------------------------- context */

static SSL_CTX *make_context(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (context == NULL) return NULL;
    SSL_CTX_set_psk_use_session_callback(context, show_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, READ_BUFFER_BYTES);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
        SSL_CTX_set_ciphersuites(context, CIPHER) == 1 && SSL_CTX_set1_groups_list(context, GROUPS) == 1)
        return context;
    SSL_CTX_free(context);
    return NULL;
}

static BIO_METHOD *make_method(void) {
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tutti");
    if (method != NULL && BIO_meth_set_write(method, write_socket) == 1 &&
        BIO_meth_set_read(method, read_socket) == 1 && BIO_meth_set_ctrl(method, control_socket) == 1)
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* Without OpenSSL's exit handler, which would clean up while other threads of the process are still sending. */
static tutti_status start_openssl(void) {
    if (OPENSSL_version_major() != OPENSSL_VERSION_MAJOR)
        return host->fail(TUTTI_ERR_UNSUPPORTED, "built with OpenSSL %d, found %s", OPENSSL_VERSION_MAJOR,
                          OpenSSL_version(OPENSSL_VERSION));
    if (OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) == 1) tls.method = make_method();
    if (tls.method != NULL) tls.context = make_context();
    if (tls.context != NULL) return TUTTI_OK;
    BIO_meth_free(tls.method);
    tls.method = NULL;
    return host->fail(TUTTI_ERR_UNSUPPORTED, "%s does not offer TLS 1.3 with %s and one of %s: %s",
                      OpenSSL_version(OPENSSL_VERSION), CIPHER, GROUPS, reason());
}

static tutti_status check(void) {
    pthread_mutex_lock(&tls.lock);
    ERR_clear_error();
    tutti_status status = tls.context != NULL ? TUTTI_OK : start_openssl();
    pthread_mutex_unlock(&tls.lock);
    return status;
}

/* ----------------------------------------------------------------------------------------------- opening */

static void tls_close(tutti_tls_session *shared) {
    session *s = (session *)shared;
    if (s == NULL) return;
    SSL_free(s->ssl);
    OPENSSL_cleanse(s, sizeof *s);
    free(s);
}

static tutti_status prepare(session *s, const tutti_connection *connection) {
    s->socket = connection->socket;
    s->records_per_key = host->fault("tls_key") ? 2 : RECORDS_PER_KEY;
    memcpy(s->key, connection->key, sizeof s->key);
    s->ssl = SSL_new(tls.context);
    BIO *bio = s->ssl != NULL ? BIO_new(tls.method) : NULL;
    if (bio == NULL) return host->fail(TUTTI_ERR_MEMORY, "no memory for a TLS session");
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_app_data(s->ssl, s);
    if (connection->called) {
        SSL_set_connect_state(s->ssl);
        SSL_set_verify(s->ssl, SSL_VERIFY_PEER, refuse_certificate);
    } else {
        SSL_set_accept_state(s->ssl); /* it has no certificate to offer instead */
    }
    return TUTTI_OK;
}

static tutti_status refused(void) {
    return host->fail(
        TUTTI_ERR_REFUSED,
        "tls: the other side does not know this connection's key, or the bytes were changed on the way: %s", reason());
}

/* Waits for what the handshake needs next; `error` is the result that stopped it. */
static tutti_status await_handshake(const session *s, int error, tutti_deadline *deadline) {
    int broken = s->shared.send_error != 0 ? s->shared.send_error : s->shared.receive_error;
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return refused();
    if (s->shared.ended || broken == ECONNRESET || broken == EPIPE)
        return host->fail(TUTTI_ERR_PEER_DIED, "tls: the other side has closed the connection during the handshake");
    if (broken != 0) return host->fail(TUTTI_ERR_SYSTEM, "tls: %s", strerror(broken));
    if (host->deadline_passed(deadline))
        return host->fail(TUTTI_ERR_TIMEOUT, "tls: the other side did not complete the handshake in time "
                                             "(TUTTI_TIMEOUT_MS)");
    int left_ms = host->deadline_left_ms(deadline);
    struct pollfd waited = {.fd = s->socket, .events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
    poll(&waited, 1, left_ms < LOOK_MS ? left_ms : LOOK_MS);
    return TUTTI_OK;
}

static tutti_status shake_hands(session *s, tutti_deadline *deadline) {
    for (;;) {
        ERR_clear_error();
        int done = SSL_do_handshake(s->ssl);
        if (done == 1) break;
        TUTTI_TRY(await_handshake(s, SSL_get_error(s->ssl, done), deadline));
    }
    return SSL_session_reused(s->ssl) == 1 && SSL_version(s->ssl) == TLS1_3_VERSION ? TUTTI_OK : refused();
}

static tutti_status tls_open(const tutti_connection *connection, tutti_deadline *deadline,
                             tutti_tls_session **session_out) {
    session *s;
    TUTTI_TRY(host->calloc(1, sizeof *s, &s));
    tutti_status status = prepare(s, connection);
    if (status == TUTTI_OK) status = shake_hands(s, deadline);
    OPENSSL_cleanse(s->key, sizeof s->key);
    if (status == TUTTI_OK) *session_out = &s->shared;
    else tls_close(&s->shared);
    return status;
}

/* ------------------------------------------------------------------------------------------------ moving */

/* Does nothing while the socket has no room for the key update: until that is sent, nothing is received. */
static void change_key(session *s) {
    struct pollfd room = {.fd = s->socket, .events = POLLOUT};
    if (poll(&room, 1, 0) != 1 || room.revents != POLLOUT) return;
    if (SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return; /* a record is under way */
    SSL_do_handshake(s->ssl);
    s->records = 0;
}

static bool tls_write(tutti_tls_session *shared, const void *data, size_t bytes) {
    session *s = (session *)shared;
    ERR_clear_error();
    if (TUTTI_UNLIKELY(s->records >= s->records_per_key)) change_key(s);
    int written = SSL_write(s->ssl, data, (int)bytes);
    if (TUTTI_LIKELY(written > 0)) {
        s->records++;
        return true;
    }
    int error = SSL_get_error(s->ssl, written);
    bool later = error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ;
    if (!later && shared->send_error == 0) shared->send_error = EPROTO;
    return false;
}

static tutti_status tls_read(tutti_tls_session *shared, void *dst, size_t bytes, size_t *got_out) {
    session *s = (session *)shared;
    ERR_clear_error();
    int got = SSL_read(s->ssl, dst, bytes < INT32_MAX ? (int)bytes : INT32_MAX);
    *got_out = got > 0 ? (size_t)got : 0;
    if (TUTTI_LIKELY(got > 0)) return TUTTI_OK;
    switch (SSL_get_error(s->ssl, got)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return TUTTI_OK;
    case SSL_ERROR_ZERO_RETURN: shared->ended = true; return TUTTI_OK;
    default:
        return host->fail(
            TUTTI_ERR_DATA,
            "the received bytes are not those that the other side sent (%s): they were changed on the way; the "
            "connection cannot be used any more",
            reason());
    }
}

static void part(tutti_tls_session *shared) {
    session *s = (session *)shared;
    ERR_clear_error();
    if (shared->send_error == 0) SSL_shutdown(s->ssl);
}

/* ----------------------------------------------------------------------------------------------- the table */

static const char *version(void) {
    return OpenSSL_version(OPENSSL_VERSION);
}

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_tls_module module = {.head.version = TUTTI_MODULE_VERSION,
                                            .check = check,
                                            .open = tls_open,
                                            .write = tls_write,
                                            .read = tls_read,
                                            .part = part,
                                            .close = tls_close,
                                            .version = version};
    if (caller->version == TUTTI_MODULE_VERSION)
        host = caller; /* else the caller detects the difference, and makes no call */
    *calls_out = &module.head;
    return TUTTI_OK;
}
