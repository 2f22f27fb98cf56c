/*
 * Where the module for GPUs finds cuBLAS, and the error if it does not. The libraries are stand-ins that can only be
 * found, not used (support/standins/standin_blas.c). The search happens once per process, and each test is a process.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/compute.h"
#include "tests/support/programs/shell.h"

static const tutti_module_host host = {
    .fail = tutti_fail, .last_error = tutti_last_error, .setting_text = tutti_setting_text};
const tutti_module_host *tutti_cuda_host = &host;

TestSuite(blas_library, .init = shell_enter_folder, .fini = shell_leave_folder, .timeout = 60);

static tutti_status open_named(const char *name, const tutti_blas_library **library_out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/lib%s.so", getenv("TUTTI_BUILD"), name);
    setenv("TUTTI_CUBLAS_LIBRARY", name[0] == '/' ? name : path, 1);
    tutti_settings_reload();
    return tutti_blas_library_open(library_out);
}

static void expect_reason(const char *name, const char *reason) {
    const tutti_blas_library *library;
    for (int i = 0; i < 2; i++) { /* it stays */
        cr_assert_eq(open_named(name, &library), TUTTI_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(tutti_last_error(), reason), "'%s' is not in: %s", reason, tutti_last_error());
    }
}

Test(blas_library, a_named_file_that_is_missing_is_the_reason) {
    expect_reason("/there/is/no/libcublas.so", "/there/is/no/libcublas.so cannot be opened");
}

Test(blas_library, missing_functions_of_a_library_are_named) {
    expect_reason("standin_blas_lacking", "cuBLAS has no cublasGemmEx");
}

Test(blas_library, the_named_library_is_used) {
    const tutti_blas_library *library;
    cr_assert_eq(open_named("standin_blas", &library), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(library->gemm != NULL && library->create != NULL);
}

/* A Python environment in this folder, as pip makes it, and no other place. A system's cuBLAS takes precedence. */
static void expect_found_in_environment(void) {
    const tutti_blas_library *library;
    Dl_info info;
    void *code;
    cr_assert_eq(shell_run("mkdir -p env/bin env/lib/python3.9/site-packages/nvidia/cu13/lib && ln -s "
                           "$TUTTI_BUILD/tests/libstandin_blas.so "
                           "env/lib/python3.9/site-packages/nvidia/cu13/lib/libcublas.so.13"),
                 0, "%s", shell_output);
    tutti_settings_reload();
    cr_assert_eq(tutti_blas_library_open(&library), TUTTI_OK, "%s", tutti_last_error());
    memcpy(&code, &library->gemm, sizeof code);
    cr_assert_neq(dladdr(code, &info), 0);
    bool systems = strstr(info.dli_fname, "env/lib/python3.9") == NULL;
    cr_assert(!systems || strncmp(info.dli_fname, "/usr", 4) == 0 || strncmp(info.dli_fname, "/opt", 4) == 0, "%s",
              info.dli_fname);
}

static void forget_places(void) {
    static const char *const names[] = {"TUTTI_CUBLAS_LIBRARY", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

Test(blas_library, a_python_environment_is_searched) {
    forget_places();
    setenv("VIRTUAL_ENV", "env", 1);
    expect_found_in_environment();
}

Test(blas_library, environments_with_programs_on_the_path_are_searched) {
    char path[4096];
    forget_places();
    snprintf(path, sizeof path, "/nowhere/bin:env/bin:%s", getenv("PATH"));
    setenv("PATH", path, 1);
    expect_found_in_environment();
}
