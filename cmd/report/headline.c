/* The head of the page: what came out, and of several runs how they differ; and where they ran. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/report/report.h"

static const char *four_digits(char *buf, double value)
{
    return dpt_html_number(buf, value, 4);
}

static const char *five_digits(char *buf, double value)
{
    return fabs(value) >= 1e5 ? dpt_html_count(buf, value) : dpt_html_number(buf, value, 5);
}

static const char *four_places(char *buf, double value)
{
    if (!(fabs(value) < 1e6))
        return dpt_html_number(buf, value, 4);
    snprintf(buf, DPT_HTML_NUMBER, "%.4f", value);
    return buf;
}

// clang-format off
/* The scores of a split, those first that say most. best: before the one by which an evaluation is
 * the best. */
#define SCORES_OF(best, before, record)                                                                                                    \
    {before "MAE", DPT_OF_EVAL(record, REAL, mae, DPT_OF_ALL, DPT_ON_DATA), five_digits, -1, true},                                        \
    {before "R²", DPT_OF_EVAL(record, REAL, r2, DPT_OF_ALL, DPT_ON_DATA), four_places, 1, true},                                           \
    {before "RMSE", DPT_OF_EVAL(record, REAL, rmse, DPT_OF_ALL, DPT_ON_DATA), five_digits, -1, true},                                      \
    {best "accuracy", DPT_OF_EVAL(record, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE), dpt_html_percent, 1, true},                        \
    {best "exact match", DPT_OF_EVAL(record, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE), dpt_html_percent, 1, true},                     \
    {before "label accuracy", DPT_OF_EVAL(record, REAL, label_accuracy, DPT_OF_LABELS, DPT_ON_DATA), dpt_html_percent, 1, true},           \
    {before "label F1", DPT_OF_EVAL(record, REAL, f1, DPT_OF_LABELS, DPT_ON_DATA), four_places, 1, true},                                  \
    {before "balanced accuracy", DPT_OF_EVAL(record, REAL, balanced_accuracy, DPT_OF_UNEVEN, DPT_ON_DATA), dpt_html_percent, 1, true},     \
    {before "rare recall", DPT_OF_EVAL(record, REAL, rare_recall, DPT_OF_UNEVEN, DPT_ON_DATA), dpt_html_percent, 1, true},                 \
    {before "ROC AUC", DPT_OF_EVAL(record, REAL, roc_auc, DPT_OF_UNEVEN, DPT_ON_DATA), four_places, 1, false},

/* Figures of every run; better: 1 where more is better, -1 where less is. */
static const struct quantity {
    const char *name;
    struct dpt_figure figure;
    const char *(*text)(char *buf, double value); /* NULL: it is a text */
    int better;
    bool tile; /* one of the few figures of a single run's head */
} quantities[] = {
    SCORES_OF("test ", "test ", TEST)
    {"test loss", DPT_OF_EVAL(TEST, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS), four_digits, -1, true},
    SCORES_OF("best valid ", "valid ", BEST)
    {"best valid loss", DPT_OF_LOSS(dpt_figure_best_loss), four_digits, -1, true},
    {"valid loss", DPT_OF_LOSS(dpt_figure_its_loss), four_digits, -1, false},
    {"best at step", DPT_OF_EVAL(BEST, COUNT, step, DPT_OF_ALL, 0), dpt_html_count, 0, false},
    {"last training loss", DPT_OF_TRAIN(loss, DPT_OF_ALL, DPT_ON_LOSS), four_digits, 0, true},
    {"last epoch's loss", DPT_OF_EVAL(EPOCH, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS), four_digits, 0, false},
    {"last epoch's accuracy", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_OTHERS, DPT_ON_SHARE), dpt_html_percent, 0, false},
    {"last epoch's exact match", DPT_OF_EVAL(EPOCH, REAL, accuracy, DPT_OF_LABELS, DPT_ON_SHARE), dpt_html_percent, 0, false},
    {"samples/s", DPT_OF_RUN(dpt_history_rate), dpt_html_count, 1, true},
    {"duration", DPT_OF_RUN(dpt_history_seconds), dpt_html_seconds, 0, true},
    {"steps", DPT_OF_RUN(dpt_figure_step), dpt_html_count, 0, true},
    {"ranks", DPT_OF_START(COUNT, ranks), dpt_html_count, 0, false},
    {"parameters", DPT_OF_START(COUNT, parameters), dpt_html_count, 0, true},
    {"not frozen", DPT_OF_START(COUNT, learned), dpt_html_count, 0, true},
};
// clang-format on
/* What a start says of where it ran. */
static const struct quantity facts[] = {
    {"dptrain", DPT_OF_START(TEXT, version), NULL, 0, false},
    {"device", DPT_OF_START(TEXT, device), NULL, 0, false},
    {"library", DPT_OF_START(TEXT, library), NULL, 0, false},
    {"MPI", DPT_OF_START(TEXT, mpi), NULL, 0, false},
    {"HDF5", DPT_OF_START(TEXT, hdf5), NULL, 0, false},
    {"host of rank 0", DPT_OF_START(TEXT, host), NULL, 0, false},
    {"hosts", DPT_OF_START(COUNT, hosts), dpt_html_count, 0, false},
    {"ranks", DPT_OF_START(COUNT, ranks), dpt_html_count, 0, false},
    {"threads per rank", DPT_OF_START(COUNT, threads), dpt_html_count, 0, false},
    {"batch", DPT_OF_START(COUNT, global), dpt_html_count, 0, false},
    {"micro-batch", DPT_OF_START(COUNT, micro), dpt_html_count, 0, false},
    {"training samples", DPT_OF_START(COUNT, train_samples), dpt_html_count, 0, false},
    {"validation samples", DPT_OF_START(COUNT, valid_samples), dpt_html_count, 0, false},
    {"test samples", DPT_OF_START(COUNT, test_samples), dpt_html_count, 0, false},
    {"parameters", DPT_OF_START(COUNT, parameters), dpt_html_count, 0, false},
    {"not frozen", DPT_OF_START(COUNT, learned), dpt_html_count, 0, false},
};
enum {
    QUANTITIES = sizeof quantities / sizeof quantities[0],
    FACTS = sizeof facts / sizeof facts[0]
};

/* Writes a quantity as a table tells it; a dash: the run does not have it. */
static const char *text_of(const struct dpt_page *r, const struct quantity *q, size_t run,
                           char *buf)
{
    const struct dpt_history *h = &r->runs.at[run].history;
    const char *text;

    if (q->text != NULL)
        return q->text(buf, dpt_figure_number(&q->figure, h));
    text = dpt_figure_text(&q->figure, h);
    return text[0] != '\0' ? text : "–";
}

static bool is_known(const struct dpt_page *r, const struct quantity *q)
{
    char text[DPT_HTML_NUMBER];

    for (size_t i = 0; i < r->runs.n; i++)
        if (strcmp(text_of(r, q, i, text), "–") != 0)
            return true;
    return false;
}

static double value_of(const struct dpt_page *r, const struct quantity *q, size_t run)
{
    return dpt_figure_number(&q->figure, &r->runs.at[run].history);
}

void dpt_page_label(struct dpt_page *r, const char *before, size_t run, const char *after)
{
    dpt_str_printf(&r->out, "%s", before);
    if (r->runs.n > 1)
        dpt_str_printf(&r->out, "<span class=\"swatch k%zu\" aria-hidden=\"true\"></span>",
                       run % DPT_CHART_COLOURS);
    dpt_html_element(&r->out, "", r->labels[run], after);
}

void dpt_page_prefix(struct dpt_page *r, size_t run)
{
    if (r->runs.n > 1)
        dpt_page_label(r, "", run, ": ");
}

void dpt_page_row(struct dpt_page *r, const struct dpt_page_sample *sample)
{
    if (sample->name != NULL)
        dpt_html_element(&r->out, "<tr><td>", sample->name, "</td>");
    else
        dpt_str_printf(&r->out, "<tr><td>%lld</td>", (long long)sample->number);
}

/* "done", or how it ended, or how far it is. */
static void write_state(struct dpt_page *r, size_t run)
{
    const struct dpt_history *h = &r->runs.at[run].history;
    const struct dpt_history_end *end = dpt_history_end(h);
    const struct dpt_history_start *start = dpt_history_start(h);
    const bool good = dpt_history_done(h);

    dpt_str_printf(&r->out, "<span class=\"state %s\"><span aria-hidden=\"true\">%s</span>\u00a0",
                   good ? "good" : "open", good ? "✓" : "!");
    if (good || end != NULL)
        dpt_html_text(&r->out, !good                   ? end->reason
                               : end->early[0] != '\0' ? "stopped early"
                                                       : "done");
    else
        dpt_str_printf(&r->out, "not finished: step %lld", (long long)dpt_history_step(h));
    if (!good && end == NULL && start != NULL && start->steps > 0)
        dpt_str_printf(&r->out, " of %lld", (long long)start->steps);
    dpt_str_printf(&r->out, "</span>");
}

/* "best" is said only of what the best evaluation is chosen by: of the rest another one may have
 * more. */
static const char *title_of(const struct dpt_page *r, const struct quantity *q)
{
    static const char best[] = "best ";
    const size_t n = strncmp(q->name, best, sizeof best - 1) == 0 ? sizeof best - 1 : 0;

    return q->better != 0 && !dpt_runs_sorted_by(&r->runs, &q->figure) ? q->name + n : q->name;
}

static struct quantity monitored(const struct dpt_page *r, bool tile)
{
    struct quantity q = {.name = r->runs.sorted_by, .text = four_places, .better = 1, .tile = tile};

    if (r->runs.sorted != NULL)
        q.figure = *r->runs.sorted;
    return q;
}

static void write_tile(struct dpt_page *r, const struct quantity *q)
{
    const double value = value_of(r, q, 0);
    const char *mark = dpt_runs_mark(&r->runs, 0, &q->figure);
    char text[DPT_HTML_NUMBER];

    if (q->tile && !isnan(value))
        dpt_str_printf(&r->out, "<div><dt>%s%s%s</dt><dd>%s</dd></div>\n", title_of(r, q),
                       mark[0] != '\0' ? ", " : "", mark, q->text(text, value));
}

static void write_tiles(struct dpt_page *r)
{
    const struct quantity chosen = monitored(r, true);
    bool told = r->runs.sorted == NULL;

    for (size_t i = 0; i < QUANTITIES; i++)
        told = told || (quantities[i].tile && dpt_runs_sorted_by(&r->runs, &quantities[i].figure));
    dpt_str_printf(&r->out, "<dl class=\"tiles\">\n");
    for (size_t i = 0; i < QUANTITIES; i++) {
        if (!told && quantities[i].figure.record == DPT_RECORD_BEST) {
            write_tile(r, &chosen);
            told = true;
        }
        write_tile(r, &quantities[i]);
    }
    dpt_str_printf(&r->out, "</dl>\n");
}

/* The run with the best value; r->runs.n: they are equal, cannot be compared, or there is no
 * better one. */
static size_t find_best(const struct dpt_page *r, const struct quantity *q)
{
    size_t best = r->runs.n;
    bool differ = false;

    for (size_t i = 0; i < r->runs.n && q->better != 0; i++) {
        const double value = value_of(r, q, i);

        if (isnan(value))
            continue;
        differ = differ || (best < r->runs.n && value != value_of(r, q, best));
        if (best == r->runs.n || q->better * value > q->better * value_of(r, q, best))
            best = i;
    }
    return differ && dpt_runs_alike(&r->runs, &q->figure) ? best : r->runs.n;
}

/* A run's figure in a table, with what has to be said of it. */
static void write_cell(struct dpt_page *r, const struct quantity *q, size_t run, bool best,
                       const char *style)
{
    const char *mark = dpt_runs_mark(&r->runs, run, &q->figure);
    char text[DPT_HTML_NUMBER];
    const char *shown = text_of(r, q, run, text);

    dpt_str_printf(&r->out, "<td class=\"%s%s\">", style, best ? " best" : "");
    dpt_html_element(&r->out, best ? "<strong>" : "", shown, best ? "</strong>" : "");
    if (mark[0] != '\0' && strcmp(shown, "–") != 0)
        dpt_str_printf(&r->out, " <small class=\"dim\">%s</small>", mark);
    dpt_str_printf(&r->out, "</td>");
}

static void write_quantity(struct dpt_page *r, const struct quantity *q)
{
    const size_t best = find_best(r, q);

    if (!is_known(r, q))
        return;
    dpt_str_printf(&r->out, "<tr><th scope=\"row\">%s</th>", q->name);
    for (size_t i = 0; i < r->runs.n; i++)
        write_cell(r, q, i, i == best, q->text != NULL ? "num" : "wrap");
    dpt_str_printf(&r->out, "</tr>\n");
}

/* Writes a dotted key in which a line may break after each part. */
static void write_path(struct dpt_page *r, const char *path)
{
    char part[128];

    while (*path != '\0') {
        const size_t n = strcspn(path, "._") + 1;
        const size_t length = n < sizeof part ? n : sizeof part - 1;

        snprintf(part, sizeof part, "%.*s", (int)length, path);
        dpt_html_text(&r->out, part);
        path += strlen(part);
        if (*path != '\0')
            dpt_str_printf(&r->out, "<wbr>");
    }
}

/* --- a row for each run ----------------------------------------------------------------------- */

static bool is_same(const struct dpt_page *r, const struct quantity *q)
{
    char text[DPT_HTML_NUMBER], first[DPT_HTML_NUMBER];

    for (size_t i = 1; i < r->runs.n; i++)
        if (strcmp(text_of(r, q, i, text), text_of(r, q, 0, first)) != 0)
            return false;
    return true;
}

static bool is_column(const struct dpt_page *r, const struct quantity *q, bool differing)
{
    return is_known(r, q) && !(differing && is_same(r, q));
}

static void write_run_row(struct dpt_page *r, size_t run, const struct quantity *list, size_t n,
                          bool differing)
{
    dpt_page_label(r, "<tr><th scope=\"row\">", run, "</th>");
    if (!differing) {
        dpt_str_printf(&r->out, "<td class=\"num\">");
        write_state(r, run);
        dpt_str_printf(&r->out, "</td>");
    }
    for (size_t i = 0; i < n; i++) {
        const bool best = !differing && find_best(r, &list[i]) == run;

        if (is_column(r, &list[i], differing))
            write_cell(r, &list[i], run, best, "num");
    }
    for (size_t k = 0; k < r->runs.jobs.n_keys && !differing; k++) {
        const struct dpt_job_key *key = &r->runs.jobs.keys[k];

        if (key->differs)
            dpt_html_element(&r->out, "<td class=\"key\">",
                             key->value[run] != NULL ? key->value[run] : "–", "</td>");
    }
    dpt_str_printf(&r->out, "</tr>\n");
}

/* Writes rows of what came out, the best first, with the keys in which jobs differ; or,
 * `differing`, of what is not the same for all runs. */
static void write_run_rows(struct dpt_page *r, const struct quantity *list, size_t n,
                           bool differing)
{
    dpt_str_printf(&r->out,
                   "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"the "
                   "runs\"><table class=\"compare many\">\n<thead><tr><th "
                   "scope=\"col\">run</th>%s",
                   differing ? "" : "<th scope=\"col\">state</th>");
    for (size_t i = 0; i < n; i++)
        if (is_column(r, &list[i], differing))
            dpt_str_printf(&r->out, "<th scope=\"col\">%s</th>", title_of(r, &list[i]));
    for (size_t k = 0; k < r->runs.jobs.n_keys && !differing; k++) {
        if (!r->runs.jobs.keys[k].differs)
            continue;
        dpt_str_printf(&r->out, "<th scope=\"col\"><code>");
        write_path(r, r->runs.jobs.keys[k].path);
        dpt_str_printf(&r->out, "</code></th>");
    }
    dpt_str_printf(&r->out, "</tr></thead>\n<tbody>");
    for (size_t i = 0; i < r->runs.n; i++) {
        /* A line is drawn between runs that cannot be compared. */
        if (!differing && i > 0 && r->runs.group[i] != r->runs.group[i - 1])
            dpt_str_printf(&r->out, "</tbody>\n<tbody>");
        write_run_row(r, differing ? i : r->runs.order[i], list, n, differing);
    }
    dpt_page_close_table(r);
}

/* What is the same for all of many runs, once. */
static void write_same(struct dpt_page *r, const struct quantity *list, size_t n)
{
    char text[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<div class=\"scroll\"><table class=\"compare\"><tbody>\n");
    for (size_t i = 0; i < n; i++)
        if (is_known(r, &list[i]) && is_same(r, &list[i])) {
            dpt_str_printf(&r->out, "<tr><th scope=\"row\">%s</th>", list[i].name);
            dpt_html_element(&r->out, "<td class=\"wrap\">", text_of(r, &list[i], 0, text),
                             "</td></tr>\n");
        }
    dpt_page_close_table(r);
}

/* --- the head --------------------------------------------------------------------------------- */

static void write_comparison(struct dpt_page *r)
{
    const char *order = dpt_runs_tell_order(&r->runs, &r->region), *said[DPT_MOST_REASONS];
    const size_t n = dpt_runs_tell_bases(&r->runs, r->labels, &r->region, said);
    struct quantity shown[1 + QUANTITIES] = {monitored(r, false)};
    bool told = r->runs.sorted == NULL;

    dpt_str_printf(&r->out, "<section id=\"comparison\"><h2>Comparison</h2>\n");
    /* What they are sorted by comes first, where no other column tells it. */
    for (size_t k = 0; k < QUANTITIES; k++)
        told = told || dpt_runs_sorted_by(&r->runs, &quantities[k].figure);
    memcpy(shown + !told, quantities, sizeof quantities);
    write_run_rows(r, shown, !told + (size_t)QUANTITIES, false);
    dpt_str_printf(&r->out, "<p class=\"dim note\">%s%s%s Bold: the best of a column.</p>\n",
                   order != NULL ? order : "", order != NULL ? " " : "",
                   dpt_runs_jobs_differ(&r->runs)
                       ? "The last columns are the keys in which the jobs differ."
                       : "The jobs are the same.");
    /* Figures without a best one: their runs measured different things. */
    for (size_t i = 0; i < n; i++)
        dpt_html_element(&r->out, "<p class=\"note basis\">", said[i], "</p>\n");
    r->out.failed = r->out.failed || r->region.failed;
    dpt_str_printf(&r->out, "</section>\n");
}

/* Writes which runs were started several times, and which metrics have damaged lines. */
static void write_remarks(struct dpt_page *r)
{
    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_history *h = &r->runs.at[i].history;

        if (h->n_starts < 2 && h->damaged == 0)
            continue;
        dpt_page_label(r, "<p>", i, "");
        if (h->n_starts > 1)
            dpt_str_printf(&r->out,
                           ": started %zu times, last from step %lld. Above is the last start.",
                           h->n_starts, (long long)h->starts[h->n_starts - 1].resumed_from);
        if (h->damaged > 0)
            dpt_str_printf(&r->out,
                           " %lld of %lld lines of metrics.jsonl are damaged and were passed over.",
                           (long long)h->damaged, (long long)h->lines);
        dpt_str_printf(&r->out, "</p>\n");
    }
}

void dpt_page_environment(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"environment\"><h2>Environment</h2>\n");
    if (dpt_page_many(r)) {
        write_same(r, facts, FACTS);
        write_run_rows(r, facts, FACTS, true);
    } else {
        dpt_str_printf(&r->out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                                "aria-label=\"environment\"><table class=\"compare\">\n");
        if (r->runs.n > 1) { /* a column for each run */
            dpt_str_printf(&r->out, "<thead><tr><td></td>");
            for (size_t i = 0; i < r->runs.n; i++)
                dpt_page_label(r, "<th scope=\"col\">", i, "</th>");
            dpt_str_printf(&r->out, "</tr></thead>\n");
        }
        dpt_str_printf(&r->out, "<tbody>\n");
        for (size_t i = 0; i < FACTS; i++)
            write_quantity(r, &facts[i]);
        dpt_page_close_table(r);
    }
    write_remarks(r);
    dpt_str_printf(&r->out, "</section>\n");
}

static const char *name_of(const struct dpt_page *r, size_t run)
{
    const struct dpt_history_start *start = dpt_history_start(&r->runs.at[run].history);

    return start != NULL && start->name[0] != '\0' ? start->name : r->labels[run];
}

static bool rare_recall(const struct dpt_history *h, enum dpt_history_split split)
{
    const struct dpt_history_eval *e =
        split == DPT_HISTORY_TEST ? dpt_history_last(h, split) : dpt_history_best(h, split);

    return e != NULL && !isnan(e->rare_recall);
}

/* Says where accuracy hides that a class is hardly found. */
static void write_uneven(struct dpt_page *r)
{
    size_t uneven = 0;

    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_page_predictions *v = &r->predictions[i];
        const struct dpt_history *h = &r->runs.at[i].history;

        uneven += (v->why == NULL && v->classes && v->scores.uneven) ||
                  rare_recall(h, DPT_HISTORY_TEST) || rare_recall(h, DPT_HISTORY_VALID);
    }
    if (uneven == 0)
        return;
    if (r->runs.n == 1 && r->predictions[0].why == NULL) {
        dpt_page_uneven(r, 0);
        return;
    }
    dpt_str_printf(&r->out, "<p class=\"warn open\"><b>Classes are imbalanced");
    if (r->runs.n > 1)
        dpt_str_printf(&r->out, " in %zu of %zu runs", uneven, r->runs.n);
    dpt_str_printf(&r->out, ":</b> accuracy can hide that a rare one is hardly found; balanced "
                            "accuracy, the mean of the classes' recalls, shows it.</p>\n");
}

void dpt_page_headline(struct dpt_page *r)
{
    const char *name = name_of(r, 0);
    bool alike = true;

    for (size_t i = 1; i < r->runs.n; i++)
        alike = alike && strcmp(name_of(r, i), name) == 0;
    dpt_html_element(&r->out, "<header>\n<p class=\"kind\">dptrain report</p>\n<h1>",
                     alike ? name : "", "");
    if (r->runs.n > 1)
        dpt_str_printf(&r->out, alike ? ": %zu runs" : "%zu runs compared", r->runs.n);
    dpt_str_printf(&r->out, "</h1>\n<p>");
    if (r->runs.n == 1) {
        write_state(r, 0);
        dpt_html_element(&r->out, " <span class=\"dim path\">", r->runs.at[0].history.folder,
                         "</span>");
    }
    for (size_t i = 0; i < r->runs.n && r->runs.n > 1 && !dpt_page_many(r); i++)
        dpt_page_label(r, "<span class=\"run\">", i, "</span> ");
    dpt_str_printf(&r->out, "</p>\n</header>\n");
    write_uneven(r);
    if (r->runs.n == 1)
        write_tiles(r);
    else
        write_comparison(r);
}
