/* The exchanges of the ranks that divide the model, after the sums of their gradients. */
#include <math.h>
#include <string.h>

#include "core/train/mesh/mesh.h"
#include "core/train/reduction/gradient_reduction.h"

enum dpt_status dpt_mesh_sum(struct dpt_trainer *t, const struct dpt_step_view *view,
                             const float flags[DPT_FLAGS], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const float none[DPT_FLAGS] = {0};
    float all[DPT_FLAGS];

    if (t->layout.model_ranks == 1) /* its flags come with the gradient's */
        return t->reduction.type->sum(t, view, flags, err);
    DPT_TRY(dpt_group_sum_floats(&t->comm->world, flags, all, DPT_FLAGS, err));
    if (all[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(t->reduction.type->sum(t, view, none, err));
    memcpy(t->reduction.reduced_flags, all, sizeof all);
out:
    return status;
}

enum dpt_status dpt_mesh_before(const struct dpt_trainer *t, double *squares, struct dpt_error *err)
{
    *squares = 0;
    if (t->stage->number == 0)
        return DPT_OK;
    return dpt_group_receive(dpt_mesh_link(t, false), 0, squares, sizeof *squares, err);
}

enum dpt_status dpt_mesh_share(const struct dpt_trainer *t, bool finite_state,
                               struct dpt_mesh_words *words, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *next = dpt_mesh_link(t, true);
    struct dpt_sending sending;

    if (t->layout.model_ranks > 1 && !finite_state)
        words->squares = NAN;
    if (t->stage->number < t->layout.stages - 1) {
        DPT_TRY(dpt_group_send(next, 1, &words->squares, sizeof words->squares, &sending, err));
        DPT_TRY(dpt_group_sent(next, &sending, err));
    }
    DPT_TRY(dpt_group_broadcast(&t->mesh.model_group.world,
                                (t->layout.stages - 1) * t->layout.tensor, words, sizeof *words,
                                err));
out:
    return status;
}
