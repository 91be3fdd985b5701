/* `dptrain predict`: what a checkpoint says to samples of any kind, over all ranks. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/decided.h"
#include "cmd/job_command.h"
#include "cmd/lead.h"
#include "cmd/output.h"
#include "cmd/standard_input.h"
#include "core/base/memory.h"
#include "core/state/checkpoint.h"
#include "core/train/run/stop.h"
#include "core/train/scores/scores.h"
#include "core/train/step/evaluate.h"
#include "core/train/use/checkpoint_model.h"
#include "core/train/use/predict.h"
#include "data/pictures/picture.h"
#include "data/sources/predictions.h"
#include "models/model.h"

enum { MICRO_IMAGES = 16, MICRO_ROWS = 64 };

/* What is known of the checkpoint, by rank 0; told to all. */
struct found {
    bool shaped, sized;
    struct dpt_shape shape, stored;
    int64_t step;
    char name[NAME_MAX + 1]; /* of the file */
};

struct predict {
    struct dpt_cli *cli;
    const struct dpt_comm *comm;
    struct dpt_job job; /* with batches that no rank count decides */
    struct dpt_region region;
    struct dpt_source_spec spec;
    struct dpt_shape shape; /* --shape */
    const char *weights;    /* where they are */
    struct found found;
    struct dpt_source_kept kept; /* by the checkpoint */
    struct dpt_source *source;
    const struct dpt_source_info *info;
    struct dpt_trainer trainer;
    struct dpt_predictions *file; /* rank 0 */
    bool printed;                 /* on standard output, not into a file */
    bool left;                    /* nobody reads that any more */
    double shown;                 /* when the live line was drawn */
    const char **names;           /* of one run */
    size_t names_room;
    struct dpt_unpredicted unpredicted;
    double *errors; /* dpt_error_sums_add; NULL: there are no targets to compare numbers with */
    int32_t outputs;
    struct dpt_decided decided;
};

static enum dpt_status take_list(struct predict *p, const char *option, const char *const **list,
                                 size_t *n, struct dpt_error *err)
{
    const char **all = dpt_region_alloc(&p->region, (p->cli->n_given + 1) * sizeof *all);

    if (all == NULL)
        return dpt_fail_memory(err, "the command line", (double)p->cli->n_given);
    *list = all;
    *n = dpt_cli_all(p->cli, option, all);
    return DPT_OK;
}

static enum dpt_status take_shape(struct predict *p, struct dpt_error *err)
{
    const char *text = dpt_cli_value(p->cli, "--shape");
    struct dpt_shape *s = &p->shape;
    int end = 0;

    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%6d,%6d,%6d%n", &s->c, &s->h, &s->w, &end) != 3 || text[end] != '\0' ||
        s->c < 1 || s->h < 1 || s->w < 1)
        return dpt_fail(err, DPT_USAGE,
                        "--shape %s: must be channels, height and width, as in 1,28,28", text);
    p->spec.shape = s;
    return DPT_OK;
}

static enum dpt_status take_options(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_cli *cli = p->cli;
    struct dpt_source_spec *s = &p->spec;

    p->printed = dpt_cli_value(cli, "--out") == NULL;
    if (!p->printed)
        DPT_TRY(dpt_predictions_check(dpt_cli_value(cli, "--out"), err));
    s->conf = &p->job.data;
    s->log = &cli->log;
    s->classes = dpt_loss_has_classes(dpt_job_loss(&p->job).kind);
    if (dpt_cli_value(cli, "--format") != NULL)
        DPT_TRY(dpt_source_format_find("--format ", dpt_cli_value(cli, "--format"), false,
                                       &s->format, err));
    for (int i = 0; i < DPT_SOURCE_OPTION_COUNT; i++) {
        const char *value = dpt_cli_value(cli, dpt_source_option_names[i]);

        /* --shape and --labels mean something else here than to `convert`. */
        if (i != DPT_SOURCE_SHAPE && i != DPT_SOURCE_TABLE)
            s->option[i] = value != NULL                                  ? value
                           : dpt_cli_has(cli, dpt_source_option_names[i]) ? ""
                                                                          : NULL;
    }
    DPT_TRY(take_list(p, "--input", &s->inputs, &s->n_inputs, err));
    DPT_TRY(take_list(p, "--labels", &s->labels, &s->n_labels, err));
    DPT_TRY(take_shape(p, err));
out:
    return status;
}

/* Rank 0: looks into the checkpoint. Other programs' files say nothing but names and numbers. */
static enum dpt_status look(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint checkpoint = {0};
    struct dpt_graph none = {0};
    struct dpt_state state = {.graph = &none};
    char path[PATH_MAX], real[PATH_MAX];
    const char *file = p->weights;

    if (!dpt_weights_foreign(p->weights, &dpt_weights_checkpoint)) {
        file = dpt_checkpoint_resolve(p->weights, path);
        DPT_TRY(dpt_checkpoint_verify(file, err));
        DPT_TRY(dpt_checkpoint_open(&checkpoint, file, err));
        p->found.shaped = dpt_checkpoint_shape(&checkpoint, "input_shape", &p->found.shape);
        p->found.sized = dpt_checkpoint_shape(&checkpoint, "file_shape", &p->found.stored);
        DPT_TRY(dpt_checkpoint_read(&checkpoint, &state, DPT_LOAD_PROGRESS, NULL, err));
        p->found.step = state.progress.step;
        DPT_TRY(dpt_checkpoint_kept(&checkpoint, &p->kept, err));
    }
    if (realpath(file, real) == NULL) /* `latest` is a link to the one that is meant */
        snprintf(real, sizeof real, "%s", file);
    snprintf(p->found.name, sizeof p->found.name, "%.255s", basename(real));
out:
    dpt_checkpoint_close(&checkpoint);
    return status;
}

/* What the model takes and gives, as far as the checkpoint and the job's data tell. Collective. */
static enum dpt_status find_model(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &p->comm->world;
    struct dpt_source_model *model = &p->spec.model;
    struct dpt_graph graph = {0};

    DPT_TRY(dpt_group_agree(world, world->rank == 0 ? look(p, err) : DPT_OK, err));
    DPT_TRY(dpt_group_broadcast(world, 0, &p->found, sizeof p->found, err));
    status = dpt_source_model_find(model, &p->job.data, p->spec.classes, &p->region, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_checkpoint_kept_share(&p->kept, world, err));
    status = dpt_source_model_keep(model, &p->kept, p->found.name, &p->region, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (p->found.sized)
        model->stored = p->found.stored;
    if (p->found.shaped) {
        model->known = true;
        model->shape = p->found.shape;
    } else if (!model->known && p->spec.shape != NULL) {
        model->known = true;
        model->shape = p->shape;
    }
    if (model->known) {
        status = dpt_model_build(&p->job.model, &model->shape, &graph, err);
        p->spec.outputs = status == DPT_OK ? dpt_graph_outputs(&graph) : 0;
        dpt_graph_release(&graph);
    }
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    return status;
}

/* Collective. */
static enum dpt_status open_source(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &p->comm->world;
    int64_t first;

    dpt_comm_note(p->comm, 0, "opening the inputs");
    status = dpt_source_open(&p->source, &p->spec, world->rank, world->size, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    p->info = dpt_source_info(p->source);
    first = p->info->samples;
    DPT_TRY(dpt_group_broadcast(world, 0, &first, sizeof first, err));
    if (p->info->samples != first)
        status = dpt_fail(err, DPT_BAD_DATA,
                          "--input: here are %lld samples, on rank 0 %lld: all nodes need the same "
                          "files",
                          (long long)p->info->samples, (long long)first);
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    return status;
}

/* Takes --threshold and --probabilities, by the names that are known of classes. */
static enum dpt_status open_decision(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_source_model *model = &p->spec.model;
    const struct dpt_called called = p->spec.classes
                                         ? (struct dpt_called){model->classes, model->n_classes}
                                         : (struct dpt_called){model->labels, model->n_labels};
    const char *out = dpt_cli_value(p->cli, "--out");

    if (!dpt_cli_has(p->cli, "--threshold") && !dpt_cli_has(p->cli, "--probabilities"))
        return DPT_OK;
    DPT_TRY(dpt_job_command_decision(p->cli, &p->job, dpt_graph_outputs(&p->trainer.model.graph),
                                     &called, &p->decided.decision, err));
    if (p->decided.decision.decides && out != NULL && dpt_predictions_only_numbers(out))
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--threshold: %s holds probabilities alone; .csv and .h5 hold what is "
                         "decided",
                         out));
    DPT_TRY(dpt_decided_open(&p->decided, err));
out:
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Rank 0. */
static enum dpt_status open_out(struct predict *p, struct dpt_error *err)
{
    const char *out = dpt_cli_value(p->cli, "--out");
    struct dpt_predictions_format format = {
        .samples = p->info->samples,
        .outputs = dpt_graph_outputs(&p->trainer.model.graph),
        .classes = p->spec.classes,
        .labels = dpt_job_loss(&p->job).kind == DPT_LOSS_BINARY_CROSS_ENTROPY,
        .decided = !p->spec.classes && p->decided.decision.decides,
        .all_probabilities = dpt_cli_has(p->cli, "--probabilities"),
        .thresholds = p->decided.decision.decides ? p->decided.thresholds.text : NULL,
        .truth = p->info->truth,
        .checkpoint = p->found.name,
        .step = p->found.step,
        .job = p->job.name,
        .version = DPT_VERSION,
        .class_names = p->spec.model.classes,
        .n_classes = p->spec.model.n_classes,
        .id = p->info->id != NULL ? p->info->id
              : p->info->named    ? "file"
                                  : NULL,
    };
    struct stat info;

    /* The values have the names that the table of the training called its labels. */
    if (!p->spec.classes && p->spec.model.n_labels == (size_t)format.outputs)
        format.value_names = p->spec.model.labels;
    if (format.value_names != NULL && !format.labels)
        format.offsets = p->spec.model.offsets;
    if (format.n_classes == 0 || format.n_classes > (size_t)format.outputs)
        format.class_names = NULL;
    if (out == NULL)
        goto open;
    if (stat(out, &info) == 0 && S_ISDIR(info.st_mode))
        return dpt_fail(err, DPT_USAGE, "--out %s: is a folder; give a file's name", out);
    if (same_file(out, p->weights))
        return dpt_fail(err, DPT_USAGE, "--out %s: is the checkpoint", out);
    for (size_t i = 0; i < p->spec.n_inputs; i++)
        if (same_file(out, p->spec.inputs[i]))
            return dpt_fail(err, DPT_USAGE, "--out %s: is one of the inputs", out);
    for (int64_t i = 0; p->info->named && i < p->info->samples; i++) {
        const size_t n = strlen(dpt_source_name(p->source, i));

        format.name_bytes = n > format.name_bytes ? n : format.name_bytes;
    }
open:
    return dpt_predictions_open(&p->file, out, &format, err);
}

static enum dpt_status add_errors(struct predict *p, const struct dpt_predicted *d,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t outputs = (size_t)d->outputs;

    if (p->errors == NULL)
        DPT_TRY(DPT_ALLOCATE(p->errors, 4 * outputs, "the errors", err));
    for (int64_t i = 0; i < d->count; i++)
        dpt_error_sums_add(p->errors, d->outputs, d->first + i, d->values + (size_t)i * outputs,
                           d->targets + (size_t)i * outputs);
    p->outputs = d->outputs;
out:
    return status;
}

static enum dpt_status take(void *arg, const struct dpt_predicted *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct predict *p = arg;
    struct dpt_predictions_rows rows = {
        .count = d->count,
        .values = d->values,
        .probabilities = d->probabilities,
        .labels = d->labels,
        .classes = d->classes,
        .targets = d->targets,
        .loss = d->loss,
    };

    if (dpt_stop_signal() != 0) /* so that nothing is left under a temporary name */
        DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped by %s; nothing was written",
                         dpt_stop_name(dpt_stop_signal())));
    if (!p->printed) /* rows would stand after the live line */
        dpt_log_live_count(&p->cli->log, &p->shown, "predicting", d->first + d->count,
                           p->info->samples);
    dpt_unpredicted_note(&p->unpredicted, d, p->source);
    if (p->decided.decision.decides) {
        DPT_TRY(dpt_decided_take(&p->decided, d, err));
        rows.labels = p->decided.said;
    }
    if (d->targets != NULL && !dpt_loss_judges(dpt_job_loss(&p->job).kind))
        DPT_TRY(add_errors(p, d, err));
    if (p->info->named) {
        DPT_GROW(p->names, &p->names_room, (size_t)d->count, "names", err);
        for (int32_t i = 0; i < d->count; i++)
            p->names[i] = dpt_source_name(p->source, d->first + i);
        rows.names = p->names;
    }
    DPT_TRY(dpt_predictions_add(p->file, &rows, err));
    if (p->printed && (fflush(stdout) != 0 || ferror(stdout))) {
        DPT_TRY(dpt_output_flush(err));
        p->left = true; /* as `| head` does: the rest need not be computed */
        DPT_TRY(dpt_fail(err, DPT_STOPPED, "standard output is closed"));
    }
out:
    return status;
}

static void print_told(const struct predict *p)
{
    const char *line = p->info->told;

    for (size_t n; line != NULL && *line != '\0'; line += n + (line[n] != '\0')) {
        n = strcspn(line, "\n");
        dpt_log_warn(&p->cli->log, "%.*s", (int)n, line);
    }
}

static void print_summary(const struct predict *p, const struct dpt_metric_sums *metric_sums)
{
    const double n = (double)metric_sums->samples;
    struct dpt_log *log = &p->cli->log;
    char digits[32], accuracy[40] = "", text[DPT_SCORES_TEXT] = "";
    struct dpt_scores scores;

    dpt_group_digits(digits, p->info->samples);
    if (p->errors != NULL) {
        dpt_scores_of_sums(&scores, p->errors, p->outputs, metric_sums->samples);
        dpt_scores_text(&scores, false, ", ", ", ", text);
    }
    if (dpt_loss_judges(dpt_job_loss(&p->job).kind))
        snprintf(accuracy, sizeof accuracy, "%s %.4f, ", dpt_trainer_accuracy_name(&p->trainer),
                 metric_sums->correct / n);
    if (p->info->truth != DPT_TRUTH_NONE)
        dpt_log_info(log, "%sloss %.6g%s%s on %s sample%s", accuracy, metric_sums->loss / n,
                     dpt_target_scale_changes(&p->trainer.targets) ? " of scaled targets" : "",
                     text, digits, p->info->samples == 1 ? "" : "s");
    if (p->info->truth != DPT_TRUTH_NONE && p->decided.decision.decides) {
        struct dpt_str told = {0};

        dpt_decided_tell(&p->decided, &told);
        dpt_log_info(log, "%s", told.failed ? "" : told.text);
        dpt_str_release(&told);
    }
    print_told(p);
    if (!p->printed)
        dpt_log_info(log, "%s: %s sample%s", dpt_cli_value(p->cli, "--out"), digits,
                     p->info->samples == 1 ? "" : "s");
}

/* Collective. */
static enum dpt_status predict_all(struct predict *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &p->comm->world;
    struct dpt_metric_sums metric_sums;

    DPT_TRY(dpt_group_agree(world, world->rank == 0 ? open_out(p, err) : DPT_OK, err));
    status = dpt_trainer_predict_source(&p->trainer, p->source, take, p, &metric_sums, err);
    dpt_log_live(&p->cli->log, NULL);
    if (status == DPT_STOPPED) {
        DPT_TRY(dpt_group_broadcast(world, 0, &p->left, sizeof p->left, err));
        status = p->left ? DPT_OK : DPT_STOPPED;
    } else if (status == DPT_BAD_DATA && world->rank == 0) {
        status = dpt_source_tell_bad(p->source, err);
    }
    DPT_TRY(status);
    if (p->left)
        return DPT_OK;
    if (p->file != NULL)
        status = dpt_predictions_commit(p->file, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (world->rank == 0) {
        print_summary(p, &metric_sums);
        status = dpt_unpredicted_tell(&p->unpredicted, p->info->samples, err);
    }
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    return status;
}

static enum dpt_status predict(struct dpt_cli *cli, const struct dpt_job *job,
                               const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct predict p = {.cli = cli, .comm = comm, .job = *job};

    DPT_TRY(dpt_job_command_weights(cli, job, &p.weights, err));
    DPT_TRY(dpt_group_agree(&comm->world, take_options(&p, err), err));
    if (cli->reads_input)
        DPT_TRY(dpt_standard_input_share(&comm->world, err));
    DPT_TRY(find_model(&p, err));
    DPT_TRY(open_source(&p, err));
    /* The micro-batch may change a result's last bits, so its size follows from the model alone. */
    p.job.batch.micro = p.info->shape.h * p.info->shape.w > 1 ? MICRO_IMAGES : MICRO_ROWS;
    p.job.batch.global = p.job.batch.micro * comm->world.size;
    DPT_TRY(dpt_trainer_open(&p.trainer, &p.job, comm, &cli->log, dpt_job_command_loaded(cli),
                             &p.info->shape, err));
    DPT_TRY(dpt_job_command_load_weights(cli, &p.trainer, err));
    DPT_TRY(dpt_group_agree(&comm->world, open_decision(&p, err), err));
    DPT_TRY(predict_all(&p, err));
out:
    dpt_predictions_close(p.file);
    dpt_trainer_close(&p.trainer);
    dpt_source_close(p.source);
    dpt_region_release(&p.region);
    dpt_decided_close(&p.decided);
    dpt_str_release(&p.unpredicted.where);
    dpt_free(p.errors);
    free(p.names);
    dpt_checkpoint_kept_release(&p.kept);
    return status;
}

static const struct dpt_cli_option options[] = {
    DPT_WEIGHTS_CLI_OPTIONS,
    {"--input", "PATH", "a file, a folder of images, a glob, - for standard input; repeatable"},
    {"--out", "OUT", "a .csv, .npy or .h5 file, in place of a table on standard output"},
    DPT_THRESHOLD_CLI_OPTION,
    {"--probabilities", NULL, "csv: the probability of each class, not of the chosen one alone"},
    {"--format", "h5|idx|csv|npy|npz|pictures", "format of the inputs (detected)"},
    {"--labels", "PATH", "idx, npy: the labels of an input; repeatable, one for each"},
    {"--label", "COLUMN,...", "csv: label column, or none (the last, if there is one more)"},
    {"--id", "COLUMN", "csv: names of the rows (as in the training data)"},
    {"--delimiter", "C|tab", "csv: separator of columns (as in the training data)"},
    {"--decimal", "C", "csv: the decimal mark of numbers (as in the training data)"},
    {"--thousands", "C", "csv: separator of groups of digits (as in the training data)"},
    {"--header", "auto|yes|no", "csv: whether the first line holds the names of the columns"},
    {"--layout", "nchw|nhwc", "h5, npy, npz: order of dimensions (h5: the job's; nchw)"},
    {"--keys", "X,Y", "h5, npz: arrays of samples and labels (h5: the job's)"},
    {"--shape", "C,H,W", "pictures: size to resize them to (what the model takes)"},
    {"--fit", "stretch|crop|pad", "pictures: how to fit another shape (as for training)"},
    {"--skip-bad", NULL, "pictures: leave out those that cannot be read, and list them at the end"},
    {"--invert", NULL,
     "pictures: swap dark and light, for ink on paper if training had light on dark"},
    DPT_JOB_CLI_OPTIONS,
    {0},
};

/* What stands after the job file are inputs, too: a shell makes many words of one pattern. */
static void take_words(struct dpt_cli *cli)
{
    const struct dpt_cli_option *input = dpt_cli_option(cli->command, "--input", 7);

    /* There is room: each word of the command line may be an option. */
    for (size_t i = 1; i < cli->n_positional; i++)
        cli->given[cli->n_given++] = (struct dpt_cli_given){input, cli->positional[i]};
    cli->n_positional = cli->n_positional > 0 ? 1 : 0;
    for (size_t i = 0; i < cli->n_given; i++)
        if (cli->given[i].option == input && strcmp(cli->given[i].value, "-") == 0) {
            cli->given[i].value = DPT_STANDARD_INPUT;
            cli->reads_input = true;
        }
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    take_words(cli);
    if (dpt_cli_value(cli, "--input") == NULL)
        return dpt_lead_samples(cli, err);
    return dpt_job_command(cli, err);
}

static void list_formats(void)
{
    printf("\nformats:\n");
    for (size_t i = 0; dpt_source_formats[i] != NULL; i++)
        if (dpt_source_formats[i]->help != NULL)
            printf("  %s: %s\n", dpt_source_formats[i]->name, dpt_source_formats[i]->help);
}

const struct dpt_command dpt_cmd_predict = {
    .name = "predict",
    .usage = "JOB.yaml --checkpoint C --input PATH... [--out OUT] [options]",
    .summary = "run a checkpoint on new samples or images",
    .details = "Prints a table (CSV) with one line per sample: its name if it has one (--id, an "
               "image's file), else its number from 0; with known labels the true one; the "
               "class and its probability, or the values, or in multi-label jobs the "
               "probability of each label; --probabilities adds that of each class. --threshold "
               "ill=0.1 predicts class ill if its probability is at least 0.1, and adds columns "
               "with 1 if a label holds; eval --recall finds such a threshold. --out OUT writes "
               "that as OUT.csv; as OUT.npy the probabilities, or values, [N,K]; as OUT.h5 "
               "/logits, /probabilities [N,K] and /labels [N] (regression: /predictions), with "
               "known labels /targets and /loss, and names as /names. Accuracy and loss by "
               "known labels go to standard error. A sample whose outputs are not finite has no "
               "class, and nan; then the exit code is 1. Ranks share the samples, memory holds "
               "a window of them, and the file is byte-identical for any number of ranks.\n\n"
               "Samples are normalised as the job says. Images (" DPT_PICTURE_FORMATS
               ") are stretched, cropped or padded, as they were for training or as --fit says, "
               "to the size and channels that the model takes; all that cannot be read are "
               "listed, or left out by --skip-bad; a folder is searched with its sub-folders, "
               "which are the labels if their names are those of the classes.\n\n"
               "C may also be weights in safetensors or npz, for the job's model: no training "
               "is needed first. A run folder for JOB.yaml stands for its job and its "
               "checkpoint.\n\n"
               "  dptrain predict runs/mine three.png\n"
               "  dptrain predict job.yaml --checkpoint runs/mine --input three.png --invert\n"
               "  dptrain predict job.yaml --checkpoint weights.safetensors --input x.npy\n"
               "  head new.csv | dptrain predict job.yaml --checkpoint runs/mine - > said.csv\n"
               "  mpirun -np 2 dptrain predict job.yaml --checkpoint runs/mine \\\n"
               "      --input 'data/mine/test-*.h5' --out predicted.h5",
    .options = options,
    .stops = true,
    .run = run,
    .work = predict,
    .more_help = list_formats,
};
