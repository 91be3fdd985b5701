#include "core/train/lockstep.h"

#include <stdio.h>
#include <string.h>

#include "core/backend/norm_sums.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/trace/profile.h"
#include "core/train/engine.h"
#include "core/train/gradient_reduction.h"

/* A micro-batch under way. */
struct slot {
    struct dpt_batch_buffer own, *buffer; /* its worker's, or one of its own */
    struct dpt_batch batch;
    struct dpt_metric_sums metric_sums;
    double *sums; /* [2][widest]: of the norm at which it stands */
    float *rest;  /* where it is dealt: what it gives for the state, and its tail */
};

/* The nodes from one norm to the next: [first, last). */
struct segment {
    int32_t first, last;
    struct dpt_gradient_range learned, state; /* of their tensors */
};

/* What all threads do with their micro-batches. */
struct stage {
    bool backward;
    int32_t number; /* of the segment */
    struct dpt_pass pass;
    struct dpt_gradient_range range;
    int32_t begin, end; /* of each thread's slots */
};

struct dpt_lockstep {
    struct dpt_trainer *t; /* borrowed */
    struct segment *segments;
    int32_t n_segments;
    struct slot *slots; /* [threads][t->team.slots] */
    double *sums;       /* of the slots */
    float *rests;       /* likewise */
    size_t *edge;      /* where they are dealt: of the segments' learned ranges, [n_segments + 1] */
    double *exchanged; /* [blocks][2][channels]: of the whole step, of all ranks */
    const struct dpt_step_view *view;
    struct stage stage;
    int64_t exchanges; /* so far in this step */
    double waited;
};

/* --- the graph in segments -------------------------------------------------------------------- */

/* Of a short step, too, the first one's numbers are those of all the others. */
static int32_t blocks_of(const struct dpt_trainer *t, int64_t step, int rank,
                         struct dpt_block *blocks)
{
    const struct dpt_sampler *s = &t->data.train.sampler;
    int32_t first, last;

    dpt_sampler_partition(s, step, rank, t->comm->world.size, &first, &last);
    return dpt_tree_blocks(first, last, dpt_sampler_micro_batches(s, step), blocks);
}

/* The blocks of the step of an epoch that has most of them: the first one, or the last. */
static int64_t most_blocks(const struct dpt_trainer *t)
{
    const int64_t steps[] = {0, t->steps_per_epoch - 1};
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    int64_t most = 0;

    if (dpt_trainer_dealt(t))
        return dpt_sampler_micro_batches(&t->data.train.sampler, 0);
    for (int k = 0; k < 2; k++) {
        int64_t n = 0;

        for (int rank = 0; rank < t->comm->world.size; rank++)
            n += blocks_of(t, steps[k], rank, blocks);
        most = n > most ? n : most;
    }
    return most;
}

static int32_t widest(const struct dpt_graph *graph)
{
    int32_t most = 0;

    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].whole_step && graph->nodes[i].in.c > most)
            most = graph->nodes[i].in.c;
    return most;
}

void dpt_lockstep_count(const struct dpt_trainer *t, int32_t *norms, double *bytes)
{
    const struct dpt_graph *graph = &t->model.graph;

    *norms = 0;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        *norms += graph->nodes[i].whole_step;
    *bytes = (double)most_blocks(t) * 2 * widest(graph) * sizeof(double);
}

/* Each segment's ranges end where the next one's begin; the last one of state has the tail, too. */
static void fill_segments(struct dpt_lockstep *l)
{
    const struct dpt_graph *graph = &l->t->model.graph;
    struct dpt_gradient_range learned = {.begin = (size_t)graph->floats},
                              state = {.begin = dpt_gradient_whole(l->t).end};
    int32_t last = graph->n_nodes;

    for (int32_t k = l->n_segments - 1, i = last - 1; k >= 0; k--) {
        struct segment *s = &l->segments[k];

        while (i > 0 && !graph->nodes[i].whole_step)
            i--;
        learned.end = learned.begin;
        learned.begin = k > 0 ? dpt_graph_from(graph, i, false) : 0;
        state.end = state.begin;
        state.begin = dpt_graph_from(graph, i, true);
        *s = (struct segment){.first = i, .last = last, .learned = learned, .state = state};
        last = i--;
    }
}

/* Floats of a gradient behind what is learned. */
static size_t rest_floats(const struct dpt_trainer *t)
{
    return dpt_gradient_whole(t).end - (size_t)t->model.graph.floats;
}

/* --- opening ---------------------------------------------------------------------------------- */

enum dpt_status dpt_lockstep_open(struct dpt_lockstep **lockstep, struct dpt_trainer *t,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)t->team.threads * (size_t)t->team.slots;
    const size_t sums = 2 * (size_t)widest(&t->model.graph);
    size_t exchanged;
    struct dpt_lockstep *l;
    int32_t norms;
    double bytes;
    const bool dealt = dpt_trainer_dealt(t);

    DPT_TRY(DPT_ALLOCATE(*lockstep, 1, "the statistics of steps", err));
    l = *lockstep;
    l->t = t;
    dpt_lockstep_count(t, &norms, &bytes);
    exchanged = (size_t)bytes / sizeof(double);
    DPT_TRY(DPT_ALLOCATE(l->segments, (size_t)norms + 1, "the statistics of steps", err));
    l->n_segments = norms + 1;
    fill_segments(l);
    if (dealt) {
        DPT_TRY(DPT_ALLOCATE(l->edge, (size_t)norms + 2, "the statistics of steps", err));
        DPT_TRY(DPT_ALLOCATE(l->rests, n * rest_floats(t), "the statistics of steps", err));
        for (int32_t k = 0; k < l->n_segments; k++)
            l->edge[k + 1] = l->segments[k].learned.end;
        t->reduction.edge = l->edge;
        t->reduction.edges = l->n_segments;
    }
    DPT_TRY(DPT_ALLOCATE(l->slots, n, "micro-batches", err));
    DPT_TRY(DPT_ALLOCATE(l->sums, n * sums, "the statistics of steps", err));
    DPT_TRY(DPT_ALLOCATE(l->exchanged, exchanged, "the statistics of steps", err));
    for (size_t i = 0; i < n; i++) {
        struct slot *slot = &l->slots[i];
        const size_t slots = (size_t)t->team.slots;

        slot->sums = l->sums + i * sums;
        slot->rest = dealt ? l->rests + i * rest_floats(t) : NULL;
        slot->buffer = i % slots == 0 ? &t->team.workers[i / slots].buffer : &slot->own;
        if (slot->buffer == &slot->own)
            DPT_TRY(dpt_batch_buffer_open(&slot->own, t->data.train.set,
                                          t->data.train.sampler.micro, err));
    }
out:
    return status;
}

void dpt_lockstep_close(struct dpt_lockstep *l)
{
    if (l == NULL)
        return;
    for (int i = 0; l->slots != NULL && i < l->t->team.threads * l->t->team.slots; i++)
        dpt_batch_buffer_close(&l->slots[i].own);
    dpt_free(l->segments);
    dpt_free(l->slots);
    dpt_free(l->sums);
    dpt_free(l->rests);
    dpt_free(l->edge);
    dpt_free(l->exchanged);
    dpt_free(l);
}

/* --- computing -------------------------------------------------------------------------------- */

/* Of the step. */
static int32_t micro_batches(const struct dpt_trainer *t)
{
    return dpt_sampler_micro_batches(&t->data.train.sampler, t->progress.epoch_step);
}

/* Which micro-batch a thread has in its slot k; false: none. */
static bool find_micro_batch(const struct dpt_lockstep *l, int thread, int32_t k, int32_t *number)
{
    const struct dpt_trainer *t = l->t;
    int32_t end;

    if (dpt_trainer_dealt(t))
        return dpt_step_deal(t, micro_batches(t), k, thread, number) > 0;
    dpt_step_run(l->view->first, l->view->last, thread, t->team.threads, number, &end);
    *number += k;
    return *number < end;
}

static enum dpt_status compute(struct dpt_lockstep *l, int thread, int32_t micro_batch,
                               struct slot *slot, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_trainer *t = l->t;
    const struct stage *stage = &l->stage;
    const bool begins = !stage->backward && stage->number == 0;
    const bool ends = !stage->backward && stage->number == l->n_segments - 1;
    struct dpt_pass pass = stage->pass;

    pass.gradient = t->reduction.type->target(t, thread, &pass.add);
    if (slot->rest != NULL && !stage->backward) /* nothing but the state's is written */
        pass.gradient = slot->rest - t->model.graph.floats;
    pass.slot = (int)(slot - l->slots) % t->team.slots;
    pass.batch = &slot->batch;
    pass.own = slot->sums;
    if (begins) {
        slot->batch =
            (struct dpt_batch){.seed = (uint64_t)t->job->seed, .step = (uint64_t)t->progress.step};
        slot->metric_sums = (struct dpt_metric_sums){0};
        DPT_TRY(dpt_loader_fill(t->data.train.loader, l->view, micro_batch, slot->buffer,
                                &slot->batch, err));
        dpt_profile_mark(t->profile, thread, DPT_SPAN_DATA);
    }
    if (stage->backward)
        DPT_TRY(t->backend->backward(t->model.program, thread, &pass, err));
    else
        DPT_TRY(t->backend->forward(t->model.program, thread, &pass, err));
    if (ends)
        DPT_TRY(t->backend->loss(t->model.program, thread, &pass, &slot->metric_sums, err));
    if (stage->backward && micro_batch == l->view->first)
        dpt_fault_strike_gradient(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                  pass.gradient, (int64_t)stage->range.begin,
                                  (int64_t)stage->range.end);
    t->reduction.type->done(t, thread, micro_batch, 1, pass.gradient, stage->range,
                            ends ? &slot->metric_sums : NULL);
out:
    return status;
}

static void run_stage(void *arg, int thread)
{
    struct dpt_lockstep *l = arg;
    struct dpt_worker *worker = &l->t->team.workers[thread];
    struct slot *slots = l->slots + thread * l->t->team.slots;

    if (l->t->reduction.type->again != NULL)
        l->t->reduction.type->again(l->t, thread);
    for (int32_t k = l->stage.begin, i;
         k < l->stage.end && worker->status == DPT_OK && find_micro_batch(l, thread, k, &i); k++)
        worker->status = compute(l, thread, i, &slots[k], &worker->err);
    if (l->t->reduction.type == &dpt_gradient_reduction_reproducible) /* it adds up in `done` */
        dpt_profile_mark(l->t->profile, thread, DPT_SPAN_REDUCTION);
}

/* --- exchanging ------------------------------------------------------------------------------- */

/* Added, so that a zero has no sign, as it has none once it was summed over ranks. */
static void add_sums(double *to, const double *sums, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += sums[i];
}

/* Adds to `to` the sums of this rank's dealt micro-batches, each in its place; or joins the sums of
 * them, in the slots of its threads, into those of its blocks. */
static void join_slots(struct dpt_lockstep *l, struct dpt_norm_sums *sums, size_t width, double *to)
{
    for (int thread = 0; thread < l->t->team.threads; thread++) {
        struct slot *slots = l->slots + thread * l->t->team.slots;

        for (int32_t k = 0, i; k < l->t->team.slots && find_micro_batch(l, thread, k, &i); k++)
            if (to == NULL)
                dpt_norm_sums_push(sums, (struct dpt_block){.begin = i}, slots[k].sums);
            else
                add_sums(to + (size_t)i * width, slots[k].sums, width);
    }
}

/* Collective. Gives the sums over the whole step of the norm `node`. computed: this rank has its
 * own; else it adds nothing. */
static enum dpt_status exchange(struct dpt_lockstep *l, const struct dpt_graph_node *node,
                                enum dpt_norm_kind kind, bool computed, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = l->t;
    const struct dpt_group *world = &t->comm->world;
    const struct dpt_sampler *s = &t->data.train.sampler;
    const int64_t step = t->progress.epoch_step;
    const size_t width = 2 * (size_t)node->in.c;
    struct dpt_block blocks[DPT_TREE_BLOCKS];
    struct dpt_norm_sums sums;
    const int32_t dealt = dpt_trainer_dealt(t) ? dpt_sampler_micro_batches(s, step) : 0;
    int64_t n = dealt;

    dpt_norm_sums_begin(&sums, kind, &node->in, s->micro, dpt_sampler_count(s, step));
    memset(l->exchanged, 0, (size_t)dealt * width * sizeof *l->exchanged);
    if (dealt > 0 && computed)
        join_slots(l, NULL, width, l->exchanged);
    for (int rank = 0; rank < world->size && dealt == 0; rank++) {
        const int32_t own = blocks_of(t, step, rank, blocks);

        memset(l->exchanged + (size_t)n * width, 0, (size_t)own * width * sizeof *l->exchanged);
        if (rank == world->rank && computed) {
            join_slots(l, &sums, width, NULL);
            for (int32_t k = 0; k < own; k++)
                add_sums(l->exchanged + (size_t)(n + k) * width, sums.value[k], width);
        }
        n += own;
    }
    DPT_TRY(dpt_group_sum_doubles(world, l->exchanged, l->exchanged, (size_t)n * width, err));
    dpt_norm_sums_begin(&sums, kind, &node->in, s->micro, dpt_sampler_count(s, step));
    for (int32_t i = 0; i < dealt; i++)
        dpt_norm_sums_push(&sums, (struct dpt_block){.begin = i}, l->exchanged + (size_t)i * width);
    for (int64_t k = 0, rank = 0; rank < world->size && dealt == 0; rank++) {
        const int32_t own = blocks_of(t, step, (int)rank, blocks);

        for (int32_t i = 0; i < own; i++, k++)
            dpt_norm_sums_push(&sums, blocks[i], l->exchanged + (size_t)k * width);
    }
out:
    return status;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Collective. Has the owners add what a round of dealt micro-batches gave for a range. */
static enum dpt_status add_round(struct dpt_lockstep *l, int32_t round, int32_t range,
                                 enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = l->t;
    const double start = dpt_now();
    struct dpt_error other;
    enum dpt_status added;

    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    added = t->reduction.type->round(t, round, range, status == DPT_OK ? err : &other);
    l->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
    return status == DPT_OK ? added : status;
}

/* Collective. The present stage backward, where micro-batches are dealt. */
static enum dpt_status take_rounds(struct dpt_lockstep *l, enum dpt_status status,
                                   struct dpt_error *err)
{
    const int32_t rounds = dpt_step_rounds(l->t, micro_batches(l->t));

    for (int32_t k = 0; k < rounds; k++) {
        l->stage.begin = k;
        l->stage.end = k + 1;
        if (status == DPT_OK)
            status = dpt_trainer_run(l->t, run_stage, l, err);
        status = add_round(l, k, l->stage.number, status, err);
    }
    return status;
}

/* Collective. What dealt micro-batches gave for the state, and their tails. */
static enum dpt_status add_rests(struct dpt_lockstep *l, enum dpt_status status,
                                 struct dpt_error *err)
{
    struct dpt_trainer *t = l->t;
    const int32_t rounds = dpt_step_rounds(t, micro_batches(t));
    bool add;

    for (int32_t k = 0; k < rounds; k++) {
        for (int thread = 0; thread < t->team.threads; thread++)
            memcpy(t->reduction.type->target(t, thread, &add) + t->model.graph.floats,
                   l->slots[thread * t->team.slots + k].rest, rest_floats(t) * sizeof(float));
        status = add_round(l, k, l->n_segments, status, err);
    }
    return status;
}

/* A segment on all threads, and what follows it: the sums of the norm at which it ends. */
static enum dpt_status take_stage(struct dpt_lockstep *l, bool backward, int32_t number,
                                  enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = l->t;
    const struct dpt_graph *graph = &t->model.graph;
    const struct segment *s = &l->segments[number];
    const bool ends = backward ? number == 0 : number == l->n_segments - 1;
    const bool begins = backward ? number == l->n_segments - 1 : number == 0;
    const struct dpt_graph_node *norm = ends ? NULL : &graph->nodes[backward ? s->first : s->last];
    enum dpt_status exchanged;
    struct dpt_error other;
    char text[DPT_NAME + 32];
    double start;

    l->stage = (struct stage){
        .backward = backward,
        .number = number,
        .range = backward ? s->learned : s->state,
        .end = t->team.slots,
        .pass = {.first = s->first,
                 .last = s->last,
                 .params = t->arenas.params,
                 .all = begins ? NULL : l->exchanged,
                 .samples = dpt_sampler_count(&t->data.train.sampler, t->progress.epoch_step)},
    };
    if (backward) { /* from a norm's readers down to the next one's */
        l->stage.pass.first += number > 0;
        l->stage.pass.last += !begins;
    }
    if (backward && dpt_trainer_dealt(t))
        status = take_rounds(l, status, err);
    else if (status == DPT_OK)
        status = dpt_trainer_run(t, run_stage, l, err);
    if (norm == NULL)
        return status;
    dpt_profile_switch(t->profile, DPT_SPAN_WAIT_THREADS, DPT_SPAN_REDUCTION);
    snprintf(text, sizeof text, "exchanging the statistics of %s", norm->name);
    dpt_comm_note(t->comm, t->progress.step + 1, text);
    l->exchanges++;
    if (status == DPT_OK)
        status = dpt_fault_strike_exchange(&t->fault, t->comm->world.rank, t->progress.step + 1,
                                           l->exchanges, err);
    start = dpt_now();
    exchanged = exchange(l, norm, backward ? DPT_NORM_GRADIENTS : DPT_NORM_MOMENTS,
                         status == DPT_OK, status == DPT_OK ? err : &other);
    l->waited += dpt_now() - start;
    dpt_profile_switch(t->profile, DPT_SPAN_REDUCTION, DPT_SPAN_OTHER);
    snprintf(text, sizeof text, "computing %s %s", backward ? "back from" : "from", norm->name);
    dpt_comm_note(t->comm, t->progress.step + 1, text);
    return status == DPT_OK ? exchanged : status;
}

enum dpt_status dpt_lockstep_compute(struct dpt_lockstep *l, const struct dpt_step_view *view,
                                     enum dpt_status status, struct dpt_error *err)
{
    struct dpt_trainer *t = l->t;
    const struct dpt_step_view step = {.step = t->progress.epoch_step};

    l->view = view;
    l->exchanges = 0;
    l->waited = 0;
    if (dpt_trainer_dealt(t)) /* a rank that failed has not come so far */
        t->reduction.type->begin(t, &step);
    for (int32_t k = 0; k < l->n_segments; k++)
        status = take_stage(l, false, k, status, err);
    for (int32_t k = l->n_segments - 1; k >= 0; k--)
        status = take_stage(l, true, k, status, err);
    return dpt_trainer_dealt(t) ? add_rests(l, status, err) : status;
}

double dpt_lockstep_waited(const struct dpt_lockstep *l)
{
    return l->waited;
}
