/*
 * The card of this rank. See peer_info.h.
 */
#include "comm/init/peer_info.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/base/namespace.h"
#include "comm/shm/peer.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Number of the machine, from the id of this boot; 0: unknown. */
static uint64_t read_machine(void) {
    unsigned long long high = 0, middle = 0, low = 0;
    FILE *file = fopen(BOOT_ID, "re");
    if (file == NULL) return 0;
    int fields = fscanf(file, "%llx-%llx-%llx", &high, &middle, &low);
    fclose(file);
    return fields == 3 ? high << 32 | middle << 16 | low : 0;
}

static void read_host_id(char *text, size_t capacity) {
    const char *told = tutti_setting_text(TUTTI_SETTING_HOST_ID);
    snprintf(text, capacity, "%s", told);
    if (told[0] != '\0') return;
    FILE *file = fopen(BOOT_ID, "re");
    if (file == NULL || fgets(text, (int)capacity, file) == NULL) gethostname(text, capacity - 1);
    if (file != NULL) fclose(file);
    text[strcspn(text, "\n")] = '\0';
    /* The sockets over which descriptors of memory are passed reach only within a network namespace. */
    size_t used = strlen(text);
    uint64_t network = tutti_namespace_net();
    if (network != 0) snprintf(text + used, capacity - used, "/%llx", (unsigned long long)network);
}

tutti_status tutti_peer_info_fill(int rank, int nranks, tutti_peer_info *card_out) {
    tutti_peer *self;
    TUTTI_TRY(tutti_peer_self(&self));
    tutti_peer_info card = {.rank = rank, .nranks = nranks, .pid = getpid()};
    card.pid_space = tutti_namespace_pid();
    snprintf(card.version, sizeof card.version, "%s", tutti_version());
    tutti_settings_agreed(card.settings, sizeof card.settings);
    read_host_id(card.host_id, sizeof card.host_id);
    card.machine = read_machine();
    memcpy(card.host, self->host, sizeof card.host);
    tutti_cpus_allowed(&card.cores);
    card.most_cores = tutti_cpus_most();
    *card_out = card;
    return TUTTI_OK;
}
