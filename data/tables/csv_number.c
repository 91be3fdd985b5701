/* Numbers in CSV files, as programs and people of many countries write them. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/conf/option.h"
#include "data/tables/csv.h"

/*
 * Up to 15 digits and at most 22 places after the point: digits and power of ten are exact
 * doubles, so one division rounds once (Clinger 1990). Most numbers in files are such, and strtod
 * is four times slower.
 */
static bool short_decimal(const char *p, double *value)
{
    static const double powers[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    const bool minus = *p == '-';
    int64_t digits = 0;
    int n = 0, behind = 0;

    p += minus;
    for (; isdigit((unsigned char)*p) && n < 15; p++, n++)
        digits = 10 * digits + (*p - '0');
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p) && n < 15; p++, n++, behind++)
            digits = 10 * digits + (*p - '0');
    if (*p != '\0' || n == 0)
        return false;
    *value = (double)digits / powers[behind];
    if (minus)
        *value = -*value;
    return true;
}

/* What a text is without anything around it. */
static enum dpt_csv_kind bare_number(const char *text, double *value)
{
    static const char *const missing[] = {"", "NA", "N/A", "null", "none", "?"};
    static const char *const not_finite[] = {"nan", "inf", "infinity"};
    const size_t decimal = dpt_number_length(text);

    if (short_decimal(text, value))
        return DPT_CSV_NUMBER;
    *value = 0;
    if (decimal > 0 && text[decimal] == '\0') {
        const double number = strtod(text, NULL);

        if (!isfinite(number))
            return DPT_CSV_NOT_FINITE;
        *value = number;
        return DPT_CSV_NUMBER;
    }
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        if (strcasecmp(text, missing[i]) == 0)
            return DPT_CSV_MISSING;
    for (size_t i = 0; i < sizeof not_finite / sizeof not_finite[0]; i++)
        if (strcasecmp(text + (*text == '+' || *text == '-'), not_finite[i]) == 0)
            return DPT_CSV_NOT_FINITE;
    return DPT_CSV_TEXT;
}

/* Whether separators stand where they must: 1,234,567.5 or 12,34,567. */
static bool is_grouped(const char *p, char thousands)
{
    static const char digits[] = "0123456789";
    size_t n;

    p += *p == '+' || *p == '-';
    n = strspn(p, digits);
    if (n < 1 || n > 3)
        return false;
    for (p += n; *p == thousands; p += n) {
        n = strspn(++p, digits);
        if (n != 3 && (n != 2 || p[n] != thousands))
            return false;
    }
    return strchr(p, thousands) == NULL;
}

enum { LONGEST = 512 };

/* Spaces at which no line is broken, as French and Swedish programs write them between groups of
 * digits (U+00A0, U+2009, U+202F), and the apostrophe of Swiss ones. */
static const struct {
    const char *text;
    char plain;
} marks[] = {
    {"\xC2\xA0", ' '}, {"\xE2\x80\x89", ' '}, {"\xE2\x80\xAF", ' '}, {"\xE2\x80\x99", '\''}};

/* Bytes of a mark that means `plain` and is another; 0: none begins here. */
static size_t mark_of(const char *p, char plain)
{
    for (size_t k = 0; (*p & 0x80) != 0 && k < sizeof marks / sizeof *marks; k++)
        if (marks[k].plain == plain && strncmp(p, marks[k].text, strlen(marks[k].text)) == 0)
            return strlen(marks[k].text);
    return 0;
}

char dpt_csv_plain_mark(const char *text)
{
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
        if (strcmp(text, marks[k].text) == 0)
            return marks[k].plain;
    return strlen(text) == 1 ? text[0] : '\0';
}

/* The text with each mark that means `plain` as that one; returns `text` itself where there is
 * none, or where it has no room. */
static const char *plain_marks(const char *text, char plain, char buf[LONGEST])
{
    size_t n = 0, taken;
    bool found = false;

    for (const char *p = text; *p != '\0' && n + 1 < LONGEST; n++, p += taken > 0 ? taken : 1) {
        taken = mark_of(p, plain);
        buf[n] = taken > 0 ? plain : *p;
        found = found || taken > 0;
    }
    buf[n] = '\0';
    return found && strlen(text) < LONGEST ? buf : text;
}

static enum dpt_csv_kind bare_number_in(const char *text, char decimal, char thousands,
                                        double *value)
{
    char spaced[LONGEST], plain[LONGEST];
    const char *const in = thousands != 0 ? plain_marks(text, thousands, spaced) : text;
    const bool grouped = thousands != 0 && strchr(in, thousands) != NULL;
    enum dpt_csv_kind kind;
    size_t n = 0;

    if (decimal == '.' && !grouped)
        return bare_number(text, value);
    if (strlen(in) >= LONGEST || (grouped && !is_grouped(in, thousands)) ||
        (decimal != '.' && thousands != '.' && strchr(in, '.') != NULL)) {
        kind = bare_number(text, value); /* what else it may be */
        *value = 0;
        return kind == DPT_CSV_NUMBER || kind == DPT_CSV_NOT_FINITE ? DPT_CSV_TEXT : kind;
    }
    for (const char *p = in; *p != '\0'; p++)
        if (!grouped || *p != thousands)
            plain[n++] = (char)(*p == decimal ? '.' : *p);
    plain[n] = '\0';
    return bare_number(plain, value);
}

/* --- what may stand around a number ----------------------------------------------------------- */

static const char *const units[] = {"%",
                                    "$",
                                    "\xE2\x82\xAC" /* euro */,
                                    "\xC2\xA3" /* pound */,
                                    "\xC2\xA5" /* yen */,
                                    "\xE2\x82\xB9" /* rupee */,
                                    "\xE2\x82\xA9" /* won */,
                                    "\xE2\x82\xBD" /* rouble */};
enum { UNITS = sizeof units / sizeof units[0] };

static size_t blank_at(const char *p)
{
    return *p == ' ' || *p == '\t' ? 1 : mark_of(p, ' ');
}

/* Bytes of the blank that ends in front of text[n]. */
static size_t blank_before(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++)
        if (blank_at(text + n - back) == back)
            return back;
    return 0;
}

/* Takes blanks from both ends. */
static void trim(char *text)
{
    size_t skip = 0, n = strlen(text), width;

    while ((width = blank_at(text + skip)) > 0)
        skip += width;
    memmove(text, text + skip, n - skip + 1);
    for (n -= skip; (width = blank_before(text, n)) > 0;)
        n -= width;
    text[n] = '\0';
}

/* Takes a unit from the front, after a sign, or from the end. NULL: there is none. */
static const char *take_unit(char *text)
{
    for (size_t k = 0; k < UNITS; k++) {
        const size_t width = strlen(units[k]), n = strlen(text);
        char *front = text + (*text == '-' || *text == '+');

        if (n > width && strcmp(text + n - width, units[k]) == 0) {
            text[n - width] = '\0';
            trim(text);
            return units[k];
        }
        if (k > 0 && strncmp(front, units[k], width) == 0) { /* no %5 */
            memmove(front, front + width, strlen(front + width) + 1);
            trim(front);
            return units[k];
        }
    }
    return NULL;
}

/* Whether a text may be such a number: most words are told by a letter. */
static bool may_be_dressed(const char *text)
{
    bool digit = false;
    size_t n = 0;

    for (; text[n] != '\0' && n < LONGEST; n++) {
        digit = digit || isdigit((unsigned char)text[n]);
        if (isalpha((unsigned char)text[n]) && text[n] != 'e' && text[n] != 'E')
            return false;
    }
    return digit && n < LONGEST;
}

/* A number with a minus sign of typography (U+2212), within blanks, or with a unit. *unit: which,
 * or NULL. The value of percents is the number, 0.05. */
static enum dpt_csv_kind dressed(const char *text, char decimal, char thousands, double *value,
                                 const char **unit)
{
    static const char minus[] = "\xE2\x88\x92";
    char plain[LONGEST];
    size_t n = 0;

    *value = 0;
    *unit = NULL;
    if (!may_be_dressed(text))
        return DPT_CSV_TEXT;
    for (const char *p = text; *p != '\0'; n++) {
        const bool is = strncmp(p, minus, strlen(minus)) == 0;

        plain[n] = (char)(is ? '-' : *p);
        p += is ? strlen(minus) : 1;
    }
    plain[n] = '\0';
    trim(plain);
    *unit = take_unit(plain);
    if (bare_number_in(plain, decimal, thousands, value) != DPT_CSV_NUMBER)
        return DPT_CSV_TEXT;
    if (*unit == units[0])
        *value /= 100;
    return DPT_CSV_NUMBER;
}

enum dpt_csv_kind dpt_csv_number_in(const char *text, char decimal, char thousands, double *value)
{
    const enum dpt_csv_kind kind = bare_number_in(text, decimal, thousands, value);
    const char *unit;

    return kind == DPT_CSV_TEXT ? dressed(text, decimal, thousands, value, &unit) : kind;
}

enum dpt_csv_kind dpt_csv_number(const char *text, double *value)
{
    return short_decimal(text, value) ? DPT_CSV_NUMBER : dpt_csv_number_in(text, '.', 0, value);
}

const char *dpt_csv_unit(const char *text, char decimal, char thousands)
{
    const size_t n = strlen(text);
    const char *unit;
    double value;

    if (n == 0 ||
        (isdigit((unsigned char)text[n - 1]) && (text[0] & 0x80) == 0 && strchr(text, '$') == NULL))
        return NULL;
    return dressed(text, decimal, thousands, &value, &unit) == DPT_CSV_NUMBER ? unit : NULL;
}
