/* Builds the lists of launches: layouts, samples, layers, loss, gradients. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program_stage.h"
#include "core/base/memory.h"

/* --- loss ------------------------------------------------------------------------------------- */

static enum dpt_status add_loss(struct dpt_cuda_program *p, bool training, struct dpt_error *err)
{
    static const enum dpt_cuda_kernel kernels[DPT_LOSSES] = {
#define X(NAME, name) [DPT_LOSS_##NAME] = DPT_CUDA_K_##name##_f32,
        DPT_LOSS_LIST(X)
#undef X
    };
    const struct dpt_cuda_memory_layout *memory_layout = &p->lists->memory_layout;
    const enum dpt_cuda_kernel kernel = kernels[p->spec.loss.kind];
    void *dy = memory_layout->canonical
                   ? p->lists->drows
                   : dpt_cuda_gradient(p, memory_layout->node[memory_layout->last].dy);
    struct dpt_cuda_entry entry = {
        .what = DPT_CUDA_KERNEL,
        .when = training ? DPT_CUDA_TRAINING : DPT_CUDA_EVALUATION,
        .node = memory_layout->last,
        .span = DPT_SPAN_LOSS,
        .loss = true,
        .kernel = memory_layout->canonical ? kernel : dpt_cuda_typed(p, kernel),
        .args.loss = {.y = memory_layout->canonical ? p->lists->rows
                                                    : dpt_cuda_value(p, memory_layout->last),
                      .dy =
                          training && memory_layout->node[memory_layout->last].wants_dy ? dy : NULL,
                      .labels = p->labels,
                      .control = p->control,
                      .metric_sums = p->metric_sums,
                      .partial = p->lists->losses,
                      .counter = p->lists->counters,
                      .n = p->micro,
                      .outputs = (int32_t)memory_layout->outputs,
                      .pitch = memory_layout->canonical
                                   ? (int32_t)memory_layout->outputs
                                   : memory_layout->node[memory_layout->last].pitch,
                      .attribute = p->spec.loss.attribute,
                      .state = dpt_cuda_state_of(p)},
    };

    return dpt_cuda_add_entry(p, DPT_CUDA_LOSS_LIST, &entry, err);
}

/* Appends the launch of a layout kernel. kernel: for the program's type of tensor. */
static enum dpt_status add_layout(struct dpt_cuda_program *p, enum dpt_cuda_list_kind kind,
                                  enum dpt_cuda_when when, int span, enum dpt_cuda_kernel kernel,
                                  const struct dpt_cuda_layout_args *args, struct dpt_error *err)
{
    const struct dpt_cuda_entry entry = {.what = DPT_CUDA_KERNEL,
                                         .when = when,
                                         .node = p->lists->memory_layout.last,
                                         .span = span,
                                         .kernel = dpt_cuda_typed(p, kernel),
                                         .args.layout = *args};

    return dpt_cuda_add_entry(p, kind, &entry, err);
}

/* The arguments of a kernel, named for floats, that converts one layout. */
static struct dpt_cuda_layout_args one_layout(const struct dpt_cuda_program *p,
                                              enum dpt_cuda_kernel kernel, int number, void *arena,
                                              void *copies)
{
    struct dpt_cuda_layout_args args = {
        .arena = arena, .copies = copies, .list = p->lists->device_layouts + number};

    dpt_cuda_count_layout(dpt_cuda_typed(p, kernel), &p->lists->layouts[number], &args);
    return args;
}

static enum dpt_status add_losses(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_cuda_lists *l = p->lists;
    const struct dpt_cuda_memory_layout *memory_layout = &l->memory_layout;
    const int32_t last = memory_layout->last;
    const bool wants = memory_layout->node[last].wants_dy;
    const struct dpt_cuda_layout_args rows =
        one_layout(p, DPT_CUDA_K_from_layout_f32, l->rows_layout, l->rows, dpt_cuda_value(p, last));
    const struct dpt_cuda_layout_args drows =
        one_layout(p, DPT_CUDA_K_to_layout_f32, l->rows_layout, l->drows,
                   dpt_cuda_gradient(p, memory_layout->node[last].dy));
    enum dpt_status status = DPT_OK;

    DPT_TRY(add_layout(p, memory_layout->canonical ? DPT_CUDA_FORWARD_LIST : DPT_CUDA_ANSWERS,
                       DPT_CUDA_ALWAYS, dpt_span_node(last, DPT_PASS_FORWARD),
                       DPT_CUDA_K_from_layout_f32, &rows, err));
    DPT_TRY(add_loss(p, false, err));
    if (!p->spec.training)
        goto out;
    DPT_TRY(add_loss(p, true, err));
    if (memory_layout->canonical && wants)
        DPT_TRY(add_layout(p, DPT_CUDA_LOSS_LIST, DPT_CUDA_TRAINING, DPT_SPAN_LOSS,
                           DPT_CUDA_K_to_layout_f32, &drows, err));
out:
    return status;
}

/* --- parameters and samples ------------------------------------------------------------------- */

/* The type of elements in tensors of the program. */
static enum dpt_cuda_type type_of(const struct dpt_cuda_program *p)
{
    return p->lists->memory_layout.element == sizeof(float) ? DPT_CUDA_F32
           : p->spec.precision == DPT_PRECISION_BF16        ? DPT_CUDA_B16
                                                            : DPT_CUDA_H16;
}

/* Appends a layout of a node to a run, which is the last one so far. copy: elements. */
static void append_layout(struct dpt_cuda_lists *l, struct dpt_cuda_layout_run *run, int32_t node,
                          struct dpt_cuda_layout layout, int64_t copy, enum dpt_cuda_type type)
{
    const int at = run->first + run->n;

    layout.type = (int32_t)type;
    layout.copy = copy;
    layout.block = 0;
    if (run->n++ > 0) {
        const struct dpt_cuda_layout *before = &l->layouts[at - 1];

        layout.block = before->block + (uint32_t)dpt_cuda_layout_blocks(run->kernel, before);
    }
    l->layouts[at] = layout;
    l->layout_node[at] = node;
}

/* Appends the copies of parameters. *n: layouts so far. */
static enum dpt_status add_copies(struct dpt_cuda_program *p, int *n, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_graph *graph = p->spec.graph;
    const struct dpt_cuda_layout_args args = {.arena = p->params, .copies = l->copies};

    l->copied = (struct dpt_cuda_layout_run){dpt_cuda_typed(p, DPT_CUDA_K_to_layout_f32), *n, 0};
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
        const int64_t copies[] = {f->weight, f->bias};

        for (int bias = 0; bias < 2; bias++) {
            if (copies[bias] != DPT_CUDA_NONE && dpt_program_computes(&p->spec, i))
                append_layout(l, &l->copied, i,
                              dpt_cuda_op_of(p, i)->layout(graph, &l->memory_layout, i, bias),
                              copies[bias], type_of(p));
        }
    }
    *n += l->copied.n;
    return add_layout(p, DPT_CUDA_LAYOUTS, DPT_CUDA_ALWAYS, DPT_SPAN_LAYOUTS,
                      DPT_CUDA_K_to_layout_f32, &args, err);
}

/* Appends the conversion of gradients to the arena; some are floats whatever the tensors' type. */
static enum dpt_status add_backs(struct dpt_cuda_program *p, int *n, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const struct dpt_graph *graph = p->spec.graph;
    struct dpt_cuda_entry entry = {.what = DPT_CUDA_KERNEL,
                                   .args.layout = {.arena = p->gradient,
                                                   .copies = l->dweights,
                                                   .state = dpt_cuda_state_of(p)}};
    enum dpt_status status = DPT_OK;

    for (int floats = 0; floats < 2; floats++) {
        struct dpt_cuda_layout_run *back = &l->back[floats];

        *back = (struct dpt_cuda_layout_run){.first = *n};
        back->kernel =
            floats ? DPT_CUDA_K_from_layout_f32 : dpt_cuda_typed(p, DPT_CUDA_K_from_layout_f32);
        for (int32_t i = 1; i < graph->n_nodes; i++) {
            const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
            const int64_t element = floats ? (int64_t)sizeof(float) : l->memory_layout.element;

            if (f->dweight == DPT_CUDA_NONE || !dpt_program_computes(&p->spec, i) ||
                !dpt_graph_updates(graph, graph->nodes[i].weight) ||
                (dpt_cuda_op_of(p, i)->float_gradients &&
                 l->memory_layout.element != sizeof(float)) != floats)
                continue;
            append_layout(l, back, i,
                          dpt_cuda_op_of(p, i)->layout(graph, &l->memory_layout, i, false),
                          f->dweight / element, floats ? DPT_CUDA_F32 : type_of(p));
        }
        *n += back->n;
        entry.kernel = back->kernel;
        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_GRADIENT_LIST, &entry, err));
    }
out:
    return status;
}

void dpt_cuda_copies_of(const struct dpt_cuda_program *p, bool gradients, uint16_t *number,
                        struct dpt_cuda_copies *copies)
{
    const struct dpt_cuda_lists *l = p->lists;
    /* Both runs of gradients follow one another. */
    const int first = gradients ? l->back[0].first : l->copied.first;
    const int n = gradients ? l->back[0].n + l->back[1].n : l->copied.n;

    *copies = (struct dpt_cuda_copies){.list = l->device_layouts,
                                       .at = gradients ? l->dweights : l->copies};
    for (int64_t k = 0; k < p->spec.graph->floats / DPT_TENSOR_ALIGN; k++)
        number[k] = DPT_CUDA_NO_COPY;
    for (int i = first; i < first + n; i++) {
        const struct dpt_cuda_layout *t = &l->layouts[i];
        const int64_t count = (int64_t)t->outputs * t->inputs * t->area;

        for (int64_t at = t->canonical; at < t->canonical + count; at += DPT_TENSOR_ALIGN)
            number[at / DPT_TENSOR_ALIGN] = (uint16_t)i;
        copies->bytes += count * (t->type == DPT_CUDA_F32 ? 4 : 2);
    }
}

/* The layout of the last layer's rows in tensors. */
static struct dpt_cuda_layout rows_layout(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return (struct dpt_cuda_layout){.outputs = p->micro,
                                    .inputs = f->channels,
                                    .area = f->h * f->w,
                                    .padded_outputs = p->micro,
                                    .padded_inputs = f->pitch};
}

static enum dpt_status make_layouts(struct dpt_cuda_program *p, struct dpt_error *err)
{
    struct dpt_cuda_lists *l = p->lists;
    const int64_t most = 3 * (int64_t)p->spec.graph->n_nodes + 1;
    const int64_t bytes = most * (int64_t)sizeof *l->layouts;
    const struct dpt_cuda_piece pieces[] = {
        {"the layouts", bytes, (void **)&l->layouts, true},
        {"the layouts", bytes, (void **)&l->device_layouts, false},
    };
    enum dpt_status status = DPT_OK;
    int n = 0;

    DPT_TRY(DPT_ALLOCATE(l->layout_node, (size_t)most, "the layouts", err));
    if (l->layouts == NULL) /* unchanged if lists are built again */
        DPT_TRY(dpt_cuda_hold(&p->ctx, DPT_CUDA_ROWS(pieces), err));
    DPT_TRY(add_copies(p, &n, err));
    DPT_TRY(add_backs(p, &n, err));
    l->rows_layout = n;
    l->layouts[n++] = rows_layout(p, l->memory_layout.last);
    DPT_TRY(dpt_cuda_to_device(&p->ctx, l->device_layouts, l->layouts,
                               (size_t)n * sizeof *l->layouts, err));
out:
    return status;
}

static enum dpt_status add_inputs(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *x = dpt_cuda_node_layout_of(p, 0);
    const struct dpt_cuda_entry samples = {.what = DPT_CUDA_KERNEL,
                                           .node = DPT_CUDA_NONE,
                                           .span = DPT_SPAN_DATA,
                                           .kernel = dpt_cuda_typed(p, DPT_CUDA_K_gather_f32_f32),
                                           .args.gather = {.data = p->input,
                                                           .control = p->control,
                                                           .out = dpt_cuda_value(p, 0),
                                                           .channel_stride = (int64_t)x->h * x->w,
                                                           .pixel_stride = 1,
                                                           .n = p->micro,
                                                           .channels = x->channels,
                                                           .h = x->h,
                                                           .w = x->w,
                                                           .pitch = x->pitch}};
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_FROM_STAGED, &samples, err));
    DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_FROM_STORED, &samples, err));
out:
    return status;
}

/* The first node of backward of those whose gradients are there with node i's. */
static int32_t last_beside(const struct dpt_cuda_program *p, int32_t i)
{
    return p->spec.units > 0 ? p->spec.unit[dpt_cuda_unit_of(p, i) + 1] - 1
                             : p->spec.graph->n_nodes - 1;
}

/* Appends zeros for the gradients of frozen tensors, and for the gradients and state of layers on
 * which the output does not depend. Adjacent tensors, as those of a frozen body, are filled at
 * once. */
static enum dpt_status add_dead(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_graph *graph = p->spec.graph;
    struct dpt_cuda_entry fill = {
        .what = DPT_CUDA_FILL, .when = DPT_CUDA_WRITING, .span = DPT_SPAN_LOSS};
    enum dpt_status status = DPT_OK;

    for (int32_t n = 0; n < 2 * graph->n_nodes; n++) {
        /* State lies after all learned tensors. */
        const bool state = n >= graph->n_nodes;
        const int32_t i = n % graph->n_nodes;
        const struct dpt_graph_node *node = &graph->nodes[i];
        const int32_t tensors[] = {state ? node->mean : node->weight,
                                   state ? node->variance : node->bias};

        for (int k = 0; k < 2; k++) {
            const struct dpt_tensor *t = tensors[k] < 0 ? NULL : dpt_cuda_tensor_of(p, tensors[k]);
            float *to;
            int32_t at;

            if (t == NULL || t->count == 0 || (dpt_cuda_node_layout_of(p, i)->live && !t->frozen))
                continue;
            to = dpt_cuda_at(p, p->gradient, t->offset);
            at = state ? graph->n_nodes - 1 : last_beside(p, i);
            if (fill.bytes > 0 &&
                (at != fill.node || to != (float *)fill.to + fill.bytes / (int64_t)sizeof *to)) {
                DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
                fill.bytes = 0;
            }
            if (fill.bytes == 0) {
                fill.to = to;
                fill.node = at;
            }
            fill.bytes += (int64_t)dpt_round_up((size_t)t->count, sizeof *to) * (int64_t)sizeof *to;
        }
    }
    if (fill.bytes > 0)
        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
out:
    return status;
}

/* Appends zeros behind a node's tensors, up to where others begin: with units the gradient of
 * another one's was there. */
static enum dpt_status add_gaps(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const int32_t tensors[] = {node->weight, node->bias};
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < 2; k++) {
        const struct dpt_tensor *t = tensors[k] < 0 ? NULL : dpt_cuda_tensor_of(p, tensors[k]);
        struct dpt_cuda_entry fill = {
            .what = DPT_CUDA_FILL, .node = i, .span = dpt_span_node(i, DPT_PASS_WEIGHTS)};

        if (t == NULL || t->count % DPT_TENSOR_ALIGN == 0)
            continue;
        fill.to = dpt_cuda_at(p, p->gradient, t->offset) + t->count;
        fill.bytes = (DPT_TENSOR_ALIGN - t->count % DPT_TENSOR_ALIGN) * (int64_t)sizeof(float);
        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
    }
out:
    return status;
}

/* Appends zeros over what a node's kernels wrote for a frozen tensor. */
static enum dpt_status add_frozen(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const int32_t tensors[] = {node->weight, node->bias};
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < 2; k++) {
        struct dpt_cuda_entry fill = {.what = DPT_CUDA_FILL,
                                      .node = i,
                                      .span = dpt_span_node(i, DPT_PASS_WEIGHTS),
                                      .aside =
                                          true /* after what wrote there, on whichever branch */};

        if (tensors[k] < 0 || !dpt_cuda_tensor_of(p, tensors[k])->frozen)
            continue;
        fill.to = dpt_cuda_at(p, p->gradient, dpt_cuda_tensor_of(p, tensors[k])->offset);
        fill.bytes = dpt_cuda_tensor_of(p, tensors[k])->count * (int64_t)sizeof(float);
        DPT_TRY(dpt_cuda_add_entry(p, DPT_CUDA_BACKWARD_LIST, &fill, err));
    }
out:
    return status;
}

/* Whether a node has launches. The entries of another stage's nodes only serve to report which
 * plans they would use. */
static bool is_listed(const struct dpt_cuda_program *p, int32_t i)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);

    return f->live && !f->skipped && (p->first == p || dpt_program_computes(&p->spec, i));
}

/* Appends a node's backward pass. The gradients that several readers pass back are summed. */
static enum dpt_status add_backward(struct dpt_cuda_program *p, int32_t i, struct dpt_error *err)
{
    const struct dpt_cuda_node_layout *f = dpt_cuda_node_layout_of(p, i);
    const struct dpt_graph_node *node = &p->spec.graph->nodes[i];
    const struct dpt_cuda_op *op = dpt_cuda_op_of(p, i);
    enum dpt_status status = DPT_OK;

    if (!f->wants_dy || !is_listed(p, i))
        return DPT_OK;
    DPT_TRY(op->backward(p, i, err));
    DPT_TRY(add_frozen(p, i, err));
    for (int32_t k = 0; k < node->n_inputs && !op->passes_dy; k++) {
        if (f->sum[k] != DPT_CUDA_NONE)
            DPT_TRY(dpt_cuda_add_sum(p, i, node->inputs[k], f->sum[k], f->dx[k], f->dx[k], err));
    }
out:
    return status;
}

static void release_math(struct dpt_cuda_lists *l, struct dpt_cuda_math *m)
{
    struct dpt_cuda_math **at = &l->maths;

    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    dpt_cuda_math_release(m);
    dpt_free(m);
}

/* Keeps the text of all plans, and only the launches of the stage's own nodes. */
static enum dpt_status drop_others(struct dpt_cuda_program *p, struct dpt_error *err)
{
    static const enum dpt_cuda_list_kind kinds[] = {DPT_CUDA_FORWARD_LIST, DPT_CUDA_BACKWARD_LIST,
                                                    DPT_CUDA_LOSS_LIST, DPT_CUDA_ANSWERS};
    struct dpt_cuda_lists *l = p->lists;

    dpt_cuda_program_plans(p, &l->plans);
    if (l->plans.failed)
        return dpt_fail_memory(err, "a text", (double)l->plans.length);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct dpt_cuda_list *list = &l->list[kinds[k]];
        int kept = 0;

        for (int n = 0; n < list->n; n++) {
            const struct dpt_cuda_entry *e = &list->entry[n];

            if (dpt_program_computes(&p->spec, e->node))
                list->entry[kept++] = *e;
            else if (e->what == DPT_CUDA_MATH)
                release_math(l, e->math);
        }
        list->n = kept;
    }
    return DPT_OK;
}

/* Finds the launch that adds up the gradient of the last layer's bias, straight from the loss's dy,
 * if that is one block. */
static int find_bias_of_loss(const struct dpt_cuda_program *p)
{
    const struct dpt_cuda_memory_layout *m = &p->lists->memory_layout;
    const struct dpt_cuda_list *list = &p->lists->list[DPT_CUDA_BACKWARD_LIST];
    struct dpt_cuda_grid grid;

    for (int k = 0; k < list->n && !m->canonical; k++) {
        const struct dpt_cuda_entry *e = &list->entry[k];

        if (e->what == DPT_CUDA_KERNEL && e->node == m->node[m->last].tensor &&
            e->kernel == dpt_cuda_typed(p, DPT_CUDA_K_bias_back_f32) &&
            dpt_cuda_kernel_grid(e->kernel, &e->args, &grid) && grid.x == 1 && grid.y == 1)
            return k;
    }
    return DPT_CUDA_NONE;
}

enum dpt_status dpt_cuda_lists_build(struct dpt_cuda_program *p, struct dpt_error *err)
{
    const struct dpt_graph *graph = p->spec.graph;
    enum dpt_status status = DPT_OK;

    DPT_TRY(make_layouts(p, err));
    if (dpt_program_computes(&p->spec, 0))
        DPT_TRY(add_inputs(p, err));
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        if (is_listed(p, i))
            DPT_TRY(dpt_cuda_op_of(p, i)->forward(p, i, err));
    }
    DPT_TRY(add_losses(p, err));
    if (p->spec.training)
        DPT_TRY(add_dead(p, err));
    for (int32_t i = graph->n_nodes - 1; i > 0; i--) {
        DPT_TRY(add_backward(p, i, err));
        if (p->spec.units > 0)
            DPT_TRY(add_gaps(p, i, err));
    }
    if (p->spec.last > 0)
        DPT_TRY(drop_others(p, err));
    p->lists->bias_of_loss = find_bias_of_loss(p);
    DPT_TRY(dpt_cuda_branches_open(p, err));
out:
    return status;
}

void dpt_cuda_lists_clear(struct dpt_cuda_program *p)
{
    struct dpt_cuda_lists *l = p->lists;

    while (l->maths != NULL)
        release_math(l, l->maths);
    dpt_str_release(&l->plans);
    for (int k = 0; k < DPT_CUDA_LISTS; k++) {
        free(l->list[k].entry);
        l->list[k] = (struct dpt_cuda_list){0};
    }
    dpt_free(l->layout_node);
    l->layout_node = NULL;
}

void dpt_cuda_lists_release(struct dpt_cuda_program *p)
{
    struct dpt_cuda_lists *l = p->lists;

    dpt_cuda_lists_clear(p);
    free(l->records);
    dpt_free(l->branches.readers);
    dpt_cuda_memory_layout_release(&l->memory_layout);
}
