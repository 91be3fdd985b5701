#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/engines/device.h"

/* The first step's check: all that has to do with links is new to a machine only once. */

/* How far two sums of the same floats may lie apart, in parts of the sum of their amounts: any
 * order of adding as many keeps below it. */
static double tolerance(const struct dpt_trainer *t)
{
    const int ranks = t->layout.replicas;
    const int32_t micros =
        dpt_layout_along_tree(&t->layout)
            ? dpt_sampler_micro_batches(&t->data.train.sampler, t->progress.epoch_step)
            : 0;

    return 2.0 * (micros > ranks ? micros : ranks) * 0x1p-24;
}

#define DISTRUST "do not trust these links; comm.transport: mpi does without them"

void dpt_device_check_drop(struct dpt_device_check *o)
{
    dpt_free(o->own);
    dpt_free(o->amounts);
}

/* Adds up this rank's parts, before the links sum them: the floats [begin, end) of them. */
static enum dpt_status add_parts(struct dpt_trainer *t, struct dpt_device_check *o, size_t begin,
                                 size_t end, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_engine_state *d = t->engine_state;
    float *part = NULL;

    o->n = (size_t)dpt_trainer_graph(t)->floats;
    if (o->own == NULL)
        DPT_TRY(DPT_ALLOCATE(o->own, o->n, "the first step's check", err));
    if (o->amounts == NULL)
        DPT_TRY(DPT_ALLOCATE(o->amounts, o->n, "the first step's check", err));
    DPT_TRY(DPT_ALLOCATE(part, (size_t)dpt_trainer_graph(t)->arena + DPT_TAIL_WORDS,
                         "the first step's check", err));
    for (int k = 0; k < d->type->parts(d->steps); k++) {
        DPT_TRY(d->type->part(d->steps, k, part, err));
        for (size_t i = begin; i < end; i++) {
            o->own[i] += part[i];
            o->amounts[i] += fabsf(part[i]);
        }
    }
out:
    dpt_free(part);
    return status;
}

void dpt_device_check_parts(struct dpt_trainer *t, struct dpt_device_check *o, size_t begin,
                            size_t end)
{
    if (o->asked && o->failure.status == DPT_OK)
        add_parts(t, o, begin, end, &o->failure);
}

enum dpt_status dpt_device_check_sum(struct dpt_trainer *t, struct dpt_device_check *o,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;

    if (!o->asked)
        return DPT_OK;
    if (o->failure.status != DPT_OK)
        *err = o->failure;
    DPT_TRY(dpt_group_agree(&t->comm->world, o->failure.status, err));
    DPT_TRY(dpt_group_sum_floats(replicas, o->own, o->own, o->n, err));
    DPT_TRY(dpt_group_sum_floats(replicas, o->amounts, o->amounts, o->n, err));
out:
    return status;
}

/* What is not finite is left to those who search for it. */
enum dpt_status dpt_device_check_compare(struct dpt_trainer *t, struct dpt_device_check *o,
                                         struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_engine_state *d = t->engine_state;
    const struct dpt_graph *g = dpt_trainer_graph(t);
    const double part = tolerance(t);
    float *sum = NULL;
    size_t i = 0;

    if (!o->asked)
        return DPT_OK;
    status = DPT_ALLOCATE(sum, (size_t)g->arena + DPT_TAIL_WORDS, "the first step's check", err);
    if (status == DPT_OK)
        status = d->type->get(d->steps, NULL, NULL, sum, err);
    if (status != DPT_OK)
        o->failure = *err;
    DPT_TRY(status);
    while (i < o->n && !(fabs((double)sum[i] - o->own[i]) > part * o->amounts[i]))
        i++;
    if (i < o->n)
        DPT_TRY(
            dpt_fail(err, DPT_RANK,
                     "the first step's gradient, element %zu: %s sums %g, and MPI %g: " DISTRUST, i,
                     t->transport, sum[i], o->own[i]));
out:
    dpt_free(sum);
    return status;
}

/* A weight as a GPU's layers read it in bf16: unlike the CPU's (core/backend/bf16.h) they keep
 * numbers below 2^-126. */
static float in_bf16(float weight)
{
    uint32_t bits;

    memcpy(&bits, &weight, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&weight, &bits, sizeof weight);
    return weight;
}

/* Whether a device has gathered this weight, or what layers read of it. */
static bool is_gathered(const struct dpt_trainer *t, float gathered, float weight)
{
    const float rounded = t->job->device.precision == DPT_PRECISION_BF16 ? in_bf16(weight) : weight;

    return memcmp(&gathered, &weight, sizeof weight) == 0 ||
           memcmp(&gathered, &rounded, sizeof weight) == 0;
}

/* Compares with the host's what the devices have gathered of the weights [begin, end), a unit's. */
static enum dpt_status compare_weights(struct dpt_trainer *t, int unit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_engine_state *d = t->engine_state;
    const float *own = t->arenas.params;
    const size_t end = t->stage->edge[unit + 1];
    size_t i = t->stage->edge[unit];
    float *gathered = NULL;

    status = DPT_ALLOCATE(gathered, end, "the first step's check", err);
    DPT_TRY(status);
    DPT_TRY(d->type->weights(d->steps, unit, gathered, err));
    while (i < end && is_gathered(t, gathered[i], own[i]))
        i++;
    if (i < end)
        DPT_TRY(dpt_fail(err, DPT_RANK,
                         "the first step's weights, element %zu: %s gathers %g, and the host has "
                         "%g: " DISTRUST,
                         i, t->transport, gathered[i], own[i]));
out:
    dpt_free(gathered);
    return status;
}

void dpt_device_check_weights(struct dpt_trainer *t, struct dpt_device_check *o, int unit)
{
    if (o->asked && o->failure.status == DPT_OK)
        compare_weights(t, unit, &o->failure);
}
