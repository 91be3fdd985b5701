/*
 * plan: how `dptrain plan` prints its results. Private to that command.
 */
#ifndef DPT_CMD_PLAN_H
#define DPT_CMD_PLAN_H

#include "cmd/cmd.h"
#include "core/base/json.h"
#include "core/plan/plan.h"

enum { DPT_PLAN_RATES = 9, DPT_PLAN_SCALES = 11 };

/* A learning rate of the run; step counts from 1, as in metrics.jsonl. */
struct dpt_plan_rate {
    int64_t step;
    double lr;
};

/* The first step, the last, and those between at equal distances; gives how many. */
int dpt_plan_rates(const struct dpt_plan *plan, struct dpt_plan_rate rates[DPT_PLAN_RATES]);

/* How the job scales on 1 to 1024 ranks: the job's batch (strong), and as many samples per rank as
 * the job has on its ranks (weak). total 0: more ranks than micro-batches. */
struct dpt_plan_scale {
    int ranks;
    int64_t weak_global;
    struct dpt_plan_step strong, weak;
    /* What most of the efficiency is lost to: a link (enum dpt_plan_link) where that is the sum;
     * NULL: little is lost. */
    const char *strong_limit, *weak_limit;
};

/* Errors: RANK. */
enum dpt_status dpt_plan_scales(const struct dpt_plan *plan,
                                struct dpt_plan_scale scales[DPT_PLAN_SCALES],
                                struct dpt_error *err);

/* Writes a quantity with three digits and a prefix before its unit: "1.54 MB", "832 B"; between: "
 * ", or "" for a narrow table. buf: DPT_PLAN_QUANTITY bytes; returns buf. */
enum { DPT_PLAN_QUANTITY = 24 };
const char *dpt_plan_quantity(double value, const char *between, const char *unit, char *buf);

/* Writes the plan for a person, in 80 columns, or as one JSON object. scales: [DPT_PLAN_SCALES],
 * not read if the plan has no time. */
void dpt_plan_print(const struct dpt_plan *plan, const struct dpt_plan_scale *scales,
                    struct dpt_str *out);
void dpt_plan_json(const struct dpt_plan *plan, const struct dpt_plan_scale *scales,
                   struct dpt_json *j);

/* Write the parts about train.freeze and optimizer.groups (tensors.c); for a person nothing if the
 * job has neither. */
void dpt_plan_print_tensors(const struct dpt_plan *plan, struct dpt_str *out);
void dpt_plan_json_tensors(const struct dpt_plan *plan, struct dpt_json *j);

/* What the first rank of each stage does in a full step, action by action (actions.c): for a
 * person, or, j != NULL, as an object. The lists of all are run against each other first; *out gets
 * what each did if they break a rule. Errors: INTERNAL, RANK. */
enum dpt_status dpt_plan_actions(struct dpt_plan *plan, struct dpt_str *out, struct dpt_json *j,
                                 struct dpt_error *err);

/* --- all meshes of a job's ranks (meshes.c, meshes_print.c) ----------------------------------- */

enum { DPT_PLAN_DIVISIONS = 2 };

/* The key of `parallel` by which so many ranks have parts of one model; whether the job format has
 * it. */
extern const char *const dpt_plan_divisions[DPT_PLAN_DIVISIONS];
bool dpt_plan_has_division(int i);

struct dpt_plan_candidate {
    int data, by[DPT_PLAN_DIVISIONS]; /* ranks along each axis */
    int shard;                        /* enum dpt_shard */
    char why[256];                    /* reason why it is not possible; else empty, and what follows
                                       * is set */
    int idle;                         /* replicas that have no micro-batch of a step */
    int64_t feeding; /* the largest batch.micro with which each has one; 0: there is none */
    struct dpt_plan_share share;
    struct dpt_plan_axis axes[DPT_PLAN_AXES];
    double bubble, seconds; /* seconds 0: not known */
    const char *by_host;    /* as struct dpt_plan has it */
    bool fits;
};

struct dpt_plan_meshes {
    struct dpt_plan_spec spec;
    struct dpt_machine machine;
    const char *name;     /* the job's; borrowed, as is the next one */
    const char *schedule; /* a pipeline's, if not the usual one */
    bool time;            /* seconds are wanted */
    double limit;         /* bytes that a rank may use; 0: not known */
    int64_t global, parameters;
    int node_ranks, nodes;
    char assumed[DPT_PLAN_TEXT];     /* dpt_plan_assumption's */
    char gpu[96];                    /* "": there is none */
    struct dpt_plan_candidate *list; /* [n], the best first */
    size_t n, room;
};

/* Plans the command line's job, which has been read, on each mesh of spec->ranks. limit: bytes that
 * a rank may use; 0: a GPU's, or a rank's share of this machine's free memory. *all is to be closed
 * in any case. Errors: BAD_JOB (no mesh is possible), and as dpt_plan_open. */
enum dpt_status dpt_plan_meshes_open(struct dpt_plan_meshes *all, struct dpt_cli *cli,
                                     const struct dpt_plan_spec *spec, const struct dpt_job *job,
                                     double limit, bool time, struct dpt_error *err);
void dpt_plan_meshes_close(struct dpt_plan_meshes *all);

/* Whether the mesh needs comm.reduction: reproducible; else it has the job's. */
bool dpt_plan_mesh_reproducible(const struct dpt_plan_meshes *all,
                                const struct dpt_plan_candidate *c);
/* "16x4"; "parallel: {pipeline: 4}", as the job would have it. */
void dpt_plan_mesh_text(const struct dpt_plan_candidate *c, struct dpt_str *out);
void dpt_plan_mesh_job(const struct dpt_plan_candidate *c, struct dpt_str *out);
void dpt_plan_meshes_print(const struct dpt_plan_meshes *all, struct dpt_str *out);
void dpt_plan_meshes_json(const struct dpt_plan_meshes *all, struct dpt_json *j);

#endif
