/* The models' predictions of the test data: how good they are, and the most wrong samples. */
#include <math.h>
#include <string.h>

#include "cmd/report/report.h"
#include "data/pictures/picture.h"

enum { FEW_PICTURES = 10 }; /* of each of many runs */

static void write_picture(struct dpt_page *r, const struct dpt_page_predictions *v,
                          const struct dpt_page_wrong *w)
{
    struct dpt_str png = {0};

    dpt_str_printf(&r->out, "<figure><img alt=\"sample %lld", (long long)w->sample.number);
    dpt_page_class(r, v, ": true class ", w->label, ", taken for ");
    dpt_page_class(r, v, "", w->chosen, " with probability ");
    dpt_str_printf(&r->out, "%.2f\" width=\"%d\" height=\"%d\" src=\"data:image/png;base64,",
                   (double)w->p_chosen, v->width, v->height);
    dpt_picture_write(&png, w->pixels, v->width, v->height, v->channels);
    dpt_str_base64(&r->out, png.text, png.length);
    r->out.failed = r->out.failed || png.failed;
    dpt_str_release(&png);
    dpt_page_class(r, v, "\"><figcaption><b>", w->label, "</b> → ");
    dpt_page_class(r, v, "<b class=\"off\">", w->chosen, "</b> ");
    dpt_str_printf(&r->out, "<small>%.1f\u00a0%%</small> <small class=\"dim\">#%lld</small>",
                   100 * (double)w->p_chosen, (long long)w->sample.number);
    if (w->sample.name != NULL) {
        const char *slash = strrchr(w->sample.name, '/');
        const int folder = slash != NULL ? (int)(slash + 1 - w->sample.name) : 0;
        const char *shown = dpt_region_printf(&r->region, "%.*s", folder, w->sample.name);

        /* A line may break after the folder. */
        dpt_html_element(&r->out, " <small class=\"dim\">", shown != NULL ? shown : "", "<wbr>");
        dpt_html_element(&r->out, "", w->sample.name + folder, "</small>");
    }
    dpt_str_printf(&r->out, "</figcaption></figure>\n");
}

static void write_list(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    dpt_page_open_table(
        r, "pairs", "",
        (const char *const[]){"sample", "true", "taken for", "probability", "of the truth", NULL});
    for (int i = 0; i < v->n_wrong; i++) {
        dpt_page_row(r, &v->wrong[i].sample);
        dpt_page_class(r, v, "<td>", v->wrong[i].label, "</td>");
        dpt_page_class(r, v, "<td>", v->wrong[i].chosen, "</td>");
        dpt_str_printf(&r->out, "<td>%.3g</td><td>%.2g</td></tr>\n", (double)v->wrong[i].p_chosen,
                       (double)v->wrong[i].p_label);
    }
    dpt_page_close_table(r);
}

static void write_wrongs(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    char digits[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<h3>Most wrong</h3>\n");
    if (v->all_wrong == 0) {
        dpt_str_printf(&r->out, "<p>None is wrong.</p>\n");
        return;
    }
    dpt_str_printf(&r->out,
                   "<p class=\"dim\">%d of %s wrong %s samples, the largest losses first: true "
                   "class → the model's, how sure it is of that, the sample's number%s.</p>\n",
                   v->n_wrong, dpt_html_count(digits, (double)v->all_wrong), v->split,
                   v->n_wrong > 0 && v->wrong[0].sample.name != NULL ? " and name" : "");
    if (v->n_wrong == 0 || v->wrong[0].pixels == NULL) {
        write_list(r, v);
        return;
    }
    dpt_str_printf(&r->out, "<div class=\"sheet\">\n");
    for (int i = 0; i < v->n_wrong && i < (dpt_page_many(r) ? FEW_PICTURES : DPT_PAGE_WORST); i++)
        if (v->wrong[i].pixels != NULL)
            write_picture(r, v, &v->wrong[i]);
    dpt_str_printf(&r->out, "</div>\n");
}

/* Says so where the metrics have another accuracy for the same weights and samples. */
static void compare_accuracy(struct dpt_page *r, size_t index)
{
    const struct dpt_page_predictions *v = &r->predictions[index];
    const struct dpt_history *h = &r->runs.at[index].history;
    const double accuracy = v->accuracy;
    char text[DPT_HTML_NUMBER];

    for (size_t i = 0; i < h->n_evals; i++) {
        const struct dpt_history_eval *e = &h->evals[i];

        if (e->step != v->step || strcmp(dpt_history_splits[e->split], v->split) != 0 ||
            (e->samples == v->samples && fabs(e->accuracy - accuracy) < 2e-3))
            continue;
        dpt_str_printf(&r->out,
                       "<p class=\"missing\">The run itself had %s at this step: these are other "
                       "samples, or they are prepared otherwise.</p>\n",
                       dpt_html_percent(text, e->accuracy));
        return;
    }
}

static void write_predictions(struct dpt_page *r, size_t index)
{
    const struct dpt_page_predictions *v = &r->predictions[index];
    char right[DPT_HTML_NUMBER], all[DPT_HTML_NUMBER], share[DPT_HTML_NUMBER];

    if (v->why != NULL) {
        dpt_html_element(&r->out, "<p class=\"missing\">No predictions: ", v->why, "</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<p>");
    if (v->labels)
        dpt_str_printf(&r->out, "%s of %s %s samples with all labels right (exact match), ",
                       dpt_html_count(right, (double)v->correct),
                       dpt_html_count(all, (double)v->samples), v->split);
    else if (v->classes)
        dpt_str_printf(&r->out, "%s of %s %s samples right, <b>%s</b>%s, ",
                       dpt_html_count(right, (double)v->correct),
                       dpt_html_count(all, (double)v->samples), v->split,
                       dpt_html_percent(share, v->accuracy),
                       v->weight != (double)v->samples ? " by their weights" : "");
    else
        dpt_str_printf(&r->out, "%s %s samples, ", dpt_html_count(all, (double)v->samples),
                       v->split);
    dpt_html_element(&r->out, "by the weights of <code>", v->checkpoint, "</code>.</p>\n");
    if (v->labels) {
        dpt_page_each_label(r, v);
        dpt_page_recall(r, v);
        dpt_page_importance(r, v);
        return;
    }
    if (!v->classes) {
        dpt_page_numbers(r, index);
        dpt_page_importance(r, v);
        return;
    }
    compare_accuracy(r, index);
    if (r->runs.n > 1)
        dpt_page_uneven(r, index);
    dpt_page_classes(r, v);
    dpt_page_recall(r, v);
    dpt_page_importance(r, v);
    write_wrongs(r, v);
}

/* Says in a word what the predictions of one of many runs are worth. */
static void write_summary(struct dpt_page *r, size_t index)
{
    const struct dpt_page_predictions *v = &r->predictions[index];
    char share[DPT_HTML_NUMBER];

    dpt_page_label(r, "<details><summary>", index, "");
    if (v->why != NULL)
        dpt_html_element(&r->out, ": <span class=\"missing\">", "none", "</span>");
    else if (v->classes)
        dpt_html_element(&r->out, ": ", dpt_html_percent(share, v->accuracy), "");
    else if (v->labels && !isnan(v->scores.label_accuracy))
        dpt_html_element(&r->out, ": label accuracy ",
                         dpt_html_percent(share, v->scores.label_accuracy), "");
    if (v->why == NULL && v->classes && v->scores.uneven)
        dpt_html_element(&r->out, ", balanced ",
                         dpt_html_percent(share, v->scores.balanced_accuracy), "");
    dpt_str_printf(&r->out, "</summary>\n");
}

void dpt_page_write_predictions(struct dpt_page *r)
{
    if (r->no_predictions)
        return;
    dpt_str_printf(&r->out, "<section id=\"predictions\"><h2>Predictions</h2>\n");
    for (size_t i = 0; i < r->runs.n; i++) {
        if (dpt_page_many(r))
            write_summary(r, i);
        else if (r->runs.n > 1)
            dpt_page_label(r, "<h3 class=\"run\">", i, "</h3>\n");
        write_predictions(r, i);
        if (dpt_page_many(r))
            dpt_str_printf(&r->out, "</details>\n");
    }
    dpt_str_printf(&r->out, "</section>\n");
}
