/* What the operations' files share: memory, addresses of tensors, entries of the lists. */
#include <string.h>

#include "core/backend/cuda/program/program.h"
#include "core/base/memory.h"

/* --- memory ----------------------------------------------------------------------------------- */

int64_t dpt_cuda_take(int64_t *region, int64_t bytes)
{
    const int64_t at = *region;

    *region += (bytes + DPT_CUDA_ALIGN - 1) / DPT_CUDA_ALIGN * DPT_CUDA_ALIGN;
    return at;
}

void dpt_cuda_share(struct dpt_cuda_memory_layout *memory_layout, enum dpt_cuda_region region,
                    int64_t bytes)
{
    if (bytes > memory_layout->bytes[region])
        memory_layout->bytes[region] = bytes;
}

int64_t dpt_cuda_form_elements(const struct dpt_cuda_node_layout *f, int64_t micro)
{
    return micro * f->h * f->w * f->pitch;
}

int64_t dpt_cuda_copy_elements(const struct dpt_cuda_layout *l)
{
    return (int64_t)l->padded_outputs * l->area * l->padded_inputs;
}

void dpt_cuda_count_layout(enum dpt_cuda_kernel kernel, const struct dpt_cuda_layout *l,
                           struct dpt_cuda_layout_args *args)
{
    args->n++;
    args->total += dpt_cuda_copy_elements(l);
    args->blocks += dpt_cuda_layout_blocks(kernel, l);
}

/* --- entries ---------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_add_entry(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                   const struct dpt_cuda_entry *entry, struct dpt_error *err)
{
    struct dpt_cuda_list *list = &p->lists->list[kind];
    enum dpt_status status = DPT_OK;

    DPT_GROW(list->entry, &list->room, (size_t)list->n + 1, "the list of launches", err);
    list->entry[list->n++] = *entry;
out:
    return status;
}

struct dpt_cuda_entry dpt_cuda_kernel_entry(const struct dpt_cuda_program *p, int32_t node,
                                            enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                            const void *args)
{
    struct dpt_cuda_entry entry = {.what = DPT_CUDA_KERNEL,
                                   .node = node,
                                   .span = dpt_span_node(node, pass),
                                   .kernel = dpt_cuda_typed(p, kernel)};

    memcpy(&entry.args, args, dpt_cuda_kernel_argument(entry.kernel));
    return entry;
}

enum dpt_status dpt_cuda_add_kernel(struct dpt_cuda_program *p, int32_t node,
                                    enum dpt_span_pass pass, enum dpt_cuda_kernel kernel,
                                    const void *args, struct dpt_error *err)
{
    const struct dpt_cuda_entry entry = dpt_cuda_kernel_entry(p, node, pass, kernel, args);

    return dpt_cuda_add_entry(
        p, pass == DPT_PASS_FORWARD ? DPT_CUDA_FORWARD_LIST : DPT_CUDA_BACKWARD_LIST, &entry, err);
}

enum dpt_status dpt_cuda_add_op_kernel(struct dpt_cuda_program *p, int32_t node,
                                       enum dpt_span_pass pass, const void *args,
                                       struct dpt_error *err)
{
    const struct dpt_cuda_op *op = dpt_cuda_op_of(p, node);
    const bool relu = dpt_cuda_node_layout_of(p, node)->relu;

    return dpt_cuda_add_kernel(p, node, pass,
                               pass == DPT_PASS_FORWARD ? (relu ? op->relu : op->kernel)
                                                        : (relu ? op->relu_back : op->back),
                               args, err);
}

/* --- where things are ------------------------------------------------------------------------- */

float *dpt_cuda_at(const struct dpt_cuda_program *p, float *arena, int64_t offset)
{
    const int64_t floats = p->spec.graph->floats, window = dpt_program_window(&p->spec);
    int k = 0;

    if (p->spec.units == 0)
        return arena + offset;
    if (offset >= floats) /* the state, and the tail */
        return arena + 2 * window + offset - floats;
    while (offset >= (int64_t)p->spec.edge[k + 1])
        k++;
    return arena + k % 2 * window + offset - (int64_t)p->spec.edge[k];
}

void *dpt_cuda_value(const struct dpt_cuda_program *p, int32_t i)
{
    return p->lists->values + dpt_cuda_node_layout_of(p, dpt_cuda_node_layout_of(p, i)->tensor)->y;
}

void *dpt_cuda_gradient(const struct dpt_cuda_program *p, int64_t place)
{
    return place == DPT_CUDA_NONE ? NULL : p->lists->gradients + place;
}

int64_t dpt_cuda_elements(const struct dpt_cuda_program *p, int32_t i)
{
    return dpt_cuda_form_elements(dpt_cuda_node_layout_of(p, i), p->micro);
}

int64_t dpt_cuda_vectors(const struct dpt_cuda_program *p, int32_t i)
{
    return dpt_cuda_elements(p, i) / p->lists->memory_layout.lanes;
}

void *dpt_cuda_copy(const struct dpt_cuda_program *p, int64_t place)
{
    return p->lists->copies + place * p->lists->memory_layout.element;
}
