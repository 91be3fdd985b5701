/*
 * job: the whole job file as one struct.
 *
 * The table dpt_job_options is assembled from the modules' own tables; reading it fills the struct
 * and turns the document's tree into the resolved job. Strings and lists live in the document's
 * arena, so the struct must not outlive its dpt_conf.
 */
#ifndef DPT_TRAIN_JOB_H
#define DPT_TRAIN_JOB_H

#include "core/backend/backend.h"
#include "core/comm/comm.h"
#include "core/conf/option.h"
#include "core/train/update/monitor.h"
#include "core/train/update/tensor_groups.h"
#include "data/sets/dataset.h"

#define DPT_DEVICE_KINDS(X)                                                                        \
    X(DPT_DEVICE_AUTO, "auto")                                                                     \
    X(DPT_DEVICE_CPU, "cpu")                                                                       \
    X(DPT_DEVICE_REF, "ref")                                                                       \
    X(DPT_DEVICE_CUDA, "cuda")
#define DPT_REDUCTION_KINDS(X)                                                                     \
    X(DPT_REDUCTION_ALLREDUCE, "allreduce") X(DPT_REDUCTION_REPRODUCIBLE, "reproducible")
#define DPT_HIERARCHIES(X) X(DPT_HIERARCHICAL_AUTO, "auto") X(DPT_HIERARCHICAL_OFF, "off")
#define DPT_OVERLAPS(X)                                                                            \
    X(DPT_OVERLAP_AUTO, "auto") X(DPT_OVERLAP_ALWAYS, "always") X(DPT_OVERLAP_NEVER, "never")
#define DPT_SHARDS(X)                                                                              \
    X(DPT_SHARD_NONE, "none")                                                                      \
    X(DPT_SHARD_OPTIMIZER, "optimizer")                                                            \
    X(DPT_SHARD_GRADIENTS, "gradients")                                                            \
    X(DPT_SHARD_PARAMETERS, "parameters")
#define DPT_PIPELINES(X) X(DPT_PIPELINE_1F1B, "1f1b") X(DPT_PIPELINE_GPIPE, "gpipe")
#define DPT_ON_NANS(X)   X(DPT_ON_NAN_STOP, "stop") X(DPT_ON_NAN_SKIP, "skip")

enum dpt_device_kind { DPT_DEVICE_KINDS(DPT_LIST_NAME) DPT_DEVICE_KIND_COUNT };
enum dpt_reduction_kind { DPT_REDUCTION_KINDS(DPT_LIST_NAME) DPT_REDUCTION_KIND_COUNT };
enum dpt_hierarchical { DPT_HIERARCHIES(DPT_LIST_NAME) DPT_HIERARCHICAL_COUNT };
enum dpt_overlap { DPT_OVERLAPS(DPT_LIST_NAME) DPT_OVERLAP_COUNT };
enum dpt_shard { DPT_SHARDS(DPT_LIST_NAME) DPT_SHARD_COUNT };
enum dpt_pipeline_kind { DPT_PIPELINES(DPT_LIST_NAME) DPT_PIPELINE_KIND_COUNT };
enum dpt_on_nan { DPT_ON_NANS(DPT_LIST_NAME) DPT_ON_NAN_COUNT };

enum { DPT_MOST_GLOBAL = 1 << 24 }; /* samples per step */

/* parallel.pipeline. */
struct dpt_pipeline_options {
    int64_t stages; /* 0 or 1: none */
    struct dpt_texts cut;
    int schedule; /* enum dpt_pipeline_kind */
    const struct dpt_conf_node *at;
    const char *file;
};

struct dpt_job {
    const char *name;
    int64_t seed;
    const char *output; /* the run folder */
    struct {
        int kind;        /* enum dpt_device_kind */
        int64_t threads; /* 0: automatic */
        int precision;   /* enum dpt_precision */
        bool deterministic;
        int isa; /* enum dpt_isa; DPT_ISA_PLAIN: whatever there is */
    } device;
    struct dpt_data_conf data;
    struct dpt_variant_value model, loss, optimizer, schedule;
    struct {
        const char *from;     /* a file of weights; NULL: randomly initialised */
        struct dpt_texts map; /* "FROM=TO" */
        bool by_order, partial;
    } init;
    struct {
        int64_t global;   /* samples per step; if per_rank, of one rank until dpt_job_for_ranks */
        int64_t per_rank; /* 0: `global` was given */
        int64_t micro;    /* 0: automatic */
    } batch;
    struct {
        int64_t epochs, steps; /* exactly one is not 0 */
        double clip_norm;      /* 0: none */
        struct dpt_patterns freeze;
        double ema; /* decay per step of the weights' average; 0: there is none */
        struct dpt_patience early_stop; /* patience 0: no early stopping */
        int also;                       /* enum dpt_monitor: a second value to watch; AUTO: none */
        int on_nan;                     /* enum dpt_on_nan */
        struct dpt_every check_replicas;
        struct dpt_every max_time;
    } train;
    struct {
        struct dpt_every every;
    } eval;
    struct {
        struct dpt_every every;
        int64_t keep; /* 0: all */
        int monitor;  /* enum dpt_monitor: selects `best` */
        bool background;
    } checkpoint;
    struct {
        struct dpt_every every;
        bool tensorboard;
        bool hashes;
        bool trace;
    } log;
    struct {
        int reduction;    /* enum dpt_reduction_kind */
        int hierarchical; /* enum dpt_hierarchical */
        int overlap;      /* enum dpt_overlap */
        int transport;    /* enum dpt_transport (core/comm/transport.h) */
        bool check_transport;
        int cuda_aware;                          /* enum dpt_cuda_aware (core/comm/cuda_aware.h) */
        struct dpt_every timeout, start_timeout; /* n 0: never */
    } comm;
    struct {
        int64_t data; /* ranks; 0: all available for a stage */
        struct dpt_pipeline_options pipeline;
        int64_t tensor; /* ranks that divide each layer; 1: none */
        int shard;      /* enum dpt_shard */
    } parallel;
};

extern const struct dpt_option dpt_job_options[];
extern const struct dpt_synonym dpt_job_synonyms[]; /* job_words.c */

/*
 * Loads a job file, applies `sets` ("a.b=c") in order and checks everything that can be checked
 * without data. *conf is the document, owned by the caller from now on, also on failure. Errors:
 * BAD_JOB with all errors, USAGE for a malformed --set.
 */
enum dpt_status dpt_job_load(struct dpt_job *job, struct dpt_conf *conf, const char *path,
                             const char *const *sets, size_t n_sets, struct dpt_error *err);

/* To be called once the number of ranks is known: sets batch.global from batch.per_rank. Errors:
 * BAD_JOB. */
enum dpt_status dpt_job_for_ranks(struct dpt_job *job, int ranks, struct dpt_error *err);

/* Whether the model leaves the width of its last layer to the data. */
bool dpt_job_leaves_outputs(const struct dpt_job *job);
/*
 * Finds that width, collectively over comm->world, or if comm is NULL on this process alone: the
 * width of the model of `checkpoint`, a file of this program; if the file has none, or is NULL, the
 * width that data.train requires. Errors: those of opening either.
 */
enum dpt_status dpt_job_find_outputs(const struct dpt_job *job, const char *checkpoint,
                                     const struct dpt_comm *comm, int64_t *outputs,
                                     struct dpt_error *err);
/* Puts the width into the job and its tree, as if the job had given it. Errors: RANK. */
enum dpt_status dpt_job_set_outputs(struct dpt_job *job, struct dpt_conf *conf, int64_t outputs,
                                    struct dpt_error *err);

/* "bf16": the job's precision. */
const char *dpt_job_precision(const struct dpt_job *job);

/* The loss in the form for backends. */
struct dpt_loss dpt_job_loss(const struct dpt_job *job);
/* How long a rank may keep the others waiting. */
struct dpt_comm_limits dpt_job_limits(const struct dpt_job *job);
/* One of the job's data sets, as it is opened. */
struct dpt_dataset_spec dpt_job_dataset(const struct dpt_job *job, const struct dpt_texts *paths);
/* Whether a loss of that name, which may be any text, is for regression. */
bool dpt_loss_predicts_numbers(const char *name);

/*
 * The job's signature: the part of the resolved job that decides the result, as the rows say (enum
 * dpt_effect). It is without output, log, checkpoint and eval; device has only settings other than
 * the defaults, and batch only the samples per step, however they were given. conf: the job's.
 * Checkpoints keep it, so its text does not depend on who ran the job or where.
 */
void dpt_job_signature(const struct dpt_job *job, const struct dpt_conf *conf, struct dpt_str *out);

#endif
