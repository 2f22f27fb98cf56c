/*
 * All TUTTI_* environment variables of the library, in one table (settings.c): name, kind, default, bounds,
 * description. They are read once, at first use; tests may reload them. The first value that is malformed or out of
 * bounds is recorded, and creating a communicator then fails with the allowed range.
 */
#ifndef TUTTI_BASE_SETTINGS_H
#define TUTTI_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

typedef enum tutti_setting {
    TUTTI_SETTING_LOG,
    TUTTI_SETTING_TIMEOUT_MS,
    TUTTI_SETTING_STALL_MS,
    TUTTI_SETTING_CONNECT_TIMEOUT_MS,
    TUTTI_SETTING_ALGORITHM,
    TUTTI_SETTING_PLAN,
    TUTTI_SETTING_CHUNK_BYTES,
    TUTTI_SETTING_EAGER_BYTES,
    TUTTI_SETTING_HEAP_BYTES,
    TUTTI_SETTING_SPIN_US,
    TUTTI_SETTING_CPUS,
    TUTTI_SETTING_HOST_ID,
    TUTTI_SETTING_SOCKET_IFNAME,
    TUTTI_SETTING_PORTS,
    TUTTI_SETTING_ADVERTISE,
    TUTTI_SETTING_STORE_PORT,
    TUTTI_SETTING_SECRET,
    TUTTI_SETTING_SECRET_FILE,
    TUTTI_SETTING_SECRET_REQUIRED,
    TUTTI_SETTING_OTHER_USERS,
    TUTTI_SETTING_ENCRYPT,
    TUTTI_SETTING_DETERMINISTIC,
    TUTTI_SETTING_FAULT,
    TUTTI_SETTING_TRANSPORT,
    TUTTI_SETTING_PEER_TIMEOUT_MS,
    TUTTI_SETTING_TCP_SOCKETS,
    TUTTI_SETTING_TCP_CONGESTION,
    TUTTI_SETTING_RDMA_DEVICE,
    TUTTI_SETTING_RDMA_GID_INDEX,
    TUTTI_SETTING_RDMA_DIRECT_BYTES,
    TUTTI_SETTING_RDMA_CACHE_BYTES,
    TUTTI_SETTING_RDMA_SERVICE_LEVEL,
    TUTTI_SETTING_RDMA_TRAFFIC_CLASS,
    TUTTI_SETTING_DEVICE,
    TUTTI_SETTING_CUDA_MODULE,
    TUTTI_SETTING_CUDA_MAP,
    TUTTI_SETTING_CUDA_SLOT_BYTES,
    TUTTI_SETTING_CUDA_STAGE_BYTES,
    TUTTI_SETTING_BLOCKING_WAIT,
    TUTTI_SETTING_AS_GLOO,
    TUTTI_SETTING_CUBLAS_LIBRARY,
    TUTTI_SETTING_NCCL_LIBRARY,
    TUTTI_SETTING_COUNT
} tutti_setting;

typedef enum tutti_setting_kind {
    TUTTI_SETTING_KIND_INT,
    TUTTI_SETTING_KIND_BYTES, /* with suffix K, M or G (powers of 1024); "auto", where it is the default, reads as 0 */
    TUTTI_SETTING_KIND_BOOL,  /* 0 or 1 */
    TUTTI_SETTING_KIND_CHOICE,
    TUTTI_SETTING_KIND_TEXT
} tutti_setting_kind;

typedef struct tutti_setting_row {
    const char *name; /* the environment variable */
    tutti_setting_kind kind;
    const char *fallback; /* the default, as text */
    int64_t least, most;  /* bounds of numbers */
    const char *choices;  /* CHOICE: names separated by '|'; the value is the index */
    bool agreed;          /* must be equal on all ranks of a communicator */
    const char *help;
} tutti_setting_row;

/* Fails with TUTTI_ERR_CONFIG when a variable is invalid; the error gives its name, value and allowed range. */
tutti_status tutti_settings_check(void);
/* Returns the number, the bytes, 0 or 1, or the index of the choice. */
int64_t tutti_setting_int(tutti_setting setting);
/* Returns the text, or the default when unset. Valid until the variables are reloaded. */
const char *tutti_setting_text(tutti_setting setting);
/* Returns the table's row, for help texts. */
const tutti_setting_row *tutti_setting_row_of(tutti_setting setting);
/* Writes "NAME=value NAME=value" for all settings that must be equal on all ranks. */
void tutti_settings_agreed(char *text, size_t capacity);
/* Reads the environment again. Only for tests, while no communicator exists. */
void tutti_settings_reload(void);

#endif
