#include "core/conf/internal.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void dpt_value_join(char *buf, size_t capacity, const char *const *names, size_t n)
{
    size_t used = strlen(buf);

    for (size_t i = 0; i < n; i++) {
        const size_t need = strlen(names[i]) + 2;

        if (used + need + 4 > capacity) {
            snprintf(buf + used, capacity - used, ", …");
            return;
        }
        used += (size_t)snprintf(buf + used, capacity - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static size_t count_names(const char *const *names)
{
    size_t n = 0;

    while (names[n] != NULL)
        n++;
    return n;
}

/* EVERY: the units that are allowed, in words. */
static const char *units_wanted(unsigned units)
{
    if (units & 1u << DPT_PERCENT)
        return "steps, epochs or a share of the run, such as '500 steps', '5 epochs' or '10 %'";
    if (units == 0 || (units & 1u << DPT_SECONDS && units & 1u << DPT_STEPS))
        return "a time such as '1 epoch', '50 steps', '10 min' or 'never'";
    if (units & 1u << DPT_SECONDS)
        return "a time such as '30 s', '10 min', '2 h' or 'never'";
    return units & 1u << DPT_NEVER ? "epochs or steps, such as '1 epoch', '50 steps' or 'never'"
                                   : "epochs or steps, such as '10 epochs' or '500 steps'";
}

unsigned dpt_value_units(const struct dpt_option *row)
{
    return row->units == 0 ? ~(1u << DPT_PERCENT) : row->units;
}

bool dpt_value_is_word(const struct dpt_option *row, const char *word)
{
    return (row->type == DPT_OPT_INT || row->type == DPT_OPT_REAL || row->type == DPT_OPT_EVERY) &&
           row->word != NULL && strcmp(row->word, word) == 0;
}

const char *dpt_value_wanted(const struct dpt_option *row, char *buf)
{
    const char *const wanted[] = {
        [DPT_OPT_BOOL] = "true or false",
        [DPT_OPT_INT] = "a whole number",
        [DPT_OPT_REAL] = "a number",
        [DPT_OPT_TEXT] = "a text",
        [DPT_OPT_NAME] = "a name for a folder: 1 to 255 bytes, not . or .., without slash or "
                         "control character",
        [DPT_OPT_CHOICE] = "one of ",
        [DPT_OPT_INTS] = "a whole number or a list of them",
        [DPT_OPT_REALS] = "a number or a list of them",
        [DPT_OPT_TEXTS] = "a text or a list of them",
        [DPT_OPT_NAMED] = "a map of names to numbers",
        [DPT_OPT_EVERY] = units_wanted(row->units),
        [DPT_OPT_SECTION] = "a map of keys and values",
        [DPT_OPT_VARIANT] = "one of ",
        [DPT_OPT_CUSTOM] = "",
    };
    size_t used;

    snprintf(buf, DPT_VALUE_TEXT, "%s", wanted[row->type]);
    if (row->type == DPT_OPT_CHOICE)
        dpt_value_join(buf, DPT_VALUE_TEXT, row->choices, count_names(row->choices));
    for (size_t i = 0; row->type == DPT_OPT_VARIANT && row->variants[i] != NULL; i++) {
        used = strlen(buf);
        snprintf(buf + used, DPT_VALUE_TEXT - used, "%s%s", i > 0 ? ", " : "",
                 row->variants[i]->name);
    }
    if (row->range)
        snprintf(buf, DPT_VALUE_TEXT, "a list [least, most]");
    if (row->type == DPT_OPT_CUSTOM)
        snprintf(buf, DPT_VALUE_TEXT, "%s", row->value_text == NULL ? "a value" : row->value_text);
    if (row->word != NULL && dpt_value_is_word(row, row->word)) {
        used = strlen(buf);
        snprintf(buf + used, DPT_VALUE_TEXT - used,
                 row->type == DPT_OPT_EVERY ? ", or '%s'" : " or %s", row->word);
    }
    return buf;
}

/* A bound as a person writes it: 1000000, not 1e+06. */
static const char *number_text(double value, char *buf, size_t capacity)
{
    if (floor(value) == value && fabs(value) < 1e15)
        snprintf(buf, capacity, "%.0f", value);
    else
        snprintf(buf, capacity, "%g", value);
    return buf;
}

const char *dpt_value_bounds(const struct dpt_option *row, char *buf)
{
    const bool whole = row->type == DPT_OPT_INT || row->type == DPT_OPT_INTS;
    const bool real =
        row->type == DPT_OPT_REAL || row->type == DPT_OPT_REALS || row->type == DPT_OPT_NAMED;
    const bool any = (whole || real) && !(row->min == 0 && row->max == 0);
    /* Beyond this a bound is only the type's own. */
    const double far = whole ? 9e18 : 1e300;
    const bool low = any && row->min > -far, high = any && row->max < far;
    const bool above = low && row->min > 0 && row->min < 1e-30; /* the smallest number above 0 */
    char a[40], b[40];

    number_text(row->min, a, sizeof a);
    number_text(row->max, b, sizeof b);
    buf[0] = '\0';
    if (above)
        snprintf(buf, DPT_VALUE_TEXT, high ? "above 0 and at most %s" : "above 0", b);
    else if (low && high)
        snprintf(buf, DPT_VALUE_TEXT, "in %s … %s", a, b);
    else if (low)
        snprintf(buf, DPT_VALUE_TEXT, "at least %s", a);
    else if (high)
        snprintf(buf, DPT_VALUE_TEXT, "at most %s", b);
    return buf;
}

const char *dpt_value_got(struct dpt_conf *conf, const struct dpt_conf_node *node)
{
    const char *text;

    if (node->kind != DPT_NODE_SCALAR)
        return node->kind == DPT_NODE_LIST ? "a list" : "a map";
    if (dpt_conf_is_null(node))
        return "null";
    text = dpt_region_printf(&conf->region, "'%s'%s", dpt_conf_show(conf, node->text),
                             node->quoted ? " in quotes" : "");
    return text == NULL ? "?" : text;
}

/* Whether a text is this word, which ends at a blank or at its end, however they are spelt. */
static bool is_word(const char *text, const char *word)
{
    for (;; text++, word++) {
        text += strspn(text, "_-");
        word += strspn(word, "_-");
        if (*text == '\0')
            return *word == '\0' || *word == ' ';
        if (tolower((unsigned char)*text) != tolower((unsigned char)*word))
            return false;
    }
}

/* Whether one of a row's words is this text or, where it has a dot or a colon, this path. */
static bool has_word(const struct dpt_synonym *row, const char *text, const char *path)
{
    for (const char *word = row->words; word != NULL; word = strchr(word, ' ')) {
        word += *word == ' ';
        if (is_word(path != NULL && word[strcspn(word, ".: ")] > ' ' ? path : text, word))
            return true;
    }
    return false;
}

static const char *find_word(const char *text, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_word(text, names[i]))
            return names[i];
    return NULL;
}

/* What `meant` stands for here; NULL: it is no answer. */
static const char *answer(const char *meant, const char *path, const char *const *names, size_t n)
{
    const bool sentence = strchr(meant, ' ') != NULL, elsewhere = strchr(meant, '.') != NULL;

    if (sentence)
        return meant;
    if (elsewhere)
        return path != NULL && strcmp(path, meant) != 0 ? meant : NULL;
    return find_word(meant, names, n);
}

const char *dpt_word_meant(const struct dpt_synonym *synonyms, const char *path, const char *word,
                           const char *const *names, size_t n)
{
    const char *name = find_word(word, names, n);

    for (const struct dpt_synonym *s = synonyms; name == NULL && s != NULL && s->words != NULL; s++)
        if (has_word(s, word, path))
            name = answer(s->meant, path, names, n);
    return name != NULL ? name : dpt_nearest(word, names, n);
}

const char *dpt_value_suggestion(struct dpt_conf *conf, const char *path, const char *text,
                                 const char *const *names, size_t n)
{
    const char *name = dpt_word_meant(conf->synonyms, path, text, names, n), *suggestion;

    if (name == NULL)
        return "";
    suggestion = strchr(name, ' ') != NULL
                     ? dpt_region_printf(&conf->region, "; %s", name)
                     : dpt_region_printf(&conf->region, "; did you mean '%s'?", name);
    return suggestion == NULL ? "" : suggestion;
}

const char *dpt_option_synonym(const struct dpt_synonym *synonyms, const char *word)
{
    for (const struct dpt_synonym *s = synonyms; s->words != NULL; s++)
        if (has_word(s, word, NULL))
            return answer(s->meant, "", NULL, 0);
    return NULL;
}

static void wrong_type(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                       const struct dpt_option *row)
{
    char wanted[DPT_VALUE_TEXT];

    dpt_conf_mistake(conf, node, path, "expected %s, got %s", dpt_value_wanted(row, wanted),
                     dpt_value_got(conf, node));
}

static bool is_plain(const struct dpt_conf_node *node)
{
    return node->kind == DPT_NODE_SCALAR && !node->quoted;
}

static bool in_bounds(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                      const struct dpt_option *row, double value)
{
    char bounds[DPT_VALUE_TEXT];

    if ((row->min == 0 && row->max == 0) || (value >= row->min && value <= row->max))
        return true;
    dpt_conf_mistake(conf, node, path, "%s is not %s", dpt_conf_show(conf, node->text),
                     dpt_value_bounds(row, bounds));
    return false;
}

/* `1e-3` for `1.0e-3`. */
static const char *shorten(struct dpt_region *region, const char *text)
{
    const size_t e = strcspn(text, "eE"), plus = text[e] != '\0' && text[e + 1] == '+';
    const size_t mantissa = e > 2 && memcmp(text + e - 2, ".0", 2) == 0 ? e - 2 : e;
    const char *other = NULL;

    if (plus || mantissa < e)
        other = dpt_region_printf(region, "%.*s%c%s", (int)mantissa, text, text[e],
                                  text + e + 1 + plus);
    return other != NULL ? other : text;
}

void dpt_value_settle(struct dpt_conf *conf, struct dpt_conf_node *node,
                      const struct dpt_option *row)
{
    static const char *const truths[] = {"true", "false", "True", "False", "TRUE", "FALSE"};
    enum { TRUTHS = sizeof truths / sizeof truths[0] };

    for (size_t i = 0; node->kind == DPT_NODE_LIST && row->type == DPT_OPT_REALS && i < node->n;
         i++)
        dpt_value_settle(conf, node->items[i], row);
    if (node->kind != DPT_NODE_SCALAR)
        return;
    if ((row->type == DPT_OPT_REAL || row->type == DPT_OPT_REALS) && !node->quoted &&
        node->text[dpt_number_length(node->text)] == '\0' && strpbrk(node->text, "eE") != NULL)
        node->text = shorten(&conf->region, node->text);
    if (row->type == DPT_OPT_BOOL && !node->quoted) {
        const size_t i = dpt_find(node->text, truths, TRUTHS);

        node->text = i < TRUTHS ? truths[i % 2] : node->text;
    }
    if (dpt_value_is_word(row, node->text) && strcmp(node->text, "null") != 0)
        node->quoted = false;
}

/* YAML's truths are those of its core schema: `yes` and `on` are texts, which others may mean. */
static void read_bool(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                      const struct dpt_option *row, void *dest)
{
    static const char *const meant[] = {"yes", "on", "y", "no", "off", "n"};
    enum { MEANT = sizeof meant / sizeof meant[0] };
    const bool plain = is_plain(node);
    size_t i = plain ? 0 : MEANT;

    while (i < MEANT && strcasecmp(node->text, meant[i]) != 0)
        i++;
    if (plain && strcmp(node->text, "true") == 0)
        *(bool *)dest = true;
    else if (plain && strcmp(node->text, "false") == 0)
        *(bool *)dest = false;
    else if (i < MEANT)
        dpt_conf_mistake(conf, node, path, "expected true or false, got '%s', did you mean %s?",
                         dpt_conf_show(conf, node->text), i < MEANT / 2 ? "true" : "false");
    else
        wrong_type(conf, node, path, row);
}

/* INT and REAL. */
static void read_number(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                        const struct dpt_option *row, void *dest)
{
    const bool whole = row->type == DPT_OPT_INT;
    int64_t integer = 0;
    double real = 0;

    if (!is_plain(node)) {
        wrong_type(conf, node, path, row);
        return;
    }
    if (dpt_value_is_word(row, node->text)) {
        real = row->word_value;
        integer = (int64_t)real;
    } else if (whole ? dpt_parse_int(node->text, &integer) : dpt_parse_real(node->text, &real)) {
        if (!in_bounds(conf, node, path, row, whole ? (double)integer : real))
            return;
    } else if (whole
                   ? dpt_is_whole(node->text)
                   : node->text[0] != '\0' && dpt_number_length(node->text) == strlen(node->text)) {
        dpt_conf_mistake(conf, node, path, "%s is out of range", dpt_conf_show(conf, node->text));
        return;
    } else {
        wrong_type(conf, node, path, row);
        return;
    }
    if (whole)
        *(int64_t *)dest = integer;
    else
        *(double *)dest = real;
}

static void read_text(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                      const struct dpt_option *row, void *dest)
{
    if (node->kind != DPT_NODE_SCALAR || dpt_conf_is_null(node))
        wrong_type(conf, node, path, row);
    else
        *(const char **)dest = node->text;
}

bool dpt_option_is_name(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;

    if (strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        return false;
    for (; *c != '\0'; c++)
        if (*c < ' ' || *c == '/' || *c == 0x7f || (c[0] == 0xc2 && c[1] < 0xa0) ||
            (c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0xa8 || c[2] == 0xa9)))
            return false;
    return c > (const unsigned char *)text && c - (const unsigned char *)text <= NAME_MAX;
}

static void read_name(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                      const struct dpt_option *row, void *dest)
{
    if (node->kind != DPT_NODE_SCALAR || !dpt_option_is_name(node->text))
        wrong_type(conf, node, path, row);
    else
        read_text(conf, node, path, row, dest);
}

static void read_choice(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                        const struct dpt_option *row, void *dest)
{
    const size_t n = count_names(row->choices);
    char names[DPT_VALUE_TEXT] = "";
    size_t i;

    if (node->kind != DPT_NODE_SCALAR) {
        wrong_type(conf, node, path, row);
        return;
    }
    i = dpt_find(node->text, row->choices, n);
    if (i < n) {
        *(int *)dest = (int)i;
        return;
    }
    dpt_value_join(names, sizeof names, row->choices, n);
    dpt_conf_mistake(conf, node, path, "'%s' is none of %s%s", dpt_conf_show(conf, node->text),
                     names, dpt_value_suggestion(conf, NULL, node->text, row->choices, n));
}

/* Types that are lists: how one entry is read, and how large it is. */
struct list_type {
    enum dpt_option_type entry;
    size_t size;
};

static void read_list(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                      const struct dpt_option *row, void *dest)
{
    // clang-format off
    static const struct list_type types[] = {
        [DPT_OPT_INTS] = {DPT_OPT_INT, sizeof(int64_t)},
        [DPT_OPT_REALS] = {DPT_OPT_REAL, sizeof(double)},
        [DPT_OPT_TEXTS] = {DPT_OPT_TEXT, sizeof(const char *)},
    };
    // clang-format on
    const struct list_type *type = &types[row->type];
    struct dpt_option entry = *row;
    const bool list = node->kind == DPT_NODE_LIST;
    const size_t n = list ? node->n : 1, mistakes = conf->n_mistakes;
    char *at;

    if (node->kind == DPT_NODE_MAP || (row->range && !list)) {
        wrong_type(conf, node, path, row);
        return;
    }
    if (row->range && n != 2) {
        dpt_conf_mistake(conf, node, path, "%zu number%s; two are needed: [least, most]", n,
                         n == 1 ? "" : "s");
        return;
    }
    if (row->most > 0 && (n == 0 || n > row->most)) {
        dpt_conf_mistake(conf, node, path, "%zu numbers; one to %zu are needed", n, row->most);
        return;
    }
    at = dpt_region_alloc(&conf->region, (n + 1) * type->size);
    if (at == NULL)
        return;
    entry.type = type->entry;
    entry.word = NULL;
    entry.range = false;
    for (size_t i = 0; i < n; i++) {
        const char *name = list ? dpt_option_path(conf, path, NULL, i) : path;

        dpt_value_read(conf, list ? node->items[i] : node, name, &entry, at + i * type->size);
    }
    /* The three structs have the same two members, but for the type that the pointer points to. */
    if (row->type == DPT_OPT_INTS)
        *(struct dpt_ints *)dest = (struct dpt_ints){.at = (int64_t *)(void *)at, .n = n};
    else if (row->type == DPT_OPT_REALS)
        *(struct dpt_reals *)dest = (struct dpt_reals){.at = (double *)(void *)at, .n = n};
    else
        *(struct dpt_texts *)dest = (struct dpt_texts){.at = (const char **)(void *)at, .n = n};
    if (row->range && conf->n_mistakes == mistakes &&
        ((const double *)(const void *)at)[0] > ((const double *)(const void *)at)[1])
        dpt_conf_mistake(conf, node, path, "the smaller number comes first: [least, most]");
}

static void read_named(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                       const struct dpt_option *row, void *dest)
{
    struct dpt_option entry = *row;
    struct dpt_named_reals *named = dest;

    if (node->kind != DPT_NODE_MAP) {
        wrong_type(conf, node, path, row);
        return;
    }
    *named = (struct dpt_named_reals){.names = node->keys, .n = node->n};
    named->at = dpt_region_alloc(&conf->region, (node->n + 1) * sizeof *named->at);
    entry.type = DPT_OPT_REAL;
    for (size_t i = 0; named->at != NULL && i < node->n; i++)
        dpt_value_read(conf, node->items[i], dpt_option_path(conf, path, node->keys[i], 0), &entry,
                       &named->at[i]);
}

static void read_every(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                       const struct dpt_option *row, void *dest)
{
    const struct dpt_every *every = dest;
    const char *problem;

    if (node->kind != DPT_NODE_SCALAR || node->text[0] == '\0') {
        wrong_type(conf, node, path, row);
        return;
    }
    if (dpt_value_is_word(row, node->text)) {
        *(struct dpt_every *)dest = (struct dpt_every){.unit = DPT_AUTO};
        return;
    }
    problem = dpt_parse_every(node->text, dest);
    if (problem != NULL && dpt_value_units(row) >> DPT_PERCENT & 1)
        wrong_type(conf, node, path, row); /* the problem's words are of times */
    else if (problem != NULL)
        dpt_conf_mistake(conf, node, path, "'%s': %s", dpt_conf_show(conf, node->text), problem);
    else if (!(dpt_value_units(row) >> every->unit & 1))
        wrong_type(conf, node, path, row);
}

void dpt_value_read(struct dpt_conf *conf, const struct dpt_conf_node *node, const char *path,
                    const struct dpt_option *row, void *dest)
{
    static void (*const readers[])(struct dpt_conf *, const struct dpt_conf_node *, const char *,
                                   const struct dpt_option *, void *) = {
        [DPT_OPT_BOOL] = read_bool,   [DPT_OPT_INT] = read_number,  [DPT_OPT_REAL] = read_number,
        [DPT_OPT_TEXT] = read_text,   [DPT_OPT_NAME] = read_name,   [DPT_OPT_CHOICE] = read_choice,
        [DPT_OPT_INTS] = read_list,   [DPT_OPT_REALS] = read_list,  [DPT_OPT_TEXTS] = read_list,
        [DPT_OPT_EVERY] = read_every, [DPT_OPT_NAMED] = read_named,
    };

    readers[row->type](conf, node, path, row, dest);
}
