#include "core/train/predict.h"

#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/comm/alltoallv.h"
#include "models/model.h"

/* A prediction under way. A window is a step of the sampler. */
struct work {
    struct dpt_trainer *t;
    const struct dpt_split *split; /* one of these two; the other is NULL */
    const struct dpt_feed *feed;
    const struct dpt_sampler *sampler;
    enum dpt_truth truth;
    int32_t outputs, extras; /* floats a sample: the model's, and what is told beside them */
    int64_t before;          /* samples in front of the window */
    struct dpt_step_view view;
    struct dpt_parts parts;  /* what each rank has of the window, in samples */
    struct dpt_parts scaled; /* the same in floats */
    float *values, *beside;  /* this rank's part of the window */
    float *all, *all_beside; /* the window, on rank 0; this rank's own where there is one rank */
    float *probabilities, *targets, *loss;
    int32_t *labels, *classes;
    int64_t *sample;
};

/* A micro-batch of a feed. */
static enum dpt_status fill_from_feed(struct work *w, int32_t micro_batch,
                                      struct dpt_batch_buffer *buffer, struct dpt_batch *batch,
                                      struct dpt_error *err)
{
    const size_t size = (size_t)dpt_shape_size(&w->t->model.graph.nodes[0].out);
    const int32_t micro = w->sampler->micro, left = w->view.total - micro_batch * micro;
    const int64_t first = w->before + (int64_t)micro_batch * micro;
    const int32_t count = left < micro ? left : micro;

    *batch = (struct dpt_batch){.count = count, .input = buffer->input, .sample = buffer->sample};
    for (int32_t i = 0; i < count; i++)
        buffer->sample[i] = first + i;
    memset(buffer->input + (size_t)count * size, 0, (size_t)(micro - count) * size * sizeof(float));
    return w->feed->fill(w->feed->arg, first, buffer, batch, err);
}

/* What rank 0 is told beside a sample's outputs: its loss and its truth. */
static void tell_beside(const struct work *w, const struct dpt_batch *batch, const float *values,
                        float *beside)
{
    for (int32_t i = 0; i < batch->count && w->truth != DPT_TRUTH_NONE; i++) {
        const struct dpt_batch one = {
            .count = 1,
            .labels = batch->labels != NULL ? batch->labels + i : NULL,
            .targets =
                batch->targets != NULL ? batch->targets + (size_t)i * (size_t)w->outputs : NULL,
        };
        struct dpt_metric_sums metric_sums = {0};

        dpt_loss_rows(&w->t->model.loss, &one, w->outputs, (size_t)w->outputs,
                      values + (size_t)i * (size_t)w->outputs, NULL, &metric_sums);
        beside[0] = (float)metric_sums.loss;
        if (one.labels != NULL)
            memcpy(beside + 1, one.labels, sizeof *one.labels);
        else
            memcpy(beside + 1, one.targets, (size_t)w->outputs * sizeof(float));
        beside += w->extras;
    }
}

static void predict_part(void *arg, int thread)
{
    struct work *w = arg;
    struct dpt_trainer *t = w->t;
    struct dpt_worker *worker = &t->team.workers[thread];
    const int32_t n = w->view.last - w->view.first;
    const int32_t end = w->view.first + (int32_t)((int64_t)n * (thread + 1) / t->team.threads);
    struct dpt_batch batch = {0};

    for (int32_t i = w->view.first + (int32_t)((int64_t)n * thread / t->team.threads); i < end;
         i++) {
        const size_t row = (size_t)(i - w->view.first) * (size_t)w->sampler->micro;
        float *values = w->values + row * (size_t)w->outputs;

        worker->status = w->split != NULL
                             ? dpt_loader_fill(w->split->loader, &w->view, i, &worker->buffer,
                                               &batch, &worker->err)
                             : fill_from_feed(w, i, &worker->buffer, &batch, &worker->err);
        if (worker->status == DPT_OK)
            worker->status = t->backend->infer(t->model.program, thread, &batch, t->arenas.params,
                                               values, NULL, &worker->err);
        if (worker->status != DPT_OK)
            return;
        tell_beside(w, &batch, values, w->beside + row * (size_t)w->extras);
    }
}

/* This rank's part of the next window. */
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
        DPT_TRY(w->feed->fetch(w->feed->arg, w->before + w->parts.at[world->rank],
                               w->parts.count[world->rank], err));
    }
    DPT_TRY(dpt_trainer_run(w->t, predict_part, w, err));
out:
    return status;
}

/* How the ranks share a window. */
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

/* Collective. The ranks' rows of so many floats, on rank 0. */
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

/* The softmax of a row, and the first of its largest values. */
static int32_t soften(const float *logits, int32_t n, float *out)
{
    int32_t best = 0;
    double sum = 0;

    for (int32_t k = 1; k < n; k++)
        if (logits[k] > logits[best])
            best = k;
    for (int32_t k = 0; k < n; k++)
        sum += exp((double)logits[k] - (double)logits[best]);
    for (int32_t k = 0; k < n; k++)
        out[k] = (float)(exp((double)logits[k] - (double)logits[best]) / sum);
    return best;
}

static void soften_part(void *arg, int thread)
{
    struct work *w = arg;
    const int64_t total = w->view.total;
    const int64_t end = total * (thread + 1) / w->t->team.threads;

    for (int64_t i = total * thread / w->t->team.threads; i < end; i++)
        w->labels[i] =
            soften(w->all + i * w->outputs, w->outputs, w->probabilities + i * w->outputs);
}

/* Rank 0: sorts out what came beside the outputs, and sums it up. */
static void sort_out(struct work *w, struct dpt_metric_sums *total)
{
    for (int32_t i = 0; i < w->view.total; i++) {
        const float *beside = w->all_beside + (size_t)i * (size_t)w->extras;
        const float *values = w->all + (size_t)i * (size_t)w->outputs;
        struct dpt_batch one = {.count = 1};

        if (w->truth == DPT_TRUTH_NONE)
            break;
        w->loss[i] = beside[0];
        if (w->truth == DPT_TRUTH_CLASS) {
            memcpy(&w->classes[i], beside + 1, sizeof *w->classes);
            one.labels = &w->classes[i];
        } else {
            one.targets = w->targets + (size_t)i * (size_t)w->outputs;
            memcpy(w->targets + (size_t)i * (size_t)w->outputs, beside + 1,
                   (size_t)w->outputs * sizeof(float));
        }
        dpt_loss_rows(&w->t->model.loss, &one, w->outputs, (size_t)w->outputs, values, NULL, total);
    }
}

/* Rank 0: hands a window to the sink. */
static enum dpt_status hand_over(struct work *w, dpt_predict_sink *sink, void *arg,
                                 struct dpt_metric_sums *total, struct dpt_error *err)
{
    const bool classes = w->t->model.loss.kind == DPT_LOSS_CROSS_ENTROPY;
    const struct dpt_predicted predicted = {
        .first = w->before,
        .count = w->view.total,
        .outputs = w->outputs,
        .sample = w->sample,
        .values = w->all,
        .probabilities = classes ? w->probabilities : NULL,
        .labels = classes ? w->labels : NULL,
        .classes = w->truth == DPT_TRUTH_CLASS ? w->classes : NULL,
        .targets = w->truth == DPT_TRUTH_VECTOR ? w->targets : NULL,
        .loss = w->truth == DPT_TRUTH_NONE ? NULL : w->loss,
    };

    if (classes)
        dpt_pool_run(w->t->team.pool, soften_part, w);
    sort_out(w, total);
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
    const size_t outputs = (size_t)w->outputs, extras = (size_t)w->extras;
    const size_t batches = most / (size_t)w->sampler->micro + 1;
    const size_t mine = (batches / ranks + 1) * (size_t)w->sampler->micro;
    bool good;

    if (most * (outputs + extras) > INT32_MAX) /* MPI counts with int */
        return dpt_fail(err, DPT_BAD_JOB,
                        "%zu samples of %zu outputs at once are too many: a smaller batch.micro "
                        "would do",
                        most, outputs);
    w->parts.count = dpt_alloc_array(4 * ranks, sizeof *w->parts.count);
    w->values = dpt_alloc_array(mine * outputs, sizeof *w->values);
    w->beside = dpt_alloc_array(mine * extras, sizeof *w->beside);
    good = w->parts.count != NULL && w->values != NULL && w->beside != NULL;
    if (good) {
        w->parts.at = w->parts.count + ranks;
        w->scaled.count = w->parts.at + ranks;
        w->scaled.at = w->scaled.count + ranks;
    }
    if (world->rank == 0) {
        w->all = ranks == 1 ? w->values : dpt_alloc_array(most * outputs, sizeof *w->all);
        w->all_beside = ranks == 1 ? w->beside : dpt_alloc_array(most * extras, sizeof *w->all);
        w->probabilities = dpt_alloc_array(most * outputs, sizeof *w->probabilities);
        w->targets =
            dpt_alloc_array(w->truth == DPT_TRUTH_VECTOR ? most * outputs : 0, sizeof *w->targets);
        w->loss = dpt_alloc_array(most, sizeof *w->loss);
        w->labels = dpt_alloc_array(most, sizeof *w->labels);
        w->classes = dpt_alloc_array(most, sizeof *w->classes);
        w->sample = dpt_alloc_array(most, sizeof *w->sample);
        good = good && w->all != NULL && w->all_beside != NULL && w->probabilities != NULL &&
               w->targets != NULL && w->loss != NULL && w->labels != NULL && w->classes != NULL &&
               w->sample != NULL;
    }
    return good ? DPT_OK
                : dpt_fail_memory(err, "the outputs of some samples",
                                  (double)most * 2 * (double)(outputs + extras) * sizeof(float));
}

static void release(struct work *w)
{
    if (w->all != w->values) {
        dpt_free(w->all);
        dpt_free(w->all_beside);
    }
    dpt_free(w->parts.count);
    dpt_free(w->values);
    dpt_free(w->beside);
    dpt_free(w->probabilities);
    dpt_free(w->targets);
    dpt_free(w->loss);
    dpt_free(w->labels);
    dpt_free(w->classes);
    dpt_free(w->sample);
}

/* Collective. All windows, one after another. What fails on one rank fails on all. */
static enum dpt_status predict(struct work *w, dpt_predict_sink *sink, void *arg,
                               struct dpt_metric_sums *total, struct dpt_error *err)
{
    const struct dpt_group *world = &w->t->comm->world;
    const int64_t steps = dpt_sampler_steps(w->sampler);
    enum dpt_status status = DPT_OK, mine;

    *total = (struct dpt_metric_sums){0};
    dpt_comm_note(w->t->comm, 0, "predicting");
    w->extras = w->truth == DPT_TRUTH_NONE ? 0 : w->truth == DPT_TRUTH_CLASS ? 2 : 1 + w->outputs;
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
        DPT_TRY(collect(w, w->beside, w->all_beside, w->extras, err));
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
    struct dpt_metric_sums own;

    return predict(&w, sink, arg, total != NULL ? total : &own, err);
}

enum dpt_status dpt_trainer_predict_feed(struct dpt_trainer *t, const struct dpt_feed *feed,
                                         dpt_predict_sink *sink, void *arg,
                                         struct dpt_metric_sums *total, struct dpt_error *err)
{
    struct work w = {
        .t = t,
        .feed = feed,
        .sampler = feed->sampler,
        .truth = feed->truth,
        .outputs = dpt_graph_outputs(&t->model.graph),
    };
    struct dpt_metric_sums own;

    return predict(&w, sink, arg, total != NULL ? total : &own, err);
}
