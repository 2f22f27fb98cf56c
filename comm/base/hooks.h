/*
 * Calls from the lower folders of comm/ (base, shm, net, health) to the higher ones: a wait serves messages, looks for
 * failures and reports stalls, the end of a work wakes threads that wait for peers, and the last release of a struct
 * frees what higher folders have added to it.
 *
 * One constant table, defined in comm/api/hooks.c. Its entries are the functions of the same names, which are
 * described in the headers of their folders.
 */
#ifndef TUTTI_HOOKS_H
#define TUTTI_HOOKS_H

#include "comm/base/comm.h"

typedef struct tutti_hook_table {
    /* comm/p2p/p2p.h */
    bool (*p2p_progress)(void);
    bool (*p2p_progress_in_turn)(void);
    bool (*p2p_pending)(void);
    void (*p2p_forget)(struct tutti_peer *peer);
    void (*p2p_see_off)(const tutti_comm *comm);
    /* comm/p2p/channel.h */
    void (*channel_attend)(int threads);
    void (*channel_sleep_begin)(uint32_t *bell_out);
    void (*channel_sleep)(uint32_t bell, int64_t most_ns);
    void (*channel_sleep_end)(void);
    void (*channel_ring_own)(void);
    /* comm/health/monitor.h */
    tutti_status (*monitor_look)(tutti_comm *comm, const tutti_op *op, bool deaths);
    void (*monitor_report)(tutti_comm *comm, const tutti_op *op, int64_t waited_ms, const char *missing);
    void (*monitor_missing)(tutti_comm *comm, const tutti_op *op, char *text, size_t capacity);
    tutti_status (*monitor_mismatch)(tutti_comm *comm, const tutti_op *op, int rank, const tutti_post *post);
    /* comm/health/heartbeat.h */
    void (*heartbeat_now)(void);
    void (*heartbeat_read_deaths)(const tutti_comm *comm);
    /* comm/gpu/stream.h */
    void (*stream_attend)(int change);
    /* comm/api/api.h */
    void (*comm_free)(tutti_comm *comm);
} tutti_hook_table;

extern const tutti_hook_table tutti_hooks;

#endif
