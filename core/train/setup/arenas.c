/* The arenas that all ranks hold alike, and whether they do. */
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/train/mesh/units.h"
#include "core/train/setup/parts.h"
#include "core/train/setup/state_file.h"
#include "core/train/step/engine.h"

void dpt_arenas_count_slots(struct dpt_arenas *a, const struct dpt_layout *l)
{
    const int own = dpt_optimizer_slots(&l->job->optimizer);

    a->slots = l->slots;
    memcpy(a->slot_names, dpt_optimizer_slot_names(&l->job->optimizer),
           (size_t)own * sizeof *a->slot_names);
    if (a->slots > own)
        a->slot_names[own] = DPT_CHECKPOINT_AVERAGE;
}

enum dpt_status dpt_trainer_join_state(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t floats = (size_t)dpt_trainer_graph(t)->floats,
                 arena = (size_t)dpt_trainer_graph(t)->arena;

    if (!dpt_layout_shares_state(&t->layout, t->stage))
        return DPT_OK;
    DPT_TRY(dpt_shared_open(&t->arenas.shared, &dpt_trainer_replicas(t)->node,
                            (arena + (size_t)t->arenas.slots * floats) * sizeof(float), err));
    dpt_unreserve(t->arenas.params, arena * sizeof(float));
    t->arenas.params = t->arenas.shared.bytes;
    for (int k = 0; k < t->arenas.slots; k++)
        t->arenas.slot[k] = t->arenas.params + arena + (size_t)k * floats;
out:
    return status;
}

/* Of an arena's units this rank uses the slices that it owns. */
static void use_slices(const struct dpt_trainer *t, float *arena)
{
    const size_t bytes = (size_t)dpt_trainer_graph(t)->floats * sizeof(float);

    dpt_use_pieces(arena, bytes, bytes / (size_t)(t->arenas.owners * t->stage->units));
}

enum dpt_status dpt_trainer_open_arenas(struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = dpt_trainer_graph(t);
    const size_t ranks = (size_t)t->comm->world.size;
    const bool shares = dpt_layout_shares_state(&t->layout, t->stage);

    t->arenas.owners = t->layout.owners;
    DPT_TRY(dpt_units_open_params(t, err));
    if (t->layout.by_messages)
        use_slices(t, t->arenas.params);
    if (!t->data.train.present)
        return DPT_OK;
    dpt_arenas_count_slots(&t->arenas, &t->layout);
    for (int k = 0; k < t->arenas.slots && !shares; k++) {
        t->arenas.slot[k] = dpt_units_open_arena((size_t)graph->floats, t->arenas.owners);
        if (t->arenas.slot[k] == NULL)
            DPT_TRY(dpt_fail_memory(err, "the optimizer", (double)graph->floats * sizeof(float)));
        if (t->arenas.owners > 1 && t->layout.node_replicas < t->layout.replicas)
            use_slices(t, t->arenas.slot[k]);
    }
    DPT_TRY(DPT_ALLOCATE(t->arenas.parts.count, 2 * ranks, "the list of ranks", err));
    t->arenas.parts.at = t->arenas.parts.count + ranks;
    DPT_TRY(DPT_ALLOCATE(t->arenas.hashes, (size_t)dpt_trainer_replicas(t)->world.size,
                         "the list of ranks", err));
    DPT_TRY(dpt_state_file_open(t, err));
out:
    return status;
}

void dpt_trainer_close_arenas(struct dpt_trainer *t)
{
    dpt_state_file_release(t);
    dpt_free(t->arenas.hashes);
    dpt_units_close_params(t);
    dpt_free(t->arenas.parts.count);
    for (int k = 0; k < DPT_MAX_SLOTS && t->arenas.shared.bytes == NULL; k++)
        dpt_units_close_arena(t->arenas.slot[k], (size_t)dpt_trainer_graph(t)->floats,
                              t->arenas.owners);
    dpt_shared_close(&t->arenas.shared);
}

/* Hashes the parameters that all replicas hold (dpt_units_alike), and the slots, each array at an
 * offset of its own. In shards a slot has one owner, so there is nothing to compare it with. */
static uint64_t replica_hash(const struct dpt_trainer *t)
{
    const size_t n = (size_t)dpt_trainer_graph(t)->floats,
                 arena = (size_t)dpt_trainer_graph(t)->arena, alike = dpt_units_alike(t);
    uint64_t hash = dpt_hash_floats(t->arenas.params + alike, arena - alike, alike);

    for (int k = 0; k < t->arenas.slots && t->layout.updaters == 1; k++)
        hash += dpt_hash_floats(t->arenas.slot[k], n, arena + n * (uint64_t)k);
    return hash;
}

void dpt_trainer_hash_replica(struct dpt_trainer *t)
{
    if (t->layout.updaters == 1)
        return;
    t->arenas.hash = replica_hash(t);
    t->arenas.hashed_step = t->progress.step + 1;
}

/* Names the ranks that differ from the majority, or all if there is none: if two ranks differ,
 * either may be right. */
static enum dpt_status fail_replicas(const struct dpt_trainer *t, uint64_t common, bool majority,
                                     struct dpt_error *err)
{
    const int step = t->layout.tensor; /* from one replica's rank in the job to the next */
    const int first = t->stage->number * t->layout.replicas * step + t->mesh.part;
    char ranks[512] = "", where[DPT_WHERE_TEXT];
    size_t used = 0;
    int n = 0;

    for (int i = 0; i < dpt_trainer_replicas(t)->world.size && used < sizeof ranks; i++)
        if (!majority || t->arenas.hashes[i] != common)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d (%s)",
                                     n++ ? ", " : "", first + i * step,
                                     dpt_comm_where(t->comm, first + i * step, where));
    return dpt_fail(
        err, DPT_FAILED,
        "step %lld: the replicas differ: rank%s %s hold%s other weights than %s (a fault "
        "of memory or network)",
        (long long)t->progress.step, n == 1 ? "" : "s", ranks, n == 1 ? "s" : "",
        majority ? "the majority" : "each other");
}

enum dpt_status dpt_trainer_check_replicas(const struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int size = dpt_trainer_replicas(t)->world.size;
    const uint64_t mine =
        t->arenas.hashed_step == t->progress.step ? t->arenas.hash : replica_hash(t);
    uint64_t common = mine;
    int most = 0;

    dpt_comm_note(t->comm, -1, "comparing the weights of all ranks");
    DPT_TRY(dpt_group_allgather(&dpt_trainer_replicas(t)->world, &mine, t->arenas.hashes,
                                sizeof mine, err));
    for (int i = 0; i < size; i++) {
        int same = 0;

        for (int k = 0; k < size; k++)
            same += t->arenas.hashes[k] == t->arenas.hashes[i];
        if (same > most) {
            most = same;
            common = t->arenas.hashes[i];
        }
    }
    if (most < size)
        status = fail_replicas(t, common, most * 2 > size, err);
    /* Each part's replicas compared only among themselves: now all ranks agree on the result. */
    status = dpt_group_agree(&t->mesh.model_group.world, status, err);
out:
    return status;
}
