/*
 * Where the ranks meet. MASTER_ADDR and MASTER_PORT take precedence under every launcher. Without them:
 *
 *     launcher            host                               port
 *     torchrun            -                                  -        (both must be set)
 *     rank table          rank 0's server                    derived from the table
 *     Slurm               by PMIx; else the first of the     by PMIx; else derived from job and step
 *                         step's nodes
 *     Open MPI            by PMIx; else, on one host, here   by PMIx; else derived from the job
 *     MPICH, MVAPICH2     by PMI                             by PMI
 *
 * A port that is derived from the job's name lies below the range from which the system assigns ports to
 * connections. Two jobs with the same derived port share a store, in which each has its own keys.
 */
#include "bootstrap/launcher/meeting.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/launcher/pmix.h"
#include "bootstrap/launcher/rank_table.h"
#include "bootstrap/machine/interfaces.h"

enum { FIRST_PORT = 20000, NPORTS = 10000, MOST_ADDRESSES = 8 };

static const char *shown(const char *name) {
    const char *value = tutti_launcher_variable(name);
    return value != NULL ? value : "not set";
}

/* ------------------------------------------------------------------------------------------- name and port */

/* Names the job by the launcher's number for it; "" if there is none. */
static void name_run(tutti_launcher launcher, tutti_meeting *meeting) {
    const char *space = tutti_launcher_variable("PMIX_NAMESPACE");
    const char *open_mpi = space != NULL ? space : tutti_launcher_variable("OMPI_MCA_ess_base_jobid");
    const char *job = tutti_launcher_variable("SLURM_JOB_ID"), *step = tutti_launcher_variable("SLURM_STEP_ID");
    switch (launcher) {
    case TUTTI_LAUNCHER_OPEN_MPI:
    case TUTTI_LAUNCHER_PMIX:
        if (open_mpi != NULL) snprintf(meeting->run, sizeof meeting->run, "mpi-%.200s", open_mpi);
        break;
    case TUTTI_LAUNCHER_SLURM:
        if (job != NULL)
            snprintf(meeting->run, sizeof meeting->run, "slurm-%.100s.%.100s", job, step != NULL ? step : "0");
        break;
    default: break;
    }
}

/* FNV-1a, so that jobs with similar names do not get adjacent ports. */
static int port_of(const char *run) {
    uint32_t hash = UINT32_C(0x811c9dc5);
    for (const char *c = run; *c != '\0'; c++) hash = (hash ^ (uint8_t)*c) * UINT32_C(0x01000193);
    return FIRST_PORT + (int)(hash % NPORTS);
}

static tutti_status read_port(tutti_meeting *meeting) {
    const char *text = tutti_launcher_variable("MASTER_PORT");
    char *end = NULL;
    meeting->port = (int)tutti_setting_int(TUTTI_SETTING_STORE_PORT);
    if (text == NULL) return TUTTI_OK;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 1 || number > 65535)
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "launcher variables: MASTER_PORT=%.40s is not a port from 1 to 65535 (MASTER_ADDR: %.80s); set it to "
            "the port of the store at which the ranks meet",
            text, shown("MASTER_ADDR"));
    meeting->port = (int)number;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- host */

static tutti_status fail_no_host(const tutti_world *world, const char *reason) {
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "launcher variables: a world of %d needs MASTER_ADDR and MASTER_PORT (1 to 65535), the address of its store "
        "(MASTER_ADDR: %.80s, MASTER_PORT: %.40s)%s; start with tuttirun or torchrun, or set both variables",
        world->size, shown("MASTER_ADDR"), shown("MASTER_PORT"), reason);
}

static tutti_status find_slurm_host(const tutti_world *world, tutti_meeting *meeting) {
    const char *list = tutti_launcher_variable("SLURM_STEP_NODELIST");
    if (list == NULL) list = tutti_launcher_variable("SLURM_JOB_NODELIST");
    if (list == NULL) return fail_no_host(world, "; SLURM_STEP_NODELIST is not set either");
    if (tutti_hostlist_get(list, 0, meeting->host, sizeof meeting->host)) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "SLURM_STEP_NODELIST=%.200s cannot be read as a list of hosts; set MASTER_ADDR",
                      list);
}

/* Returns true when the launcher's server on this host is to be used. All ranks must get the same result. */
static bool can_exchange(tutti_launcher launcher) {
    switch (launcher) {
    case TUTTI_LAUNCHER_OPEN_MPI:
    case TUTTI_LAUNCHER_SLURM:
    case TUTTI_LAUNCHER_PMIX:
        if (!tutti_pmix_present()) return launcher == TUTTI_LAUNCHER_SLURM && tutti_pmi_present();
        if (tutti_pmix_check() == TUTTI_OK) return true;
        tutti_log(TUTTI_LOG_INFO, "PMIx is not used for the store's address: %s", tutti_last_error());
        return false;
    case TUTTI_LAUNCHER_MVAPICH:
    case TUTTI_LAUNCHER_MPICH: return tutti_pmi_present();
    default: return false;
    }
}

static tutti_status find_host(const tutti_world *world, tutti_launcher launcher, tutti_meeting *meeting) {
    if (launcher == TUTTI_LAUNCHER_NONE || launcher == TUTTI_LAUNCHER_TORCHRUN) return fail_no_host(world, "");
    if (launcher == TUTTI_LAUNCHER_RANK_TABLE)
        return tutti_rank_table_meeting(meeting->host, sizeof meeting->host, meeting->run, sizeof meeting->run);
    meeting->exchange = can_exchange(launcher);
    if (meeting->exchange) return TUTTI_OK;
    if (world->nodes == 1) {
        snprintf(meeting->host, sizeof meeting->host, "127.0.0.1");
        return TUTTI_OK;
    }
    if (launcher == TUTTI_LAUNCHER_SLURM) return find_slurm_host(world, meeting);
    return fail_no_host(world, launcher == TUTTI_LAUNCHER_OPEN_MPI
                                   ? "; Tutti's module pmix would get them from mpirun (see TUTTI_LOG=info)"
                                   : "; mpiexec has not set a usable PMI_FD either");
}

tutti_status tutti_meeting_find(const tutti_world *world, tutti_meeting *meeting_out) {
    tutti_meeting meeting = {0};
    tutti_launcher launcher;
    tutti_world again; /* the caller may have built its own */
    const char *host = tutti_launcher_variable("MASTER_ADDR"), *run = tutti_launcher_variable("TORCHELASTIC_RUN_ID");
    const char *agent = tutti_launcher_variable("TORCHELASTIC_USE_AGENT_STORE");
    TUTTI_TRY(tutti_world_read(&again, &launcher));
    TUTTI_TRY(read_port(&meeting));
    name_run(launcher, &meeting);
    if (host != NULL) snprintf(meeting.host, sizeof meeting.host, "%s", host);
    else TUTTI_TRY(find_host(world, launcher, &meeting));
    if (meeting.port == 0 && meeting.run[0] != '\0' && !meeting.exchange) meeting.port = port_of(meeting.run);
    if (meeting.port == 0 && !meeting.exchange) return fail_no_host(world, "");
    if (run != NULL || meeting.run[0] == '\0')
        snprintf(meeting.run, sizeof meeting.run, "%.256s", run != NULL ? run : "none");
    meeting.agent = agent != NULL && (strcasecmp(agent, "true") == 0 || strcmp(agent, "1") == 0);
    *meeting_out = meeting;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- exchange */

const char *tutti_meeting_own_address(const tutti_world *world, char text[TUTTI_ADDRESS_TEXT_BYTES]) {
    tutti_interface own[MOST_ADDRESSES];
    int count = 0, given = 0;
    if (world->local_size == world->size) return "127.0.0.1";
    if (tutti_interfaces_list(own, MOST_ADDRESSES, &count) != TUTTI_OK) return NULL;
    for (int i = 0; i < count; i++) {
        if (own[i].scope != 0) continue;
        tutti_address_text(own[i].address, 0, text);
        given++;
    }
    return given == 1 ? text : NULL;
}

/* Writes "10.0.0.1,fd00::1/12345": rank 0's addresses and port. PMI does not allow spaces and '='. */
static tutti_status describe_self(const tutti_world *world, int port, char text[TUTTI_PMIX_TEXT_BYTES]) {
    tutti_interface own[MOST_ADDRESSES];
    int count = 0;
    size_t used = 0;
    if (world->local_size < world->size) TUTTI_TRY(tutti_interfaces_list(own, MOST_ADDRESSES, &count));
    for (int i = 0; i < count; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES];
        if (own[i].scope != 0) continue; /* link-local: means another address on other hosts */
        tutti_address_text(own[i].address, 0, address);
        used += (size_t)snprintf(text + used, TUTTI_PMIX_TEXT_BYTES - used, "%s%s", used > 0 ? "," : "", address);
    }
    snprintf(text + used, TUTTI_PMIX_TEXT_BYTES - used, "%s/%d", used == 0 ? "127.0.0.1" : "", port);
    return TUTTI_OK;
}

tutti_status tutti_meeting_exchange(const tutti_world *world, int port, tutti_meeting *meeting) {
    char mine[TUTTI_PMIX_TEXT_BYTES] = "", text[TUTTI_PMIX_TEXT_BYTES] = "";
    const char *given = world->rank == 0 ? mine : NULL;
    if (given != NULL) TUTTI_TRY(describe_self(world, port, mine));
    TUTTI_TRY(tutti_pmix_present() ? tutti_pmix_exchange(given, text) : tutti_pmi_exchange(given, text));
    char *slash = strchr(text, '/');
    int number = slash != NULL ? atoi(slash + 1) : 0;
    if (slash == NULL || slash == text || (size_t)(slash - text) >= sizeof meeting->host || number < 1 ||
        number > 65535)
        return tutti_fail(TUTTI_ERR_DATA,
                          "the launcher's server returned '%.100s', which is not an address of rank 0's store", text);
    snprintf(meeting->host, sizeof meeting->host, "%.*s", (int)(slash - text), text);
    meeting->port = number;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- listening */

const char *tutti_meeting_listen_address(const char *host) {
    enum { MOST_OWN = 64 };
    tutti_interface own[MOST_OWN];
    uint8_t address[16];
    int count = 0;
    if (strcmp(host, "localhost") == 0) return "127.0.0.1";
    if (!tutti_address_read(host, address)) return NULL; /* names may resolve to another address elsewhere */
    if (tutti_address_is_loopback(address)) return host;
    if (tutti_interfaces_all(own, MOST_OWN, &count) != TUTTI_OK) return NULL;
    for (int i = 0; i < count; i++)
        if (memcmp(own[i].address, address, sizeof address) == 0) return host;
    return NULL; /* not an address of this host: it is translated on the path */
}
