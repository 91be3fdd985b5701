/* The head of the page: what came out, and of several runs how they differ. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/report/html.h"
#include "cmd/report/report.h"

const char *dpt_page_state(const struct dpt_page_run *run, bool *good, char *buf, size_t size)
{
    const struct dpt_history *h = &run->history;
    const struct dpt_history_end *end = dpt_history_end(h);
    const struct dpt_history_start *start = dpt_history_start(h);

    *good = dpt_history_done(h);
    if (*good)
        snprintf(buf, size, "done");
    else if (end != NULL)
        snprintf(buf, size, "%s", end->reason);
    else if (start != NULL && start->steps > 0)
        snprintf(buf, size, "not finished: step %lld of %lld", (long long)dpt_history_step(h),
                 (long long)start->steps);
    else
        snprintf(buf, size, "not finished: step %lld", (long long)dpt_history_step(h));
    return buf;
}

static double eval_of(const struct dpt_history_eval *e, bool accuracy)
{
    return e == NULL ? NAN : accuracy ? e->accuracy : e->loss;
}

static double test_accuracy(const struct dpt_page_run *run)
{
    return eval_of(dpt_history_last(&run->history, DPT_HISTORY_TEST), true);
}

static double test_loss(const struct dpt_page_run *run)
{
    return eval_of(dpt_history_last(&run->history, DPT_HISTORY_TEST), false);
}

static double best_accuracy(const struct dpt_page_run *run)
{
    return eval_of(dpt_history_best(&run->history, DPT_HISTORY_VALID), true);
}

static double best_loss(const struct dpt_page_run *run)
{
    const struct dpt_history_eval *e = dpt_history_best(&run->history, DPT_HISTORY_VALID);

    return e != NULL && isnan(e->accuracy) ? e->loss : NAN;
}

static double best_step(const struct dpt_page_run *run)
{
    const struct dpt_history_eval *e = dpt_history_best(&run->history, DPT_HISTORY_VALID);

    return e != NULL ? (double)e->step : NAN;
}

static double train_loss(const struct dpt_page_run *run)
{
    const struct dpt_history *h = &run->history;

    return h->n_train > 0 ? h->train[h->n_train - 1].loss : NAN;
}

static double epoch_loss(const struct dpt_page_run *run)
{
    return eval_of(dpt_history_last(&run->history, DPT_HISTORY_EPOCH), false);
}

static double epoch_accuracy(const struct dpt_page_run *run)
{
    return eval_of(dpt_history_last(&run->history, DPT_HISTORY_EPOCH), true);
}

static double rate(const struct dpt_page_run *run)
{
    return dpt_history_rate(&run->history);
}

static double seconds(const struct dpt_page_run *run)
{
    return dpt_history_seconds(&run->history);
}

static double steps(const struct dpt_page_run *run)
{
    return (double)dpt_history_step(&run->history);
}

static double ranks(const struct dpt_page_run *run)
{
    const struct dpt_history_start *s = dpt_history_start(&run->history);

    return s != NULL && s->ranks > 0 ? (double)s->ranks : NAN;
}

static double parameters(const struct dpt_page_run *run)
{
    const struct dpt_history_start *s = dpt_history_start(&run->history);

    return s != NULL && s->parameters >= 0 ? (double)s->parameters : NAN;
}

static const char *four_digits(char *buf, double value)
{
    return dpt_html_number(buf, value, 4);
}

/* What is told of every run; better: 1 where more is, -1 where less is. */
static const struct quantity {
    const char *name;
    double (*of)(const struct dpt_page_run *run);
    const char *(*text)(char *buf, double value);
    int better;
    bool tile; /* one of the few figures of a single run's head */
} quantities[] = {
    {"test accuracy", test_accuracy, dpt_html_percent, 1, true},
    {"test loss", test_loss, four_digits, -1, true},
    {"best valid accuracy", best_accuracy, dpt_html_percent, 1, true},
    {"best valid loss", best_loss, four_digits, -1, true},
    {"best at step", best_step, dpt_html_count, 0, false},
    {"last training loss", train_loss, four_digits, 0, true},
    {"last epoch's loss", epoch_loss, four_digits, 0, false},
    {"last epoch's accuracy", epoch_accuracy, dpt_html_percent, 0, false},
    {"samples/s", rate, dpt_html_count, 1, true},
    {"duration", seconds, dpt_html_seconds, 0, true},
    {"steps", steps, dpt_html_count, 0, true},
    {"ranks", ranks, dpt_html_count, 0, false},
    {"parameters", parameters, dpt_html_count, 0, true},
};
enum { QUANTITIES = sizeof quantities / sizeof quantities[0] };

void dpt_page_label(struct dpt_page *r, size_t run)
{
    if (r->n > 1)
        dpt_str_printf(&r->out, "<span class=\"swatch k%zu\" aria-hidden=\"true\"></span>",
                       run % DPT_CHART_COLOURS);
    dpt_html_text(&r->out, r->runs[run].label);
}

static void write_state(struct dpt_page *r, const struct dpt_page_run *run)
{
    char text[DPT_ERROR_TEXT];
    bool good;

    dpt_page_state(run, &good, text, sizeof text);
    dpt_str_printf(&r->out, "<span class=\"state %s\"><span aria-hidden=\"true\">%s</span>\u00a0",
                   good ? "good" : "open", good ? "✓" : "!");
    dpt_html_text(&r->out, text);
    dpt_str_printf(&r->out, "</span>");
}

static void write_tiles(struct dpt_page *r)
{
    char text[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<dl class=\"tiles\">\n");
    for (size_t i = 0; i < QUANTITIES; i++) {
        const double value = quantities[i].of(&r->runs[0]);

        if (quantities[i].tile && !isnan(value))
            dpt_str_printf(&r->out, "<div><dt>%s</dt><dd>%s</dd></div>\n", quantities[i].name,
                           quantities[i].text(text, value));
    }
    dpt_str_printf(&r->out, "</dl>\n");
}

/* Which run has the best value; r->n: they are equal, or there is no better one. */
static size_t find_best(const struct dpt_page *r, const struct quantity *q)
{
    size_t best = r->n;
    bool differ = false;

    for (size_t i = 0; i < r->n && q->better != 0; i++) {
        const double value = q->of(&r->runs[i]);

        if (isnan(value))
            continue;
        differ = differ || (best < r->n && value != q->of(&r->runs[best]));
        if (best == r->n || q->better * value > q->better * q->of(&r->runs[best]))
            best = i;
    }
    return differ ? best : r->n;
}

static void write_quantity(struct dpt_page *r, const struct quantity *q)
{
    const size_t best = find_best(r, q);
    char text[DPT_HTML_NUMBER];
    bool known = false;

    for (size_t i = 0; i < r->n; i++)
        known = known || !isnan(q->of(&r->runs[i]));
    if (!known)
        return;
    dpt_str_printf(&r->out, "<tr><th scope=\"row\">%s</th>", q->name);
    for (size_t i = 0; i < r->n; i++)
        dpt_str_printf(&r->out,
                       i == best ? "<td class=\"num best\"><strong>%s</strong></td>"
                                 : "<td class=\"num\">%s</td>",
                       q->text(text, q->of(&r->runs[i])));
    dpt_str_printf(&r->out, "</tr>\n");
}

/* A dotted key, that may go on in the next line behind each part. */
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

/* Returns how many do. */
static int write_differences(struct dpt_page *r)
{
    int n = 0;

    for (size_t k = 0; k < r->jobs.n_keys; k++) {
        const struct dpt_job_key *key = &r->jobs.keys[k];

        if (!key->differs)
            continue;
        n++;
        dpt_str_printf(&r->out, "<tr><th scope=\"row\"><code>");
        write_path(r, key->path);
        dpt_str_printf(&r->out, "</code></th>");
        for (size_t run = 0; run < r->n; run++) {
            dpt_str_printf(&r->out, "<td class=\"num\">");
            dpt_html_text(&r->out, key->value[run] != NULL ? key->value[run] : "–");
            dpt_str_printf(&r->out, "</td>");
        }
        dpt_str_printf(&r->out, "</tr>\n");
    }
    return n;
}

static void write_comparison(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"comparison\"><h2>Comparison</h2>\n<div class=\"scroll\" "
                            "tabindex=\"0\" role=\"region\" aria-label=\"comparison of the runs\">"
                            "<table class=\"compare\">\n<thead><tr><td></td>");
    for (size_t i = 0; i < r->n; i++) {
        dpt_str_printf(&r->out, "<th scope=\"col\">");
        dpt_page_label(r, i);
        dpt_str_printf(&r->out, "</th>");
    }
    dpt_str_printf(&r->out,
                   "</tr></thead>\n<tbody class=\"diff\"><tr class=\"head\"><th "
                   "scope=\"rowgroup\" colspan=\"%zu\">what differs in the jobs</th></tr>",
                   r->n + 1);
    if (write_differences(r) == 0)
        dpt_str_printf(&r->out, "<tr><td colspan=\"%zu\" class=\"dim\">nothing</td></tr>",
                       r->n + 1);
    dpt_str_printf(&r->out,
                   "</tbody>\n<tbody><tr class=\"head\"><th scope=\"rowgroup\" "
                   "colspan=\"%zu\">what came out</th></tr>\n<tr><th scope=\"row\">state</th>",
                   r->n + 1);
    for (size_t i = 0; i < r->n; i++) {
        dpt_str_printf(&r->out, "<td class=\"num wrap\">");
        write_state(r, &r->runs[i]);
        dpt_str_printf(&r->out, "</td>");
    }
    dpt_str_printf(&r->out, "</tr>\n");
    for (size_t i = 0; i < QUANTITIES; i++)
        write_quantity(r, &quantities[i]);
    dpt_str_printf(&r->out, "</tbody></table></div>\n<p class=\"dim note\">Bold: the best of a "
                            "row.</p></section>\n");
}

static const char *name_of(const struct dpt_page_run *run)
{
    const struct dpt_history_start *start = dpt_history_start(&run->history);

    return start != NULL && start->name[0] != '\0' ? start->name : run->label;
}

void dpt_page_headline(struct dpt_page *r)
{
    const struct dpt_page_run *run = &r->runs[0];
    const char *name = name_of(run);
    bool alike = true;

    dpt_str_printf(&r->out, "<header>\n<p class=\"kind\">dptrain report</p>\n<h1>");
    for (size_t i = 1; i < r->n; i++)
        alike = alike && strcmp(name_of(&r->runs[i]), name) == 0;
    if (alike)
        dpt_html_text(&r->out, name);
    if (r->n > 1)
        dpt_str_printf(&r->out, alike ? ": %zu runs" : "%zu runs compared", r->n);
    dpt_str_printf(&r->out, "</h1>\n<p>");
    if (r->n == 1) {
        write_state(r, run);
        dpt_str_printf(&r->out, " <span class=\"dim path\">");
        dpt_html_text(&r->out, run->history.folder);
        dpt_str_printf(&r->out, "</span>");
    }
    for (size_t i = 0; i < r->n && r->n > 1; i++) {
        dpt_str_printf(&r->out, "<span class=\"run\">");
        dpt_page_label(r, i);
        dpt_str_printf(&r->out, "</span> ");
    }
    dpt_str_printf(&r->out, "</p>\n</header>\n");
    if (r->n == 1)
        write_tiles(r);
    else
        write_comparison(r);
}
