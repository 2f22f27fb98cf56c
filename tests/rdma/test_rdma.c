/*
 * RDMA without an adapter: records in the ring, whatever the order in which their bytes come; the choice of addresses
 * and adapters. What needs an adapter is in test_rdma_pair.c.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tutti.h>

#include "bootstrap/machine/gpus.h"
#include "rdma/preference.h"
#include "rdma/ring.h"
#include "tests/support/programs/shell.h"

enum { MOST = TUTTI_RDMA_RING_RECORD_BYTES };
static tutti_rdma_ring_line here[TUTTI_RDMA_RING_ALL_LINES], there[TUTTI_RDMA_RING_ALL_LINES];
static uint8_t data[MOST], copy[MOST + 1];

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Packs a record of that many bytes at `line`, from two parts. */
static void pack(uint64_t line, uint32_t bytes, uint32_t seed) {
    for (uint32_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 13 + seed);
    tutti_rdma_parts parts;
    struct iovec list[3] = {{data, bytes / 3}, {NULL, 0}, {data + bytes / 3, bytes - bytes / 3}};
    tutti_rdma_ring_head head = {.position = line * 1000, .consumed = seed, .bytes = bytes};
    tutti_rdma_parts_set(&parts, list, 3);
    tutti_rdma_ring_pack(here, line, &head, &parts);
    cr_assert_eq(tutti_rdma_parts_left(&parts), 0);
}

/* ---------------------------------------------------------------------------------------------------- the ring */

Test(rdma_ring, records_of_all_lengths_come_out_as_they_went_in, .timeout = 60) {
    uint64_t line = 0;
    for (uint32_t bytes = 1; bytes <= MOST; bytes += bytes < 300 ? 1 : 97) {
        tutti_rdma_ring_head head;
        pack(line, bytes, bytes);
        memcpy(there, here, sizeof there);
        cr_assert(tutti_rdma_ring_look(there, line, &head));
        cr_assert(head.bytes == bytes && head.position == line * 1000 && head.consumed == bytes);
        size_t half = bytes / 2;
        cr_assert_eq(tutti_rdma_ring_unpack(there, line, 0, copy, half), half);
        cr_assert_eq(tutti_rdma_ring_unpack(there, line, half, copy + half, bytes - half), bytes - half);
        cr_assert_eq(memcmp(copy, data, bytes), 0, "%u bytes", bytes);
        line += tutti_rdma_ring_step(line, bytes);
        cr_assert_not(tutti_rdma_ring_look(there, line, &head), "nothing has come behind the record");
    }
}

/* The number of valid bytes after some lines have come: those of the lines before the first missing line. */
static size_t believable(const bool *came, uint32_t lines, size_t bytes) {
    uint32_t whole = 0;
    while (whole < lines && came[whole]) whole++;
    size_t most = whole == 0 ? 0 : TUTTI_RDMA_RING_FIRST_BYTES + (size_t)(whole - 1) * TUTTI_RDMA_RING_NEXT_BYTES;
    return most < bytes ? most : bytes;
}

Test(rdma_ring, lines_may_come_in_any_order, .timeout = 60) {
    uint32_t state = 17;
    uint64_t line = 0;
    while (line < 5 * TUTTI_RDMA_RING_LINES) { /* several laps, so that old records are in the ring */
        bool came[TUTTI_RDMA_RING_RECORD_LINES] = {false};
        uint32_t bytes = 1 + next_random(&state) % 1500, lines = tutti_rdma_ring_lines_of(bytes),
                 slot = tutti_rdma_ring_slot(line);
        pack(line, bytes, next_random(&state));
        for (uint32_t i = 0; i < lines; i++) {
            uint32_t at = next_random(&state) % lines;
            while (came[at]) at = (at + 1) % lines;
            there[slot + at] = here[slot + at];
            came[at] = true;
            tutti_rdma_ring_head head;
            cr_assert_eq(tutti_rdma_ring_look(there, line, &head), came[0]);
            if (!came[0]) continue;
            memset(copy, 0, bytes);
            size_t good = tutti_rdma_ring_unpack(there, line, 0, copy, bytes);
            cr_assert_eq(good, believable(came, lines, bytes));
            cr_assert_eq(memcmp(copy, data, good), 0);
        }
        line += tutti_rdma_ring_step(line, bytes);
    }
}

Test(rdma_ring, a_record_wraps_at_the_end_of_the_ring_and_the_next_one_begins_in_the_next_lap) {
    uint64_t line = TUTTI_RDMA_RING_LINES - 2;
    cr_assert_eq(tutti_rdma_ring_step(line, MOST), 2);
    cr_assert_eq(tutti_rdma_ring_slot(line + 2), 0);
    cr_assert_neq(tutti_rdma_ring_stamp(line), tutti_rdma_ring_stamp(line + 2));
    cr_assert_leq(tutti_rdma_ring_slot(line) + tutti_rdma_ring_lines_of(MOST), TUTTI_RDMA_RING_ALL_LINES);
}

Test(rdma_ring, a_state_that_is_being_written_is_not_taken) {
    tutti_rdma_ring_state old = {.first = 1, .last = 1, .consumed = 10, .waiting_at = 5}, new = old, shared = old,
                          seen = old;
    new.first = new.last = 2;
    new.consumed = 20;
    new.granted_bytes = 4711;
    cr_assert_not(tutti_rdma_ring_read_state(&shared, &seen), "nothing new");
    for (size_t bytes = 1; bytes < sizeof new; bytes++) { /* from its beginning to its end, as adapters write */
        shared = old;
        memcpy(&shared, &new, bytes);
        bool taken = tutti_rdma_ring_read_state(&shared, &seen);
        cr_assert(!taken || memcmp(&seen, &new, sizeof new) == 0, "%zu bytes have come", bytes);
        seen = old;
    }
    shared = new;
    cr_assert(tutti_rdma_ring_read_state(&shared, &seen));
    cr_assert(seen.consumed == 20 && seen.granted_bytes == 4711 && seen.waiting_at == 5);
}

/* ------------------------------------------------------------------------------------------------ the choice */

static tutti_rdma_gid gid(int index, tutti_rdma_gid_type type, const char *address) {
    tutti_rdma_gid made = {.index = index, .type = type};
    cr_assert_eq(inet_pton(AF_INET6, address, made.raw), 1);
    return made;
}

Test(rdma_choice, roce_v2_with_ipv4_comes_first) {
    char why[192];
    const tutti_rdma_gid gids[] = {
        gid(0, TUTTI_RDMA_GID_ROCE_V1, "fe80::1"),         gid(1, TUTTI_RDMA_GID_ROCE_V2, "fe80::1"),
        gid(2, TUTTI_RDMA_GID_ROCE_V1, "::ffff:10.0.0.1"), gid(3, TUTTI_RDMA_GID_ROCE_V2, "::ffff:10.0.0.1"),
        gid(5, TUTTI_RDMA_GID_ROCE_V2, "2001:db8::1"),
    };
    cr_assert_eq(tutti_rdma_gid_choose(gids, 5, -1, why, sizeof why), 3);
    cr_assert(strstr(why, "index 3") != NULL && strstr(why, "RoCE v2, IPv4 10.0.0.1") != NULL, "%s", why);
    cr_assert_eq(tutti_rdma_gid_choose(gids + 4, 1, -1, why, sizeof why), 0);
    cr_assert_eq(tutti_rdma_gid_choose(gids, 3, -1, why, sizeof why), 1, "RoCE v2, even link-local, before v1");
    cr_assert_eq(tutti_rdma_gid_choose(gids, 5, 5, why, sizeof why), 4);
    cr_assert(strstr(why, "TUTTI_RDMA_GID_INDEX") != NULL, "%s", why);
    cr_assert_eq(tutti_rdma_gid_choose(gids, 5, 4, why, sizeof why), -1, "there is no index 4");
    cr_assert_eq(tutti_rdma_gid_choose(gids, 0, -1, why, sizeof why), -1);
    cr_assert(strstr(why, "no address") != NULL, "%s", why);
}

Test(rdma_choice, nearness_is_the_distance_between_numa_nodes, .init = shell_enter_folder, .fini = shell_leave_folder,
     .timeout = 60) {
    cr_assert_eq(
        shell_run("for a in 0 1 2; do mkdir -p sys/class/infiniband/a$a/device; done;"
                  "echo 0 >sys/class/infiniband/a0/device/numa_node;"
                  "echo 1 >sys/class/infiniband/a1/device/numa_node;"
                  "echo -1 >sys/class/infiniband/a2/device/numa_node;"
                  "for n in 0 1; do mkdir -p sys/devices/system/node/node$n; done; cd sys/devices/system/node;"
                  "mkdir node0/cpu0 node0/cpu1 node1/cpu2; echo 10 32 >node0/distance; echo 32 10 >node1/distance"),
        0, "%s", shell_output);
    cr_assert_eq(tutti_rdma_near_distance(".", "a0", 1), TUTTI_RDMA_NEAR_SAME_NODE);
    cr_assert_eq(tutti_rdma_near_distance(".", "a1", 1), 32);
    cr_assert_eq(tutti_rdma_near_distance(".", "a0", 2), 32);
    cr_assert_eq(tutti_rdma_near_distance(".", "a2", 2), TUTTI_RDMA_NEAR_UNKNOWN, "the adapter's node is not known");
    cr_assert_eq(tutti_rdma_near_distance(".", "a0", 7), TUTTI_RDMA_NEAR_UNKNOWN, "the CPU's node is not known");
    cr_assert_eq(tutti_rdma_near_distance(".", "a9", 0), TUTTI_RDMA_NEAR_UNKNOWN, "there is no such adapter");
}

Test(rdma_choice, adapters_at_the_gpus_switch_are_known, .init = shell_enter_folder, .fini = shell_leave_folder,
     .timeout = 60) {
    char gpu[TUTTI_GPU_ADDRESS_BYTES];
    /* Two switches at one host bridge: a0 and a GPU at the one, a1 and a GPU at the other; a2 at a port of its own,
     * a3 elsewhere. */
    cr_assert_eq(
        shell_run("d=sys/devices/pci0000:16; mkdir -p sys/class/infiniband sys/bus/pci/devices;"
                  "put() { mkdir -p $1; ln -s $PWD/$1 sys/bus/pci/devices/${1##*/}; };"
                  "adapter() { mkdir -p sys/class/infiniband/$1; ln -s $PWD/$2 sys/class/infiniband/$1/device; };"
                  "for s in 1 2; do for i in 1 2; do put $d/0000:16:0$s.0/0000:1$s:00.0/0000:1$s:0$i.0/0000:2$s:0$i.0; "
                  "done; done;"
                  "put $d/0000:16:03.0/0000:31:00.0; put sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0;"
                  "adapter a0 $d/0000:16:01.0/0000:11:00.0/0000:11:02.0/0000:21:02.0;"
                  "adapter a1 $d/0000:16:02.0/0000:12:00.0/0000:12:02.0/0000:22:02.0;"
                  "adapter a2 $d/0000:16:03.0/0000:31:00.0;"
                  "adapter a3 sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0;"
                  "mkdir -p proc/driver/nvidia/gpus/0000:21:01.0 proc/driver/nvidia/gpus/0000:22:01.0"),
        0, "%s", shell_output);
    for (int i = 0; i < 2; i++) {
        cr_assert(tutti_gpus_address(".", NULL, i, gpu));
        for (int adapter = 0; adapter < 4; adapter++) {
            char name[3] = {'a', (char)('0' + adapter), '\0'};
            cr_expect_eq(tutti_rdma_near_shares_switch(".", name, gpu), adapter == i, "%s and %s", name, gpu);
        }
    }
    cr_assert(tutti_gpus_address(".", "1", 0, gpu));
    cr_assert_str_eq(gpu, "0000:22:01.0");
    cr_assert_not(tutti_gpus_address(".", NULL, 2, gpu));
    cr_assert_not(tutti_rdma_near_shares_switch(".", "a9", "0000:21:01.0"), "there is no such adapter");
    cr_assert_not(tutti_rdma_near_shares_switch(".", "a0", "0000:99:00.0"), "there is no such GPU");
}

Test(rdma_choice, a_machine_without_an_adapter_reports_it, .timeout = 60) {
    DIR *adapters = opendir("/sys/class/infiniband");
    if (adapters != NULL) closedir(adapters);
    if (adapters != NULL) cr_skip_test("this machine has RDMA");
    cr_assert_eq(tutti_init_rdma(), TUTTI_ERR_UNSUPPORTED);
    cr_assert(strstr(tutti_last_error(), "no RDMA adapter") != NULL ||
                  strstr(tutti_last_error(), "not part of this build"),
              "%s", tutti_last_error());
    cr_assert_eq(tutti_rdma_is_initialized(), 0);
}
