/* `dptrain compare`: what differs in the jobs of runs, beside what came of them. */
#include "cmd/compare.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/screen.h"
#include "core/base/memory.h"
#include "core/conf/leaves.h"
#include "core/conf/option.h"

const char *dpt_compare_value(const struct dpt_compare_run *run, const char *key)
{
    for (size_t i = 0; i < run->n_leaves; i++)
        if (strcmp(run->leaves[i].key, key) == 0)
            return run->leaves[i].value;
    return NULL;
}

static void add_leaf(void *arg, const char *path, const struct dpt_conf_node *node)
{
    struct dpt_compare_run *run = arg;
    struct dpt_str text = {0};
    struct dpt_compare_leaf *leaf;

    if (run->n_leaves == run->room) {
        const size_t room = run->room * 2 + 64;
        struct dpt_compare_leaf *larger = reallocarray(run->leaves, room, sizeof *larger);

        if (larger == NULL) {
            run->job.failed = true;
            return;
        }
        run->leaves = larger;
        run->room = room;
    }
    dpt_conf_leaf_text(node, &text);
    leaf = &run->leaves[run->n_leaves];
    leaf->key = dpt_arena_strdup(&run->arena, path);
    leaf->value = dpt_arena_strdup(&run->arena, text.text != NULL ? text.text : "");
    if (leaf->key == NULL || leaf->value == NULL || text.failed)
        run->job.failed = true;
    else
        run->n_leaves++;
    dpt_str_release(&text);
}

/* A folder without a job, or with one that cannot be read, can still be compared by its results. */
static enum dpt_status read_job(struct dpt_compare_run *run, struct dpt_log *log,
                                struct dpt_error *err)
{
    char path[PATH_MAX + 16];
    enum dpt_status status;

    snprintf(path, sizeof path, "%s/job.yaml", run->history.folder);
    status = dpt_conf_load(&run->job, path, err);
    if (status == DPT_BAD_JOB) {
        dpt_log_warn(log, "%s", err->text);
        return DPT_OK;
    }
    if (status != DPT_OK)
        return status;
    run->has_job = true;
    if (!dpt_conf_leaves(run->job.root, add_leaf, run) || run->job.failed)
        return dpt_fail_memory(err, path, 0);
    return DPT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The keys of all jobs: the first one's, then what others have besides. */
static enum dpt_status gather_keys(struct dpt_compare *c, struct dpt_error *err)
{
    size_t most = 0, n_seen = 0;
    const char **seen;

    for (size_t i = 0; i < c->n; i++)
        most += c->runs[i].n_leaves;
    c->keys = dpt_alloc_array(most, sizeof *c->keys);
    c->differs = dpt_alloc_array(most, sizeof *c->differs);
    seen = dpt_alloc_array(most, sizeof *seen);
    for (size_t i = 0; c->keys != NULL && seen != NULL && i < c->n; i++) {
        for (size_t k = 0; k < c->runs[i].n_leaves; k++) {
            const char *key = c->runs[i].leaves[k].key;

            if (bsearch(&key, seen, n_seen, sizeof *seen, by_name) == NULL)
                c->keys[c->n_keys++] = key;
        }
        n_seen = c->n_keys;
        memcpy(seen, c->keys, n_seen * sizeof *seen);
        qsort(seen, n_seen, sizeof *seen, by_name);
    }
    dpt_free(seen);
    return c->keys != NULL && c->differs != NULL && seen != NULL
               ? DPT_OK
               : dpt_fail_memory(err, "the keys of the jobs", 0);
}

/* Numbers by what they are, 1e-3 and 0.001, all else by how it is written. */
static bool same(const char *a, const char *b)
{
    double x, y;

    if (a == NULL || b == NULL)
        return a == b;
    return strcmp(a, b) == 0 || (dpt_parse_real(a, &x) && dpt_parse_real(b, &y) && x == y);
}

static void find_differences(struct dpt_compare *c)
{
    for (size_t k = 0; k < c->n_keys; k++) {
        const char *first = NULL;
        bool any = false;

        if (strcmp(c->keys[k], "output") == 0)
            continue;
        for (size_t i = 0; i < c->n; i++) {
            const char *value = dpt_compare_value(&c->runs[i], c->keys[k]);

            if (!c->runs[i].has_job)
                continue;
            if (!any)
                first = value;
            else if (!same(value, first))
                c->differs[k] = true;
            any = true;
        }
    }
}

static enum dpt_status load(struct dpt_compare *c, struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < c->n; i++) {
        struct dpt_compare_run *run = &c->runs[i];

        DPT_TRY(dpt_history_open(&run->history, cli->positional[i], err));
        dpt_life_look(&run->history, &run->life);
        DPT_TRY(read_job(run, &cli->log, err));
    }
    DPT_TRY(gather_keys(c, err));
    find_differences(c);
out:
    return status;
}

static void release(struct dpt_compare *c)
{
    for (size_t i = 0; c->runs != NULL && i < c->n; i++) {
        dpt_history_close(&c->runs[i].history);
        dpt_conf_release(&c->runs[i].job);
        dpt_arena_release(&c->runs[i].arena);
        free(c->runs[i].leaves);
    }
    dpt_free(c->runs);
    dpt_free(c->keys);
    dpt_free(c->differs);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_compare c = {.n = cli->n_positional};
    struct dpt_str out = {0};
    int columns, rows;

    if (cli->log.silent) /* started under mpirun: one rank does it */
        return DPT_OK;
    if (c.n == 0)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain compare: which run folders? usage: dptrain compare %s",
                        cli->command->usage);
    c.runs = dpt_alloc_array(c.n, sizeof *c.runs);
    if (c.runs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    DPT_TRY(load(&c, cli, err));
    setlocale(LC_CTYPE, "");
    dpt_screen_size(&columns, &rows);
    if (dpt_cli_has(cli, "--json"))
        dpt_compare_json(&c, &out);
    else
        dpt_compare_print(&c, columns, strcmp(nl_langinfo(CODESET), "UTF-8") != 0, &out);
    if (out.failed)
        DPT_TRY(dpt_fail_memory(err, "the table", (double)out.length));
    fputs(out.text, stdout);
out:
    release(&c);
    dpt_str_release(&out);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--json", NULL,
     "one JSON object: results and whole jobs of all runs, and the keys that differ"},
    {0},
};

const struct dpt_command dpt_cmd_compare = {
    .name = "compare",
    .usage = "RUN... [--json]",
    .summary = "what differs in the jobs of runs, beside their results",
    .details =
        "Prints a table with a column for each run folder: the keys of job.yaml in which they "
        "differ, then how each went: steps, losses, accuracies, speed, time, ranks and versions. "
        "Runs that still run, were stopped or resumed are compared by what they have told so "
        "far.\n\n"
        "  dptrain compare runs/lr-*\n"
        "  dptrain compare --json runs/a runs/b",
    .options = options,
    .run = run,
};
