/* `dptrain compare`: what differs in the jobs of runs, beside what came of them. */
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/screen.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/str.h"

/* --- for a person ----------------------------------------------------------------------------- */

/* A cell's text, and the columns of one. */
enum { CELL = 256, NAME_MOST = 34, CELL_LEAST = 8, CELL_FAIR = 20, CELL_MOST = 60, GAP = 2 };

/* A row of results: what a run has there, as text; "" nothing. */
struct result {
    const char *name;
    bool always; /* else only where the runs differ */
    void (*write)(const struct dpt_run_folder *run, char cell[CELL]); /* NULL: it is a figure */
    const char *format; /* of a number; NULL: digits in groups */
    struct dpt_figure figure;
};

static void state(const struct dpt_run_folder *run, char cell[CELL])
{
    snprintf(cell, CELL, "%s", dpt_run_state_names[run->run_status.state]);
}

static void reason(const struct dpt_run_folder *run, char cell[CELL])
{
    if (strcmp(run->run_status.reason, "done") != 0)
        dpt_show_text(cell, run->run_status.reason, 30);
}

// clang-format off
/* What tells more than accuracy and loss. */
#define SCORES_OF(before, record)                                                                                        \
    {before "MAE", true, NULL, "%.5g", DPT_OF_EVAL(record, REAL, mae, DPT_OF_ALL, DPT_ON_DATA)},                         \
    {before "RMSE", true, NULL, "%.5g", DPT_OF_EVAL(record, REAL, rmse, DPT_OF_ALL, DPT_ON_DATA)},                       \
    {before "R2", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, r2, DPT_OF_ALL, DPT_ON_DATA)},                           \
    {before "label accuracy", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, label_accuracy, DPT_OF_LABELS, DPT_ON_DATA)}, \
    {before "label F1", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, f1, DPT_OF_LABELS, DPT_ON_DATA)},                  \
    {before "balanced accuracy", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, balanced_accuracy, DPT_OF_UNEVEN, DPT_ON_DATA)}, \
    {before "rare recall", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, rare_recall, DPT_OF_UNEVEN, DPT_ON_DATA)},      \
    {before "ROC AUC", true, NULL, "%.4f", DPT_OF_EVAL(record, REAL, roc_auc, DPT_OF_UNEVEN, DPT_ON_DATA)},

static const struct result results[] = {
    {"state", true, state, NULL, {0}},
    {"why it ended", false, reason, NULL, {0}},
    {"step", true, NULL, NULL, DPT_OF_RUN(dpt_figure_step)},
    {"of steps", true, NULL, NULL, DPT_OF_START(COUNT, steps)},
    {"starts", false, NULL, "%.0f", DPT_OF_RUN(dpt_figure_starts)},
    {"train loss", true, NULL, "%.4g", DPT_OF_TRAIN(loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"train accuracy", true, NULL, "%.4f", DPT_OF_TRAIN(accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"train exact match", true, NULL, "%.4f", DPT_OF_TRAIN(accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    {"epoch loss", true, NULL, "%.4g", DPT_OF_EVAL(EPOCH, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"epoch accuracy", true, NULL, "%.4f", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"epoch exact match", true, NULL, "%.4f", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    {"valid loss", true, NULL, "%.4g", DPT_OF_EVAL(VALID, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"best valid loss", true, NULL, "%.4g", DPT_OF_BEST_LOSS},
    {"best valid accuracy", true, NULL, "%.4f", DPT_OF_EVAL(BEST, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"best valid exact match", true, NULL, "%.4f", DPT_OF_EVAL(BEST, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    SCORES_OF("  its ", BEST)
    {"  at step", true, NULL, NULL, DPT_OF_EVAL(BEST, COUNT, step, DPT_OF_ALL, 0)},
    {"test loss", true, NULL, "%.4g", DPT_OF_EVAL(TEST, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"test accuracy", true, NULL, "%.4f", DPT_OF_EVAL(TEST, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"test exact match", true, NULL, "%.4f", DPT_OF_EVAL(TEST, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    SCORES_OF("test ", TEST)
    {"samples/s", true, NULL, NULL, DPT_OF_RUN(dpt_history_rate)},
    {"seconds", true, NULL, "%.1f", DPT_OF_RUN(dpt_history_seconds)},
    {"parameters", false, NULL, NULL, DPT_OF_START(COUNT, parameters)},
    {"ranks", true, NULL, "%.0f", DPT_OF_START(COUNT, ranks)},
    {"nodes", false, NULL, "%.0f", DPT_OF_START(COUNT, hosts)},
    {"threads", false, NULL, "%.0f", DPT_OF_START(COUNT, threads)},
    {"micro-batch", false, NULL, "%.0f", DPT_OF_START(COUNT, micro)},
    {"device", true, NULL, NULL, DPT_OF_START(TEXT, device)},
    {"dptrain", true, NULL, NULL, DPT_OF_START(TEXT, version)},
    {"library", false, NULL, NULL, DPT_OF_START(TEXT, library)},
    {"MPI", false, NULL, NULL, DPT_OF_START(TEXT, mpi)},
    {"HDF5", false, NULL, NULL, DPT_OF_START(TEXT, hdf5)},
};
// clang-format on

static void write_result(const struct result *r, const struct dpt_runs *runs, size_t index,
                         char cell[CELL])
{
    const struct dpt_run_folder *run = &runs->at[index];
    const struct dpt_history *h = &run->history;
    const char *mark = dpt_runs_mark(runs, index, &r->figure);
    double value;

    cell[0] = '\0';
    if (r->write != NULL) {
        r->write(run, cell);
    } else if (r->figure.type == DPT_FIGURE_TEXT) {
        snprintf(cell, CELL, "%s", dpt_figure_text(&r->figure, h));
    } else if (!isnan(value = dpt_figure_number(&r->figure, h))) {
        if (r->format != NULL)
            snprintf(cell, CELL, r->format, value);
        else
            dpt_group_digits(cell, (long long)value);
        if (mark[0] != '\0')
            snprintf(cell + strlen(cell), CELL - strlen(cell), " %s", mark);
    }
}

/* A table that is being made: cells[row * runs + run]. */
struct table {
    const struct dpt_runs *c;
    const char **names;
    char (*cells)[CELL];
    size_t rows, jobs; /* rows, and how many of them are about the jobs: the first */
    size_t shared;     /* bytes that the folders' names have in common, not shown */
    int width;         /* of the names */
    int most;          /* of a cell */
    int columns;
    bool ascii;
};

static int width_of(const char *text)
{
    return (int)dpt_utf8_width(text, strlen(text));
}

/* Whether a row of results is worth showing: somebody has it, and it is always or it differs. */
static bool shown(const struct table *t, const char (*row)[CELL], bool always)
{
    bool any = false, differs = false;

    for (size_t i = 0; i < t->c->n; i++) {
        any = any || row[i][0] != '\0';
        differs = differs || strcmp(row[i], row[0]) != 0;
    }
    return any && (always || differs);
}

static void add_row(struct table *t, const char *name)
{
    const int width = width_of(name);

    t->names[t->rows++] = name;
    if (width > t->width)
        t->width = width < NAME_MOST ? width : NAME_MOST;
}

static void fill(struct table *t)
{
    const struct dpt_runs *c = t->c;

    for (size_t k = 0; k < c->jobs.n_keys; k++) {
        const struct dpt_job_key *key = &c->jobs.keys[k];

        if (!key->differs)
            continue;
        for (size_t i = 0; i < c->n; i++)
            snprintf(t->cells[t->rows * c->n + i], CELL, "%.*s", CELL - 1,
                     key->value[i] != NULL ? key->value[i] : "-");
        add_row(t, key->path);
    }
    t->jobs = t->rows;
    for (size_t k = 0; k < sizeof results / sizeof *results; k++) {
        char(*row)[CELL] = &t->cells[t->rows * c->n];

        for (size_t i = 0; i < c->n; i++)
            write_result(&results[k], c, i, row[i]);
        if (shown(t, (const char(*)[CELL])row, results[k].always))
            add_row(t, results[k].name);
    }
}

/* Adds text in so many columns, cut where it is longer; keep_end: at its beginning. */
static void add_cell(const struct table *t, const char *text, int width, bool right, bool keep_end,
                     struct dpt_str *out)
{
    const char *cut = t->ascii ? "~" : "…";
    const int own = width_of(text);

    if (right && own < width)
        dpt_str_printf(out, "%*s", width - own, "");
    if (own <= width)
        dpt_str_printf(out, "%s", text);
    else if (keep_end)
        dpt_str_printf(out, "%s%s", cut, dpt_utf8_end(text, width - 1));
    else
        dpt_str_printf(out, "%.*s%s", (int)dpt_utf8_bytes(text, width - 1), text, cut);
    if (!right && own < width)
        dpt_str_printf(out, "%*s", width - own, "");
}

/* Bytes of the folders that all runs lie in. */
static size_t common_folders(const struct dpt_runs *c)
{
    const char *first = c->at[0].history.folder;
    size_t n = 0;

    for (size_t at = 0; c->n > 1 && first[at] != '\0'; at++) {
        for (size_t i = 1; i < c->n; i++)
            if (c->at[i].history.folder[at] != first[at])
                return n;
        if (first[at] == '/')
            n = at + 1;
    }
    return n;
}

static const char *folder_of(const struct table *t, size_t run, char *buf)
{
    dpt_show_text(buf, t->c->at[run].history.folder + t->shared, 200);
    return buf;
}

static int cell_width(const struct table *t, size_t run)
{
    char folder[6 * 200 + 8];
    int width = width_of(folder_of(t, run, folder));

    for (size_t row = 0; row < t->rows; row++) {
        const int own = width_of(t->cells[row * t->c->n + run]);

        width = own > width ? own : width;
    }
    return width < CELL_LEAST ? CELL_LEAST : width < t->most ? width : t->most;
}

/* How wide a cell may be, where as many runs stand beside each other as fit in a fair width. */
static int most_columns(const struct table *t)
{
    const int room = t->columns - t->width;
    int beside = room / (CELL_FAIR + GAP), most;

    if (beside > (int)t->c->n)
        beside = (int)t->c->n;
    most = room / (beside > 0 ? beside : 1) - GAP;
    return most < CELL_LEAST ? CELL_LEAST : most < CELL_MOST ? most : CELL_MOST;
}

/* Some runs beside each other. */
static void print_block(const struct table *t, size_t first, size_t last, struct dpt_str *out)
{
    char folder[6 * 200 + 8];

    dpt_str_printf(out, "%*s", t->width, "");
    for (size_t i = first; i < last; i++) {
        dpt_str_printf(out, "%*s", GAP, "");
        add_cell(t, folder_of(t, i, folder), cell_width(t, i), true, true, out);
    }
    dpt_str_printf(out, "\n");
    for (size_t row = 0; row < t->rows; row++) {
        if (row == t->jobs && t->jobs > 0)
            dpt_str_printf(out, "\n");
        add_cell(t, t->names[row], t->width, false, true, out);
        for (size_t i = first; i < last; i++) {
            dpt_str_printf(out, "%*s", GAP, "");
            add_cell(t, t->cells[row * t->c->n + i], cell_width(t, i), true, false, out);
        }
        while (out->length > 0 && out->text[out->length - 1] == ' ')
            out->length--;
        dpt_str_printf(out, "\n");
    }
}

static void print_blocks(const struct table *t, struct dpt_str *out)
{
    for (size_t first = 0, last; first < t->c->n; first = last) {
        int width = t->width;

        for (last = first; last < t->c->n; last++) {
            width += GAP + cell_width(t, last);
            if (last > first && width > t->columns)
                break;
        }
        dpt_str_printf(out, "%s", first == 0 ? "" : "\n");
        print_block(t, first, last, out);
    }
    if (t->c->n > 1 && t->jobs == 0)
        dpt_str_printf(out, "\nThe jobs are the same.\n");
}

/* Why figures that stand beside each other are not of the same, where they are not. */
static void print_bases(const struct table *t, struct dpt_str *out)
{
    struct dpt_region region = {0};
    const char **names = dpt_region_alloc(&region, t->c->n * sizeof *names);
    const char *said[DPT_MOST_REASONS];
    char folder[6 * 200 + 8];
    size_t n = 0;

    for (size_t i = 0; names != NULL && i < t->c->n; i++)
        names[i] = dpt_region_strdup(&region, folder_of(t, i, folder));
    if (!region.failed)
        n = dpt_runs_tell_bases(t->c, names, &region, said);
    for (size_t i = 0; i < n; i++) {
        dpt_str_printf(out, "%s", i == 0 ? "\n" : "");
        dpt_str_wrap(out, said[i], 2, 0, (size_t)t->columns);
    }
    out->failed = out->failed || region.failed;
    dpt_region_release(&region);
}

/* Writes the table in so many columns, as several blocks of runs where they do not fit beside each
 * other. */
static void print_table(const struct dpt_runs *c, int columns, bool ascii, struct dpt_str *out)
{
    const size_t most = c->jobs.n_keys + sizeof results / sizeof *results;
    struct table t = {.c = c, .columns = columns, .ascii = ascii, .shared = common_folders(c)};

    t.names = dpt_alloc_array(most, sizeof *t.names);
    t.cells = dpt_alloc_array(most * c->n, sizeof *t.cells);
    if (t.names != NULL && t.cells != NULL) {
        fill(&t);
        t.most = most_columns(&t);
        print_blocks(&t, out);
        print_bases(&t, out);
    } else {
        out->failed = true;
    }
    dpt_free(t.names);
    dpt_free(t.cells);
}

/* --- for a program ---------------------------------------------------------------------------- */

/* A count that is not there is null. */
static void count(struct dpt_json *j, const char *key, int64_t value)
{
    if (value >= 0)
        dpt_json_int(j, key, value);
    else
        dpt_json_null(j, key);
}

/* What only some evaluations have. */
static const struct {
    const char *name;
    size_t member;
} scores[] = {
    {"weight", offsetof(struct dpt_history_eval, weight)},
    {"mae", offsetof(struct dpt_history_eval, mae)},
    {"rmse", offsetof(struct dpt_history_eval, rmse)},
    {"r2", offsetof(struct dpt_history_eval, r2)},
    {"label_accuracy", offsetof(struct dpt_history_eval, label_accuracy)},
    {"balanced_accuracy", offsetof(struct dpt_history_eval, balanced_accuracy)},
    {"rare_recall", offsetof(struct dpt_history_eval, rare_recall)},
    {"f1", offsetof(struct dpt_history_eval, f1)},
    {"roc_auc", offsetof(struct dpt_history_eval, roc_auc)},
};

static void write_eval(struct dpt_json *j, const char *key, const struct dpt_history_eval *e)
{
    if (e == NULL) {
        dpt_json_null(j, key);
        return;
    }
    dpt_json_object(j, key);
    dpt_json_int(j, "step", e->step);
    dpt_json_real(j, "loss", e->loss);
    dpt_json_real(j, "accuracy", e->accuracy);
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        const double value = *(const double *)(const void *)((const char *)e + scores[i].member);

        if (!isnan(value))
            dpt_json_real(j, scores[i].name, value);
    }
    dpt_json_end(j);
}

static void write_start(struct dpt_json *j, const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL)
        return;
    count(j, "steps", start->steps);
    count(j, "parameters", start->parameters);
    count(j, "ranks", start->ranks);
    count(j, "nodes", start->hosts);
    count(j, "threads", start->threads);
    count(j, "global", start->global);
    count(j, "micro", start->micro);
    dpt_json_text(j, "device", start->device);
    dpt_json_text(j, "library", start->library);
    dpt_json_text(j, "version", start->version);
    dpt_json_text(j, "mpi", start->mpi);
    dpt_json_text(j, "hdf5", start->hdf5);
}

static void write_run(struct dpt_json *j, const struct dpt_runs *c, size_t number)
{
    const struct dpt_run_folder *run = &c->at[number];
    const struct dpt_job_keys *jobs = &c->jobs;
    const struct dpt_history *h = &run->history;
    const struct dpt_history_train *train = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const struct dpt_history_start *start = dpt_history_start(h);

    dpt_json_object(j, NULL);
    dpt_json_text(j, "folder", h->folder);
    dpt_json_text(j, "name", start != NULL ? start->name : NULL);
    dpt_json_text(j, "state", dpt_run_state_names[run->run_status.state]);
    dpt_json_text(j, "reason", dpt_history_end(h) != NULL ? run->run_status.reason : NULL);
    count(j, "step", dpt_history_step(h));
    count(j, "starts", (int64_t)h->n_starts);
    dpt_json_real(j, "train_loss", train != NULL ? train->loss : NAN);
    dpt_json_real(j, "train_accuracy", train != NULL ? train->accuracy : NAN);
    write_eval(j, "epoch", dpt_history_last(h, DPT_HISTORY_EPOCH));
    write_eval(j, "valid", dpt_history_last(h, DPT_HISTORY_VALID));
    write_eval(j, "best_valid", dpt_history_best(h, DPT_HISTORY_VALID));
    write_eval(j, "test", dpt_history_last(h, DPT_HISTORY_TEST));
    dpt_json_real(j, "samples_per_s", dpt_history_rate(h));
    dpt_json_real(j, "seconds", dpt_history_seconds(h));
    count(j, "damaged_lines", h->damaged);
    write_start(j, h);
    dpt_json_object(j, "job");
    for (size_t k = 0; k < jobs->n_keys; k++)
        if (jobs->keys[k].value[number] != NULL)
            dpt_json_text(j, jobs->keys[k].path, jobs->keys[k].value[number]);
    dpt_json_end(j);
    dpt_json_end(j);
}

/* The sentences that a person reads. */
static void write_bases(const struct dpt_runs *c, struct dpt_json *j)
{
    const char *names[c->n + 1], *said[DPT_MOST_REASONS];
    struct dpt_region region = {0};
    size_t n;

    for (size_t i = 0; i < c->n; i++)
        names[i] = c->at[i].history.folder;
    n = dpt_runs_tell_bases(c, names, &region, said);
    dpt_json_array(j, "not_comparable");
    for (size_t i = 0; i < n; i++)
        dpt_json_text(j, NULL, said[i]);
    dpt_json_end(j);
    dpt_region_release(&region);
}

static void write_json(const struct dpt_runs *c, struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_array(j, "differs");
    for (size_t k = 0; k < c->jobs.n_keys; k++)
        if (c->jobs.keys[k].differs)
            dpt_json_text(j, NULL, c->jobs.keys[k].path);
    dpt_json_end(j);
    write_bases(c, j);
    dpt_json_array(j, "runs");
    for (size_t i = 0; i < c->n; i++) {
        dpt_json_break(j);
        write_run(j, c, i);
    }
    dpt_json_break(j);
    dpt_json_end(j);
    dpt_json_end(j);
}

/* --- the command ------------------------------------------------------------------------------ */

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_runs runs = {0};
    struct dpt_json json = {.file = stdout};
    struct dpt_str out = {0};
    int columns, rows;

    if (cli->n_positional == 0)
        return dpt_cli_wrong(cli, "which run folders?", err);
    DPT_TRY(
        dpt_runs_open(&runs, cli->positional, cli->n_positional, dpt_cli_has(cli, "--json"), err));
    for (size_t i = 0; i < runs.n; i++)
        if (runs.at[i].no_job != NULL)
            dpt_log_warn(&cli->log, "%s", runs.at[i].no_job);
    setlocale(LC_CTYPE, "");
    dpt_screen_size(&columns, &rows);
    if (dpt_cli_has(cli, "--json")) {
        write_json(&runs, &json);
        status = dpt_json_finish(&json, "the table", err);
    } else {
        print_table(&runs, columns, strcmp(nl_langinfo(CODESET), "UTF-8") != 0, &out);
        status = dpt_output_text(&out, "the table", err);
    }
out:
    dpt_runs_close(&runs);
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
        "differ, then how each went: steps, losses, accuracies, speed, time, ranks and versions; "
        "of numbers MAE, RMSE and R2 in their units, of several labels exact match and label "
        "accuracy, of uneven classes balanced accuracy and the rarest one's recall. Figures that "
        "are weighted differently, of another loss, of targets scaled otherwise or of other "
        "samples are not comparable: a line below the table says which, and why. "
        "Models of different kinds have a row for all that is not at its default, and lists of "
        "layers one for each layer; --json has all keys. "
        "Runs that still run, were stopped or resumed are compared by what they have told so "
        "far.\n\n"
        "  dptrain compare runs/lr-*\n"
        "  dptrain compare --json runs/a runs/b",
    .options = options,
    .one_rank = true,
    .run = run,
};
