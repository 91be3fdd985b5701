/* Samples from files that are no data set of the job. */
#include "core/train/predict.h"
#include "models/model.h"

/* A window is so many bytes of samples a thread, or this many micro-batches at most. */
enum { WINDOW_BYTES = 8 << 20, WINDOW_MICROS = 16 };

struct source_feed {
    struct dpt_source *source;
    const struct dpt_source_info *info;
    size_t size; /* floats of a sample */
    int32_t outputs;
};

static enum dpt_status fetch(void *arg, int64_t first, int64_t n, struct dpt_error *err)
{
    const struct source_feed *feed = arg;

    return n > 0 ? dpt_source_fetch(feed->source, first, n, err) : DPT_OK;
}

static enum dpt_status fill(void *arg, int64_t first, struct dpt_batch_buffer *buffer,
                            struct dpt_batch *batch, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct source_feed *feed = arg;
    char where[512];

    for (int32_t i = 0; i < batch->count; i++) {
        DPT_TRY(
            dpt_source_fill(feed->source, first + i, buffer->input + (size_t)i * feed->size, err));
        if (feed->info->truth != DPT_TRUTH_CLASS)
            continue;
        buffer->labels[i] = dpt_source_class(feed->source, first + i);
        if (buffer->labels[i] < 0 || buffer->labels[i] >= feed->outputs)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: its label is %d, the model has %d outputs (0 to %d)",
                             dpt_source_where(feed->source, first + i, where), buffer->labels[i],
                             feed->outputs, feed->outputs - 1));
    }
    if (feed->info->truth == DPT_TRUTH_CLASS)
        batch->labels = buffer->labels;
    if (feed->info->truth == DPT_TRUTH_VECTOR)
        batch->targets = dpt_source_target(feed->source, first);
out:
    return status;
}

/* Whether what comes with the samples can be compared with what the model says. */
static enum dpt_status check_truth(const struct dpt_trainer *t, const struct source_feed *feed,
                                   struct dpt_error *err)
{
    const struct dpt_source_info *info = feed->info;
    char where[512];

    if (info->truth == DPT_TRUTH_VECTOR && info->width != feed->outputs)
        return dpt_fail(err, DPT_BAD_DATA, "%s: comes with %d target%s, the model has %d output%s",
                        dpt_source_where(feed->source, 0, where), info->width,
                        info->width == 1 ? "" : "s", feed->outputs, feed->outputs == 1 ? "" : "s");
    if (info->truth == DPT_TRUTH_CLASS && t->model.loss.kind == DPT_LOSS_MSE)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: comes with a class; a model with loss mse is compared with targets",
                        dpt_source_where(feed->source, 0, where));
    return DPT_OK;
}

enum dpt_status dpt_trainer_predict_source(struct dpt_trainer *t, struct dpt_source *source,
                                           dpt_predict_sink *sink, void *arg,
                                           struct dpt_metric_sums *total, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct source_feed from = {
        .source = source,
        .info = dpt_source_info(source),
        .size = (size_t)dpt_shape_size(&t->model.graph.nodes[0].out),
        .outputs = dpt_graph_outputs(&t->model.graph),
    };
    const int32_t micro = (int32_t)t->job->batch.micro;
    const double bytes = (double)micro * ((double)from.size + from.outputs) * sizeof(float);
    const int64_t micros = bytes * WINDOW_MICROS < WINDOW_BYTES ? WINDOW_MICROS
                           : bytes < WINDOW_BYTES               ? (int64_t)(WINDOW_BYTES / bytes)
                                                                : 1;
    const struct dpt_sampler sampler = {
        .total = from.info->samples,
        .samples = from.info->samples,
        .micro = micro,
        .global = (int32_t)(micro * t->team.all_threads * micros),
        .shuffle = DPT_SHUFFLE_NONE,
    };
    const struct dpt_feed feed = {
        .sampler = &sampler, .truth = from.info->truth, .fetch = fetch, .fill = fill, .arg = &from};

    DPT_TRY(check_truth(t, &from, err)); /* the same on all ranks */
    DPT_TRY(dpt_trainer_predict_feed(t, &feed, sink, arg, total, err));
out:
    return status;
}
