/*
 * Checks of GPUs. No CUDA is needed to build them: the driver's libraries are loaded where they
 * are.
 *
 * All questions to the driver are asked by a child process before MPI starts, which writes what it
 * learned into a pipe: a driver that hangs or crashes, or an MPI that takes device memory for its
 * own, ends the child and is told; and this process has not begun to use the driver.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/doctor/doctor.h"
#include "core/backend/backend.h"
#include "core/backend/devices.h"
#include "core/base/clock.h"
#include "core/comm/probe.h"

enum { PATIENCE = 10, BYTES = 1 << 16 };

/* cuda.h's and nvml.h's, as far as they are used; both promise that these stay as they are. */
struct cuda {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*error_name)(int code, const char **name);
    int (*device_count)(int *count);
    int (*device)(int *device, int number);
    int (*device_name)(char *name, int size, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*bus)(char *text, int size, int device);
    int (*retain)(void **context, int device);
    int (*use)(void *context);
    int (*memory_info)(size_t *available, size_t *total);
    int (*allocate)(uintptr_t *address, size_t bytes);
    int (*set)(uintptr_t address, unsigned char byte, size_t bytes, void *stream);
    int (*to_host)(void *to, uintptr_t from, size_t bytes, void *stream);
    int (*wait)(void);
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"cuInit", offsetof(struct cuda, init)},
    {"cuDriverGetVersion", offsetof(struct cuda, driver_version)},
    {"cuGetErrorName", offsetof(struct cuda, error_name)},
    {"cuDeviceGetCount", offsetof(struct cuda, device_count)},
    {"cuDeviceGet", offsetof(struct cuda, device)},
    {"cuDeviceGetName", offsetof(struct cuda, device_name)},
    {"cuDeviceTotalMem_v2", offsetof(struct cuda, device_memory)},
    {"cuDeviceGetAttribute", offsetof(struct cuda, attribute)},
    {"cuDeviceGetPCIBusId", offsetof(struct cuda, bus)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct cuda, retain)},
    {"cuCtxSetCurrent", offsetof(struct cuda, use)},
    {"cuMemGetInfo_v2", offsetof(struct cuda, memory_info)},
    {"cuMemAlloc_v2", offsetof(struct cuda, allocate)},
    {"cuMemsetD8Async", offsetof(struct cuda, set)},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct cuda, to_host)},
    {"cuCtxSynchronize", offsetof(struct cuda, wait)},
};

enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_* */

/* --- in the child ----------------------------------------------------------------------------- */

static bool load_cuda(struct cuda *cuda)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    for (size_t i = 0; library != NULL && i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (symbol == NULL)
            return false;
        memcpy((char *)cuda + symbols[i].offset, &symbol, sizeof symbol);
    }
    return library != NULL;
}

/* The driver's version, or what its library has to say against it. */
static void ask_nvml(struct dpt_doctor_gpus *gpus)
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

static void ask_device(const struct cuda *cuda, struct dpt_doctor_gpus *gpus, int i)
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

/* A message from device memory to device memory: 1 arrived whole, 0 did not. */
static int try_message(const struct cuda *cuda, struct dpt_doctor_gpus *gpus)
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
        snprintf(gpus->why, sizeof gpus->why, "no memory on device 0");
        return -1;
    }
    if (dpt_probe_device_message((const void *)from, (void *)to, BYTES, &err) != DPT_OK) {
        snprintf(gpus->why, sizeof gpus->why, "%.100s", err.text);
        return 0;
    }
    if (cuda->to_host(back, to, BYTES, NULL) != 0 || cuda->wait() != 0)
        return 0;
    for (int i = 0; i < BYTES; i++)
        if (back[i] != 7)
            return 0;
    return 1;
}

/* After each step what is known so far goes into the pipe; the last one that came counts. */
static void put(int fd, const struct dpt_doctor_gpus *gpus)
{
    const char *at = (const char *)gpus;

    for (size_t done = 0; done < sizeof *gpus;) {
        const ssize_t n = write(fd, at + done, sizeof *gpus - done);

        if (n <= 0)
            _exit(1);
        done += (size_t)n;
    }
}

static const struct dpt_backend *backend_for_gpus(void)
{
    for (size_t i = 0; dpt_backends[i] != NULL; i++)
        if (dpt_backends[i]->devices != NULL)
            return dpt_backends[i];
    return NULL;
}

/* Which one would be this rank's. */
static void ask_own(const struct cuda *cuda, struct dpt_doctor_gpus *gpus, int local)
{
    int device;

    if (backend_for_gpus() == NULL || gpus->count == 0 ||
        cuda->device(&device, local % gpus->count) != 0)
        return;
    cuda->device_name(gpus->own_name, sizeof gpus->own_name, device);
    cuda->bus(gpus->own_bus, sizeof gpus->own_bus, device);
}

/* What this program needs beside the driver. */
static void ask_backend(struct dpt_doctor_gpus *gpus)
{
    const struct dpt_backend *backend = backend_for_gpus();
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

static void ask(int fd, bool all)
{
    struct dpt_doctor_gpus gpus = {.library = true, .code = -1, .message = -1};
    const int local = dpt_launcher_local_rank();
    struct cuda cuda;
    const char *name = NULL;

    dpt_probe_leave_launcher();
    snprintf(gpus.why, sizeof gpus.why, "the driver gave no answer");
    put(fd, &gpus);
    if (!load_cuda(&cuda)) {
        snprintf(gpus.why, sizeof gpus.why, "libcuda.so.1 lacks what a driver has");
        put(fd, &gpus);
        return;
    }
    ask_nvml(&gpus);
    gpus.code = cuda.init(0);
    cuda.driver_version(&gpus.driver);
    if (gpus.code == 0)
        cuda.device_count(&gpus.count);
    if (gpus.code != 0 && (cuda.error_name(gpus.code, &name) != 0 || name == NULL))
        name = "unknown error";
    snprintf(gpus.why, sizeof gpus.why, "%s", name != NULL ? name : "");
    ask_own(&cuda, &gpus, local < 0 ? 0 : local);
    put(fd, &gpus);
    if (!all)
        return;
    for (int i = 0; i < gpus.count && i < DPT_DOCTOR_GPUS; i++)
        ask_device(&cuda, &gpus, i);
    put(fd, &gpus);
    if (gpus.code != 0 || gpus.count == 0)
        return;
    ask_backend(&gpus);
    put(fd, &gpus);
    gpus.message = 0;
    snprintf(gpus.why, sizeof gpus.why, "it crashed or hung");
    put(fd, &gpus);
    gpus.why[0] = '\0';
    gpus.message = try_message(&cuda, &gpus);
    put(fd, &gpus);
}

/* --- in the parent ---------------------------------------------------------------------------- */

/* What comes until the child ends or the time is over. */
static void listen_to(int fd, struct dpt_doctor_gpus *gpus)
{
    const double end = dpt_now() + PATIENCE;
    struct dpt_doctor_gpus next;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    size_t done = 0;

    while (dpt_now() < end) {
        ssize_t n;

        if (poll(&wait, 1, (int)((end - dpt_now()) * 1e3) + 1) < 0 && errno != EINTR)
            return;
        if (wait.revents == 0)
            continue;
        n = read(fd, (char *)&next + done, sizeof next - done);
        if (n <= 0)
            return;
        done += (size_t)n;
        if (done == sizeof next) {
            *gpus = next;
            done = 0;
        }
    }
}

/* A child has the messages of a failing MPI to itself. */
static void be_child(int fd, bool all)
{
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0 || dup2(nowhere, STDERR_FILENO) < 0)
        _exit(1);
    signal(SIGSEGV, SIG_DFL);
    ask(fd, all);
    _exit(0);
}

void dpt_doctor_look_for_gpus(struct dpt_doctor_gpus *gpus)
{
    void *library;
    int ends[2];
    pid_t child;

    *gpus = (struct dpt_doctor_gpus){.message = -1};
    library = dlopen("libcuda.so.1", RTLD_LAZY); /* loading it starts nothing */
    if (library == NULL)
        return;
    dlclose(library);
    gpus->library = true;
    gpus->code = -1;
    snprintf(gpus->why, sizeof gpus->why, "it could not be asked");
    if (pipe(ends) != 0)
        return;
    child = fork();
    if (child == 0) {
        close(ends[0]);
        be_child(ends[1], dpt_launcher_local_rank() <= 0);
    }
    close(ends[1]);
    if (child > 0) {
        listen_to(ends[0], gpus);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    close(ends[0]);
}

/* --- the checks ------------------------------------------------------------------------------- */

enum dpt_status dpt_doctor_driver(struct dpt_doctor *d, struct dpt_error *err)
{
    const struct dpt_doctor_gpus *g = &d->gpus;

    (void)err;
    if (!g->library)
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "no NVIDIA driver: the ranks compute on processors");
    else if (g->nvml[0] != '\0' && g->code != 0)
        dpt_doctor_say(d, DPT_DOCTOR_WARNING,
                       "does `nvidia-smi` work there? After an update of the driver: reboot", "%s",
                       g->nvml);
    else if (g->code != 0)
        dpt_doctor_say(d, DPT_DOCTOR_WARNING, "no GPU can be used: does `nvidia-smi` work there?",
                       "libcuda: %s", g->why);
    else
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "NVIDIA %s, for CUDA up to %d.%d",
                       g->version[0] != '\0' ? g->version : "driver", g->driver / 1000,
                       g->driver % 1000 / 10);
    return DPT_OK;
}

enum dpt_status dpt_doctor_libraries(struct dpt_doctor *d, struct dpt_error *err)
{
    const struct dpt_doctor_gpus *g = &d->gpus;

    (void)err;
    if (g->missing[0] != '\0')
        dpt_doctor_say(d, DPT_DOCTOR_WARNING, "until then the ranks compute on processors", "%s",
                       g->missing);
    else if (g->libraries[0] != '\0')
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "%s", g->libraries);
    return DPT_OK;
}

enum dpt_status dpt_doctor_library_files(struct dpt_doctor *d, struct dpt_error *err)
{
    (void)err;
    for (int i = 0; i < DPT_DEVICE_LIBRARIES; i++) {
        const struct dpt_device_library *l = &d->gpus.library_files[i];
        struct dpt_finding f = dpt_doctor_finding(d, l->name);

        snprintf(f.found, sizeof f.found, "%.*s", (int)sizeof f.found - 1, l->path);
        if (f.found[0] != '\0')
            dpt_doctor_add(d, &f);
    }
    return DPT_OK;
}

/* Those of a kind in one line: "2 x NVIDIA H100, 80 GB". */
static void tell_devices(struct dpt_doctor *d)
{
    const struct dpt_doctor_gpus *g = &d->gpus;
    const int known = g->count < DPT_DOCTOR_GPUS ? g->count : DPT_DOCTOR_GPUS;

    for (int i = 0; i < known; i++) {
        char has[32], name[DPT_DOCTOR_NAME];
        struct dpt_finding f;
        int last = i;

        while (last + 1 < known && strcmp(g->gpu[last + 1].name, g->gpu[i].name) == 0)
            last++;
        snprintf(name, sizeof name, last > i ? "devices %d-%d" : "device %d", i, last);
        f = dpt_doctor_finding(d, name);
        snprintf(f.found, sizeof f.found, "%s, %s, compute %d.%d", g->gpu[i].name,
                 dpt_doctor_bytes(g->gpu[i].memory, has), g->gpu[i].major, g->gpu[i].minor);
        for (int k = i; k <= last; k++)
            if (g->gpu[k].available >= 0 && g->gpu[k].available < 0.5 * g->gpu[k].memory) {
                f.level = DPT_DOCTOR_WARNING;
                snprintf(f.advice, sizeof f.advice,
                         "others use it: device %d has %s free (nvidia-smi shows who)", k,
                         dpt_doctor_bytes(g->gpu[k].available, has));
            }
        dpt_doctor_add(d, &f);
        i = last;
    }
}

enum dpt_status dpt_doctor_devices(struct dpt_doctor *d, struct dpt_error *err)
{
    const struct dpt_doctor_gpus *g = &d->gpus;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    (void)err;
    if (!g->library || g->code != 0)
        return DPT_OK;
    tell_devices(d);
    if (g->count == 0)
        dpt_doctor_say(d, DPT_DOCTOR_WARNING, "ask for GPUs (sbatch --gpus), or unset it",
                       "none to be seen%s%s", visible != NULL ? ", CUDA_VISIBLE_DEVICES=" : "",
                       visible != NULL ? visible : "");
    else if (backend_for_gpus() == NULL)
        dpt_doctor_say(d, DPT_DOCTOR_WARNING, "they stay idle: this one computes on processors",
                       "%d, but this dptrain was built without CUDA", g->count);
    return DPT_OK;
}

enum dpt_status dpt_doctor_cuda_aware(struct dpt_doctor *d, struct dpt_error *err)
{
    const struct dpt_doctor_gpus *g = &d->gpus;
    const int claims = d->alone ? -1 : dpt_probe_claims_cuda();

    (void)err;
    if (g->code != 0 || g->count == 0)
        return DPT_OK;
    if (g->message == 1)
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "yes: a message between device memory arrived%s",
                       claims == 0 ? ", though it says no" : "");
    else if (g->message < 0)
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "not tried: %s", g->why);
    else if (claims == 1)
        dpt_doctor_say(d, DPT_DOCTOR_WARNING,
                       "do not rely on it: gradients go through the host's memory instead",
                       "it says so, but a message did not arrive%s%s",
                       g->why[0] != '\0' ? ": " : "", g->why);
    else
        dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, "no: gradients go through the host's memory");
    return DPT_OK;
}
