/*
 * Ranks on several hosts: see hosts.h. One run at a time; ranks inherit its description by fork.
 */
#include "tests/support/hosts/hosts.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/reference.h"

#define PORT      29500 /* free: the namespace is new */
#define RANKS_MAX 256

static struct {
    netns *network;
    int nhosts;
    int first[NETNS_HOSTS_MAX + 1]; /* first rank of each host; then the number of ranks */
    int host_of[RANKS_MAX];
} current;

const netns *hosts_network(void) {
    return current.network;
}

int hosts_count(void) {
    return current.nhosts;
}

int hosts_of(int rank) {
    return current.host_of[rank];
}

int hosts_first(int host) {
    return current.first[host];
}

const char *hosts_refused(const netns_options *network) {
    if (!ranks_have_processes()) return "needs ranks as processes";
    return netns_refused(network);
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static tutti_status enter(const ranks_context *context) {
    static const char *const strange[] = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT",
                                          "TORCHELASTIC_RUN_ID", "TUTTI_HOST_ID"};
    int host = hosts_of(context->rank), first = hosts_first(host);
    char address[16];
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) unsetenv(strange[i]);
    set_number("RANK", context->rank);
    set_number("WORLD_SIZE", context->nranks);
    set_number("LOCAL_RANK", context->rank - first);
    set_number("LOCAL_WORLD_SIZE", hosts_first(host + 1) - first);
    set_number("GROUP_RANK", host);
    set_number("GROUP_WORLD_SIZE", current.nhosts);
    setenv("MASTER_ADDR", netns_address(0, address), 1);
    set_number("MASTER_PORT", PORT);
    reference_set_hosts(current.host_of);
    return netns_enter(current.network, host);
}

/* Copies the layout, and writes its name, such as "1+3", to `name`. Returns the number of ranks, 0 if there are too
 * many. */
static int lay_out(const int *ranks_per_host, char *name, size_t capacity) {
    int nranks = 0;
    size_t used = 0;
    current.nhosts = 0;
    for (const int *ranks = ranks_per_host; *ranks > 0; ranks++) {
        if (current.nhosts == NETNS_HOSTS_MAX || nranks + *ranks > RANKS_MAX) return 0;
        if (used < capacity)
            used += (size_t)snprintf(name + used, capacity - used, "%s%d", current.nhosts > 0 ? "+" : "", *ranks);
        current.first[current.nhosts] = nranks;
        for (int i = 0; i < *ranks; i++) current.host_of[nranks++] = current.nhosts;
        current.nhosts++;
    }
    current.first[current.nhosts] = nranks;
    return nranks;
}

const char *hosts_run(const hosts_options *options, ranks_body body) {
    static char text[4096];
    char name[128] = "";
    int nranks = lay_out(options->ranks_per_host, name, sizeof name);
    netns_options network = options->network;
    network.nhosts = current.nhosts;
    if (nranks == 0) return "too many ranks or hosts";
    if (netns_create(&network, &current.network) != TUTTI_OK) return tutti_last_error();
    const char *failed = ranks_run(&(ranks_options){.kind = RANKS_PROCESSES,
                                                    .nranks = nranks,
                                                    .timeout_s = options->timeout_s,
                                                    .argument = options->argument,
                                                    .no_comm = options->no_comm,
                                                    .environment = options->environment,
                                                    .world = !options->no_comm,
                                                    .enter = enter},
                                   body);
    netns_destroy(current.network);
    current.network = NULL;
    if (failed == NULL) return NULL;
    snprintf(text, sizeof text, "%s: %s", name, failed);
    return text;
}
