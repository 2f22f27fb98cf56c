/*
 * The table of the module libtutti_ucx.so.
 */
#include "comm/net/transport/ucx/ucx_state.h"

static void attach(const tutti_ucx_host *host) {
    tutti_ucx_own_host = host;
}

static const tutti_transport pipes = {
    .name = "ucx",
    .open = tutti_ucx_open,
    .send = tutti_ucx_send,
    .recv = tutti_ucx_recv,
    .progress = tutti_ucx_progress,
    .sleep_on = tutti_ucx_sleep_on,
    .cancel = tutti_ucx_cancel,
    .close = tutti_ucx_close,
};

__attribute__((visibility("default"))) tutti_status tutti_module_start(const tutti_module_host *caller,
                                                                       const tutti_module_calls **calls_out);

tutti_status tutti_module_start(const tutti_module_host *caller, const tutti_module_calls **calls_out) {
    static const tutti_ucx_module module = {
        .head.version = TUTTI_MODULE_VERSION, .attach = attach, .survey = tutti_ucx_find, .pipes = &pipes};
    if (caller->version == TUTTI_MODULE_VERSION)
        tutti_ucx_common_host = caller; /* else the caller detects the difference, and makes no call */
    *calls_out = &module.head;
    return TUTTI_OK;
}
