/*
 * `dptrain convert`: files of other programs into shards, on one process.
 *
 * The only state outside is the signal flag: INT, TERM and HUP stop the conversion, the temporary
 * files go, and then the signal does what it would have done, so that a shell sees a program that
 * was interrupted.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "cmd/cmd.h"
#include "cmd/lead.h"
#include "core/base/str.h"
#include "data/sources/source.h"

static volatile sig_atomic_t stop_signal;

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0] };

static void note_signal(int number)
{
    stop_signal = number;
}

/* One that is ignored (nohup, a shell's background job) stays so. */
static void catch_signals(struct sigaction before[STOP_SIGNALS])
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (int i = 0; i < STOP_SIGNALS; i++) {
        sigaction(stop_signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(stop_signals[i], &action, NULL);
    }
}

static void release_signals(const struct sigaction before[STOP_SIGNALS])
{
    for (int i = 0; i < STOP_SIGNALS; i++)
        sigaction(stop_signals[i], &before[i], NULL);
    if (stop_signal != 0)
        raise(stop_signal);
}

static void print_result(const struct dpt_shard_result *result)
{
    const struct dpt_shard_format *format = &result->format;
    char shards[32], samples[32], classes[32];

    printf("%s%s %s shard%s, %s sample%s of ", result->first.text, result->shards > 1 ? " …" : ":",
           dpt_group_digits(shards, result->shards), result->shards > 1 ? "s" : "",
           dpt_group_digits(samples, format->samples), format->samples == 1 ? "" : "s");
    for (int i = 0; i < format->n_dims; i++)
        printf("%s%lld", i > 0 ? "x" : "", (long long)format->dims[i]);
    printf(" %s, ", format->files ? "in files" : format->u8 ? "uint8" : "float32");
    if (format->targets > 0)
        printf("%lld target%s", (long long)format->targets, format->targets > 1 ? "s" : "");
    else
        printf("%s class%s", dpt_group_digits(classes, format->classes),
               format->classes > 1 ? "es" : "");
    if (result->bytes < 1e5)
        printf(", %.1f kB\n", result->bytes / 1e3);
    else
        printf(", %.1f MB\n", result->bytes / 1e6);
    if (result->classes.length > 0)
        printf("classes: %s\n", result->classes.text);
}

/* Options of the formats as they were given; several values of one are joined in `joined`. */
static enum dpt_status take_options(const struct dpt_cli *cli, struct dpt_source_spec *spec,
                                    struct dpt_str joined[DPT_SOURCE_OPTIONS],
                                    struct dpt_error *err)
{
    for (int i = 0; i < DPT_SOURCE_OPTIONS; i++) {
        const char *values[cli->n_given + 1];
        const size_t n = dpt_cli_all(cli, dpt_source_option_names[i], values);

        if (n == 0)
            continue;
        for (size_t k = 0; k < n && values[k] != NULL; k++) /* switches have none */
            dpt_str_printf(&joined[i], "%s%s", k > 0 ? "," : "", values[k]);
        if (joined[i].failed)
            return dpt_fail_memory(err, "the options", (double)joined[i].length);
        spec->option[i] = joined[i].text != NULL ? joined[i].text : "";
    }
    return DPT_OK;
}

/* "80/20" or "80/10/10". */
static enum dpt_status take_split(const struct dpt_cli *cli, struct dpt_source_split *split,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *text = dpt_cli_value(cli, "--split");
    long long share[DPT_SOURCE_PARTS] = {0}, seed;
    int end = 0;

    DPT_TRY(dpt_cli_int(cli, "--seed", 0, LLONG_MAX, 0, &seed, err));
    split->seed = (uint64_t)seed;
    split->stratify = dpt_cli_has(cli, "--stratify");
    if (text == NULL && (split->stratify || dpt_cli_has(cli, "--seed")))
        return dpt_fail(err, DPT_USAGE, "%s belongs to --split",
                        split->stratify ? "--stratify" : "--seed");
    if (text == NULL)
        return DPT_OK;
    split->n = 2;
    if (sscanf(text, "%6lld/%6lld%n", &share[0], &share[1], &end) == 2 && text[end] == '/')
        split->n = 3, sscanf(text, "%6lld/%6lld/%6lld%n", &share[0], &share[1], &share[2], &end);
    for (size_t p = 0; p < split->n; p++)
        split->share[p] = share[p];
    if (end == 0 || text[end] != '\0' || share[0] < 1 || share[1] < 1 ||
        (split->n == 3 && share[2] < 1))
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--split %s: 80/20 makes training and test data, 80/10/10 validation "
                         "data, too",
                         text));
out:
    return status;
}

/* quiet: the shards alone, unless what became of the samples is all that is asked for. */
static void print_done(const struct dpt_conversion *done, bool dry, bool quiet)
{
    char digits[32];

    if (done->told.length > 0 && (dry || !quiet))
        fputs(done->told.text, stdout);
    for (size_t p = 0; p < done->parts && !dry; p++)
        print_result(&done->result[p]);
    for (size_t p = 0; p < done->parts && dry; p++)
        printf("%s%s%s%s sample%s", p > 0 ? ", " : "", done->part[p] != NULL ? done->part[p] : "",
               done->part[p] != NULL ? ": " : "", dpt_group_digits(digits, done->samples[p]),
               done->samples[p] == 1 ? "" : "s");
    if (dry)
        printf("; a dry run: nothing was written\n");
}

/* The command line without what it says of columns and missing values, which advice repeats. */
static enum dpt_status write_command(const struct dpt_cli *cli, struct dpt_str *command,
                                     struct dpt_error *err)
{
    static const char *const left_out[] = {"--columns", "--categories", "--drop",
                                           "--missing", "--impute",     "--dates"};
    enum { LEFT_OUT = sizeof left_out / sizeof left_out[0] };

    dpt_str_shell(command, cli->argv[0]);
    dpt_str_printf(command, " %s", cli->command->name);
    for (size_t i = 0; i < cli->n_positional; i++) {
        const bool option = cli->positional[i][0] == '-' && cli->positional[i][1] != '\0';

        dpt_str_printf(command, option ? " ./" : " ");
        dpt_str_shell(command, cli->positional[i]);
    }
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *name = cli->given[i].option->name, *value = cli->given[i].value;

        if (dpt_find(name, left_out, LEFT_OUT) < LEFT_OUT)
            continue;
        dpt_str_printf(command, " %s", name);
        if (value != NULL) {
            dpt_str_printf(command, " ");
            dpt_str_shell(command, value);
        }
    }
    return command->failed ? dpt_fail_memory(err, "the command line", (double)command->length)
                           : DPT_OK;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str joined[DPT_SOURCE_OPTIONS] = {{0}};
    struct sigaction before[STOP_SIGNALS];
    struct dpt_conversion done = {0};
    struct dpt_str command = {0};
    struct dpt_source_spec spec = {.convert = true, .log = &cli->log, .stop = &stop_signal};
    struct dpt_shard_output output = {.log = &cli->log, .stop = &stop_signal};
    long long shards;

    if (cli->n_positional == 0)
        return dpt_fail(err, DPT_USAGE, "no format given: `dptrain convert --help` lists them");
    if (dpt_source_format_find("", cli->positional[0], true, &spec.format, err) != DPT_OK) {
        const struct dpt_error unknown = *err;

        DPT_TRY(dpt_lead_format(cli->positional[0], err));
        *err = unknown;
        DPT_TRY(err->status);
    }
    spec.inputs = cli->positional + 1;
    spec.n_inputs = cli->n_positional - 1;
    output.from = spec.inputs[0];
    output.prefix = dpt_cli_value(cli, "--output");
    output.force = dpt_cli_has(cli, "--force");
    if (spec.n_inputs == 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "no input: dptrain convert %s %s --output PREFIX",
                         spec.format->name, spec.format->inputs));
    spec.dry_run = dpt_cli_has(cli, "--dry-run");
    if (output.prefix == NULL && !spec.dry_run)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "no output: --output data/train makes data/train-00000-of-00001.h5"));
    DPT_TRY(dpt_cli_int(cli, "--shards", 1, 99999, 1, &shards, err));
    output.shards = shards;
    DPT_TRY(take_split(cli, &spec.split, err));
    DPT_TRY(take_options(cli, &spec, joined, err));
    DPT_TRY(write_command(cli, &command, err));
    spec.command = command.text;
    catch_signals(before);
    status = dpt_source_convert(&spec, &output, &done, err);
    release_signals(before);
    if (status == DPT_OK)
        print_done(&done, spec.dry_run, dpt_cli_has(cli, "--quiet"));
out:
    dpt_conversion_release(&done);
    dpt_str_release(&command);
    for (int i = 0; i < DPT_SOURCE_OPTIONS; i++)
        dpt_str_release(&joined[i]);
    return status;
}

static void list_formats(void)
{
    printf("\nformats:\n");
    for (size_t i = 0; dpt_source_formats[i] != NULL; i++) {
        const struct dpt_source_format *f = dpt_source_formats[i];

        if (f->inputs == NULL)
            continue;
        printf("  %s %s\n", f->name, f->inputs);
        dpt_cli_print(6, 0, f->summary);
        dpt_cli_print(6, 0, f->details);
    }
}

static const struct dpt_cli_option options[] = {
    {"--output", "PREFIX", "shards become PREFIX-00000-of-0000N.h5; folders are made"},
    {"--shards", "N", "number of files (1); their sizes differ by one sample at most"},
    {"--force", NULL, "delete PREFIX shards left from another --shards"},
    {"--split", "A/B[/C]",
     "divide at random, 80/20 or 60/20/20: PREFIX-train, -valid, -test get so many parts"},
    {"--stratify", NULL, "divide each class by itself, so that all parts have it"},
    {"--seed", "N", "seed of the random split (0)"},
    {"--dry-run", NULL, "read all and report, write nothing"},
#define X(id, name, value, help) {name, value, help},
    DPT_SOURCE_OPTION_LIST(X)
#undef X
        {0},
};

const struct dpt_command dpt_cmd_convert = {
    .name = "convert",
    .usage = "FORMAT IN... --output PREFIX [--shards N] [options of the format]",
    .summary = "convert MNIST, CIFAR-10, CSV, NumPy, HDF5 or images to shards",
    .details = "Writes HDF5 files that train reads and h5py, MATLAB and h5ls as well: /images and "
               "/labels, contiguous and uncompressed, each with a checksum; --keep-files stores "
               "the image files instead, which training decodes. The shards are byte-identical "
               "for equal input. A file has its name only once all shards are written and synced; "
               "those of the same names are replaced.\n\n"
               "  dptrain convert idx --output data/mnist/train --shards 4 \\\n"
               "      data/mnist/train-images-idx3-ubyte.gz \\\n"
               "      data/mnist/train-labels-idx1-ubyte.gz\n"
               "  dptrain convert csv iris.csv --label species --output data/iris\n"
               "  dptrain convert pictures photos --keep-files --size 224x224 \\\n"
               "      --output data/photos --shards 16",
    .options = options,
    .one_rank = true,
    .run = run,
    .more_help = list_formats,
};
