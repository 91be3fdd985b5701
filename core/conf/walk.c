#include "core/conf/option.h"

struct walk {
    void (*visit)(void *arg, const struct dpt_option_visit *at);
    void *arg;
    bool listed;
};

static bool has_kinds(const struct dpt_option *row)
{
    return row->type == DPT_OPT_CUSTOM && row->alternatives != NULL &&
           row->alternatives->kind != NULL;
}

static void walk_table(struct walk *w, const struct dpt_option *table, const char *prefix,
                       const char *variant, int depth);

/* The rows of a variant or a kind, after one visit that names it. */
static void walk_named(struct walk *w, const struct dpt_option *table, const char *prefix,
                       const char *name, const char *summary, int depth)
{
    w->visit(w->arg, &(struct dpt_option_visit){.path = prefix,
                                                .variant = name,
                                                .summary = summary,
                                                .depth = depth,
                                                .listed = w->listed});
    walk_table(w, table, prefix, name, depth + 1);
}

static void walk_table(struct walk *w, const struct dpt_option *table, const char *prefix,
                       const char *variant, int depth)
{
    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        struct dpt_option_kind kind;
        struct dpt_str path = {0};

        dpt_str_printf(&path, "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".", row->name);
        if (path.failed) {
            dpt_str_release(&path);
            return;
        }
        w->visit(w->arg, &(struct dpt_option_visit){.path = path.text,
                                                    .row = row,
                                                    .variant = variant,
                                                    .depth = depth,
                                                    .listed = w->listed});
        if (row->type == DPT_OPT_SECTION)
            walk_table(w, row->rows, path.text, NULL, depth + 1);
        for (size_t i = 0; row->type == DPT_OPT_VARIANT && row->variants[i] != NULL; i++)
            walk_named(w, row->variants[i]->options, path.text, row->variants[i]->name,
                       row->variants[i]->summary, depth + 1);
        if (has_kinds(row) && !w->listed) {
            w->listed = true;
            for (size_t i = 0; row->alternatives->kind(i, &kind); i++)
                walk_named(w, kind.options, kind.name, kind.name, kind.summary, depth + 1);
            w->listed = false;
        }
        dpt_str_release(&path);
    }
}

void dpt_options_walk(const struct dpt_option *table,
                      void (*visit)(void *arg, const struct dpt_option_visit *at), void *arg)
{
    struct walk w = {.visit = visit, .arg = arg};

    walk_table(&w, table, "", NULL, 0);
}
