/*
 * job_command: what the commands that take a job file have in common: its options, --ranks, MPI,
 * the resolved job.
 */
#ifndef DPT_CMD_JOB_COMMAND_H
#define DPT_CMD_JOB_COMMAND_H

#include "cmd/cmd.h"
#include "core/comm/comm.h"
#include "core/train/job/job.h"
#include "core/train/trainer.h"
#include "data/sources/source.h"

/* The option of those that decide for a class. */
#define DPT_THRESHOLD_CLI_OPTION                                                                   \
    {                                                                                              \
        "--threshold", "CLASS=P",                                                                  \
            "choose CLASS, by name or number, if its probability is at least P; repeatable"        \
    }

/* Rows that these commands share, for their option tables. */
#define DPT_JOB_CLI_OPTIONS                                                                        \
    {"--set", "KEY=VALUE", "override a key of the job file (batch.global=512); repeatable"},       \
    {                                                                                              \
        "--ranks", "N|auto",                                                                       \
            "start N ranks of this by its MPI's mpirun; auto: one rank per GPU, else per core; "   \
            "fewer if all would be slower"                                                         \
    }

/* What of a checkpoint is read (dpt_job_command_load_parts). */
#define DPT_LOAD_CLI_OPTIONS                                                                       \
    {"--allow-nan", NULL, "take a checkpoint whose weights are not all finite"},                   \
    {                                                                                              \
        "--weights", "ema|raw",                                                                    \
            "weights of a checkpoint to use: their moving average (default, if it has one), or "   \
            "the weights themselves"                                                               \
    }

/* Options of the commands that compute with trained weights. */
#define DPT_WEIGHTS_CLI_OPTIONS                                                                    \
    {"--checkpoint", "C",                                                                          \
     "a checkpoint; a run folder: its best one if its job has checkpoint.monitor, else its "       \
     "newest; or weights in safetensors or npz (default: the job's init.from)"},                   \
        DPT_LOAD_CLI_OPTIONS,                                                                      \
        {"--map", "FROM=TO", "replace prefix FROM of the file's tensor names by TO"},              \
        {"--map-by-order", NULL, "load the file's tensors in their order, whatever their names"},  \
    {                                                                                              \
        "--init-partial", NULL, "load matching tensors, initialise the rest randomly"              \
    }

/*
 * Loads the job of the command line, starts MPI, and runs the command's `work` on every rank; with
 * --ranks does so in N ranks that it starts. The job file is read before MPI starts, so its errors
 * cost nothing. Errors: as work's; USAGE, BAD_JOB.
 */
enum dpt_status dpt_job_command(struct dpt_cli *cli, struct dpt_error *err);

/* Ends a command that all ranks run: logs its failure, if there is one, and closes MPI. */
void dpt_job_command_end(struct dpt_cli *cli, struct dpt_comm *comm, enum dpt_status status,
                         struct dpt_error *err);

/* Reads the command line's one job file with its --set; *conf is the caller's to release. Errors:
 * USAGE, BAD_JOB. */
enum dpt_status dpt_job_command_load(struct dpt_cli *cli, struct dpt_job *job,
                                     struct dpt_conf *conf, struct dpt_error *err);
/* The width of the model's last layer, where the job leaves it to the data: as the checkpoint of
 * the command line has it, or data.train wants it. Collective; comm NULL: one process, without MPI.
 * Errors: those of opening these. */
enum dpt_status dpt_job_command_outputs(const struct dpt_cli *cli, struct dpt_job *job,
                                        struct dpt_conf *conf, const struct dpt_comm *comm,
                                        struct dpt_error *err);
/* Adds the job file's name to an error that was found only when the job was set up. */
void dpt_job_command_name(const char *path, struct dpt_error *err);

/* --checkpoint's file, where it is one of dptrain that is to be read as a whole; else NULL. */
const char *dpt_job_command_checkpoint(const struct dpt_cli *cli);
/* DPT_PART_LOADED where there is such a file, else 0. */
unsigned dpt_job_command_loaded(const struct dpt_cli *cli);

/*
 * The file of weights of such a command: --checkpoint's file or else the job's init.from. A
 * --checkpoint in a format of other programs stands for init.from. Errors: USAGE (neither is
 * given).
 */
enum dpt_status dpt_job_command_weights(const struct dpt_cli *cli, const struct dpt_job *job,
                                        const char **path, struct dpt_error *err);
/* The flags of DPT_LOAD_CLI_OPTIONS, of enum dpt_load_parts. Errors: USAGE. */
enum dpt_status dpt_job_command_load_parts(const struct dpt_cli *cli, unsigned *how,
                                           struct dpt_error *err);
/* Collective. Loads these weights into a trainer, and logs what was taken from a file of other
 * programs. Errors: as dpt_trainer_load_params and dpt_init_weights. */
enum dpt_status dpt_job_command_load_weights(const struct dpt_cli *cli, struct dpt_trainer *t,
                                             struct dpt_error *err);

/* Opens a decision (decide.h) for a model of so many outputs, and takes --threshold. called: what
 * its classes or labels are called; borrowed. Errors: USAGE, RANK. */
enum dpt_status dpt_job_command_decision(const struct dpt_cli *cli, const struct dpt_job *job,
                                         int32_t outputs, const struct dpt_called *called,
                                         struct dpt_decision *decision, struct dpt_error *err);

/* What a class or label is called, or its number where it has no name; returns that. */
enum { DPT_CLASS_NUMBER = 16 };
const char *dpt_class_text(const struct dpt_called *called, int32_t class,
                           char number[DPT_CLASS_NUMBER]);

/* What the job's data tell of the samples, and a checkpoint, which counts more. weights: its path,
 * or a file of other programs, which says nothing. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_job_command_source_model(const struct dpt_job *job, const char *weights,
                                             bool classes, struct dpt_source_model *model,
                                             struct dpt_region *region, struct dpt_error *err);

/* Where the command line has --ranks: starts them and ends this process with their exit code. In
 * one of them, and without the option, returns. job: what `auto`, and how long mpirun may stay when
 * its ranks are gone, depend on, with its conf; NULL: there is none. `auto`: as dpt_advice_ranks
 * has it. Errors: USAGE, RANK. */
enum dpt_status dpt_launch_ranks(struct dpt_cli *cli, const struct dpt_job *job,
                                 const struct dpt_conf *conf, struct dpt_error *err);

/* How many ranks `--ranks auto` starts on this machine: one per GPU or, without any, per core that
 * is free; fewer, for training, where a plan says that all would take longer. Logs it where it is
 * not one for each. job: NULL: there is none. */
int dpt_advice_ranks(const struct dpt_job *job, const struct dpt_conf *conf, bool trains,
                     struct dpt_log *log);
/* Rank 0 says where a plan finds another division or precision faster: fewer ranks, of several that
 * share one node's CPUs or GPUs, and on CPUs bf16. */
void dpt_advice_before_training(const struct dpt_job *job, const struct dpt_conf *conf,
                                const struct dpt_comm *comm, struct dpt_log *log);

#endif
