#include "core/backend/cpu/program/program.h"

/* What of a program is oneDNN's: its engine, and the calls of its kernels. A build without oneDNN
 * leaves this file out. */

enum dpt_status dpt_cpu_onednn_open(struct dpt_cpu_program *program, struct dpt_error *err)
{
    return dpt_dnnl_open(&program->dnnl, program->spec.threads, err);
}

void dpt_cpu_onednn_close(struct dpt_cpu_program *program)
{
    const int flights = program->workers != NULL ? program->spec.threads * program->in_flight : 0;

    for (int i = 0; i < program->n_calls; i++) {
        for (int k = 0; k < flights; k++)
            if (program->workers[k].calls != NULL)
                dpt_call_close(program->workers[k].calls[i]);
        dpt_kernel_close(program->calls[i].kernel);
    }
    dpt_dnnl_close(program->dnnl);
}

void dpt_cpu_onednn_enter(const struct dpt_cpu_program *program)
{
    dpt_dnnl_one_thread(program->dnnl);
}

int dpt_cpu_call(struct dpt_cpu_program *program, struct dpt_kernel *kernel, int x, int y, int w,
                 int b)
{
    program->calls[program->n_calls] =
        (struct dpt_cpu_call){.kernel = kernel, .buffers = {x, y, w, b}};
    dpt_cpu_want_scratch(program, kernel->scratch);
    return program->n_calls++;
}

enum dpt_status dpt_cpu_onednn_reorder(struct dpt_cpu_program *program, const struct dpt_shape *s,
                                       enum dpt_memory_layout from, int x,
                                       enum dpt_memory_layout to, int y, int *call,
                                       struct dpt_error *err)
{
    const int32_t dims[4] = {program->spec.micro, s->c, s->h, s->w};
    enum dpt_status status = DPT_OK;
    struct dpt_kernel *kernel;

    DPT_TRY(dpt_kernel_reorder(program->dnnl, dims, from, to, &kernel, err));
    *call = dpt_cpu_call(program, kernel, x, y, DPT_CPU_NONE, DPT_CPU_NONE);
out:
    return status;
}

enum dpt_status dpt_cpu_onednn_bind(struct dpt_cpu_program *program, int number,
                                    struct dpt_error *err)
{
    struct dpt_cpu_worker *worker = &program->workers[number];
    const int thread = number / program->in_flight;
    float *scratch = program->workers[thread * program->in_flight].memory;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < program->n_calls; i++) {
        const struct dpt_cpu_call *call = &program->calls[i];

        if (call->kernel == NULL)
            continue;
        DPT_TRY(
            dpt_call_open(&worker->calls[i], program->dnnl, thread, call->kernel, scratch, err));
        for (int role = 0; role < DPT_ROLE_COUNT; role++) {
            if (call->buffers[role] > DPT_CPU_INPUT)
                dpt_call_set(worker->calls[i], (enum dpt_role)role,
                             worker->buffers[call->buffers[role]]);
        }
    }
out:
    return status;
}

void dpt_cpu_set(const struct dpt_cpu_run *run, int call, enum dpt_role role, const float *memory)
{
    dpt_call_set(run->worker->calls[call], role, memory);
}

void dpt_cpu_onednn_execute(const struct dpt_cpu_run *run, int call)
{
    const struct dpt_cpu_call *plan = &run->program->calls[call];

    for (int role = 0; role < DPT_ROLE_COUNT; role++) {
        if (plan->buffers[role] == DPT_CPU_INPUT)
            dpt_cpu_set(run, call, (enum dpt_role)role, run->batch->input);
    }
    if (*run->status == DPT_OK)
        *run->status = dpt_call_run(run->worker->calls[call], run->err);
}
