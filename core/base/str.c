#include "core/base/str.h"

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"

/* Names longer than this are never suggested. */
enum { NAME_LIMIT = 64 };

void dpt_str_add(struct dpt_str *s, const char *bytes, size_t n)
{
    char *text = s->failed || n > SIZE_MAX / 4 - s->length
                     ? NULL
                     : dpt_grow(s->text, &s->capacity, s->length + n + 1, 1);

    if (text == NULL) {
        s->failed = true;
        return;
    }
    s->text = text;
    if (n != 0)
        memcpy(text + s->length, bytes, n);
    s->length += n;
    text[s->length] = '\0';
}

void dpt_str_printf(struct dpt_str *s, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    int n;

    va_start(args, format);
    n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) {
        s->failed = true;
        return;
    }
    dpt_str_add(s, text, (size_t)n);
    free(text);
}

int32_t dpt_utf8_decode(const char *bytes, size_t n, size_t *length)
{
    /* The smallest character that needs so many bytes: what is smaller is overlong. */
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)bytes;
    int32_t c;
    size_t want;

    *length = 1;
    if (p[0] < 0x80)
        return p[0];
    if (p[0] < 0xC0 || p[0] > 0xF7)
        return -1;
    want = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (want > n)
        return -1;
    c = p[0] & (0x7F >> want);
    for (size_t i = 1; i < want; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return -1;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (c < least[want] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return -1;
    *length = want;
    return c;
}

/* Columns of one character: 2 of those that East Asian Width (Unicode annex 11) calls wide, and of
 * images; 0 of what combines with the one before it. */
static size_t columns_of(int32_t c)
{
    static const struct {
        int32_t first, last;
        size_t columns;
    } ranges[] = {
        {0x0300, 0x036F, 0},   {0x1100, 0x115F, 2},   {0x200B, 0x200F, 0},   {0x2E80, 0x303E, 2},
        {0x3041, 0xA4CF, 2},   {0xA960, 0xA97F, 2},   {0xAC00, 0xD7A3, 2},   {0xF900, 0xFAFF, 2},
        {0xFE00, 0xFE0F, 0},   {0xFE30, 0xFE6F, 2},   {0xFF00, 0xFF60, 2},   {0xFFE0, 0xFFE6, 2},
        {0x1F300, 0x1F64F, 2}, {0x1F680, 0x1F6FF, 2}, {0x1F900, 0x1FAFF, 2}, {0x20000, 0x3FFFD, 2},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return ranges[i].columns;
    return 1;
}

size_t dpt_utf8_width(const char *text, size_t n)
{
    size_t width = 0, length;

    for (size_t i = 0; i < n; i += length)
        width += columns_of(dpt_utf8_decode(text + i, n - i, &length));
    return width;
}

size_t dpt_utf8_bytes(const char *text, long columns)
{
    const size_t n = strlen(text);
    size_t bytes = 0, length;

    for (; bytes < n; bytes += length) {
        columns -= (long)columns_of(dpt_utf8_decode(text + bytes, n - bytes, &length));
        if (columns < 0)
            break;
    }
    return bytes;
}

const char *dpt_utf8_end(const char *text, long columns)
{
    size_t n = strlen(text), length;

    for (; (long)dpt_utf8_width(text, n) > columns && n > 0; text += length, n -= length)
        dpt_utf8_decode(text, n, &length);
    return text;
}

void dpt_str_wrap(struct dpt_str *s, const char *text, size_t indent, size_t column, size_t width)
{
    while (*text != '\0') {
        size_t bytes, columns;

        if (*text == '\n') { /* a paragraph ends */
            dpt_str_add(s, "\n", 1);
            column = 0;
            text++;
            continue;
        }
        if (column == 0 && *text == ' ') { /* an example: as it stands */
            bytes = strcspn(text, "\n");
            dpt_str_printf(s, "%*s%.*s", (int)indent, "", (int)bytes, text);
            text += bytes;
            continue;
        }
        if (*text == ' ') {
            text++;
            continue;
        }
        bytes = strcspn(text, " \n");
        columns = dpt_utf8_width(text, bytes);
        if (column > indent && column + 1 + columns > width) {
            dpt_str_add(s, "\n", 1);
            column = 0;
        }
        if (column < indent)
            dpt_str_printf(s, "%*s", (int)(indent - column), "");
        else if (column > indent)
            dpt_str_add(s, " ", 1);
        column = column <= indent ? indent : column + 1;
        dpt_str_add(s, text, bytes);
        column += columns;
        text += bytes;
    }
    dpt_str_add(s, "\n", 1);
}

bool dpt_shown_character(int32_t c)
{
    return c >= 0x20 && c != 0x7F && (c < 0x80 || c > 0x9F) && (c < 0x200B || c > 0x200F) &&
           (c < 0x2028 || c > 0x202E) && (c < 0x2066 || c > 0x2069) && c != 0xFEFF && c != 0xFFFE &&
           c != 0xFFFF;
}

/* One character of n > 0 bytes as it can be shown; *length: its bytes in `text`. Returns how many
 * were written. */
static size_t show_character(char out[8], const char *text, size_t n, size_t *length)
{
    static const char named[] = "\n\r\t", letters[] = "nrt";
    const int32_t c = dpt_utf8_decode(text, n, length);
    const char *name = c == 0 ? NULL : strchr(named, *text);

    if (c >= 0 && dpt_shown_character(c)) {
        memcpy(out, text, *length);
        return *length;
    }
    if (name != NULL)
        return (size_t)sprintf(out, "\\%c", letters[name - named]);
    if (c < 0x80)
        return (size_t)sprintf(out, "\\x%02x", (unsigned char)*text);
    return (size_t)sprintf(out, "\\u%04x", (unsigned)c & 0xFFFF);
}

void dpt_str_printable(struct dpt_str *s, const char *text, size_t n, bool lines)
{
    const char *const end = text + n;
    char shown[8];
    size_t length;

    while (text < end) {
        const char *plain = text;

        while (plain < end &&
               ((*plain >= 0x20 && *plain < 0x7F) || *plain == '\t' || (*plain == '\n' && lines)))
            plain++;
        dpt_str_add(s, text, (size_t)(plain - text));
        text = plain;
        if (text < end) {
            dpt_str_add(s, shown, show_character(shown, text, (size_t)(end - text), &length));
            text += length;
        }
    }
}

void dpt_show_text(char *out, const char *text, size_t limit)
{
    size_t left = strlen(text), length;

    for (; left > 0; text += length, left -= length) {
        if (limit-- == 0) {
            out += sprintf(out, "…");
            break;
        }
        out += show_character(out, text, left, &length);
    }
    *out = '\0';
}

void dpt_str_shell(struct dpt_str *s, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:=,@%+-";

    if (text[0] != '\0' && text[strspn(text, plain)] == '\0') {
        dpt_str_printf(s, "%s", text);
        return;
    }
    dpt_str_printf(s, "'");
    for (const char *p = text; *p != '\0'; p++)
        dpt_str_printf(s, *p == '\'' ? "'\\''" : "%c", *p);
    dpt_str_printf(s, "'");
}

void dpt_str_json(struct dpt_str *s, const char *text)
{
    static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
    size_t left = strlen(text), n;

    dpt_str_add(s, "\"", 1);
    for (; left > 0; text += n, left -= n) {
        const char *special = strchr(plain, *text);
        const int32_t c = dpt_utf8_decode(text, left, &n);

        if (special != NULL)
            dpt_str_printf(s, "\\%c", escaped[special - plain]);
        else if (c < 0)
            dpt_str_add(s, "\xEF\xBF\xBD", 3);
        else if (!dpt_shown_character(c))
            dpt_str_printf(s, "\\u%04x", (unsigned)c & 0xFFFF);
        else
            dpt_str_add(s, text, n);
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
    /* 17 significant digits always read back as the same double; 15 are right, without their zeros,
     * wherever fewer do but among the numbers that have lost some of their bits. */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    dpt_str_add(s, text, strlen(text));
}

void dpt_str_float(struct dpt_str *s, float value)
{
    char text[40];

    for (int digits = 6; digits <= 9; digits++) { /* 9 always do */
        snprintf(text, sizeof text, "%.*g", digits, isnan(value) ? NAN : (double)value);
        if (!isfinite(value) || strtof(text, NULL) == value)
            break;
    }
    dpt_str_add(s, text, strlen(text));
}

void dpt_str_base64(struct dpt_str *out, const void *bytes, size_t n)
{
    enum { PAD = 64 };
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    const uint8_t *p = bytes;

    for (size_t i = 0; i < n; i += 3) {
        const uint32_t word = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                              (i + 2 < n ? p[i + 2] : 0);
        const char four[4] = {
            digits[word >> 18],
            digits[word >> 12 & 63],
            digits[i + 1 < n ? word >> 6 & 63 : PAD],
            digits[i + 2 < n ? word & 63 : PAD],
        };

        dpt_str_add(out, four, 4);
    }
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

size_t dpt_find(const char *name, const char *const *names, size_t n)
{
    size_t i = 0;

    while (i < n && strcmp(names[i], name) != 0)
        i++;
    return i;
}

bool dpt_begins_with(const char *text, const char *const *beginnings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(text, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
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

void dpt_str_ranks(struct dpt_str *s, const int *ranks, int n)
{
    enum { MOST = 8 };
    int listed = 0;

    for (int i = 0, last; i < n; i = last + 1, listed++) {
        last = i;
        while (last + 1 < n && ranks[last + 1] == ranks[last] + 1)
            last++;
        if (listed == MOST) {
            dpt_str_printf(s, ", ...");
            return;
        }
        dpt_str_printf(s, last > i ? "%s%d-%d" : "%s%d", listed == 0 ? "" : ", ", ranks[i],
                       ranks[last]);
    }
}

void dpt_str_ranks_where(struct dpt_str *s, const bool *is, int n)
{
    int ranks[n], found = 0;

    for (int i = 0; i < n; i++)
        if (is[i])
            ranks[found++] = i;
    dpt_str_ranks(s, ranks, found);
}

static const char *with_unit(double value, const char *const *units, char *buf)
{
    while (units[1] != NULL && value >= 999.5) {
        value /= 1000;
        units++;
    }
    snprintf(buf, 32, "%.*f %s",
             value >= 99.95 || value == 0 ? 0
             : value >= 9.995             ? 1
                                          : 2,
             value, *units);
    return buf;
}

const char *dpt_dims_text(int n, const int64_t *dims, char buf[DPT_DIMS_TEXT])
{
    size_t used = (size_t)snprintf(buf, DPT_DIMS_TEXT, "[");

    for (int d = 0; d < n; d++)
        used += (size_t)snprintf(buf + used, DPT_DIMS_TEXT - used, "%s%" PRId64, d > 0 ? ", " : "",
                                 dims[d]);
    snprintf(buf + used, DPT_DIMS_TEXT - used, "]");
    return buf;
}

const char *dpt_show_bytes(double bytes, char *buf)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", NULL};

    return with_unit(bytes, units, buf);
}

const char *dpt_show_seconds(double seconds, char *buf)
{
    static const char *const units[] = {"us", "ms", "s", NULL};

    return with_unit(seconds * 1e6, units, buf);
}

const char *dpt_show_clock(double seconds, char *buf)
{
    const long long s = (long long)(fmin(fmax(seconds, 0), 1e12) + 0.5);

    if (s >= 86400)
        snprintf(buf, 32, "%lld d %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
    else if (s >= 3600)
        snprintf(buf, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, 32, "%lld:%02lld", s / 60, s % 60);
    return buf;
}
