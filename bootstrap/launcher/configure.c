/*
 * Starting the ranks of a program from inside it, as OneFlow's programs do with gpu_device_num, ctrl_port and machine:
 * the process becomes tuttirun, which starts the program again as each rank of this node. A rank only compares what the
 * program says with what its launcher says.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/launcher/launcher.h"

enum { MOST_PORT = 65535 };

static const char function[] = "tutti_world_configure";

static tutti_status check_config(const tutti_world_config *config, int argc, char **argv) {
    if (argc < 1 || argv == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: argc is %d%s; pass those of main", function, argc,
                          argv == NULL ? " and argv is NULL" : "");
    if (config->nnodes < 0 || (config->nnodes > 0) != (config->nodes != NULL))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "%s: nnodes is %d and nodes is %s; expected both, or neither for this machine", function,
                          config->nnodes, config->nodes != NULL ? "a list" : "NULL");
    for (int i = 0; i < config->nnodes; i++)
        if (config->nodes[i] == NULL || config->nodes[i][0] == '\0' || strchr(config->nodes[i], ',') != NULL)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: nodes[%d] is \"%s\"; expected the name or address of one node",
                              function, i, config->nodes[i] != NULL ? config->nodes[i] : "NULL");
    if (config->device_num < 0 || config->device_num > TUTTI_MOST_RANKS)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "%s: device_num is %d; expected the number of ranks on each node, or 0 for 1", function,
                          config->device_num);
    if (config->ctrl_port < 0 || config->ctrl_port > MOST_PORT)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: ctrl_port is %d; expected a port from 1 to %d, or 0 for the default",
                          function, config->ctrl_port, MOST_PORT);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- in a rank */

static tutti_status compare(const char *member, int given, int launched, const char *of_what) {
    if (given == launched || launched < 0) return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "%s: %s is %d, but the launcher has started this rank as one of %d %s; start the program without a "
        "launcher, or give both the same number",
        function, member, given, launched, of_what);
}

static tutti_status compare_all(const tutti_world_config *config, const tutti_world *world) {
    const char *port = tutti_launcher_variable("MASTER_PORT");
    const int device_num = config->device_num > 0 ? config->device_num : 1;
    TUTTI_TRY(compare("device_num", device_num, world->local_size, "on its node"));
    TUTTI_TRY(compare("nnodes", config->nnodes > 0 ? config->nnodes : 1, world->nodes, "nodes"));
    if (config->ctrl_port == 0 || port == NULL || atoi(port) == config->ctrl_port) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "%s: ctrl_port is %d, but the launcher has set MASTER_PORT=%.40s; start the program without a "
                      "launcher, or give both the same port",
                      function, config->ctrl_port, port);
}

/* ------------------------------------------------------------------------------------- becoming tuttirun */

/* Whether <folder><behind> can be run; writes its path. `file` is a file in the folder. */
static bool find_beside(const char *file, const char *behind, char *path, size_t capacity) {
    const char *slash = strrchr(file, '/');
    if (slash == NULL) return false;
    const int bytes = snprintf(path, capacity, "%.*s%s", (int)(slash - file), file, behind);
    return bytes > 0 && (size_t)bytes < capacity && access(path, X_OK) == 0;
}

/* Beside the program, in the folder of programs of this library, beside this library; else as PATH has it. */
static void find_tuttirun(const char *self, char *path, size_t capacity) {
    Dl_info here;
    if (find_beside(self, "/tuttirun", path, capacity)) return;
    const bool known = dladdr((const void *)&function, &here) != 0 && here.dli_fname != NULL;
    if (known && find_beside(here.dli_fname, "/../bin/tuttirun", path, capacity)) return;
    if (known && find_beside(here.dli_fname, "/tuttirun", path, capacity)) return;
    snprintf(path, capacity, "tuttirun");
}

static tutti_status join_nodes(const tutti_world_config *config, char **list_out) {
    size_t bytes = 1, used = 0;
    char *list;
    for (int i = 0; i < config->nnodes; i++) bytes += strlen(config->nodes[i]) + 1;
    TUTTI_TRY(tutti_calloc(bytes, 1, &list));
    for (int i = 0; i < config->nnodes; i++)
        used += (size_t)snprintf(list + used, bytes - used, "%s%s", i > 0 ? "," : "", config->nodes[i]);
    *list_out = list;
    return TUTTI_OK;
}

/* Returns only if it failed. */
static tutti_status become_tuttirun(const tutti_world_config *config, int argc, char **argv) {
    static char self[PATH_MAX], launcher[PATH_MAX + 32], port[16], count[16];
    static char nodes[] = "--nodes", ctrl_port[] = "--ctrl-port", device_num[] = "--device-num",
                standalone[] = "--standalone", no_python[] = "--no-python", end[] = "--";
    char **all, *list = NULL;
    int used = 0;
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
        return tutti_fail_errno(errno, "%s: cannot find the program's own file", function);
    find_tuttirun(self, launcher, sizeof launcher);
    if (config->nnodes > 0) TUTTI_TRY(join_nodes(config, &list));
    const tutti_status status = tutti_calloc((size_t)argc + 16, sizeof *all, &all);
    if (status != TUTTI_OK) {
        free(list);
        return status;
    }
    all[used++] = launcher;
    if (list != NULL) {
        all[used++] = nodes;
        all[used++] = list;
    } else if (config->ctrl_port == 0) {
        all[used++] = standalone;
    }
    if (config->ctrl_port > 0) {
        snprintf(port, sizeof port, "%d", config->ctrl_port);
        all[used++] = ctrl_port;
        all[used++] = port;
    }
    snprintf(count, sizeof count, "%d", config->device_num > 0 ? config->device_num : 1);
    all[used++] = device_num;
    all[used++] = count;
    all[used++] = no_python;
    all[used++] = end;
    all[used++] = self;
    for (int i = 1; i < argc; i++) all[used++] = argv[i];
    fflush(NULL); /* what the program has printed would be lost */
    execvp(launcher, all);
    const int error = errno;
    free(all);
    free(list);
    return tutti_fail(
        TUTTI_ERR_SYSTEM,
        "%s: cannot run %s, which starts the ranks: %s; install tuttirun beside the program, or into a folder "
        "of PATH",
        function, launcher, strerror(error));
}

tutti_status tutti_world_configure(const tutti_world_config *config, int argc, char **argv) {
    tutti_world_config taken;
    tutti_world world;
    if (config == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: config is NULL", function);
    TUTTI_TRY(tutti_struct_take(function, "TUTTI_WORLD_CONFIG(...)", config, &taken, sizeof taken));
    TUTTI_TRY(check_config(&taken, argc, argv));
    TUTTI_TRY(tutti_world_get(&world));
    if (world.size > 1 || tutti_launcher_variable("RANK") != NULL) return compare_all(&taken, &world);
    if (taken.nnodes == 0 && taken.device_num <= 1) return TUTTI_OK; /* one rank: this process */
    return become_tuttirun(&taken, argc, argv);
}
