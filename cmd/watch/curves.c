#include "cmd/watch/curves.h"

#include <math.h>
#include <string.h>

#include "cmd/watch/plot.h"
#include "core/base/memory.h"

static const char bold[] = "\033[1m";
static const char cyan[] = "\033[36m", yellow[] = "\033[33m", magenta[] = "\033[35m";

static double train_loss(const struct dpt_history_train *t)
{
    return t->loss;
}

static double eval_loss(const struct dpt_history_eval *e)
{
    return e->loss;
}

static double train_accuracy(const struct dpt_history_train *t)
{
    return t->accuracy;
}

static double eval_accuracy(const struct dpt_history_eval *e)
{
    return e->accuracy;
}

const struct dpt_view_curve_type dpt_view_curves[DPT_VIEW_CURVES] = {
    {"loss", true, 1, 0, train_loss, eval_loss},
    {"accuracy", false, 1, 1, train_accuracy, eval_accuracy},
};

static const struct {
    char letter;
    const char *ink;
} marks[DPT_HISTORY_SPLITS] = {{'+', cyan}, {'o', yellow}, {'x', magenta}};

/* All points: of the train events, then of the splits. */
struct points {
    struct dpt_plot_point *at;
    size_t train, split[DPT_HISTORY_SPLITS]; /* how many of each */
    size_t n;
};

static bool collect(const struct dpt_history *h, const struct dpt_view_curve_type *curve,
                    struct points *p)
{
    memset(p, 0, sizeof *p);
    p->at = dpt_alloc_array(h->n_train + h->n_evals + 1, sizeof *p->at);
    if (p->at == NULL)
        return false;
    for (size_t i = 0; i < h->n_train; i++)
        p->at[p->n++] = (struct dpt_plot_point){.x = (double)h->train[i].step,
                                                .y = curve->of_train(&h->train[i])};
    p->train = p->n;
    for (int split = 0; split < DPT_HISTORY_SPLITS; split++)
        for (size_t i = 0; i < h->n_evals; i++) {
            if ((int)h->evals[i].split != split)
                continue;
            p->at[p->n++] = (struct dpt_plot_point){.x = (double)h->evals[i].step,
                                                    .y = curve->of_eval(&h->evals[i])};
            p->split[split]++;
        }
    return true;
}

static void view_legend(const struct dpt_view *v, const struct dpt_view_curve_type *curve,
                        const struct points *p, const struct dpt_plot *plot, struct dpt_str *out)
{
    struct dpt_str line = {0};

    dpt_str_printf(&line, "%s%s%s%s   %s%s train%s", bold, curve->title, DPT_PLOT_PLAIN,
                   plot->logarithmic ? " (logarithmic)" : "", cyan, v->ascii ? ":" : "⠒",
                   DPT_PLOT_PLAIN);
    for (int split = 0; split < DPT_HISTORY_SPLITS; split++)
        if (p->split[split] > 0)
            dpt_str_printf(&line, "   %s%c %s%s", marks[split].ink, marks[split].letter,
                           dpt_history_splits[split], DPT_PLOT_PLAIN);
    if (line.text != NULL)
        dpt_view_add(v, out, line.text);
    dpt_str_release(&line);
}

static void draw(const struct dpt_view *v, const struct dpt_view_curve_type *curve,
                 const struct points *p, struct dpt_plot *plot, struct dpt_str *out)
{
    const struct dpt_plot_point *at = p->at + p->train;
    struct dpt_str line = {0};

    view_legend(v, curve, p, plot, out);
    dpt_plot_curve(plot, p->at, p->train);
    for (int split = 0; split < DPT_HISTORY_SPLITS; at += p->split[split++])
        dpt_plot_marks(plot, at, p->split[split], marks[split].letter, marks[split].ink);
    for (int row = 0; row < plot->rows; row++) {
        dpt_plot_row(plot, row, cyan, &line);
        if (line.text != NULL)
            dpt_view_add(v, out, line.text);
        dpt_str_clear(&line);
    }
    dpt_str_release(&line);
}

void dpt_view_curve(const struct dpt_view *v, const struct dpt_history *h,
                    const struct dpt_view_curve_type *curve, int rows, struct dpt_str *out)
{
    struct dpt_plot plot = {.columns = v->columns,
                            .rows = rows,
                            .ascii = v->ascii,
                            .color = v->color,
                            .logarithmic = curve->logarithmic,
                            .x_most = (double)dpt_history_step(h),
                            .y_least = curve->least,
                            .y_most = curve->most};
    struct points points;

    if (!collect(h, curve, &points)) {
        out->failed = true;
        return;
    }
    dpt_plot_range(&plot, points.at, points.n);
    if (dpt_plot_open(&plot))
        draw(v, curve, &points, &plot, out);
    else
        out->failed = true;
    dpt_plot_close(&plot);
    dpt_free(points.at);
}
