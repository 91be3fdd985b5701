/* The models' predictions of the test data: the confusion of classes, the most wrong samples, or
 * predicted against true numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/report/html.h"
#include "cmd/report/report.h"
#include "data/pictures/picture.h"

enum {
    MATRIX = 20, /* classes up to which the whole matrix is shown */
    PAIRS = 20,  /* of classes that are confused most */
    FEW_PAIRS = 8,
    WORST_CLASSES = 12,
    SHORT = 3, /* letters of a name for which a column need not be wider */
};

struct pair {
    int32_t label, chosen;
    int64_t n;
};

static int64_t cell(const struct dpt_page_predictions *v, int32_t label, int32_t chosen)
{
    return v->confusion[(size_t)label * (size_t)v->outputs + (size_t)chosen];
}

static int64_t row_sum(const struct dpt_page_predictions *v, int32_t label)
{
    int64_t sum = 0;

    for (int32_t k = 0; k < v->outputs; k++)
        sum += cell(v, label, k);
    return sum;
}

/* A class by its name, or where it has none by its number. */
static void write_class(struct dpt_page *r, const struct dpt_page_predictions *v, int32_t class)
{
    if ((size_t) class < v->n_names)
        dpt_html_text(&r->out, v->names[class]);
    else
        dpt_str_printf(&r->out, "%d", class);
}

static void write_class_cell(struct dpt_page *r, const struct dpt_page_predictions *v,
                             int32_t class)
{
    dpt_str_printf(&r->out, "<td>");
    write_class(r, v, class);
    dpt_str_printf(&r->out, "</td>");
}

/* Of a row or a column of the matrix. Long names above columns stand upright. */
static void write_class_head(struct dpt_page *r, const struct dpt_page_predictions *v,
                             int32_t class, const char *scope, bool upright)
{
    dpt_str_printf(&r->out, "<th scope=\"%s\"", scope);
    if ((size_t) class < v->n_names) {
        dpt_str_printf(&r->out, " title=\"%d: ", class);
        dpt_html_text(&r->out, v->names[class]);
        dpt_str_printf(&r->out, "\"");
    }
    dpt_str_printf(&r->out, upright ? "><span class=\"upright\">" : "><span class=\"named\">");
    write_class(r, v, class);
    dpt_str_printf(&r->out, "</span></th>");
}

static bool long_names(const struct dpt_page_predictions *v)
{
    for (size_t i = 0; i < v->n_names; i++)
        if (strlen(v->names[i]) > SHORT)
            return true;
    return false;
}

static void write_cell(struct dpt_page *r, const struct dpt_page_predictions *v, int32_t label,
                       int32_t chosen, int64_t row, int64_t most)
{
    const int64_t n = cell(v, label, chosen);
    const bool hit = label == chosen;
    /* Right ones by their share of the class; wrong ones beside the most frequent mistake, by the
     * root, so that single ones can be seen. */
    const double weight = hit ? (row > 0 ? (double)n / (double)row : 0)
                              : (most > 0 ? sqrt((double)n / (double)most) : 0);

    if (n == 0)
        dpt_str_printf(&r->out, "<td class=\"none\">%s</td>", hit ? "0" : "·");
    else
        dpt_str_printf(&r->out, "<td class=\"%s\" style=\"--a:%.2f\">%lld</td>",
                       hit ? "hit" : "miss", 0.06 + 0.44 * weight, (long long)n);
}

static void write_matrix(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const bool upright = long_names(v);
    int64_t most = 0;

    for (int32_t i = 0; i < v->outputs; i++)
        for (int32_t k = 0; k < v->outputs; k++)
            most = i != k && cell(v, i, k) > most ? cell(v, i, k) : most;
    dpt_str_printf(&r->out,
                   "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"confusion "
                   "matrix\"><table class=\"matrix\"><caption>Rows: the true class. Columns: the "
                   "model's.</caption>\n<thead><tr><td></td>");
    for (int32_t k = 0; k < v->outputs; k++)
        write_class_head(r, v, k, "col", upright);
    dpt_str_printf(&r->out, "<th scope=\"col\" class=\"recall\">right</th></tr></thead>\n<tbody>");
    for (int32_t i = 0; i < v->outputs; i++) {
        const int64_t row = row_sum(v, i);

        dpt_str_printf(&r->out, "<tr>");
        write_class_head(r, v, i, "row", false);
        for (int32_t k = 0; k < v->outputs; k++)
            write_cell(r, v, i, k, row, most);
        if (row > 0)
            dpt_str_printf(&r->out, "<td class=\"recall\">%.1f\u00a0%%</td></tr>\n",
                           100 * (double)cell(v, i, i) / (double)row);
        else
            dpt_str_printf(&r->out, "<td class=\"recall\">–</td></tr>\n");
    }
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
}

static int more_first(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return x->label != y->label ? x->label - y->label : x->chosen - y->chosen;
}

static void write_pairs(struct dpt_page *r, const struct dpt_page_predictions *v, int most)
{
    const size_t all = (size_t)v->outputs * (size_t)v->outputs;
    struct pair *pairs = malloc(all * sizeof *pairs);
    int n = 0;

    if (pairs == NULL) {
        r->out.failed = true;
        return;
    }
    for (int32_t i = 0; i < v->outputs; i++)
        for (int32_t k = 0; k < v->outputs; k++)
            if (i != k && cell(v, i, k) > 0)
                pairs[n++] = (struct pair){i, k, cell(v, i, k)};
    qsort(pairs, (size_t)n, sizeof *pairs, more_first);
    if (n > 0)
        dpt_str_printf(&r->out,
                       "<div class=\"scroll\"><table class=\"pairs\"><caption>Confused most often"
                       "</caption>\n<thead><tr><th scope=\"col\">true</th><th "
                       "scope=\"col\">taken for</th><th scope=\"col\">times</th><th "
                       "scope=\"col\">of its class</th></tr></thead><tbody>\n");
    for (int i = 0; i < n && i < most; i++) {
        dpt_str_printf(&r->out, "<tr>");
        write_class_cell(r, v, pairs[i].label);
        write_class_cell(r, v, pairs[i].chosen);
        dpt_str_printf(&r->out, "<td>%lld</td><td>%.1f\u00a0%%</td></tr>\n", (long long)pairs[i].n,
                       100 * (double)pairs[i].n / (double)row_sum(v, pairs[i].label));
    }
    if (n > 0)
        dpt_str_printf(&r->out, "</tbody></table></div>\n");
    free(pairs);
}

/* Of many classes those that are told right least often. */
static void write_classes(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    struct pair *classes = malloc((size_t)v->outputs * sizeof *classes);
    int n = 0;

    if (classes == NULL) {
        r->out.failed = true;
        return;
    }
    for (int32_t i = 0; i < v->outputs; i++) {
        const int64_t row = row_sum(v, i);

        if (row > 0)
            classes[n++] = (struct pair){i, 0, 1000000 - 1000000 * cell(v, i, i) / row};
    }
    qsort(classes, (size_t)n, sizeof *classes, more_first);
    dpt_str_printf(&r->out,
                   "<div class=\"scroll\"><table class=\"pairs\"><caption>Hardest classes</caption>"
                   "\n<thead><tr><th scope=\"col\">class</th><th scope=\"col\">right</th><th "
                   "scope=\"col\">of</th></tr></thead><tbody>\n");
    for (int i = 0; i < n && i < WORST_CLASSES; i++) {
        dpt_str_printf(&r->out, "<tr>");
        write_class_cell(r, v, classes[i].label);
        dpt_str_printf(&r->out, "<td>%.1f\u00a0%%</td><td>%lld</td></tr>\n",
                       100 - (double)classes[i].n / 1e4, (long long)row_sum(v, classes[i].label));
    }
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
    free(classes);
}

static void write_confusion(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    if (v->confusion == NULL) {
        dpt_str_printf(&r->out,
                       "<p class=\"missing\">With %d classes (more than %d) their "
                       "confusion is not counted.</p>\n",
                       v->outputs, DPT_PAGE_CLASSES);
        return;
    }
    dpt_str_printf(&r->out, "<div class=\"beside\">\n");
    if (v->outputs <= MATRIX) {
        write_matrix(r, v);
        write_pairs(r, v, FEW_PAIRS);
    } else {
        write_pairs(r, v, PAIRS);
        write_classes(r, v);
    }
    dpt_str_printf(&r->out, "</div>\n");
}

static void write_picture(struct dpt_page *r, const struct dpt_page_predictions *v,
                          const struct dpt_page_wrong *w)
{
    struct dpt_str png = {0};

    dpt_str_printf(&r->out, "<figure><img alt=\"sample %lld: true class ", (long long)w->sample);
    write_class(r, v, w->label);
    dpt_str_printf(&r->out, ", taken for ");
    write_class(r, v, w->chosen);
    dpt_str_printf(
        &r->out, " with probability %.2f\" width=\"%d\" height=\"%d\" src=\"data:image/png;base64,",
        (double)w->p_chosen, v->width, v->height);
    dpt_picture_write(&png, w->pixels, v->width, v->height, v->channels);
    dpt_str_base64(&r->out, png.text, png.length);
    r->out.failed = r->out.failed || png.failed;
    dpt_str_release(&png);
    dpt_str_printf(&r->out, "\"><figcaption><b>");
    write_class(r, v, w->label);
    dpt_str_printf(&r->out, "</b> → <b class=\"off\">");
    write_class(r, v, w->chosen);
    dpt_str_printf(&r->out,
                   "</b> <small>%.1f\u00a0%%</small> <small class=\"dim\">#%lld</small>"
                   "</figcaption></figure>\n",
                   100 * (double)w->p_chosen, (long long)w->sample);
}

static void write_list(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    dpt_str_printf(&r->out,
                   "<div class=\"scroll\"><table class=\"pairs\"><thead><tr><th "
                   "scope=\"col\">sample</th><th scope=\"col\">true</th><th scope=\"col\">taken "
                   "for</th><th scope=\"col\">probability</th><th scope=\"col\">of the "
                   "truth</th></tr></thead><tbody>\n");
    for (int i = 0; i < v->n_wrong; i++) {
        dpt_str_printf(&r->out, "<tr><td>%lld</td>", (long long)v->wrong[i].sample);
        write_class_cell(r, v, v->wrong[i].label);
        write_class_cell(r, v, v->wrong[i].chosen);
        dpt_str_printf(&r->out, "<td>%.3g</td><td>%.2g</td></tr>\n", (double)v->wrong[i].p_chosen,
                       (double)v->wrong[i].p_label);
    }
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
}

void dpt_page_wrongs(struct dpt_page *r, const struct dpt_page_run *run)
{
    const struct dpt_page_predictions *v = &run->predictions;
    char digits[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<h3>Most wrong</h3>\n");
    if (v->all_wrong == 0) {
        dpt_str_printf(&r->out, "<p>None is wrong.</p>\n");
        return;
    }
    dpt_str_printf(&r->out,
                   "<p class=\"dim\">%d of %s wrong %s samples, the largest losses first: true "
                   "class → the model's, how sure it is of that, the sample's number.</p>\n",
                   v->n_wrong, dpt_html_count(digits, (double)v->all_wrong), v->split);
    if (v->n_wrong == 0 || v->wrong[0].pixels == NULL) {
        write_list(r, v);
        return;
    }
    dpt_str_printf(&r->out, "<div class=\"sheet\">\n");
    for (int i = 0; i < v->n_wrong; i++)
        if (v->wrong[i].pixels != NULL)
            write_picture(r, v, &v->wrong[i]);
    dpt_str_printf(&r->out, "</div>\n");
}

static void write_numbers(struct dpt_page *r, size_t index)
{
    const struct dpt_page_predictions *v = &r->runs[index].predictions;
    const double n = (double)v->samples, spread = v->sum_of_squares - v->sum * v->sum / n;
    struct dpt_line line = {
        .name = "sample", .kind = DPT_LINE_CLOUD, .colour = (int)index, .points = v->cloud};
    char id[32], error[DPT_HTML_NUMBER], r2[DPT_HTML_NUMBER], digits[DPT_HTML_NUMBER];
    const struct dpt_chart chart = {
        .id = id,
        .title = "Predicted against true",
        .x_label = "true",
        .y_label = v->outputs > 1 ? "first output; on the line they are equal"
                                  : "on the line they are equal",
        .lines = &line,
        .n = 1,
        .diagonal = true,
    };

    snprintf(id, sizeof id, "cloud%zu", index);
    dpt_str_printf(&r->out,
                   "<p>Root of the mean squared error %s, R² %s, on %s samples%s.</p>\n<div "
                   "class=\"charts\">",
                   dpt_html_number(error, sqrt(v->residue / n), 4),
                   dpt_html_number(r2, spread > 0 ? 1 - v->residue / spread : NAN, 5),
                   dpt_html_count(digits, n),
                   v->cloud.n < (size_t)v->samples ? ", of which some are shown" : "");
    dpt_chart_write(&chart, &r->out);
    dpt_str_printf(&r->out, "</div>\n");
}

/* The metrics' own figure for the same weights and samples, where there is one. */
static void compare_accuracy(struct dpt_page *r, const struct dpt_page_run *run)
{
    const struct dpt_page_predictions *v = &run->predictions;
    const double accuracy = (double)v->correct / (double)v->samples;
    char text[DPT_HTML_NUMBER];

    for (size_t i = 0; i < run->history.n_evals; i++) {
        const struct dpt_history_eval *e = &run->history.evals[i];

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
    const struct dpt_page_run *run = &r->runs[index];
    const struct dpt_page_predictions *v = &run->predictions;
    char right[DPT_HTML_NUMBER], all[DPT_HTML_NUMBER], share[DPT_HTML_NUMBER];

    if (v->why != NULL) {
        dpt_str_printf(&r->out, "<p class=\"missing\">No predictions: ");
        dpt_html_text(&r->out, v->why);
        dpt_str_printf(&r->out, "</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<p>");
    if (v->classes)
        dpt_str_printf(&r->out, "%s of %s %s samples right, <b>%s</b>, ",
                       dpt_html_count(right, (double)v->correct),
                       dpt_html_count(all, (double)v->samples), v->split,
                       dpt_html_percent(share, (double)v->correct / (double)v->samples));
    else
        dpt_str_printf(&r->out, "%s %s samples, ", dpt_html_count(all, (double)v->samples),
                       v->split);
    dpt_str_printf(&r->out, "by the weights of <code>");
    dpt_html_text(&r->out, v->checkpoint);
    dpt_str_printf(&r->out, "</code>.</p>\n");
    if (!v->classes) {
        write_numbers(r, index);
        return;
    }
    compare_accuracy(r, run);
    write_confusion(r, v);
    dpt_page_wrongs(r, run);
}

void dpt_page_write_predictions(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"predictions\"><h2>Predictions</h2>\n");
    for (size_t i = 0; i < r->n; i++) {
        if (r->n > 1) {
            dpt_str_printf(&r->out, "<h3 class=\"run\">");
            dpt_page_label(r, i);
            dpt_str_printf(&r->out, "</h3>\n");
        }
        write_predictions(r, i);
    }
    dpt_str_printf(&r->out, "</section>\n");
}
