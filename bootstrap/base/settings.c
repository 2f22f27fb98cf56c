/*
 * The table of TUTTI_* environment variables and its reader.
 */
#include "bootstrap/base/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"

static const tutti_setting_row rows[TUTTI_SETTING_COUNT] = {
    [TUTTI_SETTING_LOG] = {.name = "TUTTI_LOG",
                           .kind = TUTTI_SETTING_KIND_CHOICE,
                           .fallback = "warn",
                           .choices = "error|warn|info|debug",
                           .help = "level of log lines on standard error"},
    [TUTTI_SETTING_TIMEOUT_MS] = {.name = "TUTTI_TIMEOUT_MS",
                                  .kind = TUTTI_SETTING_KIND_INT,
                                  .fallback = "300000",
                                  .least = 1,
                                  .most = INT64_C(1) << 40,
                                  .help = "time limit of an operation; exceeding it breaks the communicator"},
    [TUTTI_SETTING_STALL_MS] =
        {.name = "TUTTI_STALL_MS",
         .kind = TUTTI_SETTING_KIND_INT,
         .fallback = "10000",
         .least = 1,
         .most = INT64_C(1) << 40,
         .help = "an operation that takes this long logs which ranks have not arrived, and continues"},
    [TUTTI_SETTING_CONNECT_TIMEOUT_MS] = {.name = "TUTTI_CONNECT_TIMEOUT_MS",
                                          .kind = TUTTI_SETTING_KIND_INT,
                                          .fallback = "60000",
                                          .least = 1,
                                          .most = INT64_C(1) << 40,
                                          .help = "time limit for nodes and ranks in each phase of a start"},
    [TUTTI_SETTING_ALGORITHM] = {.name = "TUTTI_ALGORITHM",
                                 .kind = TUTTI_SETTING_KIND_TEXT,
                                 .fallback = "",
                                 .agreed = true,
                                 .help = "forces an algorithm by name; see tutti-info --algorithms"},
    [TUTTI_SETTING_PLAN] = {.name = "TUTTI_PLAN",
                            .kind = TUTTI_SETTING_KIND_TEXT,
                            .fallback = "",
                            .agreed = true,
                            .help = "forces how tensors are redistributed: comma-separated list of all_reduce, "
                                    "reduce_scatter, pieces, all_to_all, messages, reads, shares"},
    [TUTTI_SETTING_CHUNK_BYTES] = {.name = "TUTTI_CHUNK_BYTES",
                                   .kind = TUTTI_SETTING_KIND_BYTES,
                                   .fallback = "auto",
                                   .least = 256,
                                   .most = INT64_C(1) << 30,
                                   .agreed = true,
                                   .help = "bytes that a rank stages in shared memory at a time; auto: depends on the "
                                           "number of ranks"},
    [TUTTI_SETTING_EAGER_BYTES] =
        {.name = "TUTTI_EAGER_BYTES",
         .kind = TUTTI_SETTING_KIND_BYTES,
         .fallback = "128K",
         .least = 0,
         .most = INT64_C(1) << 20,
         .agreed = true,
         .help = "sends up to this size complete before their receive; to another host by ucx or verbs: half of it"},
    [TUTTI_SETTING_HEAP_BYTES] = {.name = "TUTTI_HEAP_BYTES",
                                  .kind = TUTTI_SETTING_KIND_BYTES,
                                  .fallback = "0",
                                  .least = 0,
                                  .most = INT64_C(1) << 44,
                                  .help = "address space of a process's shared heap; 0: size of the machine's memory"},
    [TUTTI_SETTING_SPIN_US] = {.name = "TUTTI_SPIN_US",
                               .kind = TUTTI_SETTING_KIND_INT,
                               .fallback = "200",
                               .least = 0,
                               .most = 1000000000,
                               .help = "time that a waiting thread spins and yields before it sleeps"},
    [TUTTI_SETTING_CPUS] = {.name = "TUTTI_CPUS",
                            .kind = TUTTI_SETTING_KIND_INT,
                            .agreed = true,
                            .fallback = "0",
                            .least = 0,
                            .most = 1 << 20,
                            .help = "cores that the ranks of this host may use; 0: number reported by the system"},
    [TUTTI_SETTING_HOST_ID] = {.name = "TUTTI_HOST_ID",
                               .kind = TUTTI_SETTING_KIND_TEXT,
                               .fallback = "",
                               .help =
                                   "ranks with equal values count as one host (default: boot and network namespace)"},
    [TUTTI_SETTING_SOCKET_IFNAME] =
        {.name = "TUTTI_SOCKET_IFNAME",
         .kind = TUTTI_SETTING_KIND_TEXT,
         .fallback = "",
         .help = "network interfaces used between hosts, for example eth,ib or =eth0 or ^docker,lo"},
    [TUTTI_SETTING_PORTS] = {.name = "TUTTI_PORTS",
                             .kind = TUTTI_SETTING_KIND_TEXT,
                             .fallback = "",
                             .help = "ports at which the ranks of this host listen for other hosts, one each, as "
                                     "20000-20031; default: any free ones"},
    [TUTTI_SETTING_ADVERTISE] =
        {.name = "TUTTI_ADVERTISE",
         .kind = TUTTI_SETTING_KIND_TEXT,
         .fallback = "",
         .help = "address at which other hosts reach this one, if it is not its own: of the host of a container whose "
                 "TUTTI_PORTS are mapped"},
    [TUTTI_SETTING_STORE_PORT] = {.name = "TUTTI_STORE_PORT",
                                  .kind = TUTTI_SETTING_KIND_INT,
                                  .fallback = "0",
                                  .least = 0,
                                  .most = 65535,
                                  .help = "port of rank 0's store if MASTER_PORT is not set; 0: derived from the job"},
    [TUTTI_SETTING_SECRET] = {.name = "TUTTI_SECRET",
                              .kind = TUTTI_SETTING_KIND_TEXT,
                              .fallback = "",
                              .help = "the job's secret, which a process must know to connect"},
    [TUTTI_SETTING_SECRET_FILE] = {.name = "TUTTI_SECRET_FILE",
                                   .kind = TUTTI_SETTING_KIND_TEXT,
                                   .fallback = "",
                                   .help = "file that contains the job's secret"},
    [TUTTI_SETTING_SECRET_REQUIRED] =
        {.name = "TUTTI_SECRET_REQUIRED",
         .kind = TUTTI_SETTING_KIND_BOOL,
         .fallback = "0",
         .least = 0,
         .most = 1,
         .help = "1: without TUTTI_SECRET or its file no connections are made; 0: no warning either"},
    [TUTTI_SETTING_OTHER_USERS] = {.name = "TUTTI_OTHER_USERS",
                                   .kind = TUTTI_SETTING_KIND_BOOL,
                                   .fallback = "0",
                                   .least = 0,
                                   .most = 1,
                                   .help = "1: ranks of one host may run as different users if they know the secret"},
    [TUTTI_SETTING_ENCRYPT] = {.name = "TUTTI_ENCRYPT",
                               .kind = TUTTI_SETTING_KIND_BOOL,
                               .fallback = "0",
                               .least = 0,
                               .most = 1,
                               .agreed = true,
                               .help = "1: data between hosts is sent only encrypted, by the transport tls"},
    [TUTTI_SETTING_DETERMINISTIC] = {.name = "TUTTI_DETERMINISTIC",
                                     .kind = TUTTI_SETTING_KIND_CHOICE,
                                     .fallback = "auto",
                                     .choices = "0|1|auto",
                                     .agreed = true,
                                     .help = "sums of floats: 1: always in Tutti's fixed order; 0: in any order where "
                                             "that is faster; auto: in the fixed order, but in NCCL's on several "
                                             "GPUs"},
    [TUTTI_SETTING_FAULT] = {.name = "TUTTI_FAULT",
                             .kind = TUTTI_SETTING_KIND_TEXT,
                             .fallback = "",
                             .help = "for tests: fault points that fail, name[:after[:times]], separated by ','"},
    [TUTTI_SETTING_TRANSPORT] =
        {.name = "TUTTI_TRANSPORT",
         .kind = TUTTI_SETTING_KIND_TEXT,
         .fallback = "",
         .help = "allowed transports, separated by ','; ranks of one host always use shm; default: the best"},
    [TUTTI_SETTING_PEER_TIMEOUT_MS] = {.name = "TUTTI_PEER_TIMEOUT_MS",
                                       .kind = TUTTI_SETTING_KIND_INT,
                                       .fallback = "10000",
                                       .least = 100,
                                       .most = INT64_C(1) << 31,
                                       .help = "a host that does not answer for this long counts as failed"},
    [TUTTI_SETTING_TCP_SOCKETS] = {.name = "TUTTI_TCP_SOCKETS",
                                   .kind = TUTTI_SETTING_KIND_INT,
                                   .fallback = "1",
                                   .least = 1,
                                   .most = 16,
                                   .agreed = true,
                                   .help = "TCP connections per peer, over which data is spread"},
    [TUTTI_SETTING_TCP_CONGESTION] = {.name = "TUTTI_TCP_CONGESTION",
                                      .kind = TUTTI_SETTING_KIND_TEXT,
                                      .fallback = "",
                                      .help = "congestion control of TCP connections, for example reno or bbr; "
                                              "default: the system's"},
    [TUTTI_SETTING_RDMA_DEVICE] =
        {.name = "TUTTI_RDMA_DEVICE",
         .kind = TUTTI_SETTING_KIND_TEXT,
         .fallback = "",
         .help = "RDMA ports to use, name[:port] separated by ','; default: those nearest to the CPU"},
    [TUTTI_SETTING_RDMA_GID_INDEX] = {.name = "TUTTI_RDMA_GID_INDEX",
                                      .kind = TUTTI_SETTING_KIND_TEXT,
                                      .fallback = "",
                                      .help = "index of the port's GID; default: RoCE v2 with IPv4, if there is one"},
    [TUTTI_SETTING_RDMA_DIRECT_BYTES] = {.name = "TUTTI_RDMA_DIRECT_BYTES",
                                         .kind = TUTTI_SETTING_KIND_BYTES,
                                         .fallback = "32K",
                                         .least = 0,
                                         .most = INT64_C(1) << 40,
                                         .help =
                                             "larger messages are written directly into the receiver's memory, others "
                                             "are copied"},
    [TUTTI_SETTING_RDMA_CACHE_BYTES] = {.name = "TUTTI_RDMA_CACHE_BYTES",
                                        .kind = TUTTI_SETTING_KIND_BYTES,
                                        .fallback = "16G",
                                        .least = 0,
                                        .most = INT64_C(1) << 44,
                                        .help = "maximum of memory that stays registered with RDMA adapters"},
    [TUTTI_SETTING_RDMA_SERVICE_LEVEL] = {.name = "TUTTI_RDMA_SERVICE_LEVEL",
                                          .kind = TUTTI_SETTING_KIND_INT,
                                          .fallback = "0",
                                          .least = 0,
                                          .most = 15,
                                          .help = "service level of RDMA packets (Ethernet: priority)"},
    [TUTTI_SETTING_RDMA_TRAFFIC_CLASS] = {.name = "TUTTI_RDMA_TRAFFIC_CLASS",
                                          .kind = TUTTI_SETTING_KIND_INT,
                                          .fallback = "0",
                                          .least = 0,
                                          .most = 255,
                                          .help = "traffic class of RoCE packets (their DSCP times 4)"},
    [TUTTI_SETTING_DEVICE] =
        {.name = "TUTTI_DEVICE",
         .kind = TUTTI_SETTING_KIND_INT,
         .fallback = "auto",
         .least = 0,
         .most = 1023,
         .help = "the GPU of this rank; auto: the rank table's device_id, or its rank on the host, modulo the "
                 "number of GPUs"},
    [TUTTI_SETTING_CUDA_MODULE] = {.name = "TUTTI_CUDA_MODULE",
                                   .kind = TUTTI_SETTING_KIND_TEXT,
                                   .fallback = "",
                                   .help = "for tests: file that is opened instead of libtutti_cuda.so"},
    [TUTTI_SETTING_CUDA_MAP] = {.name = "TUTTI_CUDA_MAP",
                                .kind = TUTTI_SETTING_KIND_CHOICE,
                                .fallback = "any",
                                .choices = "tutti|any",
                                .help = "memory of this rank that processes on the same GPU may map: tutti: of "
                                        "tutti_mem_alloc_cuda; any: of cudaMalloc as well"},
    [TUTTI_SETTING_CUDA_SLOT_BYTES] = {.name = "TUTTI_CUDA_SLOT_BYTES",
                                       .kind = TUTTI_SETTING_KIND_BYTES,
                                       .fallback = "64M",
                                       .least = 256,
                                       .most = INT64_C(1) << 34,
                                       .agreed = true,
                                       .help =
                                           "ranks on one GPU copy memory that others cannot map through slots on the "
                                           "GPU, each of at most twice this size"},
    [TUTTI_SETTING_CUDA_STAGE_BYTES] = {.name = "TUTTI_CUDA_STAGE_BYTES",
                                        .kind = TUTTI_SETTING_KIND_BYTES,
                                        .fallback = "4M",
                                        .least = 256,
                                        .most = INT64_C(1) << 30,
                                        .agreed = true,
                                        .help =
                                            "size of the pieces in which CUDA memory is copied through host memory"},
    [TUTTI_SETTING_BLOCKING_WAIT] = {.name = "TUTTI_BLOCKING_WAIT",
                                     .kind = TUTTI_SETTING_KIND_BOOL,
                                     .fallback = "0",
                                     .least = 0,
                                     .most = 1,
                                     .help = "under PyTorch, 1: wait() of an operation on CUDA tensors blocks the host "
                                             "and reports the operation's error (read by torch_tutti)"},
    [TUTTI_SETTING_AS_GLOO] = {.name = "TUTTI_AS_GLOO",
                               .kind = TUTTI_SETTING_KIND_BOOL,
                               .fallback = "0",
                               .least = 0,
                               .most = 1,
                               .help = "under PyTorch, 1: groups of backend gloo use Tutti under Gloo's name (read by "
                                       "torch_tutti)"},
    [TUTTI_SETTING_CUBLAS_LIBRARY] = {.name = "TUTTI_CUBLAS_LIBRARY",
                                      .kind = TUTTI_SETTING_KIND_TEXT,
                                      .fallback = "",
                                      .help = "library file of cuBLAS, for training on a GPU; default: search for it"},
    [TUTTI_SETTING_NCCL_LIBRARY] =
        {.name = "TUTTI_NCCL_LIBRARY",
         .kind = TUTTI_SETTING_KIND_TEXT,
         .fallback = "",
         .help = "library file of NCCL; default: the one loaded in the process, else search for it"},
};

typedef struct value {
    int64_t number;
    char *text;
} value;

static bool loaded; /* atomic: release pairs with the acquire in ensure_loaded */
static value values[TUTTI_SETTING_COUNT];
static char problem[512]; /* text of the first invalid variable */

/* Index of `text` in "a|b|c", or -1. */
static int64_t choice_index(const char *choices, const char *text) {
    size_t length = strlen(text);
    int64_t index = 0;
    for (const char *next = choices; next != NULL; index++) {
        const char *end = strchr(next, '|');
        size_t span = end != NULL ? (size_t)(end - next) : strlen(next);
        if (span == length && strncasecmp(next, text, length) == 0) return index;
        next = end != NULL ? end + 1 : NULL;
    }
    return -1;
}

static bool read_number(const tutti_setting_row *row, const char *text, int64_t *number_out) {
    char *end;
    *number_out = 0;
    if (strcmp(row->fallback, "auto") == 0 && strcmp(text, "auto") == 0) return true;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno != 0) return false;
    int shift = 0;
    if (row->kind == TUTTI_SETTING_KIND_BYTES && *end != '\0') {
        shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : *end == 'g' || *end == 'G' ? 30 : 0;
        if (shift != 0) end++;
    }
    if (*end != '\0' || number < 0 || number > (INT64_MAX >> shift)) return false;
    *number_out = (int64_t)number << shift;
    return *number_out >= row->least && *number_out <= row->most;
}

static bool read_value(const tutti_setting_row *row, const char *text, int64_t *number_out) {
    switch (row->kind) {
    case TUTTI_SETTING_KIND_TEXT: *number_out = 0; return true;
    case TUTTI_SETTING_KIND_CHOICE: *number_out = choice_index(row->choices, text); return *number_out >= 0;
    default: return read_number(row, text, number_out);
    }
}

static void note_problem(const tutti_setting_row *row, const char *text) {
    if (problem[0] != '\0') return;
    if (row->kind == TUTTI_SETTING_KIND_CHOICE)
        snprintf(problem, sizeof problem, "%s=%s: must be one of %s", row->name, text, row->choices);
    else
        snprintf(problem, sizeof problem, "%s=%s: must be a whole number from %lld to %lld%s", row->name, text,
                 (long long)row->least, (long long)row->most,
                 row->kind == TUTTI_SETTING_KIND_BYTES ? " (K, M and G allowed)" : "");
}

static void load(void) {
    problem[0] = '\0';
    for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
        const char *text = getenv(rows[i].name);
        if (text == NULL || *text == '\0') text = rows[i].fallback;
        if (!read_value(&rows[i], text, &values[i].number)) {
            note_problem(&rows[i], text);
            text = rows[i].fallback;
            read_value(&rows[i], text, &values[i].number);
        }
        free(values[i].text);
        values[i].text = strdup(text);
    }
}

static void ensure_loaded(void) {
    if (TUTTI_LIKELY(__atomic_load_n(&loaded, __ATOMIC_ACQUIRE))) return;
    tutti_lock(TUTTI_LOCK_SETTINGS);
    if (!__atomic_load_n(&loaded, __ATOMIC_RELAXED)) load();
    __atomic_store_n(&loaded, true, __ATOMIC_RELEASE);
    tutti_unlock(TUTTI_LOCK_SETTINGS);
}

tutti_status tutti_settings_check(void) {
    ensure_loaded();
    return problem[0] == '\0' ? TUTTI_OK : tutti_fail(TUTTI_ERR_CONFIG, "%s", problem);
}

int64_t tutti_setting_int(tutti_setting setting) {
    ensure_loaded();
    return values[setting].number;
}

const char *tutti_setting_text(tutti_setting setting) {
    ensure_loaded();
    return values[setting].text != NULL ? values[setting].text : "";
}

const tutti_setting_row *tutti_setting_row_of(tutti_setting setting) {
    return &rows[setting];
}

void tutti_settings_agreed(char *text, size_t capacity) {
    ensure_loaded();
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
        if (!rows[i].agreed || used >= capacity) continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s=%s", used > 0 ? " " : "", rows[i].name,
                                 tutti_setting_text((tutti_setting)i));
    }
}

void tutti_settings_reload(void) {
    tutti_lock(TUTTI_LOCK_SETTINGS);
    load();
    __atomic_store_n(&loaded, true, __ATOMIC_RELEASE);
    tutti_unlock(TUTTI_LOCK_SETTINGS);
}
