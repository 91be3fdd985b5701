#include "core/backend/gpu_query.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/backend/backend.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/comm/probe.h"

enum { PATIENCE = 10, BYTES = 1 << 16 };

/* cuda.h's and nvml.h's, as far as they are used; both promise that these stay as they are. */
#define CUDA(X)                                                                                    \
    X(init, "cuInit", unsigned flags)                                                              \
    X(driver_version, "cuDriverGetVersion", int *version)                                          \
    X(error_name, "cuGetErrorName", int code, const char **name)                                   \
    X(device_count, "cuDeviceGetCount", int *count)                                                \
    X(device, "cuDeviceGet", int *device, int number)                                              \
    X(device_name, "cuDeviceGetName", char *name, int size, int device)                            \
    X(device_memory, "cuDeviceTotalMem_v2", size_t *bytes, int device)                             \
    X(attribute, "cuDeviceGetAttribute", int *value, int attribute, int device)                    \
    X(bus, "cuDeviceGetPCIBusId", char *text, int size, int device)                                \
    X(reaches, "cuDeviceCanAccessPeer", int *can, int device, int peer)                            \
    X(retain, "cuDevicePrimaryCtxRetain", void **context, int device)                              \
    X(use, "cuCtxSetCurrent", void *context)                                                       \
    X(memory_info, "cuMemGetInfo_v2", size_t *available, size_t *total)                            \
    X(allocate, "cuMemAlloc_v2", uintptr_t *address, size_t bytes)                                 \
    X(set, "cuMemsetD8Async", uintptr_t address, unsigned char byte, size_t bytes, void *stream)   \
    X(to_host, "cuMemcpyDtoHAsync_v2", void *to, uintptr_t from, size_t bytes, void *stream)       \
    X(wait, "cuCtxSynchronize", void)

struct cuda {
#define X(member, symbol, ...) int (*member)(__VA_ARGS__);
    CUDA(X)
#undef X
};

enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_* */

/* --- in the child ----------------------------------------------------------------------------- */

static bool load_cuda(struct cuda *cuda)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    bool all = library != NULL;

#define X(member, symbol, ...)                                                                     \
    all = all && (*(void **)&cuda->member = dlsym(library, symbol)) != NULL;
    CUDA(X)
#undef X
    return all;
}

/* The driver's version, or why its library cannot be used. */
static void ask_nvml(struct dpt_gpu_query *gpus)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void), (*version)(char *text, unsigned size);
    const char *(*error)(int code);
    int code;

    if (library == NULL)
        return;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&version = dlsym(library, "nvmlSystemGetDriverVersion");
    *(void **)&error = dlsym(library, "nvmlErrorString");
    if (init == NULL || version == NULL || error == NULL)
        return;
    code = init();
    if (code == 0)
        code = version(gpus->version, sizeof gpus->version);
    if (code != 0)
        snprintf(gpus->nvml, sizeof gpus->nvml, "%s", error(code));
}

static void ask_device(const struct cuda *cuda, struct dpt_gpu_query *gpus, int i)
{
    size_t bytes = 0, available = 0;
    void *context = NULL;
    int device;

    if (cuda->device(&device, i) != 0)
        return;
    cuda->device_name(gpus->gpu[i].name, sizeof gpus->gpu[i].name, device);
    cuda->device_memory(&bytes, device);
    cuda->attribute(&gpus->gpu[i].major, COMPUTE_MAJOR, device);
    cuda->attribute(&gpus->gpu[i].minor, COMPUTE_MINOR, device);
    gpus->gpu[i].memory = (double)bytes;
    gpus->gpu[i].available = -1;
    if (cuda->retain(&context, device) == 0 && cuda->use(context) == 0 &&
        cuda->memory_info(&available, &bytes) == 0)
        gpus->gpu[i].available = (double)available;
}

static void ask_peers(const struct cuda *cuda, struct dpt_gpu_query *gpus)
{
    for (int i = 0; i < gpus->count; i++)
        for (int k = i + 1; k < gpus->count; k++) {
            int a, b, there = 1, back = 1;

            if (cuda->device(&a, i) != 0 || cuda->device(&b, k) != 0 ||
                cuda->reaches(&there, a, b) != 0 || cuda->reaches(&back, b, a) != 0 ||
                (there != 0 && back != 0))
                continue;
            if (gpus->apart++ == 0) {
                gpus->first[0] = i;
                gpus->first[1] = k;
            }
        }
}

/* A message from device memory to device memory: 1 arrived whole, 0 did not, -1 was not tried; why
 * it is not 1. */
static int try_message(const struct cuda *cuda, char *why, size_t size)
{
    static unsigned char back[BYTES];
    uintptr_t from = 0, to = 0;
    void *context = NULL;
    struct dpt_error err = {0};
    int device;

    if (cuda->device(&device, 0) != 0 || cuda->retain(&context, device) != 0 ||
        cuda->use(context) != 0 || cuda->allocate(&from, BYTES) != 0 ||
        cuda->allocate(&to, BYTES) != 0 || cuda->set(from, 7, BYTES, NULL) != 0 ||
        cuda->set(to, 0, BYTES, NULL) != 0 || cuda->wait() != 0) {
        snprintf(why, size, "no memory on device 0");
        return -1;
    }
    if (dpt_probe_device_message((const void *)from, (void *)to, BYTES, &err) != DPT_OK) {
        snprintf(why, size, "%.100s", err.text);
        return 0;
    }
    if (cuda->to_host(back, to, BYTES, NULL) != 0 || cuda->wait() != 0)
        return 0;
    for (int i = 0; i < BYTES; i++)
        if (back[i] != 7)
            return 0;
    return 1;
}

const struct dpt_backend *dpt_gpu_backend(void)
{
    for (size_t i = 0; dpt_backends[i] != NULL; i++)
        if (dpt_backends[i]->devices != NULL)
            return dpt_backends[i];
    return NULL;
}

/* The devices that this rank sees, and the one that it would use. */
static void ask_own(const struct cuda *cuda, struct dpt_gpu_query *gpus, int local)
{
    int device;

    for (int i = 0; i < gpus->count && i < DPT_GPU_QUERY_MOST; i++)
        if (cuda->device(&device, i) == 0)
            cuda->bus(gpus->gpu[i].bus, sizeof gpus->gpu[i].bus, device);
    if (dpt_gpu_backend() == NULL || gpus->count == 0 ||
        cuda->device(&device, local % gpus->count) != 0)
        return;
    cuda->device_name(gpus->own_name, sizeof gpus->own_name, device);
    cuda->bus(gpus->own_bus, sizeof gpus->own_bus, device);
}

/* The libraries that this program needs beside the driver. */
static void ask_backend(struct dpt_gpu_query *gpus)
{
    const struct dpt_backend *backend = dpt_gpu_backend();
    struct dpt_device_info info;
    struct dpt_error err = {0};
    int count;

    if (backend == NULL)
        return;
    if (backend->devices->count(&count, &err) == DPT_OK &&
        backend->devices->info(0, &info, &err) == DPT_OK &&
        backend->devices->libraries(gpus->library_files, &err) == DPT_OK)
        snprintf(gpus->libraries, sizeof gpus->libraries, "%s", info.driver);
    else
        snprintf(gpus->missing, sizeof gpus->missing, "%.*s", (int)sizeof gpus->missing - 1,
                 err.text);
}

/* The results so far are written to *gpus at once, and `why` is what it would be if the child ended
 * here. */
static void ask(struct dpt_gpu_query *gpus)
{
    const int local = dpt_launcher_local_rank();
    char why[sizeof gpus->why] = "";
    struct cuda cuda;
    const char *name = "";
    int code;

    dpt_probe_leave_launcher();
    snprintf(gpus->why, sizeof gpus->why, "the driver gave no answer");
    if (!load_cuda(&cuda)) {
        snprintf(gpus->why, sizeof gpus->why, "libcuda.so.1 lacks what a driver has");
        return;
    }
    ask_nvml(gpus);
    code = cuda.init(0);
    cuda.driver_version(&gpus->driver);
    if (code == 0)
        cuda.device_count(&gpus->count);
    else if (cuda.error_name(code, &name) != 0 || name == NULL)
        name = "unknown error";
    gpus->code = code;
    snprintf(gpus->why, sizeof gpus->why, "%s", name);
    ask_own(&cuda, gpus, local < 0 ? 0 : local);
    for (int i = 0; local <= 0 && i < gpus->count && i < DPT_GPU_QUERY_MOST; i++)
        ask_device(&cuda, gpus, i);
    if (local <= 0)
        ask_peers(&cuda, gpus);
    if (local > 0 || code != 0 || gpus->count == 0)
        return;
    ask_backend(gpus);
    snprintf(gpus->why, sizeof gpus->why, "it crashed or hung");
    gpus->message = 0;
    gpus->message = try_message(&cuda, why, sizeof why);
    memcpy(gpus->why, why, sizeof why);
}

/* --- in the parent ---------------------------------------------------------------------------- */

/* The driver has a folder for each GPU of the node. Where it shows none, they are among the PCI
 * devices: NVIDIA's, and of the classes for displays and for computing. */
static int count_on_node(void)
{
    glob_t found = {0};
    int n = 0;

    if (glob("/proc/driver/nvidia/gpus/*", 0, NULL, &found) == 0)
        n = (int)found.gl_pathc;
    globfree(&found);
    if (n > 0)
        return n;
    if (glob("/sys/bus/pci/devices/*", 0, NULL, &found) != 0)
        found.gl_pathc = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[300], vendor[16], class[16];

        snprintf(path, sizeof path, "%s/vendor", found.gl_pathv[i]);
        dpt_file_line(path, vendor, sizeof vendor);
        snprintf(path, sizeof path, "%s/class", found.gl_pathv[i]);
        dpt_file_line(path, class, sizeof class);
        n += strcmp(vendor, "0x10de") == 0 &&
             (strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0);
    }
    globfree(&found);
    return n;
}

/* Returns when the child ends, which closes the pipe, or when the time is over. */
static void wait_for(int fd)
{
    const double end = dpt_now() + PATIENCE;
    struct pollfd wait = {.fd = fd};

    while (poll(&wait, 1, (int)((end - dpt_now()) * 1e3) + 1) < 0 && errno == EINTR &&
           dpt_now() < end)
        ;
}

void dpt_gpu_query(struct dpt_gpu_query *gpus)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY); /* loading it starts nothing */
    struct dpt_gpu_query *shared;
    int ends[2];
    pid_t child;

    *gpus = (struct dpt_gpu_query){.message = -1};
    if (library == NULL)
        return;
    dlclose(library);
    gpus->library = true;
    gpus->node = count_on_node();
    gpus->code = -1;
    snprintf(gpus->why, sizeof gpus->why, "it could not be asked");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return;
    *shared = *gpus;
    if (pipe(ends) == 0) {
        child = fork();
        if (child == 0) {
            const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

            /* It has the messages of a failing MPI to itself. */
            if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0 || dup2(nowhere, STDERR_FILENO) < 0)
                _exit(1);
            close(ends[0]);
            signal(SIGSEGV, SIG_DFL);
            ask(shared);
            _exit(0);
        }
        close(ends[1]);
        if (child > 0) {
            wait_for(ends[0]);
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
        }
        close(ends[0]);
    }
    *gpus = *shared;
    munmap(shared, sizeof *shared);
}
