/*
 * Logs how hosts are connected. See route_log.h.
 *
 * The texts are derived from the data that the choice was made from: the listener infos of both sides, and the
 * reasons that the transports give.
 */
#include "comm/net/route_log.h"

#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/machine/interfaces.h"
#include "comm/net/hosts.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/net/transport/transport.h"
#include "comm/shm/peer.h"

#define MOST_NAMED 3 /* hosts in one line */

typedef struct text {
    char chars[1024];
    size_t used;
} text;

static void add(text *t, const char *format, ...) TUTTI_PRINTF(2, 3);
static void add(text *t, const char *format, ...) {
    va_list arguments;
    if (t->used >= sizeof t->chars - 1) return;
    va_start(arguments, format);
    int bytes = vsnprintf(t->chars + t->used, sizeof t->chars - t->used, format, arguments);
    va_end(arguments);
    if (bytes > 0) t->used += (size_t)bytes;
}

static bool is_logged(tutti_log_level level) {
    return tutti_setting_int(TUTTI_SETTING_LOG) >= (int64_t)level;
}

/* ----------------------------------------------------------------------------------------- communicators */

static int first_rank_of(const tutti_comm *comm, int host) {
    return comm->net.hosts->all[host].ranks[0];
}

static const char *name_of(const tutti_comm *comm, int host) {
    return comm->members[first_rank_of(comm, host)].process->host;
}

static int chosen_for(const tutti_comm *comm, int host) {
    const tutti_listener_info *listeners = comm->net.hosts->listeners;
    return tutti_transport_common(listeners[comm->rank].transports, listeners[first_rank_of(comm, host)].transports);
}

/* Adds why the transports that are preferred over the chosen one cannot be used to that host. */
static void add_reasons(text *t, const tutti_comm *comm, int host, int chosen) {
    uint32_t own = comm->net.hosts->listeners[comm->rank].transports;
    for (int i = 0; tutti_transports[i] != NULL && (chosen < 0 || i < chosen); i++) {
        add(t, ", not %s (", tutti_transports[i]->name);
        if ((own >> i & 1) != 0) add(t, "not available on %s)", name_of(comm, host));
        else if (tutti_transport_permit(tutti_transports[i]) != TUTTI_OK) add(t, "TUTTI_ENCRYPT=1)");
        else if (tutti_transports[i]->check() != TUTTI_OK) add(t, "%s)", tutti_last_error());
        else add(t, "%s)", tutti_transport_left_out(tutti_transports[i]));
    }
}

/* Logs a line for all hosts that use the same transport (-1: none). */
static void tell_group(const tutti_comm *comm, int chosen) {
    const tutti_hosts *hosts = comm->net.hosts;
    text t = {.used = 0};
    int count = 0, example = -1;
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host || chosen_for(comm, host) != chosen) continue;
        if (count++ < MOST_NAMED) add(&t, "%s%s", count > 1 ? ", " : "", name_of(comm, host));
        example = host;
    }
    if (count == 0) return;
    if (count > MOST_NAMED) add(&t, " and %d more", count - MOST_NAMED);
    add(&t, ": %s", chosen < 0 ? "no transport in common" : tutti_transports[chosen]->name);
    uint32_t lanes = chosen < 0 ? 1 : tutti_multi_socket_lanes(tutti_transports[chosen]);
    if (lanes > 1) add(&t, " (%u sockets per peer)", lanes);
    add_reasons(&t, comm, example, chosen);
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": from %s to %s", comm->name, name_of(comm, hosts->host), t.chars);
}

/* Logs the addresses at which other hosts can reach this one. */
static void tell_addresses(const tutti_comm *comm) {
    const tutti_listener_info *own = &comm->net.hosts->listeners[comm->rank];
    text t = {.used = 0};
    for (int i = 0; i < own->naddresses; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES];
        tutti_address_text(own->addresses[i].bytes, own->addresses[i].scope, address);
        add(&t, "%s%s on %s", i > 0 ? ", " : "", address, own->addresses[i].interface);
        if (own->addresses[i].speed_mbit > 0) add(&t, " (%u Mbit/s)", own->addresses[i].speed_mbit);
    }
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": %s is reached at %s", comm->name,
              name_of(comm, comm->net.hosts->host), own->naddresses > 0 ? t.chars : "no address");
}

void tutti_route_log_hosts(const tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (hosts == NULL || hosts->local->rank != 0 || !is_logged(TUTTI_LOG_INFO)) return;
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": %d ranks on %d hosts; among the %d on %s: shm", comm->name,
              comm->nranks, hosts->nhosts, hosts->local->nranks, name_of(comm, hosts->host));
    for (int i = 0; tutti_transports[i] != NULL; i++) tell_group(comm, i);
    tell_group(comm, -1);
    tell_addresses(comm);
}

/* ------------------------------------------------------------------------------------------- connections */

/* Adds the address of a socket's end as text, with the interface if it is a local address. */
static void add_end(text *t, const struct sockaddr_storage *name) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    enum { MOST = 64 };
    tutti_interface own[MOST];
    char shown[TUTTI_ADDRESS_TEXT_BYTES];
    uint8_t bytes[16];
    int count = 0;
    if (name->ss_family == AF_INET6) {
        memcpy(bytes, &((const struct sockaddr_in6 *)name)->sin6_addr, sizeof bytes);
    } else {
        memcpy(bytes, mapped, sizeof mapped);
        memcpy(bytes + sizeof mapped, &((const struct sockaddr_in *)name)->sin_addr, 4);
    }
    tutti_address_text(bytes, 0, shown);
    add(t, "%s", shown);
    if (tutti_interfaces_all(own, MOST, &count) != TUTTI_OK) return;
    for (int i = 0; i < count; i++)
        if (memcmp(own[i].address, bytes, sizeof bytes) == 0) {
            add(t, " on %s", own[i].name);
            return;
        }
}

void tutti_route_log_connection(const tutti_conn_id *conn_id, int socket) {
    struct sockaddr_storage here, there;
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    text t = {.used = 0};
    if (!is_logged(TUTTI_LOG_DEBUG) || getsockname(socket, (struct sockaddr *)&here, &here_bytes) != 0 ||
        getpeername(socket, (struct sockaddr *)&there, &there_bytes) != 0)
        return;
    if (conn_id->use == TUTTI_CONN_LINK || conn_id->use == TUTTI_CONN_LINK_TWIN)
        add(&t, "link of ranks %d and %d", conn_id->from_rank, conn_id->to_rank);
    else add(&t, "%s", "messages of two processes");
    add(&t, ": %s", tutti_transports[conn_id->transport]->name);
    if (conn_id->lanes > 1) add(&t, " (%u of %u)", conn_id->lane + 1, conn_id->lanes);
    add(&t, "%s", ", ");
    add_end(&t, &here);
    add(&t, "%s", " with ");
    add_end(&t, &there);
    tutti_log(TUTTI_LOG_DEBUG, "%s", t.chars);
}
