/*
 * Numbers of namespaces. See namespace.h.
 */
#include "comm/base/namespace.h"

#include <sys/stat.h>

static uint64_t number_of(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

uint64_t tutti_namespace_pid(void) {
    return number_of("/proc/self/ns/pid");
}

uint64_t tutti_namespace_net(void) {
    return number_of("/proc/self/ns/net");
}
