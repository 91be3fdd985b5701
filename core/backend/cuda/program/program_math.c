/* The operations that cuDNN or cuBLASLt computes: binds a plan to its arrays and workspace, and
 * runs it. */
#include "core/backend/cuda/program/program.h"

const struct dpt_cuda_roles dpt_cuda_roles[DPT_CUDA_PASSES] = {
    [DPT_CUDA_FORWARD] = {DPT_CUDA_X, DPT_CUDA_W, DPT_CUDA_Y},
    [DPT_CUDA_BACKWARD_DATA] = {DPT_CUDA_Y, DPT_CUDA_W, DPT_CUDA_X},
    [DPT_CUDA_BACKWARD_FILTER] = {DPT_CUDA_Y, DPT_CUDA_X, DPT_CUDA_W},
};

int64_t dpt_cuda_needs(const struct dpt_cuda_math *m, int which)
{
    return m->dense ? m->gemms.algorithm[which].workspace : m->plans.plan[which].workspace;
}

int dpt_cuda_found(const struct dpt_cuda_math *m)
{
    return m->dense ? m->gemms.n : m->plans.n;
}

enum dpt_status dpt_cuda_bind(struct dpt_cuda_math *m, void *workspace, struct dpt_error *err)
{
    void *pointers[DPT_CUDA_ARRAYS];

    m->workspace = dpt_cuda_needs(m, m->which) > 0 ? workspace : NULL;
    if (m->dense)
        return DPT_OK;
    for (int i = 0; i < DPT_CUDA_ARRAYS; i++)
        pointers[i] = i == DPT_CUDA_BIAS && !m->plans.bias ? NULL : m->array[i].at;
    return dpt_cuda_plan_bind(&m->plans, pointers, m->workspace, &m->bound, err);
}

enum dpt_status dpt_cuda_run_math(struct dpt_cuda_program *p, struct dpt_cuda_math *m, bool add,
                                  struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const struct dpt_cuda_roles *of = &dpt_cuda_roles[m->pass];
    const struct dpt_cuda_factors factors = {.a = m->array[of->a].at,
                                             .b = m->array[of->b].at,
                                             .d = m->array[of->d].at,
                                             .bias = m->array[DPT_CUDA_BIAS].at};
    const CUstream stream = dpt_cuda_stream(p);
    enum dpt_status status = DPT_OK;

    if (m->dense) {
        /* A gradient in the layers' layout is added when from_layout copies it into the arena. */
        m->gemms.gemm.add = add && (float *)factors.d >= p->gradient &&
                            (float *)factors.d < p->gradient + p->spec.graph->floats;
        DPT_TRY(dpt_cuda_gemms_run(&m->gemms, m->which, &factors, m->workspace, stream, err));
    } else {
        if (stream != p->ctx.compute)
            DPT_CUDNN_TRY(lib, cudnnSetStream(p->ctx.plans.handle, (cudaStream_t)stream));
        DPT_CUDNN_TRY(
            lib, cudnnBackendExecute(p->ctx.plans.handle, m->plans.plan[m->which].plan, m->bound));
    }
out:
    if (!m->dense && stream != p->ctx.compute)
        lib->cudnnSetStream(p->ctx.plans.handle, (cudaStream_t)p->ctx.compute);
    return status;
}

void dpt_cuda_math_release(struct dpt_cuda_math *m)
{
    if (m->plans.lib != NULL)
        dpt_cuda_plans_release(&m->plans);
    if (m->gemms.lib != NULL)
        dpt_cuda_gemms_release(&m->gemms);
}
