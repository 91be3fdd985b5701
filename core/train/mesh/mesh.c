#include "core/train/mesh/mesh.h"

#include <string.h>

#include "core/base/memory.h"
#include "core/train/layout/report.h"
#include "core/train/reduction/gradient_reduction.h"

void dpt_mesh_plan(struct dpt_trainer *t)
{
    struct dpt_mesh *m = &t->mesh;
    const struct dpt_layout *l = &t->layout;

    m->part = dpt_layout_place(l, t->comm->world.rank).part;
    if (l->model_ranks == 1)
        return;
    m->replica_group.world = (struct dpt_group){.size = l->replicas};
    m->replica_group.node = (struct dpt_group){.size = l->node_replicas};
    m->replicas = &m->replica_group;
}

enum dpt_status dpt_mesh_open(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_mesh *m = &t->mesh;
    const int tensor = t->layout.tensor, stages = t->layout.stages, stage = t->stage->number;
    const int replicas = t->layout.replicas;
    const int replica = dpt_layout_place(&t->layout, t->comm->world.rank).replica;
    const int lane = replica * tensor + m->part; /* ranks of the stages that exchange */
    /* No two groups have one color; no two pairs of stages either. */
    const struct {
        struct dpt_comm *comm;
        int color;
        bool wanted;
    } splits[] = {
        {&m->replica_group, stage * tensor + m->part, true},
        {&m->model_group, replica, true},
        {&m->tensor_group, stage * replicas + replica, tensor > 1},
        {&m->stage_links[0], lane * (stages + 1) + stage / 2, stages > 1},
        {&m->stage_links[1], lane * (stages + 1) + (stage + 1) / 2, stages > 1},
    };
    char(*places)[DPT_PLACE_TEXT];

    if (t->layout.model_ranks == 1)
        return DPT_OK;
    places = dpt_alloc_array((size_t)t->comm->world.size, sizeof *places);
    for (int r = 0; places != NULL && r < t->comm->world.size; r++)
        dpt_layout_place_text(&t->layout, r, places[r]);
    dpt_comm_places(t->comm, places); /* for the lines that name a rank */
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (splits[i].wanted) {
            DPT_TRY(dpt_comm_split(t->comm, splits[i].color, splits[i].comm, err));
            m->open[m->splits++] = splits[i].comm;
        }
out:
    return status;
}

void dpt_mesh_close(struct dpt_trainer *t)
{
    struct dpt_mesh *m = &t->mesh;

    if (m->splits > 0)
        dpt_comm_places(t->comm, NULL);
    while (m->splits > 0)
        dpt_comm_close(m->open[--m->splits]);
    *m = (struct dpt_mesh){0};
}

const struct dpt_group *dpt_mesh_link(const struct dpt_trainer *t, bool next)
{
    return &t->mesh.stage_links[(t->stage->number + !next) % 2].world;
}

enum dpt_status dpt_mesh_sum(struct dpt_trainer *t, const float flags[DPT_FLAGS],
                             struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const float none[DPT_FLAGS] = {0};
    float all[DPT_FLAGS];

    if (t->layout.model_ranks == 1) /* its flags come with the gradient's */
        return t->reduction.type->sum(t, flags, err);
    DPT_TRY(dpt_group_sum_floats(&t->comm->world, flags, all, DPT_FLAGS, err));
    if (all[DPT_FLAG_FAILED] <= 0)
        DPT_TRY(t->reduction.type->sum(t, none, err));
    memcpy(t->reduction.reduced_flags, all, sizeof all);
out:
    return status;
}

bool dpt_mesh_tells(const struct dpt_trainer *t, int32_t tensor)
{
    return t->mesh.part == 0 || dpt_graph_divided(&t->model.graph, tensor) != NULL;
}
