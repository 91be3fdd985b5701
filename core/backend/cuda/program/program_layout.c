/* Computes the memory layout of a program from shapes alone, which needs no GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/program/program_norms.h"
#include "core/base/memory.h"

enum { ALIGN = DPT_CUDA_ALIGN };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* --- which nodes, and what they do together --------------------------------------------------- */

/* Marks the nodes on which the last node depends, and notes the reader of each. */
static void find_live(const struct dpt_graph *graph, struct dpt_cuda_memory_layout *memory_layout)
{
    struct dpt_cuda_node_layout *nodes = memory_layout->node;

    memory_layout->last = graph->n_nodes - 1;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        nodes[i] = (struct dpt_cuda_node_layout){.live = i == memory_layout->last,
                                                 .tensor = i,
                                                 .reader = DPT_CUDA_NONE,
                                                 .joined = DPT_CUDA_NONE,
                                                 .saved = DPT_CUDA_NONE,
                                                 .dy = DPT_CUDA_NONE,
                                                 .more = DPT_CUDA_NONE,
                                                 .dz = DPT_CUDA_NONE,
                                                 .dx = {DPT_CUDA_NONE, DPT_CUDA_NONE},
                                                 .sum = {DPT_CUDA_NONE, DPT_CUDA_NONE},
                                                 .weight = DPT_CUDA_NONE,
                                                 .bias = DPT_CUDA_NONE,
                                                 .dweight = DPT_CUDA_NONE};
    for (int32_t i = memory_layout->last; i > 0; i--) {
        for (int32_t k = 0; nodes[i].live && k < graph->nodes[i].n_inputs; k++) {
            struct dpt_cuda_node_layout *x = &nodes[graph->nodes[i].inputs[k]];

            x->reader = x->live ? DPT_CUDA_NONE : i;
            x->live = true;
        }
    }
}

/* Fuses each ReLU with the node that computes its input or, before a max-pool, with the pool: the
 * pool's output has a quarter of the numbers. No other node may read the value in between. */
static void join_relus(const struct dpt_graph *graph, struct dpt_cuda_memory_layout *memory_layout)
{
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        struct dpt_cuda_node_layout *relu = &memory_layout->node[i];
        const struct dpt_graph_node *node = &graph->nodes[i];
        int32_t from = node->inputs[0];
        enum dpt_op before;
        bool alone;

        if (!relu->live || node->op != DPT_OP_RELU)
            continue;
        alone = memory_layout->node[from].reader == i;
        if (dpt_cuda_is_folded(graph, from))
            from = graph->nodes[from].inputs[0];
        before = graph->nodes[from].op;
        if (relu->reader != DPT_CUDA_NONE && before != DPT_OP_INPUT &&
            dpt_cuda_ops[graph->nodes[relu->reader].op]->takes_relu) {
            relu->skipped = memory_layout->node[relu->reader].relu = true;
        } else if (dpt_cuda_ops[before]->fuses_relu && alone) {
            relu->skipped = memory_layout->node[from].relu = true;
        }
    }
}

/* Checks what the kernels require. */
static enum dpt_status check(const struct dpt_graph *graph,
                             const struct dpt_cuda_memory_layout *memory_layout,
                             struct dpt_error *err)
{
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const struct dpt_window *w = &node->window;

        if (!memory_layout->node[i].live)
            continue;
        if ((dpt_operation_of(node)->keeps & DPT_KEEPS_INDEX) &&
            (int64_t)w->kernel[0] * w->kernel[1] > UINT16_MAX)
            return dpt_fail(err, DPT_BAD_JOB, "%s: its window is too large for backend cuda",
                            node->name);
    }
    return DPT_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static enum dpt_operation_class kind_of(const struct dpt_graph_node *node)
{
    return dpt_operation_of(node)->kind;
}

/* Whether a node has no work, since each number of a flattened value stays where it is. */
static bool stays(const struct dpt_cuda_memory_layout *memory_layout,
                  const struct dpt_graph_node *node)
{
    return kind_of(node) == DPT_CLASS_NOTHING && !(memory_layout->flattens && node->n_inputs > 0);
}

/* The pitch that a reader of the input needs: an fp32 convolution reads few channels without
 * padding, and a dense layer reads only whole samples. */
static int32_t wanted_pitch(const struct dpt_program_spec *spec,
                            const struct dpt_cuda_memory_layout *memory_layout,
                            const struct dpt_graph_node *reader)
{
    const struct dpt_shape *s = &spec->graph->nodes[0].out;
    const enum dpt_operation_class kind = kind_of(reader);

    if (kind == DPT_CLASS_CONV)
        return (int32_t)dpt_cuda_pitch(spec->precision, s->c);
    if (kind == DPT_CLASS_GEMM && s->c <= memory_layout->lanes &&
        dpt_shape_size(s) % memory_layout->lanes == 0)
        return s->c;
    return (int32_t)round_up(s->c, memory_layout->lanes);
}

/* The pitch of the input: with padding, unless all its readers need the same pitch. */
static int32_t input_pitch(const struct dpt_program_spec *spec,
                           const struct dpt_cuda_memory_layout *memory_layout)
{
    const struct dpt_graph *graph = spec->graph;
    const int32_t padded = (int32_t)round_up(graph->nodes[0].out.c, memory_layout->lanes);
    int32_t pitch = 0;

    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];

        for (int32_t k = 0; memory_layout->node[i].live && k < node->n_inputs; k++) {
            int32_t from = node->inputs[k], wanted;

            while (from > 0 && stays(memory_layout, &graph->nodes[from]))
                from = graph->nodes[from].inputs[0];
            if (from > 0 || stays(memory_layout, node))
                continue;
            wanted = wanted_pitch(spec, memory_layout, node);
            pitch = pitch == 0 || pitch == wanted ? wanted : padded;
        }
    }
    return pitch == 0 ? padded : pitch;
}

static void lay_out(const struct dpt_program_spec *spec,
                    struct dpt_cuda_memory_layout *memory_layout)
{
    const struct dpt_graph *graph = spec->graph;

    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        struct dpt_cuda_node_layout *f = &memory_layout->node[i];

        if (!f->live)
            continue;
        f->tensor = i;
        f->channels = node->out.c;
        f->h = node->out.h;
        f->w = node->out.w;
        f->pitch = i == 0 ? input_pitch(spec, memory_layout)
                          : (int32_t)round_up(f->channels, memory_layout->lanes);
        if (i == 0)
            continue;
        if (kind_of(node) == DPT_CLASS_NOTHING)
            f->skipped = stays(memory_layout, node);
        if (dpt_cuda_is_folded(graph, i))
            f->skipped = true;
        if (f->skipped || kind_of(node) == DPT_CLASS_POINTWISE || kind_of(node) == DPT_CLASS_NORM ||
            (kind_of(node) == DPT_CLASS_JOIN && node->op != DPT_OP_CONCAT)) {
            const struct dpt_cuda_node_layout *x = &memory_layout->node[node->inputs[0]];

            if (f->skipped)
                f->tensor = x->tensor;
            f->channels = x->channels;
            f->h = x->h;
            f->w = x->w;
            f->pitch = x->pitch;
        }
    }
}

/* Whether each layer can read its input in the present layout. A layer that needs pixels,
 * normalises channels or concatenates vectors cannot read unflattened pixels as a vector, and both
 * inputs of an elementwise join must have the same layout. */
static bool lies_right(const struct dpt_graph *graph,
                       const struct dpt_cuda_memory_layout *memory_layout)
{
    for (int32_t i = 1; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        const enum dpt_operation_class kind = kind_of(node);
        const struct dpt_cuda_node_layout *first = &memory_layout->node[node->inputs[0]];

        for (int32_t k = 0; memory_layout->node[i].live && k < node->n_inputs; k++) {
            const struct dpt_cuda_node_layout *x = &memory_layout->node[node->inputs[k]];

            if ((kind == DPT_CLASS_POOL || kind == DPT_CLASS_CONV || node->op == DPT_OP_CONCAT ||
                 node->op == DPT_OP_BATCHNORM) &&
                (node->in.h != x->h || node->in.w != x->w))
                return false;
            if (x->channels != first->channels && node->op != DPT_OP_CONCAT)
                return false;
        }
    }
    return true;
}

/* Whether the tensor of a node is in memory: the program computes it, or another stage gives it. */
static bool is_there(const struct dpt_program_spec *spec,
                     const struct dpt_cuda_memory_layout *memory_layout, int32_t i)
{
    return dpt_program_computes(spec, i) ||
           (spec->first > 0 &&
            memory_layout->node[spec->graph->nodes[spec->first].inputs[0]].tensor == i);
}

static void place_values(const struct dpt_program_spec *spec, int64_t micro,
                         struct dpt_cuda_memory_layout *memory_layout)
{
    int64_t *values = &memory_layout->bytes[DPT_CUDA_VALUES];
    const struct dpt_graph *graph = spec->graph;
    const struct dpt_cuda_node_layout *last = &memory_layout->node[memory_layout->last];

    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        struct dpt_cuda_node_layout *f = &memory_layout->node[i];

        if (!f->live)
            continue;
        f->wants_dy = spec->training && node->learns;
        f->there = is_there(spec, memory_layout, f->tensor);
        if (f->tensor != i || !f->there)
            continue;
        if (!dpt_cuda_is_joined(memory_layout, i))
            f->y = dpt_cuda_take(values, dpt_cuda_form_elements(f, micro) * memory_layout->element);
        if (dpt_cuda_ops[node->op]->saved != NULL && dpt_program_computes(spec, i) &&
            (f->wants_dy || (spec->training && node->op == DPT_OP_BATCHNORM && !node->by_running)))
            f->saved = dpt_cuda_take(values, dpt_cuda_ops[node->op]->saved(f, micro));
    }
    memory_layout->outputs = dpt_shape_size(&graph->nodes[memory_layout->last].out);
    memory_layout->canonical = last->h * last->w > 1;
    memory_layout->bytes[DPT_CUDA_OUTPUTS] =
        round_up(micro * memory_layout->outputs * (int64_t)sizeof(float), ALIGN) *
        (memory_layout->canonical && spec->training ? 2 : 1);
}

/* --- parameters ------------------------------------------------------------------------------- */

/* For another stage's node only its placement counts, on which its plans depend. */
static void place_range(const struct dpt_program_spec *spec, int64_t micro, int32_t first,
                        int32_t last, struct dpt_cuda_memory_layout *memory_layout)
{
    int64_t before[DPT_CUDA_REGIONS];

    for (int32_t i = first; i < last; i++) {
        memcpy(before, memory_layout->bytes, sizeof before);
        if (memory_layout->node[i].live && spec->graph->nodes[i].weight >= 0)
            dpt_cuda_ops[spec->graph->nodes[i].op]->place(spec, memory_layout, micro, i);
        if (!dpt_program_computes(spec, i))
            memcpy(memory_layout->bytes, before, sizeof before);
    }
}

/* Of units that do not follow one another, copies and gradients are never there at once. */
static void place_parameters(const struct dpt_program_spec *spec, int64_t micro,
                             struct dpt_cuda_memory_layout *memory_layout)
{
    static const enum dpt_cuda_region windows[] = {DPT_CUDA_COPIES, DPT_CUDA_DWEIGHTS};
    int64_t *bytes = memory_layout->bytes, most[2] = {0};

    place_range(spec, micro, 1, spec->units > 0 ? spec->unit[0] : spec->graph->n_nodes,
                memory_layout);
    for (int pass = 0; pass < 2; pass++) /* the first one measures */
        for (int k = 0; k < spec->units; k++) {
            for (int w = 0; w < 2; w++)
                bytes[windows[w]] = pass * (k % 2) * most[w];
            place_range(spec, micro, spec->unit[k], spec->unit[k + 1], memory_layout);
            for (int w = 0; w < 2 && pass == 0; w++)
                most[w] = bytes[windows[w]] > most[w] ? bytes[windows[w]] : most[w];
        }
    for (int w = 0; w < 2 && spec->units > 0; w++)
        bytes[windows[w]] = 2 * most[w];
    if (spec->units > 0)
        place_range(spec, micro, spec->unit[spec->units], spec->graph->n_nodes, memory_layout);
}

static void count_arenas(const struct dpt_program_spec *spec, int64_t micro,
                         struct dpt_cuda_memory_layout *memory_layout)
{
    const struct dpt_graph *graph = spec->graph;
    const int64_t state = graph->arena - graph->floats;
    const int64_t there = spec->units > 0 ? 2 * dpt_program_window(spec) : graph->floats;
    const int64_t floats = (there + state) * (int64_t)sizeof(float);
    const int64_t sub_batches = spec->sub_batch > 0 ? (spec->micro + micro - 1) / micro : 1;
    int64_t *bytes = memory_layout->bytes;
    const int levels = spec->training ? dpt_cuda_levels((int32_t)sub_batches) : 0;
    const int64_t past = DPT_TENSOR_ALIGN * 4 * (1 + (int64_t)spec->slices);

    bytes[DPT_CUDA_CONTROL] = sizeof(struct dpt_cuda_control);
    bytes[DPT_CUDA_STATE] = sizeof(struct dpt_cuda_state);
    bytes[DPT_CUDA_METRIC_SUMS] = sizeof(struct dpt_cuda_metric_sums);
    bytes[DPT_CUDA_INPUT] =
        dpt_program_computes(spec, 0) ? micro * dpt_shape_size(&graph->nodes[0].out) * 4 : 0;
    bytes[DPT_CUDA_LABELS] = bytes[DPT_CUDA_WEIGHTS] = micro * 4;
    bytes[DPT_CUDA_TARGETS] = micro * memory_layout->outputs * 4;
    bytes[DPT_CUDA_SAMPLE] = micro * 8;
    bytes[DPT_CUDA_PARAMS] = floats + (spec->slices > 0 ? past : 0);
    bytes[DPT_CUDA_GRADIENT] = spec->training ? floats + past : 0;
    bytes[DPT_CUDA_SUMS] = levels * floats;
    bytes[DPT_CUDA_COUNTERS] += 4; /* for the loss */
    bytes[DPT_CUDA_LOSSES] =
        (micro + DPT_CUDA_LOSS_ROWS - 1) / DPT_CUDA_LOSS_ROWS * DPT_CUDA_LOSS_SUMS * 8;
    bytes[DPT_CUDA_FOUND] = 2 * graph->n_nodes * (int64_t)8;
    if (dpt_cuda_has_branches(spec))
        bytes[DPT_CUDA_WORKSPACE] *= 2;
}

/* Kernels count in 32 bits what a layer gives for a micro-batch, and its weights as the libraries
 * read them. */
static enum dpt_status check_counts(const struct dpt_program_spec *spec, int64_t micro,
                                    const struct dpt_cuda_memory_layout *memory_layout,
                                    struct dpt_error *err)
{
    for (int32_t i = 0; i < spec->graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &spec->graph->nodes[i];
        const struct dpt_cuda_node_layout *f = &memory_layout->node[i];
        const int64_t sample = dpt_cuda_form_elements(f, 1);

        if (!f->live || !dpt_program_computes(spec, i))
            continue;
        if (f->copied > UINT32_MAX)
            return dpt_fail(err, DPT_BAD_JOB,
                            "%s: a GPU kernel cannot count its weights, which with padding are "
                            "%lld, more than %u",
                            node->name, (long long)f->copied, UINT32_MAX);
        if (sample * micro > UINT32_MAX)
            return dpt_fail(err, DPT_BAD_JOB,
                            "batch.micro: a GPU kernel cannot count the numbers that %lld samples "
                            "have at %s; %lld or less would do",
                            (long long)micro, node->name, (long long)(UINT32_MAX / sample));
    }
    return DPT_OK;
}

enum dpt_status dpt_cuda_memory_layout_make(const struct dpt_program_spec *spec, int32_t micro,
                                            struct dpt_cuda_memory_layout *memory_layout,
                                            struct dpt_error *err)
{
    const bool wide =
        spec->precision == DPT_PRECISION_FP32 || spec->precision == DPT_PRECISION_TF32;
    enum dpt_status status = DPT_OK;

    *memory_layout =
        (struct dpt_cuda_memory_layout){.element = wide ? 4 : 2, .lanes = wide ? 4 : 8};
    DPT_TRY(DPT_ALLOCATE(memory_layout->node, (size_t)spec->graph->n_nodes, "the model", err));
    find_live(spec->graph, memory_layout);
    join_relus(spec->graph, memory_layout);
    dpt_cuda_join_norms(spec, memory_layout);
    DPT_TRY(check(spec->graph, memory_layout, err));
    lay_out(spec, memory_layout);
    if (!lies_right(spec->graph, memory_layout)) {
        memory_layout->flattens = true;
        lay_out(spec, memory_layout);
    }
    place_values(spec, micro, memory_layout);
    if (spec->training)
        DPT_TRY(dpt_cuda_place_gradients(spec, micro, memory_layout, err));
    place_parameters(spec, micro, memory_layout);
    count_arenas(spec, micro, memory_layout);
    DPT_TRY(check_counts(spec, micro, memory_layout, err));
out:
    return status;
}

void dpt_cuda_memory_layout_release(struct dpt_cuda_memory_layout *memory_layout)
{
    dpt_free(memory_layout->node);
    memory_layout->node = NULL;
}

int64_t dpt_cuda_regions_sum(const struct dpt_cuda_memory_layout *memory_layout,
                             enum dpt_cuda_region first, enum dpt_cuda_region end)
{
    int64_t sum = 0;

    for (int i = (int)first; i < (int)end; i++)
        sum += round_up(memory_layout->bytes[i], ALIGN);
    return sum;
}
