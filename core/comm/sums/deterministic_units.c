/* The units of shards whose weights are gathered: a copy for the ranks of a node. */
#include <string.h>

#include "core/comm/sums/deterministic.h"

static enum dpt_status make_room(struct dpt_deterministic_allreduce *d,
                                 const struct dpt_deterministic_spec *spec, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t barrier = dpt_node_barrier_bytes(d->host->size);
    const size_t floats = dpt_rounds_largest_unit(spec);

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

enum dpt_status dpt_deterministic_gather_unit(struct dpt_deterministic_allreduce *d, int unit,
                                              const float *own, const float **gathered,
                                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int range = dpt_rounds_range_of(d, unit);
    const size_t begin = d->unit[unit], end = d->unit[unit + 1];
    float *const all = d->gathered - begin;
    size_t at;
    const size_t n = dpt_rounds_owned(d, d->rank, range, begin, end, &at);

    dpt_deterministic_await_host(d); /* nobody reads the unit that was there */
    if (n > 0)
        memcpy(all + at, own + at, n * sizeof *own);
    DPT_TRY(
        dpt_internode_gather(d->internode, dpt_deterministic_cuts(d, range), all, begin, end, err));
    dpt_deterministic_await_host(d); /* all that the host's ranks have given and received is */
    *gathered = all;
out:
    return status;
}
