/*
 * Builds the command: a .py file, a file that is not executable and -m run with the Python interpreter, anything else
 * directly. Programs that cannot run are reported here, once, not by each rank.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tools/tuttirun/launch.h"

/* Whether a folder of PATH has the program. */
static bool in_path(const char *name) {
    const char *path = getenv("PATH");
    char full[4096];
    for (const char *next = path != NULL ? path : "/usr/bin:/bin"; *next != '\0';) {
        int length = (int)strcspn(next, ":");
        snprintf(full, sizeof full, "%.*s/%s", length, next, name);
        if (access(full, X_OK) == 0) return true;
        next += length;
        next += *next == ':';
    }
    return false;
}

static bool ends_with(const char *text, const char *end) {
    size_t bytes = strlen(text), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

/* Whether it is a script that names no interpreter: OneFlow's documents say "Do not prepend the training script with
 * python", whatever the script is called. */
static bool is_plain_file(const char *program) {
    struct stat file;
    if (strchr(program, '/') == NULL && in_path(program)) return false;
    return stat(program, &file) == 0 && S_ISREG(file.st_mode) && access(program, X_OK) != 0;
}

static tutti_status check_program(const char *program, char *path, size_t capacity) {
    snprintf(path, capacity, "%s", program);
    if (strchr(program, '/') == NULL) {
        if (in_path(program)) return TUTTI_OK;
        snprintf(path, capacity, "./%s", program); /* a program in the current folder, named without ./ like a script */
    }
    if (access(path, F_OK) != 0) return tutti_fail(TUTTI_ERR_ARGUMENT, "no such program: %s", program);
    if (access(path, X_OK) != 0)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "cannot run %s: %s; chmod +x it, name its interpreter, or leave out --no-python for a Python script",
            program, strerror(errno));
    return TUTTI_OK;
}

static tutti_status check_python(const tutti_launch_options *options, const char *python) {
    if (!(strchr(python, '/') != NULL ? access(python, X_OK) == 0 : in_path(python)))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "no Python interpreter '%s'; install it or set PYTHON_EXEC", python);
    if (!options->module && access(options->program[0], R_OK) != 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "cannot read %s: %s", options->program[0], strerror(errno));
    return TUTTI_OK;
}

/* Makes a path absolute: with --rank-dirs each rank starts in a folder of its own. */
static tutti_status make_absolute(char *path, size_t capacity) {
    char folder[4096], relative[4096];
    if (strchr(path, '/') == NULL || path[0] == '/') return TUTTI_OK; /* will be found in PATH, or is absolute */
    if (getcwd(folder, sizeof folder) == NULL) return tutti_fail_errno(errno, "cannot determine the current folder");
    snprintf(relative, sizeof relative, "%s", path);
    if ((size_t)snprintf(path, capacity, "%s/%s", folder, relative) < capacity) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "the path of %s in this folder is too long", relative);
}

tutti_status tutti_launch_command(const tutti_launch_options *options, char ***argv_out) {
    static char path[4096], script[4096];
    static char unbuffered[] = "-u", module[] = "-m";
    const char *chosen = getenv("PYTHON_EXEC");
    char **argv;
    size_t count = 0, used = 0;
    const char *program = options->program[0];
    bool python = !options->no_python && (options->module || ends_with(program, ".py") || is_plain_file(program));
    if (python) {
        snprintf(path, sizeof path, "%s", chosen != NULL && *chosen != '\0' ? chosen : "python3");
        TUTTI_TRY(check_python(options, path));
    } else {
        TUTTI_TRY(check_program(options->program[0], path, sizeof path));
    }
    if (options->rank_dirs != NULL) TUTTI_TRY(make_absolute(path, sizeof path));
    while (options->program[count] != NULL) count++;
    TUTTI_TRY(tutti_calloc(count + 4, sizeof(char *), &argv));
    argv[used++] = path;
    if (python) argv[used++] = unbuffered;
    if (python && options->module) argv[used++] = module;
    for (size_t i = python ? 0 : 1; i < count; i++) argv[used++] = options->program[i];
    if (python && !options->module && options->rank_dirs != NULL) {
        snprintf(script, sizeof script, "%s%s", strchr(options->program[0], '/') == NULL ? "./" : "",
                 options->program[0]);
        const tutti_status status = make_absolute(script, sizeof script);
        if (status != TUTTI_OK) free(argv);
        TUTTI_TRY(status);
        argv[2] = script; /* after the interpreter and -u */
    }
    *argv_out = argv;
    return TUTTI_OK;
}
