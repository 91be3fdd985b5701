/* The fake cuDNN's handles, and the execution of plans on their streams. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_cudnn.h"

struct cudnnContext {
    uint64_t magic;
    CUstream stream;
    CUcontext context;
};

struct execution {
    struct fake_conv conv;
    struct fake_choice choice;
    void *at[FAKE_TENSORS], *workspace;
    size_t bytes; /* of the workspace */
};

/* The tensor that a pass writes. */
static const int written[] = {
    [FAKE_FORWARD] = FAKE_Y, [FAKE_DATA] = FAKE_X, [FAKE_FILTER] = FAKE_W};

static void execute(void *data)
{
    const struct execution *e = data;
    struct fake_order order;

    for (int t = FAKE_X; t <= FAKE_Y; t++) {
        if (t != written[e->conv.pass])
            fakegpu_look("cuDNN", e->at[t], fake_tensor_bytes(&e->conv.tensor[t]));
    }
    fake_plan_order(&e->choice, &order);
    if (e->bytes > 0)
        memset(e->workspace, 0xff, e->bytes);
    fake_conv_run(&e->conv, &order, e->at);
}

/* The pointers of a variant pack by tensor. */
static cudnnStatus_t bind(const struct fake_descriptor *pack, struct execution *e,
                          struct fakegpu_work *work)
{
    int64_t n, pointers;
    const int64_t *ids = fake_value(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &n);
    void *const *at = fake_value(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers);

    if (n != pointers)
        return FAKE_WRONG(BAD_PARAM, "%lld ids and %lld pointers", (long long)n,
                          (long long)pointers);
    for (int t = 0; t < FAKE_TENSORS; t++) {
        const struct fake_tensor *tensor = &e->conv.tensor[t];

        if (t == FAKE_BIAS && !e->conv.bias)
            continue;
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] == tensor->id)
                e->at[t] = at[i];
        }
        if (e->at[t] == NULL)
            return FAKE_WRONG(BAD_PARAM_NULL_POINTER, "no pointer for tensor %lld",
                              (long long)tensor->id);
        if ((uintptr_t)e->at[t] % (uintptr_t)tensor->alignment != 0)
            return FAKE_WRONG(BAD_PARAM_MISALIGNED_POINTER, "tensor %lld is not aligned to %lld",
                              (long long)tensor->id, (long long)tensor->alignment);
        fakegpu_add_range(work, e->at[t], fake_tensor_bytes(tensor), FAKEGPU_DEVICE,
                          t == written[e->conv.pass]);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t given,
                                  cudnnBackendDescriptor_t variant)
{
    const struct fake_descriptor *plan = fake_descriptor_of(given),
                                 *pack = fake_descriptor_of(variant);
    struct execution e = {0};
    struct fakegpu_work work = {.run = execute, .data = &e, .bytes = sizeof e};
    cudnnStatus_t status;
    int64_t count;

    FAKE(cudnnBackendExecute, CUDNN_STATUS_EXECUTION_FAILED, "engine %lld",
         plan != NULL ? (long long)fake_engine_number(plan->meaning.choice.engine) : -1);
    if (handle == NULL || handle->magic != FAKE_MAGIC)
        return FAKE_WRONG(BAD_PARAM, "no handle");
    if (plan == NULL || pack == NULL || !plan->finalized || !pack->finalized ||
        plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
        pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return FAKE_WRONG(BAD_PARAM_NOT_FINALIZED, "no plan or no variant pack that is finalized");
    if (fakegpu_current() != handle->context)
        return FAKE_WRONG(BAD_PARAM, "the handle is of another context than the thread's");
    e.conv = plan->meaning.conv;
    e.choice = plan->meaning.choice;
    e.bytes = (size_t)plan->meaning.workspace;
    e.workspace = *(void *const *)fake_value(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &count);
    snprintf(work.name, sizeof work.name, "cuDNN's engine %lld",
             (long long)fake_engine_number(e.choice.engine));
    status = bind(pack, &e, &work);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (e.bytes > 0 && e.workspace == NULL)
        return FAKE_WRONG(BAD_PARAM_NULL_POINTER, "the plan needs a workspace of %zu bytes",
                          e.bytes);
    fakegpu_add_range(&work, e.workspace, e.bytes, FAKEGPU_DEVICE, true);
    if (fakegpu_enqueue(handle->stream, &work) != CUDA_SUCCESS)
        return fake_refuse(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "the driver refused it");
    return CUDNN_STATUS_SUCCESS;
}

/* --- handles ---------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDA_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    static const struct {
        cudnnStatus_t status;
        const char *text;
    } texts[] = {
#define TEXT_OF(name) {CUDNN_STATUS_##name, "CUDNN_STATUS_" #name}
        TEXT_OF(SUCCESS),
        TEXT_OF(NOT_INITIALIZED),
        TEXT_OF(SUBLIBRARY_VERSION_MISMATCH),
        TEXT_OF(BAD_PARAM),
        TEXT_OF(BAD_PARAM_NULL_POINTER),
        TEXT_OF(BAD_PARAM_MISALIGNED_POINTER),
        TEXT_OF(BAD_PARAM_NOT_FINALIZED),
        TEXT_OF(BAD_PARAM_SHAPE_MISMATCH),
        TEXT_OF(BAD_PARAM_ATTRIBUTE_TYPE),
        TEXT_OF(NOT_SUPPORTED),
        TEXT_OF(NOT_SUPPORTED_GRAPH_PATTERN),
        TEXT_OF(NOT_SUPPORTED_DATA_TYPE),
        TEXT_OF(NOT_SUPPORTED_LAYOUT),
        TEXT_OF(INTERNAL_ERROR),
        TEXT_OF(INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
        TEXT_OF(EXECUTION_FAILED),
        TEXT_OF(EXECUTION_FAILED_CUDA_DRIVER),
#undef TEXT_OF
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].status == status)
            return texts[i].text;
    }
    return "CUDNN_STATUS of another kind";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    FAKE(cudnnCreate, CUDNN_STATUS_NOT_INITIALIZED, "%s", "");
    if (fakegpu_current() == NULL)
        return FAKE_WRONG(NOT_INITIALIZED, "a handle without a context");
    *handle = calloc(1, sizeof **handle);
    if (*handle == NULL)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    (*handle)->magic = FAKE_MAGIC;
    (*handle)->context = fakegpu_current();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    FAKE(cudnnDestroy, CUDNN_STATUS_BAD_PARAM, "%s", "");
    if (handle == NULL || handle->magic != FAKE_MAGIC)
        return FAKE_WRONG(BAD_PARAM, "what is destroyed is no handle");
    handle->magic = 0;
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    FAKE(cudnnSetStream, CUDNN_STATUS_BAD_PARAM, "%s", "");
    if (handle == NULL || handle->magic != FAKE_MAGIC)
        return FAKE_WRONG(BAD_PARAM, "a stream for no handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
