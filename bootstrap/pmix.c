/*
 * PMIx, by way of its module.
 */
#include "bootstrap/pmix.h"

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/launcher.h"

bool tutti_pmix_present(void) {
    return tutti_launcher_variable("PMIX_RANK") != NULL && tutti_launcher_variable("PMIX_NAMESPACE") != NULL;
}

static tutti_status open_module(const tutti_pmix_module **module_out) {
    static const char left_out[] = TUTTI_PMIX_LEFT_OUT;
    const tutti_module_calls *calls;
    if (left_out[0] != '\0')
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the module pmix is not in this build: %s", left_out);
    TUTTI_TRY(tutti_module_open("pmix", &calls));
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
                      "PMIx says rank %d of %d, on its host %d of %d; set RANK, WORLD_SIZE, LOCAL_RANK and "
                      "LOCAL_WORLD_SIZE",
                      world->rank, world->size, world->local_rank, world->local_size);
}

tutti_status tutti_pmix_world(tutti_world *world_out) {
    const tutti_pmix_module *module = NULL;
    tutti_world world = {0};
    if (open_module(&module) != TUTTI_OK)
        return tutti_fail_context(
            TUTTI_ERR_UNSUPPORTED,
            "this process was started by a launcher that speaks PMIx, which needs the module pmix");
    TUTTI_TRY(module->read_world(&world));
    TUTTI_TRY(check_world(&world));
    if (world.nodes < 1) world.nodes = (world.size + world.local_size - 1) / world.local_size;
    if (world.node < 0 || world.node >= world.nodes) world.node = world.rank * world.nodes / world.size;
    *world_out = world;
    return TUTTI_OK;
}

tutti_status tutti_pmix_exchange(const char *mine, char text_out[TUTTI_PMIX_TEXT_BYTES]) {
    const tutti_pmix_module *module = NULL;
    int64_t timeout_s = (tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS) + 999) / 1000;
    TUTTI_TRY(open_module(&module));
    return module->exchange(mine, (int)tutti_min_i64(timeout_s, INT32_MAX), text_out);
}
