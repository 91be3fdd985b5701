/* Precision against recall, by the threshold from which on a class is said. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/job_command.h"
#include "cmd/report/report.h"

enum { POINTS = 256, FEW_POINTS = 32 }; /* of a curve, by their recall; of many runs */

static const double wished[DPT_PAGE_WISHED] = {0.5, 0.8, 0.9, 0.95, 0.99};

/* A class, and what orders the classes. */
struct candidate {
    int32_t class;
    double recall;
};

static int hardest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->recall != y->recall)
        return x->recall > y->recall ? 1 : -1;
    return x->class - y->class;
}

static int by_number(const void *a, const void *b)
{
    return ((const struct candidate *)a)->class - ((const struct candidate *)b)->class;
}

/* Chooses the classes whose curves are drawn: of two the positive one, else the hardest ones that
 * have samples. Returns how many. */
static int choose(const struct dpt_page_predictions *v, struct candidate *all)
{
    int n = 0;

    if (v->scores.positive >= 0) {
        all[0].class = v->scores.positive;
        return 1;
    }
    for (int32_t k = 0; k < v->outputs; k++)
        if (v->class[k].weight > 0)
            all[n++] = (struct candidate){k, v->class[k].recall};
    qsort(all, (size_t)n, sizeof *all, hardest_first);
    n = n < DPT_CHART_COLOURS ? n : DPT_CHART_COLOURS;
    qsort(all, (size_t)n, sizeof *all, by_number);
    return n;
}

/* Keeps of a curve as many points as can be told from each other. */
static bool thin(const struct dpt_curve *curve, int points, struct dpt_series *to,
                 struct dpt_region *region)
{
    double next = 0;

    if (!dpt_series_open(to, (size_t)points + 2, region))
        return false;
    for (int64_t i = 0; i < curve->n; i++) {
        const struct dpt_curve_point *at = &curve->at[i];

        if (at->recall < next && i + 1 < curve->n)
            continue;
        dpt_series_add(to, at->recall, at->precision);
        next = at->recall + 1.0 / points;
    }
    return true;
}

enum dpt_status dpt_page_take_curves(struct dpt_page *r, struct dpt_page_predictions *v,
                                     const struct dpt_split *split, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct candidate *all = dpt_region_alloc(&r->region, (size_t)v->outputs * sizeof *all);
    struct dpt_curve curve = {0};
    int n;

    if (all == NULL)
        return dpt_fail_memory(err, "the curves", (double)v->outputs);
    if (v->said.width <= (v->labels ? 0 : DPT_SAID_LOGITS))
        return DPT_OK; /* too many samples times classes */
    n = choose(v, all);
    for (int i = 0; i < n; i++) {
        struct dpt_page_curve *to = &v->curves[v->n_curves];

        DPT_TRY(dpt_curve_open(&curve, split->set, &split->sampler, &v->said, v->labels,
                               all[i].class, err));
        if (curve.n > 0) {
            to->class = all[i].class;
            to->average_precision = curve.average_precision;
            if (!thin(&curve, dpt_page_many(r) ? FEW_POINTS : POINTS, &to->points, &r->region))
                DPT_TRY(dpt_fail_memory(err, "the curves", POINTS));
            for (int k = 0; k < DPT_PAGE_WISHED; k++)
                to->wished[k] = dpt_curve_find(&curve, wished[k]);
            v->n_curves++;
        }
        dpt_free(curve.at);
        curve.at = NULL;
    }
out:
    dpt_free(curve.at);
    return status;
}

/* Writes one class's table of thresholds and the recall that each gives. */
static void write_thresholds(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const struct dpt_page_curve *curve = &v->curves[0];
    /* A single label is class 1 of two. */
    const int32_t class = v->labels && v->called.n == 0 ? 1 : curve->class;
    struct dpt_str text = {0};

    dpt_page_open_table(r, "pairs",
                        "<caption>The largest threshold with so much recall</caption>\n",
                        (const char *const[]){"recall", "precision", "option of predict", NULL});
    for (int k = 0; k < DPT_PAGE_WISHED; k++) {
        const struct dpt_operating_point *at = &curve->wished[k];

        if (k > 0 && at->recall == at[-1].recall)
            continue;
        dpt_str_clear(&text);
        dpt_threshold_tell(&v->called, class, at->threshold, &text);
        dpt_str_printf(&r->out, "<tr><td>%.4f</td><td>%.4f</td>", at->recall, at->precision);
        dpt_html_element(&r->out, "<td><code>--threshold ", text.failed ? "" : text.text,
                         "</code></td></tr>\n");
    }
    dpt_page_close_table(r);
    r->out.failed = r->out.failed || text.failed;
    dpt_str_release(&text);
}

void dpt_page_recall(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const size_t run = (size_t)(v - r->predictions);
    struct dpt_line lines[DPT_CHART_COLOURS];
    char id[32];
    struct dpt_chart chart = {
        .id = id,
        .title = "Precision and recall",
        .x_label = "recall",
        .y_label = "precision",
        .about = "precision against recall, by the threshold for a class",
        .lines = lines,
        .n = (size_t)v->n_curves,
        .percent = true,
        .zero = true,
    };

    for (int i = 0; i < v->n_curves; i++) {
        const struct dpt_page_curve *curve = &v->curves[i];
        char number[DPT_CLASS_NUMBER];

        lines[i] = (struct dpt_line){
            .name = dpt_region_printf(&r->region, "%s, average precision %.4f",
                                      dpt_class_text(&v->called, curve->class, number),
                                      curve->average_precision),
            .kind = DPT_LINE_SOLID,
            .colour = v->n_curves == 1 ? (int)run : i,
            .points = curve->points,
        };
        if (lines[i].name == NULL) {
            r->out.failed = true;
            return;
        }
    }
    if (v->n_curves == 0)
        return;
    snprintf(id, sizeof id, "recall%zu", run);
    dpt_str_printf(&r->out,
                   "<h3>Other thresholds</h3>\n"
                   "<p class=\"dim\">Results if a class is predicted from another probability "
                   "on%s.</p>\n"
                   "<div class=\"beside\">\n",
                   v->n_curves < v->outputs && v->outputs > 2 ? "; the hardest ones" : "");
    dpt_chart_write(&chart, &r->out);
    if (v->n_curves == 1)
        write_thresholds(r, v);
    dpt_str_printf(&r->out, "</div>\n");
}
