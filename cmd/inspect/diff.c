/* Where two files differ: attributes, then the job, then the data sets. */
#include <stdio.h>
#include <string.h>

#include "cmd/inspect/print.h"
#include "core/state/jobs.h"
#include "core/train/job/job.h"

/* "step: 60 -> 45", in two lines where it is long. */
static void print_change(const char *name, const char *before, const char *now)
{
    const bool is_long = strlen(name) + strlen(before) + strlen(now) > 70;

    printf("  %s: %s%s-> %s\n", name, before, is_long ? "\n      " : " ", now);
}

/* A heading before the first line of a part. */
static void begin(const char *heading, size_t *lines)
{
    if ((*lines)++ == 0)
        printf("\n%s\n", heading);
}

static size_t diff_attributes(const struct dpt_inspect *a, const struct dpt_inspect *b)
{
    size_t lines = 0;

    for (size_t i = 0; i < a->n_attributes; i++) {
        const struct dpt_inspect_attribute *x = &a->attributes[i];
        const struct dpt_inspect_attribute *y = dpt_inspect_attribute(b, x->name);

        if (y != NULL && x->kind == y->kind && strcmp(x->text, y->text) == 0 &&
            x->integer == y->integer &&
            /* The bits, so that a NaN is as itself.
             * NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
            memcmp(&x->real, &y->real, sizeof x->real) == 0)
            continue;
        begin("attributes", &lines);
        print_change(x->name, x->text, y != NULL ? y->text : "nothing");
    }
    for (size_t i = 0; i < b->n_attributes; i++) {
        if (dpt_inspect_attribute(a, b->attributes[i].name) != NULL)
            continue;
        begin("attributes", &lines);
        print_change(b->attributes[i].name, "nothing", b->attributes[i].text);
    }
    return lines;
}

/* *is_job: whether both have one, so that it is not compared again as a data set. */
static enum dpt_status diff_jobs(struct dpt_inspect *a, struct dpt_inspect *b, bool *is_job,
                                 size_t *differences, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_inspect_set *const x = dpt_inspect_find(a, "/job"), *const y =
                                                                       dpt_inspect_find(b, "/job");
    const char *old_job = NULL, *new_job = NULL;
    struct dpt_str changes = {0};
    size_t lines = 0;

    *is_job = false;
    if (x == NULL || y == NULL)
        return DPT_OK;
    DPT_TRY(dpt_inspect_text(a, x, &old_job, err));
    DPT_TRY(dpt_inspect_text(b, y, &new_job, err));
    *is_job = old_job != NULL && new_job != NULL;
    if (!*is_job || strcmp(old_job, new_job) == 0)
        goto out;
    dpt_jobs_compare(old_job, new_job, dpt_job_options, sizeof(struct dpt_job), NULL, true,
                     &changes);
    if (changes.failed)
        DPT_TRY(dpt_fail_memory(err, "comparing jobs", 0));
    begin("job", &lines);
    for (char *line = changes.text, *rest; line != NULL; line = rest) {
        rest = strchr(line, '\n');
        if (rest != NULL)
            *rest++ = '\0';
        printf("  %s\n", line);
    }
    if (changes.length == 0)
        printf("  worded in another way\n");
    ++*differences;
out:
    dpt_str_release(&changes);
    return status;
}

static size_t only_in(const struct dpt_inspect *a, const struct dpt_inspect *b, const char *which,
                      size_t *lines)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n_sets; i++) {
        if (dpt_inspect_find(b, a->sets[i].name) != NULL)
            continue;
        begin("data sets", lines);
        printf("  only the %s has %s\n", which, a->sets[i].name);
        n++;
    }
    return n;
}

static void print_forms(const struct dpt_inspect_set *x, const struct dpt_inspect_set *y)
{
    char before[DPT_DIMS_TEXT], now[DPT_DIMS_TEXT];

    printf("  %s: %s %s -> %s %s\n", x->name, x->type, dpt_dims_text(x->n_dims, x->dims, before),
           y->type, dpt_dims_text(y->n_dims, y->dims, now));
}

/* "values, the first at /params/conv1/weight[0, 2, 1]:", "0.25 -> 0.75" */
static void print_first(const struct dpt_inspect_set *set, const struct dpt_inspect_difference *d)
{
    int64_t index[DPT_INSPECT_DIMS], rest = d->first;
    char place[DPT_DIMS_TEXT] = "";

    for (int i = set->n_dims - 1; i >= 0; i--) {
        index[i] = rest % set->dims[i];
        rest /= set->dims[i];
    }
    if (set->n_dims > 0)
        dpt_dims_text(set->n_dims, index, place);
    printf("\nvalues, the first at %s%s\n", set->name, place);
    if (set->numbers)
        printf("  %.9g -> %.9g\n", d->a, d->b);
}

static void add_difference(struct dpt_table *table, const struct dpt_inspect_set *set,
                           const struct dpt_inspect_difference *d)
{
    struct dpt_table_row *row = dpt_table_add(table, set->name);

    dpt_group_digits(row->cell[0], d->items);
    dpt_group_digits(row->cell[1], set->items);
    if (!set->numbers)
        return;
    snprintf(row->cell[2], DPT_TABLE_CELL, "%.4g", d->absolute);
    snprintf(row->cell[3], DPT_TABLE_CELL, "%.4g", d->relative);
}

static enum dpt_status diff_sets(struct dpt_inspect *a, struct dpt_inspect *b, bool is_job,
                                 size_t *differences, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_table table = {
        .title = "data set", .titles = {"differ", "of", "absolute", "relative"}, .align = "rrrr"};
    struct dpt_inspect_difference d;
    size_t lines = 0;

    DPT_TRY(dpt_table_open(&table, a->n_sets, err));
    *differences += only_in(a, b, "first", &lines) + only_in(b, a, "second", &lines);
    for (size_t i = 0; i < a->n_sets; i++) {
        struct dpt_inspect_set *x = &a->sets[i], *y = dpt_inspect_find(b, x->name);

        if (y == NULL || dpt_inspect_alike(x, y))
            continue;
        if (is_job && strcmp(x->name, "/job") == 0)
            continue;
        begin("data sets", &lines);
        print_forms(x, y);
        ++*differences;
    }
    for (size_t i = 0; i < a->n_sets; i++) {
        struct dpt_inspect_set *x = &a->sets[i], *y = dpt_inspect_find(b, x->name);

        if (y == NULL || !dpt_inspect_alike(x, y) || (is_job && strcmp(x->name, "/job") == 0))
            continue;
        DPT_TRY(dpt_inspect_compare(a, x, b, y, &d, err));
        if (d.items == 0)
            continue;
        if (table.n == 0)
            print_first(x, &d);
        add_difference(&table, x, &d);
        ++*differences;
    }
    if (table.n > 0)
        dpt_table_print(&table);
out:
    dpt_table_close(&table);
    return status;
}

enum dpt_status dpt_inspect_diff(struct dpt_inspect *a, struct dpt_inspect *b,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t differences = 0;
    bool is_job;

    dpt_inspect_sort(a);
    dpt_inspect_sort(b);
    printf("first:  %s\nsecond: %s\n", a->path, b->path);
    differences += diff_attributes(a, b);
    DPT_TRY(diff_jobs(a, b, &is_job, &differences, err));
    DPT_TRY(diff_sets(a, b, is_job, &differences, err));
    if (differences == 0) {
        printf("the same: %zu attributes and %zu data sets\n", a->n_attributes, a->n_sets);
    } else {
        err->text[0] = '\0';
        status = err->status = DPT_FAILED;
    }
out:
    return status;
}
