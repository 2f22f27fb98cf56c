/*
 * Name resolution on a separate thread. See lookup.h and async_call.h.
 */
#include "bootstrap/machine/lookup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/async_call.h"

struct tutti_lookup {
    tutti_async_call call; /* must be first */
    bool known;            /* resolved at once, without a thread */
    int problem;           /* result of getaddrinfo */
    struct addrinfo *found;
    char host[256], service[16];
};

static void destroy(tutti_async_call *call) {
    tutti_lookup *lookup = (tutti_lookup *)call;
    if (lookup->found != NULL) freeaddrinfo(lookup->found);
    free(lookup);
}

static void ask(tutti_async_call *call) {
    tutti_lookup *lookup = (tutti_lookup *)call;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    lookup->problem = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->found);
    if (lookup->problem != 0) lookup->found = NULL;
}

/* Resolves names that need no name server. A missing name means the loopback addresses (RFC 6761); a bare container
 * has no /etc/hosts. */
static bool is_known(tutti_lookup *lookup) {
    const char *name = strcmp(lookup->host, "localhost") == 0 ? NULL : lookup->host;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    return getaddrinfo(name, lookup->service, &hints, &lookup->found) == 0;
}

tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out) {
    tutti_lookup *lookup;
    if (strlen(host) >= sizeof lookup->host)
        return tutti_fail(TUTTI_ERR_CONFIG, "the host name '%.40s...' is too long", host);
    TUTTI_TRY(tutti_calloc(1, sizeof *lookup, &lookup));
    tutti_async_call_init(&lookup->call, ask, destroy);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    snprintf(lookup->service, sizeof lookup->service, "%d", port);
    lookup->known = is_known(lookup);
    int error = lookup->known ? 0 : tutti_async_call_start(&lookup->call);
    if (error != 0) {
        tutti_async_call_release(&lookup->call);
        return tutti_fail_errno(error, "cannot start a thread to look up '%s'", host);
    }
    *lookup_out = lookup;
    return TUTTI_OK;
}

tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out) {
    if (!lookup->known && !tutti_async_call_wait(&lookup->call, wait_ms)) return TUTTI_NOT_YET;
    if (lookup->problem != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "the host name '%s' is unknown (%s)", lookup->host,
                          gai_strerror(lookup->problem));
    *found_out = lookup->found;
    return TUTTI_OK;
}

void tutti_lookup_end(tutti_lookup *lookup) {
    if (lookup != NULL) tutti_async_call_release(&lookup->call);
}
