/*
 * The addresses at which other hosts may reach this one: the addresses of this host's network interfaces, best
 * first.
 *
 * Peers find out by trying which addresses work. This file determines which addresses are worth trying, and in what
 * order: ordinary adapters before point-to-point links and addresses assigned to the loopback interface, those
 * before bridges and taps (docker0, virbr0: usually networks internal to this host); then faster before slower,
 * IPv4 before IPv6; then addresses valid on one link only, then interfaces without a carrier. 127.0.0.1 and ::1 are
 * offered only if there is nothing else.
 *
 * TUTTI_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME restricts the interfaces: "eth,ib" selects
 * names with these prefixes, "=eth0,eth1" exactly these names, and "^docker,lo" or "^=eth0" all but those.
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
    uint32_t scope;      /* index of the interface if the address is valid on one link only; else 0 */
    uint32_t speed_mbit; /* as reported by the system; 0: unknown */
    bool running;        /* the link has a carrier */
    bool loopback;       /* the address means "this host"; peers cannot use it */
    bool on_loopback;    /* any other address of the loopback interface */
    bool point_to_point;
    bool inner; /* a bridge or a tap: usually leads to containers and virtual machines of this host */
} tutti_interface;

/* Lists the addresses of this host, best first; those beyond `capacity` are omitted. Fails with TUTTI_ERR_CONFIG
 * when the variable excludes all of them; the error names the variable and the existing interfaces. */
tutti_status tutti_interfaces_list(tutti_interface *interfaces_out, int capacity, int *count_out);

/* Restricts tutti_interfaces_list, where none of the variables is set, to the interfaces of exactly these names,
 * separated by commas; "": no longer. `member` names what has chosen them, and must last. */
enum { TUTTI_INTERFACES_PREFERRED_BYTES = 128 };
void tutti_interfaces_prefer(const char *names, const char *member);

/* Lists all addresses of this host, including loopback, regardless of the variables. */
tutti_status tutti_interfaces_all(tutti_interface *interfaces_out, int capacity, int *count_out);

/* Like tutti_interfaces_list, for a given list, which it reorders. `variable`=`filter` restricts; "" selects all. */
tutti_status tutti_interfaces_choose(tutti_interface *all, int nall, const char *variable, const char *filter,
                                     tutti_interface *interfaces_out, int capacity, int *count_out);

/* Longest text of an address: IPv6, '%' and a number. */
enum { TUTTI_ADDRESS_TEXT_BYTES = 64 };

/* Writes "10.0.0.1", "fd00::1" or "fe80::1%2", in the form that getaddrinfo accepts. */
void tutti_address_text(const uint8_t address[16], uint32_t scope, char text[TUTTI_ADDRESS_TEXT_BYTES]);
/* Writes the address, without port, of the peer to which the socket is connected; "?" if it is no longer connected. */
void tutti_address_of_peer(int fd, char text[TUTTI_ADDRESS_TEXT_BYTES]);
/* Parses the output of tutti_address_text, without a scope; returns false when the text is not an address. */
bool tutti_address_read(const char *text, uint8_t address_out[16]);
/* Returns true when the text is this host's name (whole, or up to its first dot) or address. Asks no name server. */
bool tutti_host_is_own(const char *text);
/* Returns true for "localhost" and the text of a loopback address. */
bool tutti_host_is_loopback(const char *text);
/* Returns true for 127.0.0.0/8 and ::1. */
bool tutti_address_is_loopback(const uint8_t address[16]);

#endif
