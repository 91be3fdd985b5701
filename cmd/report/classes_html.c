/* How good a model is at each class: the confusion matrix of classes, precision and recall. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/job_command.h"
#include "cmd/report/report.h"

enum {
    MATRIX = 20, /* classes up to which the whole matrix is shown */
    PAIRS = 20,  /* of classes that are confused most */
    FEW_PAIRS = 8,
    WORST_CLASSES = 12,
    ALL_CLASSES = 2000, /* of a page with few runs */
    OF_LABELS = 2,      /* figures that labels alone have */
    SHORT = 3,          /* letters of a name for which a column need not be wider */
};

struct pair {
    int32_t label, chosen;
    double n, then; /* by `then` where n is equal */
};

void dpt_page_class(struct dpt_page *r, const struct dpt_page_predictions *v, const char *before,
                    int32_t class, const char *after)
{
    char number[DPT_CLASS_NUMBER];

    dpt_html_element(&r->out, before, dpt_class_text(&v->called, class, number), after);
}

void dpt_page_open_table(struct dpt_page *r, const char *style, const char *caption,
                         const char *const *heads)
{
    dpt_str_printf(&r->out, "<div class=\"scroll\"><table class=\"%s\">%s<thead><tr>", style,
                   caption);
    for (; *heads != NULL; heads++)
        dpt_str_printf(&r->out, "<th scope=\"col\">%s</th>", *heads);
    dpt_str_printf(&r->out, "</tr></thead><tbody>\n");
}

void dpt_page_close_table(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
}

/* Once at the top of the page for a single run, else with each run's predictions. */
void dpt_page_uneven(struct dpt_page *r, size_t run)
{
    const struct dpt_page_predictions *v = &r->predictions[run];
    struct dpt_str text = {0};
    char samples[32];

    if (v->why != NULL || !v->classes || !v->scores.uneven)
        return;
    snprintf(samples, sizeof samples, "the %s samples", v->split);
    dpt_scores_uneven(&v->scores, &v->called, samples, &text);
    r->out.failed = r->out.failed || text.failed;
    dpt_html_element(&r->out, "<p class=\"warn open\"><b>Classes are imbalanced:</b> ",
                     text.failed ? "" : text.text, ".</p>\n");
    dpt_str_release(&text);
}

/* Writes as many digits as weights are worth reading. */
static const char *show(char *buf, double weight)
{
    return weight == floor(weight) ? dpt_html_count(buf, weight) : dpt_html_number(buf, weight, 5);
}

static double cell(const struct dpt_page_predictions *v, int32_t label, int32_t chosen)
{
    return v->confusion[(size_t)label * (size_t)v->outputs + (size_t)chosen];
}

/* Writes the head of a row or column of the matrix; long names above columns stand upright. */
static void write_class_head(struct dpt_page *r, const struct dpt_page_predictions *v,
                             int32_t class, const char *scope, bool upright)
{
    dpt_str_printf(&r->out, "<th scope=\"%s\"", scope);
    if ((size_t) class < v->called.n) {
        dpt_str_printf(&r->out, " title=\"%d", class);
        dpt_html_element(&r->out, ": ", v->called.at[class], "\"");
    }
    dpt_page_class(r, v, upright ? "><span class=\"upright\">" : "><span class=\"named\">", class,
                   "</span></th>");
}

static bool long_names(const struct dpt_page_predictions *v)
{
    for (size_t i = 0; i < v->called.n; i++)
        if (strlen(v->called.at[i]) > SHORT)
            return true;
    return false;
}

static void write_cell(struct dpt_page *r, const struct dpt_page_predictions *v, int32_t label,
                       int32_t chosen, double row, double most)
{
    const double n = cell(v, label, chosen);
    const bool hit = label == chosen;
    /* Right ones by their share of the class; wrong ones beside the most frequent error, by the
     * root, so that single ones can be seen. */
    const double weight = hit ? (row > 0 ? n / row : 0) : (most > 0 ? sqrt(n / most) : 0);
    char text[DPT_HTML_NUMBER];

    if (n == 0)
        dpt_str_printf(&r->out, "<td class=\"none\">%s</td>", hit ? "0" : "·");
    else
        dpt_str_printf(&r->out, "<td class=\"%s\" style=\"--a:%.2f\">%s</td>", hit ? "hit" : "miss",
                       0.06 + 0.44 * weight, show(text, n));
}

static void write_matrix(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const bool upright = long_names(v);
    double most = 0;

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
        const double row = v->class[i].weight;

        dpt_str_printf(&r->out, "<tr>");
        write_class_head(r, v, i, "row", false);
        for (int32_t k = 0; k < v->outputs; k++)
            write_cell(r, v, i, k, row, most);
        if (row > 0)
            dpt_str_printf(&r->out, "<td class=\"recall\">%.1f\u00a0%%</td></tr>\n",
                           100 * v->class[i].recall);
        else
            dpt_str_printf(&r->out, "<td class=\"recall\">–</td></tr>\n");
    }
    dpt_page_close_table(r);
}

static int more_first(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    if (x->then != y->then)
        return x->then < y->then ? 1 : -1;
    return x->label != y->label ? x->label - y->label : x->chosen - y->chosen;
}

static void write_pairs(struct dpt_page *r, const struct dpt_page_predictions *v, int most)
{
    const size_t all = (size_t)v->outputs * (size_t)v->outputs;
    struct pair *pairs = dpt_region_alloc(&r->region, all * sizeof *pairs);
    char text[DPT_HTML_NUMBER];
    int n = 0;

    r->out.failed = r->out.failed || pairs == NULL;
    for (int32_t i = 0; i < v->outputs && pairs != NULL; i++)
        for (int32_t k = 0; k < v->outputs; k++)
            if (i != k && cell(v, i, k) > 0)
                pairs[n++] = (struct pair){.label = i, .chosen = k, .n = cell(v, i, k)};
    if (n == 0)
        return;
    qsort(pairs, (size_t)n, sizeof *pairs, more_first);
    dpt_page_open_table(r, "pairs", "<caption>Confused most often</caption>\n",
                        (const char *const[]){"true", "taken for", "times", "of its class", NULL});
    for (int i = 0; i < n && i < most; i++) {
        dpt_page_class(r, v, "<tr><td>", pairs[i].label, "</td>");
        dpt_page_class(r, v, "<td>", pairs[i].chosen, "</td>");
        dpt_str_printf(&r->out, "<td>%s</td><td>%.1f\u00a0%%</td></tr>\n", show(text, pairs[i].n),
                       100 * pairs[i].n / v->class[pairs[i].label].weight);
    }
    dpt_page_close_table(r);
}

static void write_class_row(struct dpt_page *r, const struct dpt_page_predictions *v, int32_t class)
{
    const struct dpt_class_score *c = &v->class[class];
    const double figures[] = {c->base_rate, c->accuracy, c->precision,
                              c->recall,    c->f1,       c->roc_auc};
    char text[DPT_HTML_NUMBER];

    dpt_page_class(r, v, "<tr><th scope=\"row\">", class, "</th>");
    dpt_str_printf(&r->out, "<td>%s</td>", show(text, c->weight));
    for (size_t i = v->labels ? 0 : OF_LABELS; i < sizeof figures / sizeof figures[0]; i++)
        dpt_str_printf(&r->out, isnan(figures[i]) ? "<td>–</td>" : "<td>%.4f</td>", figures[i]);
    dpt_str_printf(&r->out, "</tr>\n");
}

static void write_class_rows(struct dpt_page *r, const struct dpt_page_predictions *v,
                             const char *caption, const struct pair *order, int32_t n)
{
    static const char *const classes[] = {"class", "samples", "precision", "recall",
                                          "F1",    "ROC AUC", NULL};
    static const char *const labels[] = {"label",  "samples", "base rate", "accuracy", "precision",
                                         "recall", "F1",      "ROC AUC",   NULL};

    dpt_page_open_table(r, "pairs each", caption, v->labels ? labels : classes);
    for (int32_t i = 0; i < n; i++)
        write_class_row(r, v, order != NULL ? order[i].label : i);
    dpt_page_close_table(r);
}

/* Writes the classes of which the fewest samples are found; of equal ones first those with more. */
static void write_hardest(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    struct pair *order = dpt_region_alloc(&r->region, (size_t)v->outputs * sizeof *order);
    int32_t n = 0;

    r->out.failed = r->out.failed || order == NULL;
    for (int32_t i = 0; i < v->outputs && order != NULL; i++)
        if (v->class[i].weight > 0)
            order[n++] =
                (struct pair){.label = i, .n = -v->class[i].recall, .then = v->class[i].weight};
    if (n == 0)
        return;
    qsort(order, (size_t)n, sizeof *order, more_first);
    write_class_rows(r, v, "<caption>Hardest classes</caption>\n", order,
                     n < WORST_CLASSES ? n : WORST_CLASSES);
}

static void write_scores(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    char text[DPT_SCORES_TEXT];
    struct dpt_str positive = {0};

    dpt_scores_text(&v->scores, true, "", ", ", text);
    if (text[0] == '\0')
        return;
    dpt_html_element(&r->out, "<p>", text, "");
    if (v->scores.positive >= 0) {
        dpt_positive_tell(&v->positive, &v->called, v->split, &positive);
        dpt_html_element(&r->out, "; ", positive.failed ? "" : positive.text, "</p>\n");
        r->out.failed = r->out.failed || positive.failed;
        dpt_str_release(&positive);
    } else {
        dpt_str_printf(&r->out, " <span class=\"dim\">(means over the %s)</span></p>\n",
                       v->labels ? "labels" : "classes");
    }
}

void dpt_page_each_label(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const int32_t n = v->outputs < ALL_CLASSES ? v->outputs : ALL_CLASSES;

    if (v->said.width == 0) {
        dpt_str_printf(
            &r->out,
            "<p class=\"missing\">No scores: there are too many samples times labels to keep "
            "the outputs.</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<p>label accuracy %.4f, the share of all labels that are right.</p>\n",
                   v->scores.label_accuracy);
    write_scores(r, v);
    write_class_rows(r, v, "<caption>Each label</caption>\n", NULL, n);
    if (n < v->outputs)
        dpt_str_printf(&r->out, "<p class=\"dim note\">The first %d of %d labels.</p>\n", n,
                       v->outputs);
}

void dpt_page_classes(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    write_scores(r, v);
    dpt_str_printf(&r->out, "<div class=\"beside\">\n");
    if (v->outputs <= MATRIX)
        write_matrix(r, v);
    if (v->confusion != NULL)
        write_pairs(r, v, v->outputs <= MATRIX ? FEW_PAIRS : PAIRS);
    if (v->outputs <= MATRIX)
        write_class_rows(r, v, "<caption>Each class</caption>\n", NULL, v->outputs);
    else
        write_hardest(r, v);
    dpt_str_printf(&r->out, "</div>\n");
    if (v->confusion == NULL)
        dpt_str_printf(&r->out,
                       "<p class=\"dim note\">With %d classes (more than %d) which are taken for "
                       "which is not counted.</p>\n",
                       v->outputs, DPT_PAGE_CLASSES);
    if (v->outputs <= MATRIX || dpt_page_many(r))
        return;
    dpt_str_printf(&r->out,
                   v->outputs <= ALL_CLASSES ? "<details><summary>All %d classes</summary>"
                                             : "<details><summary>The first %d "
                                               "classes</summary>",
                   v->outputs <= ALL_CLASSES ? v->outputs : ALL_CLASSES);
    write_class_rows(r, v, "", NULL, v->outputs <= ALL_CLASSES ? v->outputs : ALL_CLASSES);
    dpt_str_printf(&r->out, "</details>\n");
}
