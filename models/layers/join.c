/* Joins of two values, a node each; longer lists become a chain of them. */
#include <stdio.h>

#include "models/layer.h"

static bool read_operands(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest);

// clang-format off
static const struct dpt_option operands[] = {
    {.name = "names", .type = DPT_OPT_TEXTS, .help = "names of layers"}, {0}};
static const struct dpt_alternatives alternatives = {.either = operands};

static const struct dpt_option options[] = {
    DPT_LAYER_NAME_ROW,
    {.name = "of", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct dpt_join_options, of),
     .read = read_operands, .alternatives = &alternatives, .value_text = "NAME or [NAME, NAME, ...]",
     .help = "layer to join with the one before (or `from`); a list: only its layers"},
    {0},
};
// clang-format on

static bool read_operands(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    const size_t mistakes = conf->n_mistakes;
    struct dpt_operands *of = dest;

    of->listed = node->kind == DPT_NODE_LIST;
    if (!dpt_option_read(conf, node, path, operands, &of->names))
        return false;
    if (!of->listed || of->names.n > 1 || conf->n_mistakes > mistakes)
        return true;
    if (of->names.n == 1)
        dpt_conf_mistake(conf, node, path,
                         "a join of one: give two names, or %s without brackets to join it with "
                         "the layer before",
                         dpt_conf_show(conf, of->names.at[0]));
    else
        dpt_conf_mistake(conf, node, path, "a join of nothing: give the names of two layers");
    return !conf->region.failed;
}

static enum dpt_status join_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                struct dpt_error *err)
{
    const struct dpt_join_options *o = layer->options;
    enum dpt_status status = DPT_OK;
    char name[DPT_NAME];
    int32_t other;

    if (o->of.listed && layer->from != NULL)
        return dpt_builder_fail(b, err,
                                "`from` beside a list: a list names all that is joined, so put "
                                "'%s' into it",
                                layer->from);
    if (o->of.listed)
        DPT_TRY(dpt_builder_find(b, o->of.names.at[0], &b->last, err));
    for (size_t i = o->of.listed ? 1 : 0; i < o->of.names.n; i++) {
        if (i + 1 < o->of.names.n)
            snprintf(name, sizeof name, "%.40s/%u", b->here.name, (unsigned)i % 100000);
        else
            snprintf(name, sizeof name, "%s", b->here.name);
        DPT_TRY(dpt_builder_find(b, o->of.names.at[i], &other, err));
        DPT_TRY(dpt_builder_join(b, layer->type->op, name, other, err));
    }
out:
    return status;
}

#define JOIN(NAME, lower, text)                                                                    \
    DPT_LAYER(NAME, lower, options, struct dpt_join_options, .summary = text, .main = "of",        \
              .add = join_add)
JOIN(ADD, add, "sum of two layers' outputs of equal shapes");
JOIN(MULTIPLY, multiply, "product of two layers' outputs of equal shapes, number by number");
JOIN(CONCAT, concat,
     "concatenation of two layers' outputs along the channels, or of two flat vectors");
