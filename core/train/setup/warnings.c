#include "core/train/setup/warnings.h"

#include <stdio.h>
#include <string.h>

#include "core/backend/operation.h"
#include "core/base/memory.h"
#include "core/train/layout/shares.h"
#include "core/train/update/schedule.h"
#include "models/model.h"

/* --- the job ---------------------------------------------------------------------------------- */

/* Layers after which an output cannot have each value. */
static const enum dpt_op bounding[] = {DPT_OP_RELU, DPT_OP_RELU6,     DPT_OP_GELU,
                                       DPT_OP_SILU, DPT_OP_ELU,       DPT_OP_SIGMOID,
                                       DPT_OP_TANH, DPT_OP_HARDSWISH, DPT_OP_SOFTPLUS};

/* A loss of classes or labels makes probabilities of the outputs by itself. */
static void warn_last_layer(const struct dpt_job *job, const struct dpt_trainer_model *model,
                            struct dpt_log *log)
{
    const struct dpt_graph *graph = &model->graph;
    const struct dpt_graph_node *last = &graph->nodes[graph->n_nodes - 1];

    for (size_t i = 0; i < sizeof bounding / sizeof *bounding; i++)
        if (last->op == bounding[i] && dpt_loss_judges(model->loss.kind))
            dpt_log_warn(log,
                         "model: the last layer is %s, and loss %s has the %s in it, so it takes "
                         "outputs of any size: leave that layer out",
                         dpt_operations[last->op]->name, job->loss.variant->name,
                         dpt_loss_has_classes(model->loss.kind) ? "softmax" : "sigmoid");
}

static void warn_rate(const struct dpt_job *job, const struct dpt_schedule_point *end, double lr,
                      struct dpt_log *log)
{
    const double warmup = dpt_schedule_warmup(&job->schedule, end);

    if (lr == 0)
        dpt_log_warn(log, "optimizer.lr is 0: the run changes no weight");
    else if (warmup > (double)end->steps)
        dpt_log_warn(log,
                     "schedule.warmup is %.0f steps, and the run has %lld: it ends at %.3g, and "
                     "never reaches its learning rate, %.3g",
                     warmup, (long long)end->steps, dpt_schedule_rate(&job->schedule, lr, end), lr);
}

void dpt_warn_job(const struct dpt_job *job, const struct dpt_trainer_model *model, int64_t steps,
                  int64_t steps_per_epoch, double lr, struct dpt_log *log)
{
    const struct dpt_schedule_point end = {
        .step = steps - 1, .steps = steps, .steps_per_epoch = steps_per_epoch};

    warn_last_layer(job, model, log);
    warn_rate(job, &end, lr, log);
}

/* --- the data --------------------------------------------------------------------------------- */

/* The first batch norm of which a step's last variance would be of a single number, or NULL. */
static const struct dpt_graph_node *lone_norm(const struct dpt_graph *graph, int32_t whole,
                                              int64_t samples, int32_t micro)
{
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];

        if (node->op == DPT_OP_BATCHNORM && !node->by_running) {
            const int64_t each = dpt_graph_variance_samples(node, whole, micro);

            if (each > 1 && samples % each == 1)
                return node;
        }
    }
    return NULL;
}

/* The size of micro-batch closest to the present one with which no batch norm gets a single sample,
 * smaller if possible; 0: there is none. */
static int32_t micro_without(const struct dpt_graph *graph, int32_t now, int32_t whole,
                             int32_t last)
{

    for (int32_t k = 0; k < whole; k++) {
        const int32_t micro = k < now ? now - k : k + 1;

        if (micro > 1 && lone_norm(graph, whole, whole, micro) == NULL &&
            lone_norm(graph, whole, last, micro) == NULL)
            return micro;
    }
    return 0;
}

/* Warns if a batch norm gets a single number of each channel, which is its own mean. */
static void warn_lone(const struct dpt_graph *graph, const struct dpt_sampler *s,
                      struct dpt_log *log)
{
    const int32_t whole = dpt_sampler_count(s, 0),
                  last = dpt_sampler_count(s, dpt_sampler_steps(s) - 1);
    const struct dpt_graph_node *each = lone_norm(graph, whole, whole, s->micro),
                                *node =
                                    each != NULL ? each : lone_norm(graph, whole, last, s->micro);
    int32_t micro;
    char what[64] = "an epoch's last step is one sample";
    char cure[64] = "another batch.global would do";

    if (node == NULL)
        return;
    micro = micro_without(graph, s->micro, whole, last);
    if (each != NULL || last > 1)
        snprintf(what, sizeof what, "%s step of %d ends with a micro-batch of one sample",
                 each != NULL ? "each" : "an epoch's last", each != NULL ? whole : last);
    if (micro > 0)
        snprintf(cure, sizeof cure, "batch.micro: %d would do", micro);
    else if (each == NULL)
        snprintf(cure, sizeof cure, "data.drop_last: true leaves that step out");
    dpt_log_warn(log, "%s: %s, for which a batchnorm gives the same outputs whatever it is; %s",
                 node->name, what, cure);
}

/* Warns of class names that are not distinct. */
static void warn_names(const struct dpt_trainer_model *model, const struct dpt_called *called,
                       struct dpt_log *log)
{
    enum { MOST = 4096 }; /* names compared, each with each */
    const size_t outputs = (size_t)dpt_graph_outputs(&model->graph);
    const char *const *names = called->at;

    if (!dpt_loss_judges(model->loss.kind) || called->n == 0)
        return;
    if (called->n < outputs)
        dpt_log_warn(log,
                     "the data name %zu of %zu classes; predictions show the others as numbers",
                     called->n, outputs);
    for (size_t i = 1; i < called->n && i < MOST; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(names[i], names[k]) == 0) {
                dpt_log_warn(log,
                             "the data call classes %zu and %zu both '%.60s': predictions show "
                             "them as one",
                             k, i, names[i]);
                return;
            }
}

void dpt_warn_data(const struct dpt_job *job, const struct dpt_splits *data,
                   const struct dpt_trainer_model *model, struct dpt_log *log)
{
    const struct dpt_sampler *s = &data->train.sampler;
    char text[DPT_ERROR_TEXT];

    for (const struct dpt_split *split = data->split; split < data->split + DPT_SPLITS; split++)
        if (split->present && split->set != data->train.set &&
            dpt_dataset_shared(data->train.set, split->set) != NULL)
            dpt_log_warn(log,
                         "data.%s: %s is in data.train, too: its scores are of what was learned",
                         split->name, dpt_dataset_shared(data->train.set, split->set));
    warn_names(model, &data->called, log);
    if (s->samples < s->global)
        dpt_log_warn(log,
                     "%s: a step of %d is more than the %lld training sample%s, so an epoch is one "
                     "step of %lld; batch.global: %lld or less would give it more",
                     job->batch.per_rank > 0 ? "batch.per_rank" : "batch.global", s->global,
                     (long long)s->samples, s->samples == 1 ? "" : "s", (long long)s->samples,
                     (long long)(s->samples > 1 ? s->samples / 2 : 1));
    warn_lone(&model->graph, s, log);
    if (!dpt_loss_judges(model->loss.kind) &&
        dpt_dataset_suspect_classes(data->train.set, text, sizeof text))
        dpt_log_warn(log, "%s", text);
    if (dpt_dataset_suspect_numbers(data->train.set, text, sizeof text))
        dpt_log_warn(log, "%s", text);
}

/* --- the division ----------------------------------------------------------------------------- */

/* Warns where a replica's micro-batches are fewer than the stages that they go through. */
static void warn_waiting(const struct dpt_layout *l, struct dpt_log *log)
{
    const int replicas = l->replicas, stages = l->stages;
    const int each = (int)dpt_layout_most_micros(l);
    int64_t would;

    if (each >= stages)
        return;
    would = l->job->batch.global / ((int64_t)stages * replicas);
    dpt_log_warn(log,
                 "a replica has %d micro-batch%s per step, fewer than the %d stages, so each stage "
                 "waits %d %% of the time; batch.micro: %lld or less would feed all",
                 each, each == 1 ? "" : "es", stages, 100 * (stages - 1) / (each + stages - 1),
                 (long long)(would > 0 ? would : 1));
}

/* A device takes a rank's micro-batches one after another, each with launches of its own. */
static void warn_small(const struct dpt_layout *l, struct dpt_log *log)
{
    const int ranks = l->replicas, each = (int)dpt_layout_most_micros(l);

    if (l->backend->steps == NULL || l->job->batch.micro != 0 ||
        l->graph->arena == l->graph->floats ||
        l->job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE || each < 2)
        return;
    dpt_log_warn(log,
                 "a GPU computes %d micro-batches of %d per step, one after another, since with a "
                 "batchnorm their size follows from the job alone; batch.micro: %d is one, whose "
                 "statistics are of that many samples, and is faster",
                 each, l->micro, (l->sampler.global + ranks - 1) / ranks);
}

void dpt_warn_idle(const struct dpt_layout *l, struct dpt_log *log)
{
    const struct dpt_sampler *s = &l->sampler;
    const struct dpt_sampler step = {.samples = s->global, .global = s->global, .micro = s->micro};
    const int ranks = l->replicas, batches = dpt_sampler_micro_batches(&step, 0);
    const int64_t feeding = dpt_feeding_micro(s->global, ranks);
    struct dpt_str who = {0}, cure = {0};
    bool *idle = batches < ranks ? dpt_alloc_array((size_t)ranks, sizeof *idle) : NULL;

    warn_waiting(l, log);
    warn_small(l, log);
    if (idle == NULL)
        return;
    for (int r = 0; r < ranks; r++) {
        int32_t first, last;

        dpt_sampler_partition(&step, 0, r, ranks, &first, &last);
        idle[r] = first == last;
    }
    dpt_str_ranks_where(&who, idle, ranks);
    if (feeding > 0)
        dpt_str_printf(&cure, "batch.micro: %lld%s would feed all", (long long)feeding,
                       feeding > 1 ? " or less" : "");
    else
        dpt_str_printf(&cure, "start fewer ranks, or make batch.global larger");
    if (!who.failed && !cure.failed)
        dpt_log_warn(log,
                     ranks - batches == 1
                         ? "%s %s of %d stays idle: %d / %d gives %d micro-batch%s per step; %s"
                         : "%ss %s of %d stay idle: %d / %d gives %d micro-batch%s per step; %s",
                     ranks < l->ranks ? "replica" : "rank", who.text, ranks, s->global, s->micro,
                     batches, batches == 1 ? "" : "es", cure.text);
    dpt_str_release(&who);
    dpt_str_release(&cure);
    dpt_free(idle);
}
