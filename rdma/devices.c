/*
 * Lists adapters and ports, chooses among them, and opens the chosen ones.
 */
#include "rdma/devices.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/machine/gpus.h"
#include "rdma/preference.h"

enum { MOST_SEEN = 32, MOST_GIDS = 256 };

/* A port that was examined. */
typedef struct seen {
    tutti_rdma_port port;
    char device[64];
    char reason[192]; /* why the port is not usable; "": it is */
} seen;

const tutti_module_host *tutti_rdma_host;

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_rdma_adapter adapters[TUTTI_RDMA_DEVICES_PORTS];
static int nadapters;
static tutti_rdma_port ports[TUTTI_RDMA_DEVICES_PORTS];
static int nports;

static int speed_of(const struct ibv_port_attr *port) {
    static const struct {
        int code, mbit;
    } speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    static const int widths[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};
    int lane = 0, width = port->active_width < TUTTI_COUNT_OF(widths) ? widths[port->active_width] : 0;
    for (size_t i = 0; i < TUTTI_COUNT_OF(speeds); i++)
        if (speeds[i].code == port->active_speed) lane = speeds[i].mbit;
    return lane * width;
}

static int wanted_gid(void) {
    const char *text = tutti_rdma_host->setting_text(TUTTI_SETTING_RDMA_GID_INDEX);
    return *text == '\0' ? -1 : atoi(text);
}

/* Reads the port's addresses and chooses one. */
static void look_at_gids(struct ibv_context *context, seen *item) {
    struct ibv_gid_entry *entries = calloc(MOST_GIDS, sizeof *entries);
    tutti_rdma_gid *gids = calloc(MOST_GIDS, sizeof *gids);
    ssize_t all = entries != NULL && gids != NULL ? ibv_query_gid_table(context, entries, MOST_GIDS, 0) : 0;
    int count = 0;
    for (ssize_t i = 0; i < all; i++) {
        if (entries[i].port_num != item->port.number) continue;
        gids[count].index = (int)entries[i].gid_index;
        gids[count].type = entries[i].gid_type == IBV_GID_TYPE_ROCE_V2   ? TUTTI_RDMA_GID_ROCE_V2
                           : entries[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? TUTTI_RDMA_GID_ROCE_V1
                                                                         : TUTTI_RDMA_GID_IB;
        memcpy(gids[count++].raw, entries[i].gid.raw, sizeof gids[0].raw);
    }
    int best = tutti_rdma_gid_choose(gids, count, wanted_gid(), item->port.why, sizeof item->port.why);
    if (best >= 0) item->port.gid = gids[best];
    else snprintf(item->reason, sizeof item->reason, "%s", item->port.why);
    free(gids);
    free(entries);
}

static void look_at_port(struct ibv_context *context, seen *item) {
    struct ibv_port_attr attributes;
    if (ibv_query_port(context, item->port.number, &attributes) != 0) {
        snprintf(item->reason, sizeof item->reason, "cannot be queried: %s", strerror(errno));
        return;
    }
    item->port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    item->port.lid = attributes.lid;
    item->port.mtu = attributes.active_mtu;
    item->port.max_message_bytes = attributes.max_msg_sz;
    item->port.speed_mbit = speed_of(&attributes);
    if (attributes.state != IBV_PORT_ACTIVE)
        snprintf(item->reason, sizeof item->reason, "the port is %s", ibv_port_state_str(attributes.state));
    else look_at_gids(context, item);
}

/* The GPU of this process (TUTTI_DEVICE, or its local rank), if there is one. */
static bool find_gpu(char address[TUTTI_GPU_ADDRESS_BYTES]) {
    const char *device = tutti_rdma_host->setting_text(TUTTI_SETTING_DEVICE);
    if (strcmp(device, "auto") == 0) device = getenv("LOCAL_RANK");
    return device != NULL && tutti_gpus_address("", getenv("CUDA_VISIBLE_DEVICES"), atoi(device), address);
}

/* Examines all ports of all adapters, up to MOST_SEEN. */
static int look_at_all(struct ibv_device **list, int ndevices, seen *all) {
    int nseen = 0, cpu = sched_getcpu();
    char gpu[TUTTI_GPU_ADDRESS_BYTES];
    bool has_gpu = find_gpu(gpu);
    for (int i = 0; i < ndevices; i++) {
        struct ibv_device_attr attributes;
        const char *name = ibv_get_device_name(list[i]);
        struct ibv_context *context = ibv_open_device(list[i]);
        int last = context != NULL && ibv_query_device(context, &attributes) == 0 ? attributes.phys_port_cnt : 1;
        for (int number = 1; number <= last && nseen < MOST_SEEN; number++) {
            seen *item = &all[nseen++];
            *item = (seen){.port.number = (uint8_t)number};
            item->port.distance = has_gpu && tutti_rdma_near_shares_switch("", name, gpu)
                                      ? TUTTI_RDMA_NEAR_SAME_SWITCH
                                      : tutti_rdma_near_distance("", name, cpu);
            snprintf(item->device, sizeof item->device, "%s", name);
            if (context != NULL) look_at_port(context, item);
            else snprintf(item->reason, sizeof item->reason, "cannot be opened: %s", strerror(errno));
        }
        if (context != NULL) ibv_close_device(context);
    }
    return nseen;
}

/* Usable before unusable; near before far; fast before slow; then by name, so that two identical hosts agree. */
static int compare(const void *a, const void *b) {
    const seen *x = a, *y = b;
    bool x_usable = x->reason[0] == '\0', y_usable = y->reason[0] == '\0';
    if (x_usable != y_usable) return x_usable ? -1 : 1;
    if (x->port.distance != y->port.distance) return x->port.distance - y->port.distance;
    if (x->port.speed_mbit != y->port.speed_mbit) return y->port.speed_mbit - x->port.speed_mbit;
    int names = strcmp(x->device, y->device);
    return names != 0 ? names : x->port.number - y->port.number;
}

/* The adapter of that name in `adapters`, opened if it is not there yet. */
static tutti_status open_adapter(struct ibv_device **list, int ndevices, const char *name,
                                 tutti_rdma_adapter **adapter_out) {
    for (int i = 0; i < nadapters; i++)
        if (strcmp(adapters[i].name, name) == 0) return *adapter_out = &adapters[i], TUTTI_OK;
    tutti_rdma_adapter *adapter = &adapters[nadapters];
    struct ibv_device *device = NULL;
    for (int i = 0; i < ndevices; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0) device = list[i];
    *adapter = (tutti_rdma_adapter){.index = nadapters};
    snprintf(adapter->name, sizeof adapter->name, "%s", name);
    adapter->context = device != NULL ? ibv_open_device(device) : NULL;
    if (adapter->context == NULL)
        return tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "cannot open RDMA adapter %s: %s", name, strerror(errno));
    adapter->domain = ibv_alloc_pd(adapter->context);
    if (adapter->domain == NULL || ibv_query_device(adapter->context, &adapter->attributes) != 0) {
        tutti_status status =
            tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "RDMA adapter %s cannot be used: %s", name, strerror(errno));
        if (adapter->domain != NULL) ibv_dealloc_pd(adapter->domain);
        ibv_close_device(adapter->context);
        return status;
    }
    nadapters++;
    *adapter_out = adapter;
    return TUTTI_OK;
}

/* The entry for "name" or "name:port". */
static const seen *find(const seen *all, int nseen, const char *text) {
    char name[64];
    int number = 1;
    if (sscanf(text, "%63[^:]:%d", name, &number) < 1) return NULL;
    for (int i = 0; i < nseen; i++)
        if (strcmp(all[i].device, name) == 0 && all[i].port.number == number) return &all[i];
    return NULL;
}

static tutti_status use(struct ibv_device **list, int ndevices, const seen *item) {
    char detail[256] = "";
    tutti_rdma_port *port = &ports[nports];
    *port = item->port;
    TUTTI_TRY(open_adapter(list, ndevices, item->device, &port->adapter));
    if (port->distance == TUTTI_RDMA_NEAR_SAME_SWITCH) snprintf(detail, sizeof detail, ", at the GPU's PCI switch");
    else if (port->distance != TUTTI_RDMA_NEAR_UNKNOWN)
        snprintf(detail, sizeof detail, ", NUMA distance %d", port->distance);
    tutti_rdma_host->log(TUTTI_LOG_INFO, "RDMA: lane %d on %s port %d (%s, %d Mbit/s%s), %s", nports, item->device,
                         port->number, port->ethernet ? "Ethernet" : "InfiniBand", port->speed_mbit, detail, port->why);
    nports++;
    return TUTTI_OK;
}

static tutti_status use_named(struct ibv_device **list, int ndevices, const seen *all, int nseen) {
    char names[256], *rest = NULL;
    snprintf(names, sizeof names, "%s", tutti_rdma_host->setting_text(TUTTI_SETTING_RDMA_DEVICE));
    for (char *name = strtok_r(names, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        const seen *item = find(all, nseen, name);
        if (nports == TUTTI_RDMA_DEVICES_PORTS)
            return tutti_rdma_host->fail(TUTTI_ERR_CONFIG, "TUTTI_RDMA_DEVICE names more than %d ports",
                                         TUTTI_RDMA_DEVICES_PORTS);
        if (item == NULL)
            return tutti_rdma_host->fail(TUTTI_ERR_CONFIG, "TUTTI_RDMA_DEVICE: this machine has no RDMA port '%s'",
                                         name);
        if (item->reason[0] != '\0')
            return tutti_rdma_host->fail(TUTTI_ERR_UNSUPPORTED, "TUTTI_RDMA_DEVICE: '%s' cannot be used: %s", name,
                                         item->reason);
        TUTTI_TRY(use(list, ndevices, item));
    }
    return TUTTI_OK;
}

/* Uses the first port, and those equal to it. */
static tutti_status use_best(struct ibv_device **list, int ndevices, const seen *all, int nseen) {
    for (int i = 0; i < nseen && nports < TUTTI_RDMA_DEVICES_PORTS; i++) {
        bool equal = all[i].port.distance == all[0].port.distance && all[i].port.speed_mbit == all[0].port.speed_mbit &&
                     all[i].port.ethernet == all[0].port.ethernet;
        if (all[i].reason[0] == '\0' && equal) TUTTI_TRY(use(list, ndevices, &all[i]));
    }
    return TUTTI_OK;
}

static tutti_status choose(void) {
    int ndevices = 0;
    struct ibv_device **list = ibv_get_device_list(&ndevices);
    if (list == NULL || ndevices == 0) {
        if (list != NULL) ibv_free_device_list(list);
        return tutti_rdma_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "this machine has no RDMA adapter (none in /sys/class/infiniband, or "
                                     "/dev/infiniband is not accessible)");
    }
    seen *all = calloc(MOST_SEEN, sizeof *all);
    tutti_status status = TUTTI_ERR_MEMORY;
    if (all != NULL) {
        int nseen = look_at_all(list, ndevices, all);
        qsort(all, (size_t)nseen, sizeof *all, compare);
        bool named = tutti_rdma_host->setting_text(TUTTI_SETTING_RDMA_DEVICE)[0] != '\0';
        status = named ? use_named(list, ndevices, all, nseen) : use_best(list, ndevices, all, nseen);
        if (status == TUTTI_OK && nports == 0)
            status = tutti_rdma_host->fail(TUTTI_ERR_UNSUPPORTED, "no RDMA port can be used; %s port %d: %s",
                                           all[0].device, all[0].port.number, all[0].reason);
        if (status != TUTTI_OK) nports = 0; /* the next call chooses again; open adapters stay open */
    }
    free(all);
    ibv_free_device_list(list);
    return status;
}

tutti_status tutti_rdma_devices_get(const tutti_rdma_port **ports_out, int *nports_out) {
    pthread_mutex_lock(&devices_lock);
    tutti_status status = nports > 0 ? TUTTI_OK : choose();
    pthread_mutex_unlock(&devices_lock);
    if (status != TUTTI_OK) return status;
    *ports_out = ports;
    *nports_out = nports;
    return TUTTI_OK;
}

void tutti_devices_forked(void) {
    pthread_mutex_init(&devices_lock, NULL);
    nports = nadapters = 0;
}

static bool in_use(const seen *item) {
    for (int i = 0; i < nports; i++)
        if (ports[i].number == item->port.number && strcmp(ports[i].adapter->name, item->device) == 0) return true;
    return false;
}

void tutti_rdma_devices_describe(char *text, size_t capacity) {
    const tutti_rdma_port *unused;
    int nunused, ndevices = 0;
    size_t used = 0;
    text[0] = '\0';
    if (tutti_rdma_devices_get(&unused, &nunused) != TUTTI_OK) snprintf(text, capacity, "none in use; ");
    used = strlen(text);
    struct ibv_device **list = ibv_get_device_list(&ndevices);
    seen *all = calloc(MOST_SEEN, sizeof *all);
    int nseen = list != NULL && all != NULL ? look_at_all(list, ndevices, all) : 0;
    for (int i = 0; i < nseen && used < capacity; i++) {
        const seen *item = &all[i];
        used += (size_t)snprintf(text + used, capacity - used, "%s%s port %d: %s", i > 0 ? "\n" : "", item->device,
                                 item->port.number, item->reason[0] != '\0' ? item->reason : item->port.why);
        if (used < capacity && in_use(item)) used += (size_t)snprintf(text + used, capacity - used, "; in use");
    }
    if (nseen == 0 && used < capacity) snprintf(text + used, capacity - used, "no RDMA adapter");
    free(all);
    if (list != NULL) ibv_free_device_list(list);
}
