/*
 * The list of transports. Their indices are sent to other processes, so every build has all of them, in this order;
 * an unavailable one reports that in check().
 */
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/transport.h"

const tutti_transport *const tutti_transports[] = {&tutti_verbs_transport, &tutti_tcp_transport, &tutti_ucx_transport,
                                                   &tutti_tls_transport, NULL};

static bool must_encrypt(void) {
    return tutti_setting_int(TUTTI_SETTING_ENCRYPT) != 0;
}

static bool encrypts(const tutti_transport *transport) {
    return tutti_transport_can(transport, TUTTI_TRANSPORT_ENCRYPTS);
}

/* Bits of the names in "a,b"; all bits where there are none; no bit where only "shm" is named. */
static tutti_status read_allowed(const char *names, uint32_t *mask_out) {
    *mask_out = *names == '\0' ? UINT32_MAX : 0;
    while (*names != '\0') {
        char name[32];
        size_t span = strcspn(names, ", ");
        snprintf(name, sizeof name, "%.*s", (int)tutti_min_size(span, sizeof name - 1), names);
        names += span;
        names += strspn(names, ", ");
        if (span == 0 || strcmp(name, "shm") == 0) continue; /* used for the ranks of one host in any case */
        int i = 0;
        while (tutti_transports[i] != NULL && strcmp(tutti_transports[i]->name, name) != 0) i++;
        if (tutti_transports[i] == NULL)
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "TUTTI_TRANSPORT names \"%s\", which is not a transport; tutti-info lists them", name);
        *mask_out |= UINT32_C(1) << i;
    }
    return TUTTI_OK;
}

/* TUTTI_ENCRYPT allows only transports that encrypt. A transport that the user named must not be left out silently. */
static tutti_status restrict_to_encrypted(bool named, uint32_t *mask) {
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        if (encrypts(tutti_transports[i]) || (*mask >> i & 1) == 0) continue;
        if (named)
            return tutti_fail(
                TUTTI_ERR_CONFIG,
                "TUTTI_ENCRYPT=1 and TUTTI_TRANSPORT=%s contradict each other: %s does not encrypt; leave "
                "TUTTI_TRANSPORT out, or set it to %s",
                tutti_setting_text(TUTTI_SETTING_TRANSPORT), tutti_transports[i]->name, tutti_tls_transport.name);
        *mask &= ~(UINT32_C(1) << i);
    }
    return TUTTI_OK;
}

tutti_status tutti_transport_permit(const tutti_transport *transport) {
    if (!must_encrypt() || encrypts(transport)) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_REFUSED,
        "TUTTI_ENCRYPT=1, but the store's entries for the two sides lead to a connection by %s, which does not "
        "encrypt: the entries were changed; check which processes can write to the store",
        transport->name);
}

const char *tutti_transport_left_out(const tutti_transport *transport) {
    if (must_encrypt() && !encrypts(transport)) return "TUTTI_ENCRYPT=1 forbids it";
    if (*tutti_setting_text(TUTTI_SETTING_TRANSPORT) != '\0') return "TUTTI_TRANSPORT does not name it";
    if (encrypts(transport)) return "used where TUTTI_ENCRYPT=1 or TUTTI_TRANSPORT asks for it";
    return "used where TUTTI_TRANSPORT names it";
}

tutti_status tutti_transports_available(uint32_t *mask_out) {
    char reasons[1024] = "";
    size_t used = 0;
    uint32_t allowed, mask = 0;
    const char *names = tutti_setting_text(TUTTI_SETTING_TRANSPORT);
    bool named = *names != '\0', encrypted = must_encrypt();
    TUTTI_TRY(read_allowed(names, &allowed));
    if (encrypted) TUTTI_TRY(restrict_to_encrypted(named, &allowed));
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        if ((allowed >> i & 1) == 0) continue;
        if (tutti_transports[i]->check() == TUTTI_OK) {
            mask |= UINT32_C(1) << i;
            if (!named && tutti_transport_can(tutti_transports[i], TUTTI_TRANSPORT_EVERYWHERE)) break;
        } else if (used < sizeof reasons) {
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "; %s: %s", tutti_transports[i]->name,
                                     tutti_last_error());
        }
    }
    if (mask == 0 && allowed != 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "no transport that %s allows is available%s",
                          encrypted ? "TUTTI_ENCRYPT=1" : "TUTTI_TRANSPORT", reasons);
    *mask_out = mask;
    return TUTTI_OK;
}

int tutti_transport_common(uint32_t one, uint32_t other) {
    for (int i = 0; tutti_transports[i] != NULL; i++)
        if ((one & other) >> i & 1) return i;
    return -1;
}

/* ------------------------------------------------------------------------------------------------- only by RDMA */

uint32_t tutti_verbs_only_bit(void) {
    for (int i = 0; tutti_transports[i] != NULL; i++)
        if (tutti_transport_can(tutti_transports[i], TUTTI_TRANSPORT_VERBS)) return UINT32_C(1) << i;
    return 0;
}

static bool is_set(const tutti_peer *peer) {
    return peer != NULL && atomic_load_explicit(&peer->verbs_only, memory_order_acquire);
}

uint32_t tutti_verbs_only_mask(const tutti_peer *peer) {
    return is_set(peer) ? tutti_verbs_only_bit() : UINT32_MAX;
}

tutti_status tutti_verbs_only_admit(const tutti_peer *peer, tutti_pipe *pipe) {
    if (!is_set(peer) || tutti_transport_can(pipe->transport, TUTTI_TRANSPORT_VERBS)) return TUTTI_OK;
    tutti_status status =
        tutti_fail(TUTTI_ERR_UNSUPPORTED, "only %s reaches host %s, but tutti_comm_init_rdma allows only RDMA: %s",
                   pipe->transport->name, peer->host, pipe->error);
    pipe->transport->close(pipe);
    return status;
}
