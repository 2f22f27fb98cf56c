/*
 * Searches for cuBLAS. Only the headers' major version is accepted: others have other calls.
 */
#include "kernels/cuda/blas_library.h"
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/compute.h"

#define TEXT_OF_(value) #value
#define TEXT_OF(value)  TEXT_OF_(value)
#define FILE_NAME       "libcublas.so." TEXT_OF(CUBLAS_VER_MAJOR)
#define PATH_BYTES      4096

/* Written under the lock. */
static struct {
    pthread_mutex_t lock;
    bool tried, works;
    char reason[512];
    tutti_blas_library library;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Opens the first file that matches base followed by pattern and can be opened. With base NULL it finds nothing. */
static void *open_pattern(const char *base, const char *pattern) {
    char path[PATH_BYTES];
    if (base == NULL || base[0] == '\0' || snprintf(path, sizeof path, "%s%s", base, pattern) >= PATH_BYTES)
        return NULL;
    glob_t found;
    void *handle = NULL;
    if (glob(path, 0, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && handle == NULL; i++)
        handle = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return handle;
}

/* NVIDIA's packages of CUDA 13 have all libraries in one folder, earlier ones have one each. */
static void *open_packages(const char *environment) {
    static const char *const patterns[] = {
        "/lib/python3*/site-packages/nvidia/cu*/lib/" FILE_NAME,
        "/lib/python3*/dist-packages/nvidia/cu*/lib/" FILE_NAME,
        "/lib/python3*/site-packages/nvidia/cublas/lib/" FILE_NAME, "/lib/" FILE_NAME, /* conda's */
    };
    void *handle = NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0] && handle == NULL; i++)
        handle = open_pattern(environment, patterns[i]);
    return handle;
}

/* Searches the environments whose programs are on the path: often a container has no other trace of its environment. */
static void *open_environments_on_path(void) {
    static const char folder[] = "/bin";
    const char *path = getenv("PATH");
    void *handle = NULL;
    while (path != NULL && handle == NULL) {
        char environment[PATH_BYTES];
        size_t length = strcspn(path, ":"), behind = sizeof folder - 1;
        bool fits = length > behind && length < sizeof environment;
        if (fits && memcmp(path + length - behind, folder, behind) == 0) {
            snprintf(environment, sizeof environment, "%.*s", (int)(length - behind), path);
            handle = open_packages(environment);
        }
        path = path[length] == ':' ? path + length + 1 : NULL;
    }
    return handle;
}

static void *find(const char *named) {
    if (named[0] != '\0') return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == NULL) handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) handle = open_pattern(getenv("CUDA_HOME"), "/lib64/" FILE_NAME);
    if (handle == NULL) handle = open_pattern("/usr/local", "/cuda*/lib64/" FILE_NAME);
    if (handle == NULL) handle = open_packages(getenv("VIRTUAL_ENV"));
    if (handle == NULL) handle = open_packages(getenv("CONDA_PREFIX"));
    char local[PATH_BYTES];
    const char *home = getenv("HOME");
    if (handle == NULL && home != NULL && snprintf(local, sizeof local, "%s/.local", home) < PATH_BYTES)
        handle = open_packages(local);
    if (handle == NULL) handle = open_environments_on_path();
    if (handle == NULL) handle = open_packages("/usr/local");
    if (handle == NULL) handle = open_packages("/usr");
    return handle;
}

static tutti_status resolve(void *handle, const char *name, void *function_out) {
    void *function = dlsym(handle, name);
    if (function == NULL) return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED, "cuBLAS has no %s", name);
    *(void **)function_out = function;
    return TUTTI_OK;
}

static tutti_status open_library(void) {
    const char *named = tutti_cuda_host->setting_text(TUTTI_SETTING_CUBLAS_LIBRARY);
    void *handle = find(named);
    if (handle == NULL) {
        const char *why = dlerror();
        return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "training and operators on a GPU need cuBLAS, but %s cannot be opened "
                                     "(%s): install CUDA's cuBLAS or "
                                     "PyPI's nvidia-cublas, or set TUTTI_CUBLAS_LIBRARY to the file",
                                     named[0] != '\0' ? named : FILE_NAME, why != NULL ? why : "no such file");
    }
    tutti_blas_library *library = &state.library;
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasCreate), &library->create));
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasDestroy), &library->destroy));
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasSetStream), &library->set_stream));
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasSetWorkspace), &library->set_workspace));
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasSetMathMode), &library->set_math_mode));
    TUTTI_TRY(resolve(handle, TEXT_OF(cublasGemmEx), &library->gemm));
    return resolve(handle, TEXT_OF(cublasGemmStridedBatchedEx), &library->gemm_batched);
}

tutti_status tutti_blas_library_open(const tutti_blas_library **library_out) {
    pthread_mutex_lock(&state.lock);
    if (!state.tried) {
        state.tried = true;
        state.works = open_library() == TUTTI_OK;
        if (!state.works) snprintf(state.reason, sizeof state.reason, "%s", tutti_cuda_host->last_error());
    }
    bool works = state.works;
    pthread_mutex_unlock(&state.lock);
    if (!works) return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED, "%s", state.reason);
    *library_out = &state.library;
    return TUTTI_OK;
}
