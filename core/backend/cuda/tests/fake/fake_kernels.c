/* The fake driver's modules: any image is that of this program's kernels, which run by emulation.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/emulate.h"
#include "core/backend/cuda/tests/fake/fake_driver.h"
#include "core/backend/cuda/tests/fake/fake_ranges.h"

struct CUfunc_st {
    enum dpt_cuda_kernel kernel;
};

struct CUmod_st {
    struct fake_object object;
    struct CUfunc_st functions[DPT_CUDA_KERNEL_COUNT];
};

/* Where pointers stand in the kernels' arguments, but those to where an arena would begin of which
 * a part is there. */
#define POINTER(argument, field)                                                                   \
    {                                                                                              \
#argument, offsetof(struct dpt_cuda_##argument##_args, field)                              \
    }
static const struct {
    const char *argument;
    size_t at;
} pointers[] = {
    POINTER(act, x),
    POINTER(act, y),
    POINTER(act_back, x),
    POINTER(act_back, dy),
    POINTER(act_back, dx),
    POINTER(bias, x),
    POINTER(bias, bias),
    POINTER(bias, y),
    POINTER(bias_back, dy),
    POINTER(bias_back, y),
    POINTER(bias_back, dx),
    POINTER(bias_back, dbias),
    POINTER(bias_back, partial),
    POINTER(bias_back, counter),
    POINTER(pool, from),
    POINTER(pool, to),
    POINTER(pool, index),
    POINTER(dropout, x),
    POINTER(dropout, y),
    POINTER(dropout, sample),
    POINTER(dropout, control),
    POINTER(loss, y),
    POINTER(loss, dy),
    POINTER(loss, labels),
    POINTER(loss, targets),
    POINTER(loss, weights),
    POINTER(loss, control),
    POINTER(loss, metric_sums),
    POINTER(loss, partial),
    POINTER(loss, counter),
    POINTER(layout, copies),
    POINTER(layout, list),
    POINTER(slices, rows),
    POINTER(slices, exact),
    POINTER(gather, data),
    POINTER(gather, index),
    POINTER(gather, scale),
    POINTER(gather, shift),
    POINTER(gather, moves),
    POINTER(gather, control),
    POINTER(gather, out),
    POINTER(scan, x),
    POINTER(scan, found),
    POINTER(batchnorm, x),
    POINTER(batchnorm, dy),
    POINTER(batchnorm, with),
    POINTER(batchnorm, joined),
    POINTER(batchnorm, y),
    POINTER(batchnorm, dz),
    POINTER(batchnorm, statistics),
    POINTER(batchnorm, means),
    POINTER(batchnorm, variances),
    POINTER(batchnorm, dweight),
    POINTER(batchnorm, dbias),
    POINTER(batchnorm, weight),
    POINTER(batchnorm, bias),
    POINTER(batchnorm, mean),
    POINTER(batchnorm, variance),
    POINTER(batchnorm, partial),
    POINTER(batchnorm, sums),
    POINTER(batchnorm, counter),
    POINTER(batchnorm, control),
    POINTER(batchnorm, state),
    POINTER(join, a),
    POINTER(join, b),
    POINTER(join, y),
    POINTER(join_back, dy),
    POINTER(join_back, a),
    POINTER(join_back, b),
    POINTER(join_back, da),
    POINTER(join_back, db),
    POINTER(concat, whole),
    POINTER(concat, first),
    POINTER(concat, second),
    POINTER(flatten, from),
    POINTER(flatten, to),
    POINTER(add, x),
    POINTER(add, y),
    POINTER(norm, gradient),
    POINTER(norm, tail),
    POINTER(norm, rates),
    POINTER(norm, state),
    POINTER(norm, partial),
    POINTER(norm, counter),
    POINTER(update, rates),
    POINTER(update, state),
    POINTER(update, group),
    POINTER(update, running),
    POINTER(update, tail),
    POINTER(update, copies.list),
    POINTER(update, copies.number),
    POINTER(update, copies.at),
    POINTER(shown, partial),
    POINTER(shown, tail),
    POINTER(shown, norm),
    POINTER(norm, copies.list),
    POINTER(norm, copies.number),
    POINTER(norm, copies.at),
    POINTER(loss, tail),
};

static const char *const arguments[] = {
#define X(name, kind, argument, lanes, meets) #argument,
    DPT_CUDA_KERNELS(X)
#undef X
};

static CUresult load(CUmodule *module, const void *image)
{
    struct CUctx_st *context;
    CUresult result = fake_context(&context);
    struct CUmod_st *m;

    if (result == CUDA_SUCCESS)
        result = fake_capture_forbids("cuModuleLoadData");
    if (result != CUDA_SUCCESS)
        return result;
    if (image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    m = fake_zalloc(sizeof *m);
    for (int k = 0; k < DPT_CUDA_KERNEL_COUNT; k++)
        m->functions[k].kernel = (enum dpt_cuda_kernel)k;
    fake_register(&m->object, FAKE_MODULE, context->device);
    *module = m;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUresult result;

    FAKE(cuModuleLoadData, CUDA_ERROR_NO_BINARY_FOR_GPU, "%s", "");
    fake_lock();
    result = load(module, image);
    fake_unlock();
    return result;
}

CUresult cuModuleUnload(CUmodule module)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    FAKE(cuModuleUnload, CUDA_ERROR_UNKNOWN, "%s", "");
    fake_lock();
    if (fake_alive(module, FAKE_MODULE)) {
        fake_drain_device(module->object.device);
        fake_unregister(&module->object);
        free(module);
        result = CUDA_SUCCESS;
    }
    fake_unlock();
    return result;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = CUDA_ERROR_NOT_FOUND;

    FAKE(cuModuleGetFunction, CUDA_ERROR_NOT_FOUND, "%s", name);
    fake_lock();
    if (!fake_alive(module, FAKE_MODULE))
        result = CUDA_ERROR_INVALID_HANDLE;
    for (int k = 0; k < DPT_CUDA_KERNEL_COUNT && result == CUDA_ERROR_NOT_FOUND; k++) {
        if (strcmp(dpt_cuda_kernel_name((enum dpt_cuda_kernel)k), name) == 0) {
            *function = &module->functions[k];
            result = CUDA_SUCCESS;
        }
    }
    fake_unlock();
    return result;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction function)
{
    FAKE(cuFuncGetAttribute, CUDA_ERROR_INVALID_HANDLE, "%d", (int)name);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? DPT_CUDA_THREADS
             : name == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 64
                                                             : 0;
    return CUDA_SUCCESS;
}

struct launch {
    int64_t kernel;
    unsigned char argument[];
};

static void run_kernel(void *data)
{
    const struct launch *l = data;

    dpt_emulate((enum dpt_cuda_kernel)l->kernel, l->argument);
}

bool fake_kernel_accesses(const struct fake_op *op, struct fakegpu_work *work)
{
    const struct launch *l = op->work.data;

    if (op->work.run == run_kernel)
        fake_kernel_ranges((enum dpt_cuda_kernel)l->kernel, l->argument, work);
    return op->work.run == run_kernel;
}

/* A function of a module that is loaded. */
static bool known(CUfunction function)
{
    for (const struct fake_object *o = fake_objects(); o != NULL; o = o->next) {
        const struct CUmod_st *m = (const struct CUmod_st *)o;

        if (o->kind == FAKE_MODULE && function >= m->functions &&
            function < m->functions + DPT_CUDA_KERNEL_COUNT)
            return true;
    }
    fakegpu_complain("a launch of what is no kernel of a loaded module");
    return false;
}

static CUresult check_grid(enum dpt_cuda_kernel kernel, const void *argument, unsigned x,
                           unsigned y, unsigned z, unsigned threads)
{
    struct dpt_cuda_grid grid;

    if (x == 0 || y == 0 || z == 0 || y > UINT16_MAX || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dpt_cuda_kernel_grid(kernel, argument, &grid) || grid.x != x || grid.y != y || z != 1 ||
        threads != DPT_CUDA_THREADS) {
        fakegpu_complain("%s is launched as %u x %u x %u of %u, and its argument wants %u x %u",
                         dpt_cuda_kernel_name(kernel), x, y, z, threads, grid.x, grid.y);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static void add_pointers(struct fakegpu_work *work, enum dpt_cuda_kernel kernel,
                         const unsigned char *argument)
{
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        const void *p;

        if (strcmp(pointers[i].argument, arguments[kernel]) != 0)
            continue;
        memcpy(&p, argument + pointers[i].at, sizeof p);
        if (p != NULL)
            fakegpu_add_range(work, p, 1, FAKEGPU_EITHER, false);
    }
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned tx,
                        unsigned ty, unsigned tz, unsigned shared, CUstream stream, void **given,
                        void **extra)
{
    struct fakegpu_work work = {.run = run_kernel};
    enum dpt_cuda_kernel kernel;
    struct launch *l;
    CUresult result;
    bool alive;

    fake_lock();
    alive = known(function);
    fake_unlock();
    FAKE(cuLaunchKernel, CUDA_ERROR_LAUNCH_FAILED, "%s grid %ux%u",
         alive ? dpt_cuda_kernel_name(function->kernel) : "?", x, y);
    if (!alive)
        return CUDA_ERROR_INVALID_HANDLE;
    if (given == NULL || given[0] == NULL || extra != NULL || shared != 0 || ty != 1 || tz != 1)
        return CUDA_ERROR_INVALID_VALUE;
    kernel = function->kernel;
    result = check_grid(kernel, given[0], x, y, z, tx);
    if (result != CUDA_SUCCESS)
        return result;
    strncpy(work.name, dpt_cuda_kernel_name(kernel), sizeof work.name - 1);
    work.bytes = sizeof *l + dpt_cuda_kernel_argument(kernel);
    l = fake_zalloc(work.bytes);
    l->kernel = kernel;
    memcpy(l->argument, given[0], dpt_cuda_kernel_argument(kernel));
    work.data = l;
    add_pointers(&work, kernel, l->argument);
    result = fakegpu_enqueue(stream, &work);
    free(l);
    return result;
}

static __attribute__((destructor)) void end(void)
{
    dpt_emulate_end(NULL);
}
