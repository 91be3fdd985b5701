#include <math.h>

#include "cmd/plan/plan.h"

static void layers(const struct dpt_plan *p, struct dpt_json *j)
{
    const struct dpt_graph *graph = &p->model.graph;
    char shape[40];

    dpt_json_array(j, "layers");
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        double forward, backward;

        dpt_plan_flop(p, i, &forward, &backward);
        dpt_json_object(j, NULL);
        dpt_json_text(j, "name", node->name);
        dpt_json_array(j, "reads");
        for (int32_t k = 0; k < node->n_inputs; k++)
            dpt_json_text(j, NULL, graph->nodes[node->inputs[k]].name);
        dpt_json_end(j);
        dpt_json_text(j, "output", dpt_shape_text(&node->out, shape));
        dpt_json_int(j, "parameters", dpt_graph_node_parameters(graph, node));
        dpt_json_real(j, "flop_forward", forward);
        dpt_json_real(j, "flop_backward", backward);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_int(j, "parameters", graph->parameters);
}

static void shares(const struct dpt_plan *p, int64_t step, const char *key, struct dpt_json *j)
{
    dpt_json_array(j, key);
    for (int r = 0; r < p->layout.replicas; r++) {
        int32_t first, last;

        dpt_sampler_partition(&p->data.train.sampler, step, r, p->layout.replicas, &first, &last);
        dpt_json_array(j, NULL);
        dpt_json_int(j, NULL, first);
        dpt_json_int(j, NULL, last);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

static void steps(const struct dpt_plan *p, struct dpt_json *j)
{
    const struct dpt_sampler *s = &p->data.train.sampler;

    dpt_json_object(j, "batch");
    dpt_json_int(j, "global", s->global);
    dpt_json_int(j, "micro", s->micro);
    dpt_json_end(j);
    dpt_json_object(j, "steps");
    dpt_json_int(j, "samples_per_epoch", s->samples);
    dpt_json_int(j, "held_out", s->held_out);
    dpt_json_int(j, "per_epoch", p->steps_per_epoch);
    dpt_json_int(j, "last_samples", dpt_sampler_count(s, p->steps_per_epoch - 1));
    dpt_json_int(j, "total", p->steps);
    /* 0: a rank has one run of micro-batches; else its first one, and how many after that. */
    dpt_json_int(j, "in_turn", s->round_robin);
    shares(p, 0, "deal", j);
    shares(p, p->steps_per_epoch - 1, "last_deal", j);
    dpt_json_end(j);
}

static void rates(const struct dpt_plan *p, struct dpt_json *j)
{
    struct dpt_plan_rate found[DPT_PLAN_RATES];
    const int n = dpt_plan_rates(p, found);

    dpt_json_array(j, "lr");
    for (int i = 0; i < n; i++) {
        dpt_json_object(j, NULL);
        dpt_json_int(j, "step", found[i].step);
        dpt_json_real(j, "lr", found[i].lr);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

static void memory(const struct dpt_plan *p, struct dpt_json *j)
{
    static const char *const scopes[] = {"rank", "rank 0", "node", "node"};
    const struct dpt_plan_traffic *traffic = &p->stages[p->stage->number].traffic;

    dpt_json_object(j, "memory");
    dpt_json_object(j, "parts");
    for (int i = 0; i < DPT_PLAN_MEMORY; i++)
        dpt_json_real(j, p->memory[i].key, p->memory[i].bytes);
    dpt_json_end(j);
    dpt_json_object(j, "of");
    for (int i = 0; i < DPT_PLAN_MEMORY; i++)
        dpt_json_text(j, p->memory[i].key, scopes[p->memory[i].scope]);
    dpt_json_end(j);
    dpt_json_real(j, "rank_0", p->first_rank);
    dpt_json_real(j, "rank", p->other_rank);
    dpt_json_real(j, "node", p->node);
    dpt_json_real(j, "available", p->available >= 0 ? p->available : NAN);
    if (p->available < 0)
        dpt_json_null(j, "fits");
    else
        dpt_json_bool(j, "fits", p->node <= p->available);
    dpt_json_end(j);
    dpt_json_int(j, "checkpoint_bytes", (int64_t)p->checkpoint);
    dpt_json_real(j, "reduced_bytes", p->reduced);
    dpt_json_real(j, "gathered_bytes", p->gathered);
    dpt_json_int(j, "updaters", p->layout.updaters);
    dpt_json_int(j, "exchanges", (int64_t)traffic->exchanges);
    dpt_json_real(j, "exchange_bytes", traffic->largest_exchange);
}

static void pipeline(const struct dpt_plan *p, struct dpt_json *j)
{
    dpt_json_object(j, "pipeline");
    dpt_json_int(j, "replicas", p->layout.replicas);
    dpt_json_int(j, "tensor", p->layout.tensor);
    dpt_json_real(j, "bubble", p->bubble);
    dpt_json_array(j, "stages");
    for (int k = 0; k < p->layout.stages; k++) {
        dpt_json_object(j, NULL);
        dpt_json_text(j, "first_layer", p->stages[k].first);
        dpt_json_real(j, "flop_share", p->stages[k].flop);
        dpt_json_real(j, "rank_bytes", p->stages[k].bytes);
        if (p->stages[k].device > 0)
            dpt_json_real(j, "device_bytes", p->stages[k].device);
        dpt_json_int(j, "under_way", p->stages[k].in_flight);
        dpt_json_real(j, "sent_bytes", p->stages[k].traffic.to_next);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}

static void axes(const struct dpt_plan *p, struct dpt_json *j)
{
    dpt_json_array(j, "axes");
    for (int i = 0; i < DPT_PLAN_AXES; i++) {
        dpt_json_object(j, NULL);
        dpt_json_text(j, "axis", p->axes[i].name);
        dpt_json_int(j, "ranks", p->axes[i].ranks);
        dpt_json_real(j, "sent_bytes", p->axes[i].bytes);
        dpt_json_bool(j, "between_nodes", p->axes[i].crosses);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

static void device(const struct dpt_plan *p, struct dpt_json *j)
{
    dpt_json_object(j, "device");
    dpt_json_text(j, "name", p->gpu.name);
    dpt_json_bool(j, "here", p->gpu_here);
    dpt_json_text(j, "precision", dpt_job_precision(p->job));
    dpt_json_real(j, "memory_bytes", p->gpu.memory);
    dpt_json_real(j, "bytes_per_s", p->gpu.bandwidth);
    dpt_json_real(j, "flop_per_s", p->gpu.flops[p->job->device.precision]);
    dpt_json_real(j, "nvlink_bytes_per_s", p->gpu.nvlink > 0 ? p->gpu.nvlink : NAN);
    dpt_json_real(j, "pcie_bytes_per_s", p->gpu.pcie);
    dpt_json_text(j, "sums", p->by_host == NULL ? "nccl" : "host");
    if (p->by_host == NULL)
        dpt_json_null(j, "sums_why");
    else
        dpt_json_text(j, "sums_why", p->by_host);
    dpt_json_object(j, "parts");
    for (int i = 0; i < DPT_PLAN_DEVICE; i++)
        dpt_json_real(j, p->device[i].key, p->device[i].bytes);
    dpt_json_end(j);
    dpt_json_real(j, "bytes", p->device_bytes);
    dpt_json_bool(j, "fits", p->device_bytes <= p->gpu.memory);
    dpt_json_real(j, "micro_that_fits", p->device_micro > 0 ? (double)p->device_micro : NAN);
    dpt_json_end(j);
}

/* limit: what most of the efficiency is lost to, or NULL; "": not asked. */
static void step(const char *key, const struct dpt_plan_step *s, int64_t global, const char *limit,
                 struct dpt_json *j)
{
    if (s->total <= 0) {
        dpt_json_null(j, key);
        return;
    }
    dpt_json_object(j, key);
    dpt_json_real(j, "seconds", s->total);
    dpt_json_real(j, "samples_per_s", (double)global / s->total);
    dpt_json_int(j, "global", global);
    dpt_json_int(j, "micro", s->micro);
    dpt_json_real(j, "compute_s", s->compute);
    dpt_json_real(j, "stage_wait_s", s->wait);
    dpt_json_real(j, "stage_messages_s", s->between);
    dpt_json_real(j, "data_s", s->data);
    dpt_json_real(j, "local_sum_s", s->local);
    dpt_json_real(j, "network_sum_s", s->network);
    dpt_json_real(j, "update_s", s->update);
    if (limit == NULL)
        dpt_json_null(j, "limit");
    else if (limit[0] != '\0')
        dpt_json_text(j, "limit", limit);
    dpt_json_end(j);
}

static void time(const struct dpt_plan *p, const struct dpt_plan_scale *scales, struct dpt_json *j)
{
    const struct dpt_fabric *f = &p->spec.fabric;

    dpt_json_object(j, "time");
    dpt_json_bool(j, "tried", p->trial.done);
    dpt_json_real(j, "flop_per_s_thread", p->machine.flops);
    dpt_json_real(j, "memory_bytes_per_s_thread", p->machine.memory[DPT_MACHINE_SIZES - 1].rate);
    dpt_json_object(j, "fabric");
    dpt_json_real(j, "latency_s", f->latency);
    dpt_json_real(j, "overhead_s", f->overhead);
    dpt_json_real(j, "bytes_per_s", f->bandwidth);
    dpt_json_end(j);
    step("step", &p->step, p->data.train.sampler.global, "", j);
    dpt_json_real(j, "training_s", p->step.total * (double)p->steps);
    dpt_json_array(j, "scaling");
    for (int i = 0; i < DPT_PLAN_SCALES; i++) {
        const struct dpt_plan_scale *s = &scales[i];

        dpt_json_object(j, NULL);
        dpt_json_int(j, "ranks", s->ranks);
        step("strong", &s->strong, p->data.train.sampler.global, s->strong_limit, j);
        step("weak", &s->weak, s->weak_global, s->weak_limit, j);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}

void dpt_plan_json(const struct dpt_plan *p, const struct dpt_plan_scale *scales,
                   struct dpt_json *j)
{

    dpt_json_object(j, NULL);
    dpt_json_text(j, "name", p->job->name);
    dpt_json_text(j, "version", DPT_VERSION);
    dpt_json_int(j, "ranks", p->spec.ranks);
    dpt_json_int(j, "ranks_per_node", p->spec.node_ranks);
    dpt_json_int(j, "nodes", p->nodes);
    dpt_json_bool(j, "assumes_nodes", p->assumes_nodes);
    dpt_json_int(j, "threads", p->layout.threads);
    dpt_json_text(j, "backend", p->backend->name);
    dpt_json_text(j, "library", p->backend->describe());
    layers(p, j);
    dpt_plan_json_tensors(p, j);
    steps(p, j);
    rates(p, j);
    memory(p, j);
    axes(p, j);
    pipeline(p, j);
    if (p->gpu.name[0] != '\0')
        device(p, j);
    if (p->step.total > 0)
        time(p, scales, j);
    dpt_json_end(j);
}
