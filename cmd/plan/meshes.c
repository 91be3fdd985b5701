/* `dptrain plan --mesh auto`: plans a job on each mesh that its ranks can make. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_command.h"
#include "cmd/plan/plan.h"
#include "core/base/memory.h"
#include "core/train/layout/layout.h"

/* What divides the model, by its key of `parallel`; those that the job format has are tried. */
const char *const dpt_plan_divisions[DPT_PLAN_DIVISIONS] = {"tensor", "pipeline"};
/* What --set takes: the reduction, parallel.data, a row each of the above, parallel.shard. */
enum { SETS = DPT_PLAN_DIVISIONS + 3, SET = 80 };

bool dpt_plan_has_division(int i)
{
    for (const struct dpt_option *row = dpt_job_options; row->name != NULL; row++)
        for (const struct dpt_option *own = strcmp(row->name, "parallel") == 0 ? row->rows : NULL;
             own != NULL && own->name != NULL; own++)
            if (strcmp(own->name, dpt_plan_divisions[i]) == 0)
                return true;
    return false;
}

/* --- one mesh --------------------------------------------------------------------------------- */

bool dpt_plan_mesh_reproducible(const struct dpt_plan_meshes *all,
                                const struct dpt_plan_candidate *c)
{
    return c->shard > DPT_SHARD_OPTIMIZER || c->data < all->spec.ranks;
}

/* Writes the mesh as a person would after --set; gives how many options. */
static int write_sets(const struct dpt_plan_meshes *all, const struct dpt_plan_candidate *c,
                      char sets[SETS][SET])
{
    int n = 0;

    snprintf(sets[n++], SET, "parallel.data=auto");
    for (int i = 0; i < DPT_PLAN_DIVISIONS; i++)
        if (strcmp(dpt_plan_divisions[i], "pipeline") == 0 && all->schedule != NULL && c->by[i] > 1)
            snprintf(sets[n++], SET, "parallel.pipeline={stages: %d, schedule: %s}", c->by[i],
                     all->schedule);
        else if (dpt_plan_has_division(i))
            snprintf(sets[n++], SET, "parallel.%s=%d", dpt_plan_divisions[i], c->by[i]);
    snprintf(sets[n++], SET, "parallel.shard=%s", DPT_CHOICES(DPT_SHARDS)[c->shard]);
    if (dpt_plan_mesh_reproducible(all, c))
        snprintf(sets[n++], SET, "comm.reduction=reproducible");
    return n;
}

/* The job on that mesh, as if its --set had been given. */
static enum dpt_status load(struct dpt_cli *cli, const struct dpt_plan_meshes *all,
                            const struct dpt_plan_candidate *c, struct dpt_job *job,
                            struct dpt_conf *conf, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_cli_option set = {.name = "--set", .value = "KEY=VALUE"};
    struct dpt_cli with = *cli;
    char sets[SETS][SET];
    const int n = write_sets(all, c, sets);

    DPT_TRY(DPT_ALLOCATE(with.given, cli->n_given + (size_t)n, "the command line", err));
    for (size_t i = 0; i < cli->n_given; i++)
        with.given[i] = cli->given[i];
    for (int i = 0; i < n; i++)
        with.given[with.n_given++] = (struct dpt_cli_given){&set, sets[i]};
    DPT_TRY(dpt_job_command_load(&with, job, conf, err));
    DPT_TRY(dpt_job_command_outputs(cli, job, conf, NULL, err));
    DPT_TRY(dpt_job_for_ranks(job, all->spec.ranks, err));
out:
    dpt_free(with.given);
    return status;
}

static enum dpt_status try_mesh(struct dpt_cli *cli, struct dpt_plan_meshes *all,
                                struct dpt_plan_candidate *c, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_conf conf = {0};
    struct dpt_plan plan = {0};
    const struct dpt_sampler *s = &plan.data.train.sampler;
    struct dpt_str signature = {0};
    struct dpt_job job;
    int idle;

    DPT_TRY(load(cli, all, c, &job, &conf, err));
    dpt_job_signature(&job, &conf, &signature);
    if (signature.failed)
        DPT_TRY(dpt_fail_memory(err, "the job", 0));
    DPT_TRY(dpt_plan_open(&plan, &job, &all->spec, signature.text, err));
    idle = plan.layout.replicas - (s->global + s->micro - 1) / s->micro;
    c->idle = idle > 0 ? idle : 0;
    c->feeding = dpt_feeding_micro(s->global, plan.layout.replicas);
    if (all->time)
        DPT_TRY(dpt_plan_time(&plan, err));
    if (all->spec.machine == NULL && plan.machine.flops > 0) { /* measured once is enough */
        all->machine = plan.machine;
        all->spec.machine = &all->machine;
    }
    all->spec.process = plan.process;
    if (all->limit <= 0 && plan.gpu.name[0] != '\0')
        all->limit = plan.gpu.memory;
    else if (all->limit <= 0 && plan.available > 0)
        all->limit = plan.available / plan.spec.node_ranks;
    c->share = dpt_plan_share(&plan);
    memcpy(c->axes, plan.axes, sizeof c->axes);
    c->bubble = plan.bubble;
    c->seconds = plan.step.total;
    c->by_host = plan.by_host;
    c->fits = all->limit <= 0 || c->share.all <= all->limit;
    all->global = job.batch.global;
    all->node_ranks = plan.spec.node_ranks;
    all->nodes = plan.nodes;
    dpt_plan_assumption(&plan, all->assumed);
    all->parameters = plan.model.graph.parameters;
    if (all->gpu[0] == '\0')
        snprintf(all->gpu, sizeof all->gpu, "%s", plan.gpu.name);
out:
    dpt_plan_close(&plan);
    dpt_str_release(&signature);
    dpt_conf_release(&conf);
    return status;
}

/* --- all of them ------------------------------------------------------------------------------ */

/* The failure's message without the place in the job file or the command line: from the key with
 * its colon on. */
static void keep_reason(struct dpt_plan_candidate *c, const struct dpt_error *err)
{
    const char *text = strstr(err->text, "parallel.");

    while (text != NULL && text[strcspn(text, ":= ")] != ':')
        text = strstr(text + 1, "parallel.");
    if (text == NULL)
        text = err->text;
    snprintf(c->why, sizeof c->why, "%.*s", (int)strcspn(text, ";\n"), text);
}

static enum dpt_status add(struct dpt_cli *cli, struct dpt_plan_meshes *all,
                           const struct dpt_plan_candidate *candidate, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_plan_candidate *c;

    DPT_GROW(all->list, &all->room, all->n + 1, "the meshes", err);
    c = &all->list[all->n++];
    *c = *candidate;
    status = try_mesh(cli, all, c, err);
    if (status == DPT_BAD_JOB) { /* this mesh is not possible */
        keep_reason(c, err);
        status = DPT_OK;
    }
out:
    return status;
}

/* Tries all ways to divide `left` ranks by the divisions from number i on; replicas take the
 * remaining ranks. */
static enum dpt_status divide(struct dpt_cli *cli, struct dpt_plan_meshes *all,
                              struct dpt_plan_candidate *c, int i, int left, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool last = i == DPT_PLAN_DIVISIONS;

    /* With one replica there is nothing to share out. */
    for (c->shard = 0; last && c->shard < (left > 1 ? DPT_SHARD_COUNT : 1); c->shard++) {
        c->data = left;
        DPT_TRY(add(cli, all, c, err));
    }
    for (int n = 1; !last && n <= (dpt_plan_has_division(i) ? left : 1); n++)
        if (left % n == 0) {
            c->by[i] = n;
            DPT_TRY(divide(cli, all, c, i + 1, left / n, err));
        }
out:
    return status;
}

static double sent(const struct dpt_plan_candidate *c)
{
    double bytes = 0;

    for (int i = 0; i < DPT_PLAN_AXES; i++)
        bytes += c->axes[i].bytes;
    return bytes;
}

/* Orders the best first: what is possible, what fits, what leaves no replica idle, the shortest
 * step; without seconds what waits least and then what sends least; among meshes that do not fit,
 * those that need least. */
static int by_merit(const void *a, const void *b)
{
    const struct dpt_plan_candidate *x = a, *y = b;
    const double keys[][2] = {
        {x->why[0] != '\0', y->why[0] != '\0'},
        {!x->fits, !y->fits},
        {x->fits ? 0 : x->share.all, y->fits ? 0 : y->share.all},
        {x->idle > 0, y->idle > 0},
        {x->seconds, y->seconds},
        {x->bubble, y->bubble},
        {sent(x), sent(y)},
        {x->share.all, y->share.all},
    };

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i][0] < keys[i][1] || keys[i][0] > keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return x->data - y->data;
}

enum dpt_status dpt_plan_meshes_open(struct dpt_plan_meshes *all, struct dpt_cli *cli,
                                     const struct dpt_plan_spec *spec, const struct dpt_job *job,
                                     double limit, bool time, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_plan_candidate candidate = {0};

    *all = (struct dpt_plan_meshes){.spec = *spec, .limit = limit, .time = time, .name = job->name};
    if (job->parallel.pipeline.schedule != DPT_PIPELINE_1F1B)
        all->schedule = DPT_CHOICES(DPT_PIPELINES)[job->parallel.pipeline.schedule];
    all->spec.trial = false; /* all by the same method */
    DPT_TRY(divide(cli, all, &candidate, 0, spec->ranks, err));
    qsort(all->list, all->n, sizeof *all->list, by_merit);
    if (all->list[0].why[0] != '\0')
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "no mesh of %d ranks can train this: %s", spec->ranks,
                         all->list[0].why));
out:
    return status;
}

void dpt_plan_meshes_close(struct dpt_plan_meshes *all)
{
    dpt_free(all->list);
}

/* --- what comes of it ------------------------------------------------------------------------- */

void dpt_plan_mesh_text(const struct dpt_plan_candidate *c, struct dpt_str *out)
{
    dpt_str_printf(out, "%d", c->data);
    for (int i = 0; i < DPT_PLAN_DIVISIONS; i++)
        if (dpt_plan_has_division(i))
            dpt_str_printf(out, "x%d", c->by[i]);
}

void dpt_plan_mesh_job(const struct dpt_plan_candidate *c, struct dpt_str *out)
{
    int n = 0;

    for (int i = 0; i < DPT_PLAN_DIVISIONS; i++)
        if (c->by[i] > 1)
            dpt_str_printf(out, "%s%s: %d", n++ == 0 ? "parallel: {" : ", ", dpt_plan_divisions[i],
                           c->by[i]);
    if (c->shard != DPT_SHARD_NONE)
        dpt_str_printf(out, "%sshard: %s", n++ == 0 ? "parallel: {" : ", ",
                       DPT_CHOICES(DPT_SHARDS)[c->shard]);
    dpt_str_printf(out, n > 0 ? "}" : "without `parallel`");
}

void dpt_plan_meshes_json(const struct dpt_plan_meshes *all, struct dpt_json *j)
{
    const char *const *parts = DPT_CHOICES(DPT_PLAN_PART_LIST);

    dpt_json_object(j, NULL);
    dpt_json_text(j, "name", all->name);
    dpt_json_int(j, "ranks", all->spec.ranks);
    dpt_json_int(j, "ranks_per_node", all->node_ranks);
    dpt_json_int(j, "nodes", all->nodes);
    dpt_json_int(j, "parameters", all->parameters);
    dpt_json_real(j, "limit_bytes", all->limit > 0 ? all->limit : NAN);
    dpt_json_array(j, "meshes");
    for (size_t i = 0; i < all->n; i++) {
        const struct dpt_plan_candidate *c = &all->list[i];

        dpt_json_object(j, NULL);
        dpt_json_int(j, "data", c->data);
        for (int k = 0; k < DPT_PLAN_DIVISIONS; k++)
            if (dpt_plan_has_division(k))
                dpt_json_int(j, dpt_plan_divisions[k], c->by[k]);
        dpt_json_text(j, "shard", DPT_CHOICES(DPT_SHARDS)[c->shard]);
        if (c->why[0] != '\0') {
            dpt_json_text(j, "impossible", c->why);
            dpt_json_end(j);
            continue;
        }
        dpt_json_bool(j, "fits", c->fits);
        dpt_json_int(j, "idle_replicas", c->idle);
        dpt_json_object(j, "memory");
        for (int k = 0; k < DPT_PLAN_PARTS; k++)
            dpt_json_real(j, parts[k], c->share.bytes[k]);
        dpt_json_real(j, "rank", c->share.all);
        dpt_json_real(j, "rank_0_saving", c->share.first);
        dpt_json_real(j, "host", c->share.host > 0 ? c->share.host : NAN);
        dpt_json_end(j);
        dpt_json_object(j, "sent_bytes");
        for (int k = 0; k < DPT_PLAN_AXES; k++)
            dpt_json_real(j, c->axes[k].name, c->axes[k].bytes);
        dpt_json_end(j);
        if (all->gpu[0] != '\0')
            dpt_json_text(j, "sums", c->by_host == NULL ? "nccl" : "host");
        dpt_json_real(j, "bubble", c->bubble);
        dpt_json_real(j, "seconds", c->seconds > 0 ? c->seconds : NAN);
        dpt_json_real(j, "samples_per_s", c->seconds > 0 ? (double)all->global / c->seconds : NAN);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}
