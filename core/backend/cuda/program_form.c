/* The form of a program: from shapes alone, so that it can be had on a machine without a GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program_private.h"

enum { ALIGN = 256, MOST_LEAVES = 1 << 20 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Room for `bytes` at the end of a region; where it begins. */
static int64_t take(int64_t *region, int64_t bytes)
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
                                                .index = DPT_CUDA_NONE,
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
        if (relu->next != DPT_CUDA_NONE && graph->nodes[relu->next].op == DPT_OP_MAXPOOL &&
            before != DPT_OP_INPUT) {
            relu->skipped = forms->node[relu->next].relu = true;
        } else if (before == DPT_OP_CONV || before == DPT_OP_DENSE) {
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
        const bool pool = node->op == DPT_OP_MAXPOOL || node->op == DPT_OP_AVGPOOL;
        const struct dpt_cuda_form *x;

        if (!forms->node[i].live)
            continue;
        x = &forms->node[forms->node[node->inputs[0]].tensor];
        if ((pool || node->op == DPT_OP_CONV || node->op == DPT_OP_GLOBAL_AVGPOOL) &&
            (node->in.h != x->h || node->in.w != x->w))
            return dpt_fail(err, DPT_BAD_JOB, "%s: backend cuda has no such layer behind a flatten",
                            node->name);
        for (int axis = 0; pool && axis < 2; axis++) {
            if (w->before[axis] >= w->kernel[axis] || w->after[axis] >= w->kernel[axis])
                return dpt_fail(err, DPT_BAD_JOB,
                                "%s: the padding must be smaller than the kernel, else a window "
                                "can lie on padding alone",
                                node->name);
        }
        if (node->op == DPT_OP_MAXPOOL && (int64_t)w->kernel[0] * w->kernel[1] > UINT16_MAX)
            return dpt_fail(err, DPT_BAD_JOB, "%s: its window is too large for backend cuda",
                            node->name);
    }
    return DPT_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* The channels of the input are padded for who reads it: a convolution of fp32 takes few as they
 * are, and a dense layer only looks at whole samples. */
static int32_t input_pitch(const struct dpt_program_spec *spec, const struct dpt_cuda_forms *forms)
{
    const struct dpt_graph *graph = spec->graph;
    const struct dpt_shape *s = &graph->nodes[0].out;
    const int64_t padded = round_up(s->c, forms->lanes);
    int32_t reader = forms->node[0].next;

    while (reader != DPT_CUDA_NONE && graph->nodes[reader].op == DPT_OP_FLATTEN)
        reader = forms->node[reader].next;
    if (reader == DPT_CUDA_NONE)
        return (int32_t)padded;
    if (graph->nodes[reader].op == DPT_OP_CONV)
        return (int32_t)dpt_cuda_pitch(spec->precision, s->c);
    if (graph->nodes[reader].op == DPT_OP_DENSE && s->c <= forms->lanes &&
        dpt_shape_size(s) % forms->lanes == 0)
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
        if (node->op == DPT_OP_FLATTEN)
            f->skipped = true;
        if (f->skipped) {
            const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];

            f->tensor = x->tensor;
            f->channels = x->channels;
            f->h = x->h;
            f->w = x->w;
            f->pitch = x->pitch;
            continue;
        }
        /* Element by element: the output lies as the input does, also behind a flatten. */
        if (node->op == DPT_OP_DROPOUT || node->op == DPT_OP_RELU || node->op == DPT_OP_GELU ||
            node->op == DPT_OP_TANH || node->op == DPT_OP_SIGMOID) {
            const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];

            f->channels = x->channels;
            f->h = x->h;
            f->w = x->w;
            f->pitch = x->pitch;
        }
    }
}

static int64_t tensor_elements(const struct dpt_cuda_form *f, int64_t micro)
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
        f->y = take(&sizes->values, tensor_elements(f, micro) * forms->element);
        if (node->op == DPT_OP_MAXPOOL && f->wants_dx)
            f->index = take(&sizes->values, tensor_elements(f, micro) * (int64_t)sizeof(uint16_t));
    }
    forms->outputs = dpt_shape_size(&graph->nodes[forms->last].out);
    forms->canonical = last->h * last->w > 1;
    sizes->rows = round_up(micro * forms->outputs * (int64_t)sizeof(float), ALIGN) *
                  (forms->canonical && spec->training ? 2 : 1);
}

static bool in_place(enum dpt_op op)
{
    return op == DPT_OP_DROPOUT || op == DPT_OP_RELU || op == DPT_OP_GELU || op == DPT_OP_TANH ||
           op == DPT_OP_SIGMOID || op == DPT_OP_FLATTEN;
}

/* Gradients go to and fro between two buffers; what is done element by element stays in place. */
static void place_gradients(const struct dpt_program_spec *spec, int64_t micro,
                            struct dpt_cuda_forms *forms)
{
    int at = 0;

    for (int32_t i = forms->last; forms->node[i].wants_dy; i = spec->graph->nodes[i].inputs[0]) {
        struct dpt_cuda_form *f = &forms->node[i];
        const struct dpt_graph_node *node = &spec->graph->nodes[i];
        const int64_t bytes = tensor_elements(f, micro) * forms->element;

        f->dy = at;
        forms->sizes.dy[at] = larger(forms->sizes.dy[at], round_up(bytes, ALIGN));
        /* The pool writes the gradient of what the ReLU before it reads. */
        if (!in_place(node->op))
            at = !at;
    }
}

/* --- parameters ------------------------------------------------------------------------------- */

static void place_dense(const struct dpt_program_spec *spec, struct dpt_cuda_forms *forms,
                        int32_t i)
{
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    struct dpt_cuda_form *f = &forms->node[i];
    const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];
    const int64_t area = (int64_t)x->h * x->w;

    f->flat = area == 1 || (x->channels == 1 && x->pitch == 1);
    f->direct = f->flat && forms->element == sizeof(float) && area * x->pitch == area * x->channels;
    /* A gradient with a loss scale is not the arena's. */
    f->straight = f->flat && spec->precision != DPT_PRECISION_FP16;
    if (!f->direct)
        f->weight = take(&forms->sizes.copies, f->pitch * area * x->pitch * forms->element) /
                    forms->element;
    if (spec->training && !f->straight)
        f->dweight =
            take(&forms->sizes.dweights, f->pitch * area * x->pitch * (int64_t)sizeof(float));
}

static void place_conv(const struct dpt_program_spec *spec, struct dpt_cuda_forms *forms, int32_t i)
{
    const struct dpt_graph_node *node = &spec->graph->nodes[i];
    const struct dpt_window *w = &node->window;
    struct dpt_cuda_form *f = &forms->node[i];
    const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];
    const int64_t inputs = w->groups == 1 ? x->pitch : node->in.c / w->groups;
    const int64_t outputs = w->groups == 1 ? f->pitch : node->out.c;
    const int64_t bytes = inputs * outputs * w->kernel[0] * w->kernel[1] * forms->element;

    f->weight = take(&forms->sizes.copies, bytes) / forms->element;
    if (spec->training)
        f->dweight = take(&forms->sizes.dweights, bytes);
}

static void place_parameters(const struct dpt_program_spec *spec, int64_t micro,
                             struct dpt_cuda_forms *forms)
{
    const struct dpt_graph *graph = spec->graph;
    int64_t convolution = 0;

    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        struct dpt_cuda_form *f = &forms->node[i];
        const int64_t rows = micro * f->h * f->w;

        if (!f->live || node->weight < 0)
            continue;
        if (node->op == DPT_OP_CONV) {
            const struct dpt_cuda_form *x = &forms->node[node->inputs[0]];

            place_conv(spec, forms, i);
            convolution =
                larger(convolution,
                       (tensor_elements(x, micro) + tensor_elements(f, micro)) * forms->element);
        } else {
            place_dense(spec, forms, i);
            convolution = larger(convolution, 32 << 20);
        }
        if (node->bias < 0)
            continue;
        /* A tensor of floats is followed by zeros up to a multiple of 16 of them. */
        if (forms->element != sizeof(float))
            f->bias = take(&forms->sizes.copies, f->pitch * forms->element) / forms->element;
        forms->partial =
            larger(forms->partial, dpt_cuda_bias_back_partial(rows, f->pitch, forms->lanes));
        forms->counters =
            larger(forms->counters,
                   dpt_cuda_bias_back_cut(rows, f->pitch, forms->lanes).groups + f->pitch / 128);
    }
    forms->sizes.workspace = convolution;
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
    if (tensor_elements(&forms->node[0], micro) > UINT32_MAX)
        status =
            dpt_fail(err, DPT_BAD_JOB,
                     "batch.micro: %d samples have more numbers than a GPU kernel can count; "
                     "%lld or less would do",
                     micro, (long long)(UINT32_MAX / (tensor_elements(&forms->node[0], 1) + 1)));
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
