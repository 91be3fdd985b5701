#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_command.h"
#include "cmd/output.h"
#include "core/base/json.h"
#include "core/train/step/evaluate.h"
#include "core/train/trainer.h"
#include "core/train/use/checkpoint_model.h"
#include "core/train/use/importance.h"
#include "models/model.h"

static const struct {
    const char *name;
    unsigned parts; /* a held-out fraction needs the data that it is held out of */
} splits[] = {
    {"test", DPT_PART_TEST},
    {"valid", DPT_PART_TRAIN | DPT_PART_VALID},
    {"train", DPT_PART_TRAIN},
};

/* Whether there are labels that hold or not, each of which counts as a class here. */
static bool has_labels(const struct dpt_trainer *t)
{
    return dpt_trainer_labels(t) > 0;
}

/* What is told of each class, or label. */
static const struct column {
    const char *head, *name; /* for a person, and in JSON */
    int width;
    const char *format; /* NULL: for programs alone */
    size_t offset;      /* in struct dpt_class_score */
    bool labels;        /* of labels alone */
} columns[] = {
    {"samples", "samples", 10, "%.6g", offsetof(struct dpt_class_score, weight), false},
    {NULL, "chosen", 0, NULL, offsetof(struct dpt_class_score, chosen), false},
    {"base rate", "base_rate", 10, "%.4f", offsetof(struct dpt_class_score, base_rate), true},
    {"accuracy", "accuracy", 9, "%.4f", offsetof(struct dpt_class_score, accuracy), true},
    {"precision", "precision", 10, "%.4f", offsetof(struct dpt_class_score, precision), false},
    {"recall", "recall", 8, "%.4f", offsetof(struct dpt_class_score, recall), false},
    {"F1", "f1", 8, "%.4f", offsetof(struct dpt_class_score, f1), false},
    {"ROC AUC", "roc_auc", 8, "%.4f", offsetof(struct dpt_class_score, roc_auc), false},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static double value_of(const struct dpt_class_score *c, const struct column *column)
{
    return *(const double *)(const void *)((const char *)c + column->offset);
}

static bool is_told(const struct dpt_trainer *t, const struct column *column)
{
    return has_labels(t) || !column->labels;
}

/* The columns that a name takes, among names of which the widest takes `widest`; longer ones than
 * `most` do not count. */
static size_t widen(size_t widest, const char *name, size_t most)
{
    const size_t width = dpt_utf8_width(name, strlen(name));

    return width > widest && width <= most ? width : widest;
}

/* Begins a row by its name, on the left, as words are. */
static void print_name(const char *name, size_t widest, struct dpt_str *out)
{
    const size_t width = dpt_utf8_width(name, strlen(name));

    dpt_str_printf(out, "  %s%*s", name, width < widest ? (int)(widest - width) : 0, "");
}

/* A table with a row for each class. */
static void print_classes(const struct dpt_trainer *t, struct dpt_str *out)
{
    const int32_t n = dpt_trainer_classes(t);
    size_t widest = strlen("class");
    char number[DPT_CLASS_NUMBER];

    for (int32_t k = 0; k < n; k++)
        widest = widen(widest, dpt_class_text(&t->called, k, number), 32);
    dpt_str_printf(out, "  %-*s", (int)widest, has_labels(t) ? "label" : "class");
    for (const struct column *to = columns; to < columns + N_COLUMNS; to++)
        if (is_told(t, to) && to->format != NULL)
            dpt_str_printf(out, " %*s", to->width, to->head);
    dpt_str_printf(out, "\n");
    for (int32_t k = 0; k < n; k++) {
        print_name(dpt_class_text(&t->called, k, number), widest, out);
        for (const struct column *to = columns; to < columns + N_COLUMNS; to++) {
            const double value = value_of(&t->classes[k], to);
            char text[32] = "-";

            if (!is_told(t, to) || to->format == NULL)
                continue;
            if (!isnan(value))
                snprintf(text, sizeof text, to->format, value);
            dpt_str_printf(out, " %*s", to->width, text);
        }
        dpt_str_printf(out, "\n");
    }
}

static void write_classes(const struct dpt_trainer *t, struct dpt_json *j)
{
    const int32_t n = dpt_trainer_classes(t);

    dpt_json_array(j, has_labels(t) ? "labels" : "classes");
    for (int32_t k = 0; k < n; k++) {
        const struct dpt_class_score *c = &t->classes[k];

        dpt_json_object(j, NULL);
        dpt_json_int(j, has_labels(t) ? "label" : "class", k);
        if ((size_t)k < t->called.n)
            dpt_json_text(j, "name", t->called.at[k]);
        for (const struct column *to = columns; to < columns + N_COLUMNS; to++)
            if (is_told(t, to) && !isnan(value_of(c, to)))
                dpt_json_real(j, to->name, value_of(c, to));
        dpt_json_end(j);
    }
    dpt_json_end(j);
    if (t->confusion == NULL)
        return;
    dpt_json_array(j, "confusion");
    for (int32_t k = 0; k < n; k++) {
        dpt_json_array(j, NULL);
        for (int32_t i = 0; i < n; i++)
            dpt_json_real(j, NULL, t->confusion[(size_t)k * (size_t)n + (size_t)i]);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

/* What the classes were decided by, and what recall was sought. */
static void write_decision(const struct dpt_trainer *t, struct dpt_json *j)
{
    const struct dpt_decision *d = t->decision;

    if (d->decides) {
        dpt_json_array(j, "thresholds");
        for (int32_t k = 0; k < d->classes; k++) {
            if (isnan(d->threshold[k]))
                continue;
            dpt_json_object(j, NULL);
            dpt_json_int(j, has_labels(t) ? "label" : "class", k);
            dpt_json_real(j, "threshold", d->threshold[k]);
            dpt_json_end(j);
        }
        dpt_json_end(j);
    }
    if (d->wished > 0) {
        dpt_json_object(j, "wished");
        dpt_json_real(j, "at_least", d->wished);
        dpt_json_real(j, "threshold", d->found.threshold);
        dpt_json_real(j, "precision", d->found.precision);
        dpt_json_real(j, "recall", d->found.recall);
        dpt_json_end(j);
    }
}

/* --- which columns matter --------------------------------------------------------------------- */

/* What --importance asks for, and what came of it. */
struct importance {
    int repeats; /* 0: not asked */
    struct dpt_importances of;
};

static void print_importance(const struct importance *asked, struct dpt_str *out)
{
    const struct dpt_importances *of = &asked->of;
    size_t widest = strlen("column");

    for (size_t k = 0; k < of->n; k++)
        widest = widen(widest, of->at[k].name, 40);
    dpt_str_printf(out,
                   "  importance: how much lower %s is with a column shuffled, mean of %d\n  %-*s "
                   "lower by deviation\n",
                   of->score, asked->repeats, (int)widest, "column");
    for (size_t k = 0; k < of->n; k++) {
        print_name(of->at[k].name, widest, out);
        dpt_str_printf(out, " %8.4f %9.4f\n", of->at[k].drop, of->at[k].spread);
    }
}

static void write_importance(const struct importance *asked, struct dpt_json *j)
{
    dpt_json_object(j, "importance");
    dpt_json_text(j, "score", asked->of.score);
    dpt_json_int(j, "repeats", asked->repeats);
    dpt_json_array(j, "columns");
    for (size_t k = 0; k < asked->of.n; k++) {
        const struct dpt_importance *i = &asked->of.at[k];

        dpt_json_object(j, NULL);
        dpt_json_text(j, "column", i->name);
        dpt_json_real(j, "mean", i->drop);
        dpt_json_real(j, "std", i->spread);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}

static enum dpt_status take_importance(const struct dpt_cli *cli, struct importance *asked,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    long long repeats;

    DPT_TRY(dpt_cli_int(cli, "--repeats", 1, 1000, 5, &repeats, err));
    if (dpt_cli_has(cli, "--repeats") && !dpt_cli_has(cli, "--importance"))
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--repeats belongs to --importance"));
    asked->repeats = dpt_cli_has(cli, "--importance") ? (int)repeats : 0;
out:
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

/* One object. Samples are counted by their weights, where they have any. */
static enum dpt_status write_result(const struct dpt_trainer *t, const struct dpt_split *split,
                                    const struct dpt_metric_sums *sums,
                                    const struct importance *asked, struct dpt_error *err)
{
    struct dpt_json j = {.file = stdout};

    dpt_json_object(&j, NULL);
    dpt_json_text(&j, "split", split->name);
    dpt_json_int(&j, "samples", sums->samples);
    dpt_json_real(&j, "weight", sums->weight);
    dpt_json_real(&j, "loss", dpt_metric_sums_loss(sums));
    if (dpt_loss_judges(t->model.loss.kind))
        dpt_json_real(&j, "accuracy", dpt_metric_sums_accuracy(sums));
    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++)
        if (!isnan(dpt_score_value(&t->scores, row)))
            dpt_json_real(&j, row->name, dpt_score_value(&t->scores, row));
    if (t->classes != NULL) {
        if (!has_labels(t))
            dpt_json_bool(&j, "uneven", t->scores.uneven);
        if (t->scores.positive >= 0)
            dpt_json_int(&j, "positive", t->scores.positive);
        if (t->decision != NULL)
            write_decision(t, &j);
        write_classes(t, &j);
    }
    if (asked->repeats > 0)
        write_importance(asked, &j);
    dpt_json_end(&j);
    return dpt_json_finish(&j, "the results", err);
}

static void print_positive(const struct dpt_trainer *t, const struct dpt_split *split,
                           struct dpt_str *out)
{
    dpt_str_printf(out, "  ");
    dpt_positive_tell(&t->positive, &t->called, split->name, out);
    dpt_str_printf(out, "\n");
}

/* What was decided by, and the threshold that was sought. */
static void print_decision(const struct dpt_trainer *t, const struct dpt_split *split, bool classes,
                           struct dpt_str *out)
{
    const struct dpt_decision *d = t->decision;

    if (d->decides) {
        dpt_str_printf(out, "  decided by --threshold ");
        dpt_decision_tell(d, " --threshold ", out);
        dpt_str_printf(out, "\n");
    }
    if (!(d->wished > 0))
        return;
    if (!classes)
        print_positive(t, split, out);
    dpt_str_printf(out, "  recall %.6g: --threshold ", d->wished);
    dpt_threshold_tell(&d->called, t->positive.class, d->found.threshold, out);
    dpt_str_printf(out, " gives recall %.4f, precision %.4f\n", d->found.recall,
                   d->found.precision);
}

static enum dpt_status print_result(const struct dpt_trainer *t, const struct dpt_split *split,
                                    const struct dpt_metric_sums *sums, bool classes,
                                    const struct importance *asked, struct dpt_error *err)
{
    struct dpt_str text = {0};
    char scores[DPT_SCORES_TEXT];

    dpt_trainer_tell(t, split->name, sums, &t->scores, 6, &text);
    if (t->decision != NULL)
        print_decision(t, split, classes, &text);
    if (classes && t->classes != NULL) {
        const int32_t n = dpt_trainer_classes(t);

        dpt_str_printf(&text, "%s\n", dpt_scores_text(&t->scores, true, "  ", "\n  ", scores));
        if (t->scores.positive >= 0) {
            print_positive(t, split, &text);
        } else {
            dpt_str_printf(&text, "  (precision, recall, F1 and ROC AUC: means over the %s)\n",
                           has_labels(t) ? "labels" : "classes");
        }
        if (!has_labels(t) &&
            dpt_said_width(n, split->sampler.samples, true, false) == DPT_SAID_LOGITS)
            dpt_str_printf(&text,
                           "  no ROC AUC: too many samples times classes to keep the outputs\n");
        print_classes(t, &text);
    }
    if (asked->repeats > 0)
        print_importance(asked, &text);
    return dpt_output_text(&text, "the results", err);
}

/* What the job's other data, or the checkpoint, call the classes or labels. */
static enum dpt_status find_names(const struct dpt_job *job, const char *weights,
                                  struct dpt_trainer *t, struct dpt_region *region,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_model model = {0};

    if (!dpt_loss_judges(t->model.loss.kind))
        return DPT_OK;
    DPT_TRY(dpt_job_command_source_model(job, weights, !has_labels(t), &model, region, err));
    t->called = has_labels(t) ? (struct dpt_called){model.labels, model.n_labels}
                              : (struct dpt_called){model.classes, model.n_classes};
out:
    return status;
}

/* Checks the model before samples are read, on one rank: with another job's checkpoint neither
 * labels nor weights would say what is wrong. */
static enum dpt_status check_model(const struct dpt_job *job, const char *checkpoint, size_t split,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const bool train = (splits[split].parts & DPT_PART_TRAIN) != 0; /* or held out of it */
    struct dpt_dataset set = {0};
    const struct dpt_dataset_spec spec =
        dpt_job_dataset(job, train ? &job->data.train : &job->data.test);

    if (spec.paths->n == 0)
        return DPT_OK;
    DPT_TRY(dpt_dataset_describe(&set, &spec, NULL, err));
    DPT_TRY(dpt_checkpoint_fits(checkpoint, job, &set.shape, err));
out:
    dpt_dataset_close(&set);
    return status;
}

/* Whether the command line says how classes are decided, or asks about that. */
static bool wants_decision(const struct dpt_cli *cli)
{
    return dpt_cli_has(cli, "--positive") || dpt_cli_has(cli, "--recall") ||
           dpt_cli_has(cli, "--threshold");
}

/* Takes --threshold, --positive and --recall, on rank 0 with the names that there are. */
static enum dpt_status take_decision(const struct dpt_cli *cli, struct dpt_trainer *t,
                                     struct dpt_decision *d, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *positive = dpt_cli_value(cli, "--positive"),
               *recall = dpt_cli_value(cli, "--recall");
    char *end;

    DPT_TRY(dpt_job_command_decision(cli, t->job, dpt_graph_outputs(&t->model.graph), &t->called, d,
                                     err));
    t->decision = d;
    t->called = d->called;
    if (positive != NULL) {
        DPT_TRY(dpt_decision_find(d, "--positive", positive, &t->positive.class, err));
        t->positive.told = true;
    }
    if (recall == NULL)
        return DPT_OK;
    d->wished = strtod(recall, &end);
    if (end == recall || *end != '\0' || !(d->wished > 0 && d->wished <= 1))
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--recall %s: must be above 0 and at most 1, as 0.95 is",
                         recall));
    if (positive == NULL && (d->classes != 2 || d->labels))
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--recall: one of the %d %s is needed: give --positive",
                         d->classes, d->labels ? "labels" : "classes"));
out:
    return status;
}

/* Finds the names on rank 0, and takes what needs them. Collective. */
static enum dpt_status prepare(const struct dpt_cli *cli, const char *weights,
                               struct dpt_trainer *t, struct dpt_decision *d,
                               struct dpt_region *region, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;

    t->all_scores =
        dpt_cli_has(cli, "--classes") || dpt_cli_has(cli, "--json") || wants_decision(cli);
    if (world->rank == 0 && t->called.n == 0)
        status = find_names(t->job, weights, t, region, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (!wants_decision(cli))
        return DPT_OK;
    if (world->rank == 0)
        status = take_decision(cli, t, d, err);
    else
        status = dpt_decision_open(d, dpt_graph_outputs(&t->model.graph), has_labels(t),
                                   &(struct dpt_called){0}, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    t->decision = d;
    DPT_TRY(dpt_group_broadcast(world, 0, &t->positive, sizeof t->positive, err));
out:
    return status;
}

static enum dpt_status evaluate(struct dpt_cli *cli, const struct dpt_job *job,
                                const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *name = dpt_cli_value(cli, "--split");
    struct dpt_job plain = *job; /* all samples are evaluated as they are, training ones too */
    struct dpt_trainer t = {0};
    struct dpt_split *const by_index[] = {&t.data.test, &t.data.valid, &t.data.train};
    struct dpt_metric_sums metric_sums = {0};
    struct dpt_decision decision = {0};
    struct importance asked = {0};
    struct dpt_region region = {0};
    const char *weights;
    size_t i = 0;

    plain.data.augment = (struct dpt_augment){0};
    plain.data.drop_last = false;
    DPT_TRY(take_importance(cli, &asked, err));
    DPT_TRY(dpt_job_command_weights(cli, job, &weights, err));
    while (name != NULL && i < 3 && strcmp(splits[i].name, name) != 0)
        i++;
    if (i == 3)
        return dpt_fail(err, DPT_USAGE, "dptrain eval: --split %s is none of test, valid, train",
                        name);
    if (splits[i].parts == DPT_PART_TEST && job->data.test.n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "data.test: the job names none to evaluate on; --split valid or train "
                         "takes others"));
    if (comm->world.rank == 0 && dpt_job_command_checkpoint(cli) != NULL)
        status = check_model(job, weights, i, err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    DPT_TRY(dpt_trainer_open(&t, &plain, comm, &cli->log,
                             splits[i].parts | dpt_job_command_loaded(cli), NULL, err));
    if (!by_index[i]->present)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "data.%s: the job names none to evaluate on",
                         splits[i].name));
    DPT_TRY(dpt_job_command_load_weights(cli, &t, err));
    DPT_TRY(prepare(cli, weights, &t, &decision, &region, err));
    if (asked.repeats > 0) /* first, since it leaves other scores */
        DPT_TRY(dpt_importance_measure(&t, by_index[i], asked.repeats, &asked.of, err));
    DPT_TRY(dpt_trainer_evaluate(&t, by_index[i], &metric_sums, err));
    DPT_TRY(dpt_trainer_check_outputs(&t, by_index[i], err));
    if (comm->world.rank == 0)
        status = dpt_cli_has(cli, "--json")
                     ? write_result(&t, by_index[i], &metric_sums, &asked, err)
                     : print_result(&t, by_index[i], &metric_sums,
                                    dpt_cli_has(cli, "--classes") || t.positive.told, &asked, err);
out:
    dpt_trainer_close(&t);
    dpt_decision_close(&decision);
    dpt_importances_release(&asked.of);
    dpt_region_release(&region);
    return status;
}

static const struct dpt_cli_option options[] = {
    DPT_WEIGHTS_CLI_OPTIONS,
    {"--split", "NAME", "test (the default), valid or train"},
    {"--classes", NULL, "precision, recall, F1 and ROC AUC of each class or label, and of all"},
    {"--positive", "CLASS",
     "precision, recall and F1 of this class or label (with two, the rarer class)"},
    {"--recall", "R", "find the threshold that gives the positive class at least this recall"},
    DPT_THRESHOLD_CLI_OPTION,
    {"--importance", NULL,
     "permutation importance of a table's columns: the accuracy or R2 lost by shuffling"},
    {"--repeats", "N", "shuffles of each column by --importance (5)"},
    {"--json", NULL,
     "one JSON object, with all of that and the confusion matrix of up to 1024 classes"},
    DPT_JOB_CLI_OPTIONS,
    {0},
};

const struct dpt_command dpt_cmd_eval = {
    .name = "eval",
    .usage = "JOB.yaml --checkpoint C [options]",
    .summary = "evaluate a checkpoint on the test data, over all ranks",
    .details = "Evaluates each sample once, shared out over all ranks, and prints one line. C "
               "may also be weights in safetensors or npz, from PyTorch or NumPy, for the job's "
               "model; left out, the job's init.from is taken. A run folder in the place of "
               "JOB.yaml stands for its job and its checkpoint. If the run has train.ema, the "
               "weights' average is evaluated, unless --weights is raw. If the most frequent "
               "class has over three times as many samples as the rarest one, it prints that, "
               "and how many of the rarest are found. --classes reports balanced accuracy, "
               "precision, recall, F1, ROC AUC and top-5 accuracy: of the positive class if "
               "there are two, else means over the classes; and then those of each class. The "
               "class with fewer samples in data.train is positive or, if that cannot be read, "
               "in the evaluated data; class 1 if they are equal. In multi-label jobs the line "
               "reports exact match, the share of the samples with all labels right, and label "
               "accuracy, the share of all labels; --classes adds means over the labels, and "
               "for each its base rate (the share of the samples for which it holds), accuracy, "
               "precision, recall, F1 and ROC AUC. A sample that is labelled with a probability "
               "of each class belongs to the likeliest one.\n\n"
               "--threshold ill=0.1 chooses a class if its probability is at least that, the "
               "likeliest if there are several such, and otherwise the likeliest of the others; "
               "a label holds from its threshold on. --recall 0.95 finds the largest threshold "
               "with at least this recall of the positive class, and prints the precision "
               "there: choose it on the validation data, and check it on the test data. With "
               "binary_cross_entropy a single label is two classes here, 0 and 1.\n\n"
               "--importance shuffles each column of a table among the evaluated samples, by "
               "the job's seed, and prints how much lower accuracy, or R2, is then (permutation "
               "importance); the numbers that one column became are shuffled together. Columns "
               "with nearly the same information replace each other, so each of them seems to "
               "matter less.\n\n"
               "  mpirun -np 2 dptrain eval configs/mnist-cnn.yaml --checkpoint runs/mnist-cnn\n"
               "  dptrain eval job.yaml --checkpoint runs/mine --split valid --recall 0.95\n"
               "  dptrain eval job.yaml --checkpoint runs/mine --threshold ill=0.1 --classes\n"
               "  dptrain eval job.yaml --checkpoint weights.safetensors --map-by-order",
    .options = options,
    .run = dpt_job_command,
    .work = evaluate,
};
