#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

#include "core/base/file.h"
#include "core/conf/internal.h"

/* libyaml's events one after another; its own tree builder would recurse without a bound. */
struct reader {
    struct dpt_conf *conf;
    const struct dpt_read_spec *spec;
    yaml_parser_t parser;
    yaml_event_t event; /* the one being looked at */
    int depth;          /* maps and lists around it */
};

/* Where the reader is, from the inside out; a name is made of it only for an error. */
struct frame {
    const struct frame *up;
    const char *key; /* NULL: an entry of a list */
    size_t index;
};

static struct dpt_conf_node *read_node(struct reader *r, const struct frame *frame);

static const char *path_of(struct reader *r, const struct frame *frame)
{
    const char *base, *path;

    if (frame == NULL)
        return r->spec->path;
    base = path_of(r, frame->up);
    path = dpt_option_path(r->conf, base,
                           frame->key == NULL ? NULL : dpt_conf_show(r->conf, frame->key),
                           frame->index);
    return path == NULL ? base : path;
}

static void place(const struct reader *r, struct dpt_conf_node *node, const yaml_mark_t *mark)
{
    if (r->spec->place != NULL) {
        dpt_conf_place(node, r->spec->place);
        node->filled = r->spec->place->filled;
    } else {
        node->line = (int)mark->line + 1;
        node->column = (int)mark->column + 1;
    }
}

/* Whether the line that holds a mark is indented with a tab, which libyaml only calls a wrong
 * character. */
static bool tab_before(const struct dpt_read_spec *spec, const yaml_mark_t *mark)
{
    const char *p = spec->text, *end = spec->text + spec->length;

    for (size_t line = 0; line < mark->line && p != NULL; line++) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (p != NULL)
            p++;
    }
    while (p != NULL && p < end && *p == ' ')
        p++;
    return p != NULL && p < end && *p == '\t';
}

static void syntax_mistake(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem == NULL ? "it cannot be read" : p->problem;
    struct dpt_conf_node at = {0};

    if (p->error == YAML_MEMORY_ERROR) {
        r->conf->region.failed = true;
        return;
    }
    place(r, &at, &p->problem_mark);
    if (tab_before(r->spec, &p->problem_mark))
        dpt_conf_mistake(r->conf, &at, NULL, "indent with spaces; this line has a tab");
    else if (p->context != NULL && r->spec->place == NULL)
        dpt_conf_mistake(r->conf, &at, NULL, "not YAML: %s, %s that begins at line %zu", problem,
                         p->context, p->context_mark.line + 1);
    else
        dpt_conf_mistake(r->conf, &at, NULL, "not YAML: %s", problem);
}

/* Takes the next event. False: an error was added. */
static bool next(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event))
        return true;
    syntax_mistake(r);
    return false;
}

/* A node for the event, with its place; what a job must not use is noted and otherwise ignored. */
static struct dpt_conf_node *begin(struct reader *r, const struct frame *frame,
                                   enum dpt_node_kind kind, const char *text,
                                   const yaml_char_t *anchor, const yaml_char_t *tag)
{
    struct dpt_conf_node *node = dpt_conf_new(r->conf, kind, text);

    if (node == NULL)
        return NULL;
    place(r, node, &r->event.start_mark);
    if (anchor != NULL)
        dpt_conf_mistake(r->conf, node, path_of(r, frame),
                         "anchors (&%s) are not used here; write the value out",
                         dpt_conf_show(r->conf, (const char *)anchor));
    if (tag != NULL)
        dpt_conf_mistake(r->conf, node, path_of(r, frame),
                         "tags (%s) are not used here; the option has its own type",
                         dpt_conf_show(r->conf, (const char *)tag));
    return node;
}

static struct dpt_conf_node *read_alias(struct reader *r, const struct frame *frame)
{
    struct dpt_conf_node *node = begin(r, frame, DPT_NODE_SCALAR, "null", NULL, NULL);

    if (node != NULL)
        dpt_conf_mistake(r->conf, node, path_of(r, frame),
                         "aliases (*%s) are not used here; write the value out, or quote a name "
                         "that starts with *",
                         dpt_conf_show(r->conf, (const char *)r->event.data.alias.anchor));
    return node;
}

static struct dpt_conf_node *read_scalar(struct reader *r, const struct frame *frame)
{
    const char *text = (const char *)r->event.data.scalar.value;
    struct dpt_conf_node *node = begin(r, frame, DPT_NODE_SCALAR, text, r->event.data.scalar.anchor,
                                       r->event.data.scalar.tag);

    if (node == NULL)
        return NULL;
    node->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (dpt_conf_is_null(node))
        node->text = "null";
    if (strlen(text) != r->event.data.scalar.length)
        dpt_conf_mistake(r->conf, node, path_of(r, frame), "a NUL character in a text");
    return node;
}

/* Enters a map or a list. False: too deep. */
static bool enter(struct reader *r, const struct dpt_conf_node *node)
{
    if (++r->depth <= DPT_YAML_DEPTH)
        return true;
    dpt_conf_mistake(r->conf, node, NULL, "more than %d maps and lists inside one another",
                     DPT_YAML_DEPTH);
    return false;
}

static struct dpt_conf_node *read_list(struct reader *r, const struct frame *up)
{
    struct dpt_conf_node *list =
        begin(r, up, DPT_NODE_LIST, NULL, r->event.data.sequence_start.anchor,
              r->event.data.sequence_start.tag);
    struct frame frame = {.up = up};

    if (list == NULL || !enter(r, list) || !next(r))
        return NULL;
    while (r->event.type != YAML_SEQUENCE_END_EVENT) {
        struct dpt_conf_node *item = read_node(r, &frame);

        if (item == NULL || !dpt_conf_append(r->conf, list, item) || !next(r))
            return NULL;
        frame.index++;
    }
    r->depth--;
    return list;
}

/* Whether a key is a word; false: an error was added, and the entry is left out so that only this
 * is told. */
static bool check_key(struct reader *r, const struct frame *up, const struct dpt_conf_node *key)
{
    const bool scalar = r->event.type == YAML_SCALAR_EVENT;

    if (key->kind != DPT_NODE_SCALAR)
        dpt_conf_mistake(r->conf, key, path_of(r, up), "a key must be a word, not a %s",
                         key->kind == DPT_NODE_LIST ? "list" : "map");
    else if (scalar && r->event.data.scalar.length == 0)
        dpt_conf_mistake(r->conf, key, path_of(r, up), "a key is empty");
    else if (strcmp(key->text, "<<") == 0 && !key->quoted)
        dpt_conf_mistake(r->conf, key, path_of(r, up),
                         "merge keys (<<) are not used here; write the keys out");
    else
        return scalar; /* an alias was noted already */
    return false;
}

static void check_duplicates(struct reader *r, const struct frame *up,
                             const struct dpt_conf_node *map)
{
    for (size_t i = 1; i < map->n; i++) {
        const size_t first = dpt_find(map->keys[i], map->keys, i);
        const struct frame frame = {.up = up, .key = map->keys[i]};

        if (first < i && r->spec->place == NULL)
            dpt_conf_mistake_key(r->conf, map->items[i], path_of(r, &frame),
                                 "duplicate key, first given at %d:%d", map->items[first]->key_line,
                                 map->items[first]->key_column);
        else if (first < i)
            dpt_conf_mistake(r->conf, map->items[i], path_of(r, &frame), "duplicate key");
    }
}

static struct dpt_conf_node *read_map(struct reader *r, const struct frame *up)
{
    struct dpt_conf_node *map = begin(r, up, DPT_NODE_MAP, NULL, r->event.data.mapping_start.anchor,
                                      r->event.data.mapping_start.tag);

    if (map == NULL || !enter(r, map) || !next(r))
        return NULL;
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        struct frame frame = {.up = up};
        struct dpt_conf_node *key = read_node(r, up), *value;
        bool good;

        if (key == NULL)
            return NULL;
        good = check_key(r, up, key);
        frame.key = good ? key->text : "?";
        if (!next(r))
            return NULL;
        value = read_node(r, &frame);
        if (value == NULL || (good && !dpt_conf_append(r->conf, map, value)) || !next(r))
            return NULL;
        if (good) {
            map->keys[map->n - 1] = key->text;
            value->key_line = key->line;
            value->key_column = key->column;
        }
    }
    r->depth--;
    check_duplicates(r, up, map);
    return map;
}

/* Reads the node whose first event is the current one; the current one is its last afterwards.
 * NULL: it failed. */
static struct dpt_conf_node *read_node(struct reader *r, const struct frame *frame)
{
    switch (r->event.type) {
    case YAML_ALIAS_EVENT:
        return read_alias(r, frame);
    case YAML_SCALAR_EVENT:
        return read_scalar(r, frame);
    case YAML_SEQUENCE_START_EVENT:
        return read_list(r, frame);
    default:
        return read_map(r, frame);
    }
}

static struct dpt_conf_node *read_one(struct reader *r)
{
    struct dpt_conf_node *root, at = {0};

    if (!next(r) || !next(r)) /* the stream begins, a document begins */
        return NULL;
    if (r->event.type == YAML_STREAM_END_EVENT) {
        dpt_conf_mistake(r->conf, r->spec->place, NULL,
                         "there is nothing in it; a job is a map of keys and values");
        return NULL;
    }
    if (!next(r))
        return NULL;
    root = read_node(r, NULL);
    if (root == NULL || !next(r) || !next(r))
        return NULL;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return root;
    place(r, &at, &r->event.start_mark);
    dpt_conf_mistake(r->conf, &at, NULL, "a second document begins here; a job is one document");
    return NULL;
}

/* Reads one document. NULL: as dpt_read_value. */
static struct dpt_conf_node *read_document(struct dpt_conf *conf, const struct dpt_read_spec *spec)
{
    struct reader r = {.conf = conf, .spec = spec, .depth = spec->depth};
    struct dpt_conf_node *root;

    if (!yaml_parser_initialize(&r.parser)) {
        conf->region.failed = true;
        return NULL;
    }
    /* Told, not guessed: libyaml would take UTF-16 without a word. */
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)spec->text, spec->length);
    root = read_one(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return conf->region.failed ? NULL : root;
}

struct dpt_conf_node *dpt_read_value(struct dpt_conf *conf, const struct dpt_read_spec *spec)
{
    static const char blanks[] = " \t\r\n";
    const char *text = spec->text;
    size_t length = spec->length;
    struct dpt_conf_node *node;
    const char *copy;

    while (length > 0 && strchr(blanks, *text) != NULL) {
        text++;
        length--;
    }
    while (length > 0 && strchr(blanks, text[length - 1]) != NULL)
        length--;
    if (length > 0 && strchr("[{\"'", *text) != NULL)
        return read_document(conf, spec);
    node = dpt_conf_new(conf, DPT_NODE_SCALAR, NULL);
    copy = dpt_region_strndup(&conf->region, text, length);
    if (node == NULL || copy == NULL)
        return NULL;
    node->text = copy;
    if (dpt_conf_is_null(node))
        node->text = "null";
    dpt_conf_place(node, spec->place);
    node->filled = spec->place->filled;
    return node;
}

static void parse(struct dpt_conf *conf, const char *text, size_t length)
{
    struct dpt_read_spec spec = {.text = text, .length = length, .path = ""};
    struct dpt_conf_node *root;

    if (length > DPT_YAML_BYTES) {
        dpt_conf_mistake(conf, NULL, NULL,
                         "%zu bytes; a job file has at most %d: is this the right file?", length,
                         DPT_YAML_BYTES);
        return;
    }
    if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        spec.text += 3;
        spec.length -= 3;
    }
    if (!dpt_check_text(conf, spec.text, spec.length, NULL))
        return;
    root = read_document(conf, &spec);
    if (root == NULL)
        return;
    if (dpt_conf_is_null(root))
        dpt_conf_mistake(conf, NULL, NULL,
                         "there is nothing in it; a job is a map of keys and values");
    else if (root->kind != DPT_NODE_MAP)
        dpt_conf_mistake(conf, root, NULL, "a job is a map of keys and values, this is a %s",
                         root->kind == DPT_NODE_LIST ? "list" : "text");
    else
        conf->root = root;
}

enum dpt_status dpt_conf_parse(struct dpt_conf *conf, const char *path, const char *text,
                               size_t length, struct dpt_error *err)
{
    *conf = (struct dpt_conf){0};
    conf->path = dpt_region_strdup(&conf->region, path);
    if (conf->path != NULL)
        parse(conf, text, length);
    /* With a tree the errors so far wait for those of the options. */
    return conf->root != NULL && !conf->region.failed ? DPT_OK
                                                      : dpt_conf_validation_result(conf, err);
}

enum dpt_status dpt_conf_load(struct dpt_conf *conf, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct stat info;
    char *text = NULL;
    char from[PATH_MAX + 32];
    size_t length = 0;

    *conf = (struct dpt_conf){0};
    if (stat(path, &info) != 0 && errno == ENOENT)
        return dpt_fail(err, DPT_BAD_JOB, "%s: no such file%s", path,
                        dpt_file_relative_to(path, from, sizeof from));
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > DPT_YAML_BYTES)
        return dpt_fail(err, DPT_BAD_JOB,
                        "%s: %lld bytes; a job file has at most %d: is this the right file?", path,
                        (long long)info.st_size, DPT_YAML_BYTES);
    DPT_TRY(dpt_file_read(path, DPT_YAML_BYTES, DPT_BAD_JOB, &text, &length, err));
    DPT_TRY(dpt_conf_parse(conf, path, text, length, err));
out:
    free(text);
    return status;
}
