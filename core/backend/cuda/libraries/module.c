#include "core/backend/cuda/libraries/context.h"

/* Includes the file that nvcc made, aligned as the driver requires. */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "dpt_cuda_image_begin:\n"
        ".incbin \"" DPT_CUDA_IMAGE "\"\n"
        "dpt_cuda_image_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const char dpt_cuda_image_begin[] __attribute__((visibility("hidden")));
extern const char dpt_cuda_image_end[] __attribute__((visibility("hidden")));

const void *dpt_cuda_module_image(size_t *bytes)
{
    *bytes = (size_t)(dpt_cuda_image_end - dpt_cuda_image_begin);
    return dpt_cuda_image_begin;
}

enum dpt_status dpt_cuda_module_load(const struct dpt_cuda_library *lib,
                                     struct dpt_cuda_module *module, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t bytes;

    *module = (struct dpt_cuda_module){0};
    DPT_CUDA_TRY(lib, cuModuleLoadData(&module->module, dpt_cuda_module_image(&bytes)));
    for (int k = 0; k < DPT_CUDA_KERNEL_COUNT; k++)
        DPT_CUDA_TRY(lib, cuModuleGetFunction(&module->functions[k], module->module,
                                              dpt_cuda_kernel_name((enum dpt_cuda_kernel)k)));
out:
    if (status != DPT_OK)
        dpt_cuda_module_release(lib, module);
    return status;
}

void dpt_cuda_module_release(const struct dpt_cuda_library *lib, struct dpt_cuda_module *module)
{
    if (module->module != NULL)
        lib->cuModuleUnload(module->module);
    *module = (struct dpt_cuda_module){0};
}

enum dpt_status dpt_cuda_launch(const struct dpt_cuda_library *lib,
                                const struct dpt_cuda_module *module, CUstream stream,
                                enum dpt_cuda_kernel kernel, const void *argument,
                                struct dpt_error *err)
{
    /* The driver's parameter is not const, but the driver does not write through it. */
    union {
        const void *constant;
        void *parameter;
    } one = {argument};
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_grid grid;

    if (!dpt_cuda_kernel_grid(kernel, argument, &grid))
        return dpt_fail(err, DPT_BAD_JOB,
                        "%s: the tensor is too large for a GPU kernel: a smaller batch.micro helps",
                        dpt_cuda_kernel_name(kernel));
    if (grid.x > 0)
        DPT_CUDA_TRY(lib, cuLaunchKernel(module->functions[kernel], grid.x, grid.y, 1,
                                         DPT_CUDA_THREADS, 1, 1, 0, stream, &one.parameter, NULL));
out:
    return status;
}
