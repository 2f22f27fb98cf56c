/*
 * PMIx, through its module.
 *
 * libpmix waits for the launcher's server without a bound in places (PMIx_Init does). Therefore a thread makes the
 * request, and the caller waits for it within a deadline (async_call.h). A thread that gets no answer stays behind.
 */
#include "bootstrap/launcher/pmix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/launcher.h"
#include "bootstrap/machine/async_call.h"

/* GRACE_MS: time after the deadline in which the server may report its own timeout. */
enum { LOOK_MS = 100, GRACE_MS = 2000 };

typedef struct question {
    tutti_async_call call; /* must be first */
    const tutti_pmix_module *module;
    bool of_world; /* otherwise the exchange */
    bool tells;    /* publishes rank 0's `text` */
    int timeout_s;
    /* The answer. */
    char text[TUTTI_PMIX_TEXT_BYTES];
    tutti_world world;
    tutti_status status;
    tutti_error error;
} question;

static void destroy(tutti_async_call *call) {
    free(call);
}

static void ask(tutti_async_call *call) {
    question *q = (question *)call;
    char text[TUTTI_PMIX_TEXT_BYTES] = "";
    q->status = q->of_world ? q->module->read_world(&q->world)
                            : q->module->exchange(q->tells ? q->text : NULL, q->timeout_s, text);
    if (q->status != TUTTI_OK) q->error = tutti_fail_save();
    else if (!q->of_world) memcpy(q->text, text, sizeof text);
}

/* All ranks of the job wait for the same; only ranks that are 0 or a power of two log it. */
static bool speaks(void) {
    const char *text = tutti_launcher_variable("PMIX_RANK");
    long rank = text != NULL ? strtol(text, NULL, 10) : 0;
    return (rank & (rank - 1)) == 0;
}

static tutti_status await(question *q) {
    int64_t connect_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    tutti_deadline deadline = tutti_deadline_after_ms(connect_ms + GRACE_MS);
    tutti_notice notice = {0};
    while (!tutti_async_call_wait(&q->call, LOOK_MS)) {
        TUTTI_TRY(tutti_interrupt_check());
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT,
                              "PMIx: no answer from the launcher's server on this host within %lld ms "
                              "(TUTTI_CONNECT_TIMEOUT_MS): it hangs, or ranks of the job have not arrived; set "
                              "MASTER_ADDR and MASTER_PORT to start without PMIx",
                              (long long)(connect_ms + GRACE_MS));
        if (tutti_notice_due(&notice, deadline.spent_ns) && speaks())
            tutti_log(TUTTI_LOG_WARN,
                      "the start has waited %lld s for the launcher's PMIx server, at which all ranks of the job meet; "
                      "waits until TUTTI_CONNECT_TIMEOUT_MS",
                      (long long)(deadline.spent_ns / TUTTI_NS_PER_S));
    }
    return q->status == TUTTI_OK ? TUTTI_OK : tutti_fail_again(q->status, &q->error);
}

/* Creates a question; the caller fills in what to ask, and releases its call. */
static tutti_status make_question(const tutti_pmix_module *module, question **q_out) {
    question *q;
    TUTTI_TRY(tutti_calloc(1, sizeof *q, &q));
    tutti_async_call_init(&q->call, ask, destroy);
    q->module = module;
    *q_out = q;
    return TUTTI_OK;
}

static tutti_status ask_and_await(question *q) {
    int error = tutti_async_call_start(&q->call);
    if (error != 0) return tutti_fail_errno(error, "cannot start a thread to ask the launcher's PMIx server");
    return await(q);
}

bool tutti_pmix_present(void) {
    return tutti_launcher_variable("PMIX_RANK") != NULL && tutti_launcher_variable("PMIX_NAMESPACE") != NULL;
}

static tutti_status open_module(const tutti_pmix_module **module_out) {
    const tutti_module_calls *calls;
    TUTTI_TRY(tutti_module_open("pmix", TUTTI_PMIX_LEFT_OUT, &calls));
    *module_out = (const tutti_pmix_module *)(const void *)calls;
    return TUTTI_OK;
}

tutti_status tutti_pmix_check(void) {
    const tutti_pmix_module *module = NULL;
    return open_module(&module);
}

static tutti_status check_world(const tutti_world *world) {
    bool fits = world->size > 0 && world->rank >= 0 && world->rank < world->size && world->local_size > 0 &&
                world->local_rank >= 0 && world->local_rank < world->local_size && world->local_size <= world->size;
    if (fits) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "PMIx reports rank %d of %d, on its host %d of %d; set RANK, WORLD_SIZE, LOCAL_RANK and "
                      "LOCAL_WORLD_SIZE",
                      world->rank, world->size, world->local_rank, world->local_size);
}

tutti_status tutti_pmix_world(tutti_world *world_out) {
    const tutti_pmix_module *module = NULL;
    tutti_world world = {0};
    if (open_module(&module) != TUTTI_OK)
        return tutti_fail_context(TUTTI_ERR_UNSUPPORTED,
                                  "this process was started by a launcher that uses PMIx, which needs the module pmix");
    question *q;
    TUTTI_TRY(make_question(module, &q));
    q->of_world = true;
    tutti_status status = ask_and_await(q);
    if (status == TUTTI_OK) world = q->world;
    tutti_async_call_release(&q->call);
    TUTTI_TRY(status);
    TUTTI_TRY(check_world(&world));
    if (world.nodes < 1) world.nodes = (world.size + world.local_size - 1) / world.local_size;
    if (world.node < 0 || world.node >= world.nodes) world.node = world.rank * world.nodes / world.size;
    *world_out = world;
    return TUTTI_OK;
}

tutti_status tutti_pmix_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]) {
    const tutti_pmix_module *module = NULL;
    int64_t timeout_s = (tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS) + 999) / 1000;
    question *q;
    TUTTI_TRY(open_module(&module));
    TUTTI_TRY(make_question(module, &q));
    q->timeout_s = (int)tutti_min_i64(timeout_s, INT32_MAX);
    q->tells = mine != NULL;
    if (mine != NULL) snprintf(q->text, sizeof q->text, "%s", mine);
    tutti_status status = ask_and_await(q);
    if (status == TUTTI_OK) snprintf(text_out, TUTTI_PMIX_TEXT_BYTES, "%s", q->text);
    tutti_async_call_release(&q->call);
    return status;
}
