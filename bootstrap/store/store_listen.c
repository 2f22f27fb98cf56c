/*
 * The store's listening socket, and the search in /proc for the process that holds a port.
 *
 * The socket is bound once and kept until the server ends, so that no other process can take the port in between.
 * Ports can be reused at once after an earlier server's end (SO_REUSEADDR), but are never shared.
 */
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/machine/async_call.h"
#include "bootstrap/store/store.h"

enum { BACKLOG = 4096, NAME_MS = 5000 };

/* A socket that listens on a port. */
typedef struct listener {
    unsigned long inode;
    uid_t user;
} listener;

/* Finds the first socket on the port that `is_wanted` accepts; returns false when there is none. */
static bool find_listener(const char *table_path, int port, bool (*is_wanted)(const listener *), listener *found_out) {
    FILE *table = fopen(table_path, "re");
    if (table == NULL) return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, table) != NULL) {
        unsigned local_port, state, user;
        unsigned long inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %u %*s %lu", &local_port, &state,
                   &user, &inode) != 4 ||
            state != 0x0A || local_port != (unsigned)port)
            continue;
        *found_out = (listener){.inode = inode, .user = user};
        found = is_wanted(found_out);
    }
    fclose(table);
    return found;
}

static bool find_listener_at(int port, bool (*is_wanted)(const listener *), listener *found_out) {
    return find_listener("/proc/net/tcp", port, is_wanted, found_out) ||
           find_listener("/proc/net/tcp6", port, is_wanted, found_out);
}

static bool is_any(const listener *found) {
    return found->inode != 0;
}

static bool is_of_another_user(const listener *found) {
    return found->user != geteuid() && found->user != 0;
}

static bool process_holds(const char *pid, unsigned long inode) {
    char path[300], wanted[64], target[64];
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL) return false; /* the process has ended, or may not be inspected */
    bool holds = false;
    for (struct dirent *item; !holds && (item = readdir(folder)) != NULL;) {
        ssize_t bytes = readlinkat(dirfd(folder), item->d_name, target, sizeof target - 1);
        if (bytes <= 0) continue;
        target[bytes] = '\0';
        holds = strcmp(target, wanted) == 0;
    }
    closedir(folder);
    return holds;
}

/* Writes "pid 123 (name)" of the process that listens on the port, or "" when the system does not report it. */
static void describe_holder(int port, char *text, size_t capacity) {
    text[0] = '\0';
    listener found;
    DIR *processes = find_listener_at(port, is_any, &found) ? opendir("/proc") : NULL;
    if (processes == NULL) return;
    for (struct dirent *item; (item = readdir(processes)) != NULL;) {
        if (item->d_name[0] < '0' || item->d_name[0] > '9' || !process_holds(item->d_name, found.inode)) continue;
        char path[300], name[64] = "?";
        snprintf(path, sizeof path, "/proc/%s/comm", item->d_name);
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            if (fgets(name, sizeof name, file) != NULL) name[strcspn(name, "\n")] = '\0';
            fclose(file);
        }
        snprintf(text, capacity, "pid %.20s (%s)", item->d_name, name);
        break;
    }
    closedir(processes);
}

static tutti_status fail_bind(int error, int port) {
    if (error != EADDRINUSE) return tutti_fail_errno(error, "cannot listen on port %d", port);
    char holder[128];
    describe_holder(port, holder, sizeof holder);
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "port %d is in use%s%s; end that job or choose another port (--master_port, MASTER_PORT)", port,
                      holder[0] != '\0' ? " by " : "", holder);
}

tutti_status tutti_store_check_holder(int port) {
    listener found;
    if (tutti_setting_int(TUTTI_SETTING_OTHER_USERS) != 0 || !find_listener_at(port, is_of_another_user, &found))
        return TUTTI_OK;
    return tutti_fail(
        TUTTI_ERR_CONFIG,
        "port %d, where this job's store should be, is in use by a process of user %u; choose another port "
        "(--master_port, MASTER_PORT), or set TUTTI_OTHER_USERS=1 if that process hosts the store",
        port, (unsigned)found.user);
}

/* Returns a listening socket bound to one address, or -1 and the error number. */
static int listen_at(const struct sockaddr *address, socklen_t bytes, int *error_out) {
    int on = 1, off = 0;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(fd, address, bytes) == 0 && listen(fd, BACKLOG) == 0) return fd;
    }
    *error_out = errno;
    if (fd >= 0) close(fd);
    return -1;
}

/* Listens with one socket for both address families if the machine has IPv6. */
static tutti_status listen_everywhere(int port, int *listen_fd_out) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int error = 0;
    int fd = listen_at((struct sockaddr *)&six, sizeof six, &error);
    if (fd < 0 && error != EADDRINUSE) fd = listen_at((struct sockaddr *)&four, sizeof four, &error);
    if (fd < 0) return fail_bind(error, port);
    *listen_fd_out = fd;
    return TUTTI_OK;
}

tutti_status tutti_store_listen(const char *address, int port, int *listen_fd_out) {
    if (port < 0 || port > 65535) return tutti_fail(TUTTI_ERR_CONFIG, "port %d is not in 0 to 65535", port);
    if (address == NULL) return listen_everywhere(port, listen_fd_out);
    const struct addrinfo *found = NULL;
    tutti_lookup *lookup = NULL;
    TUTTI_TRY(tutti_lookup_start(address, port, &lookup));
    tutti_status status = tutti_lookup_look(lookup, NAME_MS, &found);
    int error = EADDRNOTAVAIL, fd = -1;
    for (const struct addrinfo *at = found; status == TUTTI_OK && fd < 0 && at != NULL; at = at->ai_next)
        fd = listen_at(at->ai_addr, at->ai_addrlen, &error);
    tutti_lookup_end(lookup);
    if (status == TUTTI_NOT_YET)
        status = tutti_fail(TUTTI_ERR_CONFIG, "no name server has answered within %d ms", NAME_MS);
    if (status != TUTTI_OK) return tutti_fail_context(status, "cannot listen at '%s'", address);
    if (fd < 0) return fail_bind(error, port);
    *listen_fd_out = fd;
    return TUTTI_OK;
}
