#include <stdio.h>
#include <string.h>

#include "core/conf/internal.h"

enum { WIDTH = 80, HELP_COLUMN = 28, STEP = 2, NAME = 160 };

void dpt_option_describe(const struct dpt_option *row, struct dpt_str *out)
{
    char wanted[DPT_VALUE_TEXT], bounds[DPT_VALUE_TEXT];
    const char *value = row->fallback;

    if (value != NULL && strcmp(value, "null") == 0 && !dpt_value_is_word(row, value))
        value = "none";
    dpt_value_wanted(row, wanted);
    dpt_value_bounds(row, bounds);
    dpt_str_printf(out, "%s%s%s; %s%s", wanted, bounds[0] == '\0' ? "" : ", ", bounds,
                   value == NULL ? "must be given" : "default ", value == NULL ? "" : value);
}

/* A name at `indent`, its help beside it, or below where the name is long. */
static void write_item(const char *name, const char *help, size_t indent, struct dpt_str *out)
{
    const size_t columns = indent + dpt_utf8_width(name, strlen(name));

    dpt_str_printf(out, "%*s%s", (int)indent, "", name);
    if (columns + 2 > HELP_COLUMN)
        dpt_str_printf(out, "\n%*s", HELP_COLUMN, "");
    else
        dpt_str_printf(out, "%*s", (int)(HELP_COLUMN - columns), "");
    dpt_str_wrap(out, help, HELP_COLUMN, HELP_COLUMN, WIDTH);
}

void dpt_option_help(const struct dpt_option_visit *at, struct dpt_str *out)
{
    const struct dpt_option *row = at->row;
    const size_t indent = STEP * (1 + (size_t)at->depth);
    struct dpt_str described = {0};
    char name[NAME];

    if (row == NULL) {
        snprintf(name, sizeof name, "type: %s", at->variant);
        write_item(name, at->summary == NULL ? "" : at->summary, indent, out);
        return;
    }
    write_item(at->path, row->help == NULL ? "" : row->help, indent, out);
    if (row->type == DPT_OPT_SECTION)
        return;
    dpt_option_describe(row, &described);
    dpt_str_printf(out, "%*s", HELP_COLUMN, "");
    dpt_str_wrap(out, described.text != NULL ? described.text : "", HELP_COLUMN, HELP_COLUMN,
                 WIDTH);
    dpt_str_release(&described);
}

/* A help text on its way. */
struct help {
    struct dpt_str *out;
    const char *key;
    struct dpt_option_visit variant; /* in which the walk is; its line is not written yet */
    bool found;
};

/* Whether a path is the key, lies in it, or ends with it. */
static bool is_asked(const char *path, const char *key)
{
    const size_t n = strlen(key), length = strlen(path);

    if (n == 0 || (strncmp(path, key, n) == 0 && (path[n] == '.' || path[n] == '\0')))
        return true;
    return length > n && path[length - n - 1] == '.' && strcmp(path + length - n, key) == 0;
}

static void visit(void *arg, const struct dpt_option_visit *at)
{
    struct help *h = arg;

    if (at->listed) /* the row that reads the list says what is in it */
        return;
    if (at->row == NULL)
        h->variant = *at;
    if (!is_asked(at->path, h->key))
        return;
    if (at->row != NULL && (at->row->type == DPT_OPT_SECTION || at->row->type == DPT_OPT_VARIANT))
        dpt_str_printf(h->out, "\n");
    if (at->row != NULL && at->variant != NULL && h->variant.variant == at->variant)
        dpt_option_help(&h->variant, h->out);
    if (at->row == NULL || at->variant != NULL)
        h->variant = (struct dpt_option_visit){0};
    dpt_option_help(at, h->out);
    h->found = true;
}

bool dpt_options_help(const struct dpt_option *table, const char *key, struct dpt_str *out)
{
    struct help help = {.out = out, .key = key};

    dpt_options_walk(table, visit, &help);
    return help.found;
}
