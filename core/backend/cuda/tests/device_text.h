/* cuDNN's description of a device, such as h200-deviceprop.json: for tests that describe one
 * again. */
#ifndef DPT_BACKEND_CUDA_TESTS_DEVICE_TEXT_H
#define DPT_BACKEND_CUDA_TESTS_DEVICE_TEXT_H

#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/libraries/plan.h"
#include "core/base/str.h"

/* Appends the description of a device with a handle, or of one that was described, to *json. */
static inline enum dpt_status device_text(const struct dpt_cuda_library *lib,
                                          const struct dpt_cuda_device *device,
                                          struct dpt_str *json, struct dpt_error *err)
{
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
    cudnnBackendDescriptor_t own = NULL, of = device->properties;
    enum dpt_status status = DPT_OK;
    int64_t length = 0;
    char *bytes = NULL;

    if (device->handle != NULL) {
        DPT_CUDNN_TRY(lib, cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &own));
        DPT_CUDNN_TRY(lib, cudnnBackendSetAttribute(own, CUDNN_ATTR_DEVICEPROP_HANDLE,
                                                    CUDNN_TYPE_HANDLE, 1, &device->handle));
        DPT_CUDNN_TRY(lib, cudnnBackendFinalize(own));
        of = own;
    }
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(of, name, CUDNN_TYPE_CHAR, 0, &length, NULL));
    bytes = calloc((size_t)length + 1, 1);
    if (bytes == NULL)
        DPT_TRY(dpt_fail_memory(err, "cuDNN's text", (double)length));
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(of, name, CUDNN_TYPE_CHAR, length, &length, bytes));
    dpt_str_add(json, bytes, strlen(bytes));
    if (json->failed)
        status = dpt_fail_memory(err, "cuDNN's text", (double)length);
out:
    free(bytes);
    if (own != NULL)
        lib->cudnnBackendDestroyDescriptor(own);
    return status;
}

#endif
