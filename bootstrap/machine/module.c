/*
 * Finding a module's file, opening it, and starting it.
 */
#include "bootstrap/machine/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"

static const tutti_module_host host = {.version = TUTTI_MODULE_VERSION,
                                       .fail = tutti_fail,
                                       .calloc = tutti_calloc,
                                       .last_error = tutti_last_error,
                                       .log = tutti_log,
                                       .setting_int = tutti_setting_int,
                                       .setting_text = tutti_setting_text,
                                       .fault = tutti_fault,
                                       .deadline_passed = tutti_deadline_passed,
                                       .deadline_left_ms = tutti_deadline_left_ms};

/* Finds the folder of the file that contains this code: libtutti, or a program that links it statically. The loader
 * is asked, because a program may be installed anywhere and started under any name. */
static bool own_folder(char folder[PATH_MAX]) {
    Dl_info info;
    struct link_map *object = NULL;
    bool known = dladdr1(&host, &info, (void **)&object, RTLD_DL_LINKMAP) != 0 && object != NULL;
    const char *file =
        known && object->l_name[0] != '\0' ? object->l_name : "/proc/self/exe"; /* the program itself has no name */
    if (realpath(file, folder) == NULL) return false;
    *strrchr(folder, '/') = '\0';
    return true;
}

static tutti_status start(void *object, const char *file, const tutti_module_calls **calls_out) {
    tutti_module_start_function *function;
    const tutti_module_calls *calls = NULL;
    void *symbol = dlsym(object, "tutti_module_start");
    if (symbol == NULL) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s is not a module of Tutti", file);
    memcpy(&function, &symbol, sizeof function);
    TUTTI_TRY(function(&host, &calls));
    if (calls->version != TUTTI_MODULE_VERSION)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s is of another version of Tutti; install both from the same build",
                          file);
    *calls_out = calls;
    return TUTTI_OK;
}

/* If the file exists but cannot be used, that is the error to report; no other file is tried after it. */
tutti_status tutti_module_open_file(const char *file, const tutti_module_calls **calls_out) {
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "cannot load %s: %s", file, dlerror());
    tutti_status status = start(object, file, calls_out);
    if (status != TUTTI_OK) dlclose(object);
    return status;
}

tutti_status tutti_module_open(const char *name, const char *left_out, const tutti_module_calls **calls_out) {
    static const char *const places[] = {".", TUTTI_LIBRARIES_FROM_PROGRAMS, "../lib"};
    char folder[PATH_MAX] = "", file[PATH_MAX + 128], plain[64];
    if (left_out[0] != '\0')
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "the module %s is not part of this build: %s", name, left_out);
    snprintf(plain, sizeof plain, "libtutti_%s.so", name);
    bool known = own_folder(folder);
    for (size_t i = 0; known && i < TUTTI_COUNT_OF(places); i++) {
        snprintf(file, sizeof file, "%s/%s/%s", folder, places[i], plain);
        if (access(file, F_OK) == 0) return tutti_module_open_file(file, calls_out);
    }
    void *object = dlopen(plain, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "there is no %s in %s, %s/%s or the system's library paths", plain,
                          folder, folder, TUTTI_LIBRARIES_FROM_PROGRAMS);
    dlclose(object); /* tutti_module_open_file opens it again and reports what is wrong */
    return tutti_module_open_file(plain, calls_out);
}

void tutti_module_pin_library(void) {
    static const char here;
    Dl_info own;
    if (dladdr(&here, &own) != 0 && own.dli_fname != NULL)
        (void)dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}
