#include <string.h>

#include "core/base/isa.h"
#include "core/comm/transport.h"
#include "core/train/job/job.h"
#include "core/train/update/monitor.h"
#include "core/train/update/optimizer.h"
#include "core/train/update/schedule.h"
#include "models/model.h"

/* The tables of a job file's sections, and the losses. */

/* A loss has at most one number: struct dpt_loss.attribute. */
struct loss_options {
    double attribute;
};

#define AT(member) .offset = offsetof(struct dpt_job, member)

/* The members that all rows of a type share; a row's own members follow. */
#define ROW(key, affects, kind)                                                                    \
    .name = (key), .effect = DPT_EFFECT_##affects, .type = DPT_OPT_##kind
#define SECTION(key, affects, table)      ROW(key, affects, SECTION), .fallback = "{}", .rows = (table)
#define FLAG(key, affects, member, usual) ROW(key, affects, BOOL), AT(member), .fallback = (usual)
#define WHEN(key, affects, member, usual) ROW(key, affects, EVERY), AT(member), .fallback = (usual)
#define TEXT(key, affects, member)        ROW(key, affects, TEXT), AT(member), .fallback = "null"
#define CHOICE(key, affects, member, list, usual)                                                  \
    ROW(key, affects, CHOICE), AT(member), .fallback = (usual), .choices = DPT_CHOICES(list)
#define WHOLE(key, affects, member, usual, least, most)                                            \
    ROW(key, affects, INT), AT(member), .fallback = (usual), .min = (least), .max = (most)

static const struct dpt_option cross_entropy_options[] = {
    {ROW("label_smoothing", AS_ABOVE, REAL), .fallback = "0", .max = 0.999,
     .offset = offsetof(struct loss_options, attribute),
     .help = "share of each target spread evenly over all classes"},
    {0},
};

static const struct dpt_option focal_options[] = {
    {ROW("gamma", AS_ABOVE, REAL), .fallback = "2", .max = 100,
     .offset = offsetof(struct loss_options, attribute),
     .help = "focusing exponent: down-weights well-classified samples; 0: cross_entropy"},
    {0},
};

static const struct dpt_option quantile_options[] = {
    {ROW("quantile", AS_ABOVE, REAL), .fallback = "0.5", .min = 0, .max = 1,
     .offset = offsetof(struct loss_options, attribute),
     .help = "the share of the targets that lie below the prediction; 0.5: the median"},
    {0},
};

static const struct dpt_option huber_options[] = {
    {ROW("delta", AS_ABOVE, REAL), .fallback = "1", .min = 1e-30, .max = 1e30,
     .offset = offsetof(struct loss_options, attribute),
     .help = "differences up to this are squared, larger ones count as they are; with "
             "data.targets.normalize in standard deviations of the targets"},
    {0},
};

static const struct dpt_option no_options[] = {{0}};

#define LOSS(loss, table, text)                                                                    \
    static const struct dpt_variant loss = {                                                       \
        .name = #loss, .summary = text, .options = table, .size = sizeof(struct loss_options)}

LOSS(cross_entropy, cross_entropy_options,
     "softmax cross-entropy; labels are classes, or rows of probabilities");
LOSS(focal, focal_options,
     "softmax cross-entropy in which samples that are classified well count less, for "
     "rare classes; labels as of cross_entropy");
LOSS(mse, no_options, "mean squared error over the outputs");
LOSS(l1, no_options, "mean absolute error over the outputs");
LOSS(huber, huber_options,
     "squared error over the outputs for small differences, absolute for large ones");
LOSS(quantile, quantile_options,
     "pinball loss over the outputs: the model predicts a quantile instead of the mean");
LOSS(poisson, no_options,
     "negative log-likelihood of counts, and other numbers from 0, whose rates the model predicts: "
     "its outputs are their logarithms; results are rates");
LOSS(binary_cross_entropy, no_options,
     "sigmoid cross-entropy of each output by itself, for several labels at once that are "
     "0 or 1; its mean over the outputs");
#undef LOSS

/* In the order of enum dpt_loss_kind. */
#define X(NAME, name) &name,
static const struct dpt_variant *const loss_variants[] = {DPT_LOSS_LIST(X) NULL};
#undef X

struct dpt_loss dpt_job_loss(const struct dpt_job *job)
{
    const struct loss_options *options = job->loss.options;

    for (int kind = 0; kind < DPT_LOSSES; kind++)
        if (loss_variants[kind] == job->loss.variant)
            return (struct dpt_loss){(enum dpt_loss_kind)kind, (float)options->attribute};
    /* A loss that was not understood is an error of its own; as MSE it causes no second one. */
    return (struct dpt_loss){.kind = DPT_LOSS_MSE};
}

struct dpt_comm_limits dpt_job_limits(const struct dpt_job *job)
{
    return (struct dpt_comm_limits){job->comm.timeout.n, job->comm.start_timeout.n};
}

struct dpt_dataset_spec dpt_job_dataset(const struct dpt_job *job, const struct dpt_texts *paths)
{
    const enum dpt_loss_kind loss = dpt_job_loss(job).kind;

    return (struct dpt_dataset_spec){
        .conf = &job->data,
        .paths = paths,
        .classes = dpt_loss_has_classes(loss),
        .binary = loss == DPT_LOSS_BINARY_CROSS_ENTROPY,
        .seed = (uint64_t)job->seed,
    };
}

bool dpt_loss_predicts_numbers(const char *name)
{
    for (int kind = 0; kind < DPT_LOSSES; kind++)
        if (strcmp(loss_variants[kind]->name, name) == 0)
            return !dpt_loss_judges((enum dpt_loss_kind)kind);
    return false;
}

enum { TIMES = 1 << DPT_SECONDS | 1 << DPT_NEVER };

static const struct dpt_option device_options[] = {
    {CHOICE("kind", NONE, device.kind, DPT_DEVICE_KINDS, "auto"),
     .help = "backend; ref: plain C reference, for testing"},
    {WHOLE("threads", NONE, device.threads, "auto", 1, 1024), .word = "auto",
     .help = "CPU threads per rank; auto: its allowed cores, shared with the node's other ranks, "
             "or fewer if a step is too small for them"},
    {CHOICE("precision", RESULT, device.precision, DPT_PRECISION_LIST, "fp32"), .added = true,
     .help =
         "number format of layer computations; GPUs have all four, CPUs fp32 and bf16; weights, "
         "sums and optimizer are fp32"},
    {FLAG("deterministic", RESULT, device.deterministic, "true"), .added = true,
     .help = "prefer bitwise-repeatable GPU kernels; false: allow faster others"},
    {ROW("isa", NONE, CHOICE), AT(device.isa), .fallback = "auto",
     .choices = (const char *const[]){"auto", DPT_ISA_SETS(DPT_LIST_WORD) NULL},
     .help = "highest CPU instruction set used, also by oneDNN; set one that all machines have"},
    {0},
};

static const struct dpt_option batch_options[] = {
    {WHOLE("global", RESULT, batch.global, "null", 1, DPT_MOST_GLOBAL), .word = "null",
     .help = "samples an optimizer step, over all ranks (default 256 without per_rank)"},
    {WHOLE("per_rank", NONE, batch.per_rank, "null", 1, DPT_MOST_GLOBAL), .word = "null",
     .rival = "global", /* another word for global */
     .help = "samples an optimizer step on each rank, instead of global: more ranks, larger steps"},
    {WHOLE("micro", RESULT, batch.micro, "auto", 1, 1 << 20), .word = "auto",
     .help =
         "samples of a micro-batch: of one forward and backward pass. A rank or thread that has "
         "several adds up their gradients before the update (gradient accumulation). auto: "
         "small enough to feed every rank and thread; with comm.reduction: reproducible, or a "
         "batchnorm, whose statistics may be a micro-batch's, it follows from the job alone"},
    {0},
};

static const struct dpt_option init_options[] = {
    {TEXT("from", AS_ABOVE, init.from),
     .help = "safetensors, npz or checkpoint file of the initial weights; default: random; "
             "torchvision's state dicts fit resnet, vgg and mobilenet_v2 by name"},
    {ROW("map", AS_ABOVE, TEXTS), AT(init.map), .fallback = "[]",
     .help = "FROM=TO: replace prefix FROM of the file's tensor names by TO"},
    {FLAG("by_order", AS_ABOVE, init.by_order, "false"),
     .help = "load the file's tensors in their order, whatever their names"},
    {FLAG("partial", AS_ABOVE, init.partial, "false"),
     .help = "load matching tensors; those that are missing or of another shape are randomly "
             "initialised and listed"},
    {0},
};

static const struct dpt_option early_stop_options[] = {
    {WHOLE("patience", LENGTH, train.early_stop.patience, "null", 1, 1e9), .word = "null",
     .added = true,
     .help = "end the run after so many evaluations without a better value; null: train.epochs or "
             "train.steps alone end it"},
    {CHOICE("monitor", LENGTH, train.early_stop.monitor, DPT_MONITORS, "valid.loss"), .added = true,
     .help = "value of data.valid that must improve"},
    {CHOICE("also", LENGTH, train.also, DPT_MONITORS_OR_NONE, "none"), .added = true,
     .help = "a second value: the run continues as long as either improves"},
    {ROW("min_delta", LENGTH, REAL), AT(train.early_stop.min_delta), .fallback = "0", .min = 0,
     .max = 1e30, .added = true, .help = "improvements up to this size do not count"},
    {0},
};

static const struct dpt_option train_options[] = {
    {WHOLE("epochs", LENGTH, train.epochs, "null", 1, 1e9), .word = "null",
     .help = "passes over the training data (default 1 without steps)"},
    {WHOLE("steps", LENGTH, train.steps, "null", 1, 1e15), .word = "null", .rival = "epochs",
     .help = "optimizer steps, instead of epochs"},
    {ROW("clip_norm", RESULT, REAL), AT(train.clip_norm), .fallback = "null", .min = 1e-30,
     .max = 1e30, .word = "null",
     .help = "scale the gradient down to this Euclidean norm if it is longer"},
    {ROW("freeze", RESULT, CUSTOM), AT(train.freeze), .fallback = "[]", .added = true,
     .read = dpt_patterns_read, .value_text = "list of patterns",
     .alternatives = &dpt_pattern_forms,
     .help = "tensors or layers that are not updated: [\"layer1.*\", conv1/bias]"},
    {ROW("ema", RESULT, REAL), AT(train.ema), .fallback = "null", .min = 1e-31, .max = 0.999999,
     .word = "null", .added = true,
     .help = "keep a moving average of the weights, of which a step keeps this share (0.999); it "
             "is what is evaluated, and what eval, predict and export take"},
    {SECTION("early_stop", BY_ROW, early_stop_options),
     .help = "when evaluations say that it learns no more"},
    {WHEN("max_time", NONE, train.max_time, "never"), .units = TIMES,
     .help = "save and stop (exit code 75) before the run has taken this long: 90 min"},
    {CHOICE("on_nan", RESULT, train.on_nan, DPT_ON_NANS, "stop"),
     .help = "a loss or gradient that is not finite: stop the run, or skip the step; outputs in "
             "an evaluation: stop the run, or warn"},
    {WHEN("check_replicas", NONE, train.check_replicas, "100 steps"),
     .help = "compare all copies of the weights, also at each checkpoint; ranks of a node "
             "share large ones"},
    {0},
};

static const struct dpt_option eval_options[] = {
    {WHEN("every", AS_ABOVE, eval.every, "1 epoch"),
     .units = 1 << DPT_EPOCHS | 1 << DPT_STEPS | 1 << DPT_NEVER,
     .help = "evaluate on data.valid, or on data.test if data.valid is not set"},
    {0},
};

static const struct dpt_option checkpoint_options[] = {
    {WHEN("every", AS_ABOVE, checkpoint.every, "1 epoch"),
     .help = "save; the end of a run is always saved unless this is never"},
    {WHOLE("keep", AS_ABOVE, checkpoint.keep, "3", 1, 1e9), .word = "all",
     .help = "newest checkpoints to keep"},
    {CHOICE("monitor", AS_ABOVE, checkpoint.monitor, DPT_MONITORS_OR_AUTO, "auto"),
     .help =
         "the value of data.valid by which `best` is chosen, of equal ones the lower loss; it is "
         "then what a run folder stands for; auto: what train.early_stop or the schedule "
         "plateau monitors; without these the accuracy or loss, and a run folder stands for "
         "its newest checkpoint"},
    {FLAG("background", AS_ABOVE, checkpoint.background, "true"),
     .help = "write while training goes on; false: training waits until it is on disk"},
    {0},
};

static const struct dpt_option log_options[] = {
    {WHEN("every", AS_ABOVE, log.every, "auto"), .word = "auto",
     .help = "a line of the mean loss, accuracy and samples/s since the last one; auto: 50 steps, "
             "or a tenth of a run of fewer than 500"},
    {FLAG("tensorboard", AS_ABOVE, log.tensorboard, "false"),
     .help = "event files for TensorBoard: curves, histograms of each layer, hyper-parameters"},
    {FLAG("hashes", AS_ABOVE, log.hashes, "false"),
     .help = "fingerprints of weights and gradient each step, for inspect --audit"},
    {FLAG("trace", AS_ABOVE, log.trace, "false"),
     .help = "trace.json at the end: what each thread did when, for Perfetto or about:tracing"},
    {0},
};

static const struct dpt_option comm_options[] = {
    {CHOICE("reduction", RESULT, comm.reduction, DPT_REDUCTION_KINDS, "allreduce"),
     .help =
         "how the gradients are summed; reproducible: the same bytes for any ranks and threads"},
    {CHOICE("hierarchical", NONE, comm.hierarchical, DPT_HIERARCHIES, "auto"),
     .help = "auto: allreduce sums in a node's shared memory first; off: by MPI_Allreduce alone"},
    {CHOICE("overlap", NONE, comm.overlap, DPT_OVERLAPS, "auto"),
     .help = "sum between nodes in buckets while backward goes on (reduction: allreduce); auto: "
             "where each rank has a core beside those of its threads; no byte depends on it"},
    {CHOICE("transport", NONE, comm.transport, DPT_TRANSPORT_LIST, "auto"),
     .help = "what sums the gradients of GPUs: nccl: NCCL, over NVLink, PCIe and the network; mpi: "
             "MPI; auto: NCCL where each rank has it, and a GPU of its own"},
    {FLAG("check_transport", NONE, comm.check_transport, "true"),
     .help = "MPI sums the first step's gradient, too, and the job ends where NCCL's differs"},
    {CHOICE("cuda_aware", NONE, comm.cuda_aware, DPT_CUDA_AWARE_LIST, "auto"),
     .help = "without NCCL: MPI sums gradients in GPU memory; auto: where a trial is right and "
             "faster; off: on the host"},
    {WHEN("timeout", NONE, comm.timeout, "60 s"), .units = TIMES,
     .help = "end the job (exit code 71) when a rank or GPU keeps others waiting this long; up to "
             "four times this for a late rank on another node that still makes progress"},
    {WHEN("start_timeout", NONE, comm.start_timeout, "15 min"), .units = TIMES,
     .help = "the same until the first step, for a rank that runs: opening files and devices may "
             "take long; each comm.timeout a warning names who is waited for"},
    {0},
};

#undef AT
#define AT(member) .offset = offsetof(struct dpt_pipeline_options, member)
static const struct dpt_option pipeline_options[] = {
    {WHOLE("stages", AS_ABOVE, stages, "1", 1, 4096), .help = "into which the layers are divided"},
    {ROW("cut", AS_ABOVE, TEXTS), AT(cut), .fallback = "[]",
     .help = "the first layer of each stage but the first, a conv or dense; left out: balanced by "
             "arithmetic and memory"},
    {CHOICE("schedule", AS_ABOVE, schedule, DPT_PIPELINES, "1f1b"),
     .help = "1f1b: one micro-batch forward, one back; gpipe: all forward, then all back, which "
             "takes more memory; no byte depends on it"},
    {0},
};

static const struct dpt_option pipeline_either[] = {
    {WHOLE("stages", AS_ABOVE, stages, "1", 1, 4096)},
    {ROW("pipeline", AS_ABOVE, SECTION), .rows = pipeline_options},
    {0},
};
#undef AT
#define AT(member) .offset = offsetof(struct dpt_job, member)
static const struct dpt_alternatives pipeline_alternatives = {.either = pipeline_either};

static bool read_pipeline(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    struct dpt_pipeline_options *options = dest;

    options->at = node;
    options->file = conf->path;
    if (node->kind != DPT_NODE_MAP && !dpt_option_bare(conf, node, "stages"))
        return false;
    return dpt_options_read(conf, node, path, pipeline_options, options);
}

static const struct dpt_option parallel_options[] = {
    {WHOLE("data", NONE, parallel.data, "auto", 1, 1 << 20), .word = "auto",
     .help = "ranks that have the same layers and divide the samples; auto: all that are started, "
             "divided by the pipeline's stages"},
    {WHOLE("tensor", NONE, parallel.tensor, "1", 1, 4096),
     .help = "divide the outputs of wide dense layers among so many ranks; needs comm.reduction: "
             "reproducible; no byte depends on it"},
    {ROW("pipeline", NONE, CUSTOM), AT(parallel.pipeline), .fallback = "null",
     .read = read_pipeline, .value_text = "number of stages, or {stages, cut, schedule}",
     .alternatives = &pipeline_alternatives,
     .help = "number of stages that the layers are divided into; needs comm.reduction: "
             "reproducible, and changes no byte"},
    {CHOICE("shard", NONE, parallel.shard, DPT_SHARDS, "none"),
     .help =
         "data that the ranks divide among them; optimizer: its state, and the update of the "
         "weights; gradients: also the gradient's sum; parameters: also the weights; changes no "
         "byte under comm.reduction: reproducible, which gradients and parameters need"},
    {0},
};

/* Offsets in a module's rows count from the module's own struct, in the rows above from the job. */
const struct dpt_option dpt_job_options[] = {
    {ROW("name", OUTPUT, NAME), AT(name), .fallback = "null",
     .help = "name of the job, and of its folder in runs/; default: the job file's name"},
    {WHOLE("seed", RESULT, seed, "1", 0, 9e15), .help = "random seed"},
    {TEXT("output", OUTPUT, output), .help = "run folder; default: runs/NAME"},
    {SECTION("device", BY_ROW, device_options), .help = "backend, threads and precision"},
    {ROW("data", BY_ROW, SECTION), AT(data), .rows = dpt_data_options,
     .help = "training, validation and test samples"},
    {ROW("model", RESULT, VARIANT), AT(model), .variants = dpt_model_variants,
     .help = "model to train"},
    {SECTION("init", NONE, init_options), .help = "initial weights"},
    {ROW("loss", RESULT, VARIANT), AT(loss), .fallback = "cross_entropy", .variants = loss_variants,
     .help = "loss to minimise"},
    {SECTION("batch", BY_ROW, batch_options), .help = "batch and micro-batch sizes"},
    {ROW("optimizer", RESULT, VARIANT), AT(optimizer), .fallback = "adam",
     .variants = dpt_optimizer_variants, .help = "optimizer and learning rate"},
    {ROW("schedule", RESULT, VARIANT), AT(schedule), .fallback = "constant",
     .variants = dpt_schedule_variants, .help = "learning rate over time"},
    {SECTION("train", BY_ROW, train_options), .help = "length of the training, and safeguards"},
    {SECTION("eval", OUTPUT, eval_options), .help = "when to evaluate"},
    {SECTION("checkpoint", OUTPUT, checkpoint_options), .help = "when to save"},
    {SECTION("log", OUTPUT, log_options), .help = "output while it runs"},
    {SECTION("comm", BY_ROW, comm_options), .help = "communication between ranks"},
    {SECTION("parallel", NONE, parallel_options),
     .help = "parallelism: what is divided among the ranks"},
    {0},
};
