/* What one stage of a pipeline sends another. */
#include "core/train/mesh/mesh.h"
#include "core/train/step/step.h"

/* What the action sends or receives for a worker: the value that a stage gives the next one, or
 * that value's gradient, of the samples' rows, which come first. NULL: nothing. */
static float *message_of(const struct dpt_runner *r, int worker, size_t *bytes)
{
    const struct dpt_trainer *t = r->t;
    const struct dpt_action *a = r->action;
    const bool to_next = (a->kind == DPT_ACTION_SEND) != a->back;
    int32_t n;
    size_t floats;
    float *value;

    if (dpt_share_take(&r->share, worker, a->round, &n) < 0)
        return NULL;
    value = t->backend->value(t->model.program, worker, r->infers != NULL ? 0 : a->flight,
                              t->layout.stage[t->stage->number + to_next].first, a->back, &floats);
    *bytes = floats / (size_t)t->layout.at_once * (size_t)n * sizeof(float);
    return value;
}

enum dpt_status dpt_step_await(const struct dpt_runner *r, struct dpt_step_flight *flight,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_group_sent(dpt_mesh_link(r->t, true), &flight->forward, err));
    DPT_TRY(dpt_group_sent(dpt_mesh_link(r->t, false), &flight->back, err));
out:
    return status;
}

enum dpt_status dpt_step_run_receive(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool back = r->action->back;

    for (int k = 0; k < r->share.workers; k++) {
        size_t bytes;
        float *to = message_of(r, k, &bytes);

        DPT_TRY(dpt_step_await(r, dpt_step_flight_of(r, k, 0), err));
        if (to != NULL)
            DPT_TRY(dpt_group_receive(dpt_mesh_link(r->t, back), back, to, bytes, err));
    }
out:
    return status;
}

enum dpt_status dpt_step_run_send(struct dpt_runner *r, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool back = r->action->back;

    for (int k = 0; k < r->share.workers; k++) {
        struct dpt_step_flight *flight = dpt_step_flight_of(r, k, 0);
        size_t bytes;
        const float *from = message_of(r, k, &bytes);

        DPT_TRY(dpt_step_await(r, flight, err));
        if (from != NULL)
            DPT_TRY(dpt_group_send(dpt_mesh_link(r->t, !back), !back, from, bytes,
                                   back ? &flight->back : &flight->forward, err));
    }
out:
    return status;
}
