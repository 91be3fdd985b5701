/*
 * The JSON Schema of a table: draft 7, which editors' YAML extensions read.
 *
 * Where a value is one thing or another, `if` asks what it is and `then` what it must be like: so
 * that an editor tells what is wrong with this layer, and not that it is none of eleven layers.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/conf/internal.h"

enum { NAMES = 128 };

/* Names that are collected for an `enum`. */
struct names {
    const char *at[NAMES];
    size_t n;
};

static void add_name(struct names *names, const char *name)
{
    if (names->n < NAMES)
        names->at[names->n++] = name;
}

/* null is "not given" where a row has a default. */
static bool may_be_null(const struct dpt_option *row)
{
    return row->fallback != NULL;
}

static bool must_give(const struct dpt_option *table)
{
    for (; table->name != NULL; table++)
        if (!may_be_null(table))
            return true;
    return false;
}

static void write_value(struct dpt_json *j, const struct dpt_option *row, bool null);
static void write_row(struct dpt_json *j, const char *name, const struct dpt_option *row);

/* --- defaults --------------------------------------------------------------------------------- */

static void write_node(struct dpt_json *j, const char *name, const struct dpt_conf_node *node)
{
    double number;

    if (node->kind != DPT_NODE_SCALAR) {
        node->kind == DPT_NODE_LIST ? dpt_json_array(j, name) : dpt_json_object(j, name);
        for (size_t i = 0; i < node->n; i++)
            write_node(j, node->kind == DPT_NODE_LIST ? NULL : node->keys[i], node->items[i]);
        dpt_json_end(j);
    } else if (dpt_conf_is_null(node)) {
        dpt_json_null(j, name);
    } else if (!node->quoted && (strcmp(node->text, "true") == 0 || !strcmp(node->text, "false"))) {
        dpt_json_bool(j, name, *node->text == 't');
    } else if (!node->quoted && dpt_parse_real(node->text, &number)) {
        dpt_json_real(j, name, number);
    } else {
        dpt_json_text(j, name, node->text);
    }
}

static void write_default(struct dpt_json *j, const struct dpt_option *row)
{
    struct dpt_conf conf = {0};
    struct dpt_str text = {0};
    struct dpt_error err;

    if (row->fallback == NULL || strcmp(row->fallback, "null") == 0 || row->type == DPT_OPT_SECTION)
        return;
    dpt_str_printf(&text, "value: %s\n", row->fallback);
    if (!text.failed && dpt_conf_parse(&conf, "", text.text, text.length, &err) == DPT_OK)
        write_node(j, "default", dpt_conf_get(conf.root, "value"));
    dpt_conf_release(&conf);
    dpt_str_release(&text);
}

/* --- scalars and lists of them ---------------------------------------------------------------- */

/* n texts in one line, with null at the end where `null`. */
static void write_texts(struct dpt_json *j, const char *key, const char *const *values, size_t n,
                        bool null)
{
    dpt_json_array(j, key);
    j->indent = false;
    for (size_t i = 0; i < n; i++)
        dpt_json_text(j, NULL, values[i]);
    if (null)
        dpt_json_null(j, NULL);
    dpt_json_end(j);
    j->indent = true;
}

/* types: one word or several. */
static void write_types(struct dpt_json *j, const char *types, bool null)
{
    char word[16];
    size_t n;

    if (!null && strchr(types, ' ') == NULL) {
        dpt_json_text(j, "type", types);
        return;
    }
    dpt_json_array(j, "type");
    j->indent = false;
    for (; *types != '\0'; types += n + strspn(types + n, " ")) {
        n = strcspn(types, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, types);
        dpt_json_text(j, NULL, word);
    }
    if (null)
        dpt_json_text(j, NULL, "null");
    dpt_json_end(j);
    j->indent = true;
}

static void write_bounds(struct dpt_json *j, const struct dpt_option *row)
{
    const bool whole = row->type == DPT_OPT_INT || row->type == DPT_OPT_INTS;

    if (row->min == 0 && row->max == 0 && !whole)
        return;
    if (row->min == 0 && row->max == 0) { /* what 64 bits hold */
        dpt_json_int(j, "minimum", INT64_MIN);
        dpt_json_int(j, "maximum", INT64_MAX);
        return;
    }
    if (isfinite(row->min))
        dpt_json_real(j, "minimum", row->min);
    if (isfinite(row->max))
        dpt_json_real(j, "maximum", row->max);
}

static void write_number(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    const bool word = row->word != NULL && strcmp(row->word, "null") != 0;

    if (word) {
        dpt_json_array(j, "anyOf");
        dpt_json_object(j, NULL);
    }
    write_types(j, row->type == DPT_OPT_INT ? "integer" : "number",
                null || (row->word != NULL && !word));
    write_bounds(j, row);
    if (!word)
        return;
    dpt_json_end(j);
    dpt_json_object(j, NULL);
    dpt_json_text(j, "const", row->word);
    dpt_json_end(j);
    dpt_json_end(j);
}

static bool is_list(const struct dpt_option *row)
{
    return row->type == DPT_OPT_INTS || row->type == DPT_OPT_REALS || row->type == DPT_OPT_TEXTS;
}

static const char scalar[] = "string number boolean";

/* A list, or one entry for a list of one. */
static void write_list(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    const char *entry = row->type == DPT_OPT_INTS    ? "integer"
                        : row->type == DPT_OPT_REALS ? "number"
                                                     : scalar;
    char types[40];

    snprintf(types, sizeof types, "%s array", entry);
    write_types(j, row->range ? "array" : types, null);
    if (row->range) {
        dpt_json_real(j, "minItems", 2);
        dpt_json_real(j, "maxItems", 2);
    } else if (row->type != DPT_OPT_TEXTS) {
        write_bounds(j, row);
    }
    if (row->most > 0) {
        dpt_json_real(j, "minItems", 1);
        dpt_json_real(j, "maxItems", (double)row->most);
    }
    dpt_json_object(j, "items");
    write_types(j, entry, false);
    if (row->type != DPT_OPT_TEXTS)
        write_bounds(j, row);
    dpt_json_end(j);
}

/* Steps are whole; the other units may have a fraction. Nothing is 0. */
/* What a text must match, with what an editor says where it does not. */
static void write_pattern(struct dpt_json *j, const struct dpt_option *row, const char *pattern)
{
    struct dpt_str described = {0};
    char says[DPT_ERROR_TEXT];

    dpt_json_text(j, "pattern", pattern);
    dpt_option_describe(row, &described);
    snprintf(says, sizeof says, "Expected %.*s.",
             described.text == NULL ? 0 : (int)strcspn(described.text, ";"),
             described.text == NULL ? "" : described.text);
    dpt_json_text(j, "patternErrorMessage", says);
    dpt_str_release(&described);
}

static void write_every(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    const unsigned units = dpt_value_units(row);
    char text[600] = "^(";
    size_t used = strlen(text);
    const char *bar = "";

#define ADD(unit, pattern)                                                                         \
    if (units >> (unit)&1) {                                                                       \
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", bar, pattern);           \
        bar = "|";                                                                                 \
    }
#define FRACTION "\\+?(?=[0-9.]*[1-9])([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][-+]?[0-9]+)? *"
    if (row->word != NULL) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s", row->word);
        bar = "|";
    }
    ADD(DPT_NEVER, "never")
    ADD(DPT_STEPS, "\\+?0*[1-9][0-9]{0,14}(\\.0*)? *steps?")
    ADD(DPT_EPOCHS, FRACTION "epochs?")
    ADD(DPT_SECONDS, FRACTION "(s|sec|seconds?|min|minutes?|h|hours?)")
    ADD(DPT_PERCENT, FRACTION "%")
#undef ADD
#undef FRACTION
    snprintf(text + used, sizeof text - used, ")$");
    write_types(j, "string", null);
    write_pattern(j, row, text);
}

/* A choice that is a whole number is one, too. */
static void write_choice(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    int64_t number;

    dpt_json_array(j, "enum");
    j->indent = false;
    for (size_t i = 0; row->choices[i] != NULL; i++)
        if (dpt_parse_int(row->choices[i], &number))
            dpt_json_int(j, NULL, number);
        else
            dpt_json_text(j, NULL, row->choices[i]);
    if (null)
        dpt_json_null(j, NULL);
    dpt_json_end(j);
    j->indent = true;
}

/* --- maps ------------------------------------------------------------------------------------- */

/* Allows one of two rivals, the other being left out or null: as `if` and `then`, so that an editor
 * marks that key. */
static void write_rivals(struct dpt_json *j, const struct dpt_option *table)
{
    bool any = false;

    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        if (row->rival == NULL)
            continue;
        if (!any)
            dpt_json_array(j, "allOf");
        any = true;
        dpt_json_object(j, NULL);
        dpt_json_object(j, "if");
        write_texts(j, "required", &row->rival, 1, false);
        dpt_json_object(j, "properties");
        dpt_json_object(j, row->rival);
        dpt_json_object(j, "not");
        dpt_json_text(j, "type", "null");
        for (int k = 0; k < 4; k++)
            dpt_json_end(j);
        dpt_json_object(j, "then");
        dpt_json_object(j, "properties");
        dpt_json_object(j, row->name);
        dpt_json_text(j, "type", "null");
        for (int k = 0; k < 4; k++)
            dpt_json_end(j);
    }
    if (any)
        dpt_json_end(j);
}

/* typed: the map has a `type` beside the table's rows. */
static void write_table(struct dpt_json *j, const struct dpt_option *table, bool typed)
{
    struct names needed = {0};

    dpt_json_object(j, "properties");
    if (typed)
        dpt_json_bool(j, "type", true);
    for (const struct dpt_option *row = table; row->name != NULL; row++) {
        write_row(j, row->name, row);
        if (!may_be_null(row))
            add_name(&needed, row->name);
    }
    dpt_json_end(j);
    if (needed.n > 0)
        write_texts(j, "required", needed.at, needed.n, false);
    dpt_json_bool(j, "additionalProperties", false);
    write_rivals(j, table);
}

/* {"if": {"type": kind}, "then": {…: the members up to dpt_json_end. */
static void open_if(struct dpt_json *j, const char *type)
{
    dpt_json_object(j, "if");
    dpt_json_text(j, "type", type);
    dpt_json_end(j);
    dpt_json_object(j, "then");
}

/* A map of options, or the one that a bare value is for; NULL: nothing else. */
static void write_bare(struct dpt_json *j, const struct dpt_option *options, const char *bare,
                       bool null)
{
    const struct dpt_option *row = options;

    while (bare != NULL && strcmp(row->name, bare) != 0)
        row++;
    open_if(j, "object");
    write_table(j, options, false);
    dpt_json_end(j);
    dpt_json_object(j, "else");
    if (bare == NULL)
        dpt_json_text(j, "type", "null");
    else
        write_value(j, row, null);
    dpt_json_end(j);
}

static void write_section(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    if (row->bare != NULL) {
        write_bare(j, row->rows, row->bare, null);
        return;
    }
    write_types(j, "object", null);
    write_table(j, row->rows, false);
}

/* The members of a map whose `type` is one of n names, or where `left_out` is missing. */
static void write_type_of(struct dpt_json *j, const char *const *names, size_t n, bool left_out)
{
    dpt_json_object(j, "properties");
    dpt_json_object(j, "type");
    write_texts(j, "enum", names, n, left_out);
    dpt_json_end(j);
    dpt_json_end(j);
    if (!left_out)
        write_texts(j, "required", (const char *const[]){"type"}, 1, false);
}

/* `optimizer: adam`, or {type: adam, …}. */
static void write_variant(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    struct names all = {0}, alone = {0};

    for (size_t i = 0; row->variants[i] != NULL; i++) {
        add_name(&all, row->variants[i]->name);
        if (!must_give(row->variants[i]->options))
            add_name(&alone, row->variants[i]->name);
    }
    open_if(j, "object");
    write_type_of(j, all.at, all.n, row->fallback != NULL);
    dpt_json_array(j, "allOf");
    for (size_t i = 0; row->variants[i] != NULL; i++) {
        /* A map without a type is the default's; nothing in it contradicts that. */
        const bool left_out =
            row->fallback != NULL && strcmp(row->fallback, row->variants[i]->name) == 0;

        dpt_json_object(j, NULL);
        dpt_json_object(j, "if");
        write_type_of(j, &row->variants[i]->name, 1, left_out);
        dpt_json_end(j);
        dpt_json_object(j, "then");
        dpt_json_text(j, "description", row->variants[i]->summary);
        write_table(j, row->variants[i]->options, true);
        dpt_json_end(j);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
    dpt_json_object(j, "else");
    write_texts(j, "enum", alone.at, alone.n, null);
    dpt_json_end(j);
}

/* --- what CUSTOM rows read -------------------------------------------------------------------- */

/* What stands after a kind's name. */
static void write_kind(struct dpt_json *j, const struct dpt_option_kind *kind)
{
    dpt_json_object(j, kind->name);
    dpt_json_text(j, "description", kind->summary);
    write_bare(j, kind->options, kind->bare, !must_give(kind->options));
    dpt_json_end(j);
}

static void write_kinds(struct dpt_json *j, const struct dpt_alternatives *alternatives)
{
    struct names alone = {0};
    struct dpt_option_kind kind;

    dpt_json_text(j, "type", "array");
    dpt_json_real(j, "minItems", 1);
    if (alternatives->most > 0)
        dpt_json_real(j, "maxItems", (double)alternatives->most);
    for (size_t i = 0; alternatives->kind(i, &kind); i++)
        if (!must_give(kind.options))
            add_name(&alone, kind.name);
    dpt_json_object(j, "items");
    open_if(j, "object");
    dpt_json_object(j, "properties");
    for (size_t i = 0; alternatives->kind(i, &kind); i++)
        write_kind(j, &kind);
    dpt_json_end(j);
    dpt_json_real(j, "minProperties", 1);
    dpt_json_real(j, "maxProperties", 1);
    dpt_json_bool(j, "additionalProperties", false);
    dpt_json_end(j);
    dpt_json_object(j, "else");
    write_texts(j, "enum", alone.at, alone.n, false);
    dpt_json_end(j);
    dpt_json_end(j);
}

/* Refers to one of `definitions`; in `allOf`, since what stands beside a reference does not count.
 * */
static void write_reference(struct dpt_json *j, const char *name)
{
    char text[64];

    snprintf(text, sizeof text, "#/definitions/%s", name);
    dpt_json_array(j, "allOf");
    dpt_json_object(j, NULL);
    dpt_json_text(j, "$ref", text);
    dpt_json_end(j);
    dpt_json_end(j);
}

static void write_forms(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    const struct dpt_alternatives *alternatives = row->alternatives;

    if (alternatives == NULL)
        return;
    if (alternatives->entries != NULL) {
        write_types(j, "array", null);
        dpt_json_object(j, "items");
        dpt_json_text(j, "type", "object");
        write_table(j, alternatives->entries, false);
        dpt_json_end(j);
        return;
    }
    if (alternatives->either == NULL && alternatives->name != NULL) {
        write_reference(j, alternatives->name);
        return;
    }
    if (alternatives->either == NULL) {
        write_kinds(j, alternatives);
        return;
    }
    dpt_json_array(j, "anyOf");
    for (const struct dpt_option *form = alternatives->either; form->name != NULL; form++) {
        dpt_json_object(j, NULL);
        write_value(j, form, null);
        if (is_list(form) && alternatives->most > 0) {
            dpt_json_real(j, "minItems", 1);
            dpt_json_real(j, "maxItems", (double)alternatives->most);
        }
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

/* --- a row ------------------------------------------------------------------------------------ */

static void write_value(struct dpt_json *j, const struct dpt_option *row, bool null)
{
    switch (row->type) {
    case DPT_OPT_BOOL:
        write_types(j, "boolean", null);
        break;
    case DPT_OPT_INT:
    case DPT_OPT_REAL:
        write_number(j, row, null);
        break;
    case DPT_OPT_TEXT:
        write_types(j, scalar, null);
        break;
    case DPT_OPT_NAME:
        write_types(j, scalar, null);
        write_pattern(j, row, "^(?!\\.{1,2}$)[^/\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]{1,255}$");
        break;
    case DPT_OPT_CHOICE:
        write_choice(j, row, null);
        break;
    case DPT_OPT_INTS:
    case DPT_OPT_REALS:
    case DPT_OPT_TEXTS:
        write_list(j, row, null);
        break;
    case DPT_OPT_NAMED:
        write_types(j, "object", null);
        dpt_json_object(j, "additionalProperties");
        write_number(
            j, &(struct dpt_option){.type = DPT_OPT_REAL, .min = row->min, .max = row->max}, false);
        dpt_json_end(j);
        break;
    case DPT_OPT_EVERY:
        write_every(j, row, null);
        break;
    case DPT_OPT_SECTION:
        write_section(j, row, null);
        break;
    case DPT_OPT_VARIANT:
        write_variant(j, row, null);
        break;
    case DPT_OPT_CUSTOM:
        write_forms(j, row, null);
        break;
    }
}

/* What another value does to a run, for programs: editors pass over what is not in draft 7. */
static void write_effect(struct dpt_json *j, const struct dpt_option *row)
{
    static const char *const words[] = {
        [DPT_EFFECT_AS_ABOVE] = NULL,   [DPT_EFFECT_BY_ROW] = NULL, [DPT_EFFECT_RESULT] = "result",
        [DPT_EFFECT_LENGTH] = "length", [DPT_EFFECT_NONE] = "none", [DPT_EFFECT_NONE_KEPT] = "kept",
        [DPT_EFFECT_OUTPUT] = "output",
    };

    if (words[row->effect] != NULL)
        dpt_json_text(j, "x-effect", words[row->effect]);
}

static void write_row(struct dpt_json *j, const char *name, const struct dpt_option *row)
{
    struct dpt_str text = {0};

    dpt_json_object(j, name);
    dpt_str_printf(&text, "%s", row->help == NULL ? "" : row->help);
    if (row->type != DPT_OPT_SECTION) {
        dpt_str_printf(&text, "\n\n");
        dpt_option_describe(row, &text);
    }
    dpt_json_text(j, "description", text.text == NULL ? "" : text.text);
    dpt_str_release(&text);
    write_effect(j, row);
    write_default(j, row);
    write_value(j, row, may_be_null(row));
    dpt_json_end(j);
}

/* The lists that may stand in themselves, each once. */
struct definitions {
    struct dpt_json *j;
    struct names written;
};

static void write_definition(void *arg, const struct dpt_option_visit *at)
{
    struct definitions *d = arg;
    const struct dpt_alternatives *list = at->row != NULL ? at->row->alternatives : NULL;

    if (list == NULL || list->name == NULL ||
        dpt_find(list->name, d->written.at, d->written.n) < d->written.n)
        return;
    add_name(&d->written, list->name);
    dpt_json_object(d->j, list->name);
    write_kinds(d->j, list);
    dpt_json_end(d->j);
}

void dpt_options_schema(const struct dpt_option *table, const char *title, struct dpt_json *j)
{
    struct definitions definitions = {.j = j};

    dpt_json_object(j, NULL);
    dpt_json_text(j, "$schema", "http://json-schema.org/draft-07/schema#");
    dpt_json_text(j, "title", title);
    dpt_json_text(j, "type", "object");
    write_table(j, table, false);
    dpt_json_object(j, "definitions");
    dpt_options_walk(table, write_definition, &definitions);
    dpt_json_end(j);
    dpt_json_end(j);
}
