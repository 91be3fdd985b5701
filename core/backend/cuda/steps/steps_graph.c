#include "core/backend/cuda/steps/steps.h"
#include "core/base/span.h"

/* The launches of a step, and the graphs that are captured from them. dpt_cuda_capture says what
 * must not be done during a capture. */

/* --- samples ---------------------------------------------------------------------------------- */

static void add_rates(const struct dpt_cuda_steps *s, struct dpt_cuda_feed_args *a)
{
    dpt_cuda_add_feed(a, s->step_rates, dpt_cuda_steps_rates(s),
                      (size_t)s->n_groups * sizeof *s->rates);
}

/* Loads micro-batch m from the staging buffer for program p, and copies what else of it that reads.
 * Stages after the first get their input from others. */
static enum dpt_status enqueue_samples(struct dpt_cuda_steps *s, struct dpt_cuda_program *p,
                                       int32_t m, bool rates, struct dpt_error *err)
{
    const struct dpt_cuda_staging_layout *at = &s->staging_layout;
    const unsigned char *from = s->staging_buffers[s->staging_buffer].device;
    void *const to[DPT_CUDA_FIELDS] = {
        [DPT_CUDA_STAGED_LABELS] = p->labels,
        [DPT_CUDA_STAGED_TARGETS] = p->targets,
        [DPT_CUDA_STAGED_WEIGHTS] = p->weights,
        [DPT_CUDA_STAGED_SAMPLE] = p->sample,
    };
    const size_t rows = (size_t)p->micro;
    struct dpt_cuda_samples samples = {.control = (const void *)from};
    const void *field[DPT_CUDA_FIELDS];

    for (int i = 0; i < DPT_CUDA_FIELDS; i++) {
        field[i] = at->row[i] == 0 ? NULL : from + at->offset[i] + (size_t)m * rows * at->row[i];
        if (to[i] != NULL)
            dpt_cuda_add_feed(&samples.feed, to[i], field[i], rows * at->row[i]);
    }
    samples.input = field[DPT_CUDA_STAGED_INPUT];
    samples.sample = field[DPT_CUDA_STAGED_SAMPLE];
    samples.move = field[DPT_CUDA_STAGED_MOVE];
    samples.control += m;
    dpt_cuda_add_feed(&samples.feed, p->control, dpt_cuda_steps_batch(s, m), sizeof *p->control);
    if (rates)
        add_rates(s, &samples.feed);
    return s->spec.stage > 0
               ? dpt_cuda_program_launch(p, DPT_CUDA_K_feed, &samples.feed, DPT_SPAN_DATA, err)
               : dpt_cuda_enqueue_samples(p, &samples, err);
}

enum dpt_status dpt_cuda_steps_load(struct dpt_cuda_steps *s, struct dpt_cuda_program *p, int32_t m,
                                    struct dpt_error *err)
{
    return enqueue_samples(s, p, m, false, err);
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Enqueues forward, loss and backward of the micro-batch whose samples the program holds. last: of
 * the step; updates: the update follows at once. Its norm takes the last micro-batch's gradients in
 * the layers' layout, unless it sums in chunks. */
static enum dpt_status enqueue_passes(struct dpt_cuda_steps *s, bool add, bool last, bool updates,
                                      struct dpt_error *err)
{
    const struct dpt_graph *g = s->p->spec.graph;
    const bool cut = last && s->n_buckets > 0, tree = s->tree != NULL;
    float *tail = last || tree ? dpt_cuda_steps_tail(s) : NULL;
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_run_list(s->p, DPT_CUDA_FORWARD_LIST, true, add, err));
    DPT_TRY(dpt_cuda_enqueue_loss(s->p, add, tail, err));
    dpt_cuda_branches_begin(s->p);
    DPT_TRY(dpt_cuda_enqueue_backward(s->p, add, cut ? dpt_cuda_buckets_done : NULL, s, err));
    if (cut)
        DPT_TRY(dpt_cuda_buckets_done(s, 0, err));
    else if (tree || !(last && updates))
        DPT_TRY(dpt_cuda_enqueue_gradient(s->p, 0, g->n_nodes, add, err));
    DPT_TRY(dpt_cuda_branches_join(s->p, err));
out:
    dpt_cuda_branches_drop(s->p);
    return status;
}

/* Enqueues a pass, by the program of its flight; only: as in a replay. With units their weights are
 * there. Of the whole model the pass back through the last one comes at once after forward, by what
 * was derived for that. */
static enum dpt_status enqueue_pass(struct dpt_cuda_steps *s, bool back, int only,
                                    struct dpt_error *err)
{
    const int units = dpt_cuda_steps_units(s), unit = only % units;
    struct dpt_cuda_program *p = dpt_cuda_flight(s->p, only / units);
    const int32_t *node = p->spec.unit;
    const bool turns = back && unit == units - 1;
    enum dpt_status status = DPT_OK;

    if (turns && dpt_cuda_steps_ends(s))
        DPT_TRY(dpt_cuda_enqueue_loss(p, false, dpt_cuda_steps_tail(s), err));
    if (s->units != NULL && (!turns || dpt_cuda_steps_staged(s)))
        DPT_TRY(dpt_cuda_enqueue_layouts(p, node[unit], node[unit + 1], err));
    if (s->units != NULL)
        return dpt_cuda_enqueue_unit(p, back, unit, err);
    if (!back)
        return dpt_cuda_run_list(p, DPT_CUDA_FORWARD_LIST, true, false, err);
    DPT_TRY(dpt_cuda_enqueue_backward(p, false, NULL, NULL, err));
    DPT_TRY(dpt_cuda_enqueue_gradient(p, 0, p->spec.graph->n_nodes, false, err));
out:
    return status;
}

/* A rank without micro-batches in this step contributes zeros. */
static enum dpt_status enqueue_zeros(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const size_t words = (size_t)s->p->spec.graph->arena + DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(&ctx->lib, cuMemsetD32Async(dpt_cuda_ptr(s->p->gradient), 0, words, ctx->compute));
    DPT_TRY(dpt_cuda_buckets_done(s, 0, err));
out:
    return status;
}

/* computed: the last micro-batch's passes stand before it in the same graph. */
static struct dpt_cuda_norm_args norm_of(const struct dpt_cuda_steps *s, bool computed)
{
    const struct dpt_cuda_program *p = s->p;
    const int64_t floats = p->spec.graph->floats;

    return (struct dpt_cuda_norm_args){
        .gradient = s->units != NULL ? s->units->gradient : p->gradient,
        .statistics = dpt_cuda_at(p, p->gradient, floats),
        .tail = dpt_cuda_steps_tail(s),
        .sums = true,
        .rates = s->step_rates,
        .state = p->state,
        .partial = s->partial,
        .counter = s->counter,
        .n = s->units != NULL ? s->slot_floats + s->n_pieces * s->units->rest : floats,
        .state_n = p->spec.graph->arena - floats,
        .copies = computed && s->chunk == NULL ? s->gradients : (struct dpt_cuda_copies){0},
        .chunk = s->chunk,
        .listed = s->listed,
        .chunks = s->chunks,
        .ordered = s->spec.tree && s->spec.clip > 0,
        .shared = dpt_cuda_steps_shared(s),
        .add = s->micros > 1,
        .clip = s->spec.clip,
        .skip = s->spec.skip,
        .scaled = p->spec.precision == DPT_PRECISION_FP16,
    };
}

/* A rank that adds up some of the chunks only leaves zeros for the others. */
static enum dpt_status enqueue_norm(struct dpt_cuda_steps *s, bool computed, struct dpt_error *err)
{
    const struct dpt_cuda_norm_args norm = norm_of(s, computed);
    enum dpt_status status = DPT_OK;

    if (norm.shared == DPT_CUDA_SHARED_CHUNKS)
        DPT_CUDA_TRY(&s->p->ctx.lib,
                     cuMemsetD8Async(dpt_cuda_ptr(s->partial), 0,
                                     (size_t)s->chunks * sizeof *s->partial, s->p->ctx.compute));
    DPT_TRY(dpt_cuda_program_launch(
        s->p, s->spec.tree || s->spec.shards ? DPT_CUDA_K_norm_chunks : DPT_CUDA_K_norm, &norm,
        DPT_SPAN_NORM, err));
out:
    return status;
}

/* piece: of which this rank updates its slice; NULL: it updates everything, with units the state
 * alone. */
static enum dpt_status enqueue_rule(struct dpt_cuda_steps *s, const struct dpt_cuda_slices *piece,
                                    struct dpt_error *err)
{
    const struct dpt_cuda_program *p = s->p;
    const int64_t floats = p->spec.graph->floats, arena = p->spec.graph->arena;
    const int64_t first = piece != NULL      ? piece->first + s->spec.rank * piece->width
                          : s->units != NULL ? floats
                                             : 0;
    const int64_t end = piece == NULL                       ? arena
                        : first + piece->width < piece->end ? first + piece->width
                                                            : piece->end;
    const int own = s->spec.rule.slots - (s->spec.average > 0);
    float *slot[DPT_MAX_SLOTS];
    struct dpt_cuda_update_args update = {
        .params = p->params,
        .gradient = p->gradient,
        .group = s->group,
        .rates = s->step_rates,
        .state = p->state,
        .running = s->running,
        .whole = s->spec.whole,
        .tail = dpt_cuda_steps_tail(s),
        .n = floats,
        .state_n = arena - floats,
        .first = first,
        .end = end < arena ? end : arena,
        .copies = piece == NULL && s->units == NULL ? s->copies : (struct dpt_cuda_copies){0},
        .scalars = dpt_rule_scalars(&s->spec.rule, &s->groups[0], 0, 1),
    };
    enum dpt_status status = DPT_OK;

    if (update.end <= first)
        return DPT_OK;
    if (s->units != NULL && piece != NULL) {
        update.params = dpt_cuda_shifted(s->units->params, piece, first);
        update.gradient = dpt_cuda_begin_of(dpt_cuda_slices_sum_at(s, piece), first);
    } else if (s->units != NULL) {
        update.params = dpt_cuda_begin_of(dpt_cuda_at(p, p->params, floats), floats);
        update.gradient = dpt_cuda_begin_of(dpt_cuda_at(p, p->gradient, floats), floats);
    }
    for (int k = 0; k < s->spec.rule.slots; k++)
        slot[k] = piece != NULL ? dpt_cuda_shifted(s->slot[k], piece, first) : s->slot[k];
    for (int k = 0; k < own && k < 2; k++)
        update.slot[k] = slot[k];
    DPT_TRY(dpt_cuda_program_launch(s->p, dpt_cuda_kernel_of_rule(s->spec.rule.kind), &update,
                                    DPT_SPAN_OPTIMIZER, err));
    if (s->spec.average > 0) { /* running statistics and copies have theirs by now */
        update.end = update.end < floats ? update.end : floats;
        update.copies = (struct dpt_cuda_copies){0};
        update.slot[0] = slot[own];
        update.slot[1] = NULL;
        update.scalars.factor[0] = (float)s->spec.average;
        if (update.end > first)
            DPT_TRY(dpt_cuda_program_launch(s->p, dpt_cuda_kernel_of_rule(DPT_RULE_AVERAGE),
                                            &update, DPT_SPAN_OPTIMIZER, err));
    }
out:
    return status;
}

/* One thread adds up the norm that lines show, beside the update. */
static enum dpt_status enqueue_shown_norm(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_program *p = s->p;
    const struct dpt_cuda_shown_args args = {s->partial, dpt_cuda_steps_tail(s), &p->state->shown,
                                             s->chunks};
    enum dpt_status status = DPT_OK;
    CUstream aside;

    dpt_cuda_branches_begin(s->p);
    if (!dpt_cuda_steps_shows(s))
        return DPT_OK;
    DPT_TRY(dpt_cuda_branches_fork(s->p, &aside, err));
    DPT_TRY(dpt_cuda_program_launch(s->p, DPT_CUDA_K_norm_in_order, &args, DPT_SPAN_NORM, err));
out:
    dpt_cuda_branches_return(s->p);
    return status;
}

static enum dpt_status enqueue_update(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_norm_args norm = norm_of(s, false);
    enum dpt_status status = DPT_OK;

    if (dpt_cuda_steps_apart(s))
        DPT_TRY(dpt_cuda_program_launch(s->p, DPT_CUDA_K_norm_decide, &norm, DPT_SPAN_NORM, err));
    DPT_TRY(enqueue_shown_norm(s, err));
    if (!s->spec.shards || s->units != NULL)
        DPT_TRY(enqueue_rule(s, NULL, err));
    for (int i = 0; i < s->n_pieces && s->spec.shards; i++)
        if (s->units == NULL || s->pieces[i].bucket > 0)
            DPT_TRY(enqueue_rule(s, &s->pieces[i], err));
    DPT_TRY(dpt_cuda_branches_join(s->p, err));
out:
    dpt_cuda_branches_drop(s->p);
    return status;
}

enum { ALL = -1 };

/* Whether sums over the ranks follow a micro-batch. */
static bool is_last(const struct dpt_cuda_steps *s, int32_t m)
{
    return s->spec.round_robin || m == s->micros - 1;
}

/* only: as in a replay; or the micro-batch of which alone the passes are
 * enqueued, without its samples; the last one's are followed by all that comes after them. ALL:
 * the whole step. */
static enum dpt_status enqueue_step(struct dpt_cuda_steps *s, unsigned parts, int32_t only,
                                    struct dpt_error *err)
{
    const bool computes = parts & DPT_CUDA_COMPUTE, updates = parts & DPT_CUDA_NORM;
    const bool tree = s->tree != NULL;
    enum dpt_status status = DPT_OK;
    struct dpt_cuda_feed_args rates = {0};
    bool last;

    s->next = 0;
    for (int32_t m = 0; computes && m < s->micros; m++) {
        if (only != ALL && m != only)
            continue;
        last = is_last(s, m);
        if (only == ALL)
            DPT_TRY(enqueue_samples(s, s->p, m, updates && m == 0, err));
        DPT_TRY(enqueue_passes(s, m > 0 && !tree, last, updates, err));
        if (tree && (only == ALL || last) && !(last && s->n_buckets > 0))
            DPT_TRY(dpt_cuda_tree_push(s, m, 0, s->p->spec.graph->arena + DPT_TENSOR_ALIGN, err));
    }
    if (computes && s->micros == 0)
        DPT_TRY(enqueue_zeros(s, err));
    if (updates && (!computes || s->micros == 0)) {
        add_rates(s, &rates);
        DPT_TRY(dpt_cuda_program_launch(s->p, DPT_CUDA_K_feed, &rates, DPT_SPAN_DATA, err));
    }
    if (updates)
        DPT_TRY(enqueue_norm(s, computes && s->micros > 0, err));
    if (parts & DPT_CUDA_UPDATE)
        DPT_TRY(enqueue_update(s, err));
    if (parts & (DPT_CUDA_PASS_FORWARD | DPT_CUDA_PASS_BACK))
        DPT_TRY(enqueue_pass(s, parts & DPT_CUDA_PASS_BACK, only, err));
    if (parts & DPT_CUDA_DERIVE)
        DPT_TRY(dpt_cuda_enqueue_layouts(s->p, 0, s->p->spec.graph->n_nodes, err));
out:
    return status;
}

/* The argument of enqueue. */
struct captured {
    struct dpt_cuda_steps *steps;
    unsigned parts;
    int n;
    int32_t only;
};

static enum dpt_status enqueue(void *arg, struct dpt_error *err)
{
    const struct captured *c = arg;
    struct dpt_cuda_steps *s = c->steps;
    const int first = s->staging_buffer;
    enum dpt_status status = DPT_OK;

    for (int k = 0; k < c->n && status == DPT_OK; k++) {
        s->staging_buffer = first + k;
        status = enqueue_step(s, c->parts, c->only, err);
    }
    s->staging_buffer = first;
    return status;
}

/* --- graphs ----------------------------------------------------------------------------------- */

enum dpt_status dpt_cuda_steps_warm(struct dpt_cuda_steps *s, struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const size_t words = (size_t)(dpt_cuda_steps_tail(s) - s->p->gradient) + DPT_TENSOR_ALIGN;
    const int units = dpt_cuda_steps_units(s);
    enum dpt_status status = DPT_OK;

    DPT_CUDA_TRY(&ctx->lib, cuMemsetD8Async(dpt_cuda_ptr(s->p->control), 0, sizeof *s->p->control,
                                            ctx->compute));
    if (s->units == NULL)
        DPT_TRY(dpt_cuda_enqueue_layouts(s->p, 0, s->p->spec.graph->n_nodes, err));
    for (int f = 0; f <= s->p->n_others && dpt_cuda_steps_in_passes(s); f++) {
        DPT_TRY(enqueue_samples(s, dpt_cuda_flight(s->p, f), 0, false, err));
        for (int k = 0; k < 2 * units; k++)
            DPT_TRY(
                enqueue_pass(s, k >= units, f * units + (k < units ? k : 2 * units - 1 - k), err));
    }
    /* The libraries may use other kernels if they add to what is there. */
    for (int add = 0;
         add <= (s->spec.micros > 1 && s->tree == NULL) && !dpt_cuda_steps_in_passes(s); add++) {
        DPT_TRY(enqueue_samples(s, s->p, 0, false, err));
        DPT_TRY(enqueue_passes(s, add, false, false, err));
    }
    DPT_CUDA_TRY(&ctx->lib, cuMemsetD32Async(dpt_cuda_ptr(s->p->gradient), 0, words, ctx->compute));
    DPT_CUDA_TRY(&ctx->lib, cuMemsetD8Async(dpt_cuda_ptr(s->p->metric_sums), 0,
                                            sizeof *s->p->metric_sums, ctx->compute));
    DPT_TRY(dpt_cuda_await_stream(ctx, ctx->compute, err));
out:
    return status;
}

static bool is_same(const struct dpt_cuda_replay *a, const struct dpt_cuda_replay *b)
{
    return a->staging_buffer == b->staging_buffer && a->steps == b->steps && a->only == b->only &&
           a->micros == b->micros && a->first == b->first && a->all == b->all &&
           a->parts == b->parts;
}

/* Finds or captures the graph of these parts, for the step's staging buffer and micro-batches as
 * far as it depends on them. only: as in enqueue_step. */
static enum dpt_status find_graph(struct dpt_cuda_steps *s, unsigned parts, int steps, int32_t only,
                                  CUgraphExec *exec, struct dpt_error *err)
{
    const bool alike =
        only != ALL && (s->spec.round_robin || !is_last(s, only)); /* whatever the step */
    const bool computes = parts & DPT_CUDA_COMPUTE && !alike;
    const struct dpt_cuda_tree *tree = computes ? s->tree : NULL;
    const bool staged = only == ALL && parts & (DPT_CUDA_COMPUTE | DPT_CUDA_NORM);
    const struct dpt_cuda_replay wanted = {.staging_buffer = staged ? s->staging_buffer : -1,
                                           .steps = steps,
                                           .only = only,
                                           .micros = computes ? s->micros : 0,
                                           .first = tree != NULL ? tree->first : 0,
                                           .all = tree != NULL ? tree->all : 0,
                                           .parts = parts};
    struct captured captured = {s, parts, steps, only};
    enum dpt_status status = DPT_OK;

    for (int i = 0; i < s->n_replays; i++) {
        if (is_same(&s->replays[i], &wanted)) {
            *exec = s->replays[i].exec;
            return DPT_OK;
        }
    }
    DPT_GROW(s->replays, &s->replay_room, (size_t)s->n_replays + 1, "the list of graphs", err);
    DPT_TRY(dpt_cuda_capture(&s->p->ctx, enqueue, &captured, exec, err));
    s->replays[s->n_replays] = wanted;
    s->replays[s->n_replays++].exec = *exec;
out:
    return status;
}

/* Launches a step of many micro-batches one by one. */
static enum dpt_status launch_each(struct dpt_cuda_steps *s, unsigned parts, struct dpt_error *err)
{
    const int64_t words = s->p->spec.graph->arena + DPT_TENSOR_ALIGN;
    enum dpt_status status = DPT_OK;
    CUgraphExec exec;

    for (int32_t m = 0; m < s->micros; m++) {
        const bool last = m == s->micros - 1;

        DPT_TRY(enqueue_samples(s, s->p, m, parts & DPT_CUDA_NORM && m == 0, err));
        DPT_TRY(
            find_graph(s, last ? parts : DPT_CUDA_COMPUTE, 1, last || m == 0 ? m : 1, &exec, err));
        DPT_CUDA_TRY(&s->p->ctx.lib, cuGraphLaunch(exec, s->p->ctx.compute));
        if (!last && s->tree != NULL)
            DPT_TRY(dpt_cuda_tree_push(s, m, 0, words, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_steps_launch(struct dpt_cuda_steps *s, unsigned parts, int steps,
                                      struct dpt_error *err)
{
    const struct dpt_cuda_context *ctx = &s->p->ctx;
    const struct dpt_cuda_library *lib = &ctx->lib;
    const struct dpt_cuda_staging_buffer *staging_buffer = &s->staging_buffers[s->staging_buffer];
    const bool profiled = dpt_cuda_program_profiled(s->p);
    const bool computes = parts & DPT_CUDA_COMPUTE, round = computes && s->spec.round_robin;
    const bool each = computes && !round && s->micros >= DPT_CUDA_MANY && !profiled;
    const int32_t only = round ? 0 : ALL; /* all rounds have one graph */
    enum dpt_status status = DPT_OK;
    CUgraphExec exec = NULL;

    /* An evaluation in between may have set another kind of target. */
    dpt_cuda_program_targets(s->p, s->spec.targets > 0, s->spec.weights);
    if (!profiled && !each)
        DPT_TRY(find_graph(s, parts, steps, only, &exec, err));
    for (int k = 0; k < steps && computes; k++)
        DPT_CUDA_TRY(lib, cuStreamWaitEvent(ctx->compute, staging_buffer[k].uploaded, 0));
    if (round)
        DPT_TRY(enqueue_samples(s, s->p, s->tree->round, false, err));
    if (each)
        DPT_TRY(launch_each(s, parts, err));
    else if (exec != NULL)
        DPT_CUDA_TRY(lib, cuGraphLaunch(exec, ctx->compute));
    else /* a profile waits for each launch, which a graph does not allow */
        DPT_TRY(enqueue(&(struct captured){s, parts, steps, only}, err));
    for (int k = 0; k < steps; k++)
        DPT_CUDA_TRY(lib, cuEventRecord(staging_buffer[k].done, ctx->compute));
    if (computes)
        DPT_TRY(dpt_cuda_buckets_fetch(s, err));
out:
    return status;
}

enum dpt_status dpt_cuda_steps_replay(struct dpt_cuda_steps *s, unsigned parts, int32_t only,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    CUgraphExec exec;

    if (dpt_cuda_program_profiled(s->p))
        return enqueue_step(s, parts, only, err);
    DPT_TRY(find_graph(s, parts, 1, only, &exec, err));
    DPT_CUDA_TRY(&s->p->ctx.lib, cuGraphLaunch(exec, s->p->ctx.compute));
out:
    return status;
}

void dpt_cuda_steps_forget(struct dpt_cuda_steps *s)
{
    for (int i = 0; i < s->n_replays; i++)
        s->p->ctx.lib.cuGraphExecDestroy(s->replays[i].exec);
    free(s->replays);
}
