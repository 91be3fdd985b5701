#include <stdlib.h>
#include <string.h>

#include "core/conf/option.h"

void dpt_conf_release(struct dpt_conf *conf)
{
    free(conf->mistakes);
    dpt_region_release(&conf->region);
    *conf = (struct dpt_conf){0};
}

struct dpt_conf_node *dpt_conf_get(const struct dpt_conf_node *map, const char *key)
{
    size_t i;

    if (map == NULL || map->kind != DPT_NODE_MAP)
        return NULL;
    i = dpt_find(key, map->keys, map->n);
    return i < map->n ? map->items[i] : NULL;
}

bool dpt_conf_is_null(const struct dpt_conf_node *node)
{
    static const char *const spellings[] = {"", "~", "null", "Null", "NULL"};
    enum { SPELLINGS = sizeof spellings / sizeof spellings[0] };

    return node->kind == DPT_NODE_SCALAR && !node->quoted &&
           dpt_find(node->text, spellings, SPELLINGS) < SPELLINGS;
}

struct dpt_conf_node *dpt_conf_new(struct dpt_conf *conf, enum dpt_node_kind kind, const char *text)
{
    struct dpt_conf_node *node = dpt_region_alloc(&conf->region, sizeof *node);

    if (node == NULL)
        return NULL;
    node->kind = kind;
    if (kind == DPT_NODE_SCALAR)
        node->text = dpt_region_strdup(&conf->region, text == NULL ? "" : text);
    return kind != DPT_NODE_SCALAR || node->text != NULL ? node : NULL;
}

/* Makes space for one more entry. The arrays left behind stay in the region: at most as much
 * again. */
static bool reserve(struct dpt_conf *conf, struct dpt_conf_node *node)
{
    const size_t capacity = node->capacity == 0 ? 4 : 2 * node->capacity;
    struct dpt_conf_node **items;
    const char **keys = NULL;

    if (node->n < node->capacity)
        return true;
    items = dpt_region_alloc(&conf->region, capacity * sizeof(void *));
    if (node->kind == DPT_NODE_MAP)
        keys = dpt_region_alloc(&conf->region, capacity * sizeof(void *));
    if (items == NULL || (node->kind == DPT_NODE_MAP && keys == NULL))
        return false;
    if (node->n > 0) {
        memcpy(items, node->items, node->n * sizeof(void *));
        if (keys != NULL)
            memcpy(keys, node->keys, node->n * sizeof(void *));
    }
    node->items = items;
    node->keys = keys;
    node->capacity = capacity;
    return true;
}

bool dpt_conf_append(struct dpt_conf *conf, struct dpt_conf_node *list, struct dpt_conf_node *item)
{
    if (!reserve(conf, list))
        return false;
    list->items[list->n++] = item;
    return true;
}

bool dpt_conf_put(struct dpt_conf *conf, struct dpt_conf_node *map, const char *key,
                  struct dpt_conf_node *item)
{
    const size_t i = dpt_find(key, map->keys, map->n);
    const char *copy;

    if (i < map->n) {
        if (item->row == NULL)
            item->row = map->items[i]->row;
        map->items[i] = item;
        return true;
    }
    copy = dpt_region_strdup(&conf->region, key);
    if (copy == NULL || !reserve(conf, map))
        return false;
    map->keys[map->n] = copy;
    map->items[map->n++] = item;
    return true;
}

void dpt_conf_place(struct dpt_conf_node *node, const struct dpt_conf_node *from)
{
    node->line = from->line;
    node->column = from->column;
    node->key_line = from->key_line;
    node->key_column = from->key_column;
    node->origin = from->origin;
    node->order = from->order;
}

const char *dpt_option_path(struct dpt_conf *conf, const char *path, const char *key, size_t index)
{
    if (path == NULL) /* memory ran out while this was made */
        return NULL;
    if (key == NULL)
        return dpt_region_printf(&conf->region, "%s[%zu]", path, index);
    if (path[0] == '\0')
        return dpt_region_strdup(&conf->region, key);
    return dpt_region_printf(&conf->region, "%s.%s", path, key);
}
