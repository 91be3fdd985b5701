/* Where the buffers of a worker lie. */
#include <limits.h>
#include <stdlib.h>

#include "core/backend/cpu/program/program.h"
#include "core/base/memory.h"

/* Larger buffers come first; of two equal ones, the one that was taken first. */
static int by_size(const void *a, const void *b, void *arg)
{
    const struct dpt_cpu_buffer_plan *buffers = arg, *x = &buffers[*(const int *)a],
                                     *y = &buffers[*(const int *)b];

    if (x->floats != y->floats)
        return x->floats < y->floats ? 1 : -1;
    return x < y ? -1 : 1;
}

static bool meet(const struct dpt_cpu_buffer_plan *a, const struct dpt_cpu_buffer_plan *b)
{
    return a->taken < b->given && b->taken < a->given;
}

/* The smallest gap between those buffers of `placed`, which are in the order of their places, that
 * are in use at the same time; or after them all. */
static int64_t place(const struct dpt_cpu_buffer_plan *buffers, const int *placed, int n,
                     const struct dpt_cpu_buffer_plan *buffer)
{
    int64_t end = 0, best = -1, room = INT64_MAX;

    for (int i = 0; i < n; i++) {
        const struct dpt_cpu_buffer_plan *other = &buffers[placed[i]];
        const int64_t gap = other->at - end;

        if (!meet(buffer, other))
            continue;
        if (gap >= buffer->floats && gap < room) {
            room = gap;
            best = end;
        }
        if (other->at + other->floats > end)
            end = other->at + other->floats;
    }
    return best >= 0 ? best : end;
}

enum dpt_status dpt_cpu_place_buffers(struct dpt_cpu_program *program, struct dpt_error *err)
{
    struct dpt_cpu_buffer_plan *buffers = program->buffers;
    const int first = DPT_CPU_INPUT + 1, n = program->n_buffers - first;
    enum dpt_status status = DPT_OK;
    int *order = NULL, *placed = NULL;

    DPT_TRY(DPT_ALLOCATE(order, (size_t)n, "the model", err));
    DPT_TRY(DPT_ALLOCATE(placed, (size_t)n, "the model", err));
    for (int i = 0; i < n; i++) {
        order[i] = first + i;
        if (!buffers[first + i].wanted)
            buffers[first + i].floats = 0;
    }
    qsort_r(order, (size_t)n, sizeof *order, by_size, buffers);
    for (int i = 0; i < n; i++) {
        struct dpt_cpu_buffer_plan *buffer = &buffers[order[i]];
        int at = i;

        buffer->at = place(buffers, placed, i, buffer);
        for (; at > 0 && buffers[placed[at - 1]].at > buffer->at; at--)
            placed[at] = placed[at - 1];
        placed[at] = order[i];
        if (buffer->at + buffer->floats > program->value_floats)
            program->value_floats = buffer->at + buffer->floats;
    }
out:
    dpt_free(order);
    dpt_free(placed);
    return status;
}
