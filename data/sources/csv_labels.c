/* What the labels of a CSV file are: classes, names of classes, targets. */
#include <string.h>
#include <strings.h>

#include "data/sources/csv_state.h"

/* Doubles hold each whole number up to here. */
static const double WHOLE_MOST = 1ll << 53;

/* The two words for no and yes, if each name is one of them in some case; NULL: not. */
static const dpt_column_words *words_of(const struct dpt_csv_labels *labels)
{
    const dpt_column_words *words = NULL;

    for (size_t i = 0; i < labels->names.n; i++) {
        const dpt_column_words *pair = dpt_column_words_of(labels->names.at[i].text);

        if (pair == NULL || (i > 0 && pair != words))
            return NULL;
        words = pair;
    }
    return words;
}

/* The class of a name; True, TRUE and true are one. NULL: it is none of them. */
static const struct dpt_name *find_class(const struct dpt_csv_labels *labels,
                                         const struct dpt_name *name)
{
    const struct dpt_name *found = dpt_names_find(&labels->names, name);

    for (size_t i = 0; found == NULL && labels->words && i < labels->names.n; i++)
        if (strcasecmp(labels->names.at[i].text, name->text) == 0)
            found = &labels->names.at[i];
    return found;
}

enum dpt_status dpt_csv_labels_take(struct dpt_csv_labels *labels,
                                    const struct dpt_source_model *model, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_column_values_add(&labels->names, model->classes, model->n_classes, err));
    labels->given = model->n_classes > 0;
    labels->words = words_of(labels) != NULL;
out:
    return status;
}

/* --- a first reading -------------------------------------------------------------------------- */

static enum dpt_status find_name(struct dpt_csv_state *state, size_t column, struct dpt_error *err)
{
    struct dpt_csv_labels *labels = &state->labels;
    const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, column);
    struct dpt_name name = dpt_column_value(cell->text);

    if (find_class(labels, &name) != NULL)
        return DPT_OK;
    if (labels->given)
        return dpt_csv_refuse(state, column, err, "no class of %s", labels->shard);
    if (cell->length > labels->longest)
        labels->longest = cell->length;
    if ((labels->names.n + 1) * labels->longest > DPT_CLASS_NAME_BYTES)
        return dpt_csv_refuse(
            state, column, err,
            "label no. %zu that differs from all before: too many for names of classes; "
            "check that --label names the right column%s",
            labels->names.n + 1,
            labels->whole && labels->first_word == NULL ? " --regression takes numbers as targets"
                                                        : "");
    name.text = dpt_region_strndup(&state->table.region, cell->text, cell->length);
    return dpt_names_add(&labels->names, name, err);
}

static void take_number(struct dpt_csv_labels *labels, double value)
{
    labels->whole = labels->whole && value == floor(value);
    if (labels->first_number == NULL || value < labels->smallest)
        labels->smallest = value;
    if (labels->first_number == NULL || value > labels->largest)
        labels->largest = value;
}

/* A label that is a target: a number, or in a column of nothing else a word for yes or no. */
static enum dpt_status scan_target(struct dpt_csv_state *state, size_t k, struct dpt_error *err)
{
    const size_t column = state->table.labels[k];
    struct dpt_csv_target *met = &state->met_targets[k];
    const char *text = dpt_csv_cell_at(state, column)->text;
    const struct dpt_column *known = state->known ? state->targets[k] : NULL;
    const dpt_column_words *words = dpt_column_words_of(text);
    double value;
    enum dpt_csv_kind kind;

    if (known != NULL && known->values.n == 2 && dpt_column_take_word(known, text, &value)) {
        take_number(&state->labels, value);
        return DPT_OK;
    }
    kind = dpt_csv_table_number(&state->table, text, &value);
    if (kind == DPT_CSV_NUMBER && met->words == NULL) {
        met->numbers = true;
        take_number(&state->labels, value);
        return dpt_csv_place(state, column, &state->labels.first_number, err);
    }
    if (words != NULL && !met->numbers && (met->words == NULL || met->words == words)) {
        met->words = words;
        take_number(&state->labels, strcasecmp(text, (*words)[1]) == 0);
        return dpt_csv_place(state, column, &state->labels.first_number, err);
    }
    if (met->words != NULL && kind != DPT_CSV_MISSING)
        return dpt_csv_refuse(state, column, err, "neither %s nor %s, as in the rows before",
                              (*met->words)[0], (*met->words)[1]);
    return dpt_csv_no_number(state, column, kind, err);
}

static enum dpt_status scan_class(struct dpt_csv_state *state, size_t column, struct dpt_error *err)
{
    struct dpt_csv_labels *labels = &state->labels;
    const struct dpt_csv_cell *cell = dpt_csv_cell_at(state, column);
    enum dpt_status status = DPT_OK;
    double value;
    const enum dpt_csv_kind kind = dpt_csv_table_number(&state->table, cell->text, &value);
    const bool none = kind == DPT_CSV_MISSING && strcasecmp(cell->text, "none") == 0 &&
                      !dpt_csv_is_missing(state, cell);

    if (labels->named && cell->length > 0) {
        DPT_TRY(find_name(state, column, err));
    } else if (kind == DPT_CSV_NUMBER) {
        take_number(labels, value);
        DPT_TRY(dpt_label_numbers_add(
            &labels->numbers,
            value == floor(value) && fabs(value) <= WHOLE_MOST ? (int64_t)value : INT64_MIN, err));
        DPT_TRY(dpt_csv_place(state, column, &labels->first_number, err));
    } else if (kind == DPT_CSV_TEXT || none) {
        DPT_TRY(
            dpt_csv_place(state, column, none ? &labels->first_none : &labels->first_word, err));
        DPT_TRY(find_name(state, column, err));
    } else {
        DPT_TRY(dpt_csv_no_number(state, column, kind, err));
    }
    if (labels->first_number != NULL && labels->first_word != NULL)
        DPT_TRY(
            dpt_fail(err, DPT_BAD_DATA,
                     "%s is a number, but %s is none%s; --classes takes all as names of classes",
                     labels->first_number, labels->first_word,
                     kind == DPT_CSV_TEXT ? dpt_csv_other_marks(state, cell->text) : ""));
    if (labels->first_number != NULL && labels->first_none != NULL)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s is a missing value; --drop-missing-label leaves such rows out, "
                         "--classes takes all as names of classes",
                         labels->first_none));
out:
    return status;
}

enum dpt_status dpt_csv_labels_scan(struct dpt_source *s, void *arg, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;

    (void)arg;
    for (size_t k = 0; k < state->table.n_labels; k++)
        DPT_TRY(state->labels.regression ? scan_target(state, k, err)
                                         : scan_class(state, state->table.labels[k], err));
out:
    return status;
}

/* --- what they are ---------------------------------------------------------------------------- */

/* Numbers of classes that no row has, where nobody said what the classes are. */
static void warn_empty(const struct dpt_source *s)
{
    enum { MOST = 5 };
    const struct dpt_label_numbers *numbers =
        &((const struct dpt_csv_state *)s->state)->labels.numbers;
    const int64_t empty = numbers->largest + 1 - numbers->n;
    struct dpt_str list = {0};
    size_t told = 0;

    for (int64_t i = 0; i < numbers->largest && told < MOST; i++)
        if (!dpt_label_numbers_has(numbers, i))
            dpt_str_printf(&list, "%s%lld", told++ > 0 ? ", " : "", (long long)i);
    if (empty > 0 && !list.failed)
        dpt_log_warn(
            s->spec->log,
            "%s: no row has the class%s %s%s: the model still gets %lld outputs; --classes "
            "numbers those that occur",
            s->paths[0], empty > 1 ? "es" : "", list.text, empty > MOST ? ", …" : "",
            (long long)s->info.classes);
    dpt_str_release(&list);
}

/* "t.csv: the label, column 3 (price)", in the source's region. */
static const char *name_label(struct dpt_source *s)
{
    const struct dpt_csv_table *t = &((const struct dpt_csv_state *)s->state)->table;
    const size_t column = t->labels[0];
    char shown[DPT_CSV_SHOWN];

    return dpt_region_printf(&s->region, "%s: the label, column %zu%s%s%s", s->paths[0], column + 1,
                             t->names != NULL ? " (" : "",
                             t->names != NULL ? dpt_csv_shown(t->names[column], shown) : "",
                             t->names != NULL ? ")" : "");
}

/* What is no label of classes as a rule; of some rows anything may be one. */
static void warn_of_classes(struct dpt_source *s)
{
    enum { FEW = 20 };
    const struct dpt_csv_state *state = s->state;
    const struct dpt_csv_labels *labels = &state->labels;
    const int64_t rows = s->parts[0].samples;
    const int64_t classes = labels->names.n > 0 ? (int64_t)labels->names.n : labels->numbers.n;
    const char *label;
    char some[32], all[32];

    if (s->spec->log == NULL || s->info.truth != DPT_TRUTH_CLASS || labels->given || rows < FEW)
        return;
    label = name_label(s);
    if (classes == 1)
        dpt_log_warn(
            s->spec->log,
            "%s: all %s rows are of one class, so there is nothing to learn: --label names "
            "another column",
            s->paths[0], dpt_group_digits(all, rows));
    if (classes > rows / 2 && label != NULL)
        dpt_log_warn(s->spec->log, "%s, has %s classes in %s rows: --label names another", label,
                     dpt_group_digits(some, classes), dpt_group_digits(all, rows));
    else if (labels->names.n == 0)
        warn_empty(s);
}

/* Whether whole numbers, of which nobody said what they are, are amounts: then says so. */
static bool are_amounts(struct dpt_source *s)
{
    const struct dpt_csv_labels *labels = &((const struct dpt_csv_state *)s->state)->labels;
    const bool flat = s->layout.shape.flat;
    const char *label;
    char told[DPT_LABELS_TOLD];

    if (labels->shard != NULL || dpt_labels_seem_classes(&labels->numbers, false, flat))
        return false;
    label = name_label(s);
    if (s->spec->log != NULL && label != NULL)
        dpt_log_warn(s->spec->log, "%s, has %s (--regression); --classes takes each as a class",
                     label, dpt_labels_tell_targets(&labels->numbers, told));
    return true;
}

/* Makes one class of each of two words that stand there in more than one case: false and true. */
static enum dpt_status merge_words(struct dpt_csv_state *state, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_labels *labels = &state->labels;
    const dpt_column_words *words = words_of(labels);
    struct dpt_names merged = {0};

    labels->words = words != NULL;
    for (size_t k = 0; words != NULL && k < 2; k++)
        for (size_t i = 0; i < labels->names.n; i++)
            if (strcasecmp(labels->names.at[i].text, (*words)[k]) == 0)
                DPT_TRY(dpt_names_add(&merged, dpt_column_value((*words)[k]), err));
    if (words != NULL && merged.n < labels->names.n) {
        dpt_names_release(&labels->names);
        labels->names = merged;
        merged = (struct dpt_names){0};
    }
out:
    dpt_names_release(&merged);
    return status;
}

enum dpt_status dpt_csv_labels_decide(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_csv_state *state = s->state;
    struct dpt_csv_labels *labels = &state->labels;
    const bool numbers = !labels->named && labels->first_word == NULL && labels->first_none == NULL;
    const char **names;
    bool targets;

    if (s->parts[0].samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: has no row %s", s->paths[0],
                         state->dropped > 0 ? "with a label" : "of data"));
    s->info.truth = DPT_TRUTH_CLASS;
    targets = labels->regression || (numbers && (!labels->whole || are_amounts(s)));
    if (!targets && numbers && labels->whole && labels->smallest < 0) {
        /* -1 and 1, as some programs number two classes: no numbers of classes, but names. */
        labels->named = true;
        DPT_TRY(dpt_csv_walk(s, NULL, dpt_csv_labels_scan, NULL, err));
    }
    if (targets) {
        s->info.truth = DPT_TRUTH_VECTOR;
        for (size_t k = 0; !state->known && k < state->table.n_labels; k++)
            if (state->met_targets[k].words != NULL)
                DPT_TRY(
                    dpt_csv_keep_words(state, state->targets[k], state->met_targets[k].words, err));
    } else if (labels->given) {
        s->info.classes = (int64_t)s->like.n_classes;
        s->info.class_names = s->like.classes;
    } else if (labels->names.n > 0) {
        DPT_TRY(merge_words(state, err));
        DPT_TRY(dpt_names_number(&labels->names, &s->region, &names, err));
        labels->named = true;
        s->info.classes = (int64_t)labels->names.n;
        s->info.class_names = names;
    } else if (labels->largest > DPT_CSV_LABEL_MOST) {
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: the largest label is %.0f: too large for the number of a class; "
                         "--classes takes labels as names, --regression as targets",
                         s->paths[0], labels->largest));
    } else {
        s->info.classes = (int64_t)labels->largest + 1;
    }
    if (labels->first_none != NULL && s->spec->log != NULL)
        dpt_log_info(s->spec->log,
                     "%s is taken for a class; --missing none with "
                     "--drop-missing-label takes it for no value",
                     labels->first_none);
    warn_of_classes(s);
out:
    return status;
}

enum dpt_status dpt_csv_class_at(const struct dpt_source *s, size_t column, int32_t *class,
                                 struct dpt_error *err)
{
    const struct dpt_csv_state *state = s->state;
    const struct dpt_csv_labels *labels = &state->labels;
    const struct dpt_name name = dpt_column_value(dpt_csv_cell_at(state, column)->text);
    const struct dpt_name *known = find_class(labels, &name);

    if (known != NULL)
        *class = known->class;
    else if (!labels->named && name.is_number && name.value >= 0 && name.value <= labels->largest &&
             name.value == floor(name.value))
        *class = (int32_t)name.value;
    else if (s->spec->convert)
        return dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", s->paths[0]);
    else
        return dpt_csv_refuse(
            state, column, err,
            labels->given
                ? "none of the classes in the job's training data"
                : "no number of a class, and the job's training data do not name the classes");
    return DPT_OK;
}
