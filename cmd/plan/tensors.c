/* Prints which tensors of a plan are frozen, and which have a group's own rates and decays. */
#include <math.h>

#include "cmd/plan/plan.h"
#include "core/train/update/tensor_groups.h"

enum { FROZEN = -1, DIGITS = 40, SHOWN = 38 };

/* A list of patterns: train.freeze, or that of the group of this number. */
static const struct dpt_patterns *patterns_of(const struct dpt_plan *p, int list)
{
    const struct dpt_job *job = p->job;

    return list == FROZEN ? &job->train.freeze
                          : &dpt_optimizer_groups(&job->optimizer)->at[list].match;
}

static int n_groups(const struct dpt_plan *p)
{
    return (int)dpt_optimizer_groups(&p->job->optimizer)->n;
}

/* Whether pattern number `i` of a list matches a tensor. */
static bool says(const struct dpt_plan *p, int list, size_t i, const struct dpt_tensor *t)
{
    return dpt_pattern_matches(patterns_of(p, list)->texts.at[i], t) &&
           (list == FROZEN ||
            dpt_tensor_groups_give(dpt_optimizer_groups(&p->job->optimizer), (size_t)list, t));
}

/* --- for a person ----------------------------------------------------------------------------- */

static void print_row(const char *name, int64_t tensors, int64_t parameters, struct dpt_str *out)
{
    char a[DIGITS], b[DIGITS];

    dpt_str_printf(out, "%-39s %14s %14s\n", name, dpt_group_digits(a, tensors),
                   dpt_group_digits(b, parameters));
}

static void print_patterns(const struct dpt_plan *p, int list, struct dpt_str *out)
{
    const struct dpt_graph *graph = &p->model.graph;
    const struct dpt_patterns *patterns = patterns_of(p, list);
    char name[6 * SHOWN + 8];

    for (size_t i = 0; i < patterns->texts.n; i++) {
        int64_t tensors = 0, parameters = 0;

        for (int32_t k = 0; k < graph->n_tensors; k++) {
            const struct dpt_tensor *t = &graph->tensors[k];

            tensors += says(p, list, i, t);
            parameters += says(p, list, i, t) && !t->state ? t->count : 0;
        }
        dpt_show_text(name, patterns->texts.at[i], SHOWN);
        print_row(name, tensors, parameters, out);
    }
}

/* "optimizer.groups[0]: lr x 0.1, decay 0" */
static void print_group_heading(const struct dpt_plan *p, int i, struct dpt_str *out)
{
    const struct dpt_group_options *group = &dpt_optimizer_groups(&p->job->optimizer)->at[i];

    dpt_str_printf(out, "optimizer.groups[%d]:", i);
    if (group->lr > 0)
        dpt_str_printf(out, " lr %g", group->lr);
    if (group->lr_scale > 0)
        dpt_str_printf(out, " lr x %g", group->lr_scale);
    if (group->weight_decay >= 0)
        dpt_str_printf(out, "%s decay %g", group->lr > 0 || group->lr_scale > 0 ? "," : "",
                       group->weight_decay);
    dpt_str_printf(out, "\n");
}

void dpt_plan_print_tensors(const struct dpt_plan *p, struct dpt_str *out)
{
    const struct dpt_graph *graph = &p->model.graph;
    int64_t learned = 0;

    if (patterns_of(p, FROZEN)->texts.n == 0 && n_groups(p) == 0)
        return;
    dpt_str_printf(out, "%-39s %14s %14s\n", "frozen, or in a group", "tensors", "parameters");
    if (patterns_of(p, FROZEN)->texts.n > 0)
        dpt_str_printf(out, "train.freeze:\n");
    print_patterns(p, FROZEN, out);
    for (int i = 0; i < n_groups(p); i++) {
        print_group_heading(p, i, out);
        print_patterns(p, i, out);
    }
    for (int32_t k = 0; k < graph->n_tensors; k++)
        learned += dpt_graph_updates(graph, k);
    print_row("learned", learned, dpt_graph_learned(graph), out);
    dpt_str_printf(out, "\n");
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void json_patterns(const struct dpt_plan *p, int list, const char *key, struct dpt_json *j)
{
    const struct dpt_graph *graph = &p->model.graph;
    const struct dpt_patterns *patterns = patterns_of(p, list);

    dpt_json_array(j, key);
    for (size_t i = 0; i < patterns->texts.n; i++) {
        dpt_json_object(j, NULL);
        dpt_json_text(j, "pattern", patterns->texts.at[i]);
        dpt_json_array(j, "tensors");
        for (int32_t k = 0; k < graph->n_tensors; k++)
            if (says(p, list, i, &graph->tensors[k]))
                dpt_json_text(j, NULL, graph->tensors[k].name);
        dpt_json_end(j);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

void dpt_plan_json_tensors(const struct dpt_plan *p, struct dpt_json *j)
{
    dpt_json_int(j, "learned", dpt_graph_learned(&p->model.graph));
    json_patterns(p, FROZEN, "freeze", j);
    dpt_json_array(j, "groups");
    for (int i = 0; i < n_groups(p); i++) {
        const struct dpt_group_options *group = &dpt_optimizer_groups(&p->job->optimizer)->at[i];

        dpt_json_object(j, NULL);
        dpt_json_real(j, "lr", group->lr > 0 ? group->lr : NAN);
        dpt_json_real(j, "lr_scale", group->lr_scale > 0 ? group->lr_scale : NAN);
        dpt_json_real(j, "weight_decay", group->weight_decay >= 0 ? group->weight_decay : NAN);
        json_patterns(p, i, "match", j);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}
