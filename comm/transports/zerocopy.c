/*
 * See zerocopy.h. The notes come on the socket's error queue; one note covers a range of calls.
 */
#include "comm/transports/zerocopy.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h> /* after time.h, which it needs */

void tutti_zerocopy_open(tutti_zerocopy *z, int socket) {
    int one = 1;
    *z = (tutti_zerocopy){.on = setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0};
}

static void take_note(tutti_zerocopy *z, const struct cmsghdr *header) {
    bool ours = (header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR) ||
                (header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_RECVERR);
    struct sock_extended_err note;
    if (!ours || header->cmsg_len < CMSG_LEN(sizeof note)) return;
    memcpy(&note, CMSG_DATA(header), sizeof note);
    if (note.ee_errno != 0 || note.ee_origin != SO_EE_ORIGIN_ZEROCOPY) return;
    z->done += note.ee_data - note.ee_info + 1; /* calls ee_info to ee_data; each is told once */
    if (note.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) z->on = false;
}

void tutti_zerocopy_reap(tutti_zerocopy *z, int socket) {
    union {
        char bytes[CMSG_SPACE(sizeof(struct sock_extended_err) + sizeof(struct sockaddr_in6))];
        struct cmsghdr align;
    } control;
    while (tutti_zerocopy_busy(z)) {
        struct msghdr message = {.msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h != NULL; h = CMSG_NXTHDR(&message, h)) take_note(z, h);
    }
}

void tutti_zerocopy_abort(tutti_zerocopy *z, int socket) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    connect(socket, &none, sizeof none); /* drops what is queued, and lets its memory go */
    z->done = z->issued;
    z->on = false;
}
