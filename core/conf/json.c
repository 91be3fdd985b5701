#include "core/conf/json.h"

static void line(struct dpt_json *j)
{
    dpt_str_printf(j->out, "\n%*s", 2 * j->depth, "");
}

static void begin(struct dpt_json *j, const char *name)
{
    if (j->behind)
        dpt_str_printf(j->out, ",");
    if (j->depth > 0)
        line(j);
    j->behind = true;
    if (name == NULL)
        return;
    dpt_str_json(j->out, name);
    dpt_str_printf(j->out, ": ");
}

void dpt_json_open(struct dpt_json *j, const char *name, char bracket)
{
    begin(j, name);
    dpt_str_add(j->out, &bracket, 1);
    j->depth++;
    j->behind = false;
}

void dpt_json_close(struct dpt_json *j, char bracket)
{
    j->depth--;
    if (j->behind)
        line(j);
    dpt_str_add(j->out, &bracket, 1);
    j->behind = true;
}

void dpt_json_text(struct dpt_json *j, const char *name, const char *value)
{
    begin(j, name);
    dpt_str_json(j->out, value);
}

void dpt_json_number(struct dpt_json *j, const char *name, double value)
{
    begin(j, name);
    dpt_str_number(j->out, value);
}

void dpt_json_word(struct dpt_json *j, const char *name, const char *word)
{
    begin(j, name);
    dpt_str_printf(j->out, "%s", word);
}

void dpt_json_texts(struct dpt_json *j, const char *name, const char *const *values, size_t n,
                    bool null)
{
    begin(j, name);
    dpt_str_printf(j->out, "[");
    for (size_t i = 0; i < n; i++) {
        dpt_str_printf(j->out, "%s", i > 0 ? ", " : "");
        dpt_str_json(j->out, values[i]);
    }
    dpt_str_printf(j->out, "%s]", !null ? "" : n > 0 ? ", null" : "null");
}
