#include "core/conf/json_read.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/conf/number.h"
#include "core/conf/text.h"

struct parser {
    struct dpt_arena *arena;
    const char *what;
    const char *start, *p, *end;
    int depth; /* lists and maps around p */
    struct dpt_error *err;
};

static enum dpt_status value(struct parser *s, struct dpt_json_node **out);

static enum dpt_status wrong(const struct parser *s, const char *at, const char *why)
{
    return dpt_fail(s->err, DPT_BAD_DATA, "%s: byte %zu: %s", s->what, (size_t)(at - s->start),
                    at == s->end ? "it ends too early" : why);
}

static enum dpt_status no_memory(const struct parser *s)
{
    return dpt_fail_memory(s->err, s->what, (double)(s->end - s->start));
}

static void skip_space(struct parser *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

/* Whether the next byte is `c`, which is passed then. */
static bool accept(struct parser *s, char c)
{
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool accept_word(struct parser *s, const char *word)
{
    const size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

/* Four hexadecimal digits behind "\u"; -1 where there are none. */
static int32_t hex4(struct parser *s)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int32_t unit = 0;

    for (int i = 0; i < 4; i++, s->p++) {
        const char *d = s->p < s->end ? memchr(digits, *s->p, sizeof digits - 1) : NULL;

        if (d == NULL)
            return -1;
        unit = unit << 4 | (int32_t)((d - digits) & 15);
    }
    return unit;
}

/* What "\u" stands for, which may go on in a second one. -1: nothing. */
static int32_t unicode(struct parser *s)
{
    const int32_t high = hex4(s);
    int32_t low;

    if (high < 0xD800 || high > 0xDFFF)
        return high;
    if (high > 0xDBFF || !accept_word(s, "\\u"))
        return -1;
    low = hex4(s);
    return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static size_t put_utf8(char *out, int32_t c)
{
    const size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const int32_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};

    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* A backslash was passed. */
static enum dpt_status escape(struct parser *s, char **out)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *at = s->p - 1, *name;
    int32_t c;

    if (accept(s, 'u')) {
        c = unicode(s);
        if (c < 0)
            return wrong(s, at, "\\u and no character");
        *out += put_utf8(*out, c);
        return DPT_OK;
    }
    name = s->p < s->end ? memchr(names, *s->p, sizeof names - 1) : NULL;
    if (name == NULL)
        return wrong(s, s->p, "an escape that JSON does not have");
    *(*out)++ = meant[name - names];
    s->p++;
    return DPT_OK;
}

/* One character between the quotes, with its bytes as they are. */
static enum dpt_status character(struct parser *s, char **out)
{
    size_t n;

    if ((unsigned char)*s->p < 0x20)
        return wrong(s, s->p, "a control character in a text");
    if (dpt_utf8_decode(s->p, (size_t)(s->end - s->p), &n) < 0)
        return wrong(s, s->p, "no UTF-8");
    memcpy(*out, s->p, n);
    *out += n;
    s->p += n;
    return DPT_OK;
}

/* A text, its opening quote passed. It never grows when its escapes are read. */
static enum dpt_status text(struct parser *s, const char **chars, size_t *length)
{
    enum dpt_status status = DPT_OK;
    const char *close = s->p;
    char *copy, *out;

    while (close < s->end && *close != '"')
        close += *close == '\\' && s->end - close > 1 ? 2 : 1;
    copy = out = dpt_arena_alloc(s->arena, (size_t)(close - s->p) + 1);
    if (copy == NULL)
        return no_memory(s);
    while (!accept(s, '"')) {
        if (s->p == s->end)
            return wrong(s, s->p, "");
        DPT_TRY(accept(s, '\\') ? escape(s, &out) : character(s, &out));
    }
    *chars = copy;
    *length = (size_t)(out - copy);
out:
    return status;
}

/* Passes digits; false where there are none. */
static bool digits(const char **p, const char *end)
{
    const char *start = *p;

    while (*p < end && **p >= '0' && **p <= '9')
        ++*p;
    return *p > start;
}

/* Bytes of the number at p: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?; 0: none. */
static size_t number_length(const struct parser *s)
{
    const char *p = s->p, *end = s->end, *whole;

    p += p < end && *p == '-';
    whole = p;
    if (!digits(&p, end) || (*whole == '0' && p - whole > 1))
        return 0;
    if (p < end && *p == '.' && (p++, !digits(&p, end)))
        return 0;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        if (!digits(&p, end))
            return 0;
    }
    return (size_t)(p - s->p);
}

static enum dpt_status scalar(struct parser *s, struct dpt_json_node *node)
{
    const size_t n = number_length(s);

    if (n > 0) {
        node->kind = DPT_JSON_NUMBER;
        node->text = dpt_arena_strndup(s->arena, s->p, n);
        node->length = n;
        s->p += n;
        return node->text == NULL ? no_memory(s) : DPT_OK;
    }
    if (accept(s, '"')) {
        node->kind = DPT_JSON_TEXT;
        return text(s, &node->text, &node->length);
    }
    node->kind = DPT_JSON_BOOL;
    node->truth = accept_word(s, "true");
    if (node->truth || accept_word(s, "false"))
        return DPT_OK;
    node->kind = DPT_JSON_NULL;
    return accept_word(s, "null") ? DPT_OK : wrong(s, s->p, "no JSON value");
}

static enum dpt_status key_of(struct parser *s, const char **key)
{
    enum dpt_status status = DPT_OK;
    const char *at;
    size_t length;

    skip_space(s);
    at = s->p;
    if (!accept(s, '"'))
        return wrong(s, at, "no name of an entry");
    DPT_TRY(text(s, key, &length));
    if (strlen(*key) != length)
        return wrong(s, at, "a name with a NUL");
    skip_space(s);
    if (!accept(s, ':'))
        return wrong(s, s->p, "no colon behind a name");
out:
    return status;
}

/* The entries of a list or map, its opening bracket passed. */
static enum dpt_status entries(struct parser *s, struct dpt_json_node *node, char close)
{
    enum dpt_status status = DPT_OK;
    struct dpt_json_node **tail = &node->first;

    if (++s->depth > DPT_JSON_DEPTH)
        return wrong(s, s->p - 1, "too many lists and maps in each other");
    skip_space(s);
    if (accept(s, close))
        goto out;
    do {
        const char *key = NULL;

        if (node->kind == DPT_JSON_MAP)
            DPT_TRY(key_of(s, &key));
        DPT_TRY(value(s, tail));
        (*tail)->key = key;
        tail = &(*tail)->next;
        node->n++;
        skip_space(s);
    } while (accept(s, ','));
    if (!accept(s, close))
        return wrong(s, s->p, "no comma and no closing bracket behind an entry");
out:
    s->depth--;
    return status;
}

static enum dpt_status value(struct parser *s, struct dpt_json_node **out)
{
    struct dpt_json_node *node = dpt_arena_alloc(s->arena, sizeof *node);

    if (node == NULL)
        return no_memory(s);
    *out = node;
    skip_space(s);
    if (accept(s, '{')) {
        node->kind = DPT_JSON_MAP;
        return entries(s, node, '}');
    }
    if (accept(s, '[')) {
        node->kind = DPT_JSON_LIST;
        return entries(s, node, ']');
    }
    return scalar(s, node);
}

enum dpt_status dpt_json_parse(const struct dpt_json_node **root, struct dpt_arena *arena,
                               const char *what, const char *bytes, size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct parser s = {
        .arena = arena, .what = what, .start = bytes, .p = bytes, .end = bytes + n, .err = err};
    struct dpt_json_node *node = NULL;

    DPT_TRY(value(&s, &node));
    skip_space(&s);
    if (s.p != s.end)
        return wrong(&s, s.p, "something stands behind the value");
    *root = node;
out:
    return status;
}

const struct dpt_json_node *dpt_json_get(const struct dpt_json_node *map, const char *key)
{
    if (map == NULL || map->kind != DPT_JSON_MAP)
        return NULL;
    for (const struct dpt_json_node *n = map->first; n != NULL; n = n->next)
        if (strcmp(n->key, key) == 0)
            return n;
    return NULL;
}

int64_t dpt_json_int(const struct dpt_json_node *node, int64_t fallback)
{
    int64_t number;

    if (node == NULL || node->kind != DPT_JSON_NUMBER || !dpt_parse_int(node->text, &number))
        return fallback;
    return number;
}

double dpt_json_real(const struct dpt_json_node *node, double fallback)
{
    double number;

    if (node == NULL || node->kind != DPT_JSON_NUMBER)
        return fallback;
    number = strtod(node->text, NULL);
    return isfinite(number) ? number : fallback;
}

const char *dpt_json_string(const struct dpt_json_node *node, const char *fallback)
{
    return node != NULL && node->kind == DPT_JSON_TEXT ? node->text : fallback;
}
