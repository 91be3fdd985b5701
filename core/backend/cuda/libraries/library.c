#include "core/backend/cuda/libraries/library.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/libraries/library_find.h"
#include "core/base/clock.h"

enum { NAMES = 2, OLDEST_CUDNN = 90000, OLDEST_NCCL = 21400 };

/* A function of a library, and its offset in struct dpt_cuda_library. */
struct entry {
    const char *name;
    bool needed;
    size_t offset;
};

#define TEXT(name) #name
/* TEXT expands the header's macros, so the name is that of the version which the header
 * describes. */
#define X(function, must)                                                                          \
    {.name = TEXT(function),                                                                       \
     .needed = (must),                                                                             \
     .offset = offsetof(struct dpt_cuda_library, function)},
static const struct entry driver_entries[] = {DPT_CUDA_DRIVER_FUNCTIONS(X){0}};
static const struct entry cudnn_entries[] = {DPT_CUDA_CUDNN_FUNCTIONS(X){0}};
static const struct entry cublaslt_entries[] = {DPT_CUDA_CUBLASLT_FUNCTIONS(X){0}};
#undef X
#define X(function, result, parameters)                                                            \
    {.name = #function, .needed = true, .offset = offsetof(struct dpt_cuda_library, function)},
static const struct entry nccl_entries[] = {DPT_CUDA_NCCL_FUNCTIONS(X){0}};
#undef X

static enum dpt_status check_driver(struct dpt_cuda_library *lib, struct dpt_error *err);
static enum dpt_status check_cudnn(struct dpt_cuda_library *lib, struct dpt_error *err);
static enum dpt_status check_cublaslt(struct dpt_cuda_library *lib, struct dpt_error *err);
static enum dpt_status check_nccl(struct dpt_cuda_library *lib, struct dpt_error *err);

static const struct part {
    unsigned bit;
    const char *what, *advice;
    const char *names[NAMES + 1]; /* for the dynamic loader */
    const char *roots[3];         /* environment variables that name the folder above lib/ */
    /* Of a library that jobs can do without, the oldest version that serves. Why it is not used is
     * a line of a run's header, and short. NULL: jobs need the library. */
    const char *optional;
    const struct entry *entries;
    enum dpt_status (*check)(struct dpt_cuda_library *lib, struct dpt_error *err);
} parts[] = {
    {
        .bit = DPT_CUDA_DRIVER,
        .what = "the NVIDIA driver",
        .advice = "install the driver on this machine (in a container: start it with its GPUs)",
        .names = {"libcuda.so.1"},
        .entries = driver_entries,
        .check = check_driver,
    },
    {
        .bit = DPT_CUDA_CUDNN,
        .what = "cuDNN 9",
        .advice = "install it, or name its folder with DPTRAIN_CUDA_PATH",
        .names = {"libcudnn.so.9"},
        .roots = {"CUDNN_ROOT", "CUDA_HOME"},
        .entries = cudnn_entries,
        .check = check_cudnn,
    },
    {
        .bit = DPT_CUDA_CUBLASLT,
        .what = "cuBLASLt",
        .advice = "install the CUDA toolkit's cuBLAS, or name its folder with DPTRAIN_CUDA_PATH",
#if CUDA_VERSION >= 13000
        .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
#else
        .names = {"libcublasLt.so.12", "libcublasLt.so.13"},
#endif
        .roots = {"CUDA_HOME"},
        .entries = cublaslt_entries,
        .check = check_cublaslt,
    },
    {
        .bit = DPT_CUDA_NCCL,
        .what = "NCCL",
        .advice = "install it, or name its folder with DPTRAIN_CUDA_PATH",
        .names = {"libnccl.so.2"},
        .roots = {"NCCL_ROOT", "CUDA_HOME"},
        .optional = "2.14",
        .entries = nccl_entries,
        .check = check_nccl,
    },
};

_Static_assert(sizeof parts / sizeof *parts == DPT_CUDA_PARTS, "a row for each library");

/*
 * A function's name ends with its version if the header describes a later one. The older symbol of
 * cuEventElapsedTime (_v2 since CUDA 12.8) takes the same arguments and does the same, so a driver
 * older than the header can be used. The other functions with versions differ from their older
 * symbols (cuGraphInstantiate, cuStreamBeginCapture, cuMemAlloc), or exist in every driver that can
 * be used here.
 */
static void *find_function(void *handle, const char *name)
{
    static const char same_before[] = "cuEventElapsedTime";
    void *address = dlsym(handle, name);

    if (address == NULL && strncmp(name, same_before, sizeof same_before - 1) == 0)
        address = dlsym(handle, same_before);
    return address;
}

static enum dpt_status find_library(const struct part *part, void **handle, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_search search = {0};

    *handle = dpt_cuda_find(part->names, part->roots, &search);
    if (*handle == NULL && search.broken.text != NULL)
        status = dpt_fail(err, DPT_BAD_JOB,
                          "%s does not load (%s): reinstall it, or name another folder with "
                          "DPTRAIN_CUDA_PATH",
                          part->what, search.broken.text);
    else if (*handle == NULL && part->optional)
        status = dpt_fail(err, DPT_BAD_JOB, "%s not found: %s", part->what, part->advice);
    else if (*handle == NULL)
        status = dpt_fail(err, DPT_BAD_JOB, "%s not found: %s; %s was looked for in %s", part->what,
                          part->advice, part->names[0],
                          search.looked.text != NULL ? search.looked.text : "the usual places");
    else if (part->bit == DPT_CUDA_CUBLASLT && !search.by_loader)
        dpt_cuda_open_compiler(*handle);
    dpt_cuda_search_release(&search);
    return status;
}

static enum dpt_status open_part(struct dpt_cuda_library *lib, const struct part *part,
                                 const char *where, void **handle, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    /* The driver library belongs to the kernel module, so only the loader's one can be used. */
    if (where == NULL && part->bit == DPT_CUDA_DRIVER)
        where = part->names[0];
    if (where == NULL) {
        DPT_TRY(find_library(part, handle, err));
    } else {
        *handle = dpt_cuda_open(where);
        if (*handle == NULL) {
            const char *cause = dlerror();

            return dpt_fail(err, DPT_BAD_JOB, "%s not found (%s): %s", part->what,
                            cause != NULL ? cause : where, part->advice);
        }
    }
    for (const struct entry *e = part->entries; e->name != NULL; e++) {
        void *address = find_function(*handle, e->name);

        if (address == NULL && e->needed && part->optional)
            return dpt_fail(err, DPT_BAD_JOB,
                            "%s (%s) is too old: it has no %s; %s or later is needed", part->what,
                            dpt_cuda_path_of(*handle), e->name, part->optional);
        if (address == NULL && e->needed)
            return dpt_fail(err, DPT_BAD_JOB,
                            "%s (%s) has no function %s: it is too old for this dptrain, which was "
                            "built with CUDA %d.%d and cuDNN %d.%d",
                            part->what, dpt_cuda_path_of(*handle), e->name, CUDA_VERSION / 1000,
                            CUDA_VERSION % 1000 / 10, CUDNN_MAJOR, CUDNN_MINOR);
        memcpy((char *)lib + e->offset, &address, sizeof address);
    }
    DPT_TRY(part->check(lib, err));
out:
    return status;
}

enum dpt_status dpt_cuda_library_open(struct dpt_cuda_library *lib, unsigned wanted,
                                      const struct dpt_cuda_library_paths *library_paths,
                                      struct dpt_error *err)
{
    const char *const where[DPT_CUDA_PARTS] = {
        library_paths != NULL ? library_paths->driver : NULL,
        library_paths != NULL ? library_paths->cudnn : NULL,
        library_paths != NULL ? library_paths->cublaslt : NULL,
        library_paths != NULL ? library_paths->nccl : NULL,
    };
    const uint64_t start = dpt_now_ns();
    enum dpt_status status = DPT_OK;

    *lib = (struct dpt_cuda_library){0};
    for (int i = 0; i < DPT_CUDA_PARTS; i++) {
        if (wanted & parts[i].bit)
            DPT_TRY(open_part(lib, &parts[i], where[i], &lib->handles[i], err));
    }
out:
    dpt_cuda_startup_add(DPT_CUDA_START_LIBRARIES, start);
    if (status != DPT_OK)
        dpt_cuda_library_close(lib);
    return status;
}

void dpt_cuda_library_close(struct dpt_cuda_library *lib)
{
    for (int i = DPT_CUDA_PARTS - 1; i >= 0; i--) {
        if (lib->handles[i] != NULL)
            dlclose(lib->handles[i]);
    }
    *lib = (struct dpt_cuda_library){0};
}

/* A toolkit's kernels run with any driver for the same or a later major version: those of 12.x need
 * driver 525 or later, those of 13.x driver 580. */
static enum dpt_status check_driver(struct dpt_cuda_library *lib, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int built = CUDA_VERSION / 1000;

    DPT_CUDA_TRY(lib, cuDriverGetVersion(&lib->driver));
    if (lib->driver / 1000 < built)
        return dpt_fail(err, DPT_BAD_JOB,
                        "the NVIDIA driver is too old: it can do CUDA %d.%d, and this dptrain was "
                        "built with CUDA %d.%d; install a driver of version %d or later, or build "
                        "with a CUDA toolkit of version %d",
                        lib->driver / 1000, lib->driver % 1000 / 10, built,
                        CUDA_VERSION % 1000 / 10, built >= 13 ? 580 : 525, lib->driver / 1000);
out:
    return status;
}

/* Checks that the driver can run a library that was built for CUDA `major`. */
static enum dpt_status check_major(const struct dpt_cuda_library *lib, const char *what,
                                   enum dpt_cuda_part part, int major, struct dpt_error *err)
{
    if (lib->driver == 0 || major <= lib->driver / 1000)
        return DPT_OK;
    return dpt_fail(
        err, DPT_BAD_JOB,
        "%s (%s) is for CUDA %d, and the NVIDIA driver can do CUDA %d.%d: install %s for "
        "CUDA %d, or a newer driver",
        what, dpt_cuda_library_path(lib, part), major, lib->driver / 1000, lib->driver % 1000 / 10,
        what, lib->driver / 1000);
}

static enum dpt_status check_cudnn(struct dpt_cuda_library *lib, struct dpt_error *err)
{
    lib->cudnn = (int)lib->cudnnGetVersion();
    if (lib->cudnn < OLDEST_CUDNN)
        return dpt_fail(err, DPT_BAD_JOB, "cuDNN (%s) is too old: %d, and 9.0 or later is needed",
                        dpt_cuda_library_path(lib, DPT_CUDA_CUDNN), lib->cudnn);
    if (lib->cudnnGetCudartVersion == NULL)
        return DPT_OK;
    return check_major(lib, "cuDNN", DPT_CUDA_CUDNN, (int)lib->cudnnGetCudartVersion() / 1000, err);
}

static enum dpt_status check_cublaslt(struct dpt_cuda_library *lib, struct dpt_error *err)
{
    lib->cublaslt = (int)lib->cublasLtGetVersion();
    return check_major(lib, "cuBLASLt", DPT_CUDA_CUBLASLT, lib->cublaslt / 10000, err);
}

static enum dpt_status check_nccl(struct dpt_cuda_library *lib, struct dpt_error *err)
{
    /* 2.14 is the first version whose communicators say what went wrong (ncclGetLastError). */
    if (lib->ncclGetVersion(&lib->nccl) != DPT_NCCL_SUCCESS || lib->nccl < OLDEST_NCCL)
        return dpt_fail(err, DPT_BAD_JOB, "NCCL (%s) is too old: %d, and 2.14 or later is needed",
                        dpt_cuda_library_path(lib, DPT_CUDA_NCCL), lib->nccl);
    return DPT_OK;
}

enum dpt_status dpt_cuda_library_devices(const struct dpt_cuda_library *lib, int *count,
                                         struct dpt_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const uint64_t start = dpt_now_ns();
    enum dpt_status status = DPT_OK;
    CUresult result = lib->cuInit(0);

    *count = 0;
    if (result == CUDA_SUCCESS)
        result = lib->cuDeviceGetCount(count);
    dpt_cuda_startup_add(DPT_CUDA_START_DRIVER, start);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && *count == 0))
        return dpt_fail(err, DPT_BAD_JOB, "the NVIDIA driver is here, but shows no GPU%s%s%s",
                        visible != NULL ? " (CUDA_VISIBLE_DEVICES is \"" : "",
                        visible != NULL ? visible : "", visible != NULL ? "\")" : "");
    if (result == CUDA_ERROR_STUB_LIBRARY)
        return dpt_fail(err, DPT_BAD_JOB,
                        "libcuda.so.1 is the toolkit's stub, which only serves to link programs: "
                        "take its folder (lib/stubs) out of LD_LIBRARY_PATH");
    DPT_TRY(dpt_cuda_check(lib, result, "cuInit", err));
out:
    return status;
}

enum dpt_status dpt_cuda_library_enter(const struct dpt_cuda_library *lib, int number,
                                       CUdevice *device, CUcontext *context, struct dpt_error *err)
{
    const uint64_t start = dpt_now_ns();
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(lib, cuDeviceGet(device, number));
    DPT_CUDA_TRY(lib, cuDevicePrimaryCtxRetain(context, *device));
    DPT_CUDA_TRY(lib, cuCtxSetCurrent(*context));
out:
    dpt_cuda_startup_add(DPT_CUDA_START_DRIVER, start);
    return status;
}

static _Atomic uint64_t startup[DPT_CUDA_STARTUPS]; /* nanoseconds */

void dpt_cuda_startup_add(enum dpt_cuda_startup part, uint64_t start)
{
    atomic_fetch_add_explicit(&startup[part], dpt_now_ns() - start, memory_order_relaxed);
}

void dpt_cuda_startup_text(struct dpt_str *text)
{
    static const char *const words[DPT_CUDA_STARTUPS] = {
#define X(part, word) [DPT_CUDA_START_##part] = (word),
        DPT_CUDA_STARTUP(X)
#undef X
    };
    double seconds[DPT_CUDA_STARTUPS], sum = 0;

    for (int i = 0; i < DPT_CUDA_STARTUPS; i++) {
        seconds[i] = 1e-9 * (double)atomic_load_explicit(&startup[i], memory_order_relaxed);
        sum += seconds[i];
    }
    dpt_str_printf(text, "%.3f s", sum);
    for (int i = 0; i < DPT_CUDA_STARTUPS; i++)
        dpt_str_printf(text, "%s %s %.3f", i == 0 ? ":" : ",", words[i], seconds[i]);
}

const char *dpt_cuda_library_text(const struct dpt_cuda_library *lib, char *buf)
{
    char *at = buf;

    *at = '\0';
    if (lib->driver)
        at += sprintf(at, "driver for CUDA %d.%d", lib->driver / 1000, lib->driver % 1000 / 10);
    if (lib->cudnn)
        at += sprintf(at, "%scuDNN %d.%d.%d", at > buf ? ", " : "", lib->cudnn / 10000,
                      lib->cudnn / 100 % 100, lib->cudnn % 100);
    if (lib->cublaslt)
        at += sprintf(at, "%scuBLASLt %d.%d", at > buf ? ", " : "", lib->cublaslt / 10000,
                      lib->cublaslt / 100 % 100);
    if (lib->nccl)
        sprintf(at, "%sNCCL %d.%d.%d", at > buf ? ", " : "", lib->nccl / 10000,
                lib->nccl / 100 % 100, lib->nccl % 100);
    return buf;
}

const char *dpt_cuda_library_path(const struct dpt_cuda_library *lib, enum dpt_cuda_part part)
{
    for (int i = 0; i < DPT_CUDA_PARTS; i++) {
        if (parts[i].bit == part)
            return dpt_cuda_path_of(lib->handles[i]);
    }
    return "";
}

/* The status and advice for a result; results that are not listed are failures of the device
 * (RANK). */
struct meaning {
    int result;
    enum dpt_status status;
    const char *advice;
};

static const struct meaning driver_meanings[] = {
    {CUDA_ERROR_INVALID_VALUE, DPT_INTERNAL, ""},
    {CUDA_ERROR_INVALID_CONTEXT, DPT_INTERNAL, ""},
    {CUDA_ERROR_INVALID_HANDLE, DPT_INTERNAL, ""},
    {CUDA_ERROR_NOT_FOUND, DPT_INTERNAL, ""},
    {CUDA_ERROR_OUT_OF_MEMORY, DPT_RANK, ": a smaller batch.micro needs less"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, DPT_BAD_JOB,
     ": this dptrain was built without code for this GPU"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, DPT_BAD_JOB, ": the driver is older than the toolkit"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, DPT_BAD_JOB,
     ": libcuda and the kernel's module are of different versions; reload the module, or "
     "reboot"},
    {CUDA_ERROR_SYSTEM_NOT_READY, DPT_BAD_JOB, ": is the Fabric Manager running?"},
    {0},
};

static const struct meaning cudnn_meanings[] = {
    {CUDNN_STATUS_BAD_PARAM, DPT_INTERNAL, ""},
    {CUDNN_STATUS_NOT_SUPPORTED, DPT_BAD_JOB, ""},
    {CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH, DPT_BAD_JOB,
     ": cuDNN's libraries are of different versions; look at DPTRAIN_CUDA_PATH and "
     "LD_LIBRARY_PATH"},
    {CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, DPT_BAD_JOB,
     ": not all of cuDNN's libraries were found; look at DPTRAIN_CUDA_PATH and LD_LIBRARY_PATH"},
    {0},
};

static const struct meaning cublaslt_meanings[] = {
    {CUBLAS_STATUS_INVALID_VALUE, DPT_INTERNAL, ""},
    {CUBLAS_STATUS_NOT_INITIALIZED, DPT_INTERNAL, ""},
    {CUBLAS_STATUS_NOT_SUPPORTED, DPT_BAD_JOB, ""},
    {CUBLAS_STATUS_ARCH_MISMATCH, DPT_BAD_JOB, ""},
    {0},
};

static enum dpt_status fail_as(const struct meaning *meanings, int result, const char *library,
                               const char *what, const char *text, struct dpt_error *err)
{
    const int call = (int)strcspn(what, "("); /* without the arguments */
    const struct meaning *m = meanings;

    /* cuDNN's results have categories: 2003 belongs to 2000. */
    while (m->advice != NULL && m->result != result && m->result != result / 1000 * 1000)
        m++;
    return dpt_fail(err, m->advice != NULL ? m->status : DPT_RANK, "%s: %.*s: %s (%d)%s", library,
                    call, what, text, result, m->advice != NULL ? m->advice : "");
}

enum dpt_status dpt_cuda_check(const struct dpt_cuda_library *lib, CUresult result,
                               const char *what, struct dpt_error *err)
{
    const char *name = NULL, *text = NULL;
    char both[512];

    if (result == CUDA_SUCCESS)
        return DPT_OK;
    lib->cuGetErrorName(result, &name);
    lib->cuGetErrorString(result, &text);
    snprintf(both, sizeof both, "%s, %s", name != NULL ? name : "unknown",
             text != NULL ? text : "no text");
    return fail_as(driver_meanings, (int)result, "CUDA", what, both, err);
}

enum dpt_status dpt_cudnn_check(const struct dpt_cuda_library *lib, cudnnStatus_t result,
                                const char *what, struct dpt_error *err)
{
    char last[512] = "", both[1024];

    if (result == CUDNN_STATUS_SUCCESS)
        return DPT_OK;
    if (lib->cudnnGetLastErrorString != NULL)
        lib->cudnnGetLastErrorString(last, sizeof last);
    for (char *c = last; *c != '\0'; c++) {
        if (*c == '\n')
            *c = ' ';
    }
    snprintf(both, sizeof both, "%s%s%s", lib->cudnnGetErrorString(result),
             *last != '\0' ? ": " : "", last);
    return fail_as(cudnn_meanings, (int)result, "cuDNN", what, both, err);
}

enum dpt_status dpt_cublaslt_check(const struct dpt_cuda_library *lib, cublasStatus_t result,
                                   const char *what, struct dpt_error *err)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return DPT_OK;
    return fail_as(cublaslt_meanings, (int)result, "cuBLASLt", what,
                   lib->cublasLtGetStatusString(result), err);
}
