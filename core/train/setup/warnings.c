/* What a job says that is likely not meant, and that no number of a run would show. */
#include "core/backend/operation.h"
#include "core/train/trainer.h"
#include "core/train/update/schedule.h"

/* Layers behind which an output cannot have each value. */
static const enum dpt_op bounding[] = {DPT_OP_RELU, DPT_OP_RELU6,     DPT_OP_GELU,
                                       DPT_OP_SILU, DPT_OP_ELU,       DPT_OP_SIGMOID,
                                       DPT_OP_TANH, DPT_OP_HARDSWISH, DPT_OP_SOFTPLUS};

/* A loss of classes or labels makes probabilities of the outputs by itself. */
static void warn_last_layer(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_graph_node *last = &graph->nodes[graph->n_nodes - 1];

    for (size_t i = 0; i < sizeof bounding / sizeof *bounding; i++)
        if (last->op == bounding[i] && dpt_loss_judges(t->model.loss.kind))
            dpt_log_warn(log,
                         "model: the last layer is %s, and loss %s has the %s in it, so it takes "
                         "outputs of any size: leave that layer out",
                         dpt_operations[last->op]->name, t->job->loss.variant->name,
                         dpt_loss_has_classes(t->model.loss.kind) ? "softmax" : "sigmoid");
}

static void warn_rate(const struct dpt_trainer *t, struct dpt_log *log)
{
    const struct dpt_schedule_point end = {
        .step = t->steps - 1, .steps = t->steps, .steps_per_epoch = t->steps_per_epoch};
    const double warmup = dpt_schedule_warmup(&t->job->schedule, &end);

    if (t->lr == 0)
        dpt_log_warn(log, "optimizer.lr is 0: the run changes no weight");
    else if (warmup > (double)t->steps)
        dpt_log_warn(log,
                     "schedule.warmup is %.0f steps, and the run has %lld: it ends at %.3g, and "
                     "never reaches its learning rate, %.3g",
                     warmup, (long long)t->steps, dpt_schedule_rate(&t->job->schedule, t->lr, &end),
                     t->lr);
}

void dpt_trainer_warn_job(const struct dpt_trainer *t, struct dpt_log *log)
{
    warn_last_layer(t, log);
    warn_rate(t, log);
}
