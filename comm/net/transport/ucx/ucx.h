/*
 * The interface between libtutti and its module libtutti_ucx.so; see bootstrap/machine/module.h.
 */
#ifndef TUTTI_UCX_H
#define TUTTI_UCX_H

#include "bootstrap/machine/module.h"
#include "comm/net/transport/transport.h"

/* What UCX found in this process. */
typedef struct tutti_ucx_survey {
    char version[32];
    char ways[512]; /* "self/memory, tcp/eth0, ..." */
} tutti_ucx_survey;

/* Functions that the host provides to this module, besides those for all modules. */
typedef struct tutti_ucx_host {
    const tutti_transport *row; /* the `transport` of the pipes */
    tutti_status (*pipe_fail)(tutti_pipe *pipe, tutti_status status, const char *format, ...) TUTTI_PRINTF(3, 4);
    void (*fork_closes)(int socket); /* see fork.h */
    void (*fork_forget)(int socket);
} tutti_ucx_host;

typedef struct tutti_ucx_module {
    tutti_module_calls head;
    void (*attach)(const tutti_ucx_host *host); /* must be called first */
    /* TUTTI_ERR_UNSUPPORTED with the reason: UCX cannot be used. Leaves nothing open: the process may fork after it. */
    tutti_status (*survey)(tutti_ucx_survey *survey_out);
    /* The table to which the host forwards open and all calls for pipes; its other entries are NULL. */
    const tutti_transport *pipes;
} tutti_ucx_module;

#endif
