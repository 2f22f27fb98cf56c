/*
 * Under which addresses other hosts may reach this one: the addresses of this host's network interfaces, best first.
 *
 * Which of them really work is for the others to try; here it is only said which are worth a try, and in what order:
 * ordinary adapters before point-to-point links and addresses that stand on the loopback interface, before bridges and
 * taps (docker0, virbr0: mostly a world of their own inside this host); faster ones first, IPv4 before IPv6; then what is
 * valid on one link only, then interfaces without a carrier. 127.0.0.1 and ::1 are offered only where nothing else is.
 *
 * TUTTI_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME restricts the interfaces: "eth,ib" takes the names
 * that begin so, "=eth0,eth1" exactly these, and "^docker,lo" or "^=eth0" all but those.
 */
#ifndef TUTTI_BOOTSTRAP_INTERFACES_H
#define TUTTI_BOOTSTRAP_INTERFACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef struct tutti_interface {
    char name[16];
    uint8_t address[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d; network order */
    uint32_t scope;      /* index of the interface where the address is valid on one link only; else 0 */
    uint32_t speed_mbit; /* as the system says; 0: not known */
    bool running;        /* has a carrier */
    bool loopback;       /* the address means "this host": of no use to others */
    bool on_loopback;    /* any other address of the loopback interface */
    bool point_to_point;
    bool inner; /* a bridge or a tap: mostly leads to containers and virtual machines of this host */
} tutti_interface;

/* The addresses of this host, best first; those beyond `capacity` are left out. TUTTI_ERR_CONFIG where the variable
 * leaves none: the error names it and what interfaces there are. */
tutti_status tutti_interfaces_list(tutti_interface *interfaces_out, int capacity, int *count_out);

/* All of them, also loopback, whatever the variables say: to know one's own. */
tutti_status tutti_interfaces_all(tutti_interface *interfaces_out, int capacity, int *count_out);

/* The same as tutti_interfaces_list of a given list. `variable`=`filter` is what restricts it; "" takes all. Reorders `all`. */
tutti_status tutti_interfaces_choose(tutti_interface *all, int nall, const char *variable, const char *filter,
                                     tutti_interface *interfaces_out, int capacity, int *count_out);

/* Longest text of an address: IPv6, '%' and a number. */
enum { TUTTI_ADDRESS_TEXT_BYTES = 64 };

/* "10.0.0.1", "fd00::1" or "fe80::1%2", as getaddrinfo takes it. */
void tutti_address_text(const uint8_t address[16], uint32_t scope, char text[TUTTI_ADDRESS_TEXT_BYTES]);
/* The address, without a port, to which the socket is connected; "?" where it is not connected any longer. */
void tutti_address_of_peer(int fd, char text[TUTTI_ADDRESS_TEXT_BYTES]);
/* Takes what tutti_address_text gives, without a scope; false: that is no address. */
bool tutti_address_read(const char *text, uint8_t address_out[16]);
/* Whether the text is this host's name (whole, or up to its first dot) or an address of its own. Asks no name server. */
bool tutti_host_is_own(const char *text);
/* 127.0.0.0/8 or ::1. */
bool tutti_address_is_loopback(const uint8_t address[16]);

#endif
