#include <stdlib.h>
#include <string.h>

#include "core/conf/internal.h"

/* An assignment on its way down the tree. */
struct setting {
    struct dpt_conf *conf;
    const char *at;   /* what of the name is still to be read */
    const char *name; /* the whole of it */
    struct dpt_conf_node place;
    struct dpt_conf_node **link; /* the node that is reached */
    int depth;
    struct dpt_error *err;
};

static enum dpt_status no_memory(const struct setting *s)
{
    return dpt_fail_memory(s->err, "the job", DPT_YAML_BYTES);
}

/* The name as far as it was read, for messages. */
static const char *so_far(const struct setting *s)
{
    const size_t n = (size_t)(s->at - s->name);
    const size_t dot = n > 0 && s->name[n - 1] == '.';
    const char *text = dpt_region_strndup(&s->conf->region, s->name, n - dot);

    return text == NULL ? "?" : dpt_conf_show(s->conf, text);
}

/* Makes a map of what is there, if that can be: nothing becomes an empty map, `adam` becomes {type:
 * adam}. */
static enum dpt_status need_map(struct setting *s)
{
    struct dpt_conf_node *old = *s->link;

    if (old->kind == DPT_NODE_LIST)
        return dpt_fail(s->err, DPT_BAD_JOB, "%s: %s is a list; name one of its entries: %s[0]",
                        s->place.origin, so_far(s), so_far(s));
    if (!dpt_conf_is_null(old))
        return dpt_option_bare(s->conf, old, "type") ? DPT_OK : no_memory(s);
    *s->link = dpt_conf_new(s->conf, DPT_NODE_MAP, NULL);
    if (*s->link == NULL)
        return no_memory(s);
    dpt_conf_place(*s->link, &s->place);
    return DPT_OK;
}

static enum dpt_status take_key(struct setting *s)
{
    enum dpt_status status = DPT_OK;
    const size_t length = strcspn(s->at, ".[");
    struct dpt_conf_node *map, *item;
    const char *key;
    size_t i;

    if (length == 0)
        return dpt_fail(s->err, DPT_USAGE, "%s: a name is missing; it reads like batch.micro=32",
                        s->place.origin);
    DPT_TRY(need_map(s));
    map = *s->link;
    key = dpt_region_strndup(&s->conf->region, s->at, length);
    if (key == NULL)
        return no_memory(s);
    i = dpt_find(key, map->keys, map->n);
    if (i == map->n) {
        item = dpt_conf_new(s->conf, DPT_NODE_SCALAR, "null");
        if (item == NULL || !dpt_conf_put(s->conf, map, key, item))
            return no_memory(s);
    }
    s->link = &map->items[i];
    s->at += length;
out:
    return status;
}

/* An entry `relu`, of which the name continues with `.relu`, becomes {relu: null}. */
static bool open_entry(struct setting *s)
{
    struct dpt_conf_node *entry = *s->link;
    const size_t n = entry->kind == DPT_NODE_SCALAR ? strlen(entry->text) : 0;

    if (n == 0 || *s->at != '.' || strcspn(s->at + 1, ".[") != n ||
        strncmp(s->at + 1, entry->text, n) != 0)
        return true;
    if (!dpt_option_bare(s->conf, entry, entry->text))
        return false;
    entry->items[0]->text = "null";
    entry->items[0]->quoted = false;
    return true;
}

static enum dpt_status take_index(struct setting *s)
{
    struct dpt_conf_node *list = *s->link;
    const char *digits = s->at + 1;
    const size_t n = strspn(digits, "0123456789");
    size_t index;

    if (n == 0 || n > 9 || digits[n] != ']')
        return dpt_fail(s->err, DPT_USAGE, "%s: an entry of a list is named like layers[2]",
                        s->place.origin);
    if (list->kind != DPT_NODE_LIST)
        return dpt_fail(s->err, DPT_BAD_JOB, "%s: %s is not a list in the job file",
                        s->place.origin, so_far(s));
    index = (size_t)strtoul(digits, NULL, 10);
    if (index >= list->n)
        return dpt_fail(s->err, DPT_BAD_JOB, "%s: %s has %zu entries, counted from 0",
                        s->place.origin, so_far(s), list->n);
    s->link = &list->items[index];
    s->at = digits + n + 1;
    return open_entry(s) ? DPT_OK : no_memory(s);
}

static enum dpt_status walk(struct setting *s)
{
    enum dpt_status status = DPT_OK;

    do {
        if (s->depth++ == DPT_YAML_DEPTH)
            DPT_TRY(dpt_fail(s->err, DPT_USAGE,
                             "%s: more than %d maps and lists inside one another", s->place.origin,
                             DPT_YAML_DEPTH));
        if (s->depth > 1 && *s->at != '[' && *s->at != '.')
            DPT_TRY(dpt_fail(s->err, DPT_USAGE, "%s: a dot is missing after %s", s->place.origin,
                             so_far(s)));
        if (s->depth > 1 && *s->at == '[') {
            DPT_TRY(take_index(s));
        } else {
            s->at += s->depth > 1;
            DPT_TRY(take_key(s));
        }
    } while (*s->at != '\0');
out:
    return status;
}

static enum dpt_status put_value(struct setting *s, const char *value)
{
    struct dpt_conf *conf = s->conf;
    const struct dpt_read_spec spec = {
        .text = value,
        .length = strlen(value),
        .place = &s->place,
        .path = s->name,
        .depth = s->depth,
    };
    struct dpt_conf_node *node = NULL;

    if (spec.length > DPT_YAML_BYTES)
        return dpt_fail(s->err, DPT_USAGE, "%s: the value has more than %d bytes", s->place.origin,
                        DPT_YAML_BYTES);
    if (dpt_check_text(conf, value, spec.length, s->place.origin))
        node = dpt_read_value(conf, &spec);
    if (conf->region.failed)
        return no_memory(s);
    if (node == NULL) {
        /* The command line is wrong, not the file: told by itself, and no longer among the
         * errors. */
        const struct dpt_mistake *last = &conf->mistakes[--conf->n_mistakes];

        return dpt_fail(s->err, DPT_USAGE, "%s: %s", s->place.origin, last->text);
    }
    *s->link = node;
    return DPT_OK;
}

enum dpt_status dpt_conf_set(struct dpt_conf *conf, const char *assignment, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *equals = strchr(assignment, '=');
    struct setting s = {.conf = conf, .link = &conf->root, .err = err};

    if (equals == NULL)
        return dpt_fail(err, DPT_USAGE, "--set %s: --set needs KEY=VALUE, such as batch.micro=32",
                        dpt_conf_show(conf, assignment));
    s.place.origin = dpt_region_printf(&conf->region, "--set %s", dpt_conf_show(conf, assignment));
    s.name = dpt_region_strndup(&conf->region, assignment, (size_t)(equals - assignment));
    s.place.order = ++conf->sets;
    if (s.place.origin == NULL || s.name == NULL)
        return no_memory(&s);
    if (!dpt_check_text(conf, s.name, strlen(s.name), s.place.origin)) {
        if (conf->region.failed)
            return no_memory(&s);
        conf->n_mistakes--;
        return dpt_fail(err, DPT_USAGE, "%s: the name is not UTF-8 text", s.place.origin);
    }
    s.at = s.name;
    DPT_TRY(walk(&s));
    DPT_TRY(put_value(&s, equals + 1));
out:
    return status;
}
