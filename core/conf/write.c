#include <string.h>
#include <strings.h>

#include "core/conf/internal.h"

enum {
    STEP = 2,   /* spaces a level */
    WIDTH = 92, /* columns, for lists in flow style */
    LONG_KEY =
        150, /* bytes; YAML takes keys of 1024 and more, escapes included, only after a `?` */
};

/* Characters that mean something at the start of a plain scalar; minus is looked at more closely.
 */
static const char indicators[] = "?:,[]{}#&*!|>'\"%@`";

static bool can_be_plain(const char *text, bool flow)
{
    const size_t n = strlen(text);
    size_t length;

    if (n == 0 || strchr(indicators, text[0]) != NULL || strncmp(text, "---", 3) == 0 ||
        strncmp(text, "...", 3) == 0 || text[n - 1] == ' ' || text[0] == ' ' || text[n - 1] == ':')
        return false;
    if (text[0] == '-' && (n == 1 || strchr(" ,[]{}", text[1]) != NULL))
        return false;
    if (strstr(text, ": ") != NULL || strstr(text, " #") != NULL)
        return false;
    if (flow && strpbrk(text, ",[]{}:?") != NULL)
        return false;
    for (size_t i = 0; i < n; i += length)
        if (!dpt_shown_character(dpt_utf8_decode(text + i, n - i, &length)))
            return false;
    return true;
}

/* Whether another reader of YAML might take a text for a number, a null, a truth or a date. */
static bool is_ambiguous(const char *key)
{
    static const char *const words[] = {"null", "~",  "true", "false", "yes",
                                        "no",   "on", "off",  "<<",    "="};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(key, words[i]) == 0)
            return true;
    return strchr("+-.0123456789", key[0]) != NULL;
}

/* A number as each reader of YAML takes it for one: in YAML 1.1, as PyYAML reads, it has a digit in
 * front of its point, a point in front of its exponent, which has a sign, and no zeros first. */
static void write_number(const char *text, struct dpt_str *out)
{
    const size_t sign = *text == '-' || *text == '+';
    const char *from = text + sign, *exponent = from + strcspn(from, "eE");

    while (from[0] == '0' && from[1] >= '0' && from[1] <= '9')
        from++;
    dpt_str_printf(out, "%.*s%s%.*s", (int)sign, text, *from == '.' ? "0" : "",
                   (int)(exponent - from), from);
    if (*exponent != '\0')
        dpt_str_printf(out, "%s%c%s%s", memchr(from, '.', (size_t)(exponent - from)) ? "" : ".0",
                       *exponent, strchr("+-", exponent[1]) != NULL ? "" : "+", exponent + 1);
}

static bool is_number(const char *text)
{
    return text[0] != '\0' && text[dpt_number_length(text)] == '\0';
}

static bool reads_texts(const struct dpt_option *row)
{
    return row != NULL && (row->type == DPT_OPT_TEXT || row->type == DPT_OPT_NAME ||
                           row->type == DPT_OPT_TEXTS || row->type == DPT_OPT_CHOICE);
}

/* Whether a row reads numbers, and no texts that look like some. */
static bool reads_numbers(const struct dpt_option *row)
{
    bool numbers = false;

    if (row == NULL || row->type != DPT_OPT_CUSTOM)
        return row != NULL && (row->type == DPT_OPT_INT || row->type == DPT_OPT_REAL ||
                               row->type == DPT_OPT_INTS || row->type == DPT_OPT_REALS);
    for (const struct dpt_option *form = row->alternatives != NULL ? row->alternatives->either
                                                                   : NULL;
         form != NULL && form->name != NULL; form++) {
        numbers |= reads_numbers(form);
        if (reads_texts(form))
            return false;
    }
    return numbers;
}

/* row: that reads it, or the list that it is in; NULL: unknown, and it stays as it was written. */
static void write_scalar(const struct dpt_conf_node *node, const struct dpt_option *row, bool flow,
                         struct dpt_str *out)
{
    const bool number = !node->quoted && is_number(node->text);
    const bool quotes = node->quoted || (!number && reads_texts(row) && is_ambiguous(node->text));

    if (dpt_conf_is_null(node))
        dpt_str_printf(out, "null");
    else if (number && reads_numbers(row))
        write_number(node->text, out);
    else if (!quotes && can_be_plain(node->text, flow))
        dpt_str_add(out, node->text, strlen(node->text));
    else
        dpt_str_json(out, node->text); /* YAML takes what JSON takes */
}

static void indent_to(size_t columns, struct dpt_str *out)
{
    dpt_str_printf(out, "%*s", (int)columns, "");
}

static size_t column(const struct dpt_str *out)
{
    size_t n = 0;

    while (n < out->length && out->text[out->length - 1 - n] != '\n')
        n++;
    return n;
}

/* A scalar, an empty map, or a list of scalars: on this line, and further ones where a list is
 * long. */
static void write_flat(const struct dpt_conf_node *node, size_t indent, struct dpt_str *out)
{
    if (node->kind == DPT_NODE_SCALAR) {
        write_scalar(node, node->row, false, out);
    } else if (node->kind == DPT_NODE_MAP) {
        dpt_str_printf(out, "{}");
    } else {
        dpt_str_printf(out, "[");
        for (size_t i = 0; i < node->n; i++) {
            if (i > 0)
                dpt_str_printf(out, ",");
            if (i > 0 && column(out) + strlen(node->items[i]->text) > WIDTH) {
                dpt_str_printf(out, "\n");
                indent_to(indent + 2 * STEP, out);
            } else if (i > 0) {
                dpt_str_printf(out, " ");
            }
            write_scalar(node->items[i], node->row, true, out);
        }
        dpt_str_printf(out, "]");
    }
    dpt_str_printf(out, "\n");
}

static void write_key(const char *key, size_t indent, struct dpt_str *out)
{
    const bool complex_key = strlen(key) > LONG_KEY;

    if (complex_key)
        dpt_str_printf(out, "? ");
    if (!is_ambiguous(key) && can_be_plain(key, false))
        dpt_str_add(out, key, strlen(key));
    else
        dpt_str_json(out, key);
    if (complex_key) {
        dpt_str_printf(out, "\n");
        indent_to(indent, out);
    }
    dpt_str_printf(out, ":");
}

/* Writes a map or a list whose entries stand at `indent`; the first one continues where the line
 * is.
 */
static void write_block(const struct dpt_conf_node *node, size_t indent, struct dpt_str *out)
{
    for (size_t i = 0; i < node->n; i++) {
        const struct dpt_conf_node *item = node->items[i];
        /* `- conv: 3` continues after the dash, a compact mapping in YAML's words; what a key or a
         * list in a list holds begins below. */
        const bool compact = node->kind == DPT_NODE_LIST && item->kind == DPT_NODE_MAP;

        if (i > 0)
            indent_to(indent, out);
        if (node->kind == DPT_NODE_MAP)
            write_key(node->keys[i], indent, out);
        else
            dpt_str_printf(out, "-");
        if (dpt_conf_is_setting(item) || compact) {
            dpt_str_printf(out, " ");
        } else {
            dpt_str_printf(out, "\n");
            indent_to(indent + STEP, out);
        }
        if (dpt_conf_is_setting(item))
            write_flat(item, indent, out);
        else
            write_block(item, indent + STEP, out);
    }
}

void dpt_conf_write(const struct dpt_conf_node *node, struct dpt_str *out)
{
    if (dpt_conf_is_setting(node))
        write_flat(node, 0, out);
    else
        write_block(node, 0, out);
}
