/*
 * Finds NCCL, opens it, and checks the library. See nccl_library.h.
 *
 * A library is checked in this order: can it be opened, which version is it, which calls does it lack. A rejected
 * library is listed in the error with the reason, and the next place is tried.
 */
#include "comm/gpu/nccl/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"

#define PLAIN_NAME "libnccl.so.2"

enum { OPTIONAL, REQUIRED };

typedef struct row {
    const char *name;
    int since, need;
    size_t offset; /* in tutti_nccl */
} row;

#define ROW(call, since_version, need_it, result, arguments)                                                           \
    {.name = #call, .since = (since_version), .need = (need_it), .offset = offsetof(tutti_nccl, call)},
static const row rows[] = {TUTTI_NCCL_CALLS(ROW)};
#undef ROW

/* The search: the library found, or the reasons why there is none. */
typedef struct search {
    tutti_nccl nccl;
    char reasons[TUTTI_ERROR_TEXT_BYTES - 256];
    size_t used;
} search;

static bool searched, found; /* under lock */
static search answer;        /* under lock until searched; then read only */

TUTTI_PRINTF(2, 3) static bool pass_over(search *s, const char *format, ...) {
    size_t left = sizeof s->reasons - s->used;
    va_list arguments;
    va_start(arguments, format);
    int more = s->used > 0 ? snprintf(s->reasons + s->used, left, "; ") : 0;
    s->used = tutti_min_size(s->used + (size_t)more, sizeof s->reasons - 1);
    more = vsnprintf(s->reasons + s->used, sizeof s->reasons - s->used, format, arguments);
    s->used = tutti_min_size(s->used + (size_t)more, sizeof s->reasons - 1);
    va_end(arguments);
    return false;
}

const char *tutti_nccl_version_text(int version, char text[16]) {
    bool old = version < 10000; /* one digit less up to 2.8 */
    snprintf(text, 16, "%d.%d.%d", version / (old ? 1000 : 10000) % 100, version / 100 % (old ? 10 : 100),
             version % 100);
    return text;
}

/* Adds "ncclMemAlloc (2.19)": the name with the version that introduced it. */
static void add_name(char *list, size_t capacity, const row *lacked) {
    size_t used = strlen(list);
    const char *comma = used > 0 ? ", " : "";
    if (lacked->since == 0) snprintf(list + used, capacity - used, "%s%s", comma, lacked->name);
    else snprintf(list + used, capacity - used, "%s%s (2.%d)", comma, lacked->name, lacked->since / 100);
}

/* Fills the calls of nccl from the opened object; `missing` gets the names of missing required calls. */
static void take_calls(void *object, tutti_nccl *nccl, char *missing, size_t capacity) {
    missing[0] = nccl->lacking[0] = '\0';
    for (size_t i = 0; i < TUTTI_COUNT_OF(rows); i++) {
        void *symbol = dlsym(object, rows[i].name);
        memcpy((char *)nccl + rows[i].offset, &symbol, sizeof symbol);
        if (symbol != NULL) continue;
        if (rows[i].need == REQUIRED) add_name(missing, capacity, &rows[i]);
        else add_name(nccl->lacking, sizeof nccl->lacking, &rows[i]);
    }
}

/* Sets the path of the file that holds the library's code, for logs and errors. */
static void tell_file(tutti_nccl *nccl, const char *opened_as) {
    Dl_info info;
    void *code;
    memcpy(&code, &nccl->ncclGetVersion, sizeof code);
    bool known = dladdr(code, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] != '\0';
    snprintf(nccl->file, sizeof nccl->file, "%s", known ? info.dli_fname : opened_as);
}

/* Accepts the opened library, or records why not. */
static bool judge(search *s, void *object, const char *name) {
    tutti_nccl nccl = {.version = 0};
    char missing[512], version[16], oldest[16];
    take_calls(object, &nccl, missing, sizeof missing);
    if (nccl.ncclGetVersion == NULL) return pass_over(s, "%s is not NCCL: it has no ncclGetVersion", name);
    if (nccl.ncclGetVersion(&nccl.version) != TUTTI_NCCL_SUCCESS) return pass_over(s, "%s returns no version", name);
    tutti_nccl_version_text(nccl.version, version);
    if (nccl.version < TUTTI_NCCL_OLDEST)
        return pass_over(s, "%s is NCCL %s, and %s or newer is needed", name, version,
                         tutti_nccl_version_text(TUTTI_NCCL_OLDEST, oldest));
    if (missing[0] != '\0') return pass_over(s, "%s (NCCL %s) lacks %s", name, version, missing);
    tell_file(&nccl, name);
    s->nccl = nccl;
    return true;
}

static bool try_file(search *s, const char *file) {
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL) {
        const char *reason = dlerror();
        bool named = strstr(reason, file) != NULL; /* the loader's text usually begins with the name */
        return pass_over(s, "%s%s%s", named ? "" : file, named ? "" : ": ", reason);
    }
    if (judge(s, object, file)) return true; /* stays open */
    dlclose(object);
    return false;
}

/* Tries libraries that may already be loaded with NCCL: NCCL itself, and PyTorch's, which some builds link it into. */
static bool try_loaded(search *s) {
    static const char *const names[] = {PLAIN_NAME, "libtorch_cuda.so"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++) {
        void *object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (object == NULL) continue;
        bool has_it = dlsym(object, "ncclGetVersion") != NULL;
        if (has_it && judge(s, object, names[i])) return true;
        dlclose(object);
    }
    void *program = dlopen(NULL, RTLD_NOW);
    if (program != NULL && dlsym(program, "ncclGetVersion") != NULL && judge(s, program, "this program")) return true;
    return s->used > 0 ? false : pass_over(s, "this process has none loaded");
}

/* Tries the files that match. No match is not recorded: try_usual_places reports that once. */
static bool try_pattern(search *s, const char *pattern) {
    glob_t files;
    bool taken = false;
    if (glob(pattern, 0, NULL, &files) != 0) return false;
    for (size_t i = 0; i < files.gl_pathc && !taken; i++) taken = try_file(s, files.gl_pathv[i]);
    globfree(&files);
    return taken;
}

TUTTI_PRINTF(2, 3) static bool try_place(search *s, const char *format, ...) {
    char pattern[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(pattern, sizeof pattern, format, arguments);
    va_end(arguments);
    return bytes > 0 && (size_t)bytes < sizeof pattern && try_pattern(s, pattern);
}

/* Tries a Python environment: venv, conda, a user's or the system's packages. */
static bool try_environment(search *s, const char *root) {
    return try_place(s, "%s/lib/python3*/site-packages/nvidia/nccl/lib/" PLAIN_NAME, root) ||
           try_place(s, "%s/lib/" PLAIN_NAME, root) ||
           try_place(s, "%s/lib/python3*/dist-packages/nvidia/nccl/lib/" PLAIN_NAME, root);
}

/* The folder above that of the program as it was called: a venv's Python is a link, which /proc/self/exe resolves. */
static bool called_root(char root[PATH_MAX]) {
    char called[PATH_MAX];
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (file == NULL) return false;
    size_t bytes = fread(called, 1, sizeof called - 1, file);
    fclose(file);
    called[bytes] = '\0';
    char *slash = strrchr(called, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    slash = strrchr(called, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    snprintf(root, PATH_MAX, "%s", called);
    return root[0] != '\0';
}

/* Tries the packages next to this library: in a wheel it is site-packages/<package>/lib/libtutti.so. */
static bool try_neighbours(search *s) {
    Dl_info info;
    char folder[PATH_MAX];
    if (dladdr(&rows, &info) == 0 || info.dli_fname == NULL || realpath(info.dli_fname, folder) == NULL) return false;
    char *slash = strrchr(folder, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return try_place(s, "%s/../nvidia/nccl/lib/" PLAIN_NAME, folder) ||
           try_place(s, "%s/../../nvidia/nccl/lib/" PLAIN_NAME, folder);
}

static bool try_usual_places(search *s) {
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    const char *cuda = getenv("CUDA_HOME"), *home = getenv("HOME");
    char root[PATH_MAX];
    if (try_file(s, PLAIN_NAME)) return true; /* LD_LIBRARY_PATH, ld.so.cache, /usr/lib */
    if (cuda != NULL && (try_place(s, "%s/lib64/" PLAIN_NAME, cuda) || try_place(s, "%s/lib/" PLAIN_NAME, cuda)))
        return true;
    if (try_pattern(s, "/usr/local/cuda/lib64/" PLAIN_NAME) || try_pattern(s, "/usr/local/nccl*/lib/" PLAIN_NAME))
        return true;
    if (try_neighbours(s)) return true;
    for (size_t i = 0; i < TUTTI_COUNT_OF(variables); i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0' && try_environment(s, value)) return true;
    }
    if (called_root(root) && try_environment(s, root)) return true;
    if (home != NULL && try_place(s, "%s/.local/lib/python3*/site-packages/nvidia/nccl/lib/" PLAIN_NAME, home))
        return true;
    if (try_environment(s, "/usr/local") || try_environment(s, "/usr")) return true;
    return pass_over(s, "no " PLAIN_NAME " in CUDA's folders or in the packages of a Python environment");
}

static bool look(search *s) {
    const char *named = tutti_setting_text(TUTTI_SETTING_NCCL_LIBRARY);
    if (named[0] != '\0') {
        if (try_file(s, named)) return true;
        char reason[sizeof s->reasons];
        snprintf(reason, sizeof reason, "%s", s->reasons);
        s->used = 0;
        return pass_over(s, "TUTTI_NCCL_LIBRARY: %s", reason);
    }
    return try_loaded(s) || try_usual_places(s);
}

static void log_found(const tutti_nccl *nccl) {
    char version[16];
    tutti_log(TUTTI_LOG_INFO, "NCCL %s from %s%s%s", tutti_nccl_version_text(nccl->version, version), nccl->file,
              nccl->lacking[0] != '\0' ? "; without " : "", nccl->lacking);
}

tutti_status tutti_nccl_open(const tutti_nccl **nccl_out) {
    tutti_lock(TUTTI_LOCK_NCCL_LIBRARY);
    if (!searched) {
        answer.used = 0;
        found = look(&answer);
        searched = true;
        if (found) log_found(&answer.nccl);
    }
    bool good = found;
    tutti_unlock(TUTTI_LOCK_NCCL_LIBRARY);
    if (!good)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "no usable NCCL library was found: %s. Set TUTTI_NCCL_LIBRARY to one (pip install "
                          "nvidia-nccl-cu13 provides one)",
                          answer.reasons);
    *nccl_out = &answer.nccl;
    return TUTTI_OK;
}

void tutti_nccl_forget(void) {
    tutti_lock(TUTTI_LOCK_NCCL_LIBRARY);
    searched = found = false;
    tutti_unlock(TUTTI_LOCK_NCCL_LIBRARY);
}
