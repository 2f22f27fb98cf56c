/*
 * Watching the other hosts of a communicator. See heartbeat_hosts.h.
 */
#include "comm/health/heartbeat_hosts.h"

#include "comm/health/heartbeat.h"
#include "comm/health/heartbeat_proxy.h"
#include "comm/net/hosts.h"

/* The first process of another host. */
static tutti_peer *first_of(const tutti_comm *comm, int host) {
    return comm->members[comm->hosts->all[host].ranks[0]].process;
}

tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm) {
    tutti_hosts *hosts = comm->hosts;
    if (hosts->local->rank != 0) return TUTTI_OK;
    tutti_heartbeat_proxy_release(); /* sends pending goodbyes first: later they would apply to this communicator */
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host) continue;
        tutti_status status = tutti_heartbeat_watch(first_of(comm, host));
        if (status != TUTTI_OK) {
            for (int before = 0; before < host; before++)
                if (before != hosts->host) tutti_heartbeat_unwatch(first_of(comm, before));
            return status;
        }
    }
    hosts->watches = true;
    return TUTTI_OK;
}

void tutti_heartbeat_leave_hosts(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->hosts;
    if (!hosts->watches) tutti_heartbeat_proxy_release(); /* possibly of another rank in this process */
    if (!hosts->watches || tutti_heartbeat_proxy_take(comm)) return;
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) tutti_heartbeat_unwatch(first_of(comm, host));
}

void tutti_heartbeat_read_deaths(const tutti_comm *comm) {
    tutti_heartbeat_read(comm->hosts->local->members[0].process);
}
