#include "cmd/lead.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/file.h"
#include "core/state/checkpoint.h"
#include "data/sources/source.h"

/* The job of a run folder; whether there is one. */
static bool find_job(const char *folder, char *buf, size_t size)
{
    snprintf(buf, size, "%s/job.yaml", folder);
    return dpt_file_is_folder(folder) && dpt_file_exists(buf);
}

/* The row --checkpoint of those that use what was trained; NULL: the command does not. */
static const struct dpt_cli_option *checkpoint_option(const struct dpt_cli *cli)
{
    return dpt_cli_option(cli->command, "--checkpoint", strlen("--checkpoint"));
}

void dpt_lead_take_run(struct dpt_cli *cli, char *buf, size_t size)
{
    const struct dpt_cli_option *option = checkpoint_option(cli);
    const char *folder = cli->positional[0];

    if (option == NULL || !find_job(folder, buf, size))
        return;
    if (!dpt_cli_has(cli, option->name)) /* there is room: words may all be options */
        cli->given[cli->n_given++] = (struct dpt_cli_given){option, folder};
    cli->positional[0] = buf;
}

/* What data of a file `convert` or `predict` would take it for; NULL: nothing. Any text looks like
 * a table: its name has to, too. */
static const char *format_of(const char *path)
{
    static const char *const tables[] = {".csv", ".tsv", ".csv.gz", ".tsv.gz"};
    const char *name = dpt_source_format_name(path);
    const size_t n = strlen(path);

    if (name == NULL || strcmp(name, "csv") != 0)
        return name;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (n > strlen(tables[i]) && strcmp(path + n - strlen(tables[i]), tables[i]) == 0)
            return name;
    return NULL;
}

/* "PATH: IS: `dptrain COMMAND PATH --OPTION` DOES" */
static enum dpt_status lead(enum dpt_status status, const char *path, const char *is,
                            const char *command, const char *option, const char *does,
                            struct dpt_error *err)
{
    struct dpt_str word = {0};

    dpt_str_shell(&word, path);
    dpt_fail(err, status, "%s: %s: `dptrain %s %s %s`%s", path, is, command,
             word.failed ? path : word.text, option, does);
    dpt_str_release(&word);
    return status;
}

static enum dpt_status lead_to_init(enum dpt_status status, const char *path, const char *is,
                                    struct dpt_error *err)
{
    return lead(status, path, is, "init", "--output job.yaml", " writes a job for it", err);
}

static enum dpt_status lead_to_convert(enum dpt_status status, const char *path, const char *is,
                                       const char *format, struct dpt_error *err)
{
    char command[64];

    snprintf(command, sizeof command, "convert %s", format);
    return lead(status, path, is, command, "--output PREFIX", " makes shards of it", err);
}

enum dpt_status dpt_lead_job(const struct dpt_cli *cli, struct dpt_error *err)
{
    const char *path = cli->positional[0];
    const char *format = dpt_file_exists(path) ? format_of(path) : NULL;
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    char job[PATH_MAX + 16];

    if (format == NULL)
        return DPT_OK;
    if (find_job(path, job, sizeof job))
        return dpt_fail(err, DPT_BAD_JOB, "%s: is a run folder; its job is %s", path, job);
    if (strcmp(format, "h5") == 0 && dpt_checkpoint_is_name(name))
        return dpt_fail(err, DPT_BAD_JOB,
                        "%s: is a checkpoint, not a job file; that is job.yaml in its run folder",
                        path);
    if (checkpoint_option(cli) != NULL)
        return dpt_fail(err, DPT_BAD_JOB,
                        "%s: is %s, not a job file: dptrain %s JOB.yaml --checkpoint C, or a run "
                        "folder in the place of both",
                        path, dpt_file_is_folder(path) ? "a folder without a job.yaml" : "data",
                        cli->command->name);
    if (dpt_file_is_folder(path))
        return lead_to_init(DPT_BAD_JOB, path, "is a folder, not a job file", err);
    if (strcmp(format, "h5") != 0)
        return lead_to_convert(DPT_BAD_JOB, path, "is data, not a job file", format, err);
    return lead_to_init(DPT_BAD_JOB, path, "is data, not a job file", err);
}

enum dpt_status dpt_lead_samples(const struct dpt_cli *cli, struct dpt_error *err)
{
    char job[PATH_MAX + 16];

    if (cli->n_positional > 0 && !find_job(cli->positional[0], job, sizeof job) &&
        dpt_lead_job(cli, err) != DPT_OK)
        return err->status;
    return dpt_fail(
        err, DPT_USAGE,
        "dptrain predict: no input: give --input FILE or FOLDER, or list files after the "
        "job file or run folder");
}

enum dpt_status dpt_lead_format(const char *path, struct dpt_error *err)
{
    const char *format = dpt_file_exists(path) ? format_of(path) : NULL;

    if (format == NULL)
        return DPT_OK;
    if (strcmp(format, "h5") == 0)
        return lead_to_init(DPT_USAGE, path, "is HDF5 already", err);
    return lead_to_convert(DPT_USAGE, path, "its format comes first", format, err);
}
