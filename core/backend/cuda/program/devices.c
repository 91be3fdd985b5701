/*
 * Lists the GPUs of this machine, for the backend's row (core/backend/devices.h). Each call opens
 * the libraries again, which takes microseconds after the first time, since they stay in memory.
 * `choose` and `info` make a device's primary context, which stays until the process ends, since
 * MPI and every program share it.
 */
#include <stdio.h>
#include <string.h>

#include "core/backend/cuda/libraries/nccl.h"
#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

static void built(char *text, size_t size)
{
    snprintf(text, size, "CUDA %d.%d, cuDNN %d.%d.%d", CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10, CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
}

/* --- the list of devices ---------------------------------------------------------------------- */

static enum dpt_status count_devices(int *count, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library lib = {0};

    *count = 0;
    DPT_TRY(dpt_cuda_library_open(&lib, DPT_CUDA_DRIVER, NULL, err));
    DPT_TRY(dpt_cuda_library_devices(&lib, count, err));
    dpt_cuda_library_close(&lib);
    /* The other libraries are large, so they are opened only once there is a GPU. */
    DPT_TRY(dpt_cuda_library_open(&lib, DPT_CUDA_NEEDED, NULL, err));
out:
    dpt_cuda_library_close(&lib);
    return status;
}

static enum dpt_status find_libraries(struct dpt_device_library *libraries, struct dpt_error *err)
{
    static const struct {
        const char *name;
        enum dpt_cuda_part part;
    } rows[] = {
        {"libcuda", DPT_CUDA_DRIVER},
        {"cuDNN", DPT_CUDA_CUDNN},
        {"cuBLASLt", DPT_CUDA_CUBLASLT},
        {"NCCL", DPT_CUDA_NCCL},
    };
    _Static_assert(sizeof rows / sizeof *rows == DPT_DEVICE_LIBRARIES, "an entry for each");
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library lib;

    if (dpt_cuda_library_open(&lib, DPT_CUDA_NEEDED | DPT_CUDA_NCCL, NULL, err) != DPT_OK)
        DPT_TRY(dpt_cuda_library_open(&lib, DPT_CUDA_NEEDED, NULL, err));
    for (int i = 0; i < DPT_DEVICE_LIBRARIES; i++) {
        struct dpt_device_library *l = &libraries[i];

        snprintf(l->name, sizeof l->name, "%s", rows[i].name);
        snprintf(l->path, sizeof l->path, "%s", dpt_cuda_library_path(&lib, rows[i].part));
    }
    dpt_cuda_library_close(&lib);
out:
    return status;
}

/* Opens `parts` of the libraries and makes the primary context of device number % *count the
 * calling thread's. */
static enum dpt_status enter(struct dpt_cuda_library *lib, unsigned parts, int number, int *count,
                             CUdevice *device, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    CUcontext context;

    *lib = (struct dpt_cuda_library){0};
    DPT_TRY(dpt_cuda_library_open(lib, parts, NULL, err));
    DPT_TRY(dpt_cuda_library_devices(lib, count, err));
    DPT_TRY(dpt_cuda_library_enter(lib, number % *count, device, &context, err));
out:
    return status;
}

static enum dpt_status enter_driver(struct dpt_cuda_library *lib, int number, struct dpt_error *err)
{
    CUdevice device;
    int count;

    return enter(lib, DPT_CUDA_DRIVER, number, &count, &device, err);
}

static enum dpt_status choose(int local, struct dpt_error *err)
{
    struct dpt_cuda_library lib;
    const enum dpt_status status = enter_driver(&lib, local, err);

    dpt_cuda_library_close(&lib);
    return status;
}

/* --- one device ------------------------------------------------------------------------------- */

/* Reads an attribute; *value stays unchanged if the driver does not know it. */
static void read_attribute(const struct dpt_cuda_library *lib, CUdevice device,
                           CUdevice_attribute attribute, int *value)
{
    int answer;

    if (lib->cuDeviceGetAttribute(&answer, attribute, device) == CUDA_SUCCESS)
        *value = answer;
}

static enum dpt_status describe(const struct dpt_cuda_library *lib, CUdevice device,
                                struct dpt_device_info *info, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t available, total;
    int clock = 0, width = 0; /* kHz, bits */

    DPT_CUDA_TRY(lib, cuDeviceGetName(info->name, (int)sizeof info->name, device));
    DPT_CUDA_TRY(lib, cuDeviceGetPCIBusId(info->bus, (int)sizeof info->bus, device));
    DPT_CUDA_TRY(lib, cuDeviceTotalMem(&total, device));
    info->memory = (int64_t)total;
    DPT_CUDA_TRY(lib, cuMemGetInfo(&available, &total));
    info->available = (int64_t)available;
    read_attribute(lib, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info->major);
    read_attribute(lib, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info->minor);
    read_attribute(lib, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->multiprocessors);
    read_attribute(lib, device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, &clock);
    read_attribute(lib, device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, &width);
    info->bandwidth = 2.0 * clock * 1e3 * width / 8; /* double data rate: two transfers a cycle */
out:
    return status;
}

static enum dpt_status device_info(int number, struct dpt_device_info *info, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library lib;
    char versions[128];
    CUdevice device;

    *info = (struct dpt_device_info){0};
    DPT_TRY(enter(&lib, DPT_CUDA_NEEDED, number, &info->count, &device, err));
    info->number = number % info->count;
    DPT_TRY(describe(&lib, device, info, err));
    snprintf(info->driver, sizeof info->driver, "%.*s", (int)sizeof info->driver - 1,
             dpt_cuda_library_text(&lib, versions));
out:
    dpt_cuda_library_close(&lib);
    return status;
}

/* --- a buffer --------------------------------------------------------------------------------- */

static void close_buffer(struct dpt_device_buffer *b)
{
    struct dpt_cuda_library *lib = b->device;

    if (lib == NULL)
        return;
    if (b->at != NULL)
        lib->cuMemFree((CUdeviceptr)b->at);
    if (b->pinned != NULL)
        lib->cuMemFreeHost(b->pinned);
    dpt_cuda_library_close(lib);
    dpt_free(lib);
    *b = (struct dpt_device_buffer){0};
}

static enum dpt_status open_buffer(int number, float value, int n, struct dpt_device_buffer *b,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library *lib = dpt_alloc(sizeof *lib);
    const size_t bytes = (size_t)n * sizeof value;
    void *pinned = NULL;
    CUdeviceptr memory = 0;
    unsigned bits;

    *b = (struct dpt_device_buffer){.n = n, .device = lib};
    if (lib == NULL)
        return dpt_fail_memory(err, "trying a sum", sizeof *lib);
    memcpy(&bits, &value, sizeof bits);
    DPT_TRY(enter_driver(lib, number, err));
    DPT_CUDA_TRY(lib, cuMemAlloc(&memory, bytes));
    b->at = (float *)memory;
    DPT_CUDA_TRY(lib, cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE));
    b->pinned = pinned;
    DPT_CUDA_TRY(lib, cuMemsetD32Async(memory, bits, (size_t)n, NULL));
    DPT_CUDA_TRY(lib, cuCtxSynchronize());
out:
    if (status != DPT_OK)
        close_buffer(b);
    return status;
}

static enum dpt_status fetch(struct dpt_device_buffer *b, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library *lib = b->device;

    DPT_CUDA_TRY(
        lib, cuMemcpyDtoHAsync(b->pinned, (CUdeviceptr)b->at, (size_t)b->n * sizeof(float), NULL));
    DPT_CUDA_TRY(lib, cuCtxSynchronize());
out:
    return status;
}

static enum dpt_status give(struct dpt_device_buffer *b, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_library *lib = b->device;

    DPT_CUDA_TRY(
        lib, cuMemcpyHtoDAsync((CUdeviceptr)b->at, b->pinned, (size_t)b->n * sizeof(float), NULL));
    DPT_CUDA_TRY(lib, cuCtxSynchronize());
out:
    return status;
}

const struct dpt_backend_devices dpt_cuda_devices = {
    .built = built,
    .count = count_devices,
    .libraries = find_libraries,
    .choose = choose,
    .info = device_info,
    .startup = dpt_cuda_startup_text,
    .links = &dpt_cuda_links,
    .memory = {.open = open_buffer, .fetch = fetch, .give = give, .close = close_buffer},
};
