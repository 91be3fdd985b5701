#include "core/base/str.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names longer than this are never suggested. */
enum { NAME_LIMIT = 64 };

static bool reserve(struct dpt_str *s, size_t more)
{
    size_t capacity = s->capacity == 0 ? 64 : s->capacity;
    char *text;

    if (s->failed || more > SIZE_MAX / 4 - s->length) {
        s->failed = true;
        return false;
    }
    if (s->length + more + 1 <= s->capacity)
        return true;
    while (capacity < s->length + more + 1)
        capacity *= 2;
    text = realloc(s->text, capacity);
    if (text == NULL) {
        s->failed = true;
        return false;
    }
    s->text = text;
    s->capacity = capacity;
    return true;
}

void dpt_str_add(struct dpt_str *s, const char *bytes, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n != 0)
        memcpy(s->text + s->length, bytes, n);
    s->length += n;
    s->text[s->length] = '\0';
}

void dpt_str_printf(struct dpt_str *s, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        s->failed = true;
        return;
    }
    if (!reserve(s, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(s->text + s->length, (size_t)n + 1, format, args);
    va_end(args);
    s->length += (size_t)n;
}

/*
 * Bytes of the well-formed UTF-8 sequence at p (Unicode 15, table 3-7), or 0: no overlong forms, no
 * surrogates, nothing above U+10FFFF. The NUL behind the string ends a cut sequence, since it is no
 * continuation byte.
 */
static size_t utf8_length(const unsigned char *p)
{
    // clang-format off
    static const struct {
        unsigned char first, last;      /* of the leading byte */
        unsigned char low, high;        /* of the second byte */
        unsigned char length;
    } forms[] = {
        {0x00, 0x7F, 0x00, 0x00, 1},
        {0xC2, 0xDF, 0x80, 0xBF, 2},
        {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3},
        {0xED, 0xED, 0x80, 0x9F, 3},
        {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4},
        {0xF1, 0xF3, 0x80, 0xBF, 4},
        {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    // clang-format on

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (*p < forms[i].first || *p > forms[i].last)
            continue;
        if (forms[i].length > 1 && (p[1] < forms[i].low || p[1] > forms[i].high))
            return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if (p[k] < 0x80 || p[k] > 0xBF)
                return 0;
        return forms[i].length;
    }
    return 0;
}

void dpt_str_json(struct dpt_str *s, const char *text)
{
    static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
    const unsigned char *p = (const unsigned char *)text;

    dpt_str_add(s, "\"", 1);
    while (*p != '\0') {
        const char *special = strchr(plain, *p);
        const size_t n = utf8_length(p);

        if (special != NULL)
            dpt_str_printf(s, "\\%c", escaped[special - plain]);
        else if (*p < 0x20 || *p == 0x7F)
            dpt_str_printf(s, "\\u%04x", *p);
        else if (n == 0)
            dpt_str_add(s, "\xEF\xBF\xBD", 3);
        else
            dpt_str_add(s, (const char *)p, n);
        p += n == 0 ? 1 : n;
    }
    dpt_str_add(s, "\"", 1);
}

void dpt_str_number(struct dpt_str *s, double value)
{
    char text[40];

    if (!isfinite(value)) {
        dpt_str_add(s, "null", 4);
        return;
    }
    /* Whole numbers as people write them, 100 and not 1e+02. */
    if (value == trunc(value) && fabs(value) < 1e15) {
        dpt_str_printf(s, "%.0f", value);
        return;
    }
    /* 17 significant digits always read back as the same double. */
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    dpt_str_add(s, text, strlen(text));
}

void dpt_str_clear(struct dpt_str *s)
{
    s->length = 0;
    s->failed = false;
    if (s->text != NULL)
        s->text[0] = '\0';
}

void dpt_str_release(struct dpt_str *s)
{
    free(s->text);
    *s = (struct dpt_str){0};
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment), upper
 * and lower case alike. */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t rows[3][NAME_LIMIT + 1];

    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        const size_t *older = rows[(i + 1) % 3], *old = rows[(i + 2) % 3];
        size_t *row = rows[i % 3];
        const int c = tolower((unsigned char)a[i - 1]);

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const int d = tolower((unsigned char)b[j - 1]);

            row[j] = smaller(smaller(old[j] + 1, row[j - 1] + 1), old[j - 1] + (c != d));
            if (i > 1 && j > 1 && c == tolower((unsigned char)b[j - 2]) &&
                d == tolower((unsigned char)a[i - 2]))
                row[j] = smaller(row[j], older[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *dpt_nearest(const char *name, const char *const *names, size_t n)
{
    const size_t length = strlen(name);
    const char *best = NULL;
    size_t least = SIZE_MAX;

    if (length == 0 || length > NAME_LIMIT)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const size_t other = strlen(names[i]);
        const size_t shorter = smaller(length, other), longer = length + other - shorter;
        size_t distance;

        if (other == 0 || other > NAME_LIMIT)
            continue;
        distance = edit_distance(name, length, names[i], other);
        /* A third of the letters may be wrong, but never all of the shorter name. */
        if (distance <= (longer + 2) / 3 && distance < shorter && distance < least) {
            least = distance;
            best = names[i];
        }
    }
    return best;
}

const char *dpt_group_digits(char *buf, long long value)
{
    char digits[24];
    const unsigned long long size =
        value < 0 ? -(unsigned long long)value : (unsigned long long)value;
    const int n = snprintf(digits, sizeof digits, "%llu", size);
    char *p = buf;

    if (value < 0)
        *p++ = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            *p++ = ' ';
        *p++ = digits[i];
    }
    *p = '\0';
    return buf;
}

void dpt_str_ranks(struct dpt_str *s, const bool *is, int n)
{
    enum { MOST = 8 };
    int listed = 0;

    for (int i = 0, last; i < n; i = last + 1) {
        last = i;
        if (!is[i])
            continue;
        while (last + 1 < n && is[last + 1])
            last++;
        if (listed == MOST)
            dpt_str_printf(s, ", ...");
        if (listed++ >= MOST)
            continue;
        dpt_str_printf(s, last > i ? "%s%d-%d" : "%s%d", listed == 1 ? "" : ", ", i, last);
    }
}
