/*
 * Modules: parts that need a library (hwloc, libibverbs) live in libtutti_<name>.so beside libtutti, opened when first needed, so
 * that libtutti itself loads with nothing but libc.
 *
 * A module exports one function, tutti_module_start: it is given a table of what the host does for it, and gives
 * the table of what it does for the host. It never links back. Both sides must be of the same version.
 */
#ifndef TUTTI_BOOTSTRAP_MODULE_H
#define TUTTI_BOOTSTRAP_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"

/* Of these tables and all that modules define; first in both, so that it can be read whatever else has changed. */
#define TUTTI_MODULE_VERSION ((uint32_t)(TUTTI_VERSION_MAJOR << 16 | TUTTI_VERSION_MINOR << 8 | TUTTI_VERSION_PATCH))

/* What the host does for a module. */
typedef struct tutti_module_host {
    uint32_t version;
    tutti_status (*fail)(tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3); /* tutti_fail */
    tutti_status (*calloc)(size_t count, size_t item_bytes, void *memory_out);             /* tutti_calloc */
    const char *(*last_error)(void);                                                       /* tutti_last_error */
    void (*log)(tutti_log_level level, const char *format, ...) TUTTI_PRINTF(2, 3);        /* tutti_log */
    int64_t (*setting_int)(tutti_setting setting);                                         /* tutti_setting_int */
    const char *(*setting_text)(tutti_setting setting);                                    /* tutti_setting_text */
    bool (*fault)(const char *name);                                                       /* tutti_fault */
    bool (*deadline_passed)(tutti_deadline *deadline);                                     /* tutti_deadline_passed */
    int (*deadline_left_ms)(const tutti_deadline *deadline);                               /* tutti_deadline_left_ms */
} tutti_module_host;

/* A module's own table begins with this. */
typedef struct tutti_module_calls {
    uint32_t version;
} tutti_module_calls;

typedef tutti_status tutti_module_start_function(const tutti_module_host *host, const tutti_module_calls **calls_out);

/* The table of libtutti_<name>.so, looked for beside libtutti (or, in a program, in the lib folder beside the
 * program's own), then where the system looks for libraries. It stays open. TUTTI_ERR_UNSUPPORTED, with the reason
 * and where was looked, when there is none that can be used. */
tutti_status tutti_module_open(const char *name, const tutti_module_calls **calls_out);

/* The table of this very file. */
tutti_status tutti_module_open_file(const char *file, const tutti_module_calls **calls_out);

/* From now on this library stays in memory until the process ends, even if the program closes it: for a thread that is left
 * behind in somebody else's code and returns to ours. */
void tutti_module_pin_library(void);

#endif
