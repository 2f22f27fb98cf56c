/*
 * The relay: see netns_relay.h. One thread; frames wait in one queue, since all are delayed equally. A frame goes to
 * the host that has sent from its destination's address, or to all others. A full queue drops frames, as switches do.
 */
#include "tests/support/hosts/netns_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/hosts/netns.h"

#define FRAME_BYTES   1536
#define ADDRESS_BYTES 6
#define FRAMES        16384

typedef struct frame {
    int64_t due_ns;
    int from;
    size_t bytes;
    unsigned char data[FRAME_BYTES]; /* destination, source, ... */
} frame;

typedef struct relay {
    int nhosts, taps[NETNS_HOSTS_MAX];
    unsigned char addresses[NETNS_HOSTS_MAX][ADDRESS_BYTES]; /* addresses that hosts have sent from */
    int64_t delay_ns;
    size_t first, end; /* positions in the queue; they only grow */
    frame *queue;      /* FRAMES, a ring */
} relay;

static int open_tap(int namespace_fd) {
    struct ifreq request = {.ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI};
    if (setns(namespace_fd, CLONE_NEWNET) != 0) return -1;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0) return fd;
    return -1;
}

/* Reads all frames that a host has sent. */
static void take(relay *r, int host) {
    for (;;) {
        frame lost, *next = r->end - r->first < FRAMES ? &r->queue[r->end % FRAMES] : &lost;
        ssize_t got = read(r->taps[host], next->data, FRAME_BYTES);
        if (got < 2 * ADDRESS_BYTES) return;
        memcpy(r->addresses[host], next->data + ADDRESS_BYTES, ADDRESS_BYTES);
        next->from = host;
        next->bytes = (size_t)got;
        next->due_ns = tutti_now_ns() + r->delay_ns;
        if (next != &lost) r->end++;
    }
}

static void give(const relay *r, const frame *next) {
    int known = -1;
    for (int host = 0; host < r->nhosts; host++)
        if (memcmp(r->addresses[host], next->data, ADDRESS_BYTES) == 0) known = host;
    for (int host = 0; host < r->nhosts; host++) {
        if (host == next->from || (known >= 0 && host != known)) continue;
        ssize_t written = write(r->taps[host], next->data, next->bytes);
        (void)written; /* an interface that is down accepts no frames */
    }
}

static _Noreturn void run(relay *r) {
    struct pollfd waits[NETNS_HOSTS_MAX];
    for (int host = 0; host < r->nhosts; host++) waits[host] = (struct pollfd){.fd = r->taps[host], .events = POLLIN};
    for (;;) {
        struct timespec pause = {.tv_sec = 1};
        int64_t now_ns = tutti_now_ns();
        while (r->first < r->end && r->queue[r->first % FRAMES].due_ns <= now_ns)
            give(r, &r->queue[r->first++ % FRAMES]);
        if (r->first < r->end) pause = (struct timespec){.tv_nsec = r->queue[r->first % FRAMES].due_ns - now_ns};
        ppoll(waits, (nfds_t)r->nhosts, &pause, NULL);
        for (int host = 0; host < r->nhosts; host++) take(r, host);
    }
}

static _Noreturn void be_relay(const int *namespace_fds, int nhosts, int delay_ms, int ready) {
    static relay r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r.nhosts = nhosts;
    r.delay_ns = (int64_t)delay_ms * 1000000;
    r.queue = malloc(FRAMES * sizeof *r.queue);
    char failed = r.queue == NULL ? ENOMEM : 0;
    for (int host = 0; host < nhosts && failed == 0; host++)
        if ((r.taps[host] = open_tap(namespace_fds[host])) < 0) failed = (char)errno;
    if (write(ready, &failed, 1) != 1 || failed != 0) _exit(1);
    close(ready);
    run(&r);
}

tutti_status netns_relay_start(const int *namespace_fds, int nhosts, int delay_ms, pid_t *pid_out) {
    int ready[2];
    char failed = 0;
    if (delay_ms >= 1000) return tutti_fail(TUTTI_ERR_ARGUMENT, "a delay of %d ms is too long", delay_ms);
    if (pipe2(ready, O_CLOEXEC) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) be_relay(namespace_fds, nhosts, delay_ms, ready[1]);
    close(ready[1]);
    bool told = child > 0 && read(ready[0], &failed, 1) == 1;
    close(ready[0]);
    if (told && failed == 0) {
        *pid_out = child;
        return TUTTI_OK;
    }
    if (child > 0) waitpid(child, NULL, 0);
    return tutti_fail(TUTTI_ERR_SYSTEM, "cannot make taps for a slow network: %s", strerror(told ? failed : errno));
}
