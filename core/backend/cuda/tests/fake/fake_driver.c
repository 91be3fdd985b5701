/* The fake driver's devices, contexts and memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_driver.h"

enum { VERSION = CUDA_VERSION > 13000 ? CUDA_VERSION : 13000 };

static struct {
    bool started;
    int n, physical[FAKE_DEVICES]; /* those that are visible */
    struct CUctx_st contexts[FAKE_DEVICES];
} driver;

static __thread struct CUctx_st *current;

/* --- devices ---------------------------------------------------------------------------------- */

static void uuid_of(int physical, unsigned char *bytes)
{
    for (int i = 0; i < 16; i++)
        bytes[i] = (unsigned char)(0x11 * i ^ 0x5a);
    bytes[15] = (unsigned char)physical;
}

static void uuid_text(int physical, char *text)
{
    unsigned char b[16];

    uuid_of(physical, b);
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

/* One entry of CUDA_VISIBLE_DEVICES; -1: no such device. */
static int device_named(const char *name, int physical)
{
    char text[64];
    int number, used;

    if (sscanf(name, "%d%n", &number, &used) == 1 && name[used] == '\0')
        return number >= 0 && number < physical ? number : -1;
    for (int i = 0; i < physical && strlen(name) >= 4; i++) {
        uuid_text(i, text);
        if (strncmp(text, name, strlen(name)) == 0)
            return i;
    }
    return -1;
}

/* As in the driver, the list ends at the first wrong entry. */
static void find_devices(void)
{
    const long long wanted = fakegpu_number("FAKEGPU_DEVICES", 1);
    const int physical = wanted < FAKE_DEVICES ? (int)wanted : FAKE_DEVICES;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char list[1024], *rest = list, *name;

    driver.n = 0;
    if (visible == NULL) {
        for (; driver.n < physical; driver.n++)
            driver.physical[driver.n] = driver.n;
        return;
    }
    snprintf(list, sizeof list, "%s", visible);
    while ((name = strsep(&rest, ",")) != NULL && driver.n < FAKE_DEVICES) {
        const int number = device_named(name, physical);

        if (number < 0)
            break;
        driver.physical[driver.n++] = number;
    }
}

CUresult cuInit(unsigned flags)
{
    FAKE(cuInit, CUDA_ERROR_UNKNOWN, "%u", flags);
    fake_lock();
    if (!driver.started)
        find_devices();
    driver.started = driver.n > 0;
    fake_unlock();
    return driver.n > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    FAKE(cuDriverGetVersion, CUDA_ERROR_UNKNOWN, "%s", "");
    *version = VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text)                                                                          \
    {                                                                                              \
        CUDA_##name, "CUDA_" #name, text                                                           \
    }
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    ERROR(ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ERROR(ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(ERROR_NOT_READY, "device not ready"),
    ERROR(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(ERROR_STREAM_CAPTURE_INVALIDATED,
          "operation failed due to a previous error during capture"),
    ERROR(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(ERROR_STREAM_CAPTURE_ISOLATION,
          "dependency created on uncaptured work in another stream"),
    ERROR(ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capture"),
    ERROR(ERROR_UNKNOWN, "unknown error"),
#undef ERROR
};

static CUresult describe(CUresult code, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == code) {
            *name = errors[i].name;
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    const char *text;

    return describe(code, name, &text);
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    const char *name;

    return describe(code, &name, text);
}

static CUresult check_device(CUdevice device)
{
    if (!driver.started)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < driver.n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

#define NEED_DEVICE(device)                                                                        \
    do {                                                                                           \
        if (check_device(device) != CUDA_SUCCESS)                                                  \
            return check_device(device);                                                           \
    } while (0)

CUresult cuDeviceGetCount(int *n)
{
    FAKE(cuDeviceGetCount, CUDA_ERROR_NOT_INITIALIZED, "%s", "");
    *n = driver.n;
    return driver.started ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *device, int number)
{
    FAKE(cuDeviceGet, CUDA_ERROR_INVALID_DEVICE, "%d", number);
    NEED_DEVICE(number);
    *device = number;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    const char *model = fakegpu_text("FAKEGPU_MODEL");

    FAKE(cuDeviceGetName, CUDA_ERROR_INVALID_DEVICE, "%d", device);
    NEED_DEVICE(device);
    if (model != NULL)
        snprintf(name, (size_t)bytes, "%s", model);
    else
        snprintf(name, (size_t)bytes, "Fake GPU %d", driver.physical[device]);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    FAKE(cuDeviceGetUuid, CUDA_ERROR_INVALID_DEVICE, "%d", device);
    NEED_DEVICE(device);
    uuid_of(driver.physical[device], (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    size_t unused;

    FAKE(cuDeviceTotalMem, CUDA_ERROR_INVALID_DEVICE, "%d", device);
    NEED_DEVICE(device);
    fake_memory_info(driver.physical[device], &unused, bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device)
{
    FAKE(cuDeviceGetPCIBusId, CUDA_ERROR_INVALID_DEVICE, "%d", device);
    NEED_DEVICE(device);
    snprintf(text, (size_t)bytes, "0000:%02X:00.0", 0x10 + driver.physical[device]);
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    FAKE(cuDeviceCanAccessPeer, CUDA_ERROR_INVALID_DEVICE, "%d %d", device, peer);
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    *can = device != peer && fakegpu_number("FAKEGPU_PEERS", 1) != 0;
    return CUDA_SUCCESS;
}

/* A small one of the Hopper kind. */
static const struct {
    CUdevice_attribute name;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device)
{
    FAKE(cuDeviceGetAttribute, CUDA_ERROR_INVALID_DEVICE, "%d %d", (int)name, device);
    NEED_DEVICE(device);
    *value = name == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? 0x10 + driver.physical[device] : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        if (attributes[i].name == name)
            *value = attributes[i].value;
    }
    return CUDA_SUCCESS;
}

/* --- contexts --------------------------------------------------------------------------------- */

CUresult fake_context_of(int physical, struct CUctx_st **context)
{
    *context = &driver.contexts[physical];
    return (*context)->refs > 0 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult fake_context(struct CUctx_st **context)
{
    if (!driver.started)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (current == NULL || current->refs == 0) {
        fakegpu_complain("a call without a context in this thread");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = current;
    return current->fault;
}

CUcontext fakegpu_current(void)
{
    return current != NULL && current->refs > 0 ? current : NULL;
}

void fake_fault(int physical, CUresult code)
{
    driver.contexts[physical].fault = code;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct CUctx_st *c;

    FAKE(cuDevicePrimaryCtxRetain, CUDA_ERROR_OUT_OF_MEMORY, "%d", device);
    NEED_DEVICE(device);
    fake_lock();
    c = &driver.contexts[driver.physical[device]];
    if (c->refs++ == 0) {
        c->device = driver.physical[device];
        c->fault = CUDA_SUCCESS;
        c->legacy = fake_stream_new(c->device, false, true);
    }
    fake_unlock();
    *context = c;
    return CUDA_SUCCESS;
}

/* Reports what is left of a context, and frees it as the driver does. */
static void end_context(struct CUctx_st *c)
{
    static const char *const names[FAKE_KINDS] = {"", "stream", "event", "graph", "exec", "module"};
    const bool tell = fakegpu_number("FAKEGPU_LEAKS", 0) != 0;

    fake_drain_device(c->device);
    fake_stream_end(c->legacy);
    for (struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        if (tell && o->device == c->device)
            fakegpu_complain("leak: %s %d", names[o->kind], o->number);
    }
    fake_memory_leaks(c->device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    struct CUctx_st *c;
    CUresult result = CUDA_SUCCESS;

    FAKE(cuDevicePrimaryCtxRelease, CUDA_ERROR_INVALID_CONTEXT, "%d", device);
    NEED_DEVICE(device);
    fake_lock();
    c = &driver.contexts[driver.physical[device]];
    if (c->refs == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (c->refs == 1)
        end_context(c);
    c->refs -= c->refs > 0;
    fake_unlock();
    return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    FAKE(cuCtxSetCurrent, CUDA_ERROR_INVALID_CONTEXT, "%s", "");
    if (context != NULL && context->refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    FAKE(cuCtxGetCurrent, CUDA_ERROR_NOT_INITIALIZED, "%s", "");
    *context = fakegpu_current();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    struct CUctx_st *c;
    const CUresult result = fake_context(&c);

    FAKE(cuCtxGetDevice, CUDA_ERROR_INVALID_CONTEXT, "%s", "");
    for (int i = 0; result == CUDA_SUCCESS && i < driver.n; i++) {
        if (driver.physical[i] == c->device)
            *device = i;
    }
    return result;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Allocates or frees; both wait for the device, so neither may be captured. */
static CUresult with_context(const char *what, struct CUctx_st **context)
{
    CUresult result = fake_context(context);

    if (result == CUDA_SUCCESS)
        result = fake_capture_forbids(what);
    return result;
}

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    struct CUctx_st *c;
    CUresult result;
    void *made;

    FAKE(cuMemAlloc, CUDA_ERROR_OUT_OF_MEMORY, "%zu", bytes);
    fake_lock();
    result = with_context("cuMemAlloc", &c);
    if (result == CUDA_SUCCESS)
        result = fake_memory_new(c->device, bytes, &made);
    if (result == CUDA_SUCCESS)
        *at = (CUdeviceptr)made;
    fake_unlock();
    return result;
}

CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    struct CUctx_st *c;
    CUresult result;

    FAKE(cuMemHostAlloc, CUDA_ERROR_OUT_OF_MEMORY, "%zu %u", bytes, flags);
    fake_lock();
    result = with_context("cuMemHostAlloc", &c);
    if (result == CUDA_SUCCESS)
        result = fake_memory_new(-1, bytes, at);
    fake_unlock();
    return result;
}

static CUresult free_memory(const char *what, void *at, bool pinned)
{
    struct CUctx_st *c;
    CUresult result;

    fake_lock();
    result = with_context(what, &c);
    if (result == CUDA_SUCCESS && at != NULL) {
        fake_drain_device(c->device);
        result = fake_memory_free(at, pinned);
    }
    fake_unlock();
    return result;
}

CUresult cuMemFree(CUdeviceptr at)
{
    FAKE(cuMemFree, CUDA_ERROR_INVALID_VALUE, "%s", "");
    return free_memory("cuMemFree", (void *)at, false);
}

CUresult cuMemFreeHost(void *at)
{
    FAKE(cuMemFreeHost, CUDA_ERROR_INVALID_VALUE, "%s", "");
    return free_memory("cuMemFreeHost", at, true);
}

CUresult cuMemGetInfo(size_t *unused, size_t *total)
{
    struct CUctx_st *c;
    CUresult result;

    FAKE(cuMemGetInfo, CUDA_ERROR_INVALID_CONTEXT, "%s", "");
    fake_lock();
    result = fake_context(&c);
    if (result == CUDA_SUCCESS)
        fake_memory_info(c->device, unused, total);
    fake_unlock();
    return result;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *at, void *host, unsigned flags)
{
    int device;
    bool found;

    FAKE(cuMemHostGetDevicePointer, CUDA_ERROR_INVALID_VALUE, "%u", flags);
    fake_lock();
    found = fake_memory_find(host, &device) && device < 0;
    fake_unlock();
    *at = (CUdeviceptr)host;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute name, CUdeviceptr at)
{
    int device;
    bool found;

    FAKE(cuPointerGetAttribute, CUDA_ERROR_INVALID_VALUE, "%d", (int)name);
    fake_lock();
    found = fake_memory_find((const void *)at, &device);
    fake_unlock();
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    if (name == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (name == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = device < 0 ? 0 : device;
    else if (name == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)value = &driver.contexts[device < 0 ? 0 : device];
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}
