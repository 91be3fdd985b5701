#include <stdlib.h>
#include <string.h>

#include "core/conf/internal.h"

enum { NAMES = 128 }; /* names that a suggestion looks at */

static const struct dpt_option *find_row(const struct dpt_option *table, const char *name)
{
    for (; table->name != NULL; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

/* Names of the variants that have such a key. */
static void join_owners(const struct dpt_option *variants, const char *key, char *list, size_t size)
{
    const char *names[NAMES];
    size_t n = 0;

    for (size_t i = 0; variants != NULL && variants->variants[i] != NULL && n < NAMES; i++)
        if (find_row(variants->variants[i]->options, key) != NULL)
            names[n++] = variants->variants[i]->name;
    dpt_value_join(list, size, names, n);
}

static void unknown_key(struct dpt_conf *conf, const struct dpt_conf_node *map, size_t i,
                        const char *path, const struct dpt_option *table,
                        const struct dpt_option *variants)
{
    const char *shown = dpt_conf_show(conf, map->keys[i]), *name, *meant;
    const char *names[NAMES];
    char list[DPT_VALUE_TEXT] = "", owners[DPT_VALUE_TEXT] = "";
    size_t n = 0;

    if (variants != NULL)
        names[n++] = "type";
    for (; table->name != NULL && n < NAMES; table++)
        names[n++] = table->name;
    name = dpt_option_path(conf, path, shown, 0);
    meant = dpt_value_suggestion(conf, name, map->keys[i], names, n);
    dpt_value_join(list, sizeof list / 2, names, n);
    join_owners(variants, map->keys[i], owners, sizeof owners / 2);
    if (owners[0] != '\0')
        dpt_conf_mistake_key(conf, map->items[i], name, "unknown key; it belongs to type %s",
                             owners);
    else if (strncmp(meant, "; did", 5) == 0)
        dpt_conf_mistake_key(conf, map->items[i], name, "unknown key, %s", meant + 2);
    else if (meant[0] != '\0')
        dpt_conf_mistake_key(conf, map->items[i], name, "unknown key%s", meant);
    else if (n > 0)
        dpt_conf_mistake_key(conf, map->items[i], name, "unknown key; there are %s", list);
    else
        dpt_conf_mistake_key(conf, map->items[i], name, "unknown key; nothing can be set here");
}

/* The map's entries in the table's order, so that a resolved job looks alike however it was
 * written. */
static bool sort_entries(struct dpt_conf *conf, struct dpt_conf_node *map,
                         const struct dpt_option *table, bool typed)
{
    struct dpt_conf_node **items = dpt_region_alloc(&conf->region, (map->n + 1) * sizeof(void *));
    const char **keys = dpt_region_alloc(&conf->region, (map->n + 1) * sizeof(void *));
    size_t n = 0;

    if (items == NULL || keys == NULL)
        return false;
    for (const struct dpt_option *row = typed ? NULL : table; row == NULL || row->name != NULL;
         row = row == NULL ? table : row + 1) {
        for (size_t i = 0; i < map->n; i++) {
            if (map->items[i] == NULL ||
                strcmp(map->keys[i], row == NULL ? "type" : row->name) != 0)
                continue;
            keys[n] = map->keys[i];
            items[n++] = map->items[i];
            map->items[i] = NULL;
        }
    }
    for (size_t i = 0; i < map->n; i++) {
        if (map->items[i] != NULL) {
            keys[n] = map->keys[i];
            items[n++] = map->items[i];
        }
    }
    map->keys = keys;
    map->items = items;
    map->capacity = map->n + 1;
    return true;
}

/* The entry of a row; where the map lacks it, one that says nothing, in the map's place. */
static struct dpt_conf_node *need_entry(struct dpt_conf *conf, struct dpt_conf_node *map,
                                        const char *name)
{
    struct dpt_conf_node *node = dpt_conf_get(map, name);

    if (node != NULL)
        return node;
    node = dpt_conf_new(conf, DPT_NODE_SCALAR, "null");
    if (node == NULL)
        return NULL;
    dpt_conf_place(node, map);
    node->filled = true;
    return dpt_conf_put(conf, map, name, node) ? node : NULL;
}

/* Where a value was given: " (line 3:16)", " (--set train.steps=4)". */
static const char *place_text(struct dpt_conf *conf, const struct dpt_conf_node *node)
{
    const char *text =
        node->origin != NULL
            ? dpt_region_printf(&conf->region, " (%s)", node->origin)
            : dpt_region_printf(&conf->region, " (line %d:%d)", (int)node->line, (int)node->column);

    return text != NULL ? text : "";
}

/* Settles two keys that say the same in two ways: both in the file are an error, and so are both
 * on the command line; what was set there takes the place of the file's. */
static bool settle_rival(struct dpt_conf *conf, struct dpt_conf_node *map, const char *path,
                         const struct dpt_option *row)
{
    struct dpt_conf_node *mine = dpt_conf_get(map, row->name), *none;
    struct dpt_conf_node *other = row->rival != NULL ? dpt_conf_get(map, row->rival) : NULL;

    if (mine == NULL || other == NULL || dpt_conf_is_null(mine) || dpt_conf_is_null(other))
        return true;
    if ((mine->order > 0) == (other->order > 0)) {
        dpt_conf_mistake(conf, mine, dpt_option_path(conf, path, row->name, 0),
                         "give either %s%s or %s, not both", row->rival,
                         mine->order > 0 && mine->order == other->order ? ""
                                                                        : place_text(conf, other),
                         row->name);
        return !conf->region.failed;
    }
    none = dpt_conf_new(conf, DPT_NODE_SCALAR, "null");
    if (none == NULL)
        return false;
    dpt_conf_place(none, map);
    return dpt_conf_put(conf, map, mine->order > other->order ? row->rival : row->name, none);
}

/* Whether an entry is left from another type, after which `--set x.type=` came later. */
static bool is_left(const struct dpt_conf_node *map, size_t i, const struct dpt_option *variants)
{
    const size_t type = variants != NULL ? dpt_find("type", map->keys, map->n) : map->n;
    char owners[DPT_VALUE_TEXT] = "";

    join_owners(variants, map->keys[i], owners, sizeof owners);
    return owners[0] != '\0' && type < map->n && map->items[i]->order < map->items[type]->order;
}

static void remove_entry(struct dpt_conf_node *map, size_t i)
{
    map->n--;
    memmove(&map->keys[i], &map->keys[i + 1], (map->n - i) * sizeof *map->keys);
    memmove(&map->items[i], &map->items[i + 1], (map->n - i) * sizeof(void *));
}

/* variants: NULL, or the row of whose variants this is one, so that its `type` is not in the table.
 */
static bool read_map(struct dpt_conf *conf, struct dpt_conf_node *map, const char *path,
                     const struct dpt_option *table, const struct dpt_option *variants, void *base)
{
    const bool typed = variants != NULL;

    if (map->kind != DPT_NODE_MAP) {
        const char *colon = dpt_region_printf(&conf->region, "%s:", path == NULL ? "" : path);

        if (colon != NULL)
            dpt_conf_mistake(conf, map, path, "expected a map of keys and values, got %s%s",
                             dpt_value_got(conf, map),
                             dpt_value_suggestion(conf, colon, colon, NULL, 0));
        return !conf->region.failed;
    }
    for (size_t i = 0; i < map->n; i++)
        if (find_row(table, map->keys[i]) == NULL &&
            !(typed && strcmp(map->keys[i], "type") == 0)) {
            if (is_left(map, i, variants))
                remove_entry(map, i--);
            else
                unknown_key(conf, map, i, path, table, variants);
        }
    for (const struct dpt_option *row = table; row->name != NULL; row++)
        if (!settle_rival(conf, map, path, row))
            return false;
    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        struct dpt_conf_node *node = need_entry(conf, map, row->name);
        const char *name = dpt_option_path(conf, path, row->name, 0);

        if (node == NULL || name == NULL ||
            !dpt_option_read(conf, node, name, row, (char *)base + row->offset))
            return false;
    }
    return sort_entries(conf, map, table, typed) && !conf->region.failed;
}

bool dpt_options_read(struct dpt_conf *conf, struct dpt_conf_node *map, const char *path,
                      const struct dpt_option *table, void *base)
{
    return read_map(conf, map, path, table, NULL, base);
}

static void unknown_variant(struct dpt_conf *conf, const struct dpt_conf_node *type,
                            const char *path, const struct dpt_option *row)
{
    const char *names[NAMES];
    char list[DPT_VALUE_TEXT] = "";
    size_t n = 0;

    for (; row->variants[n] != NULL && n < NAMES; n++)
        names[n] = row->variants[n]->name;
    dpt_value_join(list, sizeof list, names, n);
    if (type == NULL || type->kind != DPT_NODE_SCALAR)
        dpt_conf_mistake(conf, type, path, "expected one of %s, got %s", list,
                         type == NULL ? "nothing" : dpt_value_got(conf, type));
    else
        dpt_conf_mistake(conf, type, path, "'%s' is none of %s%s", dpt_conf_show(conf, type->text),
                         list, dpt_value_suggestion(conf, NULL, type->text, names, n));
}

static bool read_variant(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                         const struct dpt_option *row, struct dpt_variant_value *value)
{
    const bool scalar = node->kind == DPT_NODE_SCALAR;
    struct dpt_conf_node *type;
    const struct dpt_variant *const *found = row->variants;
    char names[DPT_VALUE_TEXT];

    if (node->kind == DPT_NODE_LIST) {
        unknown_variant(conf, node, path, row);
        return !conf->region.failed;
    }
    if (!dpt_option_bare(conf, node, "type"))
        return false;
    type = dpt_conf_get(node, "type");
    if ((type == NULL || dpt_conf_is_null(type)) && row->fallback != NULL) {
        type = dpt_conf_new(conf, DPT_NODE_SCALAR, row->fallback);
        if (type == NULL || !dpt_conf_put(conf, node, "type", type))
            return false;
        dpt_conf_place(type, node);
        type->filled = true;
    }
    if (type == NULL || dpt_conf_is_null(type)) {
        dpt_conf_mistake(conf, node, path, "`type` is missing: %s", dpt_value_wanted(row, names));
        return !conf->region.failed;
    }
    if (type->kind != DPT_NODE_SCALAR) {
        unknown_variant(conf, type, dpt_option_path(conf, path, "type", 0), row);
        return !conf->region.failed;
    }
    while (*found != NULL && strcmp((*found)->name, type->text) != 0)
        found++;
    if (*found == NULL) {
        unknown_variant(conf, type, scalar ? path : dpt_option_path(conf, path, "type", 0), row);
        return !conf->region.failed;
    }
    value->variant = *found;
    value->at = node;
    value->file = dpt_region_strdup(&conf->region, conf->path);
    value->options = dpt_region_alloc(&conf->region, (*found)->size + 1);
    if (value->options == NULL || value->file == NULL)
        return false;
    return read_map(conf, node, path, (*found)->options, row, value->options);
}

/* Puts the row's default in place of a node that says nothing. */
static bool fill(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                 const struct dpt_option *row)
{
    struct dpt_read_spec spec = {
        .text = row->fallback, .length = strlen(row->fallback), .place = node, .path = path};
    struct dpt_conf_node *value;

    node->filled = true;
    value = dpt_read_value(conf, &spec);
    if (value != NULL)
        *node = *value;
    return !conf->region.failed;
}

bool dpt_option_read(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                     const struct dpt_option *row, void *dest)
{
    bool good = true;
    char wanted[DPT_VALUE_TEXT];

    dpt_value_settle(conf, node, row);
    if (dpt_conf_is_null(node) && !dpt_value_is_word(row, "null")) {
        if (row->fallback == NULL) {
            dpt_conf_mistake(conf, node, path, "must be given: %s", dpt_value_wanted(row, wanted));
            return !conf->region.failed;
        }
        if (!fill(conf, node, path, row))
            return false;
        if (dpt_conf_is_null(node)) {
            if (row->type == DPT_OPT_CHOICE)
                *(int *)dest = -1;
            node->row = row;
            return true;
        }
    }
    if (row->type == DPT_OPT_SECTION)
        good = (row->bare == NULL || dpt_option_bare(conf, node, row->bare)) &&
               read_map(conf, node, path, row->rows, NULL, dest);
    else if (row->type == DPT_OPT_VARIANT)
        good = read_variant(conf, node, path, row, dest);
    else if (row->type == DPT_OPT_CUSTOM)
        good = row->read(conf, node, path, dest);
    else
        dpt_value_read(conf, node, path, row, dest);
    node->row = row; /* last, since a CUSTOM row may have had another one read it */
    return good && !conf->region.failed;
}
