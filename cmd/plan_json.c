#include "cmd/plan.h"

static void number(struct dpt_str *out, const char *before, const char *key, double value)
{
    dpt_str_printf(out, "%s\"%s\": ", before, key);
    dpt_str_number(out, value);
}

static void text(struct dpt_str *out, const char *before, const char *key, const char *value)
{
    dpt_str_printf(out, "%s\"%s\": ", before, key);
    dpt_str_json(out, value);
}

static void layers(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_graph *graph = &p->t.model.graph;
    char shape[40];

    dpt_str_printf(out, ", \"layers\": [");
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        double forward, backward, count = 0;

        for (int k = 0; k < 2; k++) {
            const int32_t tensor = k == 0 ? node->weight : node->bias;

            count += tensor < 0 ? 0 : (double)graph->tensors[tensor].count;
        }
        dpt_plan_flop(p, i, &forward, &backward);
        text(out, i == 0 ? "{" : ", {", "name", node->name);
        text(out, ", ", "output", dpt_shape_text(&node->out, shape));
        number(out, ", ", "parameters", count);
        number(out, ", ", "flop_forward", forward);
        number(out, ", ", "flop_backward", backward);
        dpt_str_printf(out, "}");
    }
    number(out, "], ", "parameters", (double)graph->parameters);
}

static void deal(const struct dpt_plan *p, int64_t step, const char *key, struct dpt_str *out)
{
    dpt_str_printf(out, ", \"%s\": [", key);
    for (int r = 0; r < p->spec.ranks; r++) {
        int32_t first, last;

        dpt_sampler_deal(&p->t.data.train.sampler, step, r, p->spec.ranks, &first, &last);
        dpt_str_printf(out, "%s[%d, %d]", r == 0 ? "" : ", ", first, last);
    }
    dpt_str_printf(out, "]");
}

static void steps(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_trainer *t = &p->t;
    const struct dpt_sampler *s = &t->data.train.sampler;

    dpt_str_printf(out, ", \"batch\": {\"global\": %d, \"micro\": %d}", s->global, s->micro);
    number(out, ", \"steps\": {", "samples_per_epoch", (double)s->samples);
    number(out, ", ", "held_out", (double)s->held_out);
    number(out, ", ", "per_epoch", (double)t->steps_per_epoch);
    number(out, ", ", "last_samples", dpt_sampler_count(s, t->steps_per_epoch - 1));
    number(out, ", ", "total", (double)t->steps);
    deal(p, 0, "deal", out);
    deal(p, t->steps_per_epoch - 1, "last_deal", out);
    dpt_str_printf(out, "}");
}

static void rates(const struct dpt_plan *p, struct dpt_str *out)
{
    struct dpt_plan_rate found[DPT_PLAN_RATES];
    const int n = dpt_plan_rates(p, found);

    dpt_str_printf(out, ", \"lr\": [");
    for (int i = 0; i < n; i++) {
        number(out, i == 0 ? "{" : ", {", "step", (double)found[i].step);
        number(out, ", ", "lr", found[i].lr);
        dpt_str_printf(out, "}");
    }
    dpt_str_printf(out, "]");
}

static void memory(const struct dpt_plan *p, struct dpt_str *out)
{
    static const char *const scopes[] = {"rank", "rank 0", "node"};

    dpt_str_printf(out, ", \"memory\": {\"parts\": {");
    for (int i = 0; i < DPT_PLAN_MEMORY; i++) {
        number(out, i == 0 ? "" : ", ", p->memory[i].key, p->memory[i].bytes);
    }
    dpt_str_printf(out, "}, \"of\": {");
    for (int i = 0; i < DPT_PLAN_MEMORY; i++)
        text(out, i == 0 ? "" : ", ", p->memory[i].key, scopes[p->memory[i].scope]);
    number(out, "}, ", "rank_0", p->first_rank);
    number(out, ", ", "rank", p->other_rank);
    number(out, ", ", "node", p->node);
    dpt_str_printf(out, ", \"available\": ");
    if (p->available >= 0)
        dpt_str_number(out, p->available);
    else
        dpt_str_printf(out, "null");
    dpt_str_printf(out, ", \"fits\": %s}",
                   p->available < 0          ? "null"
                   : p->node <= p->available ? "true"
                                             : "false");
    number(out, ", ", "checkpoint_bytes", (double)p->checkpoint);
    number(out, ", ", "reduced_bytes", p->reduced);
}

static void device(const struct dpt_plan *p, struct dpt_str *out)
{
    text(out, ", \"device\": {", "name", p->gpu.name);
    dpt_str_printf(out, ", \"here\": %s", p->gpu_here ? "true" : "false");
    text(out, ", ", "precision", dpt_job_precision(p->t.job));
    number(out, ", ", "memory_bytes", p->gpu.memory);
    number(out, ", ", "bytes_per_s", p->gpu.bandwidth);
    number(out, ", ", "flop_per_s", p->gpu.flops[p->t.job->device.precision]);
    dpt_str_printf(out, ", \"parts\": {");
    for (int i = 0; i < DPT_PLAN_DEVICE; i++)
        number(out, i == 0 ? "" : ", ", p->device[i].key, p->device[i].bytes);
    number(out, "}, ", "bytes", p->device_bytes);
    dpt_str_printf(out, ", \"fits\": %s, \"micro_that_fits\": ",
                   p->device_bytes <= p->gpu.memory ? "true" : "false");
    if (p->device_micro > 0)
        dpt_str_printf(out, "%d}", p->device_micro);
    else
        dpt_str_printf(out, "null}");
}

static void step(const char *before, const char *key, const struct dpt_plan_step *s, int64_t global,
                 struct dpt_str *out)
{
    dpt_str_printf(out, "%s\"%s\": ", before, key);
    if (s->total <= 0) {
        dpt_str_printf(out, "null");
        return;
    }
    number(out, "{", "seconds", s->total);
    number(out, ", ", "samples_per_s", (double)global / s->total);
    number(out, ", ", "global", (double)global);
    number(out, ", ", "micro", s->micro);
    number(out, ", ", "compute_s", s->compute);
    number(out, ", ", "data_s", s->data);
    number(out, ", ", "local_sum_s", s->local);
    number(out, ", ", "network_sum_s", s->network);
    number(out, ", ", "update_s", s->update);
    dpt_str_printf(out, "}");
}

static void time(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_fabric *f = &p->spec.fabric;
    struct dpt_plan_scale scales[DPT_PLAN_SCALES];

    dpt_plan_scales(p, scales);
    dpt_str_printf(out, ", \"time\": {\"tried\": %s", p->trial.done ? "true" : "false");
    number(out, ", ", "flop_per_s_thread", p->machine.flops);
    number(out, ", ", "memory_bytes_per_s_thread", p->machine.memory[DPT_MACHINE_SIZES - 1].rate);
    number(out, ", \"fabric\": {", "latency_s", f->latency);
    number(out, ", ", "overhead_s", f->overhead);
    number(out, ", ", "bytes_per_s", f->bandwidth);
    step("}, ", "step", &p->step, p->t.data.train.sampler.global, out);
    number(out, ", ", "training_s", p->step.total * (double)p->t.steps);
    dpt_str_printf(out, ", \"scaling\": [");
    for (int i = 0; i < DPT_PLAN_SCALES; i++) {
        const struct dpt_plan_scale *s = &scales[i];

        dpt_str_printf(out, "%s{\"ranks\": %d", i == 0 ? "" : ", ", s->ranks);
        step(", ", "strong", &s->strong, p->t.data.train.sampler.global, out);
        step(", ", "weak", &s->weak, s->weak_global, out);
        dpt_str_printf(out, "}");
    }
    dpt_str_printf(out, "]}");
}

void dpt_plan_json(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_trainer *t = &p->t;

    text(out, "{", "name", t->job->name);
    text(out, ", ", "version", DPT_VERSION);
    dpt_str_printf(out, ", \"ranks\": %d, \"ranks_per_node\": %d, \"nodes\": %d, \"threads\": %d",
                   p->spec.ranks, p->spec.node_ranks, p->nodes, t->team.threads);
    text(out, ", ", "backend", t->backend->name);
    text(out, ", ", "library", t->backend->describe());
    layers(p, out);
    steps(p, out);
    rates(p, out);
    memory(p, out);
    if (p->gpu.name[0] != '\0')
        device(p, out);
    if (p->step.total > 0)
        time(p, out);
    dpt_str_printf(out, "}\n");
}
