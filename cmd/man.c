/*
 * `dptrain man`: the manual page, in the man macros that groff and mandoc read.
 *
 * Made from the rows of the subcommands and the tables of the job file; what no table says stands
 * here.
 */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "core/base/str.h"
#include "core/train/job/job.h"
#include "data/sources/source.h"

enum { WIDTH = 76 };

/* The date at the foot of the page: of the last change of the texts. */
#define CHANGED "2026-11-21"

/* A paragraph, with `words` in backquotes in bold; with a head, what the head is about. A list of
 * them ends with a row without a text. */
struct item {
    const char *head, *text;
};

static const struct item description[] = {
    {NULL, "`dptrain` trains a neural network with synchronous data parallelism: one MPI "
           "rank per device, the model on each, every global batch split over the ranks, "
           "the gradients averaged with MPI_Allreduce, the same update everywhere. One YAML "
           "file describes the data, the model and the training; samples come from HDF5 "
           "files."},
    {NULL, "Started by `mpirun` or `srun` it is one rank of what they launch. Started alone "
           "it is one rank, or with `--ranks` it starts the mpirun or mpiexec of its MPI "
           "itself; that of another MPI is refused. Results go to standard output, progress "
           "and errors to standard error; only rank 0 prints."},
    {NULL, "The word `train` may be left out. Each option can be written `--name value` or "
           "`--name=value`; after `--` nothing is an option."},
    {0},
};

static const struct item job[] = {
    {NULL, "One YAML file, at most 64 KiB, without anchors, aliases and tags. Only `data` "
           "and `model` must be given. A key that does not exist, a wrong type or a value "
           "out of bounds is reported with its line and column, all of them at once, before "
           "anything is read or allocated (exit code 78). `null` is the same as leaving a "
           "key out."},
    {NULL, "If there are several kinds of a thing, `type` picks one (left out, the "
           "default), and its name alone means it with its defaults: `optimizer: adam`. A "
           "list of numbers or texts may be one of them. A layer is an entry like `relu`, "
           "`dense: 10` or `conv: {channels: 32}`."},
    {NULL, "`--set` overrides a key by its name as listed below (`--set "
           "optimizer.lr=0.01`); keys of layers are in their list: `--set "
           "model.layers[0].conv.channels=64`."},
    {0},
};

static const struct item exit[] = {
    {NULL, "They hold for one rank, under srun, with `--ranks`, and under mpirun if all "
           "ranks end by themselves. If mpirun kills the ranks, the code is mpirun's."},
    {NULL, "A batch file requeues at 75 and at nothing else. With `checkpoint.every: never` a stop "
           "saves nothing and gives 1: started again, the job would start from scratch each time."},
    {0},
};

static const struct item environment[] = {
    {"SLURM_JOB_END_TIME", "Before it is over, training saves and stops with exit code 75."},
    {"SLURM_JOB_ID, SLURM_RESTART_COUNT",
     "Tell a run that Slurm requeued from another that has the run folder."},
    {"COLUMNS, TERM", "Width and kind of the terminal, for the line that shows progress."},
    {"NO_COLOR, LC_ALL", "Whether `watch` uses colours, and characters beyond ASCII."},
    {"DPTRAIN_TTY", "`1`: show progress as on a terminal, `0`: as in a file; under mpirun standard "
                    "error is no terminal."},
    {"DPTRAIN_CUDA_PATH",
     "Folders, separated by colons, in which cuDNN and cuBLASLt are searched first: "
     "each itself, its lib64 and lib, and where pip installs them below it, so that "
     "it may be a site-packages or a virtual environment. Then come CUDNN_ROOT and "
     "CUDA_HOME, the loader's folders, those of the build, and pip's and conda's of "
     "the Pythons on PATH. Where there is a GPU, `--version` says which were taken."},
    {"CUDA_VISIBLE_DEVICES", "The GPUs that may be used, for the driver."},
    {"OMPI_MCA_*", "`--ranks` sets those that the machine needs, unless they are set already."},
    {0},
};

static const struct item files[] = {
    {"runs/NAME/", "The run folder, unless `output` names another."},
    {"runs/NAME/job.yaml",
     "The job with all defaults and overrides; can be run itself. A run replaces only "
     "what dptrain wrote: a file written by hand is refused."},
    {"runs/NAME/metrics.jsonl",
     "One JSON object per line: `run`, `train` (means since the last "
     "one), `epoch` (means of a whole one), `eval`, `best` (the test of the best checkpoint), "
     "`checkpoint`, `end`."},
    {"runs/NAME/events.out.tfevents.dptrain",
     "With `log.tensorboard`: for `tensorboard --logdir runs`."},
    {"runs/NAME/overwritten/",
     "The old run after `--overwrite`, until the new run has its first checkpoint or "
     "has ended."},
    {"runs/NAME/log.txt", "A copy of the messages on standard error."},
    {"runs/NAME/checkpoints/",
     "HDF5 files; `latest` and `best` name the newest and, by `checkpoint.monitor`, "
     "the best: if the job sets that, the folder stands for `best`. Parameters are "
     "/params/LAYER/weight and /params/LAYER/bias, a batch norm's running statistics "
     "/state/LAYER/running_mean and running_var."},
    {"NAME-00000-of-00004.h5",
     "A shard: /images or /x, [N, C, H, W], [N, H, W, C] (attribute `layout`) or [N, D], bytes or "
     "floats, or instead the image files, /files, one after the other, and /offsets, where "
     "each "
     "begins; /labels or /y, [N] classes or [N, K] numbers."},
    {0},
};

/* Head: what it does; text: the command. */
static const struct item examples[] = {
    {"Write a job file for a data set, and train on two ranks:",
     "dptrain init data/mnist --output mnist.yaml\nmpirun -np 2 dptrain mnist.yaml"},
    {"Resume after the batch system stopped it: the same command again.",
     "srun --mpi=pmix dptrain job.yaml --output runs/large"},
    {"Another learning rate, in another folder:",
     "dptrain job.yaml --set optimizer.lr=0.01 --output runs/lr-0.01"},
    {"Evaluate the newest checkpoint of a run on the test data:",
     "dptrain eval job.yaml --checkpoint runs/job"},
    {0},
};

static const struct item see[] = {
    {NULL, "`mpirun`(1), `mpiexec`(1), `srun`(1), `h5ls`(1)"},
    {0},
};

/* --- troff ------------------------------------------------------------------------------------ */

/* One character, so that it comes out as it is. Returns its bytes. */
static size_t put_character(struct dpt_str *out, const char *text)
{
    static const char *const names[128] = {
        ['\\'] = "\\e",  ['-'] = "\\-",   ['\''] = "\\(aq", ['`'] = "\\(ga",
        ['^'] = "\\(ha", ['~'] = "\\(ti", ['"'] = "\\(dq",
    };
    const unsigned char c = (unsigned char)*text;
    size_t n = 1;

    if (c < 128) {
        if (names[c] != NULL)
            dpt_str_printf(out, "%s", names[c]);
        else
            dpt_str_add(out, text, 1);
        return 1;
    }
    dpt_str_printf(out, "\\[u%04X]", (unsigned)dpt_utf8_decode(text, strlen(text), &n));
    return n;
}

static void put_characters(struct dpt_str *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n;)
        i += put_character(out, text + i);
}

/* Text as lines of the source; what stands in backquotes is bold where `bold`. */
static void put_text(struct dpt_str *out, const char *text, bool bold)
{
    struct dpt_str words = {0};
    bool inside = false, begins = true; /* of a word: no line begins with a full stop */

    while (*text != '\0') {
        const bool blank = *text == ' ' || *text == '\n';

        if (begins && *text == '.')
            dpt_str_printf(&words, "\\&");
        begins = blank;
        if (blank) {
            dpt_str_add(&words, " ", words.length > 0);
            text++;
        } else if (bold && *text == '`') {
            inside = !inside;
            dpt_str_printf(&words, "%s", inside ? "\\fB" : "\\fR");
            text++;
        } else {
            text += put_character(&words, text);
        }
    }
    dpt_str_printf(&words, "%s", inside ? "\\fR" : "");
    dpt_str_wrap(out, words.text != NULL ? words.text : "", 0, 0, WIDTH);
    dpt_str_release(&words);
}

static void put_example(struct dpt_str *out, const char *text)
{
    dpt_str_printf(out, ".PP\n.RS 4\n.nf\n");
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");

        if (text[0] == '.' || text[0] == '\'')
            dpt_str_printf(out, "\\&");
        put_characters(out, text, n);
        dpt_str_printf(out, "\n");
        text += n + (text[n] == '\n');
    }
    dpt_str_printf(out, ".fi\n.RE\n");
}

/* Paragraphs as --help has them: lines that begin with spaces are examples. */
static void put_paragraphs(struct dpt_str *out, const char *text)
{
    struct dpt_str part = {0};

    while (*text != '\0') {
        const bool example = *text == ' ';

        dpt_str_clear(&part);
        while (*text != '\0' && *text != '\n' && (*text == ' ') == example) {
            text += example ? strspn(text, " ") < 2 ? strspn(text, " ") : 2 : 0;
            dpt_str_printf(&part, "%.*s\n", (int)strcspn(text, "\n"), text);
            text += strcspn(text, "\n");
            text += *text == '\n';
        }
        if (example && part.text != NULL) {
            put_example(out, part.text);
        } else if (part.text != NULL) {
            dpt_str_printf(out, ".PP\n");
            put_text(out, part.text, true);
        }
        text += strspn(text, "\n");
    }
    dpt_str_release(&part);
}

/* .TP with a bold head. */
static void put_head(struct dpt_str *out, const char *head, const char *value)
{
    dpt_str_printf(out, ".TP\n\\fB");
    put_characters(out, head, strlen(head));
    dpt_str_printf(out, "\\fR");
    if (value != NULL) {
        dpt_str_printf(out, " \\fI");
        put_characters(out, value, strlen(value));
        dpt_str_printf(out, "\\fR");
    }
    dpt_str_printf(out, "\n");
}

static void put_items(struct dpt_str *out, const struct item *items)
{
    for (; items->text != NULL; items++) {
        if (items->head != NULL)
            put_head(out, items->head, NULL);
        else
            dpt_str_printf(out, ".PP\n");
        put_text(out, items->text, true);
    }
}

/* .SH takes away a .PP right after it. */
static void put_section(struct dpt_str *out, const char *title, const struct item *items)
{
    dpt_str_printf(out, ".SH %s\n", title);
    if (items != NULL && items->head == NULL && items->text != NULL) {
        put_text(out, items->text, true);
        items++;
    }
    if (items != NULL)
        put_items(out, items);
}

/* --- commands --------------------------------------------------------------------------------- */

static void put_usage(struct dpt_str *out, const struct dpt_command *command, bool optional)
{
    dpt_str_printf(out, optional ? "\\fBdptrain\\fR [\\fB%s\\fR]\n" : "\\fBdptrain %s\\fR\n",
                   command->name);
    if (command->usage[0] != '\0') /* an empty line would be a space */
        put_text(out, command->usage, false);
}

static void put_options(struct dpt_str *out, const struct dpt_cli_option *options)
{
    for (; options->name != NULL; options++) {
        put_head(out, options->name, options->value);
        put_text(out, options->help, true);
    }
}

static void put_formats(struct dpt_str *out)
{
    for (size_t i = 0; dpt_source_formats[i] != NULL; i++) {
        const struct dpt_source_format *f = dpt_source_formats[i];

        if (f->inputs == NULL)
            continue;
        put_head(out, f->name, f->inputs);
        put_text(out, f->summary, true);
        dpt_str_printf(out, ".br\n");
        put_text(out, f->details, true);
    }
}

static void put_command(struct dpt_str *out, const struct dpt_command *command)
{
    struct dpt_str details = {0};

    dpt_str_printf(out, ".SS %s\n", command->name);
    put_usage(out, command, strcmp(command->name, "train") == 0);
    dpt_str_printf(out, ".PP\n");
    dpt_str_printf(&details, "%s.", command->summary);
    put_text(out, details.text == NULL ? "" : details.text, true);
    put_paragraphs(out, command->details);
    put_options(out, command->options);
    if (strcmp(command->name, "convert") == 0)
        put_formats(out);
    dpt_str_release(&details);
}

/* --- the job file ----------------------------------------------------------------------------- */

static void put_key(void *arg, const struct dpt_option_visit *at)
{
    struct dpt_str *out = arg, text = {0};
    const struct dpt_option *row = at->row;

    if (row == NULL) { /* a variant or a kind begins */
        dpt_str_printf(out, ".PP\n%s\\fB%s\\fR:\n", at->listed ? "\\- " : "type: ", at->variant);
        put_text(out, at->summary, true);
        return;
    }
    if (at->depth == 0 && (row->type == DPT_OPT_SECTION || row->type == DPT_OPT_VARIANT)) {
        dpt_str_printf(out, ".SS %s\n", row->name);
        put_text(out, row->help, true);
    } else {
        put_head(out, at->path, NULL);
        put_text(out, row->help, true);
        dpt_str_printf(out, ".br\n");
    }
    if (row->type != DPT_OPT_SECTION) {
        if (at->depth == 0 && row->type == DPT_OPT_VARIANT)
            dpt_str_printf(out, ".br\n");
        dpt_option_describe(row, &text);
        put_text(out, text.text == NULL ? "" : text.text, true);
    }
    dpt_str_release(&text);
}

/* --- the page --------------------------------------------------------------------------------- */

static void put_page(struct dpt_str *out, const struct dpt_command *const *commands)
{
    dpt_str_printf(out,
                   ".\\\" Made by `dptrain man`.\n.TH DPTRAIN 1 " CHANGED
                   " \"dptrain %s\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n"
                   "dptrain \\- train neural networks data\\-parallel with MPI\n.SH SYNOPSIS\n",
                   DPT_VERSION);
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (i > 0)
            dpt_str_printf(out, ".br\n");
        put_usage(out, commands[i], i == 0);
    }
    put_section(out, "DESCRIPTION", description);
    put_section(out, "COMMANDS", NULL);
    for (size_t i = 0; commands[i] != NULL; i++)
        put_command(out, commands[i]);
    dpt_str_printf(out, ".SS options of every command\n");
    put_options(out, dpt_cli_common_options);
    put_head(out, "--version", NULL);
    put_text(out, "the versions of dptrain and of its libraries", false);
    put_section(out, "\"JOB FILE\"", job);
    dpt_options_walk(dpt_job_options, put_key, out);
    put_section(out, "\"EXIT STATUS\"", NULL);
    for (int i = 0; i < DPT_STATUS_COUNT; i++) {
        dpt_str_printf(out, ".TP\n\\fB%d\\fR\n", dpt_exit_code((enum dpt_status)i));
        put_text(out, dpt_status_text((enum dpt_status)i), true);
    }
    put_items(out, exit);
    put_section(out, "ENVIRONMENT", environment);
    put_section(out, "FILES", files);
    dpt_str_printf(out, ".SH EXAMPLES\n");
    for (const struct item *e = examples; e->text != NULL; e++) {
        if (e != examples)
            dpt_str_printf(out, ".PP\n");
        put_text(out, e->head, true);
        put_example(out, e->text);
    }
    put_section(out, "\"SEE ALSO\"", see);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    struct dpt_str page = {0};

    if (cli->n_positional > 0)
        return dpt_fail(err, DPT_USAGE, "dptrain man: takes no argument");
    put_page(&page, cli->commands);
    return dpt_output_text(&page, "the manual page", err);
}

static const struct dpt_cli_option options[] = {{0}};

const struct dpt_command dpt_cmd_man = {
    .name = "man",
    .usage = "",
    .summary = "print the manual page, for man or mandoc",
    .details = "Prints the manual page: commands, options, every key of the job file, exit codes. "
               "`make install` puts it where `man dptrain` finds it.\n\n"
               "  dptrain man | man -l -",
    .options = options,
    .one_rank = true,
    .run = run,
};
