#include "core/train/step/average.h"

#include <string.h>

#include "core/base/nontemporal.h"
#include "core/train/reduction/gradient_reduction.h"

bool dpt_average_is_kept(const struct dpt_trainer *t)
{
    return t->job->train.ema > 0 && t->arenas.slots > 0;
}

double dpt_average_share(const struct dpt_trainer *t)
{
    return t->job->train.ema > 0 ? 1 - t->job->train.ema : 0;
}

static float *average_of(const struct dpt_trainer *t)
{
    return t->arenas.slot[t->arenas.slots - 1];
}

/* In how many ranges this rank writes floats of the average, and which of one: those that it owns,
 * or its part of what the node has once. */
static int count_ranges(const struct dpt_trainer *t)
{
    return t->arenas.shared.bytes == NULL && t->reduction.type != NULL
               ? t->reduction.type->ranges(t)
               : 1;
}

static struct dpt_slice written(const struct dpt_trainer *t, int range)
{
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    struct dpt_slice own = {.end = (size_t)dpt_trainer_graph(t)->floats};

    if (t->arenas.shared.bytes != NULL)
        dpt_thread_part(own.end, replicas->node.rank, replicas->node.size, &own.begin, &own.end);
    else if (t->reduction.type != NULL) /* else a device takes the steps: each rank has all */
        own = dpt_gradient_own(t, range);
    return own;
}

void dpt_average_begin(struct dpt_trainer *t)
{
    if (!dpt_average_is_kept(t) || t->progress.updates > 0)
        return;
    for (int k = 0; k < count_ranges(t); k++) {
        const struct dpt_slice own = written(t, k);

        memcpy(average_of(t) + own.begin, t->arenas.params + own.begin,
               (own.end - own.begin) * sizeof(float));
    }
}

static void exchange(float *a, float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x = a[i];

        a[i] = b[i];
        b[i] = x;
    }
}

/* Gives all ranks the owners' weights, as after an update. */
static enum dpt_status share(struct dpt_trainer *t, struct dpt_error *err)
{
    float *const shared = t->reduction.type->weights(t);

    for (int k = 0; k < count_ranges(t) && shared != NULL; k++) {
        const struct dpt_slice own = written(t, k);

        dpt_copy_nontemporal(shared + own.begin, t->arenas.params + own.begin, own.end - own.begin);
    }
    dpt_nontemporal_fence();
    return t->reduction.type->share(t, err);
}

enum dpt_status dpt_average_exchange(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *replicas = dpt_trainer_replicas(t);
    float *const params = t->arenas.params, *const average = average_of(t);

    /* No rank may still read what the last update, or exchange, gave it. */
    DPT_TRY(dpt_group_barrier(&replicas->world, err));
    for (int k = 0; k < count_ranges(t); k++) {
        const struct dpt_slice own = written(t, k);

        exchange(params + own.begin, average + own.begin, own.end - own.begin);
    }
    if (t->arenas.shared.bytes != NULL)
        DPT_TRY(dpt_group_barrier(&replicas->node, err));
    if (t->reduction.type != NULL)
        DPT_TRY(share(t, err));
out:
    return status;
}
