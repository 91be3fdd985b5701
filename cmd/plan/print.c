#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/plan/plan.h"
#include "core/train/layout/layout.h"
#include "core/train/update/schedule.h"

enum { DIGITS = 40, SHOWN_RANKS = 6, LINE = 80 };

int dpt_plan_rates(const struct dpt_plan *plan, struct dpt_plan_rate rates[DPT_PLAN_RATES])
{
    int n = 0;

    for (int i = 0; i < DPT_PLAN_RATES; i++) {
        const struct dpt_schedule_point point = {
            .step = (plan->steps - 1) / (DPT_PLAN_RATES - 1) * i +
                    (plan->steps - 1) % (DPT_PLAN_RATES - 1) * i / (DPT_PLAN_RATES - 1),
            .steps = plan->steps,
            .steps_per_epoch = plan->steps_per_epoch,
        };

        if (n > 0 && rates[n - 1].step == point.step + 1)
            continue;
        rates[n++] = (struct dpt_plan_rate){
            point.step + 1, dpt_schedule_rate(&plan->job->schedule, plan->lr, &point)};
    }
    return n;
}

static enum dpt_status predict(const struct dpt_plan *plan, int ranks, int64_t global,
                               struct dpt_plan_step *step, struct dpt_error *err)
{
    const enum dpt_status status = dpt_plan_predict(plan, ranks, global, step, err);
    const int replicas = ranks / plan->layout.model_ranks;

    if (status == DPT_OK && dpt_feeding_micro(global, replicas) < step->micro)
        memset(step, 0, sizeof *step); /* some would stay idle */
    return status;
}

/* What of a step, or NULL, grows most over what it would be if each part took `ideal` times what it
 * takes in `first`. */
static const char *find_limit(const struct dpt_plan_step *first, const struct dpt_plan_step *step,
                              double ideal)
{
    const double little = 0.05; /* of the step */
    const struct {
        const char *name;
        double lost;
    } parts[] = {
        {DPT_CHOICES(DPT_PLAN_LINK_LIST)[step->link],
         step->local + step->network - ideal * (first->local + first->network)},
        {"update", step->update - ideal * first->update},
        {"compute", step->compute - ideal * first->compute},
        {"stages", step->wait + step->between - ideal * (first->wait + first->between)},
        {"samples", step->data - ideal * first->data},
    };
    size_t most = 0;

    if (first->total <= 0 || step->total - ideal * first->total < little * step->total)
        return NULL;
    for (size_t i = 1; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].lost > parts[most].lost)
            most = i;
    return parts[most].name;
}

enum dpt_status dpt_plan_scales(const struct dpt_plan *plan,
                                struct dpt_plan_scale scales[DPT_PLAN_SCALES],
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t global = plan->job->batch.global;
    const int64_t each = (global + plan->spec.ranks - 1) / plan->spec.ranks;

    for (int i = 0; i < DPT_PLAN_SCALES; i++) {
        struct dpt_plan_scale *s = &scales[i];

        s->ranks = (1 << i) * plan->layout.model_ranks;
        s->weak_global = each * s->ranks;
        DPT_TRY(predict(plan, s->ranks, global, &s->strong, err));
        DPT_TRY(predict(plan, s->ranks, s->weak_global, &s->weak, err));
        s->strong_limit = find_limit(&scales[0].strong, &s->strong, 1.0 / (1 << i));
        s->weak_limit = find_limit(&scales[0].weak, &s->weak, 1);
    }
out:
    return status;
}

const char *dpt_plan_quantity(double value, const char *between, const char *unit, char *buf)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t i = 0;

    while (value >= 999.5 && i + 1 < sizeof prefixes / sizeof prefixes[0]) {
        value /= 1000;
        i++;
    }
    snprintf(buf, DPT_PLAN_QUANTITY, "%.*f%s%s%s",
             i == 0 || value >= 99.95 ? 0
             : value >= 9.995         ? 1
                                      : 2,
             value, between, prefixes[i], unit);
    return buf;
}

static const char *bytes_text(double bytes, char *buf)
{
    return dpt_plan_quantity(bytes, " ", "B", buf);
}

static const char *time_text(double seconds, char *buf)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"days", 86400}};
    size_t i = 0;
    double value;

    while (i + 1 < sizeof units / sizeof units[0] && seconds >= 2 * units[i + 1].seconds)
        i++;
    value = seconds / units[i].seconds;
    snprintf(buf, DIGITS, "%.*f %s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value, units[i].name);
    return buf;
}

static void print_head(const struct dpt_plan *p, struct dpt_str *out)
{
    char a[DIGITS], b[DIGITS], assumed[DPT_PLAN_TEXT];

    dpt_str_printable(out, p->job->name, strlen(p->job->name), false);
    dpt_str_printf(out, ": %d rank%s on %d node%s, %d thread%s each, %s\n", p->spec.ranks,
                   p->spec.ranks == 1 ? "" : "s", p->nodes, p->nodes == 1 ? "" : "s",
                   p->layout.threads, p->layout.threads == 1 ? "" : "s", p->backend->name);
    if (p->gpu.name[0] == '\0')
        dpt_str_printf(out, "%s\n", p->backend->uses());
    else
        dpt_str_printf(out, "%s of %s, %s/s, %s%s\n", p->gpu.name, bytes_text(p->gpu.memory, a),
                       bytes_text(p->gpu.bandwidth, b), dpt_job_precision(p->job),
                       p->gpu_here ? "" : "; by its data sheet");
    dpt_plan_assumption(p, assumed);
    dpt_str_printf(out, "%s\n", assumed);
}

/* Prints below a layer what it reads, if that is not the layer above it. */
static void print_inputs(const struct dpt_graph *graph, int32_t i, struct dpt_str *out)
{
    const struct dpt_graph_node *node = &graph->nodes[i];

    if (node->n_inputs == 0 || (node->n_inputs == 1 && node->inputs[0] == i - 1))
        return;
    dpt_str_printf(out, "  reads %s", graph->nodes[node->inputs[0]].name);
    for (int32_t k = 1; k < node->n_inputs; k++)
        dpt_str_printf(out, ", %s", graph->nodes[node->inputs[k]].name);
    dpt_str_printf(out, "\n");
}

static void print_layers(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_graph *graph = &p->model.graph;
    double forward = 0, backward = 0;
    char shape[DIGITS], count[DIGITS], ahead[DIGITS], back[DIGITS];

    dpt_str_printf(out, "%-24s %14s %14s %10s %10s\n", "layer", "output", "parameters", "FLOP",
                   "backward");
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *node = &graph->nodes[i];
        double f, b;

        dpt_plan_flop(p, i, &f, &b);
        forward += f;
        backward += b;
        count[0] = ahead[0] = back[0] = '\0';
        if (node->weight >= 0 || node->bias >= 0)
            dpt_group_digits(count, dpt_graph_node_parameters(graph, node));
        if (f > 0) {
            dpt_plan_quantity(f, " ", "", ahead);
            dpt_plan_quantity(b, " ", "", back);
        }
        dpt_str_printf(out, "%-24.24s %14s%s%14s%s%10s%s%10s\n", node->name,
                       dpt_shape_text(&node->out, shape), count[0] ? " " : "", count,
                       ahead[0] ? " " : "", ahead, back[0] ? " " : "", back);
        print_inputs(graph, i, out);
    }
    dpt_str_printf(out, "%-24s %14s %14s %10s %10s\n\n", "a sample", "",
                   dpt_group_digits(count, graph->parameters),
                   dpt_plan_quantity(forward, " ", "", ahead),
                   dpt_plan_quantity(backward, " ", "", back));
}

/* "rank 0: 0-3" or, of one micro-batch, "rank 0: 0"; "rank 0: 4 in turn" if taken
 * round-robin. */
static void print_shares(const struct dpt_plan *p, int64_t step, const char *name,
                         struct dpt_str *out)
{
    const int ranks = p->layout.replicas;
    const int shown = ranks <= SHOWN_RANKS ? ranks : SHOWN_RANKS - 2;

    dpt_str_printf(out, "  %-9s", name);
    for (int r = 0; r < ranks; r++) {
        int32_t first, last;

        if (r == shown && ranks > shown) {
            dpt_str_printf(out, "  ...");
            r = ranks - 1;
        }
        dpt_sampler_partition(&p->data.train.sampler, step, r, ranks, &first, &last);
        if (last <= first)
            dpt_str_printf(out, "  %d: none", r);
        else if (last - first == 1)
            dpt_str_printf(out, "  %d: %d", r, first);
        else if (p->data.train.sampler.round_robin > 0)
            dpt_str_printf(out, "  %d: %d in turn", r, last - first);
        else
            dpt_str_printf(out, "  %d: %d-%d", r, first, last - 1);
    }
    dpt_str_printf(out, "\n");
}

static void print_steps(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_sampler *s = &p->data.train.sampler;
    const int64_t end = p->steps_per_epoch - 1;
    char a[DIGITS], b[DIGITS], c[DIGITS];

    dpt_str_printf(out, "%s samples an epoch", dpt_group_digits(a, s->samples));
    if (s->held_out > 0)
        dpt_str_printf(out, ", %s held out", dpt_group_digits(b, s->held_out));
    dpt_str_printf(out, ": %s step%s of %d, the last of %d\n",
                   dpt_group_digits(c, p->steps_per_epoch), p->steps_per_epoch == 1 ? "" : "s",
                   s->global, dpt_sampler_count(s, end));
    dpt_str_printf(out, "%s steps in all, %.4g epochs; micro-batches of %d:\n",
                   dpt_group_digits(a, p->steps), (double)p->steps / (double)p->steps_per_epoch,
                   s->micro);
    print_shares(p, 0, p->layout.model_ranks > 1 ? "replicas" : "by rank", out);
    if (dpt_sampler_micro_batches(s, end) != dpt_sampler_micro_batches(s, 0))
        print_shares(p, end, "last step", out);
    dpt_str_printf(out, "\n");
}

static void print_rates(const struct dpt_plan *p, struct dpt_str *out)
{
    struct dpt_plan_rate rates[DPT_PLAN_RATES];
    const int n = dpt_plan_rates(p, rates);
    char step[DIGITS];

    dpt_str_printf(out, "%14s   learning rate (%s)\n", "step", p->job->schedule.variant->name);
    for (int i = 0; i < n; i++) {
        /* A range of equal rates is printed by its ends. */
        if (i > 0 && i < n - 1 && rates[i].lr == rates[i - 1].lr && rates[i].lr == rates[i + 1].lr)
            continue;
        dpt_str_printf(out, "%14s   %.6g\n", dpt_group_digits(step, rates[i].step), rates[i].lr);
    }
    dpt_str_printf(out, "\n");
}

/* Prints which of several stages the memory above is of. */
static void print_stage(const struct dpt_plan *p, bool needs_most, struct dpt_str *out)
{
    if (p->layout.stages > 1)
        dpt_str_printf(out, "of stage %d%s\n", p->stage->number + 1,
                       needs_most ? ", which needs most" : "");
}

static void print_device(const struct dpt_plan *p, struct dpt_str *out)
{
    char a[DIGITS], b[DIGITS];

    dpt_str_printf(out, "%-28s %10s\n", "memory of the GPU", "a rank");
    for (int i = 0; i < DPT_PLAN_DEVICE; i++)
        if (p->device[i].bytes > 0)
            dpt_str_printf(out, "  %-26s %10s\n", p->device[i].name,
                           bytes_text(p->device[i].bytes, a));
    print_stage(p, true, out);
    dpt_str_printf(out, "%s of %s: ", bytes_text(p->device_bytes, a), bytes_text(p->gpu.memory, b));
    if (p->device_bytes <= p->gpu.memory)
        dpt_str_printf(out, "fits\n\n");
    else if (p->device_micro > 0)
        dpt_str_printf(out, "does not fit; batch.micro=%d would\n\n", p->device_micro);
    else
        dpt_str_printf(out, "does not fit\n\n");
}

static void print_memory(const struct dpt_plan *p, struct dpt_str *out)
{
    static const char *const scopes[] = {"", "rank 0", "a node", "a node"};
    const struct dpt_plan_traffic *traffic = &p->stages[p->stage->number].traffic;
    char a[DIGITS], b[DIGITS], c[DIGITS], line[4 * DIGITS], free[2 * DIGITS];
    int n;

    dpt_str_printf(out, "%-28s %10s\n", p->gpu.name[0] != '\0' ? "memory of the host" : "memory",
                   "a rank");
    for (int i = 0; i < DPT_PLAN_MEMORY; i++) {
        const struct dpt_plan_memory *m = &p->memory[i];

        if (m->bytes > 0)
            dpt_str_printf(out, "  %-26s %10s%s%s\n", m->name, bytes_text(m->bytes, a),
                           m->scope == DPT_PLAN_RANK ? "" : "  ", scopes[m->scope]);
    }
    print_stage(p, p->gpu.name[0] == '\0', out);
    n = snprintf(line, sizeof line, "rank 0 %s", bytes_text(p->first_rank, a));
    if (p->spec.ranks > 1)
        n += snprintf(line + n, sizeof line - (size_t)n, ", the others %s%s, a node %s",
                      p->bubble > 0 ? "up to " : "", bytes_text(p->other_rank, a),
                      bytes_text(p->node, b));
    dpt_str_printf(out, "%s", line);
    if (p->available >= 0) {
        snprintf(free, sizeof free, "free here %s: %s", bytes_text(p->available, c),
                 p->node <= p->available ? "fits" : "does not fit");
        dpt_str_printf(out, "%s%s", n + 2 + (int)strlen(free) > LINE ? "\n" : "; ", free);
    }
    dpt_str_printf(out, "\n\ncheckpoint  %s", bytes_text((double)p->checkpoint, a));
    if (p->job->checkpoint.every.unit == DPT_NEVER)
        dpt_str_printf(out, ", never written");
    else if (p->job->checkpoint.keep > 0)
        dpt_str_printf(out, "; the newest %lld and the best are kept",
                       (long long)p->job->checkpoint.keep);
    if (p->layout.streams && p->job->checkpoint.every.unit != DPT_NEVER)
        dpt_str_printf(out, "\n            each rank writes its part beside the training, of a "
                            "copy where\n            a node has memory for one");
    dpt_str_printf(out, "\nreduction   %s a step from each rank\n", bytes_text(p->reduced, a));
    if (p->layout.updaters > 1)
        dpt_str_printf(out, "optimizer   %d ranks divide its state and the update%s\n",
                       p->layout.updaters,
                       p->layout.on_device           ? " on the GPUs"
                       : p->backend->devices != NULL ? " on the hosts"
                                                     : "");
    if (p->gathered > 0)
        dpt_str_printf(out, "weights     %s a step to each %s, unit by unit\n",
                       bytes_text(p->gathered, a), p->layout.sliced_there ? "GPU" : "node");
    if (traffic->exchanges > 0)
        dpt_str_printf(out,
                       "statistics  of whole batches: %d exchanges a step, the largest %s;\n"
                       "            all micro-batches of a rank are in memory at once\n",
                       (int)traffic->exchanges, bytes_text(traffic->largest_exchange, a));
}

/* "3 stages x 2 parts x 4 replicas" */
static void print_mesh(const struct dpt_plan *p, struct dpt_str *out)
{
    dpt_str_printf(out, "\n");
    for (int i = DPT_PLAN_AXES - 1; i >= 0; i--) {
        const int ranks = p->axes[i].ranks;

        if (ranks > 1 || i == 0)
            dpt_str_printf(out, "%d %s%s%s", ranks, p->axes[i].part, ranks == 1 ? "" : "s",
                           i > 0 ? " x " : "");
    }
    if (p->bubble > 0)
        dpt_str_printf(out, ", %s; a stage waits %.0f %% of a step",
                       DPT_CHOICES(DPT_PIPELINES)[p->job->parallel.pipeline.schedule],
                       100 * p->bubble);
    dpt_str_printf(out, "\n");
}

static void print_axes(const struct dpt_plan *p, struct dpt_str *out)
{
    char bytes[DIGITS];

    dpt_str_printf(out, "%-10s %6s %10s   in a step, at least, by the rank with most\n", "axis",
                   "ranks", "sent");
    for (int i = 0; i < DPT_PLAN_AXES; i++)
        if (p->axes[i].ranks > 1)
            dpt_str_printf(out, "%-10s %6d %10s   %s; %s\n", p->axes[i].name, p->axes[i].ranks,
                           bytes_text(p->axes[i].bytes, bytes), p->axes[i].what,
                           p->axes[i].crosses ? "between nodes" : "on a node");
}

static void print_stages(const struct dpt_plan *p, struct dpt_str *out)
{
    const int all = p->layout.replicas * p->layout.tensor;
    const bool gpu = p->gpu.name[0] != '\0';
    char bytes[DIGITS], sent[2 * DIGITS];

    dpt_str_printf(out, "%-24s %9s %8s %10s %9s %13s\n", "stage, from layer", "ranks", "FLOP",
                   gpu ? "its GPU" : "a rank", "under way", "to the next");
    for (int k = 0; k < p->layout.stages; k++) {
        const struct dpt_plan_stage *stage = &p->stages[k];
        char ranks[DIGITS];

        sent[0] = '\0';
        if (stage->traffic.to_next > 0)
            snprintf(sent, sizeof sent, " %13s", bytes_text(stage->traffic.to_next, bytes));
        snprintf(ranks, sizeof ranks, all == 1 ? "%d" : "%d-%d", k * all, (k + 1) * all - 1);
        dpt_str_printf(out, "%2d %-21.21s %9s %6.1f %% %10s %9d%s\n", k + 1, stage->first, ranks,
                       100 * stage->flop, bytes_text(gpu ? stage->device : stage->bytes, bytes),
                       stage->in_flight, sent);
    }
    dpt_str_printf(out, "a step sends so much to the next stage, and as much back where there are\n"
                        "weights to learn\n\n");
}

static void print_scale_cell(const struct dpt_plan_step *step, int64_t global, double per_rank,
                             const char *limit, struct dpt_str *out)
{
    char time[DIGITS], rate[DIGITS];

    if (step->total <= 0) {
        dpt_str_printf(out, " %-36s", "       too few micro-batches");
        return;
    }
    dpt_str_printf(out, " %9s %10s %4.0f %%  %-7s", time_text(step->total, time),
                   dpt_group_digits(rate, llround((double)global / step->total)),
                   100 * (double)global / step->total / per_rank, limit != NULL ? limit : "");
}

/* Prints what sums of GPUs' gradients go through. */
static void print_links(const struct dpt_plan *p, struct dpt_str *out)
{
    char rate[DIGITS];

    if (p->by_host != NULL)
        dpt_str_printf(out, "; sums through the hosts' memory:\n%s", p->by_host);
    else if (p->gpu.nvlink > 0)
        dpt_str_printf(out, "; sums by NCCL:\nNVLink %s/s each way",
                       bytes_text(p->gpu.nvlink, rate));
    else
        dpt_str_printf(out, "; sums by NCCL:\nPCIe %s/s each way", bytes_text(p->gpu.pcie, rate));
}

static void print_scales(const struct dpt_plan *p, const struct dpt_plan_scale *scales,
                         struct dpt_str *out)
{
    const int64_t global = p->job->batch.global;
    double strong, weak;

    strong = scales[0].strong.total > 0 ? (double)global / scales[0].strong.total : 1;
    weak = scales[0].weak.total > 0 ? (double)scales[0].weak_global / scales[0].weak.total : 1;
    strong /= scales[0].ranks;
    weak /= scales[0].ranks;
    dpt_str_printf(out, "\nwith %d rank%s a node, %.4g Gbit/s between nodes", p->spec.node_ranks,
                   p->spec.node_ranks == 1 ? "" : "s", p->spec.fabric.bandwidth * 8 / 1e9);
    if (p->gpu.name[0] != '\0')
        print_links(p, out);
    dpt_str_printf(out, "\n%5s %-36s %s\n", "", " strong: the batch stays", " weak: it grows");
    dpt_str_printf(out, "%5s %9s %10s %6s  %-7s %9s %10s %6s  %s\n", "ranks", "a step", "samples/s",
                   "eff.", "limit", "a step", "samples/s", "eff.", "limit");
    for (int i = 0; i < DPT_PLAN_SCALES; i++) {
        const struct dpt_plan_scale *s = &scales[i];

        dpt_str_printf(out, "%5d", s->ranks);
        print_scale_cell(&s->strong, global, strong * s->ranks, s->strong_limit, out);
        print_scale_cell(&s->weak, s->weak_global, weak * s->ranks, s->weak_limit, out);
        while (out->length > 0 && out->text[out->length - 1] == ' ')
            out->text[--out->length] = '\0';
        dpt_str_printf(out, "\n");
    }
}

static void print_time(const struct dpt_plan *p, const struct dpt_plan_scale *scales,
                       struct dpt_str *out)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {
        {"forward and backward", p->step.compute},
        {"waiting for other stages", p->step.wait},
        {"messages between stages", p->step.between},
        {"samples", p->step.data},
        {"sum on a node", p->step.local},
        {"sum between nodes", p->step.network},
        {"update", p->step.update},
    };
    char a[DIGITS], b[DIGITS], c[DIGITS];

    dpt_str_printf(
        out, "\na step      %s, %s samples/s; training %s  (%s)\n", time_text(p->step.total, a),
        dpt_group_digits(b, llround(p->data.train.sampler.global / p->step.total)),
        time_text(p->step.total * (double)p->steps, c), p->trial.done ? "tried" : "estimated");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].seconds > 0)
            dpt_str_printf(out, "  %-26s %10s\n", parts[i].name, time_text(parts[i].seconds, a));
    print_scales(p, scales, out);
}

void dpt_plan_print(const struct dpt_plan *p, const struct dpt_plan_scale *scales,
                    struct dpt_str *out)
{
    print_head(p, out);
    print_layers(p, out);
    dpt_plan_print_tensors(p, out);
    print_steps(p, out);
    print_rates(p, out);
    if (p->gpu.name[0] != '\0')
        print_device(p, out);
    print_memory(p, out);
    if (p->layout.model_ranks > 1) {
        print_mesh(p, out);
        if (p->layout.stages > 1)
            print_stages(p, out);
        print_axes(p, out);
    }
    if (p->step.total > 0)
        print_time(p, scales, out);
}
