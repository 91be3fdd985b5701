/* The form of a program: from shapes alone, so that it can be had on a machine without a GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

enum { ALIGN = 256, MOST_LEAVES = 1 << 20 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t dpt_cuda_take(int64_t *region, int64_t bytes)
{
    const int64_t at = *region;

    *region += round_up(bytes, ALIGN);
    return at;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- which nodes, and what they do together --------------------------------------------------- */

/* Layers have one input, so what counts is a chain: from the last node back to the input. */
static enum dpt_status find_chain(const struct dpt_graph *graph, struct dpt_cuda_forms *forms,
                                  struct dpt_error *err)
{
    int32_t next = DPT_CUDA_NONE;

    forms->last = graph->n_nodes - 1;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        forms->node[i] = (struct dpt_cuda_form){.tensor = i,
                                                .next = DPT_CUDA_NONE,
                                                .saved = DPT_CUDA_NONE,
                                                .dy = DPT_CUDA_NONE,
                                                .weight = DPT_CUDA_NONE,
                                                .bias = DPT_CUDA_NONE,
                                                .dweight = DPT_CUDA_NONE};
    for (int32_t i = forms->last;; i = graph->nodes[i].inputs[0]) {
        forms->node[i].live = true;
        forms->node[i].next = next;
        next = i;
        if (graph->nodes[i].op == DPT_OP_INPUT)
            return DPT_OK;
        if (graph->nodes[i].n_inputs != 1)
            return dpt_fail(err, DPT_BAD_JOB, "%s: backend cuda has no layer of %d inputs",
                            graph->nodes[i].name, (int)graph->nodes[i].n_inputs);
    }
}

/* A ReLU is computed where its input is made, or, before a max-pool, where its output is read: what
 * the pool passes on is a quarter. */
static void join_relus(const struct dpt_graph *graph, struct dpt_cuda_forms *forms)
{
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        struct dpt_cuda_form *relu = &forms->node[i];
        const struct dpt_graph_node *node = &graph->nodes[i];
        enum dpt_op before;

        if (!relu->live || node->op != DPT_OP_RELU)
            continue;
        before = graph->nodes[node->inputs[0]].op;
        if (relu->next != DPT_CUDA_NONE && before != DPT_OP_INPUT &&
            dpt_cuda_ops[graph->nodes[relu->next].op]->takes_relu) {
            relu->skipped = forms->node[relu->next].relu = true;
        } else if (dpt_cuda_ops[before]->fuses_relu) {
            relu->skipped = forms->node[node->inputs[0]].relu = true;
        }
    }
}

/* What the kernels take for granted. */
static enum dpt_status check(const struct dpt_graph *graph, const struct dpt_cuda_forms *forms,
                             struct dpt_error *err)
{
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const struct dpt_window *w = &node->window;
        const enum dpt_operation_class kind = dpt_operation_of(node)->kind;
        enum dpt_status status;
        const struct dpt_cuda_form *x;

        if (!forms->node[i].live)
            continue;
        x = &forms->node[forms->node[node->inputs[0]].tensor];
        if ((kind == DPT_CLASS_POOL || kind == DPT_CLASS_CONV) &&
            (node->in.h != x->h || node->in.w != x->w))
            return dpt_fail(err, DPT_BAD_JOB, "%s: backend cuda has no such layer behind a flatten",
                            node->name);
        status = dpt_operation_check(node, err);
        if (status != DPT_OK)
            return status;
        if ((dpt_operation_of(node)->keeps & DPT_KEEPS_INDEX) &&
            (int64_t)w->kernel[0] * w->kernel[1] > UINT16_MAX)
            return dpt_fail(err, DPT_BAD_JOB, "%s: its window is too large for backend cuda",
                            node->name);
    }
    return DPT_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static bool moves_nothing(const struct dpt_graph_node *node)
{
    return dpt_operation_of(node)->kind == DPT_CLASS_NOTHING;
}

static bool is_pointwise(const struct dpt_graph_node *node)
{
    return dpt_operation_of(node)->kind == DPT_CLASS_POINTWISE;
}

/* Each number stays where it is, also behind a flatten. */
static bool keeps_layout(const struct dpt_graph_node *node)
{
    return is_pointwise(node) || dpt_operation_of(node)->kind == DPT_CLASS_NORM;
}

/* The channels of the input are padded for who reads it: a convolution of fp32 takes few as they
 * are, and a dense layer only looks at whole samples. */
static int32_t input_pitch(const struct dpt_program_spec *spec, const struct dpt_cuda_forms *forms)
{
    const struct dpt_graph *graph = spec->graph;
    const struct dpt_shape *s = &graph->nodes[0].out;
    const int64_t padded = round_up(s->c, forms->lanes);
    int32_t reader = forms->node[0].next;
    enum dpt_operation_class kind;

    while (reader != DPT_CUDA_NONE && moves_nothing(&graph->nodes[reader]))
        reader = forms->node[reader].next;
    if (reader == DPT_CUDA_NONE)
        return (int32_t)padded;
    kind = dpt_operation_of(&graph->nodes[reader])->kind;
    if (kind == DPT_CLASS_CONV)
        return (int32_t)dpt_cuda_pitch(spec->precision, s->c);
    if (kind == DPT_CLASS_GEMM && s->c <= forms->lanes && dpt_shape_size(s) % forms->lanes == 0)
        return s->c;
    return (int32_t)padded;
}

static void lay_out(const struct dpt_program_spec *spec, struct dpt_cuda_forms *forms)
{
    const struct dpt_graph *graph = spec->graph;

    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        struct dpt_cuda_form *f = &forms->node[i];

        if (!f->live)
            continue;
        f->channels = node->out.c;
        f->h = node->out.h;
        f->w = node->out.w;
        f->pitch = i == 0 ? input_pitch(spec, forms) : (int32_t)round_up(f->channels, forms->lanes);
        if (i == 0)
            continue;
        if (moves_nothing(node))
            f->skipped = true;
        if (f->skipped || keeps_layout(node)) {
            const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];

            if (f->skipped)
                f->tensor = x->tensor;
            f->channels = x->channels;
            f->h = x->h;
            f->w = x->w;
            f->pitch = x->pitch;
        }
    }
}

int64_t dpt_cuda_form_elements(const struct dpt_cuda_form *f, int64_t micro)
{
    return micro * f->h * f->w * f->pitch;
}

static void place_values(const struct dpt_program_spec *spec, int64_t micro,
                         struct dpt_cuda_forms *forms)
{
    struct dpt_cuda_sizes *sizes = &forms->sizes;
    const struct dpt_graph *graph = spec->graph;
    const struct dpt_cuda_form *last = &forms->node[forms->last];
    bool trained = false;

    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        struct dpt_cuda_form *f = &forms->node[i];

        if (!f->live)
            continue;
        f->wants_dx = spec->training && trained;
        trained = trained || node->weight >= 0 || node->bias >= 0;
        f->wants_dy = spec->training && trained;
        if (f->tensor != i)
            continue;
        f->y = dpt_cuda_take(&sizes->values, dpt_cuda_form_elements(f, micro) * forms->element);
        if (dpt_cuda_ops[node->op]->saved != NULL && f->wants_dy)
            f->saved = dpt_cuda_take(&sizes->values, dpt_cuda_ops[node->op]->saved(f, micro));
    }
    forms->outputs = dpt_shape_size(&graph->nodes[forms->last].out);
    forms->canonical = last->h * last->w > 1;
    sizes->rows = round_up(micro * forms->outputs * (int64_t)sizeof(float), ALIGN) *
                  (forms->canonical && spec->training ? 2 : 1);
}

/* Gradients go to and fro between two buffers; what is done element by element stays in place. */
static void place_gradients(const struct dpt_program_spec *spec, int64_t micro,
                            struct dpt_cuda_forms *forms)
{
    int at = 0;

    for (int32_t i = forms->last; forms->node[i].wants_dy; i = spec->graph->nodes[i].inputs[0]) {
        struct dpt_cuda_form *f = &forms->node[i];
        const struct dpt_graph_node *node = &spec->graph->nodes[i];
        const int64_t bytes = dpt_cuda_form_elements(f, micro) * forms->element;

        f->dy = at;
        forms->sizes.dy[at] = larger(forms->sizes.dy[at], round_up(bytes, ALIGN));
        /* The pool writes the gradient of what the ReLU before it reads. */
        if (!moves_nothing(node) && !is_pointwise(node))
            at = !at;
    }
}

/* --- parameters ------------------------------------------------------------------------------- */

static void place_parameters(const struct dpt_program_spec *spec, int64_t micro,
                             struct dpt_cuda_forms *forms)
{
    for (int32_t i = 1; i < spec->graph->n_nodes; i++) {
        if (forms->node[i].live && spec->graph->nodes[i].weight >= 0)
            dpt_cuda_ops[spec->graph->nodes[i].op]->place(spec, forms, micro, i);
    }
}

static void count_arenas(const struct dpt_program_spec *spec, int64_t micro,
                         struct dpt_cuda_forms *forms)
{
    const struct dpt_graph *graph = spec->graph;
    const int64_t floats = graph->floats * (int64_t)sizeof(float);
    const int64_t leaves = spec->leaf > 0 ? (spec->micro + micro - 1) / micro : 1;
    struct dpt_cuda_sizes *sizes = &forms->sizes;

    sizes->inputs = round_up(micro * dpt_shape_size(&graph->nodes[0].out) * 4, ALIGN) +
                    round_up(micro * forms->outputs * 4, ALIGN) + 5 * ALIGN +
                    2 * round_up(micro * 4, ALIGN) + round_up(micro * 8, ALIGN) +
                    round_up(micro * (int64_t)sizeof(struct dpt_cuda_move), ALIGN) +
                    leaves * (int64_t)sizeof(struct dpt_cuda_tally);
    sizes->arenas = floats + (spec->training ? floats + DPT_TENSOR_ALIGN * 4 : 0);
    while (spec->training && (int64_t)1 << forms->levels < leaves)
        forms->levels++;
    sizes->levels = forms->levels * floats;
    forms->counters += 1;
    sizes->sums =
        round_up(forms->partial * 4, ALIGN) + round_up(forms->counters * 4, ALIGN) +
        round_up((micro + DPT_CUDA_LOSS_ROWS - 1) / DPT_CUDA_LOSS_ROWS * DPT_CUDA_LOSS_SUMS * 8,
                 ALIGN) +
        round_up(graph->n_nodes * 8, ALIGN);
}

enum dpt_status dpt_cuda_forms_make(const struct dpt_program_spec *spec, int32_t micro,
                                    struct dpt_cuda_forms *forms, struct dpt_error *err)
{
    const bool wide =
        spec->precision == DPT_PRECISION_FP32 || spec->precision == DPT_PRECISION_TF32;
    enum dpt_status status = DPT_OK;

    *forms = (struct dpt_cuda_forms){.element = wide ? 4 : 2, .lanes = wide ? 4 : 8};
    forms->node = calloc((size_t)spec->graph->n_nodes, sizeof *forms->node);
    if (forms->node == NULL)
        return dpt_fail_memory(err, "the model",
                               (double)spec->graph->n_nodes * sizeof *forms->node);
    DPT_TRY(find_chain(spec->graph, forms, err));
    join_relus(spec->graph, forms);
    lay_out(spec, forms);
    DPT_TRY(check(spec->graph, forms, err));
    place_values(spec, micro, forms);
    if (spec->training)
        place_gradients(spec, micro, forms);
    place_parameters(spec, micro, forms);
    count_arenas(spec, micro, forms);
    if (dpt_cuda_form_elements(&forms->node[0], micro) > UINT32_MAX)
        status = dpt_fail(
            err, DPT_BAD_JOB,
            "batch.micro: %d samples have more numbers than a GPU kernel can count; "
            "%lld or less would do",
            micro, (long long)(UINT32_MAX / (dpt_cuda_form_elements(&forms->node[0], 1) + 1)));
out:
    return status;
}

void dpt_cuda_forms_release(struct dpt_cuda_forms *forms)
{
    free(forms->node);
    forms->node = NULL;
}

int64_t dpt_cuda_sizes_sum(const struct dpt_cuda_sizes *sizes)
{
    return sizes->values + sizes->dy[0] + sizes->dy[1] + sizes->rows + sizes->inputs +
           sizes->arenas + sizes->copies + sizes->dweights + sizes->levels + sizes->sums +
           sizes->workspace;
}
