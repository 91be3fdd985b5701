/* The units of shards whose weights are gathered: a copy for the ranks of a node. */
#include <string.h>

#include "core/comm/sums/deterministic.h"

static enum dpt_status make_room(struct dpt_deterministic_allreduce *d,
                                 const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t barrier = dpt_node_barrier_bytes(d->host->size);
    size_t floats = 0;

    for (int k = 0; k < spec->units; k++)
        floats =
            spec->unit[k + 1] - spec->unit[k] > floats ? spec->unit[k + 1] - spec->unit[k] : floats;
    if (d->host->size > 1) {
        DPT_TRY(dpt_shared_open(&d->shared, d->host, barrier + floats * sizeof(float), err));
        dpt_node_barrier_open(&d->barrier, d->host, d->shared.bytes, spec->spin);
        d->gathered = (float *)(void *)(d->shared.bytes + barrier);
    } else {
        DPT_TRY(DPT_ALLOCATE(d->gathered, floats, "a unit's weights", err));
        d->memory = d->gathered;
    }
out:
    return status;
}

void dpt_deterministic_close_host(struct dpt_deterministic_allreduce *d)
{
    dpt_internode_close(d->internode);
    d->internode = NULL;
    dpt_shared_close(&d->shared);
    dpt_free(d->memory);
    d->memory = NULL;
    d->sums_of_squares = NULL;
}

enum dpt_status dpt_units_open_room(struct dpt_deterministic_allreduce *d,
                                    const struct dpt_deterministic_spec *spec, bool nodes,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_internode_open(&d->internode, d->comm, &nodes, err));
    d->host = nodes ? &d->comm->node : &d->one;
    if (spec->gathers)
        DPT_TRY(dpt_group_agree(&d->comm->world, make_room(d, spec, err), err));
out:
    if (status != DPT_OK) {
        dpt_deterministic_close_host(d);
        d->host = &d->one;
    }
    return status;
}

/* Gives the host this rank's own floats of a unit. */
static void give_own(const struct dpt_deterministic_allreduce *d, int unit, const float *own)
{
    const struct dpt_slice slice = dpt_deterministic_slice(d, d->rank, d->ranges > 1 ? unit : 0);
    const size_t begin = d->unit[unit] > slice.begin ? d->unit[unit] : slice.begin;
    const size_t end = d->unit[unit + 1] < slice.end ? d->unit[unit + 1] : slice.end;

    if (begin < end)
        memcpy(d->gathered + (begin - d->unit[unit]), own + begin, (end - begin) * sizeof *own);
}

enum dpt_status dpt_deterministic_gather_unit(struct dpt_deterministic_allreduce *d, int unit,
                                              const float *own, const float **gathered,
                                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t *cut = dpt_deterministic_cuts(d, d->ranges > 1 ? unit : 0);
    float *const all = d->gathered - d->unit[unit];

    dpt_deterministic_await_host(d); /* nobody reads the unit that was there */
    give_own(d, unit, own);
    DPT_TRY(dpt_internode_gather(d->internode, cut, all, d->unit[unit], d->unit[unit + 1], err));
    dpt_deterministic_await_host(d); /* all that the host's ranks have given and received is */
    *gathered = all;
out:
    return status;
}
