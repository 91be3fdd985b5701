/* The time of a launch on the device. It is repeated in a graph, since the host takes longer to
 * launch a kernel by itself than many kernels take to run. */
#include <math.h>

#include "core/backend/cuda/program/program_time.h"

enum { MOST_RUNS = 256 };

/* Milliseconds. An event's time is exact to half a microsecond, and a graph's launch takes a few
 * microseconds, so a replay should take `enough`; from `long_enough` on that launch hardly
 * matters. */
static const float enough = 0.25f, long_enough = 1;

static enum dpt_status enqueue_repeated(void *arg, struct dpt_error *err)
{
    const struct dpt_cuda_repeat *r = arg;
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < r->repeats && status == DPT_OK; i++)
        status = r->enqueue(r->arg, err);
    return status;
}

/* A short graph is timed after another replay of it: while that one runs, the host enqueues the
 * events and the timed replay, so that the device does not wait for the host in between. */
enum dpt_status dpt_cuda_repeat_time(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r,
                                     struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = &p->ctx.lib;
    const struct dpt_cuda_lists *l = p->lists;
    enum dpt_status status = DPT_OK;

    if (r->replay > 0 && r->replay < long_enough)
        DPT_CUDA_TRY(lib, cuGraphLaunch(r->exec, p->ctx.compute));
    DPT_CUDA_TRY(lib, cuEventRecord(l->begin, p->ctx.compute));
    DPT_CUDA_TRY(lib, cuGraphLaunch(r->exec, p->ctx.compute));
    DPT_CUDA_TRY(lib, cuEventRecord(l->end, p->ctx.compute));
    DPT_TRY(dpt_cuda_await_event(&p->ctx, l->end, err));
    DPT_CUDA_TRY(lib, cuEventElapsedTime(&r->replay, l->begin, l->end));
    r->spent += r->replay;
    r->least = fminf(r->least, r->replay / (float)r->repeats);
out:
    return status;
}

/* The number of runs for `enough` time, judged by the last replay, and a quarter more since that
 * replay may have been slow. */
static int more_runs(const struct dpt_cuda_repeat *r)
{
    const float wanted = 1.25f * enough * (float)r->repeats / r->replay;

    if (!(wanted < MOST_RUNS)) /* also if replay is 0, so that wanted is infinite or NaN */
        return MOST_RUNS;
    return wanted > 2 * (float)r->repeats ? (int)wanted : 2 * r->repeats;
}

enum dpt_status dpt_cuda_repeat_open(struct dpt_cuda_program *p, dpt_cuda_enqueue *enqueue,
                                     void *arg, struct dpt_cuda_repeat *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int repeats = 1;

    for (;;) {
        *r = (struct dpt_cuda_repeat){
            .enqueue = enqueue, .arg = arg, .repeats = repeats, .least = INFINITY};
        DPT_TRY(dpt_cuda_capture(&p->ctx, enqueue_repeated, r, &r->exec, err));
        DPT_TRY(dpt_cuda_repeat_time(p, r, err));
        if (r->replay >= enough || r->repeats == MOST_RUNS)
            break;
        repeats = more_runs(r) < MOST_RUNS ? more_runs(r) : MOST_RUNS;
        dpt_cuda_repeat_close(p, r);
    }
out:
    if (status != DPT_OK)
        dpt_cuda_repeat_close(p, r);
    return status;
}

bool dpt_cuda_repeat_more(const struct dpt_cuda_repeat *r, int rounds)
{
    enum { LEAST_ROUNDS = 2, MOST_ROUNDS = 5 };
    const float settled = 2; /* ms */

    return rounds < LEAST_ROUNDS || (rounds < MOST_ROUNDS && r->spent < settled);
}

void dpt_cuda_repeat_close(struct dpt_cuda_program *p, struct dpt_cuda_repeat *r)
{
    if (r->exec == NULL)
        return;
    p->ctx.lib.cuStreamSynchronize(p->ctx.compute);
    p->ctx.lib.cuGraphExecDestroy(r->exec);
    r->exec = NULL;
}
