/* Curves of the runs: loss, accuracy, learning rate, throughput, and how evenly the ranks work. */
#include <math.h>

#include "cmd/report/report.h"

enum {
    POINTS = 320,    /* of a drawn line */
    FEW_POINTS = 80, /* of many runs */
    RAW_RUNS = 2,    /* up to which raw values are drawn behind the smooth ones */
    RUN_LINES = 5,   /* that a run can have in a chart: raw, smooth, three of evaluations */
};

/* A curve that a train event has a value for: a member of it, and of an evaluation. */
struct curve {
    const char *id, *title, *unit;
    size_t train;
    double (*of)(const struct dpt_history_train *event); /* not NULL: computed instead */
    size_t eval;                                         /* 0: evaluations have none */
    bool smooth, may_log, percent, zero;
    double cut;
};

/* How much longer the slowest rank worked than the mean one. */
static double rank_imbalance(const struct dpt_history_train *e)
{
    return e->rank_mean > 0 ? e->rank_most / e->rank_mean - 1 : NAN;
}

// clang-format off
#define TRAIN(member) offsetof(struct dpt_history_train, member), NULL
#define EVAL(member)  offsetof(struct dpt_history_eval, member)
static const struct curve curves[] = {
    {"loss", "Loss", NULL, TRAIN(loss), EVAL(loss), true, true, false, false, 0},
    {"accuracy", "Accuracy", NULL, TRAIN(accuracy), EVAL(accuracy), true, false, true, false, 0.08},
    {"rate", "Learning rate", NULL, TRAIN(lr), 0, false, false, false, true, 0},
    {"throughput", "Throughput", "samples/s", TRAIN(rate), 0, true, false, false, true, 0},
    {"norm", "Norm of the gradient", "before clipping", TRAIN(norm), 0, true, true, false, false, 0},
};
static const struct curve imbalance = {
    "imbalance", "Imbalance", "slowest rank over the mean", 0, rank_imbalance, 0, true, false, true, true, 0,
};
// clang-format on

static double member(const void *event, size_t at)
{
    return *(const double *)((const char *)event + at);
}

/* A chart while its lines are collected. */
struct drawing {
    struct dpt_page *r;
    const struct curve *curve;
    struct dpt_line lines[DPT_PAGE_RUNS * RUN_LINES];
    size_t n;
    double *bad;
    size_t n_bad;
};

/* What the training steps give in a chart. */
static const char *train_part(const struct drawing *d)
{
    return d->curve->eval != 0 ? "train" : d->curve->title;
}

static void add_line(struct drawing *d, size_t run, const char *split, enum dpt_line_kind kind,
                     int colour, const struct dpt_series *points)
{
    const char *label = d->r->labels[run];
    const bool grouped = d->r->runs.n > 1 && d->curve->eval != 0;
    const char *name = grouped            ? dpt_region_printf(&d->r->region, "%s: %s", label, split)
                       : d->r->runs.n > 1 ? label
                                          : split;

    if (name == NULL) {
        d->r->out.failed = true;
        return;
    }
    if (points->n > 0)
        d->lines[d->n++] = (struct dpt_line){
            .name = name,
            .run = grouped ? label : NULL,
            .part = split,
            .kind = kind,
            .colour = colour,
            .points = *points,
        };
}

static size_t points_of(const struct dpt_page *r)
{
    return dpt_page_many(r) ? FEW_POINTS : POINTS;
}

static bool above_zero(const struct dpt_series *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->y[i] <= 0)
            return false;
    return true;
}

static bool add_train(struct drawing *d, size_t index)
{
    const struct dpt_history *h = &d->r->runs.at[index].history;
    struct dpt_region *region = &d->r->region;
    struct dpt_series all, mean, extremes, smooth;
    const int colour = (int)index;

    if (!dpt_series_open(&all, h->n_train, region))
        return false;
    for (size_t i = 0; i < h->n_train; i++) {
        const struct dpt_history_train *e = &h->train[i];
        const double y = d->curve->of != NULL ? d->curve->of(e) : member(e, d->curve->train);

        /* Steps of events that have the value, but as no number. */
        if (!dpt_series_fits(y) && d->curve == &curves[0] &&
            (d->n_bad == 0 || d->bad[d->n_bad - 1] != (double)e->step))
            d->bad[d->n_bad++] = (double)e->step;
        dpt_series_add(&all, (double)h->train[i].step, y);
    }
    if (!dpt_series_thin(&all, points_of(d->r), &mean, &extremes, region) ||
        !dpt_series_smooth(&mean, d->curve->may_log && above_zero(&mean), &smooth, region))
        return false;
    if (!d->curve->smooth || !dpt_series_noisy(&mean, &smooth))
        smooth = mean;
    else if (d->r->runs.n <= RAW_RUNS)
        add_line(d, index, train_part(d), DPT_LINE_RAW, colour, &extremes);
    add_line(d, index, train_part(d), DPT_LINE_SOLID, colour, &smooth);
    return true;
}

static bool add_evals(struct drawing *d, size_t index, enum dpt_history_split split)
{
    const struct dpt_history *h = &d->r->runs.at[index].history;
    struct dpt_series s, thin, extremes;
    /* One run's splits differ in colour, too; an epoch's means have that of the steps, and are
     * left out where several runs are drawn: dashed are then the lines of valid. */
    const int colour = d->r->runs.n == 1 ? (int)split : (int)index;

    if (split == DPT_HISTORY_EPOCH && d->r->runs.n > 1)
        return true;
    if (!dpt_series_open(&s, h->n_evals, &d->r->region))
        return false;
    for (size_t i = 0; i < h->n_evals; i++)
        if (h->evals[i].split == split)
            dpt_series_add(&s, (double)h->evals[i].step, member(&h->evals[i], d->curve->eval));
    if (!dpt_series_thin(&s, points_of(d->r), &thin, &extremes, &d->r->region))
        return false;
    add_line(d, index, dpt_history_splits[split],
             split == DPT_HISTORY_TEST && thin.n <= 3 ? DPT_LINE_MARK : DPT_LINE_DASHED, colour,
             &thin);
    return true;
}

/* What the image shows, in words. */
static const char *describe(const struct drawing *d)
{
    struct dpt_region *region = &d->r->region;
    const char *text = dpt_region_printf(region, "%s against step:", d->curve->title);
    char first[DPT_HTML_NUMBER], last[DPT_HTML_NUMBER];

    for (size_t i = 0; i < d->n && text != NULL; i++) {
        const struct dpt_series *s = &d->lines[i].points;

        if (d->lines[i].kind == DPT_LINE_RAW)
            continue;
        dpt_html_number(first, s->y[0], 4);
        dpt_html_number(last, s->y[s->n - 1], 4);
        text =
            s->n == 1
                ? dpt_region_printf(region, "%s %s %s at step %.0f;", text, d->lines[i].name, last,
                                    s->x[0])
                : dpt_region_printf(region, "%s %s from %s at step %.0f to %s at step %.0f;", text,
                                    d->lines[i].name, first, s->x[0], last, s->x[s->n - 1]);
    }
    return text;
}

/* Where all runs' losses are scaled, or their accuracy is that all labels are right, it says so. */
static const char *title_of(const struct dpt_page *r, const struct curve *curve)
{
    bool scaled = curve->eval == offsetof(struct dpt_history_eval, loss);
    bool labels = curve->eval == offsetof(struct dpt_history_eval, accuracy);

    for (size_t i = 0; i < r->runs.n; i++) {
        scaled = scaled && r->runs.at[i].history.scaled;
        labels = labels && r->runs.at[i].history.labels;
    }
    return scaled ? "Loss of scaled targets" : labels ? "Exact match" : curve->title;
}

static void draw(struct dpt_page *r, const struct curve *curve)
{
    struct drawing *d = dpt_region_alloc(&r->region, sizeof *d);
    size_t bad = 1;
    bool fine;

    for (size_t i = 0; i < r->runs.n; i++)
        bad += r->runs.at[i].history.n_train;
    if (d != NULL)
        *d = (struct drawing){
            .r = r, .curve = curve, .bad = dpt_region_alloc(&r->region, bad * sizeof *d->bad)};
    fine = d != NULL && d->bad != NULL;
    for (size_t i = 0; i < r->runs.n && fine; i++) {
        fine = add_train(d, i);
        for (int split = 0; split < DPT_HISTORY_SPLITS && fine && curve->eval != 0; split++)
            fine = add_evals(d, i, (enum dpt_history_split)split);
    }
    if (fine) {
        const struct dpt_chart chart = {
            .id = curve->id,
            .title = title_of(r, curve),
            .x_label = "step",
            .y_label = curve->unit,
            .about = describe(d),
            .lines = d->lines,
            .n = d->n,
            .log = curve->may_log && dpt_chart_wants_log(d->lines, d->n),
            .percent = curve->percent,
            .zero = curve->zero,
            .several = r->runs.n > 1,
            .told = dpt_page_many(r),
            .cut = curve->cut,
            .bad = d->bad,
            .n_bad = d->n_bad,
        };

        dpt_chart_write(&chart, &r->out);
    }
    r->out.failed = r->out.failed || !fine;
}

void dpt_page_curves(struct dpt_page *r)
{
    size_t events = 0;

    static const struct dpt_figure losses[] = {
        DPT_OF_TRAIN(loss, DPT_OF_ALL, DPT_ON_LOSS),
        DPT_OF_EVAL(VALID, REAL, loss, DPT_OF_ALL, DPT_ON_LOSS)};

    dpt_str_printf(&r->out, "<section id=\"curves\"><h2>Curves</h2>\n");
    if (!dpt_runs_alike(&r->runs, &losses[0]) || !dpt_runs_alike(&r->runs, &losses[1]))
        dpt_str_printf(&r->out, "<p class=\"note basis\">The losses of these runs are not "
                                "comparable; <a href=\"#comparison\">above</a> is why.</p>\n");
    for (size_t i = 0; i < r->runs.n; i++)
        events += r->runs.at[i].history.n_train + r->runs.at[i].history.n_evals;
    if (events == 0)
        dpt_str_printf(&r->out, "<p class=\"missing\">No step is logged yet.</p>\n");
    if (events > 0 && dpt_page_many(r)) {
        dpt_str_printf(&r->out, "<ul class=\"legend runs\">\n");
        for (size_t i = 0; i < r->runs.n; i++)
            dpt_chart_write_run(&r->out, i, r->labels[i]);
        dpt_str_printf(&r->out, "</ul>\n");
    }
    if (events > 0) {
        dpt_str_printf(&r->out, "<div class=\"charts\">\n");
        for (size_t i = 0; i < sizeof curves / sizeof curves[0]; i++)
            draw(r, &curves[i]);
        dpt_str_printf(&r->out, "</div>");
    }
    dpt_str_printf(&r->out, "</section>\n");
}

/* Whether any event has the work of its ranks. */
static bool tells_ranks(const struct dpt_history *h)
{
    for (size_t i = 0; i < h->n_train; i++)
        if (h->train[i].rank_mean > 0)
            return true;
    return false;
}

/* How long each rank of the newest start worked, as bars from the shortest on. */
static void write_bars(struct dpt_page *r, size_t index)
{
    const struct dpt_history_start *s = dpt_history_start(&r->runs.at[index].history);
    double sum = 0, most = 0;
    char text[DPT_HTML_NUMBER];

    if (s == NULL || s->rank_seconds == NULL || s->n_rank_seconds < 2 || dpt_page_has_mesh(s))
        return;
    for (size_t i = 0; i < s->n_rank_seconds; i++) {
        sum += s->rank_seconds[i];
        most = fmax(most, s->rank_seconds[i]);
    }
    if (!(most > 0))
        return;
    dpt_str_printf(&r->out, "<figure class=\"bars\"><figcaption>Work of each rank ");
    if (r->runs.n > 1)
        dpt_page_label(r, "", index, "");
    dpt_str_printf(&r->out,
                   "<span>seconds, all logged steps together</span></figcaption><table>\n");
    for (size_t i = 0; i < s->n_rank_seconds; i++) {
        const double seconds = s->rank_seconds[i];

        dpt_str_printf(&r->out,
                       "<tr><th scope=\"row\">rank %zu</th><td class=\"bar\"><svg "
                       "viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
                       "aria-hidden=\"true\"><rect class=\"fill k%zu\" width=\"%.1f\" "
                       "height=\"10\"/></svg></td><td class=\"num\">%s</td>"
                       "<td class=\"num dim\">%+.1f\u00a0%%</td></tr>\n",
                       i, r->runs.n > 1 ? index % DPT_CHART_COLOURS : 0, 100 * seconds / most,
                       dpt_html_seconds(text, seconds),
                       100 * (seconds * (double)s->n_rank_seconds / sum - 1));
    }
    dpt_str_printf(&r->out, "</table></figure>\n");
}

/* Seconds for which the ranks waited for their slowest, on average. */
static void write_waiting(struct dpt_page *r, size_t index)
{
    const struct dpt_history *h = &r->runs.at[index].history;
    double waited = 0, mean = 0;
    char text[DPT_HTML_NUMBER];

    for (size_t i = 0; i < h->n_train; i++) {
        if (!(h->train[i].rank_mean > 0))
            continue;
        waited += h->train[i].rank_most - h->train[i].rank_mean;
        mean += h->train[i].rank_mean;
    }
    dpt_page_prefix(r, index);
    dpt_str_printf(&r->out,
                   "A rank worked %s on its part of the logged steps on average, and waited at "
                   "least %.1f\u00a0%% of that for the slowest.<br>\n",
                   dpt_html_seconds(text, mean), 100 * waited / mean);
}

void dpt_page_ranks(struct dpt_page *r)
{
    bool several = false, any = false;

    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_history_start *s = dpt_history_start(&r->runs.at[i].history);

        several = several || s == NULL || s->ranks != 1;
    }
    if (!several) /* nothing was shared out */
        return;
    dpt_str_printf(&r->out, "<section id=\"ranks\"><h2>Ranks</h2>\n<p>");
    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_history_start *s = dpt_history_start(&r->runs.at[i].history);

        if (tells_ranks(&r->runs.at[i].history)) {
            write_waiting(r, i);
            any = true;
        } else if (!dpt_page_many(r)) {
            dpt_page_prefix(r, i);
            dpt_str_printf(&r->out, "<span class=\"%s\">%s</span><br>\n",
                           s != NULL && s->ranks == 1 ? "dim" : "missing",
                           s != NULL && s->ranks == 1 ? "One rank, so nothing was shared out."
                                                      : "What each rank did is not in the metrics; "
                                                        "it is if log.every counts steps or "
                                                        "epochs.");
        }
    }
    dpt_str_printf(&r->out, "</p>\n");
    if (any) {
        dpt_str_printf(&r->out, "<div class=\"charts\">\n");
        draw(r, &imbalance);
        for (size_t i = 0; i < r->runs.n && !dpt_page_many(r); i++)
            write_bars(r, i);
        dpt_str_printf(&r->out, "</div>");
    }
    for (size_t i = 0; i < r->runs.n && !dpt_page_many(r); i++)
        if (dpt_page_has_mesh(dpt_history_start(&r->runs.at[i].history)))
            dpt_page_mesh(r, i);
    dpt_str_printf(&r->out, "</section>\n");
}
