/*
 * Predictions as a table (RFC 4180, with LF): what a sample is called, what was right where that is
 * known, and what the model says.
 */
#include <math.h>
#include <stdio.h>

#include "core/base/str.h"
#include "data/sources/predictions_type.h"
#include "data/tables/csv.h"

struct state {
    struct dpt_str text; /* rows that are to be written */
    int64_t at;          /* bytes that were */
};

static enum dpt_status flush(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = p->state;

    if (state->text.failed)
        return dpt_fail_memory(err, "rows of predictions", (double)state->text.length);
    if (p->path == NULL) /* whether it arrived is asked by whoever owns standard output */
        fwrite(state->text.text, 1, state->text.length, stdout);
    else
        status = dpt_predictions_put(p, state->text.text, state->text.length, state->at, err);
    state->at += (int64_t)state->text.length;
    dpt_str_clear(&state->text);
    return status;
}

/* A comma, and a column's name, which is released. */
static void put_name(struct dpt_str *out, struct dpt_str *name)
{
    dpt_str_add(out, ",", 1);
    dpt_csv_put(out, name->failed ? "" : name->text);
    out->failed |= name->failed;
    dpt_str_release(name);
}

/* ",price" or, of several without a name, ",value_2"; before: "", "true_" or the like. */
static void put_value_name(struct dpt_str *out, const struct dpt_predictions_format *f,
                           const char *before, int32_t k)
{
    struct dpt_str name = {0};

    dpt_str_printf(&name, "%s%s", before,
                   f->value_names != NULL ? f->value_names[k]
                   : before[0] == '\0'    ? f->labels ? "probability" : "value"
                                          : "");
    if (f->value_names == NULL && f->outputs > 1)
        dpt_str_printf(&name, "%s%d", before[0] == '\0' ? "_" : "", k + 1);
    put_name(out, &name);
}

/* ",probability_ill", or without a name its number. */
static void put_class_name(struct dpt_str *out, const struct dpt_predictions_format *f,
                           int32_t class)
{
    struct dpt_str name = {0};

    if (f->class_names != NULL && (size_t) class < f->n_classes)
        dpt_str_printf(&name, "probability_%s", f->class_names[class]);
    else
        dpt_str_printf(&name, "probability_%d", class);
    put_name(out, &name);
}

static enum dpt_status begin(struct dpt_predictions *p, struct dpt_error *err)
{
    const struct dpt_predictions_format *f = &p->format;
    struct dpt_str *out = &((struct state *)p->state)->text;

    dpt_csv_put(out, f->id != NULL ? f->id : "sample");
    if (f->truth == DPT_TRUTH_CLASS || (f->truth == DPT_TRUTH_VECTOR && f->outputs == 1))
        dpt_str_printf(out, ",true");
    for (int32_t k = 0; f->truth == DPT_TRUTH_VECTOR && f->outputs > 1 && k < f->outputs; k++)
        put_value_name(out, f, "true_", k);
    if (f->classes)
        dpt_str_printf(out, ",class,probability");
    for (int32_t k = 0; f->classes && f->all_probabilities && k < f->outputs; k++)
        put_class_name(out, f, k);
    if (f->decided && f->outputs == 1)
        dpt_str_printf(out, ",class");
    for (int32_t k = 0; f->decided && f->outputs > 1 && k < f->outputs; k++)
        put_value_name(out, f, "class_", k);
    for (int32_t k = 0; !f->classes && k < f->outputs; k++)
        put_value_name(out, f, "", k);
    dpt_str_add(out, "\n", 1);
    return flush(p, err);
}

static void put_class(struct dpt_str *out, const struct dpt_predictions_format *f, int32_t class)
{
    dpt_str_add(out, ",", 1);
    if (f->class_names != NULL && class >= 0 && (size_t) class < f->n_classes)
        dpt_csv_put(out, f->class_names[class]);
    else if (class >= 0)
        dpt_str_printf(out, "%d", class);
}

/* A row of numbers, or where they have offsets of those with them. */
static void put_numbers(struct dpt_str *out, const double *doubles, const float *values, size_t row,
                        int32_t n)
{
    for (size_t k = row; k < row + (size_t)n; k++) {
        dpt_str_add(out, ",", 1);
        if (doubles != NULL)
            dpt_str_number(out, doubles[k]);
        else
            dpt_str_float(out, values[k]);
    }
}

static enum dpt_status add(struct dpt_predictions *p, const struct dpt_predictions_rows *rows,
                           struct dpt_error *err)
{
    const struct dpt_predictions_format *f = &p->format;
    struct dpt_str *out = &((struct state *)p->state)->text;
    const float none = NAN;

    for (int32_t i = 0; i < rows->count; i++) {
        const size_t row = (size_t)i * (size_t)f->outputs;

        if (rows->names != NULL)
            dpt_csv_put(out, rows->names[i]);
        else
            dpt_str_printf(out, "%lld", (long long)p->done + (long long)i);
        if (f->truth == DPT_TRUTH_CLASS)
            put_class(out, f, rows->classes[i]);
        if (f->truth == DPT_TRUTH_VECTOR)
            put_numbers(out, p->targets, rows->targets, row, f->outputs);
        if (f->classes) {
            put_class(out, f, rows->labels[i]);
            put_numbers(out, NULL,
                        rows->labels[i] >= 0 ? rows->probabilities + row + rows->labels[i] : &none,
                        0, 1);
            if (f->all_probabilities)
                put_numbers(out, NULL, rows->probabilities, row, f->outputs);
        } else {
            for (int32_t k = 0; f->decided && k < f->outputs; k++)
                dpt_str_printf(out, rows->labels[row + (size_t)k] < 0 ? "," : ",%d",
                               rows->labels[row + (size_t)k]);
            put_numbers(out, p->values, f->labels ? rows->probabilities : rows->values, row,
                        f->outputs);
        }
        dpt_str_add(out, "\n", 1);
    }
    return flush(p, err);
}

static void close_state(void *state)
{
    dpt_str_release(&((struct state *)state)->text);
}

const struct dpt_predictions_kind dpt_predictions_csv = {
    .endings = {".csv"},
    .state = sizeof(struct state),
    .begin = begin,
    .add = add,
    .close = close_state,
};
