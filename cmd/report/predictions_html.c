/* The models' predictions of the test data: the confusion of classes, the most wrong samples, or
 * predicted against true numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/report/report.h"
#include "data/pictures/picture.h"

enum {
    MATRIX = 20, /* classes up to which the whole matrix is shown */
    PAIRS = 20,  /* of classes that are confused most */
    FEW_PAIRS = 8,
    WORST_CLASSES = 12,
    FEW_PICTURES = 10, /* of each of many runs */
    SHORT = 3,         /* letters of a name for which a column need not be wider */
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

/* A class by its name, or where it has none by its number, between two pieces of markup. */
static void write_class(struct dpt_page *r, const struct dpt_page_predictions *v,
                        const char *before, int32_t class, const char *after)
{
    char number[16];

    snprintf(number, sizeof number, "%d", class);
    dpt_html_element(&r->out, before, (size_t) class < v->n_names ? v->names[class] : number,
                     after);
}

/* Writes the head of a row or column of the matrix; long names above columns stand upright. */
static void write_class_head(struct dpt_page *r, const struct dpt_page_predictions *v,
                             int32_t class, const char *scope, bool upright)
{
    dpt_str_printf(&r->out, "<th scope=\"%s\"", scope);
    if ((size_t) class < v->n_names) {
        dpt_str_printf(&r->out, " title=\"%d", class);
        dpt_html_element(&r->out, ": ", v->names[class], "\"");
    }
    write_class(r, v, upright ? "><span class=\"upright\">" : "><span class=\"named\">", class,
                "</span></th>");
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

/* A table with these heads, which end with NULL; the caller writes its rows and closes it. */
static void open_table(struct dpt_page *r, const char *caption, const char *const *heads)
{
    dpt_str_printf(&r->out, "<div class=\"scroll\"><table class=\"pairs\">%s<thead><tr>", caption);
    for (; *heads != NULL; heads++)
        dpt_str_printf(&r->out, "<th scope=\"col\">%s</th>", *heads);
    dpt_str_printf(&r->out, "</tr></thead><tbody>\n");
}

static void close_table(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
}

/* Allocates a pair for each true and each chosen class; NULL: memory ran out. */
static struct pair *open_pairs(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const size_t all = (size_t)v->outputs * (size_t)v->outputs;
    struct pair *pairs = dpt_region_alloc(&r->region, all * sizeof *pairs);

    r->out.failed = r->out.failed || pairs == NULL;
    return pairs;
}

static void write_pairs(struct dpt_page *r, const struct dpt_page_predictions *v, int most)
{
    struct pair *pairs = open_pairs(r, v);
    int n = 0;

    for (int32_t i = 0; i < v->outputs && pairs != NULL; i++)
        for (int32_t k = 0; k < v->outputs; k++)
            if (i != k && cell(v, i, k) > 0)
                pairs[n++] = (struct pair){i, k, cell(v, i, k)};
    if (n == 0)
        return;
    qsort(pairs, (size_t)n, sizeof *pairs, more_first);
    open_table(r, "<caption>Confused most often</caption>\n",
               (const char *const[]){"true", "taken for", "times", "of its class", NULL});
    for (int i = 0; i < n && i < most; i++) {
        write_class(r, v, "<tr><td>", pairs[i].label, "</td>");
        write_class(r, v, "<td>", pairs[i].chosen, "</td>");
        dpt_str_printf(&r->out, "<td>%lld</td><td>%.1f\u00a0%%</td></tr>\n", (long long)pairs[i].n,
                       100 * (double)pairs[i].n / (double)row_sum(v, pairs[i].label));
    }
    close_table(r);
}

/* Writes the classes with the fewest right predictions. */
static void write_classes(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    struct pair *classes = open_pairs(r, v);
    int n = 0;

    for (int32_t i = 0; i < v->outputs && classes != NULL; i++) {
        const int64_t row = row_sum(v, i);

        if (row > 0)
            classes[n++] = (struct pair){i, 0, 1000000 - 1000000 * cell(v, i, i) / row};
    }
    if (n > 0)
        qsort(classes, (size_t)n, sizeof *classes, more_first);
    open_table(r, "<caption>Hardest classes</caption>\n",
               (const char *const[]){"class", "right", "of", NULL});
    for (int i = 0; i < n && i < WORST_CLASSES; i++) {
        write_class(r, v, "<tr><td>", classes[i].label, "</td>");
        dpt_str_printf(&r->out, "<td>%.1f\u00a0%%</td><td>%lld</td></tr>\n",
                       100 - (double)classes[i].n / 1e4, (long long)row_sum(v, classes[i].label));
    }
    close_table(r);
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

    dpt_str_printf(&r->out, "<figure><img alt=\"sample %lld", (long long)w->sample);
    write_class(r, v, ": true class ", w->label, ", taken for ");
    write_class(r, v, "", w->chosen, " with probability ");
    dpt_str_printf(&r->out, "%.2f\" width=\"%d\" height=\"%d\" src=\"data:image/png;base64,",
                   (double)w->p_chosen, v->width, v->height);
    dpt_picture_write(&png, w->pixels, v->width, v->height, v->channels);
    dpt_str_base64(&r->out, png.text, png.length);
    r->out.failed = r->out.failed || png.failed;
    dpt_str_release(&png);
    write_class(r, v, "\"><figcaption><b>", w->label, "</b> → ");
    write_class(r, v, "<b class=\"off\">", w->chosen, "</b> ");
    dpt_str_printf(&r->out,
                   "<small>%.1f\u00a0%%</small> <small class=\"dim\">#%lld</small>"
                   "</figcaption></figure>\n",
                   100 * (double)w->p_chosen, (long long)w->sample);
}

static void write_list(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    open_table(
        r, "",
        (const char *const[]){"sample", "true", "taken for", "probability", "of the truth", NULL});
    for (int i = 0; i < v->n_wrong; i++) {
        dpt_page_sample(r, v->wrong[i].sample, v->wrong[i].name);
        write_class(r, v, "<td>", v->wrong[i].label, "</td>");
        write_class(r, v, "<td>", v->wrong[i].chosen, "</td>");
        dpt_str_printf(&r->out, "<td>%.3g</td><td>%.2g</td></tr>\n", (double)v->wrong[i].p_chosen,
                       (double)v->wrong[i].p_label);
    }
    close_table(r);
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
                   "class → the model's, how sure it is of that, the sample's number.</p>\n",
                   v->n_wrong, dpt_html_count(digits, (double)v->all_wrong), v->split);
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
    const double accuracy = (double)v->correct / (double)v->samples;
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
    if (v->classes)
        dpt_str_printf(&r->out, "%s of %s %s samples right, <b>%s</b>, ",
                       dpt_html_count(right, (double)v->correct),
                       dpt_html_count(all, (double)v->samples), v->split,
                       dpt_html_percent(share, (double)v->correct / (double)v->samples));
    else
        dpt_str_printf(&r->out, "%s %s samples, ", dpt_html_count(all, (double)v->samples),
                       v->split);
    dpt_html_element(&r->out, "by the weights of <code>", v->checkpoint, "</code>.</p>\n");
    if (!v->classes) {
        dpt_page_numbers(r, index);
        return;
    }
    compare_accuracy(r, index);
    write_confusion(r, v);
    write_wrongs(r, v);
}

/* In a word, what the predictions of one of many runs are worth. */
static void write_summary(struct dpt_page *r, size_t index)
{
    const struct dpt_page_predictions *v = &r->predictions[index];
    char share[DPT_HTML_NUMBER];

    dpt_str_printf(&r->out, "<details><summary>");
    dpt_page_label(r, index);
    if (v->why != NULL)
        dpt_html_element(&r->out, ": <span class=\"missing\">", "none", "</span>");
    else if (v->classes)
        dpt_html_element(&r->out, ": ",
                         dpt_html_percent(share, (double)v->correct / (double)v->samples), "");
    dpt_str_printf(&r->out, "</summary>\n");
}

void dpt_page_write_predictions(struct dpt_page *r)
{
    if (r->no_predictions)
        return;
    dpt_str_printf(&r->out, "<section id=\"predictions\"><h2>Predictions</h2>\n");
    for (size_t i = 0; i < r->runs.n; i++) {
        if (dpt_page_many(r)) {
            write_summary(r, i);
        } else if (r->runs.n > 1) {
            dpt_str_printf(&r->out, "<h3 class=\"run\">");
            dpt_page_label(r, i);
            dpt_str_printf(&r->out, "</h3>\n");
        }
        write_predictions(r, i);
        if (dpt_page_many(r))
            dpt_str_printf(&r->out, "</details>\n");
    }
    dpt_str_printf(&r->out, "</section>\n");
}
