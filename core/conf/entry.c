#include <string.h>

#include "core/conf/internal.h"

bool dpt_option_bare(struct dpt_conf *conf, struct dpt_conf_node *node, const char *key)
{
    struct dpt_conf_node *inner, *map;

    if (node->kind == DPT_NODE_MAP)
        return true;
    inner = dpt_conf_new(conf, DPT_NODE_LIST, NULL);
    map = dpt_conf_new(conf, DPT_NODE_MAP, NULL);
    if (inner == NULL || map == NULL)
        return false;
    *inner = *node;
    if (!dpt_conf_put(conf, map, key, inner))
        return false;
    dpt_conf_place(map, node);
    map->filled = node->filled;
    *node = *map;
    return true;
}

/* Rewrites a node that says nothing into an empty map in the same place. */
static void make_empty_map(struct dpt_conf_node *node)
{
    node->kind = DPT_NODE_MAP;
    node->text = NULL;
    node->quoted = false;
    node->n = node->capacity = 0;
}

static void unknown_entry(struct dpt_conf *conf, const struct dpt_conf_node *value,
                          const char *path, const char *what, const char *const *names,
                          size_t n_names, const char *name)
{
    const char *meant = dpt_value_suggestion(conf, NULL, name, names, n_names);
    const bool question = meant[0] != '\0' && meant[strlen(meant) - 1] == '?';
    char list[DPT_VALUE_TEXT] = "";

    dpt_value_join(list, sizeof list, names, n_names);
    dpt_conf_mistake_key(conf, value, path, "unknown %s '%s'%s%s are %s", what,
                         dpt_conf_show(conf, name), meant, question ? " There" : "; there", list);
}

bool dpt_option_entry(struct dpt_conf *conf, struct dpt_conf_node *entry, const char *path,
                      const char *what, const char *const *names, size_t n_names, const char **name,
                      struct dpt_conf_node **value)
{
    if (entry->kind == DPT_NODE_LIST || dpt_conf_is_null(entry) ||
        (entry->kind == DPT_NODE_MAP && entry->n == 0)) {
        dpt_conf_mistake(conf, entry, path, "expected a %s, got %s", what,
                         entry->kind == DPT_NODE_MAP ? "an empty map" : dpt_value_got(conf, entry));
        return false;
    }
    if (entry->kind == DPT_NODE_MAP && entry->n > 1) {
        dpt_conf_mistake(conf, entry, path,
                         "expected one %s, got %zu keys; options stand deeper than their %s's name",
                         what, entry->n, what);
        return false;
    }
    /* `relu` into {relu: {}}. */
    if (entry->kind == DPT_NODE_SCALAR) {
        if (!dpt_option_bare(conf, entry, entry->text))
            return false;
        make_empty_map(entry->items[0]);
    }
    *name = entry->keys[0];
    *value = entry->items[0];
    if (dpt_find(*name, names, n_names) == n_names) {
        unknown_entry(conf, *value, path, what, names, n_names, *name);
        return false;
    }
    if (dpt_conf_is_null(*value))
        make_empty_map(*value);
    return true;
}
