/*
 * tutti-train --nodes LIST: the same command on every node, as OneFlow's programs are started. The program starts itself
 * again under tuttirun, which finds this node in the list and starts its ranks (tools/tuttirun/launch_list.c); this
 * file only separates the options for tuttirun from the program's own.
 */
#include "ddp/trainer/program/nodes.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_FAILED 1

/* Whether the argument is one of tuttirun's that come with --nodes; all of them have a value. '-' and '_' are alike. */
static bool is_launchers(const char *argument) {
    static const char *const names[] = {"nodes", "ctrl-port", "device-num", "node-rank"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && strncmp(argument, "--", 2) == 0; i++) {
        const char *next = argument + 2, *name = names[i];
        while (*name != '\0' && (*next == *name || (*next == '_' && *name == '-'))) next++, name++;
        if (*name == '\0' && (*next == '\0' || *next == '=')) return true;
    }
    return false;
}

bool tutti_nodes_given(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (is_launchers(argv[i]) && strncmp(argv[i], "--nodes", 7) == 0) return true;
    return false;
}

int tutti_nodes_start(int argc, char **argv) {
    static char self[PATH_MAX], launcher[PATH_MAX + 16], no_python[] = "--no-python", end[] = "--";
    char **all = calloc((size_t)argc + 6, sizeof *all);
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (all == NULL || bytes <= 0) {
        fprintf(stderr, "tutti-train: cannot start itself again: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    snprintf(launcher, sizeof launcher, "%.*s/tuttirun", (int)(strrchr(self, '/') - self), self);
    int used = 0;
    all[used++] = launcher;
    for (int i = 1; i < argc; i++) {
        if (!is_launchers(argv[i])) continue;
        all[used++] = argv[i];
        if (strchr(argv[i], '=') == NULL && i + 1 < argc) all[used++] = argv[++i];
    }
    all[used++] = no_python;
    all[used++] = end;
    all[used++] = self;
    for (int i = 1; i < argc; i++) {
        if (!is_launchers(argv[i])) all[used++] = argv[i];
        else if (strchr(argv[i], '=') == NULL) i++;
    }
    execv(launcher, all);
    fprintf(stderr, "tutti-train: --nodes needs tuttirun beside it: %s: %s\n", launcher, strerror(errno));
    free(all);
    return EXIT_FAILED;
}
