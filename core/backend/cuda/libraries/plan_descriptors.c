#include "core/backend/cuda/libraries/plan.h"

#include <string.h>

#include "core/base/memory.h"

enum dpt_status dpt_cuda_make(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                              cudnnBackendDescriptor_t *made, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    enum dpt_status status = DPT_OK;

    DPT_GROW(plans->made, &plans->made_room, (size_t)plans->n_made + 1, "cuDNN's descriptors", err);
    DPT_CUDNN_TRY(lib, cudnnBackendCreateDescriptor(type, made));
    plans->made[plans->n_made++] = *made;
out:
    return status;
}

void dpt_cuda_unmake(struct dpt_cuda_plans *plans, cudnnBackendDescriptor_t *made)
{
    int i = plans->n_made - 1;

    while (i >= 0 && plans->made[i] != *made)
        i--;
    if (i < 0 || *made == NULL)
        return;
    plans->lib->cudnnBackendDestroyDescriptor(*made);
    memmove(plans->made + i, plans->made + i + 1,
            (size_t)(--plans->n_made - i) * sizeof *plans->made);
    *made = NULL;
}

enum dpt_status dpt_cuda_describe(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                                  const struct dpt_cuda_attribute *rows, size_t n,
                                  cudnnBackendDescriptor_t *made, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_make(plans, type, made, err));
    for (size_t i = 0; i < n; i++) {
        if (rows[i].count > 0)
            DPT_CUDNN_TRY(lib, cudnnBackendSetAttribute(*made, rows[i].name, rows[i].type,
                                                        rows[i].count, rows[i].values));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_build(struct dpt_cuda_plans *plans, cudnnBackendDescriptorType_t type,
                               const struct dpt_cuda_attribute *rows, size_t n,
                               cudnnBackendDescriptor_t *made, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_describe(plans, type, rows, n, made, err));
    DPT_CUDNN_TRY(lib, cudnnBackendFinalize(*made));
out:
    return status;
}

/* Graphs and plans get their device as a handle: cuDNN 9.18 deprecates that, but earlier versions
 * have no other way. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static const struct {
    int handle, properties; /* cudnnBackendAttributeName_t; -1: there is no such attribute */
} attributes[] = {
    [DPT_CUDA_TO_GRAPH] = {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, -1},
    [DPT_CUDA_TO_HEURISTICS] = {-1, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP},
    [DPT_CUDA_TO_ENGINE] = {-1, CUDNN_ATTR_ENGINE_DEVICEPROP},
    [DPT_CUDA_TO_PLAN] = {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP},
};
#pragma GCC diagnostic pop

struct dpt_cuda_attribute dpt_cuda_device_row(enum dpt_cuda_to to,
                                              const struct dpt_cuda_device *device)
{
    const bool handle = device->handle != NULL;
    const int name = handle ? attributes[to].handle : attributes[to].properties;

    return (struct dpt_cuda_attribute){
        .name = (cudnnBackendAttributeName_t)name,
        .type = handle ? CUDNN_TYPE_HANDLE : CUDNN_TYPE_BACKEND_DESCRIPTOR,
        .count = name >= 0,
        .values = handle ? (const void *)&device->handle : (const void *)&device->properties};
}

enum dpt_status dpt_cuda_device_described(const struct dpt_cuda_library *lib, const char *json,
                                          struct dpt_cuda_device *device, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *device = (struct dpt_cuda_device){0};
    DPT_CUDNN_TRY(lib, cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                                                    &device->properties));
    DPT_CUDNN_TRY(lib, cudnnBackendSetAttribute(device->properties,
                                                CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                CUDNN_TYPE_CHAR, (int64_t)strlen(json), json));
    DPT_CUDNN_TRY(lib, cudnnBackendFinalize(device->properties));
out:
    if (status != DPT_OK) {
        dpt_cuda_device_release(lib, device);
        err->status = status = DPT_BAD_JOB;
    }
    return status;
}

void dpt_cuda_device_release(const struct dpt_cuda_library *lib, struct dpt_cuda_device *device)
{
    if (device->properties != NULL)
        lib->cudnnBackendDestroyDescriptor(device->properties);
    *device = (struct dpt_cuda_device){0};
}
