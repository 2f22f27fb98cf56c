/*
 * Modules: parts that need a library (hwloc, libibverbs) are built as libtutti_<name>.so beside libtutti and opened
 * when first needed, so that libtutti itself depends only on libc.
 *
 * A module exports one function, tutti_module_start: it receives a table of the host's functions and returns a
 * table of its own functions. A module never links against the host. Both sides must have the same version.
 */
#ifndef TUTTI_BOOTSTRAP_MODULE_H
#define TUTTI_BOOTSTRAP_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"

/* Version of all these tables: first in each, so that it can be read even if other fields have changed. */
#define TUTTI_MODULE_VERSION ((uint32_t)(TUTTI_VERSION_MAJOR << 16 | TUTTI_VERSION_MINOR << 8 | TUTTI_VERSION_PATCH))

/* Functions that the host provides to a module. */
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

/* A module's own table begins with this struct. */
typedef struct tutti_module_calls {
    uint32_t version;
} tutti_module_calls;

typedef tutti_status tutti_module_start_function(const tutti_module_host *host, const tutti_module_calls **calls_out);
/* Defined by each module. */
__attribute__((visibility("default"))) tutti_module_start_function tutti_module_start;

/* Returns the table of libtutti_<name>.so. `left_out`: why this build lacks the module; "": it is included. The file is
 * searched for beside libtutti (for a program, in the lib folder beside the program's folder), then in the system's
 * library paths. It stays open. Fails with TUTTI_ERR_UNSUPPORTED when no usable module exists; the error gives the
 * reason and the places searched. */
tutti_status tutti_module_open(const char *name, const char *left_out, const tutti_module_calls **calls_out);

/* Returns the table of the given file. */
tutti_status tutti_module_open_file(const char *file, const tutti_module_calls **calls_out);

/* Keeps this library in memory until the process ends, even if the program closes it: for a thread that is left
 * behind in foreign code and later returns to the library's code. */
void tutti_module_pin_library(void);

#endif
