#include "core/train/job.h"

#include <stdio.h>
#include <string.h>

#include "core/train/optimizer.h"
#include "core/train/schedule.h"
#include "models/model.h"

struct loss_options {
    double label_smoothing;
};

static const struct dpt_option cross_entropy_options[] = {
    {.name = "label_smoothing",
     .type = DPT_OPT_REAL,
     .offset = offsetof(struct loss_options, label_smoothing),
     .fallback = "0",
     .min = 0,
     .max = 0.999,
     .help = "share of each target spread evenly over all classes"},
    {0},
};

static const struct dpt_option no_options[] = {{0}};

static const struct dpt_variant cross_entropy = {
    .name = "cross_entropy",
    .summary = "softmax cross-entropy; labels are classes, or rows of probabilities",
    .options = cross_entropy_options,
    .size = sizeof(struct loss_options),
};

static const struct dpt_variant mse = {
    .name = "mse",
    .summary = "mean squared error over the outputs",
    .options = no_options,
    .size = sizeof(struct loss_options),
};

const struct dpt_variant *const dpt_loss_variants[] = {&cross_entropy, &mse, NULL};

static const char *const device_kinds[] = {"auto", "cpu", "ref", "cuda", NULL};
/* From the second on: those of enum dpt_isa. */
static const char *const isa_words[] = {"auto", "avx2", "avx512", "avx512_bf16", "amx", NULL};
static const char *const on_nan_words[] = {"stop", "skip", NULL};
static const char *const reductions[] = {"allreduce", "reproducible", NULL};
static const char *const hierarchies[] = {"auto", "off", NULL};
static const char *const aware_words[] = {"auto", "on", "off", NULL};

enum { MOST_GLOBAL = 1 << 24, DEFAULT_GLOBAL = 256 };
enum { TIMES = 1 << DPT_SECONDS | 1 << DPT_NEVER };

#define AT(member) .offset = offsetof(struct dpt_job, member)

static const struct dpt_option device_options[] = {
    {.name = "kind",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_CHOICE,
     AT(device.kind),
     .fallback = "auto",
     .choices = device_kinds,
     .help = "who computes; ref: plain C loops, to check the others"},
    {.name = "threads",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_INT,
     AT(device.threads),
     .fallback = "auto",
     .min = 1,
     .max = 1024,
     .word = "auto",
     .help = "CPU threads a rank; auto: its allowed cores, shared with the node's other ranks, or "
             "fewer where a step is too small for them"},
    {.name = "precision",
     .effect = DPT_EFFECT_RESULT,
     .added = true,
     .type = DPT_OPT_CHOICE,
     AT(device.precision),
     .fallback = "fp32",
     .choices = dpt_precision_names,
     .help = "of the layers' numbers; GPUs have all four; weights, sums and optimizer are fp32"},
    {.name = "deterministic",
     .effect = DPT_EFFECT_RESULT,
     .added = true,
     .type = DPT_OPT_BOOL,
     AT(device.deterministic),
     .fallback = "true",
     .help =
         "of the GPU's kernels those that repeat their bits; false: faster ones that do not, too"},
    {.name = "isa",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_CHOICE,
     AT(device.isa),
     .fallback = "auto",
     .choices = isa_words,
     .help = "processor instructions used at most, by oneDNN too: the same on all machines"},
    {0},
};

static const struct dpt_option batch_options[] = {
    {.name = "global",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_INT,
     AT(batch.global),
     .fallback = "null",
     .min = 1,
     .max = MOST_GLOBAL,
     .word = "null",
     .help = "samples an optimizer step, over all ranks (default 256 without per_rank)"},
    {.name = "per_rank",
     .effect = DPT_EFFECT_NONE, /* another word for global */
     .type = DPT_OPT_INT,
     AT(batch.per_rank),
     .fallback = "null",
     .min = 1,
     .max = MOST_GLOBAL,
     .word = "null",
     .rival = "global",
     .help = "samples an optimizer step on each rank, instead of global: more ranks, larger steps"},
    {.name = "micro",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_INT,
     AT(batch.micro),
     .fallback = "auto",
     .min = 1,
     .max = 1 << 20,
     .word = "auto",
     .help =
         "samples of a micro-batch: of one forward and backward pass. A rank or thread that has "
         "several adds up their gradients before the update (gradient accumulation). auto: "
         "small enough to feed every rank and thread"},
    {0},
};

static const struct dpt_option init_options[] = {
    {.name = "from",
     .type = DPT_OPT_TEXT,
     AT(init.from),
     .fallback = "null",
     .help = "begin with the weights of this safetensors, npz or checkpoint file, not at random"},
    {.name = "map",
     .type = DPT_OPT_TEXTS,
     AT(init.map),
     .fallback = "[]",
     .help = "FROM=TO: what a tensor's name in that file begins with, and with what it does here"},
    {.name = "by_order",
     .type = DPT_OPT_BOOL,
     AT(init.by_order),
     .fallback = "false",
     .help = "take the file's tensors in their order, whatever their names"},
    {.name = "partial",
     .type = DPT_OPT_BOOL,
     AT(init.partial),
     .fallback = "false",
     .help = "take what fits: tensors that are missing or of another shape begin at random"},
    {0},
};

static const struct dpt_option train_options[] = {
    {.name = "epochs",
     .effect = DPT_EFFECT_LENGTH,
     .type = DPT_OPT_INT,
     AT(train.epochs),
     .fallback = "null",
     .min = 1,
     .max = 1e9,
     .word = "null",
     .help = "passes over the training data (default 1 without steps)"},
    {.name = "steps",
     .effect = DPT_EFFECT_LENGTH,
     .type = DPT_OPT_INT,
     AT(train.steps),
     .fallback = "null",
     .min = 1,
     .max = 1e15,
     .word = "null",
     .rival = "epochs",
     .help = "optimizer steps, instead of epochs"},
    {.name = "clip_norm",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_REAL,
     AT(train.clip_norm),
     .fallback = "null",
     .min = 1e-30,
     .max = 1e30,
     .word = "null",
     .help = "scale the gradient down to this Euclidean norm where it is longer"},
    {.name = "max_time",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_EVERY,
     AT(train.max_time),
     .fallback = "never",
     .units = TIMES,
     .help = "save and stop (exit code 75) before the run has taken this long: 90 min"},
    {.name = "on_nan",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_CHOICE,
     AT(train.on_nan),
     .fallback = "stop",
     .choices = on_nan_words,
     .help = "a loss or gradient that is not finite: stop the run, or skip the step"},
    {.name = "check_replicas",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_EVERY,
     AT(train.check_replicas),
     .fallback = "100 steps",
     .help = "compare the weights of all ranks, also at each checkpoint"},
    {0},
};

static const struct dpt_option eval_options[] = {
    {.name = "every",
     .type = DPT_OPT_EVERY,
     AT(eval.every),
     .fallback = "1 epoch",
     .units = 1 << DPT_EPOCHS | 1 << DPT_STEPS | 1 << DPT_NEVER,
     .help = "evaluate on data.valid, or on data.test where there is no valid"},
    {0},
};

static const struct dpt_option checkpoint_options[] = {
    {.name = "every",
     .type = DPT_OPT_EVERY,
     AT(checkpoint.every),
     .fallback = "1 epoch",
     .help = "save; the end of a run is always saved unless this is never"},
    {.name = "keep",
     .type = DPT_OPT_INT,
     AT(checkpoint.keep),
     .fallback = "3",
     .min = 1,
     .max = 1e9,
     .word = "all",
     .help = "newest checkpoints to keep"},
    {.name = "background",
     .type = DPT_OPT_BOOL,
     AT(checkpoint.background),
     .fallback = "true",
     .help = "write while training goes on; false: training waits until it is on disk"},
    {0},
};

static const struct dpt_option log_options[] = {
    {.name = "every",
     .type = DPT_OPT_EVERY,
     AT(log.every),
     .fallback = "auto",
     .word = "auto",
     .help = "a line of the mean loss, accuracy and samples/s since the last one; auto: 50 steps, "
             "or a tenth of a run of fewer than 500"},
    {.name = "tensorboard",
     .type = DPT_OPT_BOOL,
     AT(log.tensorboard),
     .fallback = "false",
     .help = "event files for TensorBoard: curves, histograms of each layer, hyper-parameters"},
    {.name = "hashes",
     .type = DPT_OPT_BOOL,
     AT(log.hashes),
     .fallback = "false",
     .help = "fingerprints of weights and gradient each step, for inspect --audit"},
    {.name = "trace",
     .type = DPT_OPT_BOOL,
     AT(log.trace),
     .fallback = "false",
     .help = "trace.json at the end: what each thread did when, for Perfetto or about:tracing"},
    {0},
};

static const struct dpt_option comm_options[] = {
    {.name = "reduction",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_CHOICE,
     AT(comm.reduction),
     .fallback = "allreduce",
     .choices = reductions,
     .help =
         "how the gradients are summed; reproducible: the same bytes for any ranks and threads"},
    {.name = "hierarchical",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_CHOICE,
     AT(comm.hierarchical),
     .fallback = "auto",
     .choices = hierarchies,
     .help = "auto: allreduce sums in a node's shared memory first; off: by MPI_Allreduce alone"},
    {.name = "cuda_aware",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_CHOICE,
     AT(comm.cuda_aware),
     .fallback = "auto",
     .choices = aware_words,
     .help =
         "MPI sums gradients in GPU memory; auto: where a trial comes out right; off: on the host"},
    {.name = "timeout",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_EVERY,
     AT(comm.timeout),
     .fallback = "60 s",
     .units = TIMES,
     .help =
         "end the job (exit code 71) where a rank keeps the others waiting for so long; another "
         "node's that is late but moves: four times as long"},
    {0},
};

/* The rows of a room's own struct start at that struct; the rows above at the job. */
const struct dpt_option dpt_job_options[] = {
    {.name = "name",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_TEXT,
     AT(name),
     .fallback = "null",
     .help = "of the job; default: the job file's name"},
    {.name = "seed",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_INT,
     AT(seed),
     .fallback = "1",
     .min = 0,
     .max = 9e15,
     .help = "of all randomness"},
    {.name = "output",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_TEXT,
     AT(output),
     .fallback = "null",
     .help = "run folder; default: runs/NAME"},
    {.name = "device",
     .effect = DPT_EFFECT_BY_ROW,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = device_options,
     .help = "what computes"},
    {.name = "data",
     .effect = DPT_EFFECT_BY_ROW,
     .type = DPT_OPT_SECTION,
     AT(data),
     .rows = dpt_data_options,
     .help = "where the samples come from"},
    {.name = "model",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_VARIANT,
     AT(model),
     .variants = dpt_model_variants,
     .help = "what is trained"},
    {.name = "init",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = init_options,
     .help = "which weights it begins with"},
    {.name = "loss",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_VARIANT,
     AT(loss),
     .fallback = "cross_entropy",
     .variants = dpt_loss_variants,
     .help = "what is minimised"},
    {.name = "batch",
     .effect = DPT_EFFECT_BY_ROW,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = batch_options,
     .help = "how many samples at a time"},
    {.name = "optimizer",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_VARIANT,
     AT(optimizer),
     .fallback = "adam",
     .variants = dpt_optimizer_variants,
     .help = "how the weights follow the gradient"},
    {.name = "schedule",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_VARIANT,
     AT(schedule),
     .fallback = "constant",
     .variants = dpt_schedule_variants,
     .help = "the learning rate over time"},
    {.name = "train",
     .effect = DPT_EFFECT_BY_ROW,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = train_options,
     .help = "how long, and what to guard"},
    {.name = "eval",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = eval_options,
     .help = "when to evaluate"},
    {.name = "checkpoint",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = checkpoint_options,
     .help = "when to save"},
    {.name = "log",
     .effect = DPT_EFFECT_NONE,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = log_options,
     .help = "what to write while it runs"},
    {.name = "comm",
     .effect = DPT_EFFECT_BY_ROW,
     .type = DPT_OPT_SECTION,
     .fallback = "{}",
     .rows = comm_options,
     .help = "how the ranks work together"},
    {0},
};

/* "configs/mnist-cnn.yaml" -> "mnist-cnn" */
static const char *stem(struct dpt_conf *conf, const char *path)
{
    const char *base = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    const char *dot = strrchr(base, '.');

    return dpt_arena_strndup(&conf->arena, base,
                             dot != NULL && dot != base ? (size_t)(dot - base) : strlen(base));
}

/* Puts a value that follows from others into the resolved tree. */
static bool put_text(struct dpt_conf *conf, struct dpt_conf_node *map, const char *key,
                     const char *text, bool quoted)
{
    struct dpt_conf_node *node = dpt_conf_new(conf, DPT_NODE_SCALAR, text);

    if (node == NULL)
        return false;
    node->filled = true;
    node->quoted = quoted; /* a job may be called `null` or `12` */
    return dpt_conf_put(conf, map, key, node);
}

/* How many samples a step has. */
static bool finish_batch(struct dpt_job *job, struct dpt_conf *conf, struct dpt_conf_node *batch)
{
    const bool ranks = job->batch.per_rank != 0;
    char text[32];

    if (ranks) {
        job->batch.global = job->batch.per_rank;
    } else if (job->batch.global == 0) {
        job->batch.global = DEFAULT_GLOBAL;
        snprintf(text, sizeof text, "%d", DEFAULT_GLOBAL);
        if (batch != NULL && !put_text(conf, batch, "global", text, false))
            return false;
    }
    if (job->batch.micro > job->batch.global)
        dpt_conf_mistake(conf, dpt_conf_get(batch, "micro"), "batch.micro",
                         "%lld is more than batch.%s, %lld", (long long)job->batch.micro,
                         ranks ? "per_rank" : "global", (long long)job->batch.global);
    return true;
}

/* Checks that need more than one key, and defaults that follow from other keys. */
static bool finish(struct dpt_job *job, struct dpt_conf *conf)
{
    struct dpt_conf_node *root = conf->root;
    struct dpt_conf_node *train = dpt_conf_get(root, "train");

    if (job->name == NULL || job->name[0] == '\0') {
        job->name = stem(conf, conf->path);
        if (job->name == NULL || !put_text(conf, root, "name", job->name, true))
            return false;
    }
    if (job->output == NULL || job->output[0] == '\0') {
        job->output = dpt_arena_printf(&conf->arena, "runs/%s", job->name);
        if (job->output == NULL || !put_text(conf, root, "output", job->output, true))
            return false;
    }
    if (job->train.epochs == 0 && job->train.steps == 0) {
        job->train.epochs = 1;
        if (train != NULL && !put_text(conf, train, "epochs", "1", false))
            return false;
    }
    if (!job->device.deterministic && job->comm.reduction == DPT_REDUCTION_REPRODUCIBLE)
        dpt_conf_mistake(conf, dpt_conf_get(dpt_conf_get(root, "device"), "deterministic"),
                         "device.deterministic",
                         "false does not go with comm.reduction: reproducible, which promises the "
                         "same bytes; leave one of them out");
    if (job->init.from == NULL && (job->init.map.n > 0 || job->init.by_order || job->init.partial))
        dpt_conf_mistake(conf, dpt_conf_get(root, "init"), "init",
                         "map, by_order and partial are for a file of weights: `from` names it");
    return finish_batch(job, conf, dpt_conf_get(root, "batch"));
}

enum dpt_status dpt_job_load(struct dpt_job *job, struct dpt_conf *conf, const char *path,
                             const char *const *sets, size_t n_sets, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(job, 0, sizeof *job);
    DPT_TRY(dpt_conf_load(conf, path, err));
    conf->synonyms = dpt_job_synonyms;
    for (size_t i = 0; i < n_sets; i++)
        DPT_TRY(dpt_conf_set(conf, sets[i], err));
    if (!dpt_options_read(conf, conf->root, "", dpt_job_options, job))
        DPT_TRY(dpt_fail_memory(err, "the job file", 0));
    if (conf->n_mistakes == 0 && !finish(job, conf))
        DPT_TRY(dpt_fail_memory(err, "the job file", 0));
    DPT_TRY(dpt_conf_verdict(conf, err));
out:
    return status;
}

enum dpt_status dpt_job_for_ranks(struct dpt_job *job, int ranks, struct dpt_error *err)
{
    if (job->batch.per_rank == 0)
        return DPT_OK;
    job->batch.global = job->batch.per_rank * ranks;
    if (job->batch.global <= MOST_GLOBAL)
        return DPT_OK;
    return dpt_fail(
        err, DPT_BAD_JOB, "batch.per_rank: %lld on %d ranks are %lld samples a step, more than %d",
        (long long)job->batch.per_rank, ranks, (long long)job->batch.global, MOST_GLOBAL);
}

const char *dpt_job_precision(const struct dpt_job *job)
{
    return dpt_precision_names[job->device.precision];
}

struct dpt_loss dpt_job_loss(const struct dpt_job *job)
{
    const struct loss_options *options = job->loss.options;
    const bool entropy = job->loss.variant == &cross_entropy;

    return (struct dpt_loss){
        .kind = entropy ? DPT_LOSS_CROSS_ENTROPY : DPT_LOSS_MSE,
        .smoothing = entropy ? (float)options->label_smoothing : 0.0f,
    };
}

static bool is_default(const struct dpt_conf_node *node)
{
    return node->filled || (node->kind == DPT_NODE_SCALAR && node->row->fallback != NULL &&
                            strcmp(node->text, node->row->fallback) == 0);
}

/* Whether a checkpoint's job goes without an entry. */
static bool is_left_out(const struct dpt_conf_node *node)
{
    const struct dpt_option *row = node->row;

    return row != NULL && (row->effect == DPT_EFFECT_NONE || (row->added && is_default(node)));
}

/* A copy without what is left out; NULL: nothing remains of a section, or memory ran out. */
static struct dpt_conf_node *copy(struct dpt_conf *conf, const struct dpt_conf_node *node)
{
    struct dpt_conf_node *new = dpt_conf_new(conf, node->kind, node->text), *item;

    if (new == NULL)
        return NULL;
    new->quoted = node->quoted;
    for (size_t i = 0; i < node->n && !conf->failed; i++) {
        item = is_left_out(node->items[i]) ? NULL : copy(conf, node->items[i]);
        if (item != NULL && node->kind == DPT_NODE_MAP)
            dpt_conf_put(conf, new, node->keys[i], item);
        else if (item != NULL)
            dpt_conf_append(conf, new, item);
    }
    return node->row != NULL && node->row->type == DPT_OPT_SECTION && node->n > new->n &&new->n == 0
               ? NULL
               : new;
}

void dpt_job_essence(const struct dpt_job *job, const struct dpt_conf *conf, struct dpt_str *out)
{
    /* The order of the first checkpoints; what else there is comes behind it. */
    static const char *const first[] = {"seed",      "data",     "model", "loss", "batch",
                                        "optimizer", "schedule", "train", "comm"};
    enum { FIRST = sizeof first / sizeof first[0] };
    struct dpt_conf kept = {0};
    struct dpt_conf_node *all = copy(&kept, conf->root);
    struct dpt_conf_node *map = dpt_conf_new(&kept, DPT_NODE_MAP, NULL);
    struct dpt_conf_node *batch = all != NULL ? dpt_conf_get(all, "batch") : NULL;
    struct dpt_conf_node *global = batch != NULL ? dpt_conf_get(batch, "global") : NULL;
    char samples[32];

    /* The samples a step, whichever way they were given. */
    snprintf(samples, sizeof samples, "%lld", (long long)job->batch.global);
    if (global != NULL)
        global->text = samples;
    for (size_t i = 0; all != NULL && map != NULL && i < FIRST + all->n; i++) {
        const char *key = i < FIRST ? first[i] : all->keys[i - FIRST];
        struct dpt_conf_node *item = dpt_conf_get(all, key);

        if (item != NULL)
            dpt_conf_put(&kept, map, key, item);
    }
    if (kept.failed || all == NULL || map == NULL)
        out->failed = true;
    else
        dpt_conf_write(map, out);
    dpt_conf_release(&kept);
}
