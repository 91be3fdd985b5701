#include "core/backend/bf16.h"
#include "core/backend/cpu/bf16/bf16_gemm.h"
#include "core/backend/cpu/program/program.h"

/* y = x W^T + b on the canonical weights where they lie. In a team each thread computes a part of
 * the outputs, then of the weights' gradient for the same outputs, then of the inputs' gradient.
 *
 * The first way that fits computes all passes: a rule of the layer's shape, of the precision and of
 * the instruction set, never of the number of ranks or threads. */

enum {
    ROUNDED = 1 << 16, /* weights that a thread rounds at a time */
    PACKED = 64,       /* inputs or outputs whose weights it packs */
    FEW_ROWS = 32,
};

struct dense;

struct way {
    const char *name; /* as `bench` prints it */
    bool (*fits)(const struct dpt_cpu_program *program, const struct dense *dense);
    void (*plan)(struct dpt_cpu_program *program, struct dpt_cpu_node *node);
    void (*plan_backward)(struct dpt_cpu_program *program, struct dpt_cpu_node *node);
    void (*refresh)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int thread,
                    int *task);
    void (*forward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
    void (*backward)(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node);
};

struct dense {
    struct dpt_gemm gemm;
    const struct way *way;
    int transposed; /* buffer: x, transposed; forward's alone */
    /* Rounded operands, in bf16: buffers of the node's input, in forward and in backward, of the
     * gradient of its output, and of the columns of weights that other ranks send; and the weights,
     * which stay NULL in fp32. */
    int x, back_x, dy, columns;
    float *weights;
    /* The CPU's bf16 instructions instead, if it has some (NULL: none): buffers of the packed
     * operands. */
    const struct dpt_bf16_kernels *bf16;
    int packed[DPT_BF16_OPERANDS];
    float *bf16_weights, *bf16_data; /* packed weights; NULL: none */
    bool keeps; /* several micro-batches' operands of the weights' gradient (dpt_cpu_kept) */
};

/* Whether several ranks share the layer's outputs, and what it passes back. */
static bool is_divided(const struct dpt_cpu_node *node)
{
    return node->graph->divided;
}

/* The product for the rows that exist. */
static struct dpt_gemm gemm_of(const struct dpt_cpu_run *run, const struct dense *dense)
{
    struct dpt_gemm p = dense->gemm;

    p.rows = run->rows;
    return p;
}

/* Narrow layers in steps of a tile, so that all have work; else no two threads write to one line.
 */
static void output_part(const struct dpt_cpu_run *run, const struct dpt_gemm *p, int64_t *first,
                        int64_t *last)
{
    dpt_cpu_part(run, p->outputs, p->outputs <= 64 ? DPT_TILE_ROWS : DPT_TILE_LANES, first, last);
}

/* This thread's part of this rank's share of a tensor-parallel layer. */
static void range_part(const struct dpt_cpu_run *run, const struct dpt_range *range, int64_t *first,
                       int64_t *last)
{
    dpt_cpu_part(run, range->last - range->first, DPT_TILE_LANES, first, last);
    *first += range->first;
    *last += range->first;
}

/* Sends each rank's results to all ranks. */
static void gather(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, bool gradient,
                   float *values)
{
    const struct dpt_divided *divided = run->pass->divided;

    dpt_cpu_barrier_within(run, node, gradient ? DPT_PASS_BACKWARD : DPT_PASS_FORWARD);
    if (run->thread == 0)
        divided->gather(divided->arg, node->number, gradient, values, run->rows);
    if (gradient) /* it is read at once, and else after the node's barrier */
        dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
}

/* --- in bf16, by the CPU's own instructions --------------------------------------------------- */

/* With few rows, weights are packed once per step, not for each micro-batch and thread. From 33
 * rows on a rank's part of a step is often one micro-batch, for which packing twice costs more than
 * it saves (784-4096-4096-10, 2 ranks of 64 samples: 5 % of a step). Packing for forward and
 * backward from one read would gain 0.5 % (mnistcnn), so the two are packed apart. */
static bool packs_weights(const struct dpt_cpu_node *node, const struct dense *dense)
{
    return dense->gemm.rows <= FEW_ROWS && !is_divided(node);
}

/* Takes buffers for packed operands (a bit each) while a pass is planned. */
static void take_packed(struct dpt_cpu_program *program, struct dense *dense, unsigned operands)
{
    for (int i = 0; i < DPT_BF16_OPERANDS; i++)
        if (operands >> i & 1)
            dense->packed[i] =
                dpt_cpu_take(program, dpt_bf16_gemm_packed(&dense->gemm, (enum dpt_bf16_operand)i));
    for (int i = 0; i < DPT_BF16_OPERANDS; i++)
        if (operands >> i & 1)
            dpt_cpu_give(program, dense->packed[i]);
}

/* Takes buffers for the packed operands of the weights' gradient, of all micro-batches that are
 * added. */
static void keep_packed(struct dpt_cpu_program *program, struct dense *dense)
{
    const enum dpt_bf16_operand kept[] = {DPT_BF16_INPUT_ROWS, DPT_BF16_OUTPUT_ROWS};

    program->keeps = true;
    for (int i = 0; i < 2; i++)
        dense->packed[kept[i]] = dpt_cpu_reserve(
            program, dpt_cpu_kept(program) * dpt_bf16_gemm_packed(&dense->gemm, kept[i]));
}

static bool fits_bf16(const struct dpt_cpu_program *program, const struct dense *dense)
{
    return dpt_cpu_rounds(program) && dense->gemm.inputs * dense->gemm.outputs > DPT_SMALL &&
           dpt_bf16_kernels(dense->gemm.isa) != NULL;
}

static void plan_bf16(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    struct dense *dense = node->own;

    dense->bf16 = dpt_bf16_kernels(dense->gemm.isa);
    dense->gemm.rounds = true;
    dpt_cpu_write(program, node, DPT_LAYOUT_NCHW);
    take_packed(program, dense, 1u << DPT_BF16_INPUTS);
    if (packs_weights(node, dense))
        dpt_cpu_copy(program, node, dpt_bf16_gemm_packed_weights(&dense->gemm, false),
                     &dense->bf16_weights);
    dpt_cpu_want_scratch(program, dpt_bf16_gemm_scratch(&dense->gemm));
}

static void plan_bf16_backward(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    struct dense *dense = node->own;

    /* Else the operands would be no smaller than the gradient. */
    dense->keeps = dpt_cpu_kept(program) > 1 && dense->gemm.rows <= dense->gemm.outputs;
    if (dense->keeps)
        keep_packed(program, dense);
    take_packed(program, dense,
                1u << DPT_BF16_GRADIENT |
                    (dense->keeps ? 0 : 1u << DPT_BF16_INPUT_ROWS | 1u << DPT_BF16_OUTPUT_ROWS));
    if (node->wants_dx && packs_weights(node, dense))
        dpt_cpu_copy(program, node, dpt_bf16_gemm_packed_weights(&dense->gemm, true),
                     &dense->bf16_data);
}

static void pack_weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, bool data,
                         float *packed, int thread, int *task)
{
    const struct dense *dense = node->own;
    const struct dpt_bf16_gemm g = {.p = dense->gemm, .kernels = dense->bf16};
    const int64_t n = data ? g.p.inputs : g.p.outputs;

    for (int64_t at = 0; at < n; at += PACKED)
        if (dpt_cpu_own_task(run, thread, task))
            dpt_bf16_gemm_pack_weights(&g, data, dpt_cpu_param(run, node->graph->weight), at,
                                       n - at < PACKED ? n : at + PACKED, packed);
}

static void refresh_bf16(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node, int thread,
                         int *task)
{
    const struct dense *dense = node->own;

    if (dense->bf16_weights != NULL)
        pack_weights(run, node, false, dense->bf16_weights, thread, task);
    if (dense->bf16_data != NULL)
        pack_weights(run, node, true, dense->bf16_data, thread, task);
}

static struct dpt_bf16_gemm bf16_of(const struct dpt_cpu_run *run, const struct dense *dense)
{
    return (struct dpt_bf16_gemm){.p = gemm_of(run, dense),
                                  .kernels = dense->bf16,
                                  .forward_weights = dense->bf16_weights,
                                  .data_weights = dense->bf16_data};
}

/* A packed operand; if operands are kept, that of this micro-batch, or the first one's. */
static float *packed_at(const struct dpt_cpu_run *run, const struct dense *dense,
                        enum dpt_bf16_operand operand, int32_t micro_batch)
{
    return dpt_cpu_buffer(run, dense->packed[operand]) +
           micro_batch * dpt_bf16_gemm_packed(&dense->gemm, operand);
}

/* This thread's part of an operand of so many columns, packed for all. */
static void pack(const struct dpt_cpu_run *run, const struct dense *dense,
                 const struct dpt_bf16_gemm *g, enum dpt_bf16_operand operand, int buffer,
                 struct dpt_range columns)
{
    const bool kept = operand == DPT_BF16_INPUT_ROWS || operand == DPT_BF16_OUTPUT_ROWS;
    int64_t first, last;

    dpt_cpu_part(run, columns.last - columns.first, 2 * DPT_BF16_SIDE, &first, &last);
    dpt_bf16_gemm_pack(
        g, operand, dpt_cpu_buffer(run, buffer), columns.first + first, columns.first + last,
        packed_at(run, dense, operand, dense->keeps && kept ? run->batch->before : 0));
}

static struct dpt_range all_outputs(const struct dpt_cpu_node *node, const struct dense *dense)
{
    return is_divided(node) ? node->graph->own_outputs : (struct dpt_range){0, dense->gemm.outputs};
}

static void bf16_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_bf16_gemm g = bf16_of(run, dense);
    const struct dpt_range outputs = all_outputs(node, dense);
    float *y = dpt_cpu_buffer(run, node->y);
    int64_t first, last;

    pack(run, dense, &g, DPT_BF16_INPUTS, node->x, (struct dpt_range){0, g.p.inputs});
    dpt_cpu_barrier_within(run, node, DPT_PASS_FORWARD);
    range_part(run, &outputs, &first, &last);
    dpt_bf16_gemm_forward(&g, dpt_cpu_buffer(run, dense->packed[DPT_BF16_INPUTS]),
                          dpt_cpu_param(run, node->graph->weight),
                          dpt_cpu_param(run, node->graph->bias), first, last, run->scratch, y);
    if (is_divided(node))
        gather(run, node, false, y);
}

/* The gradients of weights and bias, of this thread's outputs. */
static void bf16_weights(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                         const struct dpt_bf16_gemm *g)
{
    const struct dense *dense = node->own;
    const struct dpt_range outputs = all_outputs(node, dense);
    struct dpt_bf16_gemm all = *g;
    const int32_t weight = node->graph->weight;
    float *db = dpt_cpu_gradient(run, node->graph->bias);
    int64_t first, last;

    all.several = dense->keeps ? run->batch->before + 1 : 0;
    output_part(run, &g->p, &first, &last);
    if (db != NULL)
        dpt_gemm_bias(&g->p, dpt_cpu_buffer(run, node->dy), run->add, first, last, db);
    range_part(run, &outputs, &first, &last);
    if (run->batch->squares != NULL)
        all.squares = run->batch->squares[weight];
    if (dpt_graph_updates(run->program->spec.graph, weight) && !(dense->keeps && run->batch->more))
        dpt_bf16_gemm_weights(&all, dpt_cpu_buffer(run, dense->packed[DPT_BF16_OUTPUT_ROWS]),
                              dpt_cpu_buffer(run, dense->packed[DPT_BF16_INPUT_ROWS]),
                              dense->keeps ? run->adds : run->add, first, last, run->scratch,
                              dpt_cpu_gradient(run, weight));
}

static void bf16_data(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                      const struct dpt_bf16_gemm *g)
{
    const struct dense *dense = node->own;
    const float *gradient = dpt_cpu_buffer(run, dense->packed[DPT_BF16_GRADIENT]);
    const struct dpt_divided *divided = is_divided(node) ? run->pass->divided : NULL;
    const struct dpt_range inputs =
        divided != NULL ? node->graph->own_inputs : (struct dpt_range){0, g->p.inputs};
    const float *w = divided != NULL ? divided->columns(divided->arg, node->number)
                                     : dpt_cpu_param(run, node->graph->weight);
    float *dx = dpt_cpu_buffer(run, node->dx);
    int64_t first, last;

    range_part(run, &inputs, &first, &last);
    dpt_bf16_gemm_data(g, gradient, w, first, last, run->scratch, dx);
    if (divided != NULL)
        gather(run, node, true, dx);
}

static void bf16_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_bf16_gemm g = bf16_of(run, dense);

    pack(run, dense, &g, DPT_BF16_INPUT_ROWS, node->x, (struct dpt_range){0, g.p.inputs});
    pack(run, dense, &g, DPT_BF16_OUTPUT_ROWS, node->dy, all_outputs(node, dense));
    if (node->wants_dx)
        pack(run, dense, &g, DPT_BF16_GRADIENT, node->dy, (struct dpt_range){0, g.p.outputs});
    dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    bf16_weights(run, node, &g);
    if (!node->wants_dx)
        return;
    dpt_cpu_mark(run, node, DPT_PASS_WEIGHTS);
    bf16_data(run, node, &g);
}

/* --- by fp32's instructions ------------------------------------------------------------------- */

static bool fits_small(const struct dpt_cpu_program *program, const struct dense *dense)
{
    (void)program;
    return dense->gemm.inputs * dense->gemm.outputs <= DPT_SMALL;
}

static bool fits_tiles(const struct dpt_cpu_program *program, const struct dense *dense)
{
    (void)program, (void)dense;
    return true;
}

/* Plans the node's operands. */
static void plan_small(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    struct dense *dense = node->own;

    dense->x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dpt_cpu_write(program, node, DPT_LAYOUT_NCHW);
    if (dpt_cpu_rounds(program))
        dpt_cpu_copy(program, node, program->spec.graph->tensors[node->graph->weight].count,
                     &dense->weights);
    dpt_cpu_give_rounded(program, node->x, dense->x);
}

static void plan_tiles(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    struct dense *dense = node->own;

    dense->transposed = dpt_cpu_take(program, dpt_gemm_transposed(&dense->gemm));
    plan_small(program, node);
    dpt_cpu_give(program, dense->transposed);
    dpt_cpu_want_scratch(program, dpt_gemm_scratch(&dense->gemm));
}

static void plan_plain_backward(struct dpt_cpu_program *program, struct dpt_cpu_node *node)
{
    struct dense *dense = node->own;

    dense->back_x = dpt_cpu_take_rounded(program, node->x, node->x_floats);
    dense->dy = dpt_cpu_take_rounded(program, node->dy, node->y_floats);
    dense->columns = DPT_CPU_NONE;
    if (is_divided(node) && node->wants_dx)
        dense->columns =
            dpt_cpu_take_rounded(program, DPT_CPU_NONE, dense->gemm.outputs * dense->gemm.row);
    dpt_cpu_give_rounded(program, node->x, dense->back_x);
    dpt_cpu_give_rounded(program, node->dy, dense->dy);
    dpt_cpu_give_rounded(program, DPT_CPU_NONE, dense->columns);
}

static void refresh_plain(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                          int thread, int *task)
{
    const struct dense *dense = node->own;
    const int64_t n = run->program->spec.graph->tensors[node->graph->weight].count;

    for (int64_t at = 0; dense->weights != NULL && at < n; at += ROUNDED) {
        const int64_t left = n - at < ROUNDED ? n - at : ROUNDED;

        if (dpt_cpu_own_task(run, thread, task))
            dpt_bf16_round(left, dpt_cpu_param(run, node->graph->weight) + at, dense->weights + at);
    }
}

static const float *weights_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;

    return dpt_cpu_rounds(run->program) ? dense->weights : dpt_cpu_param(run, node->graph->weight);
}

/* Rounds an operand; each thread rounds its rows. */
static const float *operand(const struct dpt_cpu_run *run, int buffer, int rounded, int64_t width)
{
    int64_t first, last;

    dpt_cpu_part(run, run->rows, 1, &first, &last);
    return dpt_cpu_round(run, buffer, rounded, first * width, last * width);
}

/* The weights of the inputs whose gradient this rank computes. */
static const float *columns_of(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dpt_divided *divided = run->pass->divided;
    const struct dense *dense = node->own;
    const float *columns = divided->columns(divided->arg, node->number);
    int64_t first, last;

    if (dense->columns == DPT_CPU_NONE)
        return columns;
    dpt_cpu_part(run, dense->gemm.outputs * dense->gemm.row, DPT_TILE_LANES, &first, &last);
    dpt_bf16_round(last - first, columns + first, dpt_cpu_buffer(run, dense->columns) + first);
    dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    return dpt_cpu_buffer(run, dense->columns);
}

static void small_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_gemm p = gemm_of(run, dense);
    const float *x = operand(run, node->x, dense->x, dense->gemm.inputs);

    if (dpt_cpu_rounds(run->program))
        dpt_cpu_barrier_within(run, node, DPT_PASS_FORWARD);
    if (run->thread == 0)
        dpt_small_forward(&p, x, weights_of(run, node), dpt_cpu_param(run, node->graph->bias),
                          dpt_cpu_buffer(run, node->y));
}

static void small_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_gemm p = gemm_of(run, dense);
    const float *x = operand(run, node->x, dense->back_x, dense->gemm.inputs);
    const float *dy = operand(run, node->dy, dense->dy, dense->gemm.outputs);

    if (dpt_cpu_rounds(run->program))
        dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    if (run->thread == 0)
        dpt_small_backward(&p, dy, x, weights_of(run, node), run->add,
                           dpt_cpu_gradient(run, node->graph->weight),
                           dpt_cpu_gradient(run, node->graph->bias),
                           node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL);
}

static void tiles_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_gemm own = gemm_of(run, dense), *p = &own;
    const float *x = operand(run, node->x, dense->x, dense->gemm.inputs);
    const float *w = weights_of(run, node);
    const float *bias = dpt_cpu_param(run, node->graph->bias);
    float *y = dpt_cpu_buffer(run, node->y);
    int64_t first, last;

    if (dpt_cpu_rounds(run->program))
        dpt_cpu_barrier_within(run, node, DPT_PASS_FORWARD);
    dpt_cpu_part(run, p->inputs, DPT_TILE_LANES, &first, &last);
    dpt_gemm_transpose(p, x, first, last, dpt_cpu_buffer(run, dense->transposed));
    dpt_cpu_barrier_within(run, node, DPT_PASS_FORWARD);
    if (is_divided(node))
        range_part(run, &node->graph->own_outputs, &first, &last);
    else
        output_part(run, p, &first, &last);
    dpt_gemm_forward(p, dpt_cpu_buffer(run, dense->transposed), w, bias, first, last, run->scratch,
                     y);
    if (is_divided(node))
        gather(run, node, false, y);
}

static void tiles_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    const struct dense *dense = node->own;
    const struct dpt_gemm own = gemm_of(run, dense), *p = &own;
    const float *x = operand(run, node->x, dense->back_x, dense->gemm.inputs);
    const float *dy = operand(run, node->dy, dense->dy, dense->gemm.outputs);
    const float *w = weights_of(run, node);
    float *dw = dpt_cpu_gradient(run, node->graph->weight);
    float *db = dpt_cpu_gradient(run, node->graph->bias);
    float *dx = node->wants_dx ? dpt_cpu_buffer(run, node->dx) : NULL;
    int64_t first, last;

    if (dpt_cpu_rounds(run->program))
        dpt_cpu_barrier_within(run, node, DPT_PASS_BACKWARD);
    output_part(run, p, &first, &last);
    if (db != NULL)
        dpt_gemm_bias(p, dy, run->add, first, last, db);
    if (is_divided(node))
        range_part(run, &node->graph->own_outputs, &first, &last);
    if (dpt_graph_updates(run->program->spec.graph, node->graph->weight))
        dpt_gemm_weights(p, dy, x, run->add, first, last, run->scratch, dw);
    if (dx == NULL)
        return;
    dpt_cpu_mark(run, node, DPT_PASS_WEIGHTS);
    if (is_divided(node)) {
        range_part(run, &node->graph->own_inputs, &first, &last);
        dpt_gemm_data(p, dy, columns_of(run, node), first, last, run->scratch, dx);
        gather(run, node, true, dx);
        return;
    }
    dpt_cpu_part(run, p->inputs, DPT_TILE_LANES, &first, &last);
    dpt_gemm_data(p, dy, w, first, last, run->scratch, dx);
}

/* --- the table -------------------------------------------------------------------------------- */

/* Plain loops, by one thread, where the tiles are not worth it; each rank then computes the layer
 * alone. */
static const struct way ways[] = {
    {"bf16", fits_bf16, plan_bf16, plan_bf16_backward, refresh_bf16, bf16_forward, bf16_backward},
    {"small", fits_small, plan_small, plan_plain_backward, refresh_plain, small_forward,
     small_backward},
    {"tiles", fits_tiles, plan_tiles, plan_plain_backward, refresh_plain, tiles_forward,
     tiles_backward},
};

static enum dpt_status plan_dense(struct dpt_cpu_program *program, struct dpt_cpu_node *node,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dense *dense = node->own;

    dense->gemm = (struct dpt_gemm){.rows = program->spec.micro,
                                    .inputs = dpt_shape_size(&node->in),
                                    .outputs = node->out.c,
                                    .sub_batch = dpt_cpu_sub_batch(program),
                                    .isa = dpt_cpu_isa()};
    if (is_divided(node)) {
        dense->gemm.first_output = node->graph->own_outputs.first;
        dense->gemm.first_input = node->graph->own_inputs.first;
        dense->gemm.row = node->graph->own_inputs.last - node->graph->own_inputs.first;
    }
    DPT_TRY(dpt_cpu_read(program, node, DPT_LAYOUT_NCHW, err));
    dense->way = ways;
    while (!dense->way->fits(program, dense)) /* the last one always does */
        dense->way++;
    dense->way->plan(program, node);
out:
    return status;
}

static enum dpt_status plan_dense_backward(struct dpt_cpu_program *program,
                                           struct dpt_cpu_node *node, struct dpt_error *err)
{
    const struct dense *dense = node->own;

    (void)err;
    dense->way->plan_backward(program, node);
    return DPT_OK;
}

static void refresh_dense(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node,
                          int thread, int *task)
{
    ((const struct dense *)node->own)->way->refresh(run, node, thread, task);
}

static void dense_forward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    ((const struct dense *)node->own)->way->forward(run, node);
}

static void dense_backward(const struct dpt_cpu_run *run, const struct dpt_cpu_node *node)
{
    ((const struct dense *)node->own)->way->backward(run, node);
}

static const char *name_way(const struct dpt_cpu_node *node, enum dpt_span_pass pass)
{
    (void)pass;
    return ((const struct dense *)node->own)->way->name;
}

const struct dpt_cpu_op dpt_cpu_dense = {
    .plan = plan_dense,
    .plan_backward = plan_dense_backward,
    .refresh = refresh_dense,
    .forward = dense_forward,
    .backward = dense_backward,
    .way = name_way,
    .own = sizeof(struct dense),
    .shares = true,
};
