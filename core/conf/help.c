#include <stdio.h>
#include <string.h>

#include "core/conf/option.h"
#include "core/conf/value.h"

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

static void write_table(const struct dpt_option *table, const char *prefix, size_t indent,
                        struct dpt_str *out);

static void write_row(const struct dpt_option *row, const char *prefix, size_t indent,
                      struct dpt_str *out)
{
    char name[NAME], text[NAME];
    struct dpt_str described = {0};
    const char *help = row->help == NULL ? "" : row->help;

    snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".", row->name);
    if (row->type == DPT_OPT_SECTION) {
        dpt_str_printf(out, "\n");
        write_item(name, help, indent, out);
        write_table(row->rows, name, indent + STEP, out);
        return;
    }
    if (row->type == DPT_OPT_VARIANT)
        dpt_str_printf(out, "\n");
    write_item(name, help, indent, out);
    dpt_option_describe(row, &described);
    dpt_str_printf(out, "%*s", HELP_COLUMN, "");
    dpt_str_wrap(out, described.text != NULL ? described.text : "", HELP_COLUMN, HELP_COLUMN,
                 WIDTH);
    dpt_str_release(&described);
    for (size_t i = 0; row->type == DPT_OPT_VARIANT && row->variants[i] != NULL; i++) {
        const struct dpt_variant *variant = row->variants[i];

        snprintf(text, sizeof text, "type: %s", variant->name);
        write_item(text, variant->summary == NULL ? "" : variant->summary, indent + STEP, out);
        write_table(variant->options, name, indent + 2 * STEP, out);
    }
}

static void write_table(const struct dpt_option *table, const char *prefix, size_t indent,
                        struct dpt_str *out)
{
    for (; table->name != NULL; table++)
        write_row(table, prefix, indent, out);
}

void dpt_options_help(const struct dpt_option *table, const char *prefix, struct dpt_str *out)
{
    write_table(table, prefix, STEP, out);
}
