/* The columns of a table that matter to a model. */
#include "cmd/report/report.h"
#include "core/train/trainer.h"

enum { REPEATS = 5, SHOWN = 30 };

/* Multiplications, about, of which a page waits some seconds at most. */
static const double MOST = 1e11;

enum dpt_status dpt_page_take_importance(struct dpt_page_predictions *v, struct dpt_trainer *t,
                                         struct dpt_split *split, struct dpt_error *err)
{
    const double columns = (double)dpt_shape_size(&split->set->shape);
    const double work =
        columns * REPEATS * (double)split->sampler.samples * (double)t->model.graph.parameters;
    struct dpt_error why = {0};
    enum dpt_status status;

    if (dpt_importance_refused(split) != NULL || dpt_dataset_columns(split->set, NULL) == NULL ||
        work > MOST)
        return DPT_OK;
    t->all_scores = false;
    status = dpt_importance_measure(t, split, REPEATS, &v->importance, &why);
    if (status == DPT_OK)
        return DPT_OK;
    dpt_importances_release(&v->importance);
    if (status != DPT_BAD_DATA) /* samples of which no score can be lower */
        *err = why;
    return status != DPT_BAD_DATA ? status : DPT_OK;
}

void dpt_page_importance(struct dpt_page *r, const struct dpt_page_predictions *v)
{
    const struct dpt_importances *of = &v->importance;

    if (of->n == 0)
        return;
    dpt_str_printf(&r->out,
                   "<h3>Which columns matter</h3>\n"
                   "<p class=\"dim\">How much lower %s is with a column shuffled among the %s "
                   "samples (permutation importance), mean of %d. Columns with nearly the same "
                   "information replace each other.</p>\n",
                   of->score, v->split, REPEATS);
    dpt_page_open_table(r, "pairs importance", "",
                        (const char *const[]){"column", "lower by", "standard deviation", NULL});
    for (size_t k = 0; k < of->n && k < SHOWN; k++) {
        dpt_html_element(&r->out, "<tr><th scope=\"row\">", of->at[k].name, "</th>");
        dpt_str_printf(&r->out, "<td>%.4f</td><td>%.4f</td></tr>\n", of->at[k].drop,
                       of->at[k].spread);
    }
    dpt_page_close_table(r);
    if (of->n > SHOWN)
        dpt_str_printf(&r->out, "<p class=\"dim note\">The first %d of %zu columns.</p>\n", SHOWN,
                       of->n);
}
