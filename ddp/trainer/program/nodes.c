/*
 * tutti-train --nodes LIST --device_num N: the same command on every node, as OneFlow's programs are started. The
 * program executes tuttirun, which finds this node in the list and starts its ranks (tools/tuttirun/launch_list.c);
 * this file only separates the options for tuttirun from the program's own. In a process that a launcher has
 * started as a rank these options start nothing: they must agree with the launcher's settings.
 */
#include "ddp/trainer/program/nodes.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/tutti.h>

#define EXIT_FAILED 1

/* The name of the option as in `names`, or NULL. '-' and '_' are equal. */
static const char *name_of(const char *argument) {
    static const char *const names[] = {"nodes", "ctrl-port", "device-num", "gpu-device-num", "node-rank"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && strncmp(argument, "--", 2) == 0; i++) {
        const char *next = argument + 2, *name = names[i];
        while (*name != '\0' && (*next == *name || (*next == '_' && *name == '-'))) next++, name++;
        if (*name == '\0' && (*next == '\0' || *next == '=')) return names[i];
    }
    return NULL;
}

/* Returns the option's value, and moves i to its last argument; NULL: the value is missing. All these options have
 * a value. */
static const char *value_of(int argc, char **argv, int *i) {
    const char *equals = strchr(argv[*i], '=');
    if (equals != NULL) return equals + 1;
    return *i + 1 < argc ? argv[++*i] : NULL;
}

bool tutti_nodes_given(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (name_of(argv[i]) != NULL) return true;
    return false;
}

int tutti_nodes_start(int argc, char **argv) {
    static char self[PATH_MAX], launcher[PATH_MAX + 16], standalone[] = "--standalone", no_python[] = "--no-python",
                                                         end[] = "--";
    char **all = calloc((size_t)argc + 7, sizeof *all);
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (all == NULL || bytes <= 0) {
        fprintf(stderr, "tutti-train: cannot start itself again: %s\n", strerror(errno));
        free(all);
        return EXIT_FAILED;
    }
    snprintf(launcher, sizeof launcher, "%.*s/tuttirun", (int)(strrchr(self, '/') - self), self);
    int used = 0;
    bool placed = false; /* nodes or a port are given; false: any free port of this machine */
    all[used++] = launcher;
    for (int i = 1; i < argc; i++) {
        const char *name = name_of(argv[i]);
        if (name == NULL) continue;
        placed |= strstr(name, "device-num") == NULL;
        const int first = i;
        if (value_of(argc, argv, &i) == NULL) {
            fprintf(stderr, "tutti-train: --%s needs a value; --help lists the options\n", name);
            free(all);
            return EXIT_FAILED;
        }
        for (int k = first; k <= i; k++) all[used++] = argv[k];
    }
    if (!placed) all[used++] = standalone;
    all[used++] = no_python;
    all[used++] = end;
    all[used++] = self;
    for (int i = 1; i < argc; i++) {
        if (name_of(argv[i]) == NULL) all[used++] = argv[i];
        else (void)value_of(argc, argv, &i);
    }
    execv(launcher, all);
    fprintf(stderr, "tutti-train: --nodes and --device_num need tuttirun beside it: %s: %s\n", launcher,
            strerror(errno));
    free(all);
    return EXIT_FAILED;
}

/* ------------------------------------------------------------------------------------- as a rank already */

bool tutti_nodes_is_rank(void) {
    tutti_world world;
    const char *rank = getenv("RANK");
    if (rank != NULL && *rank != '\0') return true;
    return tutti_world_get(&world) != TUTTI_OK || world.size > 1;
}

bool tutti_nodes_leave_out(int *argc, char **argv) {
    tutti_world world;
    int kept = 1;
    if (tutti_world_get(&world) != TUTTI_OK) world.local_size = -1; /* the program reports it */
    for (int i = 1; i < *argc; i++) {
        const char *name = name_of(argv[i]), *argument = argv[i];
        if (name == NULL) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *value = value_of(*argc, argv, &i);
        char *after = NULL;
        const long number = value != NULL ? strtol(value, &after, 10) : 0;
        const bool counts = strstr(name, "device-num") != NULL && after != value && *after == '\0';
        if (value != NULL && (!counts || world.local_size < 0 || number == world.local_size)) continue;
        if (value == NULL) fprintf(stderr, "tutti-train: %s needs a value; --help lists the options\n", argument);
        else if (world.local_rank == 0)
            fprintf(stderr,
                    "tutti-train: --%s %s, but the launcher has started %d rank%s on this machine; leave out the "
                    "option, or start tutti-train without a launcher\n",
                    name, value, world.local_size, world.local_size == 1 ? "" : "s");
        return false;
    }
    argv[kept] = NULL;
    *argc = kept;
    return true;
}
