/* Which floats of the whole model this rank has, and which of them it keeps for others. */
#include "core/train/setup/kept.h"
#include "core/train/mesh/mesh.h"
#include "core/train/mesh/units.h"
#include "core/train/reduction/gradient_reduction.h"
#include "core/train/setup/state.h"

int32_t dpt_graph_tensor_at(const struct dpt_graph *graph, size_t at)
{
    int32_t i = 0;

    while ((int64_t)at < graph->tensors[i].offset ||
           (int64_t)at >= graph->tensors[i].offset + graph->tensors[i].count)
        i++;
    return i;
}

int dpt_trainer_owners(const struct dpt_trainer *t, int k)
{
    const struct dpt_gradient_reduction_type *type = t->reduction.type;

    if (k == DPT_PARAMS)
        return dpt_units_owners(t);
    return k == DPT_GRADIENT && (type == NULL || !type->in_slices) ? 1 : t->layout.owners;
}

float *dpt_trainer_arena(const struct dpt_trainer *t, int k, int64_t at)
{
    if (k >= 0)
        return t->arenas.slot[k];
    if (k == DPT_PARAMS)
        return t->arenas.params;
    if (dpt_trainer_owners(t, k) == 1)
        return t->reduction.sum;
    return (float *)t->reduction.type->slice_sum(t, dpt_gradient_range_of(t, (size_t)at));
}

bool dpt_trainer_has_all(const struct dpt_trainer *t, int k)
{
    const bool here = k == DPT_PARAMS && t->units.weights.bytes != NULL;

    return t->layout.model_ranks * (here ? 1 : dpt_trainer_owners(t, k)) == 1;
}

struct dpt_slice dpt_trainer_kept(const struct dpt_trainer *t, int k, int replica, int64_t at)
{
    if (dpt_trainer_owners(t, k) > 1)
        return t->reduction.type->slice(t, replica, dpt_gradient_range_of(t, (size_t)at));
    return (struct dpt_slice){.end = replica == 0 ? (size_t)dpt_trainer_graph(t)->floats : 0};
}

/* The floats that both have, or none. */
static struct dpt_range common(struct dpt_range a, struct dpt_range b)
{
    const int64_t first = a.first > b.first ? a.first : b.first;
    const int64_t last = a.last < b.last ? a.last : b.last;

    return (struct dpt_range){first, last > first ? last : first};
}

struct dpt_range dpt_trainer_part_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                         float **from)
{
    const int32_t i = dpt_graph_tensor_at(&t->model.graph, at);
    const struct dpt_tensor *own = &dpt_trainer_graph(t)->tensors[i];
    const int64_t begins = t->model.graph.tensors[i].offset + own->first;
    const struct dpt_range here = common((struct dpt_range){begins, begins + own->count},
                                         (struct dpt_range){(int64_t)at, (int64_t)end});

    *from = dpt_trainer_arena(t, k, own->offset);
    if (here.last > here.first)
        *from += own->offset + (here.first - begins);
    return here;
}

/* The learned floats, in the range that has float `at`, that a replica reads from a file or writes
 * to it: those that it keeps; of what all have, an equal share. */
static struct dpt_slice share_of(const struct dpt_trainer *t, int k, int replica, int64_t at)
{
    const size_t n = (size_t)dpt_trainer_graph(t)->floats;
    const size_t replicas = (size_t)dpt_trainer_replicas(t)->world.size, r = (size_t)replica;

    if (dpt_trainer_owners(t, k) > 1)
        return dpt_trainer_kept(t, k, replica, at);
    return (struct dpt_slice){.begin = n / replicas * r,
                              .end = r + 1 < replicas ? n / replicas * (r + 1) : n};
}

struct dpt_range dpt_trainer_own_floats(const struct dpt_trainer *t, int k, size_t at, size_t end,
                                        const struct dpt_keeper *keeper, float **from)
{
    const int32_t i = dpt_graph_tensor_at(&t->model.graph, at);
    const struct dpt_tensor *whole = &t->model.graph.tensors[i],
                            *own = &dpt_trainer_graph(t)->tensors[i];
    const struct dpt_range here = dpt_trainer_part_floats(t, k, at, end, from);
    const struct dpt_range none = {here.first, here.first};
    struct dpt_range has = here;

    if (t->mesh.part != keeper->part && dpt_graph_divided(&t->model.graph, i) == NULL)
        return none;
    if (!whole->state) {
        const struct dpt_slice kept = keeper->shares
                                          ? share_of(t, k, keeper->replica, own->offset)
                                          : dpt_trainer_kept(t, k, keeper->replica, own->offset);
        const int64_t to_whole = whole->offset + own->first - own->offset;

        has = common(
            here, (struct dpt_range){(int64_t)kept.begin + to_whole, (int64_t)kept.end + to_whole});
    } else if (keeper->replica > 0) {
        return none;
    }
    if (has.last > has.first)
        *from += has.first - here.first;
    return has;
}
