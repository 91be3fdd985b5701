/* The table of `dptrain compare`, for a person: a line for each run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/compare/compare.h"
#include "core/base/memory.h"

/* A cell's text, and the columns of one. */
enum { CELL = 256, NAME_MOST = 34, CELL_MOST = 60, GAP = 2, HEAD_LINES = 8 };

/* What a table tells of a run. */
enum kind {
    OUTCOME, /* what came out of it */
    DETAIL,  /* likewise, but only where the runs differ */
    FACT,    /* where and how it ran: a column where the runs differ, else told once */
    HIDDEN,  /* likewise, but not told where it is the same */
};

/* A column of results: what a run has there, as text; "" nothing. */
struct result {
    const char *name;
    enum kind kind;
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
    if (run->run_status.reason[0] != '\0' && strcmp(run->run_status.reason, "done") != 0)
        dpt_show_text(cell, run->run_status.reason, 30);
}

// clang-format off
/* What tells more than accuracy and loss. */
#define SCORES_OF(before, record)                                                                                        \
    {before " MAE", OUTCOME, NULL, "%.5g", DPT_OF_EVAL(record, REAL, mae, DPT_OF_ALL, DPT_ON_DATA)},                     \
    {before " RMSE", OUTCOME, NULL, "%.5g", DPT_OF_EVAL(record, REAL, rmse, DPT_OF_ALL, DPT_ON_DATA)},                   \
    {before " R2", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, r2, DPT_OF_ALL, DPT_ON_DATA)},                       \
    {before " label accuracy", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, label_accuracy, DPT_OF_LABELS, DPT_ON_DATA)}, \
    {before " label F1", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, f1, DPT_OF_LABELS, DPT_ON_DATA)},              \
    {before " balanced accuracy", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, balanced_accuracy, DPT_OF_UNEVEN, DPT_ON_DATA)}, \
    {before " rare recall", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, rare_recall, DPT_OF_UNEVEN, DPT_ON_DATA)},  \
    {before " ROC AUC", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(record, REAL, roc_auc, DPT_OF_UNEVEN, DPT_ON_DATA)},

static const struct result results[] = {
    {"state", OUTCOME, state, NULL, {0}},
    {"why it ended", DETAIL, reason, NULL, {0}},
    {"best valid accuracy", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(BEST, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"best valid exact match", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(BEST, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    {"best valid loss", OUTCOME, NULL, "%.4g", DPT_OF_LOSS(dpt_figure_best_loss)},
    {"its loss", OUTCOME, NULL, "%.4g", DPT_OF_LOSS(dpt_figure_its_loss)},
    SCORES_OF("its", BEST)
    {"at step", OUTCOME, NULL, NULL, DPT_OF_EVAL(BEST, COUNT, step, DPT_OF_ALL, 0)},
    {"test accuracy", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(TEST, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"test exact match", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(TEST, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    SCORES_OF("test", TEST)
    {"test loss", OUTCOME, NULL, "%.4g", DPT_OF_EVAL(TEST, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"valid loss", OUTCOME, NULL, "%.4g", DPT_OF_EVAL(VALID, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"train loss", OUTCOME, NULL, "%.4g", DPT_OF_TRAIN(loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"train accuracy", OUTCOME, NULL, "%.4f", DPT_OF_TRAIN(accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"train exact match", OUTCOME, NULL, "%.4f", DPT_OF_TRAIN(accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    {"epoch loss", OUTCOME, NULL, "%.4g", DPT_OF_EVAL(EPOCH, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)},
    {"epoch accuracy", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE)},
    {"epoch exact match", OUTCOME, NULL, "%.4f", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE)},
    {"step", OUTCOME, NULL, NULL, DPT_OF_RUN(dpt_figure_step)},
    {"of steps", FACT, NULL, NULL, DPT_OF_START(COUNT, steps)},
    {"starts", DETAIL, NULL, "%.0f", DPT_OF_RUN(dpt_figure_starts)},
    {"samples/s", OUTCOME, NULL, NULL, DPT_OF_RUN(dpt_history_rate)},
    {"seconds", OUTCOME, NULL, "%.1f", DPT_OF_RUN(dpt_history_seconds)},
    {"parameters", FACT, NULL, NULL, DPT_OF_START(COUNT, parameters)},
    {"ranks", FACT, NULL, "%.0f", DPT_OF_START(COUNT, ranks)},
    {"nodes", HIDDEN, NULL, "%.0f", DPT_OF_START(COUNT, hosts)},
    {"threads", HIDDEN, NULL, "%.0f", DPT_OF_START(COUNT, threads)},
    {"micro-batch", HIDDEN, NULL, "%.0f", DPT_OF_START(COUNT, micro)},
    {"device", FACT, NULL, NULL, DPT_OF_START(TEXT, device)},
    {"dptrain", FACT, NULL, NULL, DPT_OF_START(TEXT, version)},
    {"library", HIDDEN, NULL, NULL, DPT_OF_START(TEXT, library)},
    {"MPI", HIDDEN, NULL, NULL, DPT_OF_START(TEXT, mpi)},
    {"HDF5", HIDDEN, NULL, NULL, DPT_OF_START(TEXT, hdf5)},
};
// clang-format on
enum { RESULTS = sizeof results / sizeof *results };

static void write_result(const struct result *r, const struct dpt_runs *runs, size_t index,
                         char cell[CELL])
{
    const struct dpt_run_folder *run = &runs->at[index];
    const struct dpt_history *h = &run->history;
    const char *mark = dpt_runs_mark(runs, index, &r->figure);
    double value;

    snprintf(cell, CELL, "-");
    if (r->write != NULL) {
        r->write(run, cell);
    } else if (r->figure.type == DPT_FIGURE_TEXT) {
        if (dpt_figure_text(&r->figure, h)[0] != '\0')
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

/* A table that is being made: a column for each thing, a line for each run; cells[column * runs +
 * run]. */
struct table {
    const struct dpt_runs *c;
    const char **names;
    char (*cells)[CELL];
    size_t n;      /* columns */
    size_t shared; /* bytes that the folders' names have in common, not shown */
    int width;     /* of the runs' names */
    int columns;   /* of the screen */
    bool ascii;
    struct dpt_str same; /* what all runs have, once */
};

static int width_of(const char *text)
{
    return (int)dpt_utf8_width(text, strlen(text));
}

static bool is_named(const struct result *r, const char *first)
{
    return strncmp(r->name, first, strlen(first)) == 0;
}

/* "best" is said only of what the best evaluation is chosen by: of others another may have more. */
static const char *name_of(const struct table *t, const struct result *r)
{
    static const char *const others[][2] = {{"best valid accuracy", "its accuracy"},
                                            {"best valid exact match", "its exact match"},
                                            {"best valid loss", "its loss"}};

    for (size_t i = 0; i < sizeof others / sizeof *others && !dpt_runs_sorted_by(t->c, &r->figure);
         i++)
        if (strcmp(r->name, others[i][0]) == 0)
            return others[i][1];
    return r->name;
}

/* Adds a column of results, or tells it once, where somebody has it. */
static void add_result(struct table *t, const struct result *r)
{
    const char(*cells)[CELL] = (const char(*)[CELL]) & t->cells[t->n * t->c->n];
    bool any = false, differs = false;

    for (size_t i = 0; i < t->c->n; i++) {
        write_result(r, t->c, i, t->cells[t->n * t->c->n + i]);
        any = any || strcmp(cells[i], "-") != 0;
        differs = differs || strcmp(cells[i], cells[0]) != 0;
    }
    if (!any || (!differs && (r->kind == DETAIL || r->kind == HIDDEN)))
        return;
    if (differs || r->kind == OUTCOME)
        t->names[t->n++] = name_of(t, r);
    else
        dpt_str_printf(&t->same, "%s%s %s", t->same.length > 0 ? ", " : "", r->name, cells[0]);
}

/* Adds what the runs are sorted by, where no other column is called so. */
static void add_sorted(struct table *t)
{
    const struct result sorted = {t->c->sorted_by, OUTCOME, NULL, "%.4f", *t->c->sorted};

    for (size_t k = 0; k < RESULTS; k++)
        if (is_named(&results[k], "best ") && dpt_runs_sorted_by(t->c, &results[k].figure))
            return;
    add_result(t, &sorted);
}

/* What came out, then in what the jobs differ, then how they ran. */
static void fill(struct table *t)
{
    const struct dpt_runs *c = t->c;
    bool told = c->sorted == NULL;

    for (size_t k = 0; k < RESULTS; k++) {
        if (results[k].figure.record == DPT_RECORD_BEST && !told) {
            add_sorted(t);
            told = true;
        }
        if (results[k].kind <= DETAIL && !(c->sorted != NULL && is_named(&results[k], "its ") &&
                                           dpt_runs_sorted_by(t->c, &results[k].figure)))
            add_result(t, &results[k]);
    }
    for (size_t k = 0; k < c->jobs.n_keys; k++) {
        const struct dpt_job_key *key = &c->jobs.keys[k];

        if (!key->differs)
            continue;
        for (size_t i = 0; i < c->n; i++)
            snprintf(t->cells[t->n * c->n + i], CELL, "%.*s", CELL - 1,
                     key->value[i] != NULL ? key->value[i] : "-");
        t->names[t->n++] = key->path;
    }
    for (size_t k = 0; k < RESULTS; k++)
        if (results[k].kind > DETAIL)
            add_result(t, &results[k]);
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

/* Bytes of the next piece of a head, after which a line may break: a word, or of a key all up to a
 * dot. */
static int piece_of(const char *text)
{
    const size_t n = strcspn(text, " .");

    return (int)(text[n] == '\0' ? n : n + 1);
}

/* How wide a column is, at most as the screen allows beside the runs' names. */
static int column_width(const struct table *t, size_t column)
{
    const int room = t->columns - t->width - GAP;
    int width = 1;

    for (const char *at = t->names[column]; *at != '\0'; at += piece_of(at)) {
        const int n = piece_of(at) - (at[piece_of(at) - 1] == ' ');

        width = n > width ? n : width;
    }
    for (size_t run = 0; run < t->c->n; run++) {
        const int own = width_of(t->cells[column * t->c->n + run]);

        width = own > width ? own : width;
    }
    width = width < CELL_MOST ? width : CELL_MOST;
    return width < room ? width : room > 1 ? room : 1;
}

/* Breaks a column's head into lines of its width: their beginnings, and after the last its end.
 * Returns how many. */
static int break_head(const char *name, int width, const char *lines[HEAD_LINES + 1])
{
    int n = 0, used = 0;

    lines[0] = name;
    for (const char *at = name; *at != '\0'; at += piece_of(at)) {
        const int piece = piece_of(at), shown = piece - (at[piece - 1] == ' ');

        if (used > 0 && used + shown > width && n + 1 < HEAD_LINES) {
            lines[++n] = at;
            used = 0;
        }
        used += piece;
        lines[n + 1] = at + piece;
    }
    return n + 1;
}

/* The heads of some columns, as many lines as they need, the last words lowest. */
static void print_heads(const struct table *t, size_t first, size_t last, struct dpt_str *out)
{
    const char *lines[HEAD_LINES + 1];
    int height = 1;

    for (size_t i = first; i < last; i++) {
        const int n = break_head(t->names[i], column_width(t, i), lines);

        height = n > height ? n : height;
    }
    for (int line = 0; line < height; line++) {
        dpt_str_printf(out, "%*s", t->width, "");
        for (size_t i = first; i < last; i++) {
            const int width = column_width(t, i), n = break_head(t->names[i], width, lines);
            const int own = line - (height - n);
            char text[CELL] = "";

            if (own >= 0)
                snprintf(text, sizeof text, "%.*s", (int)(lines[own + 1] - lines[own]), lines[own]);
            if (text[0] != '\0' && text[strlen(text) - 1] == ' ')
                text[strlen(text) - 1] = '\0';
            dpt_str_printf(out, "%*s", GAP, "");
            add_cell(t, text, width, true, true, out);
        }
        while (out->length > 0 && out->text[out->length - 1] == ' ')
            out->length--;
        dpt_str_printf(out, "\n");
    }
}

/* Some columns beside each other; an empty line stands between runs that cannot be compared. */
static void print_block(const struct table *t, size_t first, size_t last, struct dpt_str *out)
{
    char folder[6 * 200 + 8];

    print_heads(t, first, last, out);
    for (size_t i = 0; i < t->c->n; i++) {
        const size_t run = t->c->order[i];

        dpt_str_printf(out, "%s", i > 0 && t->c->group[i] != t->c->group[i - 1] ? "\n" : "");
        add_cell(t, folder_of(t, run, folder), t->width, false, true, out);
        for (size_t k = first; k < last; k++) {
            dpt_str_printf(out, "%*s", GAP, "");
            add_cell(t, t->cells[k * t->c->n + run], column_width(t, k), true, false, out);
        }
        dpt_str_printf(out, "\n");
    }
}

static void print_blocks(const struct table *t, struct dpt_str *out)
{
    for (size_t first = 0, last; first < t->n; first = last) {
        int width = t->width;

        for (last = first; last < t->n; last++) {
            width += GAP + column_width(t, last);
            if (last > first && width > t->columns)
                break;
        }
        dpt_str_printf(out, "%s", first == 0 ? "" : "\n");
        print_block(t, first, last, out);
    }
}

/* Adds a line after the table; before the first one an empty line. */
static void print_line(const struct table *t, const char *text, bool *first, struct dpt_str *out)
{
    dpt_str_printf(out, "%s", *first ? "\n" : "");
    *first = false;
    dpt_str_wrap(out, text, 2, 0, (size_t)t->columns);
}

/* By what the runs are sorted, what they share, and why figures beside each other are not of the
 * same, where they are not. */
static void print_remarks(const struct table *t, struct dpt_str *out)
{
    struct dpt_region region = {0};
    const char **names = dpt_region_alloc(&region, t->c->n * sizeof *names);
    const char *said[DPT_MOST_REASONS], *order = dpt_runs_tell_order(t->c, &region);
    char folder[6 * 200 + 8];
    bool first = true;
    size_t n = 0;

    if (order != NULL)
        print_line(t, order, &first, out);
    if (t->c->n > 1 && !dpt_runs_jobs_differ(t->c))
        print_line(t, "The jobs are the same.", &first, out);
    if (t->same.length > 0) {
        const char *same =
            dpt_region_printf(&region, "%s%s.", t->c->n > 1 ? "The same: " : "", t->same.text);

        print_line(t, same != NULL ? same : "", &first, out);
    }
    for (size_t i = 0; names != NULL && i < t->c->n; i++)
        names[i] = dpt_region_strdup(&region, folder_of(t, i, folder));
    if (!region.failed)
        n = dpt_runs_tell_bases(t->c, names, &region, said);
    for (size_t i = 0; i < n; i++)
        print_line(t, said[i], &first, out);
    out->failed = out->failed || region.failed || t->same.failed;
    dpt_region_release(&region);
}

void dpt_compare_table(const struct dpt_runs *c, int columns, bool ascii, struct dpt_str *out)
{
    const size_t most = c->jobs.n_keys + RESULTS + 1;
    struct table t = {.c = c, .columns = columns, .ascii = ascii, .shared = common_folders(c)};
    char folder[6 * 200 + 8];

    for (size_t i = 0; i < c->n; i++) {
        const int width = width_of(folder_of(&t, i, folder));

        t.width = width > t.width ? width : t.width;
    }
    t.width = t.width < NAME_MOST ? t.width : NAME_MOST;
    t.width = t.width < columns / 3 ? t.width : columns / 3;
    t.names = dpt_alloc_array(most, sizeof *t.names);
    t.cells = dpt_alloc_array(most * c->n, sizeof *t.cells);
    if (t.names != NULL && t.cells != NULL) {
        fill(&t);
        print_blocks(&t, out);
        print_remarks(&t, out);
    } else {
        out->failed = true;
    }
    dpt_free(t.names);
    dpt_free(t.cells);
    dpt_str_release(&t.same);
}
