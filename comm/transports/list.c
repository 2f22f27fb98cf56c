/*
 * The transports. Their places in the list are told to other processes, so every build has all of them, in this order; what
 * is not to be had says so in check().
 */
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/transports/transport.h"

const tutti_transport *const tutti_transports[] = {&tutti_verbs_transport, &tutti_tcp_transport, &tutti_ucx_transport,
                                                   NULL};

const tutti_transport *tutti_transport_named(const char *name) {
    for (int i = 0; tutti_transports[i] != NULL; i++)
        if (strcmp(tutti_transports[i]->name, name) == 0) return tutti_transports[i];
    return NULL;
}

/* Bits of the names in "a,b"; all where there are none. None where only shared memory is named. */
static tutti_status read_allowed(const char *names, uint32_t *mask_out) {
    *mask_out = *names == '\0' ? UINT32_MAX : 0;
    while (*names != '\0') {
        char name[32];
        size_t span = strcspn(names, ", ");
        snprintf(name, sizeof name, "%.*s", (int)tutti_min_size(span, sizeof name - 1), names);
        names += span;
        names += strspn(names, ", ");
        if (span == 0 || strcmp(name, "shm") == 0) continue; /* serves the ranks of one host in any case */
        int i = 0;
        while (tutti_transports[i] != NULL && strcmp(tutti_transports[i]->name, name) != 0) i++;
        if (tutti_transports[i] == NULL)
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "TUTTI_TRANSPORT names \"%s\", which is no transport; tutti-info lists them", name);
        *mask_out |= UINT32_C(1) << i;
    }
    return TUTTI_OK;
}

tutti_status tutti_transports_available(uint32_t *mask_out) {
    char reasons[1024] = "";
    size_t used = 0;
    uint32_t allowed, mask = 0;
    const char *names = tutti_setting_text(TUTTI_SETTING_TRANSPORT);
    bool named = *names != '\0';
    TUTTI_TRY(read_allowed(names, &allowed));
    for (int i = 0; tutti_transports[i] != NULL; i++) {
        if ((allowed >> i & 1) == 0) continue;
        if (tutti_transports[i]->check() == TUTTI_OK) {
            mask |= UINT32_C(1) << i;
            if (!named && tutti_transports[i] == &tutti_tcp_transport) break;
        } else if (used < sizeof reasons) {
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "; %s: %s", tutti_transports[i]->name,
                                     tutti_last_error());
        }
    }
    if (mask == 0 && allowed != 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "no transport that TUTTI_TRANSPORT allows is to be had%s", reasons);
    *mask_out = mask;
    return TUTTI_OK;
}

int tutti_transport_common(uint32_t one, uint32_t other) {
    for (int i = 0; tutti_transports[i] != NULL; i++)
        if ((one & other) >> i & 1) return i;
    return -1;
}
