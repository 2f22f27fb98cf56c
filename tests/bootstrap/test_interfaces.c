/*
 * Which addresses a host offers to others, and in what order: on made-up hosts, and on this one.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/machine/interfaces.h"

TestSuite(interfaces, .timeout = 60);

enum { MOST = 16 };

/* A host in one line per address: name, address, speed, then letters: d down, p point to point, i inner, o on the
 * loopback interface. */
typedef struct line {
    const char *name, *address;
    uint32_t speed_mbit;
    const char *kinds;
} line;

static int make_host(const line *lines, tutti_interface *all) {
    int count = 0;
    for (; lines[count].name != NULL; count++) {
        const char *kinds = lines[count].kinds;
        tutti_interface *item = &all[count];
        *item = (tutti_interface){.speed_mbit = lines[count].speed_mbit,
                                  .running = strchr(kinds, 'd') == NULL,
                                  .point_to_point = strchr(kinds, 'p') != NULL,
                                  .inner = strchr(kinds, 'i') != NULL,
                                  .on_loopback = strchr(kinds, 'o') != NULL};
        snprintf(item->name, sizeof item->name, "%s", lines[count].name);
        cr_assert(tutti_address_read(lines[count].address, item->address));
        item->loopback = tutti_address_is_loopback(item->address);
    }
    return count;
}

/* Returns the chosen addresses as text, such as "10.0.0.1 fd00::1". */
static const char *choose(const line *lines, const char *filter, int capacity) {
    static char text[1024];
    tutti_interface all[MOST], chosen[MOST];
    int count = -1;
    size_t used = 0;
    cr_assert_eq(
        tutti_interfaces_choose(all, make_host(lines, all), "TUTTI_SOCKET_IFNAME", filter, chosen, capacity, &count),
        TUTTI_OK, "'%s': %s", filter, tutti_last_error());
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        char address[TUTTI_ADDRESS_TEXT_BYTES];
        tutti_address_text(chosen[i].address, chosen[i].scope, address);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "", address);
    }
    return text;
}

static const line host[] = {
    {"lo", "127.0.0.1", 0, ""},       {"docker0", "172.17.0.1", 10000, "i"}, {"eth0", "192.168.1.5", 1000, ""},
    {"eth1", "10.0.0.5", 25000, ""},  {"eth2", "10.9.0.5", 100000, "d"},     {"eth10", "10.7.0.5", 0, ""},
    {"wg0", "10.8.0.5", 100000, "p"}, {"lo", "10.255.0.5", 0, "o"},          {"lo", "::1", 0, ""},
    {"eth1", "fe80::5", 25000, ""},   {"eth1", "fd00::5", 25000, ""},        {NULL, NULL, 0, NULL}};

Test(interfaces, are_in_order_of_preference) {
    cr_assert_str_eq(choose(host, "", MOST), "10.0.0.5 fd00::5 192.168.1.5 10.7.0.5 10.8.0.5 10.255.0.5 172.17.0.1 "
                                             "fe80::5 10.9.0.5");
    cr_assert_str_eq(choose(host, "", 2), "10.0.0.5 fd00::5");
}

Test(interfaces, a_name_a_list_an_exact_name_or_an_exception_restricts) {
    static const char *const cases[][2] = {
        {"eth1", "10.0.0.5 fd00::5 10.7.0.5 fe80::5"}, /* also eth10 */
        {"=eth1", "10.0.0.5 fd00::5 fe80::5"},
        {"wg,docker", "10.8.0.5 172.17.0.1"},
        {"=wg,docker0", "172.17.0.1"},
        {"ib,eth0", "192.168.1.5"},
        {"^eth,docker0", "10.8.0.5 10.255.0.5"},
        {"^=eth1,eth0,docker", "10.7.0.5 10.8.0.5 10.255.0.5 172.17.0.1 10.9.0.5"},
        {"docker0", "172.17.0.1"},
        {"^", "10.0.0.5 fd00::5 192.168.1.5 10.7.0.5 10.8.0.5 10.255.0.5 172.17.0.1 fe80::5 10.9.0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(choose(host, cases[i][0], MOST), cases[i][1], "'%s': %s", cases[i][0],
                         choose(host, cases[i][0], MOST));
}

Test(interfaces, loopback_is_offered_only_where_nothing_else_is) {
    static const line alone[] = {
        {"lo", "127.0.0.1", 0, ""}, {"lo", "::1", 0, ""}, {"eth0", "10.0.0.5", 0, ""}, {NULL, NULL, 0, NULL}};
    cr_assert_str_eq(choose(alone, "=lo", MOST), "127.0.0.1 ::1");
    cr_assert_str_eq(choose(alone, "^eth", MOST), "127.0.0.1 ::1");
    cr_assert_str_eq(choose(alone, "", MOST), "10.0.0.5");
    cr_assert_str_eq(choose(alone, "lo,eth", MOST), "10.0.0.5");
}

Test(interfaces, a_name_that_fits_none_is_an_error_that_lists_them) {
    static const char *const filters[] = {"eno", "=eth", "=eth3,ib0", "^l,e,d,w"};
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        tutti_interface all[MOST], chosen[MOST];
        int count = 77;
        cr_assert_eq(
            tutti_interfaces_choose(all, make_host(host, all), "NCCL_SOCKET_IFNAME", filters[i], chosen, MOST, &count),
            TUTTI_ERR_CONFIG, "'%s' was taken", filters[i]);
        cr_assert_eq(count, 77, "written only on success");
        const char *error = tutti_last_error();
        cr_assert(strstr(error, "NCCL_SOCKET_IFNAME=") != NULL && strstr(error, filters[i]) != NULL, "%s", error);
        cr_assert(strstr(error, "eth1 (10.0.0.5)") != NULL && strstr(error, "docker0 (172.17.0.1)") != NULL, "%s",
                  error);
    }
}

Test(interfaces, addresses_are_read_and_written_as_people_do) {
    static const char *const good[] = {"10.0.0.1", "127.0.0.1", "fd00::1", "::1", "fe80::1:2"};
    uint8_t address[16];
    char text[TUTTI_ADDRESS_TEXT_BYTES];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert(tutti_address_read(good[i], address));
        tutti_address_text(address, 0, text);
        cr_assert_str_eq(text, good[i]);
    }
    tutti_address_text(address, 3, text);
    cr_assert_str_eq(text, "fe80::1:2%3");
    cr_assert_not(tutti_address_read("node1", address));
    cr_assert_not(tutti_address_read("", address));
    cr_assert_not(tutti_address_read("10.0.0", address));
    cr_assert(tutti_address_read("127.9.9.9", address) && tutti_address_is_loopback(address));
    cr_assert(tutti_address_read("128.0.0.1", address) && !tutti_address_is_loopback(address));
    cr_assert(tutti_host_is_loopback("localhost") && tutti_host_is_loopback("::1"));
    cr_assert(tutti_host_is_loopback("127.3.2.1") && !tutti_host_is_loopback("10.0.0.1"));
}

/* --------------------------------------------------------------------------------------- this machine */

static void set_filter(const char *tutti, const char *nccl, const char *gloo) {
    setenv("TUTTI_SOCKET_IFNAME", tutti, 1);
    setenv("NCCL_SOCKET_IFNAME", nccl, 1);
    setenv("GLOO_SOCKET_IFNAME", gloo, 1);
    tutti_settings_reload();
}

Test(interfaces, those_of_this_machine_are_found) {
    tutti_interface items[MOST];
    int count = 0;
    set_filter("", "", "");
    cr_assert_eq(tutti_interfaces_list(items, MOST, &count), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(count >= 1 && count <= MOST);
    for (int i = 0; i < count; i++) {
        cr_assert(items[i].name[0] != '\0');
        cr_assert_eq(items[i].loopback, items[0].loopback, "loopback and others are never offered together");
    }
}

Test(interfaces, those_of_this_machine_are_restricted_by_the_first_variable_that_is_set) {
    tutti_interface items[MOST];
    int count = 0;
    set_filter("=lo", "=no", "=no");
    cr_assert_eq(tutti_interfaces_list(items, MOST, &count), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(count >= 1);
    for (int i = 0; i < count; i++) cr_assert_str_eq(items[i].name, "lo");
    set_filter("", "=lo", "=no");
    cr_assert_eq(tutti_interfaces_list(items, MOST, &count), TUTTI_OK, "%s", tutti_last_error());
    set_filter("", "", "lo");
    cr_assert_eq(tutti_interfaces_list(items, MOST, &count), TUTTI_OK, "%s", tutti_last_error());
    set_filter("", "", "=no-such");
    cr_assert_eq(tutti_interfaces_list(items, MOST, &count), TUTTI_ERR_CONFIG);
    cr_assert(strstr(tutti_last_error(), "GLOO_SOCKET_IFNAME==no-such") != NULL, "%s", tutti_last_error());
    cr_assert(strstr(tutti_last_error(), "lo (127.0.0.1)") != NULL, "%s", tutti_last_error());
}
