/*
 * The calls of libtutti that the module may use, the context that all pipes of the process share, and what UCX found
 * here. UCX's own variables (UCX_TLS, UCX_NET_DEVICES, UCX_LOG_LEVEL, ...) set what it does and prints.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/net/transport/ucx/ucx_state.h"

const tutti_module_host *tutti_ucx_common_host;
const tutti_ucx_host *tutti_ucx_own_host;

static struct {
    pthread_mutex_t lock;
    ucp_context_h context; /* lives as long as the process: longer than any pipe */
    pid_t process;         /* the process that created it */
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static tutti_status make_context(ucp_context_h *context_out) {
    ucp_config_t *config;
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    if (UCP_VERSION(major, minor) < UCP_API_VERSION)
        return tutti_ucx_common_host->fail(TUTTI_ERR_UNSUPPORTED, "built with UCX %u.%u, found the older UCX %u.%u",
                                           UCP_API_MAJOR, UCP_API_MINOR, major, minor);
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return tutti_ucx_common_host->fail(TUTTI_ERR_UNSUPPORTED, "UCX cannot read its settings (UCX_*): %s",
                                           ucs_status_string(status));
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1, /* pipes of different threads */
        .name = "tutti",
    };
    status = ucp_init(&params, config, context_out);
    ucp_config_release(config);
    if (status == UCS_OK) return TUTTI_OK;
    return tutti_ucx_common_host->fail(TUTTI_ERR_UNSUPPORTED,
                                       "UCX cannot start: %s; see UCX_TLS and UCX_NET_DEVICES, if they are set",
                                       ucs_status_string(status));
}

tutti_status tutti_ucx_context(ucp_context_h *context_out) {
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&shared.lock);
    if (shared.context == NULL) {
        status = make_context(&shared.context);
        shared.process = getpid();
    } else if (shared.process != getpid()) {
        status = tutti_ucx_common_host->fail(TUTTI_ERR_UNSUPPORTED,
                                             "this process was forked from one that already used UCX, which UCX does "
                                             "not support");
    }
    *context_out = shared.context;
    pthread_mutex_unlock(&shared.lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------- the survey */

/* Reads the lines "#  resource 1 : md 1 dev 1 flags -- tcp/lo": UCX has no other call that lists transports. */
static void read_ways(char *text, tutti_ucx_survey *survey) {
    size_t used = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *way = strrchr(line, ' ');
        if (strstr(line, " resource ") == NULL || way == NULL || strchr(way, '/') == NULL) continue;
        way++;
        if (used < sizeof survey->ways)
            used +=
                (size_t)snprintf(survey->ways + used, sizeof survey->ways - used, "%s%s", used > 0 ? ", " : "", way);
    }
}

tutti_status tutti_ucx_find(tutti_ucx_survey *survey_out) {
    ucp_context_h context;
    tutti_ucx_survey survey = {0};
    char *text = NULL;
    size_t bytes = 0;
    TUTTI_TRY(make_context(&context));
    FILE *stream = open_memstream(&text, &bytes);
    if (stream != NULL) {
        ucp_context_print_info(context, stream);
        fclose(stream);
        read_ways(text, &survey);
        free(text);
    }
    ucp_cleanup(context);
    snprintf(survey.version, sizeof survey.version, "%s", ucp_get_version_string());
    survey.version[strcspn(survey.version, " ")] = '\0';
    *survey_out = survey;
    return TUTTI_OK;
}
