#include <string.h>
#include <strings.h>

#include "core/conf/option.h"

enum {
    STEP = 2,   /* spaces a level */
    WIDTH = 92, /* columns, for lists in flow style */
    LONG_KEY =
        150, /* bytes; YAML takes keys of 1024 and more, escapes included, only behind a `?` */
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

/* Whether another reader of YAML might take a key for a number, a null or a truth. */
static bool is_ambiguous_key(const char *key)
{
    static const char *const words[] = {"null", "~",  "true", "false", "yes",
                                        "no",   "on", "off",  "<<",    "="};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(key, words[i]) == 0)
            return true;
    return strchr("+-.0123456789", key[0]) != NULL;
}

static void write_scalar(const struct dpt_conf_node *node, bool flow, struct dpt_str *out)
{
    if (dpt_conf_is_null(node))
        dpt_str_printf(out, "null");
    else if (!node->quoted && can_be_plain(node->text, flow))
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
        write_scalar(node, false, out);
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
            write_scalar(node->items[i], true, out);
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
    if (!is_ambiguous_key(key) && can_be_plain(key, false))
        dpt_str_add(out, key, strlen(key));
    else
        dpt_str_json(out, key);
    if (complex_key) {
        dpt_str_printf(out, "\n");
        indent_to(indent, out);
    }
    dpt_str_printf(out, ":");
}

/* Writes a map or a list whose entries stand at `indent`; the first one goes on where the line is.
 */
static void write_block(const struct dpt_conf_node *node, size_t indent, struct dpt_str *out)
{
    for (size_t i = 0; i < node->n; i++) {
        const struct dpt_conf_node *item = node->items[i];
        /* `- conv: 3` goes on behind the dash; what a key or a list in a list holds begins below.
         */
        const bool behind = node->kind == DPT_NODE_LIST && item->kind == DPT_NODE_MAP;

        if (i > 0)
            indent_to(indent, out);
        if (node->kind == DPT_NODE_MAP)
            write_key(node->keys[i], indent, out);
        else
            dpt_str_printf(out, "-");
        if (dpt_conf_is_setting(item) || behind) {
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
