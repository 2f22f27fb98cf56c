/*
 * Numbers of namespaces. See namespace.h.
 */
#include "comm/base/namespace.h"

#include <sys/stat.h>

static uint64_t number_of(const char *path) {
    struct stat namespace;
    return stat(path, &namespace) == 0 ? (uint64_t)namespace.st_ino : 0;
}

uint64_t tutti_namespace_pid(void) {
    return number_of("/proc/self/ns/pid");
}

uint64_t tutti_namespace_net(void) {
    return number_of("/proc/self/ns/net");
}
