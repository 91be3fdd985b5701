#include "core/train/use/predict.h"

#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/train/team.h"
#include "models/model.h"

/* The most bytes of samples per thread in a window of a source, or the most micro-batches. */
enum { WINDOW_BYTES = 8 << 20, WINDOW_MICROS = 16 };

/* A prediction in progress. A window is a step of the sampler. */
struct work {
    struct dpt_trainer *t;
    const struct dpt_split *split; /* one of these two; the other is NULL */
    struct dpt_source *source;
    const struct dpt_sampler *sampler;
    enum dpt_truth truth;
    int32_t outputs, width; /* words per sample: the model's, and those of the truth */
    int64_t before;         /* samples before the window */
    struct dpt_step_view view;
    struct dpt_parts parts;  /* what each rank has of the window, in samples */
    struct dpt_parts scaled; /* the parts in floats */
    float *values, *known;   /* this rank's part of the window; known: class numbers, or targets */
    float *all, *all_known;  /* the window, on rank 0; this rank's own if there is one rank */
    float *probabilities, *loss;
    float *target; /* one row of targets as they are trained */
    int32_t *labels, *classes;
    int64_t *sample;
};

/* Fills in a micro-batch of a source. */
static enum dpt_status fill_from_source(const struct work *w, int32_t micro_batch,
                                        struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t size = (size_t)dpt_shape_size(&w->t->model.graph.nodes[0].out);
    const int32_t micro = w->sampler->micro, left = w->view.total - micro_batch * micro;
    const int64_t first = w->before + (int64_t)micro_batch * micro;
    const int32_t count = left < micro ? left : micro;
    char where[512];

    *batch = (struct dpt_batch){.count = count, .input = buffer->input, .sample = buffer->sample};
    DPT_TRY(dpt_batch_buffer_scratch(buffer, dpt_source_scratch(w->source), err));
    memset(buffer->input + (size_t)count * size, 0, (size_t)(micro - count) * size * sizeof(float));
    for (int32_t i = 0; i < count; i++) {
        buffer->sample[i] = first + i;
        DPT_TRY(dpt_source_fill(w->source, first + i, buffer->input + (size_t)i * size,
                                buffer->scratch, err));
        if (w->truth != DPT_TRUTH_CLASS)
            continue;
        buffer->labels[i] = dpt_source_class(w->source, first + i);
        if (buffer->labels[i] < 0 || buffer->labels[i] >= w->outputs)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: its label is %d, the model has %d outputs (0 to %d)",
                             dpt_source_where(w->source, first + i, where), buffer->labels[i],
                             w->outputs, w->outputs - 1));
    }
    if (w->truth == DPT_TRUTH_CLASS)
        batch->labels = buffer->labels;
    if (w->truth == DPT_TRUTH_VECTOR)
        batch->targets = dpt_source_target(w->source, first);
out:
    return status;
}

/* Copies targets in the units of their files; the micro-batch has them as they are trained. */
static void copy_targets(const struct dpt_dataset *set, const struct dpt_batch *batch, float *to)
{
    const size_t width = (size_t)set->target_width;

    for (int32_t i = 0; i < batch->count; i++)
        memcpy(to + (size_t)i * width, set->targets + (size_t)batch->sample[i] * width,
               width * sizeof *to);
}

static void predict_part(void *arg, int thread)
{
    struct work *w = arg;
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    struct dpt_batch batch = {0};
    size_t begin, end;

    dpt_part_in_units((size_t)(w->view.last - w->view.first), 1, thread, t->layout.threads, &begin,
                      &end);
    for (size_t k = begin; k < end; k++) {
        const int32_t i = w->view.first + (int32_t)k;
        const size_t row = k * (size_t)w->sampler->micro;
        float *values = w->values + row * (size_t)w->outputs;

        worker->status = w->split != NULL
                             ? dpt_loader_fill(w->split->loader, &w->view, i, &worker->buffer,
                                               &batch, &worker->err)
                             : fill_from_source(w, i, &worker->buffer, &batch, &worker->err);
        if (worker->status == DPT_OK)
            worker->status = t->backend->infer(t->model.program, thread, &batch, t->arenas.params,
                                               values, NULL, &worker->err);
        if (worker->status != DPT_OK)
            return;
        if (w->split != NULL && w->truth == DPT_TRUTH_VECTOR)
            copy_targets(w->split->set, &batch, w->known + row * (size_t)w->width);
        else if (w->width > 0)
            memcpy(w->known + row * (size_t)w->width,
                   batch.labels != NULL ? (const void *)batch.labels : batch.targets,
                   (size_t)batch.count * (size_t)w->width * sizeof *w->known);
    }
}

/* Computes this rank's part of the next window. */
static enum dpt_status compute(struct work *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &w->t->comm->world;
    const int64_t step = w->view.step;

    if (w->split != NULL) {
        DPT_TRY(dpt_loader_next(w->split->loader, &w->view, err));
    } else {
        w->view.total = dpt_sampler_count(w->sampler, step);
        dpt_sampler_partition(w->sampler, step, world->rank, world->size, &w->view.first,
                              &w->view.last);
        if (w->parts.count[world->rank] > 0)
            DPT_TRY(dpt_source_fetch(w->source, w->before + w->parts.at[world->rank],
                                     w->parts.count[world->rank], err));
    }
    DPT_TRY(dpt_trainer_run(w->t, predict_part, w, err));
out:
    return status;
}

/* Finds how the ranks share a window. */
static void partition(struct work *w, int64_t step)
{
    const int32_t micro = w->sampler->micro, total = dpt_sampler_count(w->sampler, step);

    for (int r = 0; r < w->t->comm->world.size; r++) {
        int32_t first, last;

        dpt_sampler_partition(w->sampler, step, r, w->t->comm->world.size, &first, &last);
        first = first * micro < total ? first * micro : total;
        last = last * micro < total ? last * micro : total;
        w->parts.at[r] = first;
        w->parts.count[r] = last - first;
    }
}

/* Collective. Gives rank 0 the ranks' rows of so many floats. */
static enum dpt_status collect(struct work *w, const float *mine, float *all, int32_t width,
                               struct dpt_error *err)
{
    const struct dpt_group *world = &w->t->comm->world;

    if (world->size == 1 || width == 0)
        return DPT_OK;
    for (int r = 0; r < world->size; r++) {
        w->scaled.at[r] = w->parts.at[r] * width;
        w->scaled.count[r] = w->parts.count[r] * width;
    }
    return dpt_group_gatherv(world, 0, mine, all, &w->scaled, err);
}

/* Makes probabilities of the outputs, and finds classes. */
static void judge_part(void *arg, int thread)
{
    struct work *w = arg;
    const bool classes = dpt_loss_has_classes(w->t->model.loss.kind);
    size_t begin, end;

    dpt_part_in_units((size_t)w->view.total, 1, thread, w->t->layout.threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const float *logits = w->all + i * (size_t)w->outputs;
        float *probabilities = w->probabilities + i * (size_t)w->outputs;

        if (classes)
            w->labels[i] = dpt_softmax(logits, w->outputs, probabilities);
        else
            dpt_sigmoids(logits, w->outputs, probabilities);
        if (classes && !dpt_is_finite(logits, w->outputs))
            w->labels[i] = -1;
    }
}

/* Gives a row of targets as the loss takes it, on rank 0. */
static const float *as_trained(const struct work *w, const float *targets)
{
    if (!dpt_target_scale_changes(&w->t->targets))
        return targets;
    dpt_target_scale_apply(&w->t->targets, targets, w->target);
    return w->target;
}

/* Converts the model's outputs into the targets' units, on rank 0. */
static void undo_scale(struct work *w)
{
    const bool changed = dpt_target_scale_undoes(&w->t->targets);

    for (int64_t i = 0; changed && i < w->view.total; i++)
        for (int32_t k = 0; k < w->outputs; k++) {
            float *y = w->all + i * w->outputs + k;

            *y = (float)dpt_target_scale_undo(&w->t->targets, k, *y);
        }
}

/* Computes, on rank 0, the samples' losses and their sum, if the truth is known. */
static void sum_up(struct work *w, struct dpt_metric_sums *total)
{
    if (w->truth == DPT_TRUTH_CLASS)
        memcpy(w->classes, w->all_known, (size_t)w->view.total * sizeof *w->classes);
    for (int32_t i = 0; w->truth != DPT_TRUTH_NONE && i < w->view.total; i++) {
        const size_t row = (size_t)i * (size_t)w->outputs;
        const struct dpt_batch one = {
            .count = 1,
            .labels = w->truth == DPT_TRUTH_CLASS ? w->classes + i : NULL,
            .targets = w->truth == DPT_TRUTH_VECTOR ? as_trained(w, w->all_known + row) : NULL,
        };
        struct dpt_metric_sums own = {0};

        dpt_loss_rows(&w->t->model.loss, &one, w->outputs, (size_t)w->outputs, w->all + row, NULL,
                      &own);
        w->loss[i] = (float)own.loss;
        dpt_metric_sums_add(total, &own);
    }
}

/* Hands a window to the sink, on rank 0. */
static enum dpt_status hand_over(struct work *w, dpt_predict_sink *sink, void *arg,
                                 struct dpt_metric_sums *total, struct dpt_error *err)
{
    const bool judges = dpt_loss_judges(w->t->model.loss.kind);
    const bool classes = dpt_loss_has_classes(w->t->model.loss.kind);
    const struct dpt_predicted predicted = {
        .first = w->before,
        .count = w->view.total,
        .outputs = w->outputs,
        .sample = w->sample,
        .values = w->all,
        .probabilities = judges ? w->probabilities : NULL,
        .labels = classes ? w->labels : NULL,
        .classes = w->truth == DPT_TRUTH_CLASS ? w->classes : NULL,
        .targets = w->truth == DPT_TRUTH_VECTOR ? w->all_known : NULL,
        .loss = w->truth == DPT_TRUTH_NONE ? NULL : w->loss,
    };

    if (judges)
        dpt_pool_run(w->t->team.pool, judge_part, w);
    sum_up(w, total);
    undo_scale(w);
    if (sink == NULL)
        return DPT_OK;
    dpt_sampler_samples(w->sampler, 0, w->before, w->view.total, w->sample);
    return sink(arg, &predicted, err);
}

static enum dpt_status make_room(struct work *w, struct dpt_error *err)
{
    const struct dpt_group *world = &w->t->comm->world;
    const size_t ranks = (size_t)world->size, window = (size_t)w->sampler->global;
    const size_t most = window < (size_t)w->sampler->samples ? window : (size_t)w->sampler->samples;
    const size_t outputs = (size_t)w->outputs, truth = (size_t)w->width;
    const size_t batches = most / (size_t)w->sampler->micro + 1;
    const size_t mine = (batches / ranks + 1) * (size_t)w->sampler->micro;
    enum dpt_status status = DPT_OK;
    static const char what[] = "the outputs of some samples";

    if (most * (outputs + truth) > INT32_MAX) /* MPI counts with int */
        return dpt_fail(err, DPT_BAD_JOB,
                        "%zu samples of %zu outputs at once are too many: a smaller batch.micro "
                        "would do",
                        most, outputs);
    DPT_TRY(DPT_ALLOCATE(w->parts.count, 4 * ranks, what, err));
    w->parts.at = w->parts.count + ranks;
    w->scaled.count = w->parts.at + ranks;
    w->scaled.at = w->scaled.count + ranks;
    DPT_TRY(DPT_ALLOCATE(w->values, mine * outputs, what, err));
    DPT_TRY(DPT_ALLOCATE(w->known, mine * truth, what, err));
    if (world->rank != 0)
        return DPT_OK;
    w->all = w->values;
    w->all_known = w->known;
    if (ranks > 1) {
        DPT_TRY(DPT_ALLOCATE(w->all, most * outputs, what, err));
        DPT_TRY(DPT_ALLOCATE(w->all_known, most * truth, what, err));
    }
    DPT_TRY(DPT_ALLOCATE(w->probabilities, most * outputs, what, err));
    DPT_TRY(DPT_ALLOCATE(w->loss, most, what, err));
    DPT_TRY(DPT_ALLOCATE(w->target, outputs, what, err));
    DPT_TRY(DPT_ALLOCATE(w->labels, most, what, err));
    DPT_TRY(DPT_ALLOCATE(w->classes, most, what, err));
    DPT_TRY(DPT_ALLOCATE(w->sample, most, what, err));
out:
    return status;
}

static void release(struct work *w)
{
    if (w->all != w->values)
        dpt_free(w->all);
    if (w->all_known != w->known)
        dpt_free(w->all_known);
    dpt_free(w->parts.count);
    dpt_free(w->values);
    dpt_free(w->known);
    dpt_free(w->probabilities);
    dpt_free(w->loss);
    dpt_free(w->target);
    dpt_free(w->labels);
    dpt_free(w->classes);
    dpt_free(w->sample);
}

/* Collective. Predicts all windows, one after another. What fails on one rank fails on all. */
static enum dpt_status predict(struct work *w, dpt_predict_sink *sink, void *arg,
                               struct dpt_metric_sums *wanted, struct dpt_error *err)
{
    struct dpt_metric_sums own, *total = wanted != NULL ? wanted : &own;
    const struct dpt_group *world = &w->t->comm->world;
    const int64_t steps = dpt_sampler_steps(w->sampler);
    enum dpt_status status = DPT_OK, mine;

    *total = (struct dpt_metric_sums){0};
    dpt_comm_note(w->t->comm, 0, "predicting");
    dpt_comm_started(w->t->comm);
    w->width = w->truth == DPT_TRUTH_NONE ? 0 : w->truth == DPT_TRUTH_CLASS ? 1 : w->outputs;
    mine = make_room(w, err);
    if (mine == DPT_OK && w->split != NULL)
        mine = dpt_loader_seek(w->split->loader, 0, 0, err);
    for (int64_t step = 0; step < steps; step++) {
        if (mine == DPT_OK) {
            w->view.step = step;
            partition(w, step);
            mine = compute(w, err);
        }
        DPT_TRY(dpt_group_agree(world, mine, err));
        DPT_TRY(collect(w, w->values, w->all, w->outputs, err));
        DPT_TRY(collect(w, w->known, w->all_known, w->width, err));
        if (world->rank == 0)
            mine = hand_over(w, sink, arg, total, err);
        w->before += w->view.total;
    }
    DPT_TRY(dpt_group_agree(world, mine, err));
    DPT_TRY(dpt_group_broadcast(world, 0, total, sizeof *total, err));
out:
    release(w);
    return status;
}

enum dpt_status dpt_trainer_predict(struct dpt_trainer *t, struct dpt_split *split,
                                    dpt_predict_sink *sink, void *arg,
                                    struct dpt_metric_sums *total, struct dpt_error *err)
{
    struct work w = {
        .t = t,
        .split = split,
        .sampler = &split->sampler,
        .truth = split->set->target == DPT_TARGET_CLASS ? DPT_TRUTH_CLASS : DPT_TRUTH_VECTOR,
        .outputs = dpt_graph_outputs(&t->model.graph),
    };

    return predict(&w, sink, arg, total, err);
}

/* Whether the samples' labels or targets can be compared with the model's outputs. */
static enum dpt_status check_truth(const struct work *w, struct dpt_error *err)
{
    const struct dpt_source_info *info = dpt_source_info(w->source);
    char where[512];

    if (info->truth == DPT_TRUTH_VECTOR && info->width != w->outputs)
        return dpt_fail(err, DPT_BAD_DATA, "%s: comes with %d target%s, the model has %d output%s",
                        dpt_source_where(w->source, 0, where), info->width,
                        info->width == 1 ? "" : "s", w->outputs, w->outputs == 1 ? "" : "s");
    if (info->truth == DPT_TRUTH_CLASS && !dpt_loss_has_classes(w->t->model.loss.kind))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: comes with a class; a model with loss %s is compared with targets",
                        dpt_source_where(w->source, 0, where), w->t->job->loss.variant->name);
    return DPT_OK;
}

enum dpt_status dpt_trainer_predict_source(struct dpt_trainer *t, struct dpt_source *source,
                                           dpt_predict_sink *sink, void *arg,
                                           struct dpt_metric_sums *total, struct dpt_error *err)
{
    enum dpt_status status;
    const struct dpt_source_info *info = dpt_source_info(source);
    const int32_t outputs = dpt_graph_outputs(&t->model.graph);
    const int32_t micro = (int32_t)t->job->batch.micro;
    const double bytes = (double)micro * sizeof(float) *
                         ((double)dpt_shape_size(&t->model.graph.nodes[0].out) + outputs);
    const int64_t micros = bytes * WINDOW_MICROS < WINDOW_BYTES ? WINDOW_MICROS
                           : bytes < WINDOW_BYTES               ? (int64_t)(WINDOW_BYTES / bytes)
                                                                : 1;
    const struct dpt_sampler sampler = {
        .total = info->samples,
        .samples = info->samples,
        .micro = micro,
        .global = (int32_t)(micro * t->layout.all_threads * micros),
        .shuffle = DPT_SHUFFLE_NONE,
    };
    struct work w = {
        .t = t, .source = source, .sampler = &sampler, .truth = info->truth, .outputs = outputs};

    status = check_truth(&w, err); /* alike on all ranks */
    return status == DPT_OK ? predict(&w, sink, arg, total, err) : status;
}

enum { NAMED = 5 }; /* samples named whose outputs are not finite */

void dpt_unpredicted_note(struct dpt_unpredicted *u, const struct dpt_predicted *predicted,
                          const struct dpt_source *source)
{
    const int32_t n = predicted->outputs;
    char where[512];

    for (int32_t i = 0; i < predicted->count; i++)
        if (!dpt_is_finite(predicted->values + (size_t)i * (size_t)n, n) && u->samples++ < NAMED)
            dpt_str_printf(&u->where, "%s%s", u->samples == 1 ? "" : "; ",
                           dpt_source_where(source, predicted->first + i, where));
}

enum dpt_status dpt_unpredicted_tell(const struct dpt_unpredicted *u, int64_t all,
                                     struct dpt_error *err)
{
    if (u->samples == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_FAILED,
                    "not a number: outputs for %lld of %lld samples, written as nan: %s%s",
                    (long long)u->samples, (long long)all, u->where.failed ? "" : u->where.text,
                    u->samples > NAMED ? "; and others" : "");
}
