/*
 * What libtutti and its module libtutti_ucx.so say to each other; see bootstrap/machine/module.h.
 */
#ifndef TUTTI_UCX_H
#define TUTTI_UCX_H

#include "bootstrap/machine/module.h"
#include "comm/net/transport/transport.h"

/* What UCX has found in this process. */
typedef struct tutti_ucx_survey {
    char version[32];
    char ways[512]; /* "self/memory, tcp/eth0, ..." */
} tutti_ucx_survey;

/* What the host does for this module, besides what it does for all. */
typedef struct tutti_ucx_host {
    const tutti_transport *row; /* what pipes name as their transport */
    tutti_status (*pipe_fail)(tutti_pipe *pipe, tutti_status status, const char *format, ...) TUTTI_PRINTF(3, 4);
    bool (*deadline_passed)(tutti_deadline *deadline);
    void (*fork_closes)(int socket); /* see fork.h */
    void (*fork_forget)(int socket);
} tutti_ucx_host;

typedef struct tutti_ucx_module {
    tutti_module_calls head;
    void (*attach)(const tutti_ucx_host *host); /* before anything else */
    /* TUTTI_ERR_UNSUPPORTED: UCX cannot be used, and why. Leaves nothing open, so that the process may fork after it. */
    tutti_status (*survey)(tutti_ucx_survey *survey_out);
    const tutti_transport *pipes; /* what the host forwards to: open, and all calls for pipes; the others are NULL */
} tutti_ucx_module;

#endif
