/*
 * Which NCCL library is used, and the reasons given for the others. The libraries are stand-ins that can only be
 * found (support/standins/standin_nccl_bad.c), so nothing here needs a GPU or NCCL.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/gpu/nccl/nccl_library.h"

static char file[512];

/* The path of the stand-in lib<name>.so in the build. */
static const char *built(const char *name) {
    const char *build = getenv("TUTTI_BUILD");
    snprintf(file, sizeof file, "%s/tests/lib%s.so", build != NULL ? build : ".", name);
    return file;
}

static tutti_status open_named(const char *path, const tutti_nccl **nccl_out) {
    setenv("TUTTI_NCCL_LIBRARY", path, 1);
    tutti_settings_reload();
    tutti_nccl_forget();
    return tutti_nccl_open(nccl_out);
}

/* Only the test's own settings: no Python environment, no library path. */
static void forget_places(void) {
    static const char *const names[] = {"TUTTI_NCCL_LIBRARY", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    tutti_settings_reload();
    tutti_nccl_forget();
}

static void expect_reason(const char *path, const char *reason) {
    const tutti_nccl *nccl;
    cr_assert_eq(open_named(path, &nccl), TUTTI_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(tutti_last_error(), reason), "'%s' is not in: %s", reason, tutti_last_error());
    cr_assert_not_null(strstr(tutti_last_error(), "TUTTI_NCCL_LIBRARY: "), "%s", tutti_last_error());
}

Test(nccl_library, a_named_file_that_is_not_there_is_the_reason) {
    expect_reason("/there/is/no/libnccl.so", "/there/is/no/libnccl.so");
}

Test(nccl_library, a_file_that_is_not_nccl_is_the_reason) {
    expect_reason(built("standin_nccl_empty"), "has no ncclGetVersion");
}

Test(nccl_library, a_library_that_is_too_old_is_named_with_both_versions) {
    expect_reason(built("standin_nccl_old"), "is NCCL 2.17.1, and 2.18.0 or newer is needed");
}

Test(nccl_library, the_call_that_a_library_lacks_is_named) {
    expect_reason(built("standin_nccl_lacking"), "(NCCL 2.20.5) lacks ncclCommAbort (2.4)");
}

Test(nccl_library, a_library_without_optional_calls_is_used_and_they_are_named) {
    const tutti_nccl *nccl;
    cr_assert_eq(open_named(built("standin_nccl_plain"), &nccl), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_eq(nccl->version, 21803);
    cr_assert_str_eq(
        nccl->lacking,
        "ncclGetLastError (2.13), ncclCommSplit (2.18), ncclCommRegister (2.19), ncclCommDeregister (2.19), "
        "ncclMemAlloc (2.19), ncclMemFree (2.19)");
    cr_assert_null(nccl->ncclMemAlloc);
    cr_assert_not_null(nccl->ncclAllReduce);
    cr_assert_str_eq(nccl->file, file);
}

Test(nccl_library, the_library_in_the_process_is_preferred) {
    const tutti_nccl *nccl;
    forget_places();
    cr_assert_not_null(dlopen(built("standin_nccl_whole"), RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    cr_assert_eq(tutti_nccl_open(&nccl), TUTTI_OK, "%s", tutti_last_error());
    cr_assert_str_eq(nccl->file, file);
    cr_assert_str_eq(nccl->lacking, "");
}

/* root/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2, as pip installs it. */
static void make_environment(char *root, const char *library) {
    static const char *const parts[] = {"lib", "python3.9", "site-packages", "nvidia", "nccl", "lib"};
    char path[600];
    cr_assert_not_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s", root);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        strcat(strcat(path, "/"), parts[i]);
        cr_assert_eq(mkdir(path, 0700), 0);
    }
    cr_assert_eq(symlink(library, strcat(path, "/libnccl.so.2")), 0);
}

static void remove_environment(char *root) {
    char path[600];
    snprintf(path, sizeof path, "%s/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2", root);
    unlink(path);
    for (char *slash = strrchr(path, '/'); strlen(path) > strlen(root); slash = strrchr(path, '/')) {
        *slash = '\0';
        cr_expect_eq(rmdir(path), 0, "%s", path);
    }
}

Test(nccl_library, a_python_environment_is_searched) {
    const tutti_nccl *nccl;
    char root[] = "/tmp/tutti-test-XXXXXX";
    forget_places();
    make_environment(root, built("standin_nccl_whole"));
    setenv("VIRTUAL_ENV", root, 1);
    tutti_status status = tutti_nccl_open(&nccl);
    bool ours = status == TUTTI_OK && strncmp(nccl->file, root, strlen(root)) == 0;
    bool system = status == TUTTI_OK && strncmp(nccl->file, "/tmp", 4) != 0; /* this machine has NCCL: it comes first */
    remove_environment(root);
    cr_assert_eq(status, TUTTI_OK, "%s", tutti_last_error());
    cr_assert(ours || system, "%s", nccl->file);
}

Test(nccl_library, each_place_that_was_passed_over_is_named) {
    const tutti_nccl *nccl;
    char root[] = "/tmp/tutti-test-XXXXXX";
    forget_places();
    make_environment(root, built("standin_nccl_old"));
    setenv("VIRTUAL_ENV", root, 1);
    tutti_status status = tutti_nccl_open(&nccl);
    remove_environment(root);
    if (status == TUTTI_OK) cr_skip_test("this machine has NCCL");
    cr_assert_not_null(strstr(tutti_last_error(), "this process has none loaded"), "%s", tutti_last_error());
    cr_assert_not_null(strstr(tutti_last_error(), "libnccl.so.2: cannot open"), "%s", tutti_last_error());
    cr_assert_not_null(strstr(tutti_last_error(), root), "%s", tutti_last_error());
    cr_assert_not_null(strstr(tutti_last_error(), "is NCCL 2.17.1"), "%s", tutti_last_error());
}

Test(nccl_library, the_answer_stays) {
    const tutti_nccl *first, *second;
    cr_assert_eq(open_named(built("standin_nccl_whole"), &first), TUTTI_OK);
    setenv("TUTTI_NCCL_LIBRARY", "/there/is/no/libnccl.so", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_nccl_open(&second), TUTTI_OK);
    cr_assert_eq(first, second);
}

Test(nccl_library, versions_are_written_as_users_write_them) {
    char text[16];
    cr_assert_str_eq(tutti_nccl_version_text(22809, text), "2.28.9");
    cr_assert_str_eq(tutti_nccl_version_text(21800, text), "2.18.0");
    cr_assert_str_eq(tutti_nccl_version_text(2708, text), "2.7.8");
}

#ifdef TUTTI_HAVE_NCCL_H
int nccl_abi_magic_is_same(void); /* support/nccl_abi_check.c; the compiler has checked the rest */

Test(nccl_library, our_declarations_are_those_of_nccl_h) {
    cr_assert(nccl_abi_magic_is_same());
}
#endif
